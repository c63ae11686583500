"""Answers that xgrammar holds to a form: ``response_format``, and calls of tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from ngramspec.server.errors import bad, refuse_unless
from ngramspec.server.openai_types import ChatRequest
from ngramspec.server.service import Service
from ngramspec.server.tool_parsers import CLOSE, OPEN

INSTALL = "pip install --no-deps xgrammar==0.2.8 && pip install apache-tvm-ffi"
MOST_SCHEMA = 65536  # characters of a JSON schema: what larger ones compile to is not bounded


def grammar_of(service: Service, body: ChatRequest) -> Callable[[], Any] | None:
    """What makes the processor of a request's form; None: any text. It may take seconds.

    Raises:
        ApiError: xgrammar is not installed, or cannot read the schema.
    """
    form, param = body.response_format, body.constrained_by
    if form is not None and form.type != "text":
        refuse_unless(not body.offered, "response_format", "not supported together with tools")
        check(service, "response_format", form.type)
        compiler = service.grammars()
        if form.type == "json_object":
            return _processor(compiler.compile_builtin_json_grammar())
        schema = (form.json_schema or {}).get("schema")
        refuse_unless(isinstance(schema, dict), "response_format", "json_schema has no schema")
        return _compiled(compiler.compile_json_schema, "response_format", json.dumps(schema))
    if param is None:
        return None
    assert service.tool_format is not None
    tagged = service.tool_format.template is None
    refuse_unless(tagged, param, "not supported for the form of this model's calls")
    check(service, param, "this value")
    return _compiled(service.grammars().compile_structural_tag, "tools", json.dumps(form_of(body)))


def check(service: Service, param: str, value: str) -> None:
    """Refuse what needs a grammar where there can be none."""
    if find_spec("xgrammar") is None:
        raise bad(param, f"{value} needs xgrammar on the server: {INSTALL}")
    refuse_unless(bool(service.eos), param, "the model has no token that ends a text")


def form_of(body: ChatRequest) -> dict[str, Any]:
    """xgrammar's structural tag of the calls that a request allows.

    Nothing but calls where there must be one, else text with calls in it.
    """
    chosen = body.chosen
    tags = []
    for tool in body.offered:
        function = tool["function"]
        if chosen in (None, function["name"]):
            schema = function.get("parameters") or {"type": "object"}
            tag = {
                "type": "tag",
                "begin": f'{OPEN}\n{{"name": {json.dumps(function["name"])}, "arguments": ',
                "content": {"type": "json_schema", "json_schema": schema},
                "end": f"}}\n{CLOSE}",
            }
            tags.append(tag)
    form: dict[str, Any] = {"tags": tags, "stop_after_first": not body.several}
    if body.must_call:
        form |= {"type": "tags_with_separator", "separator": "\n", "at_least_one": True}
    else:
        form |= {"type": "triggered_tags", "triggers": [OPEN]}
    return {"type": "structural_tag", "format": form}


def _compiled(compile: Callable[[str], Any], param: str, text: str) -> Callable[[], Any]:
    refuse_unless(len(text) <= MOST_SCHEMA, param, f"at most {MOST_SCHEMA} bytes of schema")
    try:
        return _processor(compile(text))
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise bad(param, f"the schema cannot be used: {reason}") from error


def _processor(grammar: Any) -> Callable[[], Any]:
    import xgrammar

    return lambda: xgrammar.contrib.hf.LogitsProcessor(grammar)
