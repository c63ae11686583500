"""N-gram drafting: a chain of the most frequent continuations of the longest known context."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from ngramspec._native.common import MOST_TOKENS
from ngramspec._native.ngram import NGramTable
from ngramspec.draft import NO_TOKENS, Draft, Float32, Int32
from ngramspec.drafters.base import Drafter, DraftSession
from ngramspec.drafters.stochastic import SamplingSession, check_temperature
from ngramspec.errors import check_bool, check_int

MAX_BRANCHES = 4  # continuations of one context in a tree; not tuned
MAX_CONTINUATIONS = 64  # most frequent continuations of a context that are sampled from; not tuned


class NGramSession(DraftSession):
    """One sequence's n-gram table."""

    def __init__(self, table: NGramTable, tokens: Int32) -> None:
        self.table = table
        self.tail = NO_TOKENS  # the longest context: the last order - 1 tokens
        self.extend(tokens)

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        if not tree:
            return self.propose_after(NO_TOKENS, gamma)
        drafted: list[tuple[int, int]] = []  # token, parent
        frontier = self._continuations(self.tail, -1, 1.0)
        while frontier and len(drafted) < gamma:
            reach, parent, _, token, context = heappop(frontier)
            drafted.append((token, parent))
            longer = np.append(context, np.int32(token))[1 - self.table.order :]
            for each in self._continuations(longer, len(drafted) - 1, -reach):
                heappush(frontier, each)
        tokens, parents = np.array(drafted, np.int32).reshape(-1, 2).T.copy()
        return Draft(tokens, parents)

    def _continuations(
        self, context: Int32, parent: int, reach: float
    ) -> list[tuple[float, int, int, int, Int32]]:
        """The most frequent continuations: (-reach, parent, place, token, context), a heap.

        Each context leaves one count to the next shorter one (PPM's method A). Shorter contexts
        thereby contribute, and a continuation seen once is not considered certain.
        """
        shares: dict[int, float] = {}
        for m in range(len(context), 0, -1):
            total = self.table.total(context[-m:])
            if total:
                for token, count in self.table.top_k(context[-m:], MAX_BRANCHES):
                    shares.setdefault(token, reach * count / (total + 1))
                reach /= total + 1
        best = sorted(shares.items(), key=lambda each: -each[1])[:MAX_BRANCHES]
        return [(-p, parent, i, token, context) for i, (token, p) in enumerate(best)]

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        return Draft(self.table.draft(gamma, drafted)[0])

    def extend(self, tokens: Int32) -> None:
        self.table.extend(tokens)
        self.tail = np.concatenate((self.tail, tokens))[1 - self.table.order :]

    def sizeof(self) -> int:
        return int(self.table.sizeof())


class SamplingNGramSession(SamplingSession):
    """Samples from the counts of the longest known context (backoff)."""

    def __init__(self, table: NGramTable, tokens: Int32, temperature: float | str) -> None:
        super().__init__(temperature)
        self.table = table
        self.tail = NO_TOKENS  # the longest context: the last order - 1 tokens
        self.extend(tokens)

    def counts(self, drafted: Sequence[int]) -> tuple[Int32, NDArray[np.int64]]:
        history = np.append(self.tail, np.array(drafted, np.int32))[1 - self.table.order :]
        for start in range(len(history)):
            found = self.table.top_k(history[start:], MAX_CONTINUATIONS)
            if found:
                ids, counts = zip(*found, strict=True)
                return np.array(ids, np.int32), np.array(counts, np.int64)
        return NO_TOKENS, np.empty(0, np.int64)

    def extend(self, tokens: Int32) -> None:
        self.table.extend(tokens)
        self.tail = np.concatenate((self.tail, tokens))[1 - self.table.order :]

    def sizeof(self) -> int:
        return int(self.table.sizeof())


class NGramDrafter(Drafter):
    """Counts of orders 2..order with backoff (akunu's n-gram chapter; Leviathan et al., 3.6).

    Args:
        order: longest n-gram, 2..8; its context is one token shorter.
        window: count only this many of the last committed tokens, order..2**30, with 4 bytes each
            allocated at the start; None: all tokens.
        mode: "backoff", which this class implements. build_drafter also accepts "value": the counts
            as a source of the ValueDrafter, which is its default where order and window allow.
        sample: sample each token from the counts of the longest known context, with the
            distribution in ``Draft.proposal``, instead of drafting the most frequent one. Drafts
            are chains.
        temperature: sampling temperature, > 0; "request": the request's own.
    """

    source_names = ("ngram",)

    def __init__(
        self,
        order: int = 4,
        window: int | None = None,
        mode: str = "backoff",
        sample: bool = False,
        temperature: float | str = 1.0,
    ) -> None:
        if mode != "backoff":
            what = "must be 'backoff' with this order, window or policy"
            raise ValueError(f"mode {what}, got {mode!r}")
        check_int("order", order, 2, 8)
        if window is not None:
            check_int("window", window, order, MOST_TOKENS)
        self.order = order
        self.window = window
        limits = f"order={order}," + (f"window={window}," if window else "")
        self.sample = check_bool("sample", sample)
        self.temperature = check_temperature(temperature)
        sampling = f",sample=True,temperature={temperature}" if sample else ""
        self.spec = f"ngram({limits}mode=backoff{sampling})"

    def start(self, tokens: Int32) -> DraftSession:
        table = NGramTable(self.order, self.window)
        if self.sample:
            return SamplingNGramSession(table, tokens, self.temperature)
        return NGramSession(table, tokens)
