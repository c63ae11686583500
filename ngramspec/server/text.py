"""Tokens as text: their bytes, an answer that grows, and the names of its tokens."""

from __future__ import annotations

import copy
import re
from codecs import utf_8_decode
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")  # a vocabulary entry of byte fallback
REPLACEMENT_CHARACTER = "�"  # bytes that are not a character decode to it
MAX_INCOMPLETE = 3  # bytes of an incomplete character in UTF-8
CONTEXT_TOKENS = 8  # decoded together with new tokens, as decoding depends on neighbours
MAX_HELD_BYTES = 64  # held back of a run of byte tokens while it is valid
ANCHOR = "a"  # decoded before a token, because decoding strips the first space of a text


class TokenBytes:
    """Finds the bytes that each token adds to a text; joined, they are the text's bytes."""

    def __init__(self, tokenizer: Any) -> None:
        from ngramspec.hf_model.compat.resources import byte_letters

        self._tokenizer, self._fallback = tokenizer, fallback_bytes(tokenizer)
        self._anchor = list(tokenizer(ANCHOR, add_special_tokens=False)["input_ids"])
        self._begin = len(self._decode(self._anchor))
        self._known = cache(self._read)
        # The bytes that letters of vocabulary entries represent in a vocabulary of bytes.
        self._letters = {letter: byte for byte, letter in byte_letters().items()}

    def __call__(self, token: int) -> bytes:
        """The bytes of a token; of a special token, those of its name."""
        return self._known(token)

    def _read(self, token: int) -> bytes:
        byte = self._fallback(token)
        if byte is not None:
            return bytes([byte])
        text = self._decode([*self._anchor, token])[self._begin :]
        piece = str(self._tokenizer.convert_ids_to_tokens(token))
        if REPLACEMENT_CHARACTER in text and all(letter in self._letters for letter in piece):
            return bytes(self._letters[letter] for letter in piece)
        return text.encode()

    def text(self, token: int) -> str | None:
        """The text of a token, with its spaces; None if it is not UTF-8."""
        try:
            return self(token).decode()
        except UnicodeDecodeError:
            return None

    def name(self, token: int) -> str:
        """The text of a token, or ``bytes:\\xe6`` (as OpenAI's) if it is part of a character."""
        text = self.text(token)
        if text is not None:
            return text
        return "bytes:" + "".join(f"\\x{each:02x}" for each in self(token))

    def row(self, row: TokenLogprobs, hidden: Container[int]) -> dict[str, Any]:
        """The JSON of a token's log-probabilities, in which tokens in ``hidden`` have no bytes."""

        def named(token: int, logprob: float) -> dict[str, Any]:
            data = b"" if token in hidden else self(token)
            name = self.name(token)
            return {"id": token, "token": name, "bytes": list(data), "logprob": logprob}

        top = [named(token, logprob) for token, logprob in row.top]
        return {**named(row.token, row.logprob), "top_logprobs": top}

    def _decode(self, tokens: list[int]) -> str:
        decode = self._tokenizer.decode
        return str(decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def fallback_bytes(tokenizer: Any) -> Callable[[int], int | None]:
    """A function from a token of byte fallback to its byte, and from any other token to None."""
    known = tokenizer.convert_tokens_to_ids("<0x80>")
    if known is None or tokenizer.convert_ids_to_tokens(known) != "<0x80>":
        return lambda token: None

    def byte(token: int) -> int | None:
        found = BYTE_PIECE.fullmatch(tokenizer.convert_ids_to_tokens(token) or "")
        return None if found is None else int(found[1], 16)

    return byte


def hidden_ids(tokenizer: Any, shown: Sequence[str] = ()) -> frozenset[int]:
    """The ids of the special tokens, except those in ``shown``."""
    special = set(tokenizer.all_special_ids)
    special |= {id for id, each in tokenizer.added_tokens_decoder.items() if each.special}
    return frozenset(special.difference(tokenizer.convert_tokens_to_ids(list(shown))))


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The target's natural log-probabilities at one token, before any processor."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Detokenizer:
    """Decodes a growing sequence of tokens incrementally; tokens in ``hidden`` are not shown.

    The pieces join to the text that the tokenizer decodes from all tokens at once. Text is held
    back while later tokens may change it: an incomplete character, and with byte fallback a run of
    at most ``MAX_HELD_BYTES`` bytes, each of which becomes a replacement character if the run is
    not UTF-8. (If a longer run turns out not to be UTF-8, its first characters remain.) The time
    per token does not depend on the number of tokens before.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], hidden: Container[int] = ()) -> None:
        self._tokenizer, self._hidden = tokenizer, hidden
        self._byte = fallback_bytes(tokenizer)
        self._window: list[int] = []  # the last visible tokens before the run
        self._given = 0  # number of characters of the window's text that were returned
        self._run: list[int] = []  # byte tokens after the window that are held back
        self._wrong = False  # whether the bytes before them show that their run is not UTF-8
        # Replacement characters at the prompt's end that may become a character of the answer.
        self._undecided = ""
        begin = max(len(prompt) - 2 * CONTEXT_TOKENS, 0)
        while 0 < begin < len(prompt) and 0x80 <= (self._byte(prompt[begin]) or 0) < 0xC0:
            begin += 1  # inside a character
        self.add(prompt[begin:])
        if self._run:
            self._release(self._complete() or 0)
        held = len(self._run) or len(self._decode(self._window)) - self._given
        self._undecided = REPLACEMENT_CHARACTER * held

    def add(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """The text that the next tokens add, without undecided text unless ``last``."""
        shown, text = [each for each in tokens if each not in self._hidden], ""
        for is_byte, group in groupby(shown, key=lambda token: self._byte(token) is not None):
            if is_byte:
                text += "".join(map(self._add_byte, group))
            else:
                text += self._end_run()
                self._window += group
                text += self._take()
        if last:
            text += self._end_run() + self._take(last=True)
        if text:
            text, self._undecided = text.removeprefix(self._undecided), ""
        return text

    def peek(self, tokens: Sequence[int]) -> str:
        """The text that these tokens would add if they were the last ones."""
        return self._copy().add(tokens, last=True).removeprefix(self._copy().add((), last=True))

    @property
    def held(self) -> str:
        """The whole characters that are held back; "" if an incomplete one follows."""
        whole = self._run and self._complete() == len(self._run)
        return self._copy().add((), last=True) if whole else ""

    def _copy(self) -> Detokenizer:
        made = copy.copy(self)
        made._window, made._run = list(self._window), list(self._run)
        return made

    def _bytes(self, tokens: Sequence[int]) -> bytes:
        return bytes(self._byte(token) or 0 for token in tokens)

    def _complete(self) -> int | None:
        """Number of bytes of the whole characters that are held back; None: not UTF-8."""
        try:
            return utf_8_decode(self._bytes(self._run), "strict", False)[1]
        except UnicodeDecodeError:
            return None

    def _add_byte(self, token: int) -> str:
        text = self._take(last=True)
        self._run.append(token)
        complete = self._complete()
        self._wrong = self._wrong or complete is None
        if complete is None or self._wrong:
            return text + self._release(len(self._run))
        return text + (self._release(complete) if len(self._run) > MAX_HELD_BYTES else "")

    def _end_run(self) -> str:
        self._wrong = self._wrong or self._complete() != len(self._run)
        text = self._release(len(self._run)) if self._run else ""
        self._wrong = False
        return text

    def _release(self, count: int) -> str:
        """The text of the first tokens that are held back, which join the window."""
        tokens, self._run = self._run[:count], self._run[count:]
        if self._wrong:
            text = REPLACEMENT_CHARACTER * count
        elif self._given:
            text = self._bytes(tokens).decode()
        else:  # the tokenizer may strip the text's first space
            text = self._decode(self._window + tokens)
        self._window += tokens
        self._given = len(self._decode(self._window))
        return text

    def _take(self, *, last: bool = False) -> str:
        """The window's text that was not returned yet."""
        text = self._decode(self._window)
        end = len(text)
        if not last:
            end -= min(end - len(text.rstrip(REPLACEMENT_CHARACTER)), MAX_INCOMPLETE)
        shown, self._given = text[self._given : end], max(self._given, end)
        if len(self._window) > 2 * CONTEXT_TOKENS:
            kept = self._window[-CONTEXT_TOKENS:]
            length = len(self._decode(kept))
            # The tokenizer may decode the first token that has text differently.
            if length or len(self._window) >= MAX_HELD_BYTES:
                self._given = max(length - len(text) + self._given, 0)
                self._window = kept
        return shown

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False))


def begun(text: str, tag: str) -> int:
    """Number of characters at the end of a text that may begin a tag."""
    sizes = range(min(len(tag) - 1, len(text)), 0, -1)
    return next((size for size in sizes if tag.startswith(text[-size:])), 0)


class StopText:
    """Cuts a growing text before the first stop string or insufficiently indented line."""

    def __init__(self, stops: Sequence[str], indent: int = 0) -> None:
        self._stops = stops
        self._outdented = re.compile(rf"\n[ \t]{{0,{indent - 1}}}[^ \t\n]") if indent else None
        self._held = ""  # text that may belong to a stop
        self.has_line = False  # whether the text has a line end
        self.found: str | None = None  # the stop string, "" for a line; None: the text goes on

    def add(self, text: str, *, last: bool = False) -> str:
        """Add text, and return what becomes visible."""
        if self.found is not None:
            return ""
        self._held += text
        self.has_line = self.has_line or "\n" in text
        # End, start and string of each stop: the first to end wins.
        found = ((self._held.find(stop), stop) for stop in self._stops)
        places = [(at + len(stop), at, stop) for at, stop in found if at >= 0]
        if self._outdented and (line := self._outdented.search(self._held)):
            places.append((line.start(), line.start(), ""))
        end = len(self._held) if last else self._decided()
        if places:
            _, end, self.found = min(places)
        shown, self._held = self._held[:end], self._held[end:]
        return shown

    def ends_in(self, text: str) -> bool:
        """Whether the text would be cut if ``text`` were added."""
        tried = copy.copy(self)
        tried.add(text)
        return tried.found is not None

    def _decided(self) -> int:
        """Number of characters before those that may belong to a stop."""
        held = self._held
        end = len(held) - max((begun(held, stop) for stop in self._stops), default=0)
        line = held.rfind("\n")
        if self._outdented and line >= 0 and not held[line + 1 :].strip(" \t"):
            end = min(end, line)
        return end
