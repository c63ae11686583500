"""Twin of the unigram counts."""

from __future__ import annotations

from tests.twins.common import Tokens, Twin, committed_ids


class UnigramCounts(Twin):
    """How often each token occurred, and which one most."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}  # token -> count, last position
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def extend(self, tokens: Tokens) -> None:
        for token in committed_ids(tokens):
            self._seen[token] = self.count(token) + 1, self._n
            self._n += 1

    def best(self) -> tuple[int, int] | None:
        """(token, count) of the most frequent token, ties to the more recent; None when empty."""
        if not self._seen:
            return None
        token = max(self._seen, key=self._seen.__getitem__)
        return token, self.count(token)

    def count(self, token: int) -> int:
        return self._seen.get(token, (0, 0))[0]
