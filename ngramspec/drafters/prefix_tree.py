"""Merging several drafts by their prefixes into one tree (SpecInfer, Miao et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ngramspec.draft import EMPTY_DRAFT, Draft
from ngramspec.draft_length.optimal import reach_of

ASSUMED_CONFIDENCE = 0.9  # assumed confidence of nodes without one; not tuned
PRIORITY_FACTOR = 0.3  # factor on a draft's first nodes per draft of higher priority; not tuned


def pack(drafts: Sequence[Draft], limit: int) -> Draft:
    """Merge drafts, in order of priority, into one prefix tree, which is a deterministic draft.

    Proposals of sampled tokens are dropped. Accepting a node if the target samples the same token
    is exact for such drafts as well.

    The result has the ``limit`` nodes with the highest reach, in descending order. On ties, nodes
    of the earlier draft come first. Where drafts have no confidence, a later draft and a deeper
    node count as less likely. A node that several drafts share gets the highest of their
    confidences and the source of the first. Confidence is None if no draft has any.

    Example:
        >>> chains = [Draft(np.array(ids, np.int32)) for ids in ([5, 6, 7], [5, 8])]
        >>> tree = pack(chains, 4)
        >>> tree.tokens.tolist(), tree.parents.tolist()
        ([5, 6, 8, 7], [-1, 0, 0, 1])
    """
    places: dict[tuple[int, int], int] = {}  # (parent, token) -> node
    confidence: list[float] = []
    source: list[int] = []
    for which, draft in enumerate(drafts):
        n = len(draft)
        parents = range(-1, n - 1) if draft.parents is None else draft.parents.tolist()
        assumed = _assumed(draft, parents, which)
        sources = [0] * n if draft.source is None else draft.source.tolist()
        mine: list[int] = []
        for token, above, p, origin in zip(
            draft.tokens.tolist(), parents, assumed, sources, strict=True
        ):
            key = (mine[above] if above >= 0 else -1, token)
            node = places.setdefault(key, len(places))
            if node == len(confidence):
                confidence.append(p)
                source.append(origin)
            confidence[node] = max(confidence[node], p)
            mine.append(node)
    if not places or limit < 1:
        return EMPTY_DRAFT
    parents, tokens = np.array(list(places), np.int32).T.copy()
    estimates = np.array(confidence, np.float32)
    known = any(draft.confidence is not None for draft in drafts)
    whole = Draft(tokens, parents, estimates if known else None, None, np.array(source, np.int8))
    return order(whole, reach_of(parents, estimates)).first(limit)


def _assumed(draft: Draft, parents: Sequence[int], which: int) -> list[float]:
    """The confidence of each node; without one, assumed lower for each draft of higher priority."""
    if draft.confidence is not None:
        return [float(each) for each in draft.confidence]
    first = ASSUMED_CONFIDENCE * PRIORITY_FACTOR**which
    return [first if above < 0 else ASSUMED_CONFIDENCE for above in parents]


def path_along(draft: Draft, tokens: Iterable[int]) -> list[int]:
    """The nodes of a chain or tree that agree with the tokens which were then committed."""
    children, path = draft.children(), [-1]
    for token in tokens:
        node = next((each for each in children[path[-1] + 1] if draft.tokens[each] == token), None)
        if node is None:
            break
        path.append(node)
    return path[1:]


def order(tree: Draft, reach: NDArray[np.float64]) -> Draft:
    """Sort a deterministic tree's nodes by descending ``reach``, float64 (n,), stably.

    No node may have a higher reach than its parent.
    """
    by_reach = np.argsort(-reach, kind="stable")
    new = np.empty(len(by_reach) + 1, np.int32)
    new[by_reach] = np.arange(len(by_reach), dtype=np.int32)
    new[-1] = -1  # the parent of nodes that follow the last committed token
    assert tree.parents is not None
    confidence = None if tree.confidence is None else tree.confidence[by_reach]
    source = None if tree.source is None else tree.source[by_reach]
    return Draft(tree.tokens[by_reach], new[tree.parents[by_reach]], confidence, None, source)
