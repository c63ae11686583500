"""Answers constrained by xgrammar: ``response_format`` and tool calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

from ngramspec.server.auth import Client
from ngramspec.server.errors import bad, refuse_unless
from ngramspec.server.grammar_pool import UnusableGrammarError
from ngramspec.server.openai_types import ChatBody
from ngramspec.server.responses import json_parts
from ngramspec.server.service import Service
from ngramspec.server.tool_parsers import CLOSE, OPEN

INSTALL = "pip install --no-deps xgrammar==0.2.8 && pip install apache-tvm-ffi"
MAX_SCHEMA_CHARACTERS = 65536  # bounds the size of the compiled grammar; not tuned


async def grammar_of(service: Service, body: ChatBody, client: Client) -> Callable[[], Any] | None:
    """The factory of a request's logits processor; None if any text is allowed.

    It can take seconds. Cancelling this call ends the compilation.

    Raises:
        ApiError: xgrammar is not installed, or cannot compile the schema within the time limit.
    """
    form = await asyncio.to_thread(form_asked, service, body)
    if form is None:
        return None
    try:
        grammar = await service.grammars.compile(client.user, form.kind, form.text)
    except UnusableGrammarError as error:
        raise bad(form.param, f"the schema cannot be used: {error}") from error
    import xgrammar

    return partial(xgrammar.contrib.hf.LogitsProcessor, grammar)


@dataclass(frozen=True, slots=True)
class Form:
    """The source of a grammar (``kind`` and ``text``), and the request's field that requires it.

    See ``grammar_worker.compiled``.
    """

    param: str
    kind: str
    text: str


def form_asked(service: Service, body: ChatBody) -> Form | None:
    """The form that a request asks for, or an ApiError if it is not supported; None: any text."""
    form, param = body.response_format, body.constrained_by
    if form is not None and form.type != "text":
        refuse_unless(not body.offered, "response_format", "not supported together with tools")
        check(service, "response_format", form.type)
        if form.type == "json_object":
            return Form("response_format", "json", "")
        schema = (form.json_schema or {}).get("schema")
        refuse_unless(isinstance(schema, dict), "response_format", "json_schema has no schema")
        return _bounded("response_format", "json_schema", schema)
    if param is None:
        return None
    assert service.tool_format is not None
    tagged = service.tool_format.template is None
    refuse_unless(tagged, param, "not supported for the form of this model's calls")
    check(service, param, "this value")
    return _bounded("tools", "structural_tag", form_of(body))


def check(service: Service, param: str, value: str) -> None:
    """Refuse a field that needs a grammar if grammars are not available."""
    if find_spec("xgrammar") is None:
        raise bad(param, f"{value} needs xgrammar on the server: {INSTALL}")
    refuse_unless(bool(service.eos), param, "the model has no token that ends a text")


def form_of(body: ChatBody) -> dict[str, Any]:
    """xgrammar's structural tag for the calls that a request allows.

    If the request requires a call, only calls are allowed; otherwise text that may contain calls.
    """
    chosen = body.chosen
    functions = [tool["function"] for tool in body.offered]
    tags = [
        {
            "type": "tag",
            "begin": f'{OPEN}\n{{"name": {json.dumps(each["name"])}, "arguments": ',
            "content": {
                "type": "json_schema",
                "json_schema": each.get("parameters") or {"type": "object"},
            },
            "end": f"}}\n{CLOSE}",
        }
        for each in functions
        if chosen in (None, each["name"])
    ]
    form: dict[str, Any] = {"tags": tags, "stop_after_first": not body.several}
    if body.must_call:
        form |= {"type": "tags_with_separator", "separator": "\n", "at_least_one": True}
    else:
        form |= {"type": "triggered_tags", "triggers": [OPEN]}
    return {"type": "structural_tag", "format": form}


def _bounded(param: str, kind: str, given: Any) -> Form:
    text = ""
    try:
        for part in json_parts(given):
            text += part
            refuse_unless(
                len(text) <= MAX_SCHEMA_CHARACTERS,
                param,
                f"at most {MAX_SCHEMA_CHARACTERS} characters of schema",
            )
    except ValueError as error:
        raise bad(param, "the schema has a number that float64 cannot represent") from error
    return Form(param, kind, text)
