"""Draft lengths: fixed, heuristic, by confidence, or with the most expected tokens per cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ngramspec.draft import Draft, Float32, Float64

ONE_ROW = np.ones(1)


class GammaController:
    """Chooses gamma in one generation: always the same (Leviathan et al. 2023, Algorithm 1).

    The base of the other policies. Not thread-safe.
    """

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma

    def plan(self, estimates: bool, required: Float32 | None = None) -> tuple[int, Float32 | None]:
        """The length of the next draft.

        Args:
            estimates: whether the drafter estimates what is accepted, so that it can end its
                drafts by cost.
            required: what this step requires, if it is part of a joint one.

        Returns:
            gamma, 0 for no draft; and the ``cost`` argument of ``DraftSession.propose``, or None.
        """
        return self._gamma, None

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a step that drafted ``drafted`` >= 1 tokens. By default nothing."""

    def keep(self, draft: Draft) -> Draft:
        """The part of a draft to verify. By default all of it."""
        return draft


class HeuristicGamma(GammaController):
    """Doubles when a whole draft was accepted, else moves half way to the accepted length.

    A draft shorter than gamma that was accepted whole changes nothing, because it is no evidence
    about longer drafts. Gamma stays between ``MIN_GAMMA`` (or gamma_max, if that is less) and
    gamma_max.
    """

    INITIAL_GAMMA, MIN_GAMMA = 8, 6  # a narrower forward is hardly cheaper

    def __init__(self, gamma_max: int) -> None:
        super().__init__(min(self.INITIAL_GAMMA, gamma_max))
        self._max = gamma_max

    def observe(self, drafted: int, accepted: int) -> None:
        if accepted < drafted:
            wanted = (self._gamma + accepted + 1) // 2
        elif drafted >= self._gamma:
            wanted = 2 * self._gamma
        else:
            return
        self._gamma = min(max(wanted, self.MIN_GAMMA), self._max)


class ThresholdGamma(HeuristicGamma):
    """Ends a chain before the first token whose confidence is below a threshold.

    The initial threshold is transformers' default ``assistant_confidence_threshold``. It then
    follows half the decaying share of drafts that were not accepted whole, so drafts get shorter
    where they fail. It falls while it leaves nothing to draft. Trees are verified whole, and so are
    stochastic drafts, because their tokens must not decide their length. Drafters without estimates
    use the heuristic.
    """

    INITIAL_THRESHOLD, MIN_THRESHOLD, MAX_THRESHOLD = 0.4, 0.05, 0.5
    MEMORY = 0.95  # weight of the threshold at the next draft

    def __init__(self, gamma_max: int) -> None:
        super().__init__(gamma_max)
        self._by_confidence = True
        self.threshold = self.INITIAL_THRESHOLD

    def plan(self, estimates: bool, required: Float32 | None = None) -> tuple[int, Float32 | None]:
        self._by_confidence = estimates
        return (self._max, None) if estimates else super().plan(estimates)

    def observe(self, drafted: int, accepted: int) -> None:
        if self._by_confidence:
            self._move(self.MAX_THRESHOLD * (accepted < drafted))
        else:
            super().observe(drafted, accepted)

    def keep(self, draft: Draft) -> Draft:
        if draft.confidence is None or draft.parents is not None or draft.proposal is not None:
            return draft
        low = (draft.confidence < self.threshold).nonzero()[0]
        if len(low) and low[0] == 0:
            self._move(0.0)
        return draft.first(int(low[0])) if len(low) else draft

    def _move(self, towards: float) -> None:
        moved = self.MEMORY * self.threshold + (1 - self.MEMORY) * towards
        self.threshold = max(moved, self.MIN_THRESHOLD)


class CostGamma(HeuristicGamma):
    """Maximizes expected tokens per cost if the drafter estimates them, else uses the heuristic.

    A drafter without estimates whose drafts gain less than they cost drafts only occasionally.

    Args:
        gamma_max: maximum number of tokens in a draft.
        required: returns ``StepCosts.required_tokens``, float32 (gamma_max + 2,) or longer.
        surcharge: returns the factor on the cost of a draft with branches, >= 1. If a path of the
            tree, or no draft, has more expected tokens per cost, that is verified instead. None:
            all branches are verified.
        drafting: returns what the drafter ends its drafts by, for a row whose draft is cut together
            with those of other rows afterwards. None: ``required``.
    """

    STEPS_BETWEEN_TRIALS = 8  # calls of plan per draft, while drafting gains less than it costs
    MEMORY = 0.9  # weight of earlier drafted steps in the average surplus

    def __init__(
        self,
        gamma_max: int,
        required: Callable[[], Float32],
        surcharge: Callable[[], float] | None = None,
        drafting: Callable[[], Float32] | None = None,
    ) -> None:
        super().__init__(gamma_max)
        self._required, self._drafting = required, drafting or required
        self._surcharge = surcharge
        self._estimates = False  # whether the last draft was ended by cost
        self._joint: Float32 | None = None  # what the step requires as a part of a joint one
        self._surplus = 0.5  # tokens per cost - 1 of drafted steps, decaying
        self._skipped = 0

    def plan(self, estimates: bool, required: Float32 | None = None) -> tuple[int, Float32 | None]:
        self._estimates, self._joint = estimates, required
        if estimates:
            return self._max, self._drafting() if required is None else required
        if self._surplus < 0:
            self._skipped += 1
            if self._skipped % self.STEPS_BETWEEN_TRIALS:
                return 0, None
        return super().plan(estimates, required)

    def observe(self, drafted: int, accepted: int) -> None:
        if self._estimates:
            return
        super().observe(drafted, accepted)
        required = self._required() if self._joint is None else self._joint
        positions = min(1 + drafted, len(required) - 1)  # another rank's draft may be longer
        surplus = (1 + accepted) / float(required[positions]) - 1
        self._surplus = self.MEMORY * self._surplus + (1 - self.MEMORY) * surplus
        self._surplus = max(self._surplus, self.MEMORY - 1)  # one good draft resumes it

    def keep(self, draft: Draft) -> Draft:
        if self._surcharge is None or draft.parents is None or draft.confidence is None:
            return draft
        surcharge = self._surcharge()
        if surcharge == 1.0 or draft.proposal is not None:
            return draft
        required = self._required() if self._joint is None else self._joint
        length, path = common_length([draft], ONE_ROW, required, surcharge)
        return (likeliest(draft) if path else draft).first(length).as_chain()


class PrefillDraftLength:
    """The maximum draft length after a prompt, learned from earlier such drafts.

    Whether answers begin predictably depends on the task, so the length is learned over a
    Speculator's calls: doubled when a whole draft is accepted, halved when none of it is. It keeps
    one number and no text. Threads may share it: a lost update changes a length, never the output.

    Args:
        max_tokens: upper bound.

    Attributes:
        limit: the current maximum length.
    """

    INITIAL_LENGTH = 16
    MIN_LENGTH = 2  # is cheap and still detects that answers become predictable

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self.limit = min(self.INITIAL_LENGTH, max_tokens)

    def learn(self, drafted: int, accepted: int) -> None:
        """Learn from a prefill that verified ``drafted`` tokens."""
        if drafted and accepted == 0:
            self.limit = max(self.limit // 2, min(self.MIN_LENGTH, self._max_tokens))
        elif drafted and accepted == drafted >= self.limit:
            self.limit = min(2 * self.limit, self._max_tokens)


def make_controller(
    gamma: int | str,
    gamma_max: int,
    required: Callable[[], Float32],
    surcharge: Callable[[], float] | None = None,
) -> GammaController:
    """Make the controller for one row of a generation.

    gamma is an integer, "heuristic", "threshold" (by confidence) or "auto" (by cost), see
    CostGamma.
    """
    if isinstance(gamma, int):
        return GammaController(gamma)
    if gamma == "heuristic":
        return HeuristicGamma(gamma_max)
    if gamma == "threshold":
        return ThresholdGamma(gamma_max)
    return CostGamma(gamma_max, required, surcharge)


def confidence_of(draft: Draft) -> Float32:
    """P(accepted | the node before is) of each node, float32 (n,); 0.5 if not known."""
    return np.full(len(draft), 0.5, np.float32) if draft.confidence is None else draft.confidence


def reach_of(parents: NDArray[np.int32] | None, confidence: NDArray[np.float32]) -> Float64:
    """P(accepted) of each node of a draft and all its ancestors, float64 (n,).

    Args:
        parents: int32 (n,), parents[i] < i, -1 for the last committed token; None: a chain.
        confidence: float32 (n,): P(node accepted | parent accepted, no earlier sibling accepted).

    Example:
        >>> parents = np.array([-1, -1, 0], np.int32)
        >>> reach_of(parents, np.array([0.5, 0.25, 0.5], np.float32)).tolist()
        [0.5, 0.25, 0.25]
    """
    if parents is None:
        return np.cumprod(confidence, dtype=np.float64)
    reach = confidence.astype(np.float64)
    for node, above in enumerate(parents.tolist()):
        if above >= 0:
            reach[node] *= reach[above]
    return reach


def likeliest_path(parents: NDArray[np.int32], confidence: NDArray[np.float32]) -> list[int]:
    """The path of the most probable child of each node, from the last committed token on."""
    best: dict[int, int] = {}
    for node, above in enumerate(parents.tolist()):
        if above not in best or confidence[node] > confidence[best[above]]:
            best[above] = node
    path, at = [], best.get(-1)
    while at is not None:
        path.append(at)
        at = best.get(at)
    return path


def worthwhile_nodes(reach: Float64, required: Float32) -> int:
    """The number of leading nodes with the highest expected tokens per cost, the largest if equal.

    Theorem 3.8 with a probability for each node and a measured cost, which is given as the tokens
    that it requires.

    Args:
        reach: float64 (n,), non-increasing: P(accepted) of each node and all its ancestors.
        required: float32 (n + 2,) or longer: [k] is what a forward of k positions requires.

    Example:
        >>> worthwhile_nodes(np.array([0.9, 0.09]), np.array([0, 1, 1.2, 1.4], np.float32))
        1
    """
    value = (1.0 + np.cumsum(np.concatenate(([0.0], reach)))) / required[1 : len(reach) + 2]
    return int(len(reach) - value[::-1].argmax())


def likeliest(draft: Draft) -> Draft:
    """The most probable path of a deterministic tree; else the draft itself."""
    if draft.parents is None:
        return draft
    return draft.path(likeliest_path(draft.parents, confidence_of(draft)))


def common_length(
    drafts: Sequence[Draft], weights: Float64, required: Float32, surcharge: float = 1.0
) -> tuple[int, bool]:
    """Where to cut the drafts of rows that share a forward of the longest draft's width.

    It is the length with the most expected tokens per cost. A row with a short chain fills that
    width with branches, if its draft has some.

    Args:
        drafts: one per row, chains or trees. Without confidence each token counts as 0.5.
        weights: float64 (rows,), value of a token of each row, with a sum of 1.
        required: float32 (longest + 2,) or longer: [k] is what a forward of k positions per row
            requires.
        surcharge: factor on the cost of a forward with branches.

    Returns:
        The length, and whether it is that of the drafts' most probable paths, because branches are
        not worth their surcharge.
    """
    length, value = _best_length(drafts, weights, required)
    if surcharge > 1.0 and any(draft.parents is not None for draft in drafts):
        paths = [likeliest(draft) for draft in drafts]
        longest, best = _best_length(paths, weights, required)
        if value / surcharge <= best:
            return longest, True
    return length, False


def _best_length(drafts: Sequence[Draft], weights: Float64, required: Float32) -> tuple[int, float]:
    """The length with the most expected tokens per cost, and these tokens per cost."""
    reach = np.zeros(max(map(len, drafts)))
    for draft, weight in zip(drafts, weights, strict=True):
        reach[: len(draft)] += weight * reach_of(draft.parents, confidence_of(draft))
    length = worthwhile_nodes(reach, required)
    return length, (1.0 + float(reach[:length].sum())) / float(required[length + 1])
