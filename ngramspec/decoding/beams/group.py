"""A group whose rows are beams, each of which may continue another row at every step.

Beam steps are replayed on the logits of one forward over all beams' drafts, position by position.
The replay continues while every selected beam continues a drafted path, because then the forward
has the next logits. Each beam's draft continues that beam, so the keys and values of a new beam all
lie in one row of the forward. Sessions follow their texts from row to row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ngramspec.costs.policies import worthwhile_nodes
from ngramspec.costs.steps import JointPart
from ngramspec.decoding.beams.search import BeamSearch
from ngramspec.decoding.group import Group
from ngramspec.decoding.request import Request
from ngramspec.draft import Computed, Draft, Float32, Verdict
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.compat.devices import indices
from ngramspec.options import Options
from ngramspec.verification.sampler import SampledTokens

FULL_CONFIDENCE = np.ones(16, np.float32)  # of a hypothetical draft's tokens


def check_beams(request: Request, options: Options) -> None:
    """Raise an UnsupportedError if a call asks for what beam search cannot do."""
    if request.streamer is not None:
        raise UnsupportedError(
            f"streamer cannot be used with num_beams={request.beams}, which selects no token before"
            " the end; pass streamer=None or num_beams=1"
        )
    if not options.exact:
        raise UnsupportedError(
            f"num_beams={request.beams} is not supported with lenience below 1 or"
            " verification='typical'; pass num_beams=1, or remove them"
        )


@dataclass(frozen=True, slots=True)
class BeamPath:
    """A beam's path through the last forward.

    Attributes:
        row: its row in the forward.
        position: the position in the row with the beam's next logits; None: there are none.
        accepted: the positions before that one, in order.
        tokens: the tokens that the beam committed.
    """

    row: int
    position: int | None = 0
    accepted: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()

    def with_token(self, token: int, draft: Draft) -> BeamPath:
        """The path extended by one token; ``position`` must not be None."""
        assert self.position is not None
        node = draft.node_with(token, self.position)
        accepted, tokens = (*self.accepted, self.position), (*self.tokens, token)
        return BeamPath(self.row, None if node is None else node + 1, accepted, tokens)


class BeamOdds:
    """The probability that the replay of beam steps continues over the next draft tokens.

    It continues while each beam is continued by its own draft token, which needs two things. The
    step has no fork: every beam is continued exactly once. This share is counted over all steps.
    And all draft tokens are right. The probability of that lies between the lowest of their
    confidences and the product, because beams often copy the same text. So it is counted, too.

    Args:
        beams: beams of each prompt. The initial share of steps without a fork is 1.5 / beams.
            Recorded searches (SmolLM2-135M, 14 prompts) had 75, 44 and 19 % with 2, 4 and 8 beams.
        prompts: number of prompts; the step must have no fork in any of them.
    """

    # Not tuned.
    DECAY = 0.97  # factor of the counts at each step
    INITIAL_STEPS = 4.0  # weight of the initial share, in steps
    PRIOR_STEPS = 2.0  # drafted steps without a fork that were right as often as expected

    def __init__(self, beams: int = 2, prompts: int = 1) -> None:
        self._steps = self.INITIAL_STEPS
        self._whole = self.INITIAL_STEPS * (1.5 / beams) ** prompts
        self._expected = self._right = self.PRIOR_STEPS

    def count(self, whole: bool) -> None:
        """Record a step, and whether it had no fork (``whole``)."""
        self._steps = self.DECAY * self._steps + 1.0
        self._whole = self.DECAY * self._whole + whole
        forgotten = (1.0 - self.DECAY) * self.PRIOR_STEPS  # so that drafts are tried again
        self._expected = self.DECAY * self._expected + forgotten
        self._right = self.DECAY * self._right + forgotten

    def judge(self, expected: float, right: bool) -> None:
        """Record a drafted step without a fork: its lowest confidence, and if it was right."""
        self._expected += expected
        self._right += right

    def reach(self, least: NDArray[np.float32]) -> NDArray[np.float64]:
        """P(the replay continues over the first 1..n tokens), float64 (n,).

        ``least`` is float32 (n,), the lowest confidence at each depth.
        """
        whole, right = self._whole / self._steps, self._right / self._expected
        reach: NDArray[np.float64] = np.cumprod(np.minimum(whole * right * least, 1.0), dtype=float)
        return reach


class BeamGroup(Group):
    """The beams of all prompts of a batch, whose tokens are chosen by beam steps.

    ``prompt`` is (rows, length), each prompt once for each beam.

    Attributes:
        paths: the beams' paths through the last forward.
    """

    def __init__(self, *args: Any, search: BeamSearch, **more: Any) -> None:
        super().__init__(*args, **more)
        self.search = search
        self.paths: list[BeamPath] = []
        self._kept: list[tuple[int, ...]] = []
        self._continued: list[int] = []  # the beam that each new beam of the last step continues
        self._reached: list[BeamPath] = []  # the beams' paths before each step
        self._odds = BeamOdds(search.beams, len(self.rows) // search.beams)
        self._least: NDArray[np.float32] | None = None  # lowest confidence at each depth

    @property
    def length(self) -> int:
        return self.search.length

    @property
    def stopped(self) -> bool:
        return self.search.stopped

    def ids(self) -> torch.Tensor:
        """The tokens of the beams, int64 (rows, length), on the prompt's device."""
        return self.search.ids()

    def sequences(self) -> torch.Tensor:
        """The best finished sequences, int64 (batch * returned, longest)."""
        return self.search.result().ids

    def ranking(self, *, scores: bool) -> dict[str, torch.Tensor | None] | None:
        return self.search.ranking(scores=scores)

    def propose(self, part: JointPart | None = None) -> None:
        self._least = None
        super().propose(part)

    def draft(self, required: Float32 | None = None) -> None:
        """Draft for the beams: chains of equal length.

        There are no drafts if the call returns states of each token, which are kept by row. A beam
        without a draft ends the replay. So all chains are cut to the shortest, and if costs are
        known, to the length that maximizes expected tokens per cost. If not even drafts with full
        confidence would pay, no session is used.
        """
        costs = self.costs
        limit = 0 if self.target.facts.states else self.shortest_limit()
        if costs is not None:
            required = costs.required_tokens()
            surest = self._odds.reach(FULL_CONFIDENCE[: len(required) - 2])
            if not worthwhile_nodes(surest, required):
                return
        for row in self.rows:
            limit = len(row.propose(limit, tree=False))
            if not limit:
                break
        known = [row.draft.confidence for row in self.rows if row.draft.confidence is not None]
        if limit and len(known) == len(self.rows):
            self._least = np.min([each[:limit] for each in known], axis=0)
            if costs is not None:
                limit = worthwhile_nodes(self._odds.reach(self._least), costs.required_tokens())
        for row in self.rows:
            row.cut(limit)

    def begin_step(self) -> None:
        """Reset what is known about the last forward."""
        super().begin_step()
        self.origins, self.paths = (), [BeamPath(row) for row in self.walking()]
        self._kept, self._reached = [], []

    def accepted_paths(self) -> Sequence[Sequence[int]]:
        """Each beam's accepted positions in the row that it continues."""
        return self._kept or [()] * len(self.rows)

    def walking(self) -> Sequence[int]:
        return range(len(self.rows))

    def keep(self, walking: Sequence[int]) -> None:
        """Keep the positions whose logits the next step reads, also if that step raises."""
        reads = [(path.accepted, path.position) for path in self.paths]
        self._keep([(*before, at) for before, at in reads if at is not None])

    def _keep(self, accepted: list[tuple[int, ...]]) -> None:
        """Set the positions of each beam's row that the cache keeps."""
        self.origins, self._kept = [path.row for path in self.paths], accepted

    def choose(
        self, walking: Sequence[int], logits: torch.Tensor, sampled: SampledTokens | None
    ) -> list[int]:
        """Run one beam step on a forward's logits, (rows, n + 1, vocab); return the beams' tokens.

        ``commit`` then moves the beams' paths.
        """
        at = indices([(path.row, path.position) for path in self.paths])
        rows, positions = at(logits.device).unbind(dim=1)
        own = logits[rows, positions].to(copy=True, dtype=torch.float32)
        log_probs = torch.log_softmax(own, dim=-1)
        if self.sampler.processors:
            log_probs = self.sampler.process(self.ids(), log_probs)
        self.sampler.record(log_probs, own)
        self._continued, tokens = self.search.step(log_probs, self.sampler.scores)
        return tokens

    def commit(self, walking: Sequence[int], tokens: list[int]) -> Sequence[int]:
        """Continue the beams that the step selected, while every beam has its next logits."""
        self._reached += self.paths
        self.paths = [
            self.paths[origin].with_token(token, self.rows[self.paths[origin].row].draft)
            for origin, token in zip(self._continued, tokens, strict=True)
        ]
        self._keep([path.accepted for path in self.paths])
        notice = self.target.facts.padding_notice
        if notice is not None and not self.stopped and notice.token in tokens:
            notice.give()
        more = not self.stopped and all(path.position is not None for path in self.paths)
        return walking if more else ()

    def judge(self) -> None:
        """Set the rows' verdicts.

        ``emitted`` belongs to the best beam that continues the row. If none does, it belongs to the
        beam that now has the row's index.
        """
        for at, row in enumerate(self.rows):
            row.judge(self._verdict(at, row.draft))

    def _verdict(self, row: int, draft: Draft) -> Verdict:
        best = next((path for path in self.paths if path.row == row), None)
        if best is None:  # no beam continues the row: use the longest path in it
            last = [path for path in self._reached if path.row == row][-1]
            accepted = [position - 1 for position in (*last.accepted, last.position) if position]
            position, matched, emitted = last.position, False, self.paths[row].tokens
        else:
            accepted = [position - 1 for position in best.accepted if position]
            position, matched = best.accepted[-1], best.position is not None
            emitted = best.tokens
        assert position is not None
        nodes = () if matched else draft.nodes(position)
        rejected = nodes[0] if nodes else None
        return Verdict(accepted, len(accepted) + len(nodes), emitted, rejected)

    def learn(self, computed: list[Computed] | None = None) -> None:
        """Report the results, and move every text's row to the text's present place."""
        before, paths = self.rows, self.paths
        if not before[0].connected or not paths[0].tokens:
            return
        self._count_steps(len(before[0].draft))
        first = {path.row: at for at, path in reversed([*enumerate(paths)])}
        free = [row for at, row in enumerate(before) if at not in first]
        after = []
        for at, path in enumerate(paths):
            if first[path.row] == at:
                after.append(before[path.row])
            else:  # a fork: reuse the row of a text that no beam continues
                after.append(free.pop())
                after[-1].follow(before[path.row], path.tokens)
        for origin in first:
            row = before[origin]
            for token in row.verdict.emitted:
                row.append(token)
            row.learn(None if computed is None else computed[origin])
        self.rows = after

    def _count_steps(self, drafted: int) -> None:
        """Record the steps that were replayed on the last forward."""
        paths = self.paths
        steps = len(paths[0].tokens)
        whole = len({path.row for path in paths}) == len(paths)
        right = all(path.position is not None for path in paths)
        least = self._least
        for step in range(steps):
            last = step == steps - 1
            if (
                self.length - self.rows[0].prompt_length > 1
            ):  # in the first step all beams continue one
                self._odds.count(whole or not last)
            if least is not None and step < drafted and (whole or not last):
                self._odds.judge(float(least[step]), right or not last)
