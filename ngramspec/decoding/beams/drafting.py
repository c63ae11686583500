"""Drafting for beams: sessions follow their texts from row to row, and drafts are short."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec.decoding.batch_drafting import BatchDrafting
from ngramspec.decoding.beams.branches import CANDIDATE_SOURCE, BranchGain, of_chain, with_branches
from ngramspec.decoding.beams.group import BeamGroup
from ngramspec.decoding.group import Group
from ngramspec.draft import Draft, Verdict
from ngramspec.draft_length.optimal import worthwhile_nodes
from ngramspec.verification.evidence import Computed

FULL_CONFIDENCE = np.ones(16, np.float32)  # of a hypothetical draft's tokens


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


class BeamDrafting(BatchDrafting):
    """The DraftRunners of a call's beams.

    ``beam_nodes`` is the maximum size of a beam's draft with its branches; 0: no branches.
    ``shared`` are the keyword arguments of BatchDrafting.
    """

    def __init__(self, group: BeamGroup, *, beam_nodes: int, **shared: Any) -> None:
        super().__init__([group], **shared)
        self._beams = group
        self._beam_nodes = beam_nodes
        beams = group.search.config.beams
        self._odds = BeamOdds(beams, len(group.rows) // beams)
        self._least: NDArray[np.float32] | None = None  # lowest confidence at each depth
        self._chains: list[int] | None = None  # nodes of each draft that the drafter proposed
        self._gain = BranchGain()

    def propose(self) -> list[Draft]:
        self._least = self._chains = None
        return super().propose()

    def propose_for(self, group: Group, drafts: list[Draft]) -> None:
        """Put the beams' drafts into ``drafts``: chains of equal length or trees with branches.

        There are no drafts if the call returns states of each token, which are kept by row. A beam
        without a draft ends the replay. So all chains are cut to the shortest, and if costs are
        known, to the length that maximizes expected tokens per cost. If not even drafts with full
        confidence would pay, no session is used.
        """
        costs = self.costs
        limit = 0 if self.target.call.states else self.draft_limits(group)[0]
        if self._branches and (costs is None or self._gain.pays()):
            self._propose_trees(limit, drafts)
            return
        if costs is not None:
            cost = costs.cost()
            if not worthwhile_nodes(self._odds.reach(FULL_CONFIDENCE[: len(cost) - 2]), cost):
                return
        for row in self._rows:
            drafts[row] = self._runners[row].propose(limit, tree=False)
            limit = len(drafts[row])
            if not limit:
                break
        known = [draft.confidence for draft in drafts if draft.confidence is not None]
        if limit and len(known) == len(drafts):
            self._least = np.min([each[:limit] for each in known], axis=0)
            if costs is not None:
                limit = worthwhile_nodes(self._odds.reach(self._least), costs.cost())
        drafts[:] = [draft.first(limit) for draft in drafts]

    @property
    def _branches(self) -> bool:
        """Whether drafts get branches; not with evidence, which covers the drafter's nodes only."""
        alone = self.ranks is None and self.evidence is None
        return self._beam_nodes > 0 and alone

    def _propose_trees(self, limit: int, drafts: list[Draft]) -> None:
        """Put the beams' chains, with the target's top-k candidates, into ``drafts``."""
        chains = [self._runners[row].propose(limit, tree=False) for row in self._rows]
        sources = [len(runner.source_names) for runner in self._runners]  # that of branches
        beams = list(zip(chains, self._beams.known, sources, strict=True))
        most = min(self._beam_nodes, limit)  # the cache may have no room for more
        trees, deepest = chains, limit
        for _ in range(2):  # at last all trees are as deep as the shallowest
            trees = [with_branches(chain, known, most, deepest, own) for chain, known, own in beams]
            deepest = min(max(tree.depths(), default=0) for tree in trees)
        if all(map(len, trees)):
            drafts[:] = trees
            pairs = zip(trees, sources, strict=True)
            self._chains = [int(np.count_nonzero(tree.source != own)) for tree, own in pairs]

    def source_names(self, row: int) -> Sequence[str]:
        own = super().source_names(row)
        return own if self._chains is None else (*own, CANDIDATE_SOURCE)

    def learn(
        self, drafts: list[Draft], verdicts: list[Verdict], computed: list[Computed] | None = None
    ) -> None:
        """Move every text's runner to the text's present row, and report the results."""
        paths = self._beams.paths
        if not self._runners or not paths[0].tokens:
            return
        self._judge(len(drafts[0]))
        if self._chains is not None and self.costs is not None:
            cost, width = self.costs.cost(), 1 + max(map(len, drafts))
            self._gain.count(len(paths[0].tokens), float(cost[min(width, len(cost) - 1)]))
        before = self._runners
        first = {path.row: row for row, path in reversed([*enumerate(paths)])}
        free = [before[row] for row in self._rows if row not in first]
        after = []
        for row, path in enumerate(paths):
            if first[path.row] == row:
                after.append(before[path.row])
            else:  # a fork: reuse the runner of a text that no beam continues
                after.append(free.pop())
                after[-1].follow(before[path.row], path.tokens)
        for origin in first:
            own = None if computed is None else computed[origin]
            draft, verdict = drafts[origin], verdicts[origin]
            if self._chains is not None:
                count = self._chains[origin]
                draft, verdict, own = draft.path(range(count)), of_chain(verdict, count), None
            before[origin].learn(draft, verdict, own)
        self._runners = after

    def _judge(self, drafted: int) -> None:
        """Record the steps that were replayed on the last forward."""
        paths = self._beams.paths
        steps = len(paths[0].tokens)
        whole = len({path.row for path in paths}) == len(paths)
        right = all(path.position is not None for path in paths)
        least = self._least
        for step in range(steps):
            last = step == steps - 1
            if self._beams.new > 1:  # in the first step all beams continue one
                self._odds.count(whole or not last)
            if least is not None and step < drafted and (whole or not last):
                self._odds.judge(float(least[step]), right or not last)
