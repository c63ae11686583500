"""From tokens to visible text: whole characters, cut at stop strings."""

from __future__ import annotations

import copy
import re
from codecs import utf_8_decode
from collections.abc import Callable, Container, Sequence
from typing import Any

from ngramspec.server.token_bytes import BYTE_PIECE

REPLACEMENT_CHARACTER = "�"  # bytes that are not a character decode to it
MAX_INCOMPLETE = 3  # bytes of an incomplete character in UTF-8
CONTEXT_TOKENS = 8  # decoded together with new tokens, as decoding depends on neighbours; not tuned
MAX_HELD_BYTES = 64  # held back of a run of byte tokens while it is valid; not tuned


class ByteRun:
    """The last tokens of a sequence, if each of them is one byte.

    The tokenizers package decodes such a run (byte fallback) as a whole: if a part of it is not
    UTF-8, each of its bytes becomes a replacement character.

    Attributes:
        count: number of bytes.
        pending: the incomplete character at the end.
        wrong: the first bytes that are not UTF-8, up to the one that shows it; b"" if none is.
        since: number of bytes from the beginning of ``wrong``.
        released: whether characters of the run were returned, and so cannot change.
    """

    def __init__(self) -> None:
        self.count = self.since = 0
        self.pending = self.wrong = b""
        self.released = False

    def add(self, byte: int) -> None:
        """Add a token's byte."""
        self.count += 1
        if self.wrong:
            self.since += 1
            return
        begun = self.pending + bytes((byte,))
        try:
            self.pending = begun[utf_8_decode(begun, "strict", False)[1] :]
        except UnicodeDecodeError:
            self.pending, self.wrong, self.since = b"", begun, len(begun)

    @property
    def held(self) -> int:
        """Number of bytes at the end whose text is undecided."""
        if self.wrong:
            return 0
        whole = not self.released and self.count <= MAX_HELD_BYTES
        return self.count if whole else len(self.pending)


class Detokenizer:
    """Decodes a growing sequence of tokens incrementally.

    The pieces join to the text that the tokenizer decodes from all tokens at once. Text is held
    back while later tokens may change it: an incomplete character, and with byte fallback at most
    ``MAX_HELD_BYTES`` bytes. (If a longer run of bytes turns out not to be UTF-8, its first
    characters remain.) The time per token does not depend on the number of tokens before.

    Of the preceding tokens, ``prompt``, only the last few matter. Tokens with ``hidden`` ids, by
    default the special ones, are not shown.
    """

    def __init__(
        self, tokenizer: Any, prompt: Sequence[int], *, hidden: Container[int] | None = None
    ) -> None:
        self._tokenizer, self._hidden = tokenizer, hidden
        self._piece = byte_pieces(tokenizer)
        self._window: list[int] = []  # the last visible tokens
        self._length = 0  # number of characters of its text, without tokens that are held back
        self._given = 0  # number of these that were returned
        self._run = ByteRun()  # at its end
        # Replacement characters at the prompt's end that may become a character of the answer.
        self._undecided = ""
        self._append(self._context(self._visible(prompt[-2 * CONTEXT_TOKENS :])))
        self._run.released = self._run.count > 0
        self._take(self._run.held)
        self._undecided = REPLACEMENT_CHARACTER * (self._length - self._given)

    def add(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """The text that the next tokens add, without undecided text unless ``last``."""
        text = self._append(self._visible(tokens))
        if last and self._run.released and self._run.pending:
            text += self._cut(len(self._run.pending))
        text += self._take(0 if last else self._run.held, last=last)
        if len(self._window) > 2 * CONTEXT_TOKENS:
            self._shorten()
        return text

    def peek(self, tokens: Sequence[int]) -> str:
        """The text that these tokens would add if they were the last ones."""
        return self._copy().add(tokens, last=True).removeprefix(self._copy().add((), last=True))

    @property
    def held(self) -> str:
        """The whole characters that are held back; "" if an incomplete one follows."""
        whole = bool(self._run.held) and not self._run.pending
        return self._copy().add((), last=True) if whole else ""

    def _copy(self) -> Detokenizer:
        made = copy.copy(self)
        made._window, made._run = list(self._window), copy.copy(self._run)
        return made

    def _visible(self, tokens: Sequence[int]) -> list[int]:
        hidden = self._hidden
        return list(tokens) if hidden is None else [each for each in tokens if each not in hidden]

    def _byte(self, token: int) -> int | None:
        """The byte that a token of byte fallback represents, else None."""
        piece = None if self._piece is None else self._piece(token)
        found = None if piece is None else BYTE_PIECE.fullmatch(piece)
        return None if found is None else int(found[1], 16)

    def _context(self, tokens: list[int]) -> list[int]:
        """The last few tokens, which do not begin inside a character of byte fallback."""
        kept = tokens[-CONTEXT_TOKENS:]
        while len(kept) < len(tokens) and kept and 0x80 <= (self._byte(kept[0]) or 0) < 0xC0:
            del kept[0]
        return kept

    def _append(self, tokens: Sequence[int]) -> str:
        """Append visible tokens, and return text that has to be taken before all are appended."""
        text = ""
        for token in tokens:
            byte, run = self._byte(token), self._run
            if byte is not None:
                pending, wrong = len(run.pending), run.wrong
                run.add(byte)
                if run.released and run.wrong and not wrong:
                    text += self._cut(pending)
            elif run.count:
                if not self._decode([token]) and self._tokenizer.decode([token]):
                    continue  # a special token, which does not end the run
                self._run = ByteRun()
            self._window.append(token)
        return text

    def _cut(self, count: int) -> str:
        """Take the text before the last ``count`` tokens, with which the window then begins.

        The characters before, which were returned, then do not change with these tokens.
        """
        text = self._take(count)
        self._window = self._window[len(self._window) - count :]
        self._length = self._given = 0
        return text

    def _take(self, held: int, *, last: bool = False) -> str:
        """The window's text that was not returned yet, without that of ``held`` tokens."""
        run, text = self._run, self._decode(self._window[: len(self._window) - held])
        self._length = end = len(text)
        if not last and not run.count:
            end -= min(end - len(text.rstrip(REPLACEMENT_CHARACTER)), MAX_INCOMPLETE)
        if self._undecided and (last or end > self._given):
            remains = text.startswith(self._undecided, self._given)
            self._given += len(self._undecided) if remains else 0
            self._undecided = ""
        run.released |= held < run.count and not run.wrong
        shown, self._given = text[self._given : end], max(self._given, end)
        return shown

    def _shorten(self) -> None:
        """Let the window begin later, with the same text still to be returned."""
        run, window = self._run, self._window
        if run.held and not run.released:
            return
        if run.wrong:
            kept = window[len(window) - run.since :][: len(run.wrong)]
        else:
            kept = self._context(window)
        length = len(self._decode(kept[: len(kept) - run.held]))
        if not length and len(window) < MAX_HELD_BYTES:
            return  # the tokenizer may decode the first token that has text differently
        run.since = len(run.wrong)
        self._given = max(length - self._length + self._given, 0)
        self._window, self._length = kept, length

    def _decode(self, tokens: list[int]) -> str:
        hides = self._hidden is None
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=hides) if tokens else ""
        return text


def byte_pieces(tokenizer: Any) -> Callable[[int], str | None] | None:
    """The vocabulary entry of a token, for a tokenizer that has entries for bytes; else None."""
    if not hasattr(tokenizer, "convert_tokens_to_ids"):
        return None
    piece: Callable[[int], str | None] = tokenizer.convert_ids_to_tokens
    known = tokenizer.convert_tokens_to_ids("<0x80>")
    return piece if known is not None and piece(known) == "<0x80>" else None


class StopText:
    """Cuts a growing text before the first stop string or insufficiently indented line.

    No stop string is empty. ``indent`` is the minimum leading whitespace of every non-blank line
    after the first, in characters. ``found`` is the stop string that was found, "" for a line, or
    None if nothing was found.
    """

    def __init__(self, stops: Sequence[str], indent: int = 0) -> None:
        # By the stop string, where the end of the text begins that it begins with.
        self._begun = dict.fromkeys(stops, 0)
        self._outdented = re.compile(rf"\n[ \t]{{0,{indent - 1}}}[^ \t\n]") if indent else None
        self._text, self._shown = "", 0
        self.found: str | None = None

    def add(self, text: str, *, last: bool = False) -> str:
        """Add text, and return what becomes visible.

        Text that may begin a stop string is held back until this is decided or ``last`` is true.
        """
        if self.found is not None:
            return ""
        self._text += text
        places = []  # end, start and string of each stop: the first to end wins
        for stop, begun in self._begun.items():
            at = self._text.find(stop, begun)
            if at >= 0:
                places.append((at + len(stop), at, stop))
                continue
            begun = max(begun, len(self._text) - len(stop) + 1)
            while not stop.startswith(self._text[begun:]):
                begun += 1
            self._begun[stop] = begun
        if self._outdented and (line := self._outdented.search(self._text, self._shown)):
            places.append((line.start(), line.start(), ""))
        if places:
            _, end, self.found = min(places)
        else:
            end = len(self._text) - (0 if last else self._held())
        shown = self._text[self._shown : end]
        self._shown = max(self._shown, end)
        return shown

    def ends_in(self, text: str) -> bool:
        """Whether the text would be cut if ``text`` were added."""
        if not self._begun and self._outdented is None:
            return False
        tried = copy.copy(self)
        tried._begun = self._begun.copy()
        tried.add(text)
        return tried.found is not None

    @property
    def has_line(self) -> bool:
        """Whether the text has a line end."""
        return "\n" in self._text

    def _held(self) -> int:
        """Number of characters at the end that may belong to a stop."""
        count = len(self._text) - min(self._begun.values(), default=len(self._text))
        line = self._text.rfind("\n")
        if self._outdented and line >= 0 and not self._text[line + 1 :].strip(" \t"):
            count = max(count, len(self._text) - line)
        return count
