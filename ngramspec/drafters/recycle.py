"""Token Recycling (Luo et al. 2024): the target's own candidates as an adjacency table.

For every token that occurred in a forward, the table keeps the k most probable tokens after it,
from the last such forward. This includes rejected tokens. A draft is a static tree over the table:
which rank's child is expanded is fixed beforehand, whatever the tokens are.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from heapq import heappop, heappush

import numpy as np

from ngramspec.draft import EMPTY_DRAFT, Draft, EvidenceRequest, Float32, Int32, Nodes, Observed
from ngramspec.drafters.base import Drafter, DraftSession
from ngramspec.errors import check_int

MAX_TOP_K = 64
# P(a child of each rank is next) assumed for the tree's shape; lower ranks use the last. Not tuned.
RANK_PROBABILITIES = (0.5, 0.14, 0.07, 0.045, 0.03, 0.025, 0.02, 0.017)


@lru_cache(maxsize=64)
def static_tree(nodes: int, ranks: int) -> tuple[tuple[int, int], ...]:
    """The tree of ``nodes`` nodes with the highest total of assumed path probabilities.

    A node has at most ``ranks`` >= 1 children. Returned is (parent, rank) of each node, by
    descending probability; parent -1 is the last committed token. The first n nodes are the tree of
    n nodes.
    """
    tree: list[tuple[int, int]] = []
    # -P(path), order, parent, rank, P(the parent's path)
    heap = [(-RANK_PROBABILITIES[0], 0, -1, 0, 1.0)]
    pushed = 1
    while len(tree) < nodes and heap:
        negative, _, parent, rank, above = heappop(heap)
        node = len(tree)
        tree.append((parent, rank))
        offers = [(node, 0, -negative)]
        if rank + 1 < ranks:
            offers.append((parent, rank + 1, above))
        for under, which, reach in offers:
            share = reach * RANK_PROBABILITIES[min(which, len(RANK_PROBABILITIES) - 1)]
            heappush(heap, (-share, pushed, under, which, reach))
            pushed += 1
    return tuple(tree)


class RecycleSession(DraftSession):
    """One sequence's table from each token to the target's latest candidates after it."""

    def __init__(self, top_k: int, tokens: Int32) -> None:
        self.top_k = top_k
        self.table: dict[int, list[int]] = {}
        self.last: int | None = None
        self.extend(tokens)

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        if self.last is None or gamma < 1:
            return EMPTY_DRAFT
        return self._tree(gamma) if tree else self._chain(self.last, gamma)

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        if not len(drafted):
            return self.propose(gamma)
        return self._chain(int(drafted[-1]), gamma)

    def _chain(self, token: int, gamma: int) -> Draft:
        """The most probable candidate of each token, up to the first token without an entry."""
        tokens: list[int] = []
        while len(tokens) < gamma and token in self.table:
            token = self.table[token][0]
            tokens.append(token)
        return Draft(np.array(tokens, np.int32)) if tokens else EMPTY_DRAFT

    def _tree(self, gamma: int) -> Draft:
        """The static tree, without nodes that the table does not have."""
        assert self.last is not None
        rows = [self.table.get(self.last, [])]  # by node + 1; empty: not known
        places = [-1]  # in the draft, by node + 1; -1: the root or not known
        tokens: list[int] = []
        parents: list[int] = []
        for parent, rank in static_tree(gamma, self.top_k):
            row = rows[parent + 1]
            if rank >= len(row):
                rows.append([])
                places.append(-1)
                continue
            parents.append(places[parent + 1])
            places.append(len(tokens))
            tokens.append(row[rank])
            rows.append(self.table.get(row[rank], []))
        if not tokens:
            return EMPTY_DRAFT
        return Draft(np.array(tokens, np.int32), np.array(parents, np.int32))

    def observe(
        self, draft: Draft, accepted: Nodes, verified: int | None = None, evidence: Observed = None
    ) -> None:
        if evidence is None:
            return
        tokens, rows = evidence.tokens.tolist(), evidence.ids[:, : self.top_k].tolist()
        self.table.update(zip(tokens, rows, strict=True))
        for at in evidence.accepted:  # entries computed on the accepted text take precedence
            self.table[tokens[at]] = rows[at]

    def extend(self, tokens: Int32) -> None:
        if len(tokens):
            self.last = int(tokens[-1])

    def sizeof(self) -> int:
        return sys.getsizeof(self.table) + len(self.table) * (88 + 8 * self.top_k)


class RecycleDrafter(Drafter):
    """Drafts from the target's own candidates: a static tree, or a chain of the best ones.

    Each sequence begins with an empty table. (In the paper, later requests inherit the table; here
    no request's text reaches another's drafts.) It keeps ``top_k`` candidates per token, 1..64; the
    paper uses 8.
    """

    source_names = ("recycle",)

    def __init__(self, top_k: int = 8) -> None:
        self.top_k = check_int("top_k", top_k, 1, MAX_TOP_K)
        self.evidence = EvidenceRequest(top_k=top_k)
        self.spec = f"recycle(top_k={top_k})"

    def start(self, tokens: Int32) -> DraftSession:
        return RecycleSession(self.top_k, tokens)
