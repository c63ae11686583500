"""Drafts, the distributions they were sampled from, and the target's verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ngramspec.errors import check_bool, check_int

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Int8 = NDArray[np.int8]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

NO_TOKENS: Int32 = np.empty(0, np.int32)
Nodes = Sequence[int]  # indices of nodes of a draft


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """The distributions that a stochastic draft was sampled from, sparse: q of Algorithm 1.

    Node i was sampled from ``probs[starts[i]:starts[i + 1]]`` over the ids in the same slice of
    ``tokens``. There are two forms of sampling siblings:

    - From one distribution without replacement. Then each sibling states the distribution before
      the first was sampled, with the same ids and probs in the same order.
    - From separate distributions, for example of several drafters. Then a sibling's distribution
      holds none of the tokens of the siblings before it.

    The text has the target's distribution only if the draft was really sampled from its proposal. A
    drafter that states a proposal must guarantee the following:

    - Each token was sampled from its distribution, with random numbers that are independent of the
      target's and are used for nothing else.
    - Nodes are in the order sampled: parents before children, siblings one after another.
    - Whether a node is in the draft, and which distribution it has, was decided before its token
      was sampled. This may depend on the committed tokens and on the tokens of earlier nodes; for
      example, a chain may end if no continuation is known. It must not depend on the node's own
      token or on later ones. So no node may be removed, cut, moved or sampled again because of its
      token, and the draft's length must not depend on the tokens in any other way.
    - Whether ``propose`` raises does not depend on the sampled tokens.

    Every step checks what can be checked: ids lie in the vocabulary, the ids of a node are
    distinct, siblings have one of the two forms, a node's token is among its ids, and its probs
    sum to 1. For rounding to float32 the sum may deviate by 2**-23 for each prob and by 1e-4 at
    most; the probs are divided by it. The first invalid node and all nodes after it are removed.

    Attributes:
        starts: int32 (n + 1,), strictly increasing from 0 to m.
        tokens: int32 (m,), ids, distinct within a node's slice.
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
        """The proposal of some of the nodes, in their order."""
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
        parents: int32 (n,), each node's parent: parents[i] < i, and -1 is the last committed token.
            None: the draft is a chain, and node i - 1 is the parent of node i.
        confidence: float32 (n,) in 0..1, the drafter's P(accepted | parent accepted), or None.
        proposal: the distributions of a stochastic draft. None: the draft is deterministic, and its
            distribution q is one-hot.
        source: int8 (n,), each node's draft source, an index into the drafter's
            ``source_names``. None: all nodes are from the first.
    """

    tokens: Int32
    parents: Int32 | None = None
    confidence: Float32 | None = None
    proposal: Proposal | None = None
    source: Int8 | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def first(self, n: int) -> Draft:
        """The first ``n`` nodes. Of a tree they are a tree, as parents precede children."""
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
        """A deterministic tree's path as a chain; each of ``nodes`` is the parent of the next."""
        return self._of(np.array(nodes, np.intp), None)

    def within(self, depth: int) -> Draft:
        """The nodes at most ``depth`` tokens after the last committed token."""
        if self.parents is None or len(self) <= depth:
            return self.first(depth)
        at = np.flatnonzero(np.array(self.depths()) <= depth)
        if len(at) == len(self):
            return self
        moved = np.full(len(self) + 1, -1, np.int32)  # new index of each node
        moved[at + 1] = np.arange(len(at))
        return self._of(at, moved[self.parents[at] + 1])

    def _of(self, at: NDArray[np.intp], parents: Int32 | None) -> Draft:
        """The nodes ``at``, in ascending order, with new ``parents``."""
        confidence = None if self.confidence is None else self.confidence[at]
        source = None if self.source is None else self.source[at]
        proposal = None if self.proposal is None else self.proposal.at(at)
        return Draft(self.tokens[at], parents, confidence, proposal, source)

    def as_chain(self) -> Draft:
        """The draft as a chain if it is a tree without siblings; else the draft itself."""
        if self.parents is None or not np.array_equal(self.parents, np.arange(-1, len(self) - 1)):
            return self
        return replace(self, parents=None)

    def depths(self) -> list[int]:
        """How many tokens each node lies after the last committed token."""
        if self.parents is None:
            return list(range(1, len(self) + 1))
        depths = [0]  # of the last committed token
        for parent in self.parents.tolist():
            depths.append(depths[parent + 1] + 1)
        return depths[1:]

    def children(self) -> list[list[int]]:
        """Each parent's nodes in order: n + 1 lists, first that of the last committed token."""
        if self.parents is None:
            return [*([node] for node in range(len(self))), []]
        children: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, parent in enumerate(self.parents.tolist()):
            children[parent + 1].append(node)
        return children

    def nodes(self, position: int) -> Sequence[int]:
        """The nodes drafted at a position of the draft's forward, siblings in order.

        Position 0 is that of the last committed token, and position i + 1 that of node i.
        """
        if self.parents is None:
            return (position,) if position < len(self.tokens) else ()
        found: list[int] = np.flatnonzero(self.parents == position - 1).tolist()
        return found

    def node_with(self, token: int, position: int) -> int | None:
        """The node with a token among those drafted at a position, or None."""
        for node in self.nodes(position):
            if self.tokens[node] == token:
                return node
        return None

    def path_along(self, tokens: Iterable[int]) -> list[int]:
        """The nodes that agree with the tokens which follow the committed ones, in order."""
        path = list[int]()
        for token in tokens:
            node = self.node_with(token, path[-1] + 1 if path else 0)
            if node is None:
                break
            path.append(node)
        return path

    def verdict(self, accepted: Sequence[int], emitted: Sequence[int]) -> Verdict:
        """The result of the verification, by the accepted nodes and the committed tokens."""
        above = (-1, *accepted)
        verified = len(accepted)
        if self.parents is not None:  # the siblings before each
            pairs = zip(above, accepted, strict=False)
            verified += sum(self.nodes(parent + 1).index(node) for parent, node in pairs)
        goes_on = len(emitted) > len(accepted) and len(self.tokens) > 0
        rejected = self.nodes(above[-1] + 1) if goes_on else ()
        first = rejected[0] if rejected else None
        return Verdict(accepted, verified + len(rejected), tuple(emitted), first)


EMPTY_DRAFT = Draft(NO_TOKENS)

MAX_TOP_K = 1024  # tokens per position
Computed = tuple[Int32, Float32, Float32 | None]  # ids, log_probs, hidden: see Evidence


@dataclass(frozen=True, slots=True)
class EvidenceRequest:
    """A drafter's request for results of the target's forwards, in addition to verdicts.

    Attributes:
        top_k: number of most probable tokens at each position, 0..1024.
        hidden: whether to return the hidden states that the model's head reads.

    Raises:
        TypeError, ValueError: an attribute has a wrong type or value, or nothing is requested.
    """

    top_k: int = 0
    hidden: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "top_k", check_int("top_k", self.top_k, 0, MAX_TOP_K))
        if not check_bool("hidden", self.hidden) and not self.top_k:
            raise ValueError("an EvidenceRequest must have top_k >= 1 or hidden=True, got neither")

    def __or__(self, other: EvidenceRequest | None) -> EvidenceRequest:
        """The request that satisfies both."""
        if other is None or other == self:
            return self
        return EvidenceRequest(max(self.top_k, other.top_k), self.hidden or other.hidden)


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Results of one forward of the target at m = n + 1 positions, for a draft of n nodes.

    Position 0 follows the last committed token, and position i + 1 follows node i, also in rejected
    branches. Probabilities are those of the raw logits, before any processor.

    Attributes:
        tokens: int32 (m,), the token that each position follows.
        parents: int32 (m,), the position before each; -1 for position 0.
        accepted: the positions whose tokens are committed, in order: 0, then the accepted nodes'.
        ids: int32 (m, k), the k most probable tokens, the most probable first. k is at least the
            requested number, or the size of the vocabulary.
        log_probs: float32 (m, k), their natural log-probabilities.
        hidden: float32 (m, d), the input of the model's head. None: not requested, or not available
            (compiled forwards, models without a separate head).
    """

    tokens: Int32
    parents: Int32
    accepted: tuple[int, ...]
    ids: Int32
    log_probs: Float32
    hidden: Float32 | None = None

    @classmethod
    def of(cls, draft: Draft, accepted: Sequence[int], last: int, computed: Computed) -> Evidence:
        """The evidence of one row with a verified draft, after its committed token ``last``.

        ``computed`` are ids, log_probs and hidden as above, at n + 1 positions or more.
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


Observed = Evidence | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a draft's verification.

    Attributes:
        accepted: indices of the accepted nodes, in order.
        verified: number of verified nodes: those whose parent was accepted, up to the accepted one
            among siblings. In a chain these are the accepted nodes and the first rejected one.
            Nodes after a rejection, or after a stop at EOS or max_length, are not verified.
        emitted: the committed tokens of the step: the accepted ones, then the recovered token
            (after a rejection) or the bonus token (after none), unless generation stopped before.
        rejected: the node that the recovered token replaces, of siblings the first. None: the last
            token is a bonus token, or generation stopped before.
    """

    accepted: Sequence[int]
    verified: int
    emitted: Sequence[int]
    rejected: int | None = None

    @property
    def corrected(self) -> int | None:
        """The recovered token if a draft token was rejected, else None."""
        return None if self.rejected is None else self.emitted[-1]


def verified_nodes(draft: Draft, accepted: Nodes, verified: int) -> Iterator[int]:
    """The verified nodes, in order; ``verified`` is their number (see Verdict)."""
    if draft.parents is None:
        yield from range(verified)
        return
    left = verified
    for depth, parent in enumerate((-1, *accepted)):
        right = accepted[depth] if depth < len(accepted) else None
        for node in draft.nodes(parent + 1):
            if left == 0:
                return
            left -= 1
            yield node
            if node == right:
                break
