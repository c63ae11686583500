"""The bytes of single tokens, which may be parts of a character."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping
from typing import Any

from ngramspec.server.tool_format import hidden_ids

BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")  # a vocabulary entry of byte fallback

Reader = Callable[[str], bytes | None]


class TokenBytes:
    """Finds the bytes that each token adds to a text; joined, they are the text's bytes.

    The bytes are known for byte-level tokenizers (such as GPT-2's), and for those whose vocabulary
    is text with a sign for the space, with or without byte fallback (such as SentencePiece's).
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._piece = tokenizer.convert_ids_to_tokens
        self._read = None if backend is None else reader_of(decoder_of(backend))
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


def decoder_of(backend: Any) -> list[dict[str, Any]]:
    """The steps of a decoder of the tokenizers package, in the format of its files."""
    if backend.decoder is None:
        return []
    state: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    return steps


def reader_of(steps: list[dict[str, Any]]) -> Reader | None:
    """A function from a vocabulary entry to its bytes; None for unknown decoders."""
    kinds = [each["type"] for each in steps]
    if kinds and set(kinds) <= {"ByteLevel", "Fuse"} and "ByteLevel" in kinds:
        return _of_letters
    signs: dict[str, str] = {}
    for at, (kind, step) in enumerate(zip(kinds, steps, strict=True)):
        if kind == "Replace" and "String" in step["pattern"]:
            signs[step["pattern"]["String"]] = step["content"]
        elif kind == "Metaspace":
            signs[step["replacement"]] = " "
        elif kind not in ("ByteFallback", "Fuse") and not (
            kind == "Strip" and "Fuse" in kinds[:at]
        ):
            return None  # unknown, or it strips the whole text
    if not kinds:
        return None
    fallback = "ByteFallback" in kinds

    def read(piece: str) -> bytes | None:
        return _of_piece(piece, signs, fallback)

    return read


def _of_piece(piece: str, signs: Mapping[str, str], fallback: bool) -> bytes:
    byte = BYTE_PIECE.fullmatch(piece) if fallback else None
    if byte is not None:
        return bytes.fromhex(byte[1])
    for sign, text in signs.items():
        piece = piece.replace(sign, text)
    return piece.encode()


def _of_letters(piece: str) -> bytes | None:
    """The bytes of an entry whose letters each represent a byte; None: some letter does not."""
    try:
        return bytes(BYTE_OF_LETTER[letter] for letter in piece)
    except KeyError:
        return None


def _letters() -> dict[str, int]:
    """The byte that each letter represents; printable bytes represent themselves."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0x100)} - {0xAD}
    others = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {
        chr(256 + at): byte for at, byte in enumerate(others)
    }


BYTE_OF_LETTER = _letters()
