"""The bytes of single tokens, which may be parts of a character."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container
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


def reader_of(decoder: Any) -> Reader | None:
    """A function from a vocabulary entry to its bytes, for a decoder of the tokenizers package.

    None: the decoder is unknown, or there is none.
    """
    if decoder is None:
        return None
    state: dict[str, Any] = json.loads(decoder.__getstate__())
    steps: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
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
        elif kind not in ("ByteFallback", "Fuse") and not (
            kind == "Strip" and "Fuse" in kinds[:at]
        ):
            return None  # unknown, or it strips the whole text
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
    from ngramspec.hf_model.compat.versions import byte_letters

    byte_of = {letter: byte for byte, letter in byte_letters().items()}

    def read(piece: str) -> bytes | None:
        known = all(letter in byte_of for letter in piece)
        return bytes(byte_of[letter] for letter in piece) if known else None

    return read
