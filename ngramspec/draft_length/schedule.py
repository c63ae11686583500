"""Controllers of the draft length ``gamma`` (num_speculative_tokens)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ngramspec.draft import Draft, Float32
from ngramspec.draft_length.optimal import worthwhile_path


class GammaController(Protocol):
    """Chooses gamma in one generation. Not thread-safe."""

    def plan(self, estimates: bool) -> tuple[int, Float32 | None]:
        """The length of the next draft.

        Args:
            estimates: whether the drafter estimates what is accepted, so that it can end its
                drafts by cost.

        Returns:
            gamma, 0 for no draft; and the ``cost`` argument of ``DraftSession.propose``, or None.
        """

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a step that drafted ``drafted`` >= 1 tokens."""

    def keep(self, draft: Draft) -> Draft:
        """The part of a draft to verify. By default all of it."""
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

    A draft shorter than gamma that was accepted whole changes nothing, because it is no evidence
    about longer drafts. Gamma stays between ``MIN_GAMMA`` (or gamma_max, if that is less) and
    gamma_max.
    """

    INITIAL_GAMMA = 8  # not tuned
    MIN_GAMMA = 6  # a narrower forward is hardly cheaper

    def __init__(self, gamma_max: int) -> None:
        self._max = gamma_max
        self._gamma = min(self.INITIAL_GAMMA, gamma_max)

    def plan(self, estimates: bool) -> tuple[int, Float32 | None]:
        return self._gamma, None

    def observe(self, drafted: int, accepted: int) -> None:
        if accepted < drafted:
            wanted = (self._gamma + accepted + 1) // 2
        elif drafted >= self._gamma:
            wanted = 2 * self._gamma
        else:
            return
        self._gamma = min(max(wanted, self.MIN_GAMMA), self._max)


class ThresholdGamma(GammaController):
    """Ends a chain before the first token whose confidence is below a threshold.

    The initial threshold is transformers' default ``assistant_confidence_threshold``. It then
    follows half the decaying share of drafts that were not accepted whole, so drafts get shorter
    where they fail. It falls while it leaves nothing to draft. Trees are verified whole, and so are
    stochastic drafts, because their tokens must not decide their length. Drafters without estimates
    use the heuristic.
    """

    INITIAL_THRESHOLD, MIN_THRESHOLD, MAX_THRESHOLD = 0.4, 0.05, 0.5  # the last two not tuned
    THRESHOLD_MEMORY = 0.95  # weight of the threshold at the next draft; not tuned

    def __init__(self, gamma_max: int) -> None:
        self._max = gamma_max
        self._heuristic = HeuristicGamma(gamma_max)
        self._by_confidence = True
        self.threshold = self.INITIAL_THRESHOLD

    def plan(self, estimates: bool) -> tuple[int, Float32 | None]:
        self._by_confidence = estimates
        return (self._max, None) if estimates else self._heuristic.plan(estimates)

    def observe(self, drafted: int, accepted: int) -> None:
        if self._by_confidence:
            self._move(self.MAX_THRESHOLD * (accepted < drafted))
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
        moved = self.THRESHOLD_MEMORY * self.threshold + (1 - self.THRESHOLD_MEMORY) * towards
        self.threshold = max(moved, self.MIN_THRESHOLD)


class CostGamma(GammaController):
    """Maximizes expected tokens per cost if the drafter estimates them, else uses the heuristic.

    A drafter without estimates whose drafts gain less than they cost drafts only occasionally.

    Args:
        gamma_max: maximum number of tokens in a draft.
        cost: returns float32 (gamma_max + 2,): [n] is the current cost of n positions.
        surcharge: returns the factor on the cost of a draft with branches, >= 1. If a path of the
            tree, or no draft, has more expected tokens per cost, that is verified instead. None:
            all branches are verified.
        drafting_cost: returns the costs by which the drafter ends its drafts, for a row whose draft
            is cut together with those of other rows afterwards. None: ``cost``.
    """

    # Not tuned:
    STEPS_BETWEEN_TRIALS = 8  # calls of plan per draft, while drafting gains less than it costs
    MIN_SURCHARGE = 1.01  # below, a tree is not compared with its paths
    SURPLUS_MEMORY = 0.9  # weight of earlier drafted steps in the average surplus

    def __init__(
        self,
        gamma_max: int,
        cost: Callable[[], Float32],
        surcharge: Callable[[], float] | None = None,
        drafting_cost: Callable[[], Float32] | None = None,
    ) -> None:
        self._max = gamma_max
        self._cost, self._drafting_cost = cost, drafting_cost or cost
        self._surcharge = surcharge
        self._heuristic = HeuristicGamma(gamma_max)
        self._estimates = False  # whether the last draft was ended by cost
        self._surplus = 0.5  # tokens per cost - 1 of drafted steps, decaying
        self._skipped = 0

    def plan(self, estimates: bool) -> tuple[int, Float32 | None]:
        self._estimates = estimates
        if estimates:
            return self._max, self._drafting_cost()
        if self._surplus < 0:
            self._skipped += 1
            if self._skipped % self.STEPS_BETWEEN_TRIALS:
                return 0, None
        return self._heuristic.plan(estimates)

    def observe(self, drafted: int, accepted: int) -> None:
        if self._estimates:
            return
        self._heuristic.observe(drafted, accepted)
        cost = self._cost()
        positions = min(1 + drafted, len(cost) - 1)  # another rank's draft may be longer
        surplus = (1 + accepted) / float(cost[positions]) - 1
        self._surplus = self.SURPLUS_MEMORY * self._surplus + (1 - self.SURPLUS_MEMORY) * surplus
        self._surplus = max(self._surplus, -(1 - self.SURPLUS_MEMORY))  # one good draft resumes it

    def keep(self, draft: Draft) -> Draft:
        if self._surcharge is None or draft.parents is None or draft.confidence is None:
            return draft
        times = self._surcharge()
        if times < self.MIN_SURCHARGE or draft.proposal is not None:
            return draft
        nodes = worthwhile_path(draft.parents, draft.confidence, self._cost(), times)
        return draft if nodes is None else draft.path(nodes)


class PrefillDraftLength:
    """The maximum draft length after a prompt, learned from earlier such drafts.

    Whether answers begin predictably depends on the task, so the length is learned over a
    Speculator's calls: doubled when a whole draft is accepted, halved when none of it is. It keeps
    one number and no text. Threads may share it: a lost update changes a length, never the output.

    Args:
        most: upper bound in tokens.

    Attributes:
        limit: the current maximum length.
    """

    INITIAL_LENGTH = 16  # not tuned
    MIN_LENGTH = 2  # is cheap and still detects that answers become predictable

    def __init__(self, most: int) -> None:
        self._most = most
        self.limit = min(self.INITIAL_LENGTH, most)

    def learn(self, drafted: int, accepted: int) -> None:
        """Learn from a prefill that verified ``drafted`` tokens."""
        if drafted and accepted == 0:
            self.limit = max(self.limit // 2, min(self.MIN_LENGTH, self._most))
        elif drafted and accepted == drafted >= self.limit:
            self.limit = min(2 * self.limit, self._most)


def make_controller(
    gamma: int | str,
    gamma_max: int,
    cost: Callable[[], Float32],
    surcharge: Callable[[], float] | None = None,
) -> GammaController:
    """Make the controller for one row of a generation.

    gamma is an integer, "heuristic", "threshold" (by confidence) or "auto" (by cost), see
    CostGamma.
    """
    if isinstance(gamma, int):
        return FixedGamma(gamma)
    if gamma == "heuristic":
        return HeuristicGamma(gamma_max)
    if gamma == "threshold":
        return ThresholdGamma(gamma_max)
    return CostGamma(gamma_max, cost, surcharge)
