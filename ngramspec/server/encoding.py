"""Encoding texts of any size without blocking other threads.

A tokenizer reads the name of a special token in a text as that token. In a prompt that combines a
template with users' texts, only the template may write such tokens, so ``TextEncoder`` can also
encode these names as text.
"""

from __future__ import annotations

import copy
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ngramspec.server.fim_families import FAMILIES
from ngramspec.server.tool_parsers import CLOSE, OPEN, THINK, THOUGHT

PIECE_CHARACTERS = 1 << 15  # of a text in one operation that holds the GIL; not tuned
TAGS = (OPEN, CLOSE, THINK, THOUGHT)  # earlier answers contain them

Span = tuple[int, int]


def pieces(text: str) -> Iterator[str]:
    """A text in pieces, for operations that hold the GIL."""
    return (text[at : at + PIECE_CHARACTERS] for at in range(0, len(text), PIECE_CHARACTERS))


class TooManyTokensError(ValueError):
    """A text has more tokens than allowed; ``count`` is their number."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} tokens")
        self.count = count


class NotTextError(ValueError):
    """A tokenizer cannot encode the name of a special token as text."""

    def __init__(self) -> None:
        super().__init__(
            "they have the name of a special token, which the model's tokenizer cannot encode as"
            " text; remove it"
        )


class TextEncoder:
    """Encodes texts with a copy of a tokenizer. Thread-safe.

    ``names`` and ``ids`` are those of the control tokens, see ``control_names``. ``lead`` are the
    tokens before every framed text, see ``leading_tokens``. ``longest`` is an upper bound on the
    characters of text that one token represents: a vocabulary entry has at least one character for
    each byte or character of its token's text. It does not hold for a tokenizer that drops
    characters or encodes a run of unknown characters as one token.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.names = control_names(tokenizer)
        self.ids = frozenset(tokenizer.convert_tokens_to_ids(list(self.names)))
        self.spans = finder_of(self.names)
        self._tokenizer = tokenizer
        self.longest = max(map(len, tokenizer.get_vocab()))
        self.lead = leading_tokens(tokenizer)
        self._aliases: dict[str, str] = {}
        self._named: dict[int, int] = {}  # ids of aliases to ids of their control tokens
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._backend = None if backend is None else self._copy(backend)
        self._of_prompts = None if backend is None else untruncated(backend)
        if self._of_prompts is not None:
            split = bool(getattr(tokenizer, "split_special_tokens", False))
            self._of_prompts.encode_special_tokens = split

    def encode_prompt(self, text: str, framed: bool, most: int | None) -> list[int]:
        """The ids of a text in which names of special tokens become these tokens.

        ``framed``: add the tokens that the tokenizer adds to every text, but no second BOS token to
        a text that begins with its name. A TooManyTokensError is raised if there are more than
        ``most`` ids.
        """
        lead = self.lead if framed else []
        if self._of_prompts is None:
            ids = list(self._tokenizer(text, add_special_tokens=framed)["input_ids"])
        else:
            most_found = None if most is None else most + len(lead)
            ids = without_gil(self._of_prompts, text, add_special_tokens=framed, most=most_found)
        if lead and ids[: 2 * len(lead)] == lead * 2:
            ids = ids[len(lead) :]
        if most is not None and len(ids) > most:
            raise TooManyTokensError(len(ids))
        return ids

    def framing(self, prompt: str | list[int]) -> int:
        """How many of a prompt's first ids ``encode_prompt`` adds, which are not in its text."""
        if not isinstance(prompt, str) or not self.lead:
            return 0
        own = self._tokenizer.decode(self.lead, skip_special_tokens=False)
        return 0 if prompt.startswith(own) else len(self.lead)

    def encode(self, text: str, most: int | None = None) -> list[int]:
        """The ids of a text, without control tokens; see ``encode_with``."""
        if most is not None and len(text) > most * self.longest:
            raise TooManyTokensError(len(text) // self.longest)
        if self._backend is None:
            from transformers import PreTrainedTokenizer

            slow = isinstance(self._tokenizer, PreTrainedTokenizer)
            split = {"split_special_tokens": True} if slow else {}  # others have no such argument
            return list(self._tokenizer(text, add_special_tokens=False, **split)["input_ids"])
        return without_gil(self._backend, text, add_special_tokens=False, most=most)

    def encode_with(
        self, text: str, spans: Sequence[Span], marks: Mapping[str, str], most: int
    ) -> list[int]:
        """The ids of a text that has control tokens only at the given spans, in order.

        ``marks`` are what the text has in place of each name that is to be encoded as text; if the
        tokenizer cannot do so, a NotTextError is raised. A TooManyTokensError is raised if there
        are more than ``most`` ids.
        """
        if self._backend is None:
            raise NotTextError
        whole = replaced(text, spans, self._aliases.__getitem__)
        for name, mark in marks.items():
            whole = whole.replace(mark, name)
        ids = self.encode(whole, most)
        if self.count(ids):  # the tokenizer's model has the name as ordinary text
            raise NotTextError
        return [self._named.get(id, id) for id in ids]

    def count(self, ids: Sequence[int]) -> int:
        """Number of control tokens among ids."""
        return sum(id in self.ids for id in ids)

    def _copy(self, backend: Any) -> Any:
        """A copy of the tokenizer that reads control tokens only by their aliases.

        In the copy, every control token is special, and special tokens are ignored. The aliases are
        not special. They are random, so no user's text contains one.
        """
        from tokenizers import AddedToken

        backend = untruncated(backend)
        backend.encode_special_tokens = True
        known = {each.content: each for each in backend.get_added_tokens_decoder().values()}
        given = [known[name] for name in self.names]
        self._aliases = {name: random_digits() for name in self.names}
        backend.add_special_tokens(
            [AddedToken(each.content, normalized=each.normalized, special=True) for each in given]
        )
        backend.add_tokens(
            [
                AddedToken(
                    self._aliases[each.content],
                    normalized=False,
                    single_word=each.single_word,
                    lstrip=each.lstrip,
                    rstrip=each.rstrip,
                )
                for each in given
            ]
        )
        self._named = {
            backend.token_to_id(alias): backend.token_to_id(name)
            for name, alias in self._aliases.items()
        }
        return backend


def leading_tokens(tokenizer: Any) -> list[int]:
    """The tokens that a tokenizer adds before every text: its BOS token, or none."""
    first = list(tokenizer("")["input_ids"])[:1]
    bos = getattr(tokenizer, "bos_token_id", None)
    return first if bos is not None and first == [bos] else []


def untruncated(backend: Any) -> Any:
    """A copy of a tokenizer of the tokenizers package that neither truncates nor pads."""
    backend = copy.deepcopy(backend)
    backend.no_truncation()
    backend.no_padding()
    return backend


def without_gil(
    backend: Any, text: str, *, add_special_tokens: bool, most: int | None
) -> list[int]:
    """Encode a text with a tokenizer of the tokenizers package, without holding the GIL.

    Only its batched methods release the GIL. Building the list of ids holds the GIL, so the number
    of ids is checked first: a TooManyTokensError is raised if it exceeds ``most``.
    """
    (found,) = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    if most is not None and len(found) > most:
        raise TooManyTokensError(len(found))
    return list(found.ids)


def control_names(tokenizer: Any) -> tuple[str, ...]:
    """The special tokens, and other added tokens that the template or a fill-in format uses.

    They must not become tokens in a user's text. TAGS are excluded.
    """
    template = str(getattr(tokenizer, "chat_template", None) or "")
    known = {name for family in FAMILIES for name in (*family.tokens, *family.ends)}
    known.update(getattr(tokenizer, "chat_control_tokens", None) or ())
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return tuple(
        each.content
        for each in added
        if each.content.strip()
        and (
            each.special
            or each.content in known
            or (each.content in template and each.content not in TAGS)
        )
    )


def finder_of(names: Sequence[str]) -> Callable[[str], list[Span]]:
    """A function from a text to the spans of names in it, the longest where several begin."""
    known, sizes = frozenset(names), sorted({len(each) for each in names}, reverse=True)
    begins = re.compile("|".join({re.escape(each[0]) for each in names}) or r"(?!)")

    def spans(text: str) -> list[Span]:
        found: list[Span] = []
        end = 0
        for match in begins.finditer(text):
            at = match.start()
            fits = (name for size in sizes if (name := text[at : at + size]) in known)
            if at >= end and (longest := next(fits, "")):
                end = at + len(longest)
                found.append((at, end))
        return found

    return spans


def replaced(text: str, spans: Sequence[Span], by: Callable[[str], str]) -> str:
    """A text in which ``by`` gives what replaces the text of each span."""
    parts, at = [], 0
    for start, end in spans:
        parts += [text[at:start], by(text[start:end])]
        at = end
    return "".join((*parts, text[at:]))


def random_digits() -> str:
    """A text that users cannot guess and that templates do not change."""
    return f"{secrets.randbelow(10**32):032}"
