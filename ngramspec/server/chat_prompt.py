"""The prompt of a chat: the template may write control tokens, the messages and tools may not.

The template gets the messages with a mark in place of each name of a control token, so any name in
its output is the template's. A template can also create a name by joining or changing strings of
the messages. A second rendering finds these: in it, every character of control tokens' names is
veiled in the messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from ngramspec.server.encoding import Span, TextEncoder, pieces, random_digits, replaced

VEIL = "\ue000"  # from the private use area; no control token's name contains it
COMPARED_FIELDS = ("role", "type")  # templates compare their values, so they are not veiled


def chat_ids(
    tokenizer: Any,
    encoder: TextEncoder,
    messages: list[Any],
    tools: list[Any],
    variables: Mapping[str, Any],
    *,
    encode: Callable[[str], list[int]],
    most: int,
) -> list[int]:
    """The ids of the prompt that the model's template makes of messages, tools and variables.

    If these contain no names of control tokens, the ids are those of
    ``apply_chat_template(tokenize=True)``. ``encode`` encodes a text with its control tokens, and
    bounds their number itself. A prompt with names of control tokens raises a TooManyTokensError if
    it has more than ``most`` tokens, and a NotTextError if the tokenizer cannot encode a name as
    text. Errors of the template are passed on.
    """
    marks: dict[str, str] = defaultdict(random_digits)  # by the name that each replaces
    messages, tools = marked(messages, encoder, marks), marked(tools, encoder, marks)
    variables = {name: marked(each, encoder, marks) for name, each in variables.items()}
    text = prompt_text(tokenizer, messages, tools, variables)
    every = encoder.spans(text)
    own = own_spans(tokenizer, encoder, messages, tools, variables, text)
    if own == every and not marks:
        ids = encode(text)
        if encoder.count(ids) <= len(own):
            return ids
    return encoder.encode_with(text, own, marks, most)


def marked(value: Any, encoder: TextEncoder, marks: dict[str, str]) -> Any:
    """A JSON value with marks for control tokens' names in all strings, including fields' names."""
    if isinstance(value, str):
        return replaced(value, encoder.spans(value), marks.__getitem__)
    if isinstance(value, list):
        return [marked(each, encoder, marks) for each in value]
    if isinstance(value, dict):
        return {
            marked(name, encoder, marks): marked(each, encoder, marks)
            for name, each in value.items()
        }
    return value


def own_spans(
    tokenizer: Any,
    encoder: TextEncoder,
    messages: list[Any],
    tools: list[Any],
    variables: Mapping[str, Any],
    text: str,
) -> list[Span]:
    """The spans of control tokens' names that the template itself wrote.

    If veiling the messages changes the template's own text, all names in the text are returned.
    """
    veil = str.maketrans({each: VEIL for each in "".join(encoder.names) if not _kept(each)})
    try:
        second = prompt_text(tokenizer, veiled(messages, veil), tools, variables)
    except Exception:  # whatever a template raises about characters
        second = ""
    same = len(second) == len(text) and all(
        new in (old, VEIL) for old, new in zip(text, second, strict=True)
    )
    return encoder.spans(second if same else text)


def veiled(value: Any, veil: Mapping[int, str]) -> Any:
    """A JSON value with translated strings, except names of fields and COMPARED_FIELDS."""
    if isinstance(value, str):
        return "".join(piece.translate(veil) for piece in pieces(value))
    if isinstance(value, list):
        return [veiled(each, veil) for each in value]
    if isinstance(value, dict):
        return {
            name: each if name in COMPARED_FIELDS else veiled(each, veil)
            for name, each in value.items()
        }
    return value


def prompt_text(
    tokenizer: Any, messages: list[Any], tools: list[Any], variables: Mapping[str, Any]
) -> str:
    """The text that the model's template renders."""
    text: str = tokenizer.apply_chat_template(
        messages, tools=tools or None, add_generation_prompt=True, tokenize=False, **variables
    )
    return text


def _kept(character: str) -> bool:
    """Whether a character is not veiled: templates strip whitespace, and JSON escapes quotes."""
    return character.isspace() or character in "\"'\\"
