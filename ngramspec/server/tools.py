"""How a model's template presents tools, and how the model writes calls."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from ngramspec.drafters.partial_json import PartialJson
from ngramspec.drafters.tool_calls import CLOSE, OPEN
from ngramspec.server.prompts import THINK, THOUGHT, prompt_text
from ngramspec.server.text import begun, hidden_ids

MAX_DEPTH = 200  # of nested values, as in ``from_json``
PROBE_NAME = "ngramspec_probe"
# Not ``<tool_call>name``, and not XML.
TAGGED_CALL = re.compile(re.escape(OPEN) + r"\s*\[?\s*\{\s*[\"']")
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")  # in response templates


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A tool call: the function's name, and its arguments as the text of a JSON object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an answer: content, reasoning or a call."""

    content: str = ""
    reasoning: str = ""
    call: ParsedCall | None = None


class TagParser:
    """Parses ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, or a list of such calls."""

    def __init__(self, thinking: bool = False) -> None:
        self._thinking = thinking
        self._held = ""  # text that is not decided yet
        self._json: PartialJson | None = None  # parser of the call that ``_held`` begins with
        self._read = 0  # characters of ``_held`` that ``_json`` has read
        self._after_call = False

    def add(self, text: str, *, last: bool = False) -> list[Part]:
        """Add text, and return the parts that are decided; nothing is held back if ``last``."""
        self._held += text
        parts: list[Part] = []
        while self._held and (found := self._next(last)) is not None:
            parts += found
        return parts

    def _next(self, last: bool) -> list[Part] | None:
        """The next parts of the held text; None: they are not decided."""
        if self._thinking:
            at = self._held.find(THOUGHT)
            self._thinking = at < 0
            end = len(self._held) - (0 if last else begun(self._held, THOUGHT))
            return self._content(end if at < 0 else at + len(THOUGHT))
        if self._after_call:
            self._held = self._held.lstrip()
        if self._held.lstrip().startswith(OPEN):
            return self._call(last)
        return self._text(last)

    def _text(self, last: bool) -> list[Part] | None:
        """Text up to a tag; whitespace that may precede a call is held back."""
        places = [self._held.find(tag) for tag in (OPEN, THINK)]
        call, think = (len(self._held) if at < 0 else at for at in places)
        if think < call:
            self._thinking = True
            return self._content(think + len(THINK))
        if call == len(self._held):
            if last:
                return self._content(call)
            call -= max(begun(self._held, OPEN), begun(self._held, THINK))
        return self._content(len(self._held[:call].rstrip()))

    def _call(self, last: bool) -> list[Part] | None:
        """The calls of the tag at the start of the held text, or the tag as content."""
        start = self._held.index(OPEN) + len(OPEN)
        if self._json is None:
            self._json, self._read = PartialJson(MAX_DEPTH), start
        self._json.read(self._held[self._read :])
        self._read = len(self._held)
        if self._json.state != "done":
            return self._content(start) if last or self._json.state == "invalid" else None
        end = len(self._held) - len(self._json.space)
        calls, rest = calls_of(self._held[start:end]), self._held[end:].lstrip()
        if calls and rest.startswith(CLOSE):
            self._held, self._json, self._after_call = rest[len(CLOSE) :], None, True
            return [Part(call=call) for call in calls]
        if calls and CLOSE.startswith(rest) and not last:
            return None
        return self._content(start)

    def _content(self, end: int) -> list[Part] | None:
        """The held text up to ``end`` as content; None if it is empty."""
        text, self._held = self._held[:end], self._held[end:]
        self._json, self._after_call = None, self._after_call and not text
        return [Part(text)] if text else None


def calls_of(text: str) -> list[ParsedCall]:
    """The calls that a JSON text describes; empty if it does not describe calls."""
    try:
        value = from_json(text, allow_inf_nan=False)
        return [call_of(each) for each in (value if isinstance(value, list) else [value])]
    except ValueError:
        return []


def call_of(value: Any) -> ParsedCall:
    """The call that a JSON value describes; a ValueError if it describes none."""
    named = value if isinstance(value, dict) else {}
    name, arguments = named.get("name"), named.get("arguments", named.get("parameters"))
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    known = isinstance(name, str) and name
    if not known or not isinstance(from_json(arguments, allow_inf_nan=False), dict):
        raise ValueError("no call of a tool")
    return ParsedCall(str(name), arguments)


class TemplateParser:
    """Parses an answer with transformers' own parser of a response template."""

    def __init__(self, parser: Any, closes: Sequence[str] = ()) -> None:
        # Strings that end a call; without one, the character after a pattern shows its end.
        self._parser, self._closes = parser, tuple(closes)
        self._text = ""  # the whole answer
        self._settled = 0  # lower bound of the position up to which the text was shown or parsed
        self._call: int | None = None  # start of the current call
        self._failed = False

    def add(self, text: str, *, last: bool = False) -> list[Part]:
        """As ``TagParser.add``."""
        parts: list[Part] = []
        for letter in text:  # one by one, so that a call begins where the shown text ends
            self._text += letter
            parts += [Part(letter)] if self._failed else self._read(letter)
        if last and not self._failed:
            parts += self._read(None)
        return joined(parts)

    def _read(self, letter: str | None) -> list[Part]:
        """The parts that a letter decides; None: the end. An invalid call becomes content."""
        try:
            if letter is not None:
                return self._parts(self._parser.feed(letter))
            if self._call is None:
                return self._parts(self._parser.finalize()[1])
        except (ValueError, RecursionError, KeyError, TypeError):
            pass
        self._failed = True
        return [Part(self._text[self._settled if self._call is None else self._call :])]

    def _parts(self, events: Sequence[dict[str, Any]]) -> list[Part]:
        parts: list[Part] = []
        for event in events:
            kind, field, text = event["type"], event.get("field"), event.get("text") or ""
            if field == "tool_calls":
                if kind == "region_open":
                    self._call = self._settled
                elif kind == "region_close":
                    parts.append(Part(call=call_of(event["value"]["function"])))
                    whole = self._text.endswith(self._closes) if self._closes else False
                    self._call, self._settled = None, len(self._text) - (not whole)
            elif kind == "region_chunk" and not event.get("dirty"):
                at = self._text.find(text, self._settled)
                self._settled = at + len(text) if at >= 0 else len(self._text)
                parts += [Part(reasoning=text) if field in REASONING_FIELDS else Part(text)]
        return parts


def joined(parts: Sequence[Part]) -> list[Part]:
    """Parts, with consecutive ones of the same kind merged."""
    found: list[Part] = []
    for part in parts:
        before = found[-1] if found and not part.call else None
        if before and not before.call and bool(part.reasoning) == bool(before.reasoning):
            found[-1] = Part(before.content + part.content, before.reasoning + part.reasoning)
        else:
            found.append(part)
    return found


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The format of a model's tool calls."""

    template: dict[str, Any] | None
    hidden: frozenset[int]

    @property
    def closing(self) -> str | None:
        """The string that ends a call; None if there is not exactly one."""
        return CLOSE if self.template is None else None

    def parser(
        self, tokenizer: Any, prompt: str, tools: Sequence[dict[str, Any]], forced: bool
    ) -> TagParser | TemplateParser:
        """A parser for one answer to the whole prompt's text, with the tools in the prompt."""
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
        from ngramspec.hf_model.compat.resources import response_template

        template = response_template(model, tokenizer)
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
