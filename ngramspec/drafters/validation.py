"""Checks what a drafter returned before the target spends a forward on it.

Nothing in it is trusted: any fault raises here, and the loop gets plain copies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec.draft import EMPTY_DRAFT, Draft, EvidenceRequest, Int32, Proposal

INT32, INT8, FLOAT32 = np.dtype(np.int32), np.dtype(np.int8), np.dtype(np.float32)
UINT32 = np.dtype(np.uint32)
largest = np.maximum.reduce
ONE_BITS = int(np.float32(1.0).view(UINT32))  # bits of 1.0; floats in 0..1 have smaller ones
MAX_SOURCES = 128  # Draft.source is int8
SUM_ERROR_PER_ENTRY = 2.0**-23  # allowed error of a float32 sum per probability in it
MAX_SUM_ERROR = 1e-4  # limit of that error


def check_source_names(given: object) -> tuple[str, ...]:
    """Return a drafter's ``source_names`` as a tuple; a TypeError or ValueError if not 1 to 128."""
    if type(given) not in (tuple, list) or not all(type(name) is str for name in given):  # type: ignore[attr-defined]
        raise TypeError(f"a drafter's source_names must be a tuple of strings, got {given!r}")
    names: tuple[str, ...] = tuple(given)  # type: ignore[arg-type]
    if not 1 <= len(names) <= MAX_SOURCES:
        raise ValueError(f"a drafter must have 1..{MAX_SOURCES} source names, got {len(names)}")
    return names


def check_evidence(request: object) -> EvidenceRequest | None:
    """Return a drafter's ``evidence``, or raise a TypeError."""
    if request is not None and type(request) is not EvidenceRequest:
        raise TypeError(f"a drafter's evidence must be an EvidenceRequest or None, got {request!r}")
    return request


def check_draft(
    draft: object, limit: int, vocab: int, *, tree: bool = False, sources: int = MAX_SOURCES
) -> Draft:
    """Return a copy of ``draft`` if the target can verify it, as a chain unless ``tree``.

    The arrays are copied before they are checked, so nothing that the drafter later does to them,
    even in another thread, has an effect. Each node's proposal is divided by its sum, which removes
    the rounding error of the sum. It may have ``limit`` tokens and name ``sources`` sources.

    Raises:
        TypeError, ValueError: a field is invalid; the message has its name, bound and value. Fields
            that are not arrays may raise anything.
    """
    if type(draft) is not Draft:  # a subclass could override anything
        raise TypeError(f"propose must return a Draft and no subclass, got {type(draft).__name__}")
    n = len(draft.tokens) if type(draft.tokens) is np.ndarray and draft.tokens.ndim else 0
    if n > limit:
        raise ValueError(f"a draft must have at most gamma = {limit} tokens, got {n}")
    tokens = _copied("tokens", draft.tokens, INT32, n)
    if not n:
        return EMPTY_DRAFT  # other fields are ignored
    _check_ids("draft tokens", tokens, vocab)
    parents = confidence = proposal = source = None
    if draft.parents is not None:
        if not tree:
            raise ValueError("draft must be a chain, got one with parents")
        parents = _copied("parents", draft.parents, INT32, n)
        _check_tree(tokens, parents)
    if draft.source is not None:
        source = _copied("source", draft.source, INT8, n)
        if max(source.tobytes()) >= sources:  # as unsigned bytes, negative ones are above 127
            bad = source[(source < 0) | (source >= sources)][0]
            raise ValueError(f"source must lie in 0..{sources - 1}, got {bad}")
    if draft.confidence is not None:
        confidence = _copied("confidence", draft.confidence, FLOAT32, n)
        if largest(confidence.view(UINT32)) > ONE_BITS:  # also true for NaN and negative numbers
            fits = (confidence >= 0) & (confidence <= 1)
            if not fits.all():  # -0.0 fits
                raise ValueError(f"confidence must lie in 0..1, got {confidence[~fits][0]}")
    if draft.proposal is not None:
        proposal = _checked_proposal(tokens, parents, draft.proposal, vocab)
    return Draft(tokens, parents, confidence, proposal, source)


def valid_prefix(draft: object, limit: int, vocab: int, *, tree: bool, sources: int) -> Draft:
    """The part that can be verified of a draft that failed ``check_draft`` with these arguments.

    Only stochastic drafts have one: their longest valid prefix. Whether a node is invalid may
    depend on the tokens sampled before it. If those were dropped with it, sampled tokens would
    decide whether they are verified, which would bias the output. Otherwise it is empty.
    """
    sound, low, high = EMPTY_DRAFT, 0, limit
    if type(draft) is not Draft or draft.proposal is None:
        return sound
    while low < high:
        middle = (low + high + 1) // 2
        try:
            sound = check_draft(draft.first(middle), middle, vocab, tree=tree, sources=sources)
            low = middle
        except Exception:  # fields that are not arrays may raise anything
            high = middle - 1
    return sound


def _copied(name: str, array: object, dtype: np.dtype[Any], size: int) -> NDArray[Any]:
    """A copy of ``array``, if it is a plain one-dimensional array of this dtype and size."""
    if type(array) is not np.ndarray or array.dtype != dtype or array.ndim != 1:
        got = f"{array.dtype} {array.shape}" if type(array) is np.ndarray else type(array)
        raise TypeError(f"draft {name} must be an {dtype} array of one dimension, got {got}")
    if len(array) != size:
        raise ValueError(f"{name} must have {size} entries, got {len(array)}")
    return array.copy()


def _check_ids(name: str, ids: Int32, vocab: int) -> None:
    if largest(ids.view(UINT32)) >= vocab:  # as unsigned ints, negative ones are above 2^31
        bad = ids[(ids < 0) | (ids >= vocab)][0]
        raise ValueError(f"{name} must lie in 0..{vocab - 1}, got {bad}")


def _check_tree(tokens: Int32, parents: Int32) -> None:
    wrong = (parents < -1) | (parents >= np.arange(len(parents)))
    if wrong.any():
        node = int(wrong.argmax())
        raise ValueError(f"parents[{node}] must lie in -1..{node - 1}, got {parents[node]}")
    edges = np.sort((parents.astype(np.int64) << 32) | tokens)
    if (edges[1:] == edges[:-1]).any():
        token = int(edges[:-1][edges[1:] == edges[:-1]][0]) & 0x7FFFFFFF
        raise ValueError(f"children of one node must have different tokens, got {token} twice")


def _checked_proposal(
    tokens: Int32, parents: Int32 | None, proposal: object, vocab: int
) -> Proposal:
    """A copy of a proposal that Algorithm 1 can use, normalized for each node."""
    if type(proposal) is not Proposal:
        raise TypeError(f"proposal must be a Proposal, got {type(proposal).__name__}")
    n, m = len(tokens), len(proposal.tokens)
    starts = _copied("proposal.starts", proposal.starts, INT32, n + 1)
    if starts[0] != 0 or starts[-1] != m or not (starts[1:] > starts[:-1]).all():
        raise ValueError(f"proposal.starts must rise from 0 to {m}: each node has a distribution")
    if m > n * vocab:
        raise ValueError(f"proposal.tokens must hold at most {vocab} ids for each node, got {m}")
    ids = _copied("proposal.tokens", proposal.tokens, INT32, m)
    probs = _copied("proposal.probs", proposal.probs, FLOAT32, m)
    _check_ids("proposal.tokens", ids, vocab)
    sizes = starts[1:] - starts[:-1]
    node = np.repeat(np.arange(n), sizes)  # the node of each entry
    entries = (node << 32) | ids
    if not (entries[1:] > entries[:-1]).all():  # ascending ids are distinct
        entries.sort()
        twice = entries[1:] == entries[:-1]
        if twice.any():
            bad = int(entries[1:][twice][0])
            what = f"node {bad >> 32} has {bad & 0x7FFFFFFF} twice"
            raise ValueError(f"proposal.tokens of a node must differ, {what}")
    sums = np.add.reduceat(probs, starts[:-1], dtype=np.float64)
    allowed = np.minimum(sizes * SUM_ERROR_PER_ENTRY, MAX_SUM_ERROR)
    wrong = ~(np.abs(sums - 1) <= allowed)  # also true for NaN
    if wrong.any() or not (probs > 0).all():
        bad = sums[wrong.argmax()]
        raise ValueError(f"proposal.probs of a node must be > 0 and sum to 1, got sum {bad:.7g}")
    holds = np.logical_or.reduceat(ids == tokens[node], starts[:-1])
    if not holds.all():
        bad = int(holds.argmin())
        raise ValueError(f"proposal of node {bad} must hold its token {tokens[bad]}")
    if parents is not None:
        _check_siblings(tokens, parents, Proposal(starts, ids, probs))
    return Proposal(starts, ids, (probs / sums[node]).astype(np.float32))


def _check_siblings(tokens: Int32, parents: Int32, proposal: Proposal) -> None:
    """Check that siblings share a distribution, except for ones without the siblings before."""
    _, where, which = np.unique(parents, return_index=True, return_inverse=True)
    first = where[which]
    starts, ids, probs = proposal.starts, proposal.tokens, proposal.probs
    sizes = starts[1:] - starts[:-1]
    if (sizes == sizes[first]).all():
        place = np.arange(len(ids)) + np.repeat(starts[first] - starts[:-1], sizes)
        if ((ids == ids[place]) & (probs == probs[place])).all():
            return
    for node in range(len(parents)):
        own, other = proposal.of(node), proposal.of(int(first[node]))
        before = tokens[:node][parents[:node] == parents[node]]
        alike = np.array_equal(own[0], other[0]) and np.array_equal(own[1], other[1])
        if not alike and np.isin(before, own[0]).any():
            what = f"node {node} states another than its first sibling, node {first[node]},"
            raise ValueError(
                f"proposal of siblings must be one distribution, or one without the siblings"
                f" before: {what} with one of their tokens"
            )
