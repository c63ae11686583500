"""Drafts, what they were drawn from, and what the target made of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

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

    def first(self, n: int) -> Draft:
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

    def as_chain(self) -> Draft:
        """As a chain, if it is a tree in which no node has a sibling; else as it is."""
        if self.parents is None or not np.array_equal(self.parents, np.arange(-1, len(self) - 1)):
            return self
        return replace(self, parents=None)

    def head(self, n: int) -> Draft:
        """Deprecated name of ``first``."""
        warnings.warn("Draft.head is Draft.first now", DeprecationWarning, stacklevel=2)
        return self.first(n)

    def straight(self) -> Draft:
        """Deprecated name of ``as_chain``."""
        warnings.warn("Draft.straight is Draft.as_chain now", DeprecationWarning, stacklevel=2)
        return self.as_chain()

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
