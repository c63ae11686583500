"""Answers constrained by xgrammar: schemas, grammars and tool calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

from ngramspec.server.auth import Client
from ngramspec.server.errors import bad, refuse_unless
from ngramspec.server.grammar_pool import UnusableGrammarError
from ngramspec.server.openai_types import ChatBody, LlamaBody
from ngramspec.server.responses import json_parts
from ngramspec.server.service import Service
from ngramspec.server.tool_parsers import CLOSE, OPEN

INSTALL = "pip install --no-deps xgrammar==0.2.8 && pip install apache-tvm-ffi"
MAX_SCHEMA_CHARACTERS = 65536  # bounds the size of the compiled grammar; not tuned


# The request's field that requires a grammar, and the grammar's kind and text, see
# ``grammar_worker.compiled``.
Source = tuple[str, str, str]


async def grammar_of(
    service: Service, source: Callable[[], Source | None], client: Client
) -> Callable[[], Any] | None:
    """The factory of a request's logits processor; None if any text is allowed.

    ``source`` is called in a thread. This can take seconds. Cancelling this call ends the
    compilation. An ApiError says that xgrammar is not installed, or cannot compile the grammar
    within the time limit.
    """
    found = await asyncio.to_thread(source)
    if found is None:
        return None
    param, kind, text = found
    try:
        grammar = await service.grammars.compile(client.user, kind, text)
    except UnusableGrammarError as error:
        what = "grammar" if kind == "grammar" else "schema"
        raise bad(param, f"the {what} cannot be used: {error}") from error
    import xgrammar

    return partial(xgrammar.contrib.hf.LogitsProcessor, grammar)


def source_of_llama(service: Service, body: LlamaBody) -> Source | None:
    """The grammar that a request to llama.cpp's routes asks for; see ``source_of_chat``.

    As in llama.cpp, ``grammar`` takes precedence over ``json_schema``.
    """
    param = "json_schema" if body.grammar is None else "grammar"
    given = getattr(body, param)
    if given is None:
        return None
    check_available(service, param, "it")
    refuse_unless(not body.ignore_eos, "ignore_eos", f"not supported together with {param}")
    if param == "json_schema":
        return param, param, bounded_json(param, given)
    most = MAX_SCHEMA_CHARACTERS
    refuse_unless(len(given) <= most, param, f"at most {most} characters, got {len(given)}")
    return param, param, given


def source_of_chat(service: Service, body: ChatBody) -> Source | None:
    """The grammar that a chat asks for, or an ApiError if it is not supported; None: any text."""
    form, param = body.response_format, body.constrained_by
    if form is not None and form.type != "text":
        param = "response_format"
        refuse_unless(not body.offered, param, "not supported together with tools")
        check_available(service, param, form.type)
        if form.type == "json_object":
            return param, "json", ""
        schema = (form.json_schema or {}).get("schema")
        refuse_unless(isinstance(schema, dict), param, "json_schema has no schema")
        return param, "json_schema", bounded_json(param, schema)
    if param is None:
        return None
    assert service.tool_format is not None
    tagged = service.tool_format.template is None
    refuse_unless(tagged, param, "not supported for the form of this model's calls")
    check_available(service, param, "this value")
    return "tools", "structural_tag", bounded_json("tools", structural_tag(body))


def check_available(service: Service, param: str, value: str) -> None:
    """Refuse a field that needs a grammar if grammars are not available."""
    known = find_spec("xgrammar") is not None
    refuse_unless(known, param, f"{value} needs xgrammar on the server: {INSTALL}")
    refuse_unless(bool(service.eos), param, "the model has no token that ends a text")


def structural_tag(body: ChatBody) -> dict[str, Any]:
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


def bounded_json(param: str, schema: Any) -> str:
    """The JSON text of a schema, which is written only up to the limit."""
    text = ""
    try:
        for part in json_parts(schema):
            text += part
            refuse_unless(
                len(text) <= MAX_SCHEMA_CHARACTERS,
                param,
                f"at most {MAX_SCHEMA_CHARACTERS} characters of schema",
            )
    except ValueError as error:
        raise bad(param, "the schema has a number that float64 cannot represent") from error
    return text
