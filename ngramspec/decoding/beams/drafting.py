"""Drafting for beams: sessions follow their texts from row to row, and drafts are short or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec.decoding.batch_drafting import BatchDrafting
from ngramspec.decoding.beams.branches import (
    CANDIDATE_SOURCE,
    BranchGain,
    depth_of,
    drafted_by,
    of_chain,
    with_branches,
)
from ngramspec.decoding.beams.group import BeamGroup
from ngramspec.decoding.distributed import ALONE
from ngramspec.decoding.group import Group
from ngramspec.draft import Draft, Verdict
from ngramspec.draft_length.optimal import worthwhile_nodes
from ngramspec.verification.evidence import Computed

SURE = np.ones(16, np.float32)  # confidence in the first tokens


class BeamOdds:
    """How likely it is that the replay of beam steps goes on over the next drafted tokens.

    It does while each beam is continued by its own drafted token. That needs a step without a fork,
    in which every beam is continued by exactly one, which is counted over all steps; and all
    drafted tokens to be the right ones, which is somewhere between the least of their confidences
    and the product of them, as beams often copy the same text: that is counted too.

    Args:
        beams: of each prompt. Recorded searches (SmolLM2-135M, 14 prompts) had no fork in 75, 44
            and 19 % of their steps with 2, 4 and 8 beams; counts start from 1.5 / beams.
        prompts: how many, in all of which there must be none.
    """

    MEMORY = 0.97  # of the counts, at the next step
    STEPS = 4.0  # that the share of steps without a fork starts from
    PRIOR = 2.0  # drafted steps without a fork, as right as was expected

    def __init__(self, beams: int = 2, prompts: int = 1) -> None:
        self._steps, self._whole = self.STEPS, self.STEPS * (1.5 / beams) ** prompts
        self._expected = self._right = self.PRIOR

    def count(self, whole: bool) -> None:
        """Count a step, and whether it had no fork."""
        self._steps = self.MEMORY * self._steps + 1.0
        self._whole = self.MEMORY * self._whole + whole
        forgotten = (1.0 - self.MEMORY) * self.PRIOR  # so that drafts are tried again
        self._expected = self.MEMORY * self._expected + forgotten
        self._right = self.MEMORY * self._right + forgotten

    def judge(self, expected: float, right: bool) -> None:
        """Count a drafted step without a fork.

        Args:
            expected: the least confidence of the beams' tokens there.
            right: whether all of them were the right ones.
        """
        self._expected += expected
        self._right += right

    def reach(self, least: NDArray[np.float32]) -> NDArray[np.float64]:
        """P(the replay goes on over the first n tokens), float64 (n,).

        Args:
            least: float32 (n,), the least confidence at each depth.
        """
        whole, right = self._whole / self._steps, self._right / self._expected
        reach: NDArray[np.float64] = np.cumprod(np.minimum(whole * right * least, 1.0), dtype=float)
        return reach


class BeamDrafting(BatchDrafting):
    """The DraftRunners of a call's beams.

    Args:
        group: all beams.
        beam_nodes: how many nodes a beam's draft may have with its branches; 0: it has none.
        **shared: the keyword arguments of BatchDrafting.
    """

    def __init__(self, group: BeamGroup, *, beam_nodes: int, **shared: Any) -> None:
        super().__init__([group], **shared)
        self._beams = group
        self._beam_nodes = beam_nodes
        beams = group.search.config.beams
        self._odds = BeamOdds(beams, len(group.rows) // beams)
        self._least: NDArray[np.float32] | None = None  # confidence at each depth of the drafts
        self._chains: list[int] | None = None  # of each draft, nodes that the drafter proposed
        self._gain = BranchGain()

    def propose(self) -> list[Draft]:
        self._least = self._chains = None
        return super().propose()

    def propose_for(self, group: Group, drafts: list[Draft]) -> None:
        """Put the beams' drafts into ``drafts``, chains of one length or trees with branches.

        There are none where states of each token are asked for, which are kept by rows. A beam
        without a draft ends the replay, so all are cut to the shortest, and where costs are
        known, to the length of most expected tokens per cost. Where even drafts that are sure would
        not pay, no session is asked, or begun.
        """
        costs = self._costs
        limit = 0 if self._target.call.states else self.draft_limit(group)
        if self._branches and (costs is None or self._gain.pays()):
            self._propose_trees(limit, drafts)
            return
        if costs is not None:
            cost = costs.cost()
            if not worthwhile_nodes(self._odds.reach(SURE[: len(cost) - 2]), cost):
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
        """Whether drafts get branches. Evidence is of the drafter's own nodes."""
        alone = self._ranks is ALONE and self.evidence is None
        return self._beam_nodes > 0 and alone and self._target.traits.positionless_token is None

    def _propose_trees(self, limit: int, drafts: list[Draft]) -> None:
        """Put the beams' chains with the target's runners-up beside them into ``drafts``."""
        chains = [self._runners[row].propose(limit, tree=False) for row in self._rows]
        most = min(self._beam_nodes, limit)  # a cache may have no room for more
        trees = self._trees(chains, most, limit)
        trees = self._trees(chains, most, min(depth_of(tree) for tree in trees))
        if all(map(len, trees)):
            drafts[:] = trees
            own = zip(trees, self._runners, strict=True)
            self._chains = [drafted_by(tree, len(runner.tiers)) for tree, runner in own]

    def _trees(self, chains: list[Draft], most: int, deepest: int) -> list[Draft]:
        """Each beam's tree of ``most`` nodes, whose paths have ``deepest`` tokens, at most."""
        beams = zip(chains, self._beams.known, self._runners, strict=True)
        return [
            with_branches(chain, known, most, deepest, len(runner.tiers))
            for chain, known, runner in beams
        ]

    def tiers(self, row: int) -> Sequence[str]:
        own = super().tiers(row)
        return own if self._chains is None else (*own, CANDIDATE_SOURCE)

    def learn(
        self,
        drafts: list[Draft],
        verdicts: list[Verdict],
        computed: list[Computed] | None = None,
    ) -> None:
        """Have every text's drafting follow it to the row that it has now, and learn."""
        paths = self._beams.paths
        if not self._runners or not paths[0].tokens:
            return
        self._judge(len(drafts[0]))
        if self._chains is not None and self._costs is not None:
            cost, width = self._costs.cost(), 1 + max(map(len, drafts))
            self._gain.count(len(paths[0].tokens), float(cost[min(width, len(cost) - 1)]))
        before = self._runners
        first = {path.row: row for row, path in reversed([*enumerate(paths)])}
        free = [before[row] for row in self._rows if row not in first]
        after = []
        for row, path in enumerate(paths):
            if first[path.row] == row:
                after.append(before[path.row])
            else:  # a fork: the drafting of a text that is given up begins anew
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
        """Count the steps that were replayed on the last forward."""
        paths = self._beams.paths
        steps = len(paths[0].tokens)
        whole = len({path.row for path in paths}) == len(paths)
        right = all(path.position is not None for path in paths)
        least = self._least
        for step in range(steps):
            last = step == steps - 1
            if self._beams.new > 1:  # the first step's beams all come from one
                self._odds.count(whole or not last)
            if least is not None and step < drafted and (whole or not last):
                self._odds.judge(float(least[step]), right or not last)
