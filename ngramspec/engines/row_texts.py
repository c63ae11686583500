"""The texts of an engine's rows: which of the known ones a row continues, and how many are kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ngramspec._native.row_text import TokenText, text_hash
from ngramspec.draft import EMPTY_DRAFT, Draft, Int32
from ngramspec.drafters.base import DraftSession
from ngramspec.drafters.stored import RowDrafter


class Row(NamedTuple):
    """One row of an engine's batch, as it stands after a step.

    Attributes:
        key: the engine's id of the request, or None where it does not tell.
        tokens: int32, contiguous, the row's committed tokens; what lies behind ``length`` is
            ignored.
        length: how many tokens are committed, the new ones included.
        new: the tokens that the step committed; none for a row that is still in its prefill.
    """

    key: Hashable | None
    tokens: Int32
    length: int
    new: Sequence[int]


class RowText:
    """One request's text, and the session that drafts for it.

    Attributes:
        key: the engine's id, or None.
        text: its committed tokens.
        session: None while there is none: before it begins, and after a fault.
        draft: what was drafted in the last call, as it was returned.
        seen: number of the last call that had this row.
        faults: of the drafter in this text, not forgiven.
        sound: drafts without a fault since the last one.
        size: bytes, as counted last.
        live: whether it is known still.
        stored: what it adds to shared stores, and the drafter that reads them; None: none.
        listed: (count, hash) by which ``RowTexts`` finds it; None: by none.
        steps: of the engine in which it got tokens.
        emitted: tokens that it got in them.
    """

    __slots__ = (
        *("key", "text", "session", "draft", "seen", "faults", "sound", "size", "live"),
        *("stored", "listed", "steps", "emitted"),
    )

    def __init__(self, key: Hashable | None) -> None:
        self.key = key
        self.text = TokenText()
        self.seen = self.faults = self.sound = self.size = self.steps = self.emitted = 0
        self.live = True
        self.session: DraftSession | None = None
        self.draft: Draft = EMPTY_DRAFT
        self.stored: RowDrafter | None = None
        self.listed: tuple[int, int] | None = None

    @property
    def count(self) -> int:
        """Committed tokens."""
        return self.text.count

    def measure(self) -> int:
        """Count the bytes of the text and of the session's structures anew."""
        own = None if self.session is None else self.session.sizeof()
        self.size = self.text.sizeof() + (own or 0)
        return self.size


class RowTexts:
    """The known texts: found by id, by row or by hash; the least recently seen are dropped.

    With ids a text is its id's. Without, a row continues the text that the same row had in the
    last call, if it begins with it; else any text that equals what the row held before its new
    tokens: equal texts are interchangeable. No text is given to two rows in one call.

    Not for several threads at once.
    """

    def __init__(self) -> None:
        self._by_key: dict[Hashable, RowText] = {}
        self._by_hash: dict[tuple[int, int], list[RowText]] = {}  # but for those that grew
        self._grown: set[RowText] = set()  # since they were listed there
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

    def add(self, key: Hashable | None) -> RowText:
        """A new text, empty as yet."""
        text = RowText(key)
        if key is not None:
            self._by_key[key] = text
        self._order[id(text)] = text
        return text

    def take(self, place: int, text: RowText, row: Row, vocab: int) -> Int32:
        """Let row ``place`` have the text, and append what was committed.

        Returns:
            A copy of the new tokens that are ids of the vocabulary, int32 (n,).
        """
        new = text.text.append(row.tokens, row.length, vocab)
        if text.key is None:
            self._grown.add(text)
        text.seen = self.call
        self._rows[place] = text
        self._order.move_to_end(id(text))
        return new

    def keep_row(self, place: int) -> None:
        """Let row ``place`` have the text it had, though nothing was committed."""
        text = self._last.get(place)
        if text is not None:
            self._rows.setdefault(place, text)

    def gone(self) -> list[RowText]:
        """The texts that had rows in the last call and have none now."""
        here = set(self._rows.values())
        return [text for text in self._last.values() if text.live and text not in here]

    def _list_grown(self) -> None:
        """List the texts that grew by their hashes; done only when one is looked for."""
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
            self._grown.discard(text)
            self._unlist(text)
        elif self._by_key.get(text.key) is text:
            del self._by_key[text.key]

    def all(self) -> list[RowText]:
        """Every known text, least recently seen first."""
        return list(self._order.values())
