"""How many tokens to draft in the next step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ngramspec.costs.batch import BatchStepCosts
from ngramspec.draft import Draft, Float32
from ngramspec.draft_length.optimal import worthwhile_path
from ngramspec.errors import check_int

NAMED = ("auto", "heuristic", "threshold")  # gammas that are no integers


class GammaController(Protocol):
    """One generation's choice of gamma. One thread at a time."""

    def plan(self, estimates: bool) -> tuple[int, Float32 | None]:
        """The next draft's length.

        Args:
            estimates: whether the drafter ends its drafts by cost.

        Returns:
            (gamma, 0 for no draft; cost as ``DraftSession.propose`` takes it, or None).
        """

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a step that drafted ``drafted`` >= 1 tokens."""

    def keep(self, draft: Draft) -> Draft:
        """As much of a draft as is verified: all of it, unless a controller says otherwise."""
        return draft


class FixedGamma(GammaController):
    """The same gamma at every step (Leviathan et al. 2023, Algorithm 1)."""

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma

    def plan(self, estimates: bool) -> tuple[int, Float32 | None]:
        return self._gamma, None

    def observe(self, drafted: int, accepted: int) -> None:
        return None


class HeuristicGamma(GammaController):
    """Doubles when a whole draft was accepted, else moves half way to the accepted length.

    A draft shorter than gamma that was accepted whole says nothing about longer ones, and changes
    nothing. Gamma stays between ``LOWEST`` (or gamma_max, if that is less) and gamma_max: below
    LOWEST a forward hardly gets cheaper.
    """

    FIRST = 8
    LOWEST = 6

    def __init__(self, gamma_max: int) -> None:
        self._max = gamma_max
        self._gamma = min(self.FIRST, gamma_max)

    def plan(self, estimates: bool) -> tuple[int, Float32 | None]:
        return self._gamma, None

    def observe(self, drafted: int, accepted: int) -> None:
        if accepted < drafted:
            wanted = (self._gamma + accepted + 1) // 2
        elif drafted >= self._gamma:
            wanted = 2 * self._gamma
        else:
            return
        self._gamma = min(max(wanted, self.LOWEST), self._max)


class ThresholdGamma(GammaController):
    """Ends a chain before the first token whose confidence is below a threshold.

    As transformers' ``assistant_confidence_threshold``, from 0.4 on. The threshold adapts: it is
    half the fading share of drafts that were not accepted whole, so that drafts get shorter where
    they fail, and longer where they do not. It falls while it leaves nothing to draft. Trees, and
    stochastic drafts, whose tokens must not decide their length, are verified as they are; drafters
    without estimates get the heuristic.

    Args:
        gamma_max: most tokens in a draft.
    """

    FIRST, LOWEST, HIGHEST = 0.4, 0.05, 0.5
    MEMORY = 0.95  # of the threshold, at the next draft

    def __init__(self, gamma_max: int) -> None:
        self._max = gamma_max
        self._heuristic = HeuristicGamma(gamma_max)
        self._by_confidence = True
        self.threshold = self.FIRST

    def plan(self, estimates: bool) -> tuple[int, Float32 | None]:
        self._by_confidence = estimates
        return (self._max, None) if estimates else self._heuristic.plan(estimates)

    def observe(self, drafted: int, accepted: int) -> None:
        if self._by_confidence:
            self._move(self.HIGHEST * (accepted < drafted))
        else:
            self._heuristic.observe(drafted, accepted)

    def keep(self, draft: Draft) -> Draft:
        if draft.confidence is None or draft.parents is not None or draft.proposal is not None:
            return draft
        low = (draft.confidence < self.threshold).nonzero()[0]
        if len(low) and low[0] == 0:
            self._move(0.0)
        return draft.first(int(low[0])) if len(low) else draft

    def _move(self, towards: float) -> None:
        moved = self.MEMORY * self.threshold + (1 - self.MEMORY) * towards
        self.threshold = max(moved, self.LOWEST)


class CostGamma(GammaController):
    """By expected tokens per cost where the drafter estimates them, else the heuristic.

    A drafter without estimates whose drafts give less than they cost drafts only now and then.

    Args:
        gamma_max: most tokens in a draft.
        cost: returns float32 (gamma_max + 2,), the current cost[n] of a forward of n
            positions.
        surcharge: returns by what a cost is multiplied if the draft has branches, >= 1: where a
            chain of the tree promises more per cost, or no draft does, that is verified. None: all
            branches are verified.
    """

    TRIED_EVERY = 8  # plans, while drafting does not pay
    NOTICED = 1.01  # times that branches cost, below which a tree is not compared with its chains
    MEMORY = 0.9  # weight of the earlier drafted steps beside the next one

    def __init__(
        self,
        gamma_max: int,
        cost: Callable[[], Float32],
        surcharge: Callable[[], float] | None = None,
    ) -> None:
        self._max = gamma_max
        self._cost = cost
        self._surcharge = surcharge
        self._heuristic = HeuristicGamma(gamma_max)
        self._surplus = 0.5  # tokens per cost - 1 of drafted steps, decaying
        self._skipped = 0

    def plan(self, estimates: bool) -> tuple[int, Float32 | None]:
        if estimates:
            return self._max, self._cost()
        if self._surplus < 0:
            self._skipped += 1
            if self._skipped % self.TRIED_EVERY:
                return 0, None
        return self._heuristic.plan(estimates)

    def observe(self, drafted: int, accepted: int) -> None:
        self._heuristic.observe(drafted, accepted)
        cost = self._cost()
        positions = min(1 + drafted, len(cost) - 1)  # another rank's draft may be longer
        surplus = (1 + accepted) / float(cost[positions]) - 1
        self._surplus = self.MEMORY * self._surplus + (1 - self.MEMORY) * surplus
        self._surplus = max(self._surplus, -(1 - self.MEMORY))  # one good draft resumes it

    def keep(self, draft: Draft) -> Draft:
        if self._surcharge is None or draft.parents is None or draft.confidence is None:
            return draft
        times = self._surcharge()
        if times < self.NOTICED or draft.proposal is not None:
            return draft
        nodes = worthwhile_path(draft.parents, draft.confidence, self._cost(), times)
        return draft if nodes is None else draft.path(nodes)


class RowGamma(CostGamma):
    """CostGamma for one of several rows whose drafts are cut together afterwards.

    Args:
        gamma_max: most tokens in a draft.
        costs: of the batch's forwards.
    """

    def __init__(self, gamma_max: int, costs: BatchStepCosts) -> None:
        super().__init__(gamma_max, costs.cost)
        self._costs = costs

    def plan(self, estimates: bool) -> tuple[int, Float32 | None]:
        if estimates:
            return self._max, self._costs.cost_alone()
        return super().plan(estimates)


class PrefillDraftLength:
    """How many tokens to draft behind a prompt, by how earlier such drafts were accepted.

    Whether answers begin predictably depends on the task, so the length is learned over a
    Speculator's calls: doubled when a whole draft is accepted, halved when nothing of it is. One
    count, no text. Threads may share it: a lost update changes a length, never a text.

    Args:
        most: tokens at most.
    """

    FIRST = 32
    LEAST = 2  # costs little, and notices when answers become predictable

    def __init__(self, most: int) -> None:
        self._most = most
        self.limit = min(self.FIRST, most)

    def learn(self, drafted: int, accepted: int) -> None:
        """Learn from a prefill that verified ``drafted`` tokens."""
        if drafted and accepted == 0:
            self.limit = max(self.limit // 2, min(self.LEAST, self._most))
        elif drafted and accepted == drafted >= self.limit:
            self.limit = min(2 * self.limit, self._most)


def check_gamma(gamma: int | str, gamma_max: int) -> int | str:
    """Return a valid ``gamma`` argument: an integer in 1..gamma_max, or one of ``NAMED``."""
    if isinstance(gamma, str):
        if gamma not in NAMED:
            known = "'threshold', 'auto' or 'heuristic'"
            raise ValueError(f"gamma must be an integer, {known}, got {gamma!r}")
        return gamma
    return check_int("gamma", gamma, 1, gamma_max)


def check_tree(tree: int | str | None, most: int) -> int | str | None:
    """Return a valid ``tree`` argument: an integer in 1..most, "auto" or None."""
    if isinstance(tree, str) and tree != "auto":
        raise ValueError(f"tree must be an integer, 'auto' or None, got {tree!r}")
    return check_int("tree", tree, 1, most) if tree not in ("auto", None) else tree


def make_controller(
    gamma: int | str,
    gamma_max: int,
    cost: Callable[[], Float32],
    surcharge: Callable[[], float] | None = None,
) -> GammaController:
    """A controller for one row of a generation.

    Args:
        gamma: an integer; "heuristic"; "threshold", by confidence; or "auto", by cost.
        gamma_max: most tokens in a draft.
        cost, surcharge: see CostGamma.
    """
    if isinstance(gamma, int):
        return FixedGamma(gamma)
    if gamma == "heuristic":
        return HeuristicGamma(gamma_max)
    if gamma == "threshold":
        return ThresholdGamma(gamma_max)
    return CostGamma(gamma_max, cost, surcharge)
