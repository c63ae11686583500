"""Replaying recorded outputs through a drafter: a draft token is accepted if it was recorded.

All drafters are compared on the same text, without a model. The first token of an output belongs to
the prompt, because the prefill emits it. A draft has at most the remaining tokens but one, because
the target adds a token. Evidence (see ``Drafter.evidence``) is available for accepted positions
only, if it was recorded. What the target computed after rejected tokens was not recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns

import numpy as np

from ngramspec._native.copyindex import CopyIndex
from ngramspec.costs.tracker import DraftMargin
from ngramspec.draft import Draft, Float32, Verdict, judged_nodes
from ngramspec.draft_length.schedule import CostGamma, FixedGamma, GammaController, make_controller
from ngramspec.drafters.base import Drafter, DraftModel, call_observe
from ngramspec.measure.knowledge import Known
from ngramspec.measure.top_tokens import replayed
from ngramspec.measure.traces import Trace
from ngramspec.stats import DecodeStats

MATCH_BUCKETS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 20, 40)  # minimum length of each
CONFIDENCE_BINS = 20


@dataclass(slots=True)
class Share:
    """Verified draft tokens, the accepted ones, and how many the drafter expected."""

    verified: int = 0
    accepted: int = 0
    expected: float = 0.0


@dataclass(slots=True)
class Tally(DecodeStats):
    """Counts of a replay."""

    cost: float = 0.0  # of the calls' forwards, in forwards of one position
    nanoseconds: list[int] = field(default_factory=list)  # of each step's calls of the session

    def to_dict(self) -> dict[str, float]:
        """The counts and ratios that are reported."""
        calls = self.target_calls
        return {
            "calls": calls,
            "emitted": self.emitted,
            "tokens_per_call": self.tokens_per_call,
            "tokens_per_cost": self.emitted / self.cost if self.cost else 0.0,
            "alpha": self.alpha,
            "accepted_fraction": self.accepted_fraction,
            "drafted_per_step": self.drafted / calls if calls else 0.0,
            "step_us_median": float(np.median(self.nanoseconds)) / 1000 if calls else 0.0,
            "step_us_p99": float(np.percentile(self.nanoseconds, 99)) / 1000 if calls else 0.0,
        }


@dataclass(slots=True)
class Acceptance:
    """Acceptance by the source of a draft token, its position, and the drafter's confidence.

    The keys of ``matches`` are the least lengths of buckets, by the longest suffix that had
    occurred before the step, whatever the drafter. Positions are depths in a tree.
    """

    sources: dict[str, Share] = field(default_factory=partial(defaultdict, Share))
    matches: dict[int, Share] = field(default_factory=partial(defaultdict, Share))
    positions: dict[int, Share] = field(default_factory=partial(defaultdict, Share))
    confidence: dict[int, Share] = field(default_factory=partial(defaultdict, Share))

    def count(self, draft: Draft, path: Sequence[int], match: int, names: Sequence[str]) -> None:
        """Add one step's draft, of which the nodes of ``path`` were accepted.

        The recording shows the children of the last committed token and of every accepted node to
        be right or wrong, whatever their order: confidence does not cover the siblings before.
        """
        bucket = max(each for each in MATCH_BUCKETS if each <= match)
        children = draft.children()
        for depth, above in enumerate((-1, *path)):
            for node in children[above + 1]:
                name = names[0 if draft.source is None else int(draft.source[node])]
                shares = [self.sources[name], self.matches[bucket], self.positions[depth]]
                expected = 0.0
                if draft.confidence is not None:
                    expected = float(draft.confidence[node])
                    bin = min(int(expected * CONFIDENCE_BINS), CONFIDENCE_BINS - 1)
                    shares.append(self.confidence[bin])
                for share in shares:
                    share.verified += 1
                    share.accepted += node in path
                    share.expected += expected


@dataclass(frozen=True, slots=True)
class Plan:
    """How drafts are requested from a drafter.

    ``cost``, float32 (gamma_max + 2,), has at n the cost of a forward of n positions. With gamma
    "auto", the length of chains follows from the cost, and trees have up to gamma_max nodes.
    """

    cost: Float32
    gamma: int | str = "auto"
    gamma_max: int = 64
    tree: bool = False


@dataclass(slots=True)
class Player:
    """Replays traces through one drafter and keeps the tallies by group.

    Counting ``acceptance`` disturbs the times, so figures and details are measured in different
    runs. ``head`` makes the drafting model of a trace, if there is one; its cost is not counted.
    """

    drafter: Drafter
    plan: Plan
    acceptance: Acceptance | None = None
    knowledge: Known | None = None
    head: Callable[[Trace], DraftModel] | None = None
    groups: dict[str, Tally] = field(default_factory=dict)

    def play(self, traces: Iterable[Trace]) -> Player:
        """Replay traces, in order; returns itself."""
        for trace in traces:
            self._play(trace, self.groups.setdefault(trace.group, Tally()))
        return self

    def _play(self, trace: Trace, tally: Tally) -> None:
        plan, output, knowledge = self.plan, trace.output, self.knowledge
        recorded = output.tolist()
        committed = np.concatenate((trace.prompt, output[:1]))
        margin = DraftMargin()
        drafter = self.drafter if knowledge is None else knowledge.given_to(self.drafter, trace)
        estimates = drafter.estimates
        controller: GammaController
        if plan.gamma != "auto":
            controller = make_controller(plan.gamma, plan.gamma_max, lambda: plan.cost)
        elif plan.tree and not estimates:  # most nodes of any tree are rejected
            controller = FixedGamma(plan.gamma_max)
        else:
            controller = CostGamma(plan.gamma_max, lambda: margin.required(plan.cost))
        seen = CopyIndex()  # for the length of a match
        if self.acceptance is not None:
            seen.extend(committed)
        if knowledge is not None and knowledge.shares:
            session = drafter.start(trace.prompt)
            session.extend(output[:1])
        else:
            session = drafter.start(committed)
        if self.head is not None:
            model = self.head(trace)
            session.begin_models(lambda _: model)
        at = 1
        while at < len(recorded):
            gamma, cost = controller.plan(estimates)
            gamma = min(gamma, len(recorded) - at - 1)
            begin = perf_counter_ns()
            draft = session.propose(gamma, cost, tree=plan.tree)
            draft = controller.keep(draft)
            tokens = draft.tokens.tolist()
            proposed = perf_counter_ns() - begin
            path = accepted_path(tokens, draft, recorded, at)
            count = len(tokens)
            new = output[at : at + len(path) + 1]
            evidence = None
            wanted = drafter.evidence is not None and session.wants_evidence
            if wanted and trace.top_tokens is not None:
                evidence = replayed(trace.top_tokens, recorded, recorded[at - 1], at, len(new))
            begin = perf_counter_ns()
            if count or evidence is not None:
                call_observe(session, draft, path, None, evidence)
            session.extend(new)
            tally.nanoseconds.append(proposed + perf_counter_ns() - begin)
            margin.record_acceptance(count, len(path))
            if count:
                controller.observe(count, len(path))
            verified = sum(1 for _ in judged_nodes(draft, path))
            verdict = Verdict(path, verified, new.tolist())
            tally.count_step(draft, verdict, drafter.source_names)
            tally.cost += float(plan.cost[count + 1])
            if self.acceptance is not None:
                match = seen.longest_match()[0]
                self.acceptance.count(draft, path, match, drafter.source_names)
                seen.extend(new)
            at += len(new)
        session.close()


def replay(
    make: Callable[[], Drafter],
    plan: Plan,
    traces: Iterable[Trace],
    *,
    fresh: bool = False,
    acceptance: Acceptance | None = None,
    knowledge: Known | None = None,
) -> dict[str, Tally]:
    """Replay traces, each through a new drafter if ``fresh``; return the tallies by group."""
    player = Player(make(), plan, acceptance, knowledge)
    for trace in traces:
        if fresh:
            player.drafter = make()
        player.play([trace])
    return player.groups


def accepted_path(
    tokens: Sequence[int], draft: Draft, recorded: Sequence[int], at: int
) -> Sequence[int]:
    """Indices of the nodes that the target would accept: those recorded from ``at`` on."""
    if draft.parents is None:
        n = 0
        while n < len(tokens) and tokens[n] == recorded[at + n]:
            n += 1
        return range(n)
    path: list[int] = []
    parent = -1
    for node, (token, above) in enumerate(zip(tokens, draft.parents.tolist(), strict=True)):
        place = at + len(path)
        if above == parent and place < len(recorded) - 1 and token == recorded[place]:
            path.append(node)
            parent = node
    return path


def geometric_mean(tallies: Iterable[Tally], name: str) -> float:
    """The geometric mean over groups of one of ``Tally.to_dict``'s ratios."""
    values = [tally.to_dict()[name] for tally in tallies]
    return float(np.exp(np.mean(np.log(values)))) if values and min(values) > 0 else 0.0
