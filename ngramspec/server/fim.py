"""Fill-in-the-middle: a model's special tokens, and the prompt that they make.

Each family was trained with one order of prefix, suffix and middle, and some with a form for
several files of a repository. A family is recognized by the special tokens of the tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ngramspec.draft import Int32
from ngramspec.server.fim_families import FAMILIES, Family

CHARACTERS = 16  # of a token: no text has more on average
SMILE = "☺"  # a character that is a token of its own, to encode text behind it


@dataclass(frozen=True, slots=True)
class Snippet:
    """A file, or a part of one, that is shown before the text."""

    text: str
    name: str = ""


class FillInTheMiddle:
    """Makes prompts of a family's form with a tokenizer.

    Text is encoded as text: a special token's name in a user's file is not that token.

    Args:
        family: one of FAMILIES.
        tokenizer: of the model, of transformers.
        encode: returns the ids of a text in which no special token is read, see TextEncoder.
    """

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
        room: int | None = None,
    ) -> list[int]:
        """The token ids of a prompt whose continuation is the middle.

        Args:
            prefix: the text before.
            suffix: the text behind.
            line: more text before, which is encoded by itself: what is typed just now.
            files: to be shown first.
            name: of the file that is edited.
            room: most tokens: files are left out, the least recent first, then the prefix loses its
                beginning and the suffix its end; None: no limit.
        """
        outside, inside = self._own(name) if files else ([], [])
        if room is not None:
            prefix, line, suffix = (
                shortened(prefix, -room),
                shortened(line, -room),
                shortened(suffix, room),
            )
        parts = [
            self._behind(prefix) if inside else self.encode(prefix),
            self._behind(line) if prefix else self.encode(line),
            self._behind(suffix),
        ]
        if room is not None:
            parts = fitted(parts, room - len(self._join(([], [], []), [], outside, inside)))
        least = len(self._join(parts, [[]], outside, inside)) if files else 0
        shown = self._fitting(files, None if room is None else room - least)
        return self._join(parts, shown, outside, inside)

    def asked(self, prompt: Int32) -> bool:
        """Whether a prompt, int32 (n,), has this form: its client may have filled it in itself."""
        return bool((prompt == self._ids[self.family.prefix]).any())

    def _join(
        self,
        parts: Sequence[list[int]],
        files: Sequence[list[int]],
        outside: list[int],
        inside: list[int],
    ) -> list[int]:
        """A prompt's parts in the family's order.

        Args:
            parts: prefix, line and suffix.
            files: the others.
            outside, inside: the name of the file that is edited, before and behind the prefix's
                token.
        """
        family, ids = self.family, self._ids
        before, line, behind = parts
        shown = [token for each in files for token in each]
        if family.repository is not None and files:
            name = self.encode(f"repository{family.after_repository}")
            shown = [ids[family.repository], *name, *shown]
        within, around = (shown, []) if family.files_inside else ([], shown)
        front = [ids[family.prefix], *within, *inside, *before, *line]
        back = [ids[family.suffix], *behind]
        middle = [] if family.middle is None else [ids[family.middle]]
        both = [*back, *front] if family.suffix_first else [*front, *back]
        return [*self._lead, *around, *outside, *both, *middle]

    def _fitting(self, files: Sequence[Snippet], room: int | None) -> list[list[int]]:
        """The ids of the last files that have together at most ``room`` tokens; None: of all."""
        shown: list[list[int]] = []
        for each in reversed(files):
            if room is not None and len(each.text) > max(room, 0) * CHARACTERS:
                break
            shown.append(self._file(each))
            if room is not None:
                room -= len(shown[-1])
                if room < 0:
                    shown.pop()
                    break
        return shown[::-1]

    def _file(self, file: Snippet) -> list[int]:
        """Another file: its name, its text, and what divides it from the next."""
        family = self.family
        end = "" if file.text.endswith(family.after_file) else family.after_file
        behind = [] if family.separator is None else [self._ids[family.separator]]
        if family.file is None:
            named = family.file_text.format(file.name)
            return [*self.encode(named + file.text + end), *behind]
        text = self.encode(f"{file.name}\n{file.text}{end}")
        return [self._ids[family.file], *text, *behind]

    def _own(self, name: str) -> tuple[list[int], list[int]]:
        """The name of the file that is edited: what stands before and behind the prefix's token."""
        family = self.family
        mark = [] if family.file is None else [self._ids[family.file]]
        if not family.own_name:
            return self.encode("\n"), []
        text = f"{name}\n" if family.file is not None else family.file_text.format(name)
        if not family.name_inside:
            return [*mark, *self.encode(text)], []
        return mark, self._behind(text) if family.files_inside else self.encode(text)

    def _behind(self, text: str) -> list[int]:
        """The ids of a text that stands behind other text."""
        if not self.family.bare:
            return self.encode(text)
        return self.encode(SMILE + text)[len(self.encode(SMILE)) :]


def shortened(text: str, room: int) -> str:
    """A text without what certainly has no place in ``room`` tokens, so that it is not encoded.

    Args:
        text: the text.
        room: tokens at its beginning; negative: at its end.
    """
    most = room * CHARACTERS
    if len(text) <= abs(most) // 4:  # a character has four bytes at most
        return text
    raw = text.encode()
    return (raw[:most] if most > 0 else raw[most:]).decode(errors="ignore")


def fitted(parts: Sequence[list[int]], room: int) -> list[list[int]]:
    """Prefix, line and suffix cut so that three quarters at most, or what is left, are prefix."""
    prefix, line, suffix = parts
    line = line[-max(room, 0) :] if room > 0 else []
    room = max(room - len(line), 0)
    behind = min(len(suffix), max(room - len(prefix), room // 4))
    before = min(len(prefix), room - behind)
    return [prefix[len(prefix) - before :], line, suffix[:behind]]


def family_of(tokenizer: Any) -> Family | None:
    """The family whose special tokens a tokenizer has, or None."""
    vocabulary = tokenizer.get_vocab()
    return next(
        (each for each in FAMILIES if all(token in vocabulary for token in each.tokens)), None
    )


def leading_tokens(tokenizer: Any) -> list[int]:
    """What a tokenizer puts before every text: its beginning-of-sequence token, or nothing."""
    first = list(tokenizer("")["input_ids"])[:1]
    bos = getattr(tokenizer, "bos_token_id", None)
    return first if bos is not None and first == [bos] else []
