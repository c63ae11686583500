"""The texts of an engine's rows, and the search for the known text that a row continues."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ngramspec._native.rows import TokenText, text_hash
from ngramspec.draft import EMPTY_DRAFT, Draft, Int32
from ngramspec.drafters.call_stores import RowStores
from ngramspec.drafters.guarded import GuardedSession


class Row(NamedTuple):
    """One row of an engine's batch after a step.

    Attributes:
        key: the engine's id of the request, or None if it does not provide one.
        tokens: int32, contiguous, the row's committed tokens. Those after ``length`` are ignored.
        length: number of committed tokens, including the new ones.
        new: tokens that the step committed; empty for a row in its prefill.
    """

    key: Hashable | None
    tokens: Int32
    length: int
    new: Sequence[int]


@dataclass(slots=True, eq=False)
class RowText:
    """One request's committed text, and the session that drafts for it."""

    key: Hashable | None  # the engine's id
    guarded: GuardedSession
    text: TokenText = field(default_factory=TokenText)
    counted: bool = False  # whether its session is counted as open
    draft: Draft = EMPTY_DRAFT  # returned in the last call
    seen: int = 0  # number of the last call that had this row
    size: int = 0  # bytes at the last count
    live: bool = True  # whether it is still known
    stored: RowStores | None = None  # None: there are no shared stores
    listed: tuple[int, int] | None = None  # (count, hash) under which ``RowTexts`` lists it
    steps: int = 0  # engine steps that committed tokens of it
    emitted: int = 0  # tokens committed in them


class RowTexts:
    """The known texts, found by id, by row or by hash. Not thread-safe.

    A row with an id continues the text of that id. A row without an id continues the text that the
    same row had in the last call, if its tokens begin with that text. Otherwise it continues any
    text equal to its tokens before the new ones, since equal texts are interchangeable. No text is
    used for two rows in one call.
    """

    def __init__(self) -> None:
        self._by_key: dict[Hashable, RowText] = {}
        self._by_hash: dict[tuple[int, int], list[RowText]] = {}  # except those in _grown
        self._grown: set[RowText] = set()  # texts that have grown since they were listed
        self._rows: dict[int, RowText] = {}  # the texts of the last call, by row
        self._last: dict[int, RowText] = {}
        self._order: OrderedDict[int, RowText] = OrderedDict()  # least recently seen first
        self.call = 0
        self.bytes = 0
        self.moves = 0

    def __len__(self) -> int:
        return len(self._order)

    def begin_call(self) -> None:
        """Start a call: the current rows become those of the last call."""
        self.call += 1
        self._last, self._rows = self._rows, {}

    def find(self, place: int, row: Row) -> RowText | None:
        """The known text that row ``place`` continues, or None."""
        key, tokens, length, new = row
        text = self._last.get(place) if key is None else self._by_key.get(key)
        if (
            text is not None
            and (text.live and text.seen != self.call and text.key == key)
            and text.text.begins(tokens, length)
        ):
            return text
        if key is not None:
            return None
        before = length - len(new)
        self._list_grown()
        for text in self._by_hash.get((before, text_hash(tokens, before)), ()):
            if text.live and text.seen != self.call and text.text.equals(tokens, before):
                self.moves += 1
                return text
        return None

    def of_key(self, key: Hashable) -> RowText | None:
        """The text of a request, or None."""
        return self._by_key.get(key)

    def add(self, key: Hashable | None, guarded: GuardedSession) -> RowText:
        """Add and return an empty text."""
        text = RowText(key, guarded)
        if key is not None:
            self._by_key[key] = text
        self._order[id(text)] = text
        return text

    def take(self, place: int, text: RowText, row: Row, vocab: int) -> Int32:
        """Assign the text to row ``place``, and append the committed tokens.

        Return a copy of the new tokens that are ids of the vocabulary, int32 (n,).
        """
        new = text.text.append(row.tokens, row.length, vocab)
        if text.key is None:
            self._grown.add(text)
        text.seen = self.call
        self._rows[place] = text
        self._order.move_to_end(id(text))
        return new

    def keep_row(self, place: int) -> None:
        """Keep the text of row ``place``, for which nothing was committed."""
        text = self._last.get(place)
        if text is not None:
            self._rows.setdefault(place, text)

    def gone(self) -> list[RowText]:
        """The texts that had rows in the last call and have none now."""
        here = set(self._rows.values())
        return [text for text in self._last.values() if text.live and text not in here]

    def _list_grown(self) -> None:
        """List texts that grew under their new hashes. Deferred until a look-up by hash."""
        for text in self._grown:
            self._unlist(text)
            text.listed = (text.text.count, text.text.hash)
            self._by_hash.setdefault(text.listed, []).append(text)
        self._grown.clear()

    def _unlist(self, text: RowText) -> None:
        if text.listed is None:
            return
        alike = self._by_hash[text.listed]
        alike.remove(text)
        if not alike:
            del self._by_hash[text.listed]
        text.listed = None

    def measure(self, text: RowText) -> None:
        """Count the bytes of a text and of its session's structures again."""
        if text.live:
            session = text.guarded.session
            own = None if session is None else session.sizeof()
            self.bytes -= text.size
            text.size = text.text.sizeof() + (own or 0)
            self.bytes += text.size

    def oldest(self) -> RowText | None:
        """The least recently seen text, or None if all were seen in this call."""
        text = next(iter(self._order.values()), None)
        return None if text is None or text.seen == self.call else text

    def drop(self, text: RowText) -> None:
        """Forget a text. The caller must close its session."""
        if not text.live:
            return
        text.live = False
        del self._order[id(text)]
        self.bytes -= text.size
        if text.key is None:
            self._grown.discard(text)
            self._unlist(text)
        elif self._by_key.get(text.key) is text:
            del self._by_key[text.key]

    def all(self) -> list[RowText]:
        """Every known text, least recently seen first."""
        return list(self._order.values())
