"""How a model's template presents tools, and how the model writes calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ngramspec.server.chat_prompt import prompt_text
from ngramspec.server.tool_parsers import (
    CLOSE,
    OPEN,
    THINK,
    THOUGHT,
    Parser,
    TagParser,
    TemplateParser,
)

PROBE_NAME = "ngramspec_probe"
# Not ``<tool_call>name``, and not XML.
TAGGED_CALL = re.compile(re.escape(OPEN) + r"\s*\[?\s*\{\s*[\"']")


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The format of a model's tool calls.

    ``template`` is a response template for transformers' own parser; None: JSON between
    ``<tool_call>`` and ``</tool_call>``. Special tokens with ``hidden`` ids are not shown.
    """

    template: dict[str, Any] | None
    hidden: frozenset[int]

    @property
    def closing(self) -> str | None:
        """The string that ends a call; None if there is not exactly one."""
        return CLOSE if self.template is None else None

    def parser(
        self, tokenizer: Any, prompt: str, tools: Sequence[dict[str, Any]], forced: bool
    ) -> Parser:
        """A parser for one answer to the whole prompt's text, with the tools in the prompt.

        ``forced``: whether a grammar forces the answer to begin with a call.
        """
        if self.template is None:
            return TagParser(thinking=not forced and prompt.rfind(THINK) > prompt.rfind(THOUGHT))
        parser = tokenizer.get_response_parser(self.template, prefix=prompt, tools=list(tools))
        closes = self.template.get("fields", {}).get("tool_calls", {}).get("close", ())
        return TemplateParser(parser, (closes,) if isinstance(closes, str) else closes)


def find_format(model: Any, tokenizer: Any) -> tuple[ToolFormat | None, str]:
    """The format of a model's calls, or None and the reason why tools are not supported."""
    user = {"role": "user", "content": "x"}
    function = {"name": PROBE_NAME, "description": PROBE_NAME, "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    told = rendered(tokenizer, [user], tools)
    if told is None or PROBE_NAME not in told:
        return None, "the model's chat template does not support tools"
    template = getattr(tokenizer, "response_template", None)
    if template is None:
        function = {"name": PROBE_NAME, "arguments": {}}
        call = {"type": "function", "id": "probe0000", "function": function}
        answer = {"role": "assistant", "content": "", "tool_calls": [call]}
        if TAGGED_CALL.search(told + (rendered(tokenizer, [user, answer], tools) or "")):
            return ToolFormat(None, hidden_ids(tokenizer, (OPEN, CLOSE, THINK, THOUGHT))), ""
        template = known_template(model, tokenizer)
    if template is None or not hasattr(tokenizer, "get_response_parser"):
        return None, "the form of this model's calls is not known here"
    eos = (tokenizer.eos_token_id,) if tokenizer.eos_token_id is not None else ()
    return ToolFormat(template, frozenset(eos)), ""


def rendered(tokenizer: Any, messages: list[Any], tools: list[Any]) -> str | None:
    """The text that the model's template renders; None if it fails or there is none."""
    try:
        return prompt_text(tokenizer, messages, tools, {})
    except Exception:  # templates raise errors of any type
        return None


def known_template(model: Any, tokenizer: Any) -> dict[str, Any] | None:
    """The response template that ``transformers serve`` uses for a model, if it has one."""
    from ngramspec.hf_model.compat.versions import response_template

    return response_template(model, tokenizer)


def hidden_ids(tokenizer: Any, shown: Sequence[str]) -> frozenset[int]:
    """The ids of the special tokens, except those in ``shown``."""
    special = set(tokenizer.all_special_ids)
    special |= {id for id, each in tokenizer.added_tokens_decoder.items() if each.special}
    return frozenset(special.difference(tokenizer.convert_tokens_to_ids(list(shown))))
