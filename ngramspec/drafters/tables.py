"""Tables of the sequence's own text: copies, n-grams with backoff, and the unigram fallback."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec._native import MOST_TOKENS, CopyIndex, NGramTable
from ngramspec.draft import EMPTY_DRAFT, NO_TOKENS, Draft, Float32, Int32, Nodes, Observed
from ngramspec.drafters.base import Drafter, DraftSession, LearningDrafter, verified_count
from ngramspec.drafters.priority import pack
from ngramspec.drafters.stochastic import SamplingSession, check_temperature
from ngramspec.errors import check_bool, check_int

# Continuations of a context, the most frequent ones: they bound the work for a node of a tree, and
# for a sampled token.
MAX_BRANCHES, MAX_CONTINUATIONS = 4, 64
MAX_TREE_COPIES = 4  # bounds a tree's work: occurrences it copies from, besides the best one


class TableSession(DraftSession):
    """Base of sessions with one sequence's native structure, ``table``."""

    table: Any

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        return self.propose_after(NO_TOKENS, gamma)

    def extend(self, tokens: Int32) -> None:
        self.table.extend(tokens)

    def sizeof(self) -> int | None:
        return int(self.table.sizeof())


class CopySession(TableSession):
    """Copies what followed the longest match."""

    def __init__(self, min_match: int, tokens: Int32) -> None:
        self.table, self.min_match = CopyIndex(), min_match
        self.extend(tokens)

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        best = self.propose_after(NO_TOKENS, gamma)
        if not tree:
            return best
        copies = self.table.copies(gamma, MAX_TREE_COPIES, self.min_match)
        return pack([best, *(Draft(tokens) for tokens in copies)], gamma)

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        return Draft(self.table.draft(gamma, drafted, self.min_match)[0])


class CopyDrafter(Drafter):
    """Copies from the context (Leviathan et al., 3.6; prompt lookup), at any match length.

    ``min_match`` is the shortest match to copy from, in tokens, 1..2**30 (no text is longer).
    """

    source_names = ("copy",)

    def __init__(self, min_match: int = 2) -> None:
        self.min_match = check_int("min_match", min_match, 1, MOST_TOKENS)
        self.spec = f"copy(min_match={min_match})"

    def start(self, tokens: Int32) -> DraftSession:
        return CopySession(self.min_match, tokens)


class NGramSession(TableSession):
    """Drafts the most frequent continuations of the longest known context (backoff)."""

    tail = NO_TOKENS  # the longest context: the last order - 1 tokens

    def __init__(self, table: NGramTable, tokens: Int32) -> None:
        self.table = table
        self.extend(tokens)

    def extend(self, tokens: Int32) -> None:
        super().extend(tokens)
        self.tail = np.concatenate((self.tail, tokens))[1 - self.table.order :]

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

        Each context leaves one count to the next shorter one (PPM's method A), so that a
        continuation seen once is not considered certain.
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


class SamplingNGramSession(SamplingSession, NGramSession):
    """Samples from the counts of the longest known context (backoff)."""

    def __init__(self, table: NGramTable, tokens: Int32, temperature: float | str) -> None:
        SamplingSession.__init__(self, temperature)
        NGramSession.__init__(self, table, tokens)

    def counts(self, drafted: Sequence[int]) -> tuple[Int32, NDArray[np.int64]]:
        history = np.append(self.tail, np.array(drafted, np.int32))[1 - self.table.order :]
        for start in range(len(history)):
            found = self.table.top_k(history[start:], MAX_CONTINUATIONS)
            if found:
                ids, counts = zip(*found, strict=True)
                return np.array(ids, np.int32), np.array(counts, np.int64)
        return NO_TOKENS, np.empty(0, np.int64)


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
        self.order = check_int("order", order, 2, 8)
        if window is not None:
            window = check_int("window", window, order, MOST_TOKENS)
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


PRIOR_ACCEPTED, PRIOR_VERIFIED = 1, 10  # Leviathan et al., Table 3: unigram alpha 0.03 to 0.13
# Not tuned: drafts per one that a closed gate lets through; verified tokens at which counts are
# halved, so that old ones fade.
PROBE_EVERY, HALVE_AT_VERIFIED = 32, 1024


class UnigramSession(TableSession):
    """Drafts the most frequent token, while the drafter is open, and tells it what was accepted."""

    def __init__(self, drafter: UnigramDrafter, tokens: Int32) -> None:
        self.drafter, self.table = drafter, NGramTable(1)
        self.extend(tokens)

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        best = self.table.top_k(NO_TOKENS, 1)
        if not best or gamma < 1 or not self.drafter.open():
            return EMPTY_DRAFT
        return Draft(np.array([best[0][0]], np.int32))

    def observe(
        self, draft: Draft, accepted: Nodes, verified: int | None = None, evidence: Observed = None
    ) -> None:
        self.drafter.learn(len(accepted), verified_count(draft, accepted, verified))


class SamplingUnigramSession(UnigramSession, SamplingSession):
    """Samples one token from all counts, while the drafter is open. O(distinct tokens) a draft."""

    def __init__(self, drafter: UnigramDrafter, tokens: Int32, temperature: float | str) -> None:
        SamplingSession.__init__(self, temperature)
        self._counts: Counter[int] = Counter()
        UnigramSession.__init__(self, drafter, tokens)

    def counts(self, drafted: Sequence[int]) -> tuple[Int32, NDArray[np.int64]]:
        ids = np.fromiter(self._counts.keys(), np.int32, len(self._counts))
        return ids, np.fromiter(self._counts.values(), np.int64, len(self._counts))

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        if gamma < 1 or not self.drafter.open():
            return EMPTY_DRAFT
        return SamplingSession.propose_after(self, drafted, 1)

    def extend(self, tokens: Int32) -> None:
        self._counts.update(tokens.tolist())

    def sizeof(self) -> None:
        return None


class UnigramDrafter(LearningDrafter):
    """Drafts one token, the most frequent of the sequence (Leviathan et al., 3.6 and Table 3).

    If the target accepts less than the share ``min_acceptance``, 0.0..1.0, it drafts rarely. The
    measured acceptance, two counts and no text, is shared by the drafter's sequences under a lock.
    ``sample`` and ``temperature`` are those of NGramDrafter.
    """

    source_names = ("unigram",)
    learned = ("_lock", "_accepted", "_verified", "_closed")

    def __init__(
        self, min_acceptance: float = 0.1, sample: bool = False, temperature: float | str = 1.0
    ) -> None:
        if not 0.0 <= min_acceptance <= 1.0:
            raise ValueError(f"min_acceptance must be in 0.0..1.0, got {min_acceptance}")
        self.min_acceptance = min_acceptance
        self.sample = check_bool("sample", sample)
        self.temperature = check_temperature(temperature)
        sampling = f",sample=True,temperature={temperature}" if sample else ""
        self.spec = f"unigram(min_acceptance={min_acceptance}{sampling})"
        self.forget()

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._accepted, self._verified, self._closed = PRIOR_ACCEPTED, PRIOR_VERIFIED, 0

    def open(self) -> bool:
        """Whether to draft now: acceptance is high enough, or a probe is due."""
        with self._lock:
            if self._accepted >= self.min_acceptance * self._verified:
                return True
            self._closed += 1
            return self._closed % PROBE_EVERY == 0

    def learn(self, accepted: int, verified: int) -> None:
        """Count verified draft tokens and how many of them were accepted."""
        with self._lock:
            self._accepted += accepted
            self._verified += verified
            if self._verified > HALVE_AT_VERIFIED:
                self._accepted, self._verified = self._accepted // 2, self._verified // 2

    def start(self, tokens: Int32) -> DraftSession:
        drafter = self.of_sequence()
        if self.sample:
            return SamplingUnigramSession(drafter, tokens, self.temperature)
        return UnigramSession(drafter, tokens)
