"""Tokens as text: their bytes, an answer that grows, and the names of its tokens."""

from __future__ import annotations

import copy
import json
import re
from codecs import utf_8_decode
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")  # a vocabulary entry of byte fallback
REPLACEMENT_CHARACTER = "�"  # bytes that are not a character decode to it
MAX_INCOMPLETE = 3  # bytes of an incomplete character in UTF-8
CONTEXT_TOKENS = 8  # decoded together with new tokens, as decoding depends on neighbours
MAX_HELD_BYTES = 64  # held back of a run of byte tokens while it is valid

Reader = Callable[[str], bytes | None]


class TokenBytes:
    """Finds the bytes that each token adds to a text; joined, they are the text's bytes."""

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._piece, self._decode = tokenizer.convert_ids_to_tokens, tokenizer.decode
        self._read = None if backend is None else reader_of(backend.decoder)
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._added: dict[int, bytes] = {id: each.content.encode() for id, each in added.items()}
        self._special = hidden_ids(tokenizer, ()) if backend is not None else frozenset()

    def __call__(self, token: int, hidden: Container[int] | None = None) -> bytes | None:
        """The bytes of a token: empty if it is hidden (by default: special), None if unknown."""
        if self._read is None:
            return None
        if token in (self._special if hidden is None else hidden):
            return b""
        if token in self._added:
            return self._added[token]
        piece: str | None = self._piece(token)
        return None if piece is None else self._read(piece)

    def text(self, token: int) -> str | None:
        """The text of a token, with the spaces that decoding strips; None if it is not UTF-8."""
        found = self(token, ())
        try:
            return str(self._decode([token])) if found is None else found.decode()
        except UnicodeDecodeError:
            return None


def reader_of(decoder: Any) -> Reader | None:
    """A function from a vocabulary entry to its bytes, for a decoder of the tokenizers package."""
    state: dict[str, Any] = {"decoders": []}
    if decoder is not None:
        state = json.loads(decoder.__getstate__())
    steps: list[dict[str, Any]] = state.get("decoders", [state])
    kinds = [each["type"] for each in steps]
    if not kinds:
        return None
    if set(kinds) <= {"ByteLevel", "Fuse"} and "ByteLevel" in kinds:
        return byte_level_reader()
    signs: dict[str, str] = {}
    for at, (kind, step) in enumerate(zip(kinds, steps, strict=True)):
        if kind == "Replace" and "String" in step["pattern"]:
            signs[step["pattern"]["String"]] = step["content"]
        elif kind == "Metaspace":
            signs[step["replacement"]] = " "
        elif kind not in ("ByteFallback", "Fuse", "Strip"):
            return None
        elif kind == "Strip" and "Fuse" not in kinds[:at]:
            return None  # it strips each token
    fallback = "ByteFallback" in kinds

    def read(piece: str) -> bytes:
        if fallback and (byte := BYTE_PIECE.fullmatch(piece)):
            return bytes.fromhex(byte[1])
        for sign, text in signs.items():
            piece = piece.replace(sign, text)
        return piece.encode()

    return read


def byte_level_reader() -> Reader:
    """A function from a vocabulary entry whose letters each represent a byte to these bytes."""
    from ngramspec.hf_model.compat.extras import byte_letters

    byte_of = {letter: byte for byte, letter in byte_letters().items()}

    def read(piece: str) -> bytes | None:
        known = all(letter in byte_of for letter in piece)
        return bytes(byte_of[letter] for letter in piece) if known else None

    return read


def hidden_ids(tokenizer: Any, shown: Sequence[str]) -> frozenset[int]:
    """The ids of the special tokens, except those in ``shown``."""
    special = set(tokenizer.all_special_ids)
    special |= {id for id, each in tokenizer.added_tokens_decoder.items() if each.special}
    return frozenset(special.difference(tokenizer.convert_tokens_to_ids(list(shown))))


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The target's natural log-probabilities at one token, before any processor."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


class Detokenizer:
    """Decodes a growing sequence of tokens incrementally.

    The pieces join to the text that the tokenizer decodes from all tokens at once. Text is held
    back while later tokens may change it: an incomplete character, and with byte fallback a run of
    at most ``MAX_HELD_BYTES`` bytes, each of which becomes a replacement character if the run is
    not UTF-8. (If a longer run turns out not to be UTF-8, its first characters remain.) The time
    per token does not depend on the number of tokens before.
    """

    def __init__(
        self, tokenizer: Any, prompt: Sequence[int], *, hidden: Container[int] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden  # ids that are not shown; None: the special ones
        known = getattr(tokenizer, "convert_tokens_to_ids", lambda name: None)("<0x80>")
        fallback = known is not None and tokenizer.convert_ids_to_tokens(known) == "<0x80>"
        self._piece = tokenizer.convert_ids_to_tokens if fallback else None
        self._window: list[int] = []  # the last visible tokens before the run
        self._given = 0  # number of characters of the window's text that were returned
        # The run of byte tokens after the window: its tokens that are held back, the last ones that
        # were returned, and whether it is known not to be UTF-8.
        self._run: list[int] = []
        self._shown: list[int] = []
        self._wrong = False
        # Replacement characters at the prompt's end that may become a character of the answer.
        self._undecided = ""
        begin = max(len(prompt) - 2 * CONTEXT_TOKENS, 0)
        while 0 < begin < len(prompt) and 0x80 <= (self._byte(prompt[begin]) or 0) < 0xC0:
            begin += 1  # inside a character
        self.add(prompt[begin:])
        if self._run and not self._wrong:
            self._release(self._complete() or 0)
        held = len(self._run) or len(self._decode(self._window)) - self._given
        self._undecided = REPLACEMENT_CHARACTER * held

    def add(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """The text that the next tokens add, without undecided text unless ``last``."""
        hidden, text = self._hidden, ""
        if hidden is not None:
            tokens = [token for token in tokens if token not in hidden]
        for is_byte, group in groupby(tokens, key=lambda token: self._byte(token) is not None):
            run = list(group)
            text += "".join(map(self._add_byte, run)) if is_byte else self._add_text(run)
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

    def _byte(self, token: int) -> int | None:
        """The byte that a token of byte fallback represents, else None."""
        piece = None if self._piece is None else self._piece(token)
        found = None if piece is None else BYTE_PIECE.fullmatch(piece)
        return None if found is None else int(found[1], 16)

    def _bytes(self, tokens: Sequence[int]) -> bytes:
        return bytes(self._byte(token) or 0 for token in tokens)

    def _complete(self) -> int | None:
        """Number of bytes of the whole characters that are held back; None: not UTF-8."""
        try:
            return utf_8_decode(self._bytes(self._run), "strict", False)[1]
        except UnicodeDecodeError:
            return None

    def _add_byte(self, token: int) -> str:
        text = "" if self._run or self._shown else self._take(last=True)
        self._run.append(token)
        complete = None if self._wrong else self._complete()
        self._wrong = complete is None
        if complete is None:
            complete = len(self._run)
        elif not self._shown and len(self._run) <= MAX_HELD_BYTES:
            complete = 0
        return text + self._release(complete)

    def _add_text(self, tokens: list[int]) -> str:
        """Add tokens that are no bytes."""
        begun = (self._run or self._shown)[-1:]  # without it, a first space may be stripped
        unchanged = begun and self._decode(begun + tokens) == self._decode(begun)
        if unchanged and self._tokenizer.decode(tokens):
            return ""  # special tokens, which do not end a run
        text = self._end_run()
        self._window += tokens
        return text + self._take()

    def _end_run(self) -> str:
        if not self._run and not self._shown:
            return ""
        self._wrong = self._wrong or self._complete() != len(self._run)
        text = self._release(len(self._run))
        self._window += self._shown[-CONTEXT_TOKENS:]
        self._given = len(self._decode(self._window))
        self._shown, self._wrong = [], False
        return text

    def _release(self, count: int) -> str:
        """The text of the first tokens of the run that are held back."""
        if not count:
            return ""
        tokens, self._run = self._run[:count], self._run[count:]
        if self._wrong:
            text = REPLACEMENT_CHARACTER * count
        elif self._shown:
            text = self._bytes(tokens).decode()
        else:  # the tokenizer may strip the text's first space
            text = self._decode(self._window + tokens)[len(self._decode(self._window)) :]
        self._shown = tokens
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
        hides = self._hidden is None
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=hides) if tokens else ""
        return text


class StopText:
    """Cuts a growing text before the first stop string or insufficiently indented line."""

    def __init__(self, stops: Sequence[str], indent: int = 0) -> None:
        # By the stop string, where the end of the text begins that it begins with.
        self._begun = dict.fromkeys(stops, 0)
        self._outdented = re.compile(rf"\n[ \t]{{0,{indent - 1}}}[^ \t\n]") if indent else None
        self._text, self._shown = "", 0
        self.found: str | None = None

    def add(self, text: str, *, last: bool = False) -> str:
        """Add text, and return what becomes visible."""
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
        end = len(self._text) if last else self._decided()
        if places:
            _, end, self.found = min(places)
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
        return "\n" in self._text

    def _decided(self) -> int:
        """Number of characters before those that may belong to a stop."""
        end = min(self._begun.values(), default=len(self._text))
        line = self._text.rfind("\n")
        if self._outdented and line >= 0 and not self._text[line + 1 :].strip(" \t"):
            end = min(end, line)
        return end


class TokenNames:
    """Names the tokens of one answer in order."""

    def __init__(
        self,
        tokenizer: Any,
        bytes_of: TokenBytes,
        prompt: Sequence[int],
        hidden: Container[int] | None = None,
        *,
        echoed: bool = False,
        framing: int = 0,
    ) -> None:
        self._tokenizer, self._bytes_of, self._hidden = tokenizer, bytes_of, hidden
        self._answer = Detokenizer(tokenizer, prompt, hidden=hidden)
        self._prompt = Detokenizer(tokenizer, (), hidden=())
        self._left, self._framing = len(prompt) if echoed else 0, framing
        self._known: dict[int, str] = {}
        self.offset = 0  # number of characters of the named tokens' text

    def add(self, token: int, *, last: bool = False) -> str:
        """The name of the next token; ``last``: no other one follows."""
        if self._left:
            self._left -= 1
            shown, self._framing = self._framing <= 0, self._framing - 1
            text = self._prompt.add((token,) if shown else (), last=not self._left)
        else:
            text = self._answer.add((token,), last=last)
            if self._hidden is None:
                decode = self._tokenizer.decode
                hides = not decode([token], skip_special_tokens=True) and bool(decode([token]))
            else:
                hides = token in self._hidden
            shown = (bool(text) and not last) or not hides
        self.offset += len(text)
        return text if shown else text + self.alone(token)

    def of(self, found: TokenLogprobs, name: str) -> dict[str, float]:
        """The log-probabilities of one position by name; ``name`` is that of its token."""
        named: dict[str, float] = {}
        ranked: Iterable[tuple[int, float]] = found.top
        if all(token != found.token for token, _ in found.top):
            ranked = (*found.top, (found.token, found.logprob or 0.0))
        for token, value in ranked:
            own = name if token == found.token else self.alone(token)
            taken = own in named or (own == name and token != found.token)
            named[f"token_id:{token}" if taken else own] = value
        return named

    def alone(self, token: int) -> str:
        """A token's text, with its spaces; ``bytes:\\\\xe6`` (as OpenAI's) if it is not text."""
        if token not in self._known:
            text, data = self._bytes_of.text(token), self._bytes_of(token, ()) or b""
            named = "bytes:" + "".join(f"\\x{each:02x}" for each in data)
            self._known[token] = named if text is None else text
        return self._known[token]
