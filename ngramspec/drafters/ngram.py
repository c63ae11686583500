"""N-gram drafting: the most frequent continuation of the longest known context, chained."""

from __future__ import annotations

from ngramspec._native.ngram import NGramTable
from ngramspec.draft import NO_TOKENS, Draft, Drafter, DraftSession, Float32, Int32
from ngramspec.errors import check_int


class NGramSession(DraftSession):
    """One sequence's n-gram table."""

    def __init__(self, table: NGramTable, tokens: Int32) -> None:
        self.table = table
        table.extend(tokens)

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        return self.propose_after(NO_TOKENS, gamma)

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        return Draft(self.table.draft(gamma, drafted)[0])

    def extend(self, tokens: Int32) -> None:
        self.table.extend(tokens)

    def sizeof(self) -> int:
        return int(self.table.sizeof())


class NGramDrafter(Drafter):
    """Counts of orders 2..order with backoff (akunu's n-gram chapter; Leviathan et al., 3.6).

    Args:
        order: longest n-gram, 2..8; its context is one token shorter.
        window: count only the last so many committed tokens, >= order; None: all of them.
        mode: "backoff", which this class is. build_drafter takes "value" as well: the counts as a
            source of the ValueDrafter, which is its default where order and window allow.
    """

    tiers = ("ngram",)

    def __init__(self, order: int = 4, window: int | None = None, mode: str = "backoff") -> None:
        if mode != "backoff":
            what = "must be 'backoff' with this order, window or policy"
            raise ValueError(f"mode {what}, got {mode!r}")
        check_int("order", order, 2, 8)
        if window is not None:
            check_int("window", window, order)
        self.order = order
        self.window = window
        limits = f"order={order}," + (f"window={window}," if window else "")
        self.spec = f"ngram({limits}mode=backoff)"

    def start(self, tokens: Int32) -> DraftSession:
        return NGramSession(NGramTable(self.order, self.window), tokens)
