"""A chat's prompt: the model's template may write control tokens, the messages and tools may not.

The template gets the messages with a mark in place of each name of a control token, so the names
that it then writes are its own. A name that comes about only in the template, because it puts two
strings next to each other or changes them, is found by a second rendering: in it, all characters
that names are made of are veiled in the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ngramspec.server.special_tokens import Span, TextEncoder, random_digits

VEIL = "\ue000"  # of the private use area: no name has it
COMPARED = ("role", "type")  # fields whose values templates compare with their own strings


class Marks:
    """Puts marks in place of the names of control tokens.

    Args:
        encoder: whose names they are.

    Attributes:
        names: by mark.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder
        self.names: dict[str, str] = {}
        self._marks: dict[str, str] = {}

    def put(self, value: Any) -> Any:
        """A JSON value with marks in all of its strings, those that name fields included."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return [self.put(each) for each in value]
        if isinstance(value, dict):
            return {self.put(name): self.put(each) for name, each in value.items()}
        return value

    def _text(self, text: str) -> str:
        parts, at = [], 0
        for start, end in self._encoder.spans(text):
            parts += [text[at:start], self._mark(text[start:end])]
            at = end
        return "".join((*parts, text[at:])) if parts else text

    def _mark(self, name: str) -> str:
        if name not in self._marks:
            self._marks[name] = random_digits()
            self.names[self._marks[name]] = name
        return self._marks[name]


def chat_ids(
    tokenizer: Any,
    encoder: TextEncoder,
    messages: list[Any],
    tools: list[Any],
    *,
    encode: Callable[[str], list[int]] | None = None,
    most: int | None = None,
) -> list[int]:
    """The ids of the prompt that the model's template makes of messages and tools.

    Where they have no names of control tokens, these are the ids of
    ``apply_chat_template(tokenize=True)``.

    Args:
        tokenizer: of the model.
        encoder: the tokenizer's.
        messages: as templates take them.
        tools: as templates take them.
        encode: encodes a text with its control tokens; None: the tokenizer does.
        most: tokens of a prompt with names of control tokens; None: no limit.

    Raises:
        NotTextError: the tokenizer cannot encode a name of a control token as text.
        TooManyTokensError: the prompt has more tokens.
        Exception: whatever the template raises.
    """
    marks = Marks(encoder)
    messages, tools = marks.put(messages), marks.put(tools)
    text = prompt_text(tokenizer, messages, tools)
    every = encoder.spans(text)
    own = own_spans(tokenizer, encoder, messages, tools, text)
    if own == every and not marks.names:
        if encode is None:
            ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        else:
            ids = encode(text)
        if encoder.count(ids) <= len(own):
            return ids
    return encoder.encode_with(text, own, marks.names, most)


def own_spans(
    tokenizer: Any, encoder: TextEncoder, messages: list[Any], tools: list[Any], text: str
) -> list[Span]:
    """Where the text of a prompt has names of control tokens that the template wrote.

    If the template writes other text when the messages are veiled, these are all names in it.
    """
    veil = str.maketrans({each: VEIL for each in "".join(encoder.names) if not _kept(each)})
    try:
        second = prompt_text(tokenizer, veiled(messages, veil), tools)
    except Exception:  # whatever a template raises about characters
        second = ""
    same = len(second) == len(text) and all(
        new in (old, VEIL) for old, new in zip(text, second, strict=True)
    )
    return encoder.spans(second if same else text)


def veiled(value: Any, veil: Mapping[int, str]) -> Any:
    """A JSON value whose strings are translated, but for names of fields and COMPARED."""
    if isinstance(value, str):
        return value.translate(veil)
    if isinstance(value, list):
        return [veiled(each, veil) for each in value]
    if isinstance(value, dict):
        return {
            name: each if name in COMPARED else veiled(each, veil) for name, each in value.items()
        }
    return value


def prompt_text(tokenizer: Any, messages: list[Any], tools: list[Any]) -> str:
    """The text that the model's template makes."""
    text: str = tokenizer.apply_chat_template(
        messages, tools=tools or None, add_generation_prompt=True, tokenize=False
    )
    return text


def _kept(character: str) -> bool:
    """Whether a character is not veiled: templates strip whitespace, and JSON escapes quotes."""
    return character.isspace() or character in "\"'\\"
