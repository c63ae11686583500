"""The texts of an engine's rows: which of the known ones a row continues, and how many are kept."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ngramspec.draft import EMPTY_DRAFT, Draft, Int32
from ngramspec.drafters.base import DraftSession

WHOLE = 4096  # texts up to here are compared whole at every step, longer ones in three parts:
FIRST, LAST, PART = 1024, 2048, 1024  # their beginning, their end, and a part that moves on
MASK = (1 << 64) - 1


class Row(NamedTuple):
    """One row of an engine's batch, as it stands after a step.

    Attributes:
        key: the engine's id of the request, or None where it does not tell.
        tokens: int32, a view of the row's committed tokens; what lies behind ``length`` is ignored.
        length: how many tokens are committed, the new ones included.
        new: the tokens that the step committed; none for a row that is still in its prefill.
    """

    key: Hashable | None
    tokens: Int32
    length: int
    new: Sequence[int]


class PrefixHash:
    """sum of (token + 1) * r**position modulo 2**64, for a secret odd r.

    Appending costs nothing but the new tokens. Equal hashes are no proof: texts are compared.
    """

    def __init__(self) -> None:
        self._ratio = secrets.randbits(64) | 1
        self._powers: NDArray[np.uint64] = np.ones(1, np.uint64)

    def __call__(self, tokens: Int32, begin: int = 0) -> int:
        """The hash of ``tokens``, int32 (n,), if they stand from position ``begin`` on."""
        end = begin + len(tokens)
        while len(self._powers) < end:
            more = np.uint64(pow(self._ratio, len(self._powers), 1 << 64))
            self._powers = np.concatenate((self._powers, self._powers * more))
        if len(tokens) == 1:
            return (int(tokens[0]) + 1) * int(self._powers[begin]) & MASK
        terms = (tokens.astype(np.uint64) + np.uint64(1)) * self._powers[begin:end]
        return int(np.add.reduce(terms))


class RowText:
    """One request's text, and the session that drafts for it.

    Attributes:
        key: the engine's id, or None.
        count: committed tokens.
        hash: of them all; 0 for a text with an id.
        session: None while there is none: before it begins, and after a fault.
        draft: what was drafted in the last call, as it was returned.
        seen: number of the last call that had this row.
        faults: of the drafter in this text, not forgiven.
        sound: drafts without a fault since the last one.
        size: bytes, as counted last.
        live: whether it is known still.
    """

    __slots__ = (
        *("key", "count", "hash", "session", "draft", "seen", "faults", "sound", "size", "live"),
        *("_tokens", "_turn"),
    )

    def __init__(self, key: Hashable | None) -> None:
        self.key = key
        self.count = self.hash = self.seen = self.faults = self.sound = self.size = 0
        self.live = True
        self.session: DraftSession | None = None
        self.draft: Draft = EMPTY_DRAFT
        self._tokens: Int32 = np.empty(0, np.int32)
        self._turn = 0

    @property
    def tokens(self) -> Int32:
        """int32 (count,), a view."""
        return self._tokens[: self.count]

    def append(self, tokens: Int32) -> None:
        """Append tokens, int32 (n,)."""
        end = self.count + len(tokens)
        if end > len(self._tokens):
            grown = np.empty(end + max(64, end // 2), np.int32)
            grown[: self.count] = self.tokens
            self._tokens = grown
        self._tokens[self.count : end] = tokens
        self.count = end

    def begins(self, tokens: Int32, length: int) -> bool:
        """Whether tokens[:length] begins with this text.

        What is compared is bounded: all of a text of up to ``WHOLE`` tokens; of a longer one the
        beginning, the end and a part that moves on with every call, so that all of it was compared
        after count / ``PART`` calls.
        """
        n = self.count
        if n > length:
            return False
        mine = self._tokens
        if n <= WHOLE:
            return mine[:n].tobytes() == tokens[:n].tobytes()
        self._turn = (self._turn + PART) % n
        parts = (slice(n - LAST, n), slice(FIRST), slice(self._turn, min(self._turn + PART, n)))
        return all(mine[part].tobytes() == tokens[part].tobytes() for part in parts)

    def equals(self, tokens: Int32) -> bool:
        """Whether this is exactly the text ``tokens``, int32 (n,)."""
        return self.count == len(tokens) and self.tokens.tobytes() == tokens.tobytes()

    def measure(self) -> int:
        """Count the bytes of the text and of the session's structures anew."""
        own = None if self.session is None else self.session.sizeof()
        self.size = self._tokens.nbytes + (own or 0)
        return self.size


class RowTexts:
    """The known texts: found by id, by row or by hash; the least recently seen are dropped.

    With ids a text is its id's. Without, a row continues the text that the same row had in the
    last call, if it begins with it; else any text that equals what the row held before its new
    tokens: equal texts are interchangeable. No text is given to two rows in one call.

    Not for several threads at once.
    """

    def __init__(self) -> None:
        self._hash = PrefixHash()
        self._by_key: dict[Hashable, RowText] = {}
        self._by_hash: dict[tuple[int, int], list[RowText]] = {}
        self._rows: dict[int, RowText] = {}  # the texts of the last call, by row
        self._last: dict[int, RowText] = {}
        self._order: OrderedDict[int, RowText] = OrderedDict()  # least recently seen first
        self.call = 0
        self.bytes = 0
        self.moves = 0

    def __len__(self) -> int:
        return len(self._order)

    def begin_call(self) -> None:
        """Begin a call: rows are those of the call before from now on."""
        self.call += 1
        self._last, self._rows = self._rows, {}

    def find(self, place: int, row: Row) -> RowText | None:
        """The text that row ``place`` continues, or None if it is new or its text another one."""
        text = self._last.get(place) if row.key is None else self._by_key.get(row.key)
        if text is not None and self._free(text, row.key) and text.begins(row.tokens, row.length):
            return text
        if row.key is not None:
            return None
        before = row.tokens[: row.length - len(row.new)]
        key = (len(before), self._hash(before))
        for text in self._by_hash.get(key, ()):
            if self._free(text, None) and text.equals(before):
                self.moves += 1
                return text
        return None

    def of_key(self, key: Hashable) -> RowText | None:
        """The text of a request, or None."""
        return self._by_key.get(key)

    def _free(self, text: RowText, key: Hashable | None) -> bool:
        return text.live and text.seen != self.call and text.key == key

    def add(self, key: Hashable | None) -> RowText:
        """A new text, empty as yet."""
        text = RowText(key)
        if key is not None:
            self._by_key[key] = text
        self._order[id(text)] = text
        return text

    def take(self, place: int, text: RowText, tokens: Int32) -> None:
        """Let row ``place`` have the text, and append what was committed, int32 (n,)."""
        if text.key is None:
            self._unlist(text)
            text.hash = (text.hash + self._hash(tokens, text.count)) & MASK
            text.append(tokens)
            self._by_hash.setdefault((text.count, text.hash), []).append(text)
        else:
            text.append(tokens)
        text.seen = self.call
        self._rows[place] = text
        self._order.move_to_end(id(text))

    def keep_row(self, place: int) -> None:
        """Let row ``place`` have the text it had, though nothing was committed."""
        text = self._last.get(place)
        if text is not None:
            self._rows.setdefault(place, text)

    def _unlist(self, text: RowText) -> None:
        key = (text.count, text.hash)
        alike = self._by_hash.get(key)
        if alike is not None:
            alike[:] = [each for each in alike if each is not text]
            if not alike:
                del self._by_hash[key]

    def measure(self, text: RowText) -> None:
        """Count a text's bytes anew."""
        if text.live:
            self.bytes += -text.size + text.measure()

    def oldest(self) -> RowText | None:
        """The least recently seen text, unless that is of this call."""
        text = next(iter(self._order.values()), None)
        return None if text is None or text.seen == self.call else text

    def drop(self, text: RowText) -> None:
        """Forget a text. Its session is the caller's to close."""
        if not text.live:
            return
        text.live = False
        del self._order[id(text)]
        self.bytes -= text.size
        if text.key is None:
            self._unlist(text)
        elif self._by_key.get(text.key) is text:
            del self._by_key[text.key]

    def all(self) -> list[RowText]:
        """Every known text, least recently seen first."""
        return list(self._order.values())
