"""Drafts, the distributions they were sampled from, and the target's verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ngramspec.errors import check_bool, check_int

Int32 = NDArray[np.int32]
Int8 = NDArray[np.int8]
Float32 = NDArray[np.float32]

NO_TOKENS: Int32 = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """The distributions that a stochastic draft was sampled from, sparse: q of Algorithm 1.

    Node i was sampled from ``probs[starts[i]:starts[i + 1]]`` over the ids of the same slice of
    ``tokens``. Siblings are sampled from one distribution without replacement: each states it as it
    was before the first of them was sampled, the same ids and probs in the same order. Or a sibling
    is sampled from a distribution of its own (of another drafter, for example) that holds none of
    the tokens of the siblings before it.

    The text has the target's distribution only if the draft was really sampled from its proposal. A
    drafter that states a proposal promises:

    - Each token was sampled from its distribution, with random numbers that decide nothing else and
      are independent of the target's.
    - Nodes are in the order sampled: parents before children, siblings one after another.
    - Whether a node is in the draft, and which distribution it has, was decided before its token
      was sampled. That may depend on the committed tokens and on the tokens of earlier nodes: a
      chain may end where nothing is known to follow. It may not depend on the node's own token or
      on later ones. So no node may be left out, cut, moved or sampled again because of its token,
      and the draft's length depends on the tokens in no other way.
    - Whether ``propose`` raises does not depend on the sampled tokens either.

    What can be checked is checked at every step: ids lie in the vocabulary and no two ids of a node
    are equal, siblings state one distribution or such of their own, a node's token is among its
    ids, and its probs sum to 1. The sum may be off by 2**-23 for each of them and by 1e-4 at most,
    for rounding to float32; they are divided by it. The first node that fails is
    removed, and those after it. The rest is a promise.

    Attributes:
        starts: int32 (n + 1,), rising from 0 to m, each above the one before.
        tokens: int32 (m,), ids, no two equal in a node's slice.
        probs: float32 (m,), > 0; those of a node sum to 1.
    """

    starts: Int32
    tokens: Int32
    probs: Float32

    def of(self, node: int) -> tuple[Int32, Float32]:
        """The ids and probabilities that a node was sampled from."""
        own = slice(int(self.starts[node]), int(self.starts[node + 1]))
        return self.tokens[own], self.probs[own]

    def at(self, nodes: NDArray[np.intp]) -> Proposal:
        """Of some of the nodes, in their order."""
        own = [self.of(node) for node in nodes.tolist()]
        ends = np.cumsum([0, *(len(tokens) for tokens, _ in own)], dtype=np.int32)
        tokens = np.concatenate([NO_TOKENS, *(tokens for tokens, _ in own)])
        probs = np.concatenate([np.empty(0, np.float32), *(probs for _, probs in own)])
        return Proposal(ends, tokens, probs)


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Tokens guessed to follow the committed ones: a chain, or a tree by parent index.

    Attributes:
        tokens: int32 (n,), ids of the target's vocabulary.
        parents: int32 (n,) with parents[i] < i and -1 for the last committed token, or None for
            a chain, where node i - 1 is the parent of node i.
        confidence: float32 (n,) in 0..1, the drafter's P(accepted | parent accepted), or None.
        proposal: what a stochastic draft was sampled from, or None for a deterministic one, whose
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

    def first(self, n: int) -> Draft:
        """The first ``n`` nodes; those of a tree are a tree, since parents come first."""
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

    def path(self, nodes: Sequence[int]) -> Draft:
        """The chain of a deterministic tree's ``nodes``, each the parent of the next."""
        return self._of(np.array(nodes, np.intp), None)

    def within(self, depth: int) -> Draft:
        """The nodes at most ``depth`` tokens behind the committed ones."""
        if self.parents is None or len(self) <= depth:
            return self.first(depth)
        depths = np.zeros(len(self) + 1, np.intp)  # first the last committed token's
        for node, parent in enumerate(self.parents.tolist(), 1):
            depths[node] = depths[parent + 1] + 1
        at = np.flatnonzero(depths[1:] <= depth)
        if len(at) == len(self):
            return self
        moved = np.full(len(self) + 1, -1, np.int32)  # where a parent is now
        moved[at + 1] = np.arange(len(at))
        return self._of(at, moved[self.parents[at] + 1])

    def _of(self, at: NDArray[np.intp], parents: Int32 | None) -> Draft:
        """The nodes ``at``, ascending, with the parents given."""
        confidence = None if self.confidence is None else self.confidence[at]
        source = None if self.source is None else self.source[at]
        proposal = None if self.proposal is None else self.proposal.at(at)
        return Draft(self.tokens[at], parents, confidence, proposal, source)

    def as_chain(self) -> Draft:
        """A chain, if the draft is a tree without siblings; else the draft itself."""
        if self.parents is None or not np.array_equal(self.parents, np.arange(-1, len(self) - 1)):
            return self
        return replace(self, parents=None)

    def children(self) -> list[list[int]]:
        """Nodes by their parent, in order: n + 1 lists, first that of the last committed token."""
        if self.parents is None:
            return [*([node] for node in range(len(self))), []]
        children: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, parent in enumerate(self.parents.tolist()):
            children[parent + 1].append(node)
        return children


def joined(chains: Sequence[Draft]) -> Proposal | None:
    """The proposal of several chains put together; a deterministic one is one-hot at each token.

    Returns:
        None if all are deterministic.
    """
    if all(chain.proposal is None for chain in chains):
        return None
    proposals = [
        Proposal(
            np.arange(len(chain) + 1, dtype=np.int32), chain.tokens, np.ones(len(chain), np.float32)
        )
        if chain.proposal is None
        else chain.proposal
        for chain in chains
    ]
    sizes = np.concatenate([np.diff(each.starts) for each in proposals])
    return Proposal(
        np.concatenate(([0], np.cumsum(sizes))).astype(np.int32),
        np.concatenate([each.tokens for each in proposals]),
        np.concatenate([each.probs for each in proposals]),
    )


EMPTY_DRAFT = Draft(NO_TOKENS)

MOST_RUNNERS_UP = 1024


@dataclass(frozen=True, slots=True)
class EvidenceRequest:
    """What a drafter asks for of the target's forwards, beside which tokens were accepted.

    Attributes:
        top_k: how many of the most probable tokens of each position, 0..1024.
        hidden: whether the states that the model's head reads are wanted.

    Raises:
        TypeError, ValueError: an attribute has a wrong type or value, or nothing is asked for.
    """

    top_k: int = 0
    hidden: bool = False

    def __post_init__(self) -> None:
        check_int("top_k", self.top_k, 0, MOST_RUNNERS_UP)
        if not check_bool("hidden", self.hidden) and not self.top_k:
            raise ValueError("an EvidenceRequest must ask for something: top_k >= 1 or hidden=True")

    def __or__(self, other: EvidenceRequest | None) -> EvidenceRequest:
        """What satisfies both requests."""
        if other is None or other == self:
            return self
        return EvidenceRequest(max(self.top_k, other.top_k), self.hidden or other.hidden)


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What the target computed in one forward, at m = n + 1 positions of a draft of n nodes.

    Position 0 follows the last committed token, position i + 1 follows node i: the positions of
    rejected branches are among them. All is of the model's raw logits, before any processor.

    Attributes:
        tokens: int32 (m,), the token that each position follows.
        parents: int32 (m,), the position before each; -1 for position 0.
        accepted: the positions whose tokens are committed, in order: 0, then the accepted nodes'.
        ids: int32 (m, k), the k most probable tokens, the most probable first; k is at least what
            was asked for, or the size of the vocabulary.
        log_probs: float32 (m, k), their natural logarithms of probability.
        hidden: float32 (m, d), what the model's head read; None: not asked for, or not at hand
            (compiled forwards, models without a head of their own).
    """

    tokens: Int32
    parents: Int32
    accepted: tuple[int, ...]
    ids: Int32
    log_probs: Float32
    hidden: Float32 | None = None

    @classmethod
    def of(
        cls,
        draft: Draft,
        accepted: Sequence[int],
        last: int,
        computed: tuple[Int32, Float32, Float32 | None],
    ) -> Evidence:
        """The evidence of one row.

        Args:
            draft: that was verified, n nodes.
            accepted: its accepted nodes, in order.
            last: the last committed token before it.
            computed: ids, log_probs and hidden as above, of n + 1 positions or more.
        """
        m = len(draft) + 1
        parents = np.arange(-1, m - 1, dtype=np.int32)
        if draft.parents is not None:
            parents[1:] = draft.parents + 1
        ids, log_probs, hidden = computed
        return cls(
            np.concatenate((np.array([last], np.int32), draft.tokens)),
            parents,
            (0, *(node + 1 for node in accepted)),
            ids[:m],
            log_probs[:m],
            None if hidden is None else hidden[:m],
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target accepted of a draft.

    Attributes:
        accepted: indices of the accepted nodes, in order.
        tested: how many nodes were judged: those whose parent was accepted, up to the accepted
            one among siblings; in a chain the accepted ones and the first rejected one. Nodes
            after a rejection, or after a cut at EOS or max_length, are untested.
        emitted: the committed tokens of the step: the accepted ones, then the recovered token
            (after a rejection) or the bonus token (after none), unless a stop came first.
        rejected: the node that the recovered token replaces, of siblings the first; None: the last
            token is a bonus token, or there is none.
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
