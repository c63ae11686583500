"""Drafts, verdicts and statistics, and the interface that every drafter implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int8 = NDArray[np.int8]
Float32 = NDArray[np.float32]

NO_TOKENS: Int32 = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """The distributions that a stochastic draft was drawn from, sparse: q of Algorithm 1.

    Node i was drawn from ``probs[starts[i]:starts[i + 1]]`` over the ids of the same slice of
    ``tokens``. Siblings are drawn from one distribution without replacement and state it alike, as
    it was before the first of them was drawn: the same ids and probs in the same order.

    The text has the target's distribution only if what is stated is what was done. A drafter that
    states a proposal promises:

    - Each token was drawn from its distribution, by random numbers that decide nothing else and
      have nothing to do with the target's.
    - Nodes are in the order drawn: parents before children, siblings one after another.
    - Whether a node is in the draft, and what it is drawn from, was decided before its token was
      drawn. That may depend on the committed tokens, and on the tokens of earlier nodes: a chain
      may end where nothing is known to follow. It may not depend on the node's own token, nor on
      later ones. So nothing may be left out, cut, put in another order or drawn again for the
      tokens' sake, and the draft's length is no function of them in any other way.
    - Whether ``propose`` raises does not depend on the tokens drawn either.

    What can be checked is checked at every step: that ids lie in the vocabulary and no two of a
    node's are alike, that siblings agree, that a node's token is among its ids, and that its probs
    sum to 1, give or take 2**-23 for each of them and 1e-4 at most, which is what rounding to
    float32 takes (they are divided by their sum then). The first node that fails costs itself and
    those behind it. The rest is a promise.

    Attributes:
        starts: int32 (n + 1,), rising from 0 to m, each above the one before.
        tokens: int32 (m,), ids, no two alike in a node's slice.
        probs: float32 (m,), > 0, of each node summing to 1.
    """

    starts: Int32
    tokens: Int32
    probs: Float32

    def of(self, node: int) -> tuple[Int32, Float32]:
        """The ids and probabilities that a node was drawn from."""
        part = slice(int(self.starts[node]), int(self.starts[node + 1]))
        return self.tokens[part], self.probs[part]


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Tokens guessed to follow the committed ones: a chain, or a tree by parent index.

    Attributes:
        tokens: int32 (n,), ids of the target's vocabulary.
        parents: int32 (n,) with parents[i] < i and -1 for the last committed token, or None for
            a chain, where node i - 1 is the parent of node i.
        confidence: float32 (n,) in 0..1, the drafter's P(accepted | parent accepted), or None.
        proposal: what a stochastic draft was drawn from, or None for a deterministic one, whose
            draft distribution q is one-hot.
        source: int8 (n,), index into the drafter's ``tiers``, or None: all from the first.
    """

    tokens: Int32
    parents: Int32 | None = None
    confidence: Float32 | None = None
    proposal: Proposal | None = None
    source: Int8 | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def head(self, n: int) -> Draft:
        """The first ``n`` nodes; of a tree they are one, too, as parents come first."""
        if n >= len(self):
            return self
        parents = None if self.parents is None else self.parents[:n]
        confidence = None if self.confidence is None else self.confidence[:n]
        source = None if self.source is None else self.source[:n]
        proposal = self.proposal
        if proposal is not None:
            starts = proposal.starts[: n + 1]
            proposal = Proposal(starts, proposal.tokens[: starts[-1]], proposal.probs[: starts[-1]])
        return Draft(self.tokens[:n], parents, confidence, proposal, source)

    def straight(self) -> Draft:
        """As a chain, if it is a tree in which no node has a sibling; else as it is."""
        if self.parents is None or not np.array_equal(self.parents, np.arange(-1, len(self) - 1)):
            return self
        return replace(self, parents=None)

    def children(self) -> list[list[int]]:
        """Nodes by their parent, in order: n + 1 lists, the first of the last committed token's."""
        if self.parents is None:
            return [*([node] for node in range(len(self))), []]
        children: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, parent in enumerate(self.parents.tolist()):
            children[parent + 1].append(node)
        return children


def joined(parts: Sequence[Draft]) -> Proposal | None:
    """The proposals of chains one behind another; a deterministic one's is one-hot at each token.

    Returns:
        None if all are deterministic.
    """
    if all(part.proposal is None for part in parts):
        return None
    proposals = [
        Proposal(
            np.arange(len(part) + 1, dtype=np.int32), part.tokens, np.ones(len(part), np.float32)
        )
        if part.proposal is None
        else part.proposal
        for part in parts
    ]
    sizes = np.concatenate([np.diff(each.starts) for each in proposals])
    return Proposal(
        np.concatenate(([0], np.cumsum(sizes))).astype(np.int32),
        np.concatenate([each.tokens for each in proposals]),
        np.concatenate([each.probs for each in proposals]),
    )


EMPTY_DRAFT = Draft(NO_TOKENS)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target made of a draft.

    Attributes:
        accepted: indices of the accepted nodes, in order.
        tested: how many nodes were judged: those whose parent was accepted, up to the accepted
            one among siblings; in a chain the accepted ones and the first rejected one. Nodes
            behind a rejection, or behind a cut at EOS or max_length, are untested.
        emitted: the committed tokens of the step: the accepted ones, then the recovered token
            (after a rejection) or the bonus token (after none), unless a stop came first.
        rejected: the node in whose place the recovered token stands, of siblings the first; None:
            it is a bonus token, or there is none.
    """

    accepted: Sequence[int]
    tested: int
    emitted: Sequence[int]
    rejected: int | None = None

    @property
    def corrected(self) -> int | None:
        """The recovered token, where a draft token was rejected; else None."""
        return None if self.rejected is None else self.emitted[-1]


def judged_nodes(
    draft: Draft, accepted: Sequence[int], tested: int | None = None
) -> Iterator[tuple[int, int]]:
    """(node, depth) of the nodes that the target judged, in order.

    Args:
        draft: a chain or a tree.
        accepted: the accepted nodes, in order.
        tested: how many were judged (see Verdict); None: all that can have been.
    """
    if draft.parents is None:
        count = min(len(accepted) + 1, len(draft)) if tested is None else tested
        yield from ((node, node) for node in range(count))
        return
    children = draft.children()
    left = len(draft) if tested is None else tested
    for depth, parent in enumerate((-1, *accepted)):
        right = accepted[depth] if depth < len(accepted) else None
        for node in children[parent + 1]:
            if left == 0:
                return
            left -= 1
            yield node, depth
            if node == right:
                break


@dataclass(slots=True)
class TierStats:
    """Counts of one tier's draft tokens."""

    drafted: int = 0
    tested: int = 0
    accepted: int = 0


@dataclass(slots=True)
class DecodeStats:
    """Counts and times of decoding; of prefills and the token each emits, only their number.

    Attributes:
        runs: generations; each has one prefill, which emits its first token.
        prefill_drafted, prefill_accepted: draft tokens that prefills checked behind the prompt, and
            those that stand, which prefills emitted too. Counted nowhere else.
        target_calls: target forwards after the prefill.
        emitted: tokens committed by those forwards.
        drafted, tested, accepted: draft tokens; see Verdict for ``tested``.
        plain_steps: target calls that had no draft to verify.
        host_syncs: transfers of the target's results to the host.
        chains: why runs that asked for trees had chains, with the number of runs.
        drafter_faults: steps that went on undrafted, or drafters restarted, because the drafter
            raised or returned what cannot be verified.
        drafters_stopped: rows in which a drafter failed so often that it was not asked any more.
        tiers: the draft tokens' counts by the tier they came from.
        prefill_seconds, draft_seconds, forward_seconds, other_seconds: wall time. A forward ends
            when its result has reached the host, or where that comes later, with its launch.
    """

    runs: int = 0
    prefill_drafted: int = 0
    prefill_accepted: int = 0
    target_calls: int = 0
    emitted: int = 0
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    plain_steps: int = 0
    host_syncs: int = 0
    drafter_faults: int = 0
    drafters_stopped: int = 0
    chains: dict[str, int] = field(default_factory=dict)
    tiers: dict[str, TierStats] = field(default_factory=dict)
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    forward_seconds: float = 0.0
    other_seconds: float = 0.0

    @property
    def alpha(self) -> float:
        """Accepted / tested draft tokens; 0.0 if none was tested."""
        return self.accepted / self.tested if self.tested else 0.0

    @property
    def accepted_fraction(self) -> float:
        """Accepted / drafted tokens; 0.0 if none was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_call(self) -> float:
        """Emitted tokens / target calls; 0.0 without calls."""
        return self.emitted / self.target_calls if self.target_calls else 0.0

    def count_step(self, draft: Draft, verdict: Verdict, tiers: Sequence[str]) -> None:
        """Add one target call."""
        accepted = len(verdict.accepted)
        self.target_calls += 1
        self.emitted += len(verdict.emitted)
        self.drafted += len(draft)
        self.tested += verdict.tested
        self.accepted += accepted
        self.plain_steps += not len(draft)
        source = [0] * len(draft) if draft.source is None else draft.source.tolist()
        for tier in source:
            self.tiers.setdefault(tiers[tier], TierStats()).drafted += 1
        for node, _ in judged_nodes(draft, verdict.accepted, verdict.tested):
            self.tiers[tiers[source[node]]].tested += 1
        for node in verdict.accepted:
            self.tiers[tiers[source[node]]].accepted += 1

    def add(self, other: DecodeStats) -> None:
        """Add another run's counts and times to these."""
        for name in self.__slots__:
            if name in ("tiers", "chains"):
                continue
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, runs in other.chains.items():
            self.chains[reason] = self.chains.get(reason, 0) + runs
        for tier, theirs in other.tiers.items():
            mine = self.tiers.setdefault(tier, TierStats())
            mine.drafted += theirs.drafted
            mine.tested += theirs.tested
            mine.accepted += theirs.accepted

    def reset(self) -> None:
        """Set every count and time to zero."""
        fresh = DecodeStats()
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))


class DraftSession(ABC):
    """The drafting of one sequence. One thread at a time.

    The order of a step is propose, observe, extend. Any of them may raise any Exception: that costs
    the step's draft, and the session is closed and begun anew. After four such faults in a row the
    drafter is not asked any more in this generation.
    """

    @abstractmethod
    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        """Guess what follows the committed tokens.

        Args:
            gamma: at most so many nodes, >= 0.
            cost: float32 (gamma + 2,), cost[n] of a forward of n positions in units of a
                one-position forward, index 0 unused: the draft ends where the expected tokens per
                cost are highest. None: up to gamma nodes. A drafter that has no estimate of its
                acceptance ignores it.
            tree: whether a tree may be returned instead of a chain.

        Returns:
            A Draft itself, no subclass, of at most ``gamma`` nodes; an empty one when nothing was
            found. Its arrays are plain NumPy ones and stay valid after the next call. The target
            verifies a copy of them; ``observe`` gets this very draft. If it has a ``proposal``,
            the session promises what ``Proposal`` says.
        """

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        """Guess what follows the committed tokens and then ``drafted``, int32 (n,).

        This lets a drafter continue what a higher tier began. The default knows how to continue
        nothing but the committed tokens themselves.
        """
        return EMPTY_DRAFT if len(drafted) else self.propose(gamma)

    def observe(self, draft: Draft, accepted: Sequence[int], tested: int | None = None) -> None:
        """Learn what the target made of a draft; by default nothing.

        Args:
            draft: what propose returned; if less of it was verified, its head.
            accepted: the accepted nodes' indices, in order.
            tested: how many nodes were judged (see Verdict); None: all that can have been, as
                nothing but a rejection came between.
        """
        return None

    @abstractmethod
    def extend(self, tokens: Int32) -> None:
        """Append committed tokens, int32 (n,); legal without propose or observe before."""

    def heat(self, temperature: float, seed: Sequence[int]) -> None:
        """Take note that the request samples, before the first propose.

        Args:
            temperature: that it samples at.
            seed: to draw drafts with; another one for each call, row and beginning of a session.
        """
        return None

    def sizeof(self) -> int | None:
        """Bytes of the session's own structures; None if it does not know."""
        return None

    def close(self) -> None:
        """End the sequence. What was learned goes to the shared store, if there is one."""
        return None


class Drafter(ABC):
    """A recipe for drafting, and what all its sequences share. Thread-safe.

    Attributes:
        tiers: names of the sources its drafts come from, 1 to 128 strings; Draft.source indexes
            them. They are read when a session starts.
        spec: the string that build_drafter makes an equal drafter from, or None.
        estimates: whether its drafts carry confidence and end where ``cost`` says.
        branches: whether its trees, too, end where ``cost`` says, and cost hardly more than its
            chains: then ``tree="auto"`` asks for them.
    """

    tiers: tuple[str, ...] = ("drafter",)
    spec: str | None = None
    estimates: bool = False
    branches: bool = False

    @abstractmethod
    def start(self, tokens: Int32) -> DraftSession:
        """Begin a sequence with its committed tokens so far, int32 (n,), n >= 0.

        All tokens that a session is given lie in the target's vocabulary: others were left out.
        """
