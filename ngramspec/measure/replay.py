"""Replaying recorded outputs through a drafter: a draft token is accepted if it was recorded.

All drafters are compared on the same text, without a model. The first token of an output belongs to
the prompt, because the prefill emits it. A draft has at most the remaining tokens but one, because
the target adds a token. Evidence (see ``Drafter.evidence``) is available for accepted positions
only, if it was recorded. What the target computed after rejected tokens was not recorded.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from ngramspec.costs.policies import CostGamma, GammaController, make_controller
from ngramspec.costs.processors import GPU_COSTS
from ngramspec.costs.steps import losses_after, required_tokens
from ngramspec.draft import Evidence, Float32
from ngramspec.drafters.base import Drafter, DraftModel, call_observe
from ngramspec.drafters.tool_calls import ToolCalls
from ngramspec.measure.traces import RecordedTopTokens, Trace
from ngramspec.stats import DecodeStats
from ngramspec.stores import Corpus, SharedStore

# Widths and costs by which drafters are compared. "cpu": SmolLM2-135M in bfloat16 on two cores of
# an Intel Xeon with AMX. "gpu": assumed, of a 7-8B model on one data-centre GPU.
POSITIONS = tuple(GPU_COSTS)
COSTS = {
    "cpu": (1, 1, 1, 1.0, 1.04, 1.10, 1.22, 1.40, 1.60, 2.0, 2.7, 5.0),
    "gpu": tuple(GPU_COSTS.values()),
}
COUNTED = ("tokens_per_call", "tokens_per_cost", "alpha", "acceptance_rate", "drafted_per_step")


def cost_curve(name: str, gamma_max: int) -> Float32:
    """The ``cost`` argument of ``DraftSession.propose``, float32 (gamma_max + 2,).

    It is linear between the given positions, and constant after the last; index 0 is unused. The
    name is "cpu", "gpu", or a JSON file with ``{"positions": [1, ...], "cost": [1.0, ...]}``; costs
    may have any unit. A ValueError is raised if it has something else.
    """
    at, cost = (POSITIONS, COSTS[name]) if name in COSTS else _read_curve(Path(name))
    return np.interp(np.arange(gamma_max + 2), at, cost).astype(np.float32)


def _read_curve(path: Path) -> tuple[list[float], list[float]]:
    fields = json.loads(path.read_text(encoding="utf-8"))
    lists = [fields.get(key) if isinstance(fields, dict) else None for key in ("positions", "cost")]
    at, cost = (each if isinstance(each, list) else [] for each in lists)
    numbers = all(isinstance(each, int | float) and abs(each) < 1e300 for each in (*at, *cost))
    if not (numbers and at and len(at) == len(cost) and at[0] == 1 and min(cost) > 0):
        raise ValueError(
            f"{path}: positions must begin with 1, and cost must have a value > 0 for each of them"
        )
    if sorted(set(at)) != at:
        raise ValueError(f"{path}: positions must rise, got {at}")
    return at, [each / cost[0] for each in cost]


SEPARATOR_ID = 0  # after each document of an .npy file
NAMESPACE = "replay"
STORE_BYTES = 256 << 20  # bytes of a store of earlier requests


class Known:
    """What drafters know in addition to each request: a store, and tools whose calls they predict.

    If it ``shares``, requests add their text, and an output's first token is not in the prompt.
    """

    shares = False
    tools: ToolCalls | None = None
    _last: tuple[Drafter, str, Drafter] | None = None

    def given_to(self, drafter: Drafter, trace: Trace) -> Drafter:
        """A drafter that knows what belongs to a trace; all such traces share it."""
        which = self.which(trace)
        if self._last is None or self._last[0] is not drafter or self._last[1] != which:
            self._last = None  # one at a time: suffix trees take much memory
            known: Any = drafter
            with suppress(ValueError):  # it supports none
                known = drafter.with_stores([self.store(which)])
            if self.tools is not None:
                known = known.with_tools(self.tools)
            self._last = (drafter, which, known)
        return self._last[2]

    def which(self, trace: Trace) -> str:
        """The name of the store that belongs to a trace; "" if all traces share one."""
        return ""

    def store(self, which: str) -> Any:
        """The store of a name."""
        raise NotImplementedError


class Earlier(Known):
    """The outputs of earlier traces, or with ``write`` "all" also their prompts."""

    shares = True

    def __init__(self, write: str, tools: ToolCalls | None = None) -> None:
        self.write, self.tools = write, tools

    def store(self, which: str) -> Any:
        store = SharedStore(STORE_BYTES, namespace_bytes=STORE_BYTES, write=self.write)
        return store[NAMESPACE]


class Knowledge(Known):
    """A corpus for all traces, or one for each repository that traces name.

    ``place`` is a corpus; or a folder with ``REPO.ngc``, a corpus, or ``REPO.npy``, token ids with
    a 0 after each document, for each trace's ``repo``.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self._corpora: dict[str, Corpus] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="ngramspec-")
        if not place.is_dir():
            self._corpora[""] = Corpus.open(place)

    def which(self, trace: Trace) -> str:
        return trace.repo if self.place.is_dir() else ""

    def store(self, which: str) -> Corpus:
        """A repository's corpus; from an .npy file it is built once, if it exists."""
        if which not in self._corpora:
            path = self.place / f"{which}.ngc"
            if not path.is_file():
                tokens = np.load(path.with_suffix(".npy"))
                path = Path(self._folder.name) / path.name
                Corpus.build(np.split(tokens, np.flatnonzero(tokens == SEPARATOR_ID) + 1), path)
            self._corpora[which] = Corpus.open(path)
        return self._corpora[which]


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
            "acceptance_rate": self.acceptance_rate,
            "drafted_per_step": self.drafted / calls if calls else 0.0,
            "step_us_median": float(np.median(self.nanoseconds)) / 1000 if calls else 0.0,
            "step_us_p99": float(np.percentile(self.nanoseconds, 99)) / 1000 if calls else 0.0,
        }


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """How drafts are requested from a drafter.

    ``cost``, float32 (gamma_max + 2,), has at n the cost of a forward of n positions. With gamma
    "auto", the length of chains follows from the cost, and trees have up to gamma_max nodes.
    """

    cost: Float32
    gamma: int | str = "auto"
    gamma_max: int = 64
    tree: bool = False

    def controller(self, estimates: bool, cost: Callable[[], Float32]) -> GammaController:
        """What chooses the length of each draft; ``estimates``: whether the drafter does.

        ``cost`` returns that of ``CostGamma``.
        """
        if self.gamma != "auto":
            return make_controller(self.gamma, self.gamma_max, lambda: self.cost)
        if self.tree and not estimates:  # most nodes of any tree are rejected
            return GammaController(self.gamma_max)
        return CostGamma(self.gamma_max, cost)


@dataclass(slots=True)
class Player:
    """Replays traces through one drafter and keeps the tallies by group."""

    drafter: Drafter
    plan: ReplayPlan
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
        losses = 0.0
        drafter = self.drafter if knowledge is None else knowledge.given_to(self.drafter, trace)
        controller = plan.controller(drafter.estimates, lambda: required_tokens(plan.cost, losses))
        if knowledge is not None and knowledge.shares:
            session = drafter.start(trace.prompt)
            session.extend(output[:1])
        else:
            session = drafter.start(np.concatenate((trace.prompt, output[:1])))
        if self.head is not None:
            model = self.head(trace)
            session.begin_models(lambda _: model)
        at = 1
        while at < len(recorded):
            gamma, cost = controller.plan(drafter.estimates)
            gamma = min(gamma, len(recorded) - at - 1)
            begin = perf_counter_ns()
            draft = session.propose(gamma, cost, tree=plan.tree)
            draft = controller.keep(draft)
            proposed = perf_counter_ns() - begin
            count = len(draft)
            path = draft.path_along(recorded[at : at + count])
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
            if count:
                controller.observe(count, len(path))
            tally.count_step(draft, draft.verdict(path, new.tolist()), drafter.source_names)
            spent = float(plan.cost[count + 1])
            losses = losses_after(losses, spent, len(path))
            tally.cost += spent
            at += len(new)
        session.close()


def replayed(
    top_tokens: RecordedTopTokens, output: Sequence[int], before: int, at: int, emitted: int
) -> Evidence:
    """The evidence of a step from a recording: that of the accepted positions.

    The step commits ``emitted`` tokens after the first ``at`` ones of the output; ``before`` is the
    last committed token.
    """
    rows = slice(at, at + emitted)
    return Evidence(
        np.array([before, *output[at : at + emitted - 1]], np.int32),
        np.arange(-1, emitted - 1, dtype=np.int32),
        tuple(range(emitted)),
        top_tokens.ids[rows],
        top_tokens.log_probs[rows],
    )


def compare(
    make: Callable[[], Drafter],
    plan: ReplayPlan,
    traces: Sequence[Trace],
    *,
    fresh: bool = False,
    knowledge: Known | None = None,
) -> dict[str, Any]:
    """Replay traces, each through a new drafter if ``fresh``; return all that is reported.

    Returns:
        ``groups``: Tally.to_dict by group; ``mean``: geometric means over groups, and the times of
        all steps; ``sources``: counts of draft tokens by draft source.
    """
    player = Player(make(), plan, knowledge)
    for trace in traces:
        if fresh:
            player.drafter = make()
        player.play([trace])
    groups = player.groups
    steps = np.concatenate([tally.nanoseconds for tally in groups.values()]) / 1000
    total = DecodeStats()
    for tally in groups.values():
        total.add(tally)
    return {
        "groups": {name: tally.to_dict() for name, tally in sorted(groups.items())},
        "mean": {
            **{name: geometric_mean(groups.values(), name) for name in COUNTED},
            "step_us_median": float(np.median(steps)),
            "step_us_p99": float(np.percentile(steps, 99)),
            "step_us_worst": float(steps.max()),
        },
        "sources": {name: asdict(each) for name, each in sorted(total.sources.items())},
    }


def geometric_mean(tallies: Iterable[Tally], name: str) -> float:
    """The geometric mean over groups of one of ``Tally.to_dict``'s ratios."""
    values = [tally.to_dict()[name] for tally in tallies]
    return float(np.exp(np.mean(np.log(values)))) if values and min(values) > 0 else 0.0
