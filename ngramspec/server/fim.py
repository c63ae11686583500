"""Fill-in-the-middle prompts with the special tokens of a model's family.

Each family was trained with one order of prefix, suffix and middle, and some with a format for
several files of a repository. A family is recognized by the special tokens of the tokenizer.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ngramspec.draft import Int32
from ngramspec.server.encoding import leading_tokens
from ngramspec.server.fim_families import FAMILIES, Family
from ngramspec.server.openai_types import ExtraFile

MAX_CHARACTERS_PER_TOKEN = 16  # assumed upper bound of a text's average; not tuned
ANCHOR = "☺"  # encoded as separate tokens, so that text can be encoded as if it followed text


class FillInTheMiddle:
    """Makes prompts in one family's format; ``encode`` reads names of special tokens as text."""

    def __init__(self, family: Family, tokenizer: Any, encode: Callable[[str], list[int]]) -> None:
        self.family = family
        self.encode = encode
        vocabulary = tokenizer.get_vocab()
        self._ids: dict[str, str | list[int]] = {name: [vocabulary[name]] for name in family.tokens}
        self._pieces = re.compile(rf"({'|'.join(map(re.escape, family.tokens))}|\{{\w+\}})")
        known = (each for each in (*family.ends, *family.tokens) if each in vocabulary)
        self.ends = tuple(vocabulary[each] for each in known)
        self._lead = leading_tokens(tokenizer)

    def prompt(
        self,
        prefix: str,
        suffix: str,
        *,
        line: str = "",
        files: Sequence[ExtraFile] = (),
        name: str = "",
        room: int = sys.maxsize,
    ) -> list[int]:
        """The token ids of a prompt whose continuation is the middle.

        ``line``, the line being typed, is between prefix and middle and is encoded separately. The
        other ``files`` are shown first, the most recent last; ``name`` is that of the edited file.
        Of more than ``room`` tokens, the least recent files are left out first; then the prefix
        loses its beginning and the suffix its end.
        """
        template = self.family.with_files if files else self.family.alone
        named = not template.partition("{prefix}")[0].endswith(self.family.tokens)
        prefix, line = shortened(prefix, -room), shortened(line, -room)
        suffix = shortened(suffix, room)
        parts = [
            self._encode_after_text(prefix) if named else self.encode(prefix),
            self._encode_after_text(line) if prefix else self.encode(line),
            self._encode_after_text(suffix),
        ]
        parts = fitted(parts, room - len(self._join(template, name, [[], [], []], [])))
        shown: list[list[int]] = []
        if files:
            shown = self._fitting(files, room - len(self._join(template, name, parts, [[]])))
        return self._join(template, name, parts, shown)

    def asked(self, prompt: Int32) -> bool:
        """Whether a prompt, int32 (n,), is a fill-in-the-middle prompt, whoever made it."""
        return bool((prompt == self._ids[self.family.tokens[0]]).any())

    def _join(
        self, template: str, name: str, parts: Sequence[list[int]], files: Sequence[list[int]]
    ) -> list[int]:
        """A prompt of its parts (prefix, line and suffix) and the other files."""
        prefix, line, suffix = parts
        shown = [token for each in files for token in each]
        if files:
            shown = self._ids_of(self.family.before_files) + shown
        slots = {"prefix": prefix + line, "suffix": suffix, "files": shown}
        return self._lead + self._ids_of(template, name=name, **slots)

    def _ids_of(self, template: str, **slots: str | list[int]) -> list[int]:
        """The ids of a template. Text is joined with the slots that are text before encoding."""
        found: list[int] = []
        values = self._ids | {f"{{{name}}}": value for name, value in slots.items()} | {"{end}": []}
        text, token_before, follows_text = "", False, False
        for piece in self._pieces.split(template + "{end}"):
            value = values.get(piece, piece)
            if isinstance(value, str):
                text += value
                continue
            if text:
                found += self._encode_after_text(text) if follows_text else self.encode(text)
            found += value
            follows_text = token_before and piece not in self._ids
            text, token_before = "", token_before or piece in self._ids
        return found

    def _fitting(self, files: Sequence[ExtraFile], room: int) -> list[list[int]]:
        """The ids of the last files that fit into ``room`` tokens."""
        shown: list[list[int]] = []
        end = self.family.after_file
        for each in reversed(files):
            if len(each.text) > max(room, 0) * MAX_CHARACTERS_PER_TOKEN:
                break
            text = each.text.removesuffix(end) + end
            ids = self._ids_of(self.family.file, name=each.filename, text=text)
            room -= len(ids)
            if room < 0:
                break
            shown.append(ids)
        return shown[::-1]

    def _encode_after_text(self, text: str) -> list[int]:
        """The ids of a text that follows other text."""
        if not self.family.bare:
            return self.encode(text)
        return self.encode(ANCHOR + text)[len(self.encode(ANCHOR)) :]


def shortened(text: str, room: int) -> str:
    """Cut what cannot fit into abs(``room``) tokens: the end, or if negative the beginning."""
    most = room * MAX_CHARACTERS_PER_TOKEN
    if len(text) <= abs(most) // 4:  # a character has at most four bytes
        return text
    raw = text.encode()
    return (raw[:most] if most > 0 else raw[most:]).decode(errors="ignore")


def fitted(parts: Sequence[list[int]], room: int) -> list[list[int]]:
    """Cut prefix, line and suffix to ``room`` tokens; the suffix gets at least a quarter."""
    prefix, line, suffix = parts
    line = line[-max(room, 0) :] if room > 0 else []
    room = max(room - len(line), 0)
    after = min(len(suffix), max(room - len(prefix), room // 4))
    before = min(len(prefix), room - after)
    return [prefix[len(prefix) - before :], line, suffix[:after]]


def family_of(tokenizer: Any) -> Family | None:
    """The family whose special tokens a tokenizer has, or None."""
    vocabulary = set(tokenizer.get_vocab())
    return next((each for each in FAMILIES if vocabulary.issuperset(each.tokens)), None)
