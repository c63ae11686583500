"""Fill-in-the-middle prompts with the special tokens of a model's family.

Each family was trained with one order of prefix, suffix and middle, and some with a format for
several files of a repository. A family is recognized by the special tokens of the tokenizer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ngramspec.draft import Int32
from ngramspec.server.fim_families import FAMILIES, Family

MAX_CHARACTERS_PER_TOKEN = 16  # assumed upper bound of a text's average; not tuned
ANCHOR = "☺"  # encoded as separate tokens, so that text can be encoded as if it followed text


@dataclass(frozen=True, slots=True)
class Snippet:
    """A file, or part of one, that the prompt shows before the edited text."""

    text: str
    name: str = ""


class FillInTheMiddle:
    """Makes prompts in one family's format; ``encode`` reads names of special tokens as text."""

    def __init__(self, family: Family, tokenizer: Any, encode: Callable[[str], list[int]]) -> None:
        self.family = family
        self.encode = encode
        vocabulary = tokenizer.get_vocab()
        self._ids: dict[str, int] = {name: vocabulary[name] for name in family.tokens}
        known = (each for each in (*family.ends, *family.tokens) if each in vocabulary)
        self.ends = tuple(vocabulary[each] for each in known)
        self._lead = leading_tokens(tokenizer)

    def prompt(
        self,
        prefix: str,
        suffix: str,
        *,
        line: str = "",
        files: Sequence[Snippet] = (),
        name: str = "",
        room: int = sys.maxsize,
    ) -> list[int]:
        """The token ids of a prompt whose continuation is the middle.

        Args:
            prefix: the text before the middle.
            suffix: the text after the middle.
            line: text between prefix and middle that is encoded separately: the line being typed.
            files: files to show first, the most recent last.
            name: name of the edited file.
            room: maximum number of tokens. The least recent files are left out first; then the
                prefix loses its beginning and the suffix its end.
        """
        outside, inside = self._own(name) if files else ([], [])
        prefix, line = shortened(prefix, -room), shortened(line, -room)
        suffix = shortened(suffix, room)
        parts = [
            self._encode_after_text(prefix) if inside else self.encode(prefix),
            self._encode_after_text(line) if prefix else self.encode(line),
            self._encode_after_text(suffix),
        ]
        parts = fitted(parts, room - len(self._join(([], [], []), [], outside, inside)))
        least = len(self._join(parts, [[]], outside, inside)) if files else 0
        return self._join(parts, self._fitting(files, room - least), outside, inside)

    def asked(self, prompt: Int32) -> bool:
        """Whether a prompt, int32 (n,), is a fill-in-the-middle prompt, whoever made it."""
        return bool((prompt == self._ids[self.family.prefix]).any())

    def _join(
        self,
        parts: Sequence[list[int]],
        files: Sequence[list[int]],
        outside: list[int],
        inside: list[int],
    ) -> list[int]:
        """A prompt's parts (prefix, line and suffix) in the family's order, after the other files.

        ``outside`` and ``inside`` are the ids of the edited file's name, before and after the
        prefix token.
        """
        family, ids = self.family, self._ids
        before, line, after = parts
        shown = [token for each in files for token in each]
        if family.repository is not None and files:
            name = self.encode(f"repository{family.after_repository}")
            shown = [ids[family.repository], *name, *shown]
        within, around = (shown, []) if family.files_inside else ([], shown)
        front = [ids[family.prefix], *within, *inside, *before, *line]
        back = [ids[family.suffix], *after]
        middle = [] if family.middle is None else [ids[family.middle]]
        both = [*back, *front] if family.suffix_first else [*front, *back]
        return [*self._lead, *around, *outside, *both, *middle]

    def _fitting(self, files: Sequence[Snippet], room: int) -> list[list[int]]:
        """The ids of the last files that fit into ``room`` tokens."""
        shown: list[list[int]] = []
        for each in reversed(files):
            if len(each.text) > max(room, 0) * MAX_CHARACTERS_PER_TOKEN:
                break
            ids = self._file(each)
            room -= len(ids)
            if room < 0:
                break
            shown.append(ids)
        return shown[::-1]

    def _file(self, file: Snippet) -> list[int]:
        """The ids of another file: its name, its text and the separator."""
        family = self.family
        end = "" if file.text.endswith(family.after_file) else family.after_file
        after = [] if family.separator is None else [self._ids[family.separator]]
        if family.file is None:
            named = family.file_text.format(file.name)
            return [*self.encode(named + file.text + end), *after]
        text = self.encode(f"{file.name}\n{file.text}{end}")
        return [self._ids[family.file], *text, *after]

    def _own(self, name: str) -> tuple[list[int], list[int]]:
        """The edited file's name: its ids before and after the prefix token."""
        family = self.family
        mark = [] if family.file is None else [self._ids[family.file]]
        if not family.own_name:
            return self.encode("\n"), []
        text = f"{name}\n" if family.file is not None else family.file_text.format(name)
        if not family.name_inside:
            return [*mark, *self.encode(text)], []
        return mark, self._encode_after_text(text) if family.files_inside else self.encode(text)

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


def leading_tokens(tokenizer: Any) -> list[int]:
    """The tokens that a tokenizer adds before every text: its BOS token, or none."""
    first = list(tokenizer("")["input_ids"])[:1]
    bos = getattr(tokenizer, "bos_token_id", None)
    return first if bos is not None and first == [bos] else []
