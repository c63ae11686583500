"""Twin of the n-gram table: counts of what followed each context in the window."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tests.twins.common import Context, Tokens, ints


class NGramTable:
    """Counts of what followed each context of 1..order-1 tokens in the window; see the native one.

    Every ``extend`` counts the whole window anew: O(window * order), where the native table needs
    O(order) per token. A draft costs O(window + gamma * continuations).

    Equal counts are ordered by their last occurrence, newest first, always. The native table
    guarantees that without a window. With one, a continuation that lost a count is placed exactly
    only among 64 newer equals (``TIES`` in ngram.pyx), so that with more equals their order
    may differ.

    Args:
        order: the longest n-gram, 1..8; contexts have one token less, of order 1 none.
        window: count only the last ``window`` tokens (>= order), or None for all.
    """

    def __init__(self, order: int = 4, window: int | None = None) -> None:
        self.order, self.shortest = order, min(order - 1, 1)
        self.window = window
        self._tokens: list[int] = []  # those in the window
        self._after: dict[Context, dict[int, tuple[int, int]]] = {}  # token -> count, last position

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Tokens) -> None:
        self._tokens += ints(tokens)
        if self.window is not None:
            del self._tokens[: -self.window]
        self._after = {}
        for position, token in enumerate(self._tokens):
            for n in range(self.shortest, min(self.order - 1, position) + 1):
                context = tuple(self._tokens[position - n : position])
                followers = self._after.setdefault(context, {})
                count, _ = followers.get(token, (0, 0))
                followers[token] = count + 1, position

    def draft(
        self, gamma: int, prefix: Tokens | None = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8]]:
        """Chain at most ``gamma`` most frequent continuations, each fed back as context.

        At each step the longest context ever seen predicts (backoff), with its best continuation.
        """
        text = self._tokens + ints(prefix)
        tokens: list[int] = []
        orders: list[int] = []
        for _ in range(gamma):
            lengths = range(min(self.order - 1, len(text)), self.shortest - 1, -1)
            suffixes = (tuple(text[len(text) - n :]) for n in lengths)
            context = next((suffix for suffix in suffixes if suffix in self._after), None)
            if context is None:
                break
            token = self._in_order(context)[0][0]
            text.append(token)
            tokens.append(token)
            orders.append(len(context) + 1)
        return np.array(tokens, np.int32), np.array(orders, np.int8)

    def top_k(self, context: Tokens, k: int) -> list[tuple[int, int]]:
        """The ``k`` most frequent continuations as (token, count), in count order, newer first."""
        return self._in_order(self._context(context))[:k]

    def total(self, context: Tokens) -> int:
        return sum(count for count, _ in self._after.get(self._context(context), {}).values())

    def _in_order(self, context: Context) -> list[tuple[int, int]]:
        followers = self._after.get(context, {})
        tokens = sorted(followers, key=followers.__getitem__, reverse=True)
        return [(token, followers[token][0]) for token in tokens]

    def _context(self, context: Tokens) -> Context:
        assert self.shortest <= len(context) < self.order
        return tuple(ints(context))
