"""Sampling drafts from distributions, and sessions that sample from counts.

The target accepts such a token by Algorithm 1 of Leviathan et al. 2023, which compares p and q.
Whether that is better than drafting the most frequent token, which is accepted with probability p,
depends on how flat p is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ngramspec.draft import EMPTY_DRAFT, NO_TOKENS, Draft, Float32, Int32, Proposal
from ngramspec.drafters.base import FLOAT32, INT32, DraftSession, check_ids, copied_array
from ngramspec.errors import check_real

REQUEST = "request"  # as temperature: use the request's own
# Children per node by depth; deeper nodes use the last. Not tuned.
CHILDREN_BY_DEPTH = (3, 2, 2, 1)


class SamplingSession(DraftSession):
    """A session that samples its tokens. Subclasses supply the counts to sample from.

    At a temperature T ("request": the request's own), q of a token is proportional to count **
    (1 / T). The same seed gives the same drafts; requests that are not sampled have a constant one.
    """

    def __init__(self, temperature: float | str) -> None:
        self._rng = np.random.default_rng(0)
        self._by_request = temperature == REQUEST
        self._temperature = 1.0 if isinstance(temperature, str) else temperature

    def begin_sampling(self, temperature: float, seed: Sequence[int]) -> None:
        self._rng = np.random.default_rng(seed)
        if self._by_request:
            self._temperature = temperature

    @abstractmethod
    def counts(self, drafted: Sequence[int]) -> tuple[Int32, NDArray[np.int64]]:
        """What followed earlier occurrences of the end of the committed tokens and ``drafted``."""

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        return self._tree(gamma) if tree else self.propose_after(NO_TOKENS, gamma)

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        before: list[int] = drafted.tolist()
        tokens: list[int] = []
        parts: list[tuple[Int32, Float32]] = []
        for _ in range(gamma):
            ids, probs = self._distribution(before)
            if not len(ids):
                break
            parts.append((ids, probs))
            tokens += sampled(ids, probs, self._rng)
            before.append(tokens[-1])
        if not tokens:
            return EMPTY_DRAFT
        return Draft(np.array(tokens, np.int32), proposal=proposal_of(parts))

    def _tree(self, gamma: int) -> Draft:
        """A tree of at most ``gamma`` nodes, breadth first; siblings without replacement.

        The number of a node's children depends on what is known before they are sampled.
        """
        paths: list[list[int]] = [[]]  # indexed by node + 1
        tokens: list[int] = []
        parents: list[int] = []
        parts: list[tuple[Int32, Float32]] = []
        node = -1
        while len(tokens) < gamma and node < len(tokens):
            path = paths[node + 1]
            ids, probs = self._distribution(path)
            wanted = CHILDREN_BY_DEPTH[min(len(path), len(CHILDREN_BY_DEPTH) - 1)]
            children = sampled(ids, probs, self._rng, min(wanted, len(ids), gamma - len(tokens)))
            tokens += children
            parents += [node] * len(children)
            parts += [(ids, probs)] * len(children)
            paths += [[*path, child] for child in children]
            node += 1
        if not tokens:
            return EMPTY_DRAFT
        above = np.array(parents, np.int32)
        return Draft(np.array(tokens, np.int32), above, proposal=proposal_of(parts))

    def _distribution(self, drafted: Sequence[int]) -> tuple[Int32, Float32]:
        """What may follow ``drafted``, with probabilities; empty where nothing is known."""
        ids, counts = self.counts(drafted)
        if not len(ids):
            return ids, np.empty(0, np.float32)
        return _normalized(ids, (counts / counts.max()) ** (1.0 / self._temperature))


def distribution(ids: Int32, log_probs: Float32, temperature: float) -> tuple[Int32, Float32]:
    """The distribution to sample a token from, at a temperature, over the given ids only."""
    return _normalized(ids, np.exp((log_probs - log_probs[0]).astype(np.float64) / temperature))


def _normalized(ids: Int32, weights: NDArray[np.float64]) -> tuple[Int32, Float32]:
    probs = (weights / weights.sum()).astype(np.float32)
    live = probs > 0  # at a low temperature, rare ids underflow to 0
    return ids[live], probs[live]


def sampled(ids: Int32, probs: Float32, rng: np.random.Generator, count: int = 1) -> list[int]:
    """``count`` tokens sampled from a distribution without replacement, in the order sampled."""
    left = probs.astype(np.float64)
    places: list[int] = []
    for _ in range(count):
        places.append(int(rng.choice(len(left), p=left / left.sum())))
        left[places[-1]] = 0.0
    return [int(ids[place]) for place in places]


def distributions(draft: Draft) -> list[tuple[Int32, Float32]]:
    """The distribution that each node was sampled from: (ids, probs), for ``proposal_of``."""
    nodes = range(len(draft))
    if draft.proposal is not None:
        return [draft.proposal.of(node) for node in nodes]
    return [(draft.tokens[node : node + 1], np.ones(1, np.float32)) for node in nodes]


def proposal_of(parts: Sequence[tuple[Int32, Float32]]) -> Proposal:
    """The proposal of nodes that were sampled from these distributions, (ids, probs) each."""
    starts = np.cumsum([0, *(len(ids) for ids, _ in parts)]).astype(np.int32)
    ids, probs = zip(*parts, strict=True)
    return Proposal(starts, np.concatenate(ids), np.concatenate(probs))


def check_temperature(temperature: float | str) -> float | str:
    """Return a valid ``temperature`` argument: a number > 0, or "request"."""
    if isinstance(temperature, str):
        if temperature != REQUEST:
            raise ValueError(f"temperature must be a number or 'request', got {temperature!r}")
        return temperature
    return check_real("temperature", temperature, 0.0, float("inf"))


SUM_ERROR_PER_ENTRY = 2.0**-23  # allowed error of a float32 sum per probability in it
MAX_SUM_ERROR = 1e-4  # limit of that error


def checked_proposal(
    tokens: Int32, parents: Int32 | None, proposal: object, vocab: int
) -> Proposal:
    """A copy of a proposal that Algorithm 1 can use, normalized for each node."""
    if type(proposal) is not Proposal:
        raise TypeError(f"proposal must be a Proposal, got {type(proposal).__name__}")
    n, m = len(tokens), len(proposal.tokens)
    starts = copied_array("proposal.starts", proposal.starts, INT32, n + 1)
    if starts[0] != 0 or starts[-1] != m or not (starts[1:] > starts[:-1]).all():
        raise ValueError(f"proposal.starts must rise from 0 to {m}: each node has a distribution")
    if m > n * vocab:
        raise ValueError(f"proposal.tokens must hold at most {vocab} ids for each node, got {m}")
    ids = copied_array("proposal.tokens", proposal.tokens, INT32, m)
    probs = copied_array("proposal.probs", proposal.probs, FLOAT32, m)
    check_ids("proposal.tokens", ids, vocab)
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
