"""Fill-in-the-middle: a model's special tokens, and the prompt that they make.

Each family was trained with one order of prefix, suffix and middle, and some with a form for
several files of a repository. A family is recognized by the special tokens of the tokenizer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ngramspec.draft import Int32

SNIPPET = "\n\n--- snippet ---\n\n"  # between files, for families without a form for them
SMILE = "☺"  # a character that is a token of its own, to encode text behind it


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How one family of models fills in the middle.

    Attributes:
        name: of the family.
        prefix, suffix: the tokens before the text's two parts.
        middle: the token behind them; None: there is none.
        suffix_first: whether the suffix comes first.
        repository, file: the tokens before the names of a repository and of a file, if they have a
            form for several files.
        file_text: what stands before a file's text where there is no ``file`` token; ``{}`` is the
            file's name.
        known_by: a token that tells it from families of the same other tokens.
        ends: tokens that end what is filled in, beside the end of the text.
        bare_suffix: whether the suffix is encoded without a space in front.
    """

    name: str
    prefix: str
    suffix: str
    middle: str | None
    suffix_first: bool = False
    repository: str | None = None
    file: str | None = None
    file_text: str = SNIPPET
    known_by: str | None = None
    ends: tuple[str, ...] = ()
    bare_suffix: bool = False

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens that a tokenizer must have."""
        every = (self.prefix, self.suffix, self.middle, self.known_by, self.repository, self.file)
        return tuple(each for each in every if each is not None)


FAMILIES = (
    Family(
        name="Qwen2.5-Coder",
        prefix="<|fim_prefix|>",
        suffix="<|fim_suffix|>",
        middle="<|fim_middle|>",
        repository="<|repo_name|>",
        file="<|file_sep|>",
        ends=("<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|im_end|>"),
    ),
    Family(
        name="CodeGemma",
        prefix="<|fim_prefix|>",
        suffix="<|fim_suffix|>",
        middle="<|fim_middle|>",
        known_by="<|file_separator|>",
        ends=("<|file_separator|>", "<end_of_turn>"),
    ),
    Family(
        name="Granite 4",
        prefix="<|fim_prefix|>",
        suffix="<|fim_suffix|>",
        middle="<|fim_middle|>",
        repository="<|reponame|>",
        file="<|filename|>",
        ends=("<|fim_pad|>", "<|filename|>"),
    ),
    Family(
        name="StarCoder2",
        prefix="<fim_prefix>",
        suffix="<fim_suffix>",
        middle="<fim_middle>",
        repository="<repo_name>",
        file="<file_sep>",
        ends=("<fim_pad>", "<file_sep>", "<repo_name>"),
    ),
    Family(
        name="StarCoder and Granite Code",
        prefix="<fim_prefix>",
        suffix="<fim_suffix>",
        middle="<fim_middle>",
        repository="<reponame>",
        file="<filename>",
        ends=("<fim_pad>", "<filename>", "<reponame>"),
    ),
    Family(
        name="DeepSeek-Coder",
        prefix="<\uff5cfim▁begin\uff5c>",  # with full-width bars
        suffix="<\uff5cfim▁hole\uff5c>",
        middle="<\uff5cfim▁end\uff5c>",
        file_text="#{}\n",
        ends=("<|EOT|>",),
    ),
    Family(
        name="CodeLlama",
        prefix="▁<PRE>",
        suffix="▁<SUF>",
        middle="▁<MID>",
        ends=("▁<EOT>",),
        bare_suffix=True,
    ),
    Family(
        name="Codestral",
        prefix="[PREFIX]",
        suffix="[SUFFIX]",
        middle=None,
        suffix_first=True,
        file_text="+++++ {}\n",
    ),
)


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
    """

    def __init__(self, family: Family, tokenizer: Any) -> None:
        self.family = family
        self.encode = plain_encoder(tokenizer)
        vocabulary = tokenizer.get_vocab()
        self._ids: dict[str, int] = {name: vocabulary[name] for name in family.tokens}
        self.ends = tuple(vocabulary[each] for each in family.ends if each in vocabulary)
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
        parts = [self.encode(prefix), self.encode(line), self._suffix(suffix)]
        shown = [self._file(each) for each in files]
        head = self._head(name)
        if room is not None:
            parts = fitted(parts, room - len(self._join(([], [], []), [], head)))
        ids = self._join(parts, shown, head)
        while room is not None and shown and len(ids) > room:
            shown = shown[1:]
            ids = self._join(parts, shown, head)
        return ids

    def asked(self, prompt: Int32) -> bool:
        """Whether a prompt, int32 (n,), has this form: its client may have filled it in itself."""
        return bool((prompt == self._ids[self.family.prefix]).any())

    def _join(
        self, parts: Sequence[list[int]], files: Sequence[list[int]], head: list[int]
    ) -> list[int]:
        family, ids = self.family, self._ids
        before, line, behind = parts
        front = [ids[family.prefix], *before, *line]
        back = [ids[family.suffix], *behind]
        middle = [] if family.middle is None else [ids[family.middle]]
        both = [*back, *front] if family.suffix_first else [*front, *back]
        shown = [token for each in files for token in each]
        if family.repository is not None and files:
            shown = [ids[family.repository], *self.encode("repository"), *shown]
        return [*self._lead, *shown, *(head if files else []), *both, *middle]

    def _file(self, file: Snippet) -> list[int]:
        family = self.family
        if family.file is None:
            return self.encode(family.file_text.format(file.name) + file.text)
        return [self._ids[family.file], *self.encode(f"{file.name}\n{file.text}")]

    def _head(self, name: str) -> list[int]:
        """What stands before the file that is edited, where other files are shown."""
        family = self.family
        if family.file is None:
            return self.encode("\n")
        return [self._ids[family.file], *self.encode(f"{name}\n")]

    def _suffix(self, text: str) -> list[int]:
        if not self.family.bare_suffix:
            return self.encode(text)
        return self.encode(SMILE + text)[len(self.encode(SMILE)) :]


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


def plain_encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """What encodes text without special tokens: none are added, and none are read from the text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"])
    backend = copy.deepcopy(backend)
    backend.encode_special_tokens = True
    backend.no_truncation()
    backend.no_padding()
    return lambda text: list(backend.encode(text, add_special_tokens=False).ids)


def leading_tokens(tokenizer: Any) -> list[int]:
    """What a tokenizer puts before every text: its beginning-of-sequence token, or nothing."""
    first = list(tokenizer("")["input_ids"])[:1]
    bos = getattr(tokenizer, "bos_token_id", None)
    return first if bos is not None and first == [bos] else []
