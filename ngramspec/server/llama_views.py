"""llama.cpp's ``/props`` and ``/tokenize``, as far as its clients read them."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict

from ngramspec import __version__
from ngramspec.server.auth import Client
from ngramspec.server.errors import refuse_unless
from ngramspec.server.fim import leading_tokens
from ngramspec.server.infill import DEFAULT_TEMPERATURE
from ngramspec.server.json_text import json_response
from ngramspec.server.openai_types import LlamaBody
from ngramspec.server.service import Service

MAX_TEXT_CHARACTERS = 1 << 18  # in a request to ``/tokenize``; not tuned
SAMPLING_FIELDS = {
    *("n_predict", "seed", "stop", "ignore_eos", "top_k", "top_p", "min_p"),
    *("repeat_penalty", "presence_penalty", "frequency_penalty"),
}


class TokenizeBody(BaseModel):
    """The body of ``/tokenize``."""

    model_config = ConfigDict(extra="allow")

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


def props(service: Service) -> dict[str, Any]:
    """The context size, the template and the default parameters."""
    tokenizer, name = service.tokenizer, service.settings.name
    params = LlamaBody().model_dump(include=SAMPLING_FIELDS) | {"temperature": DEFAULT_TEMPERATURE}
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):  # several templates by name
        template = template.get("default")
    return {
        "default_generation_settings": {"n_ctx": service.context, "params": params},
        "total_slots": service.settings.limits.active,
        "model_alias": name,
        "model_path": name,  # the path itself is of no use to a client
        "chat_template": template or "",
        "bos_token": tokenizer.bos_token or "",
        "eos_token": tokenizer.eos_token or "",
        "modalities": {"vision": False, "audio": False},
        "build_info": f"ngramspec {__version__}",
    }


async def tokenize(
    service: Service, body: TokenizeBody, client: Client, request: Request
) -> Response:
    """The ids of a text; an ApiError if ``with_pieces`` is set, or the text is too long."""
    refuse_unless(not body.with_pieces, "with_pieces", "not supported here")
    message = f"at most {MAX_TEXT_CHARACTERS} characters, got {len(body.content)}"
    refuse_unless(len(body.content) <= MAX_TEXT_CHARACTERS, "content", message)
    return await service.reading.run(request, _tokenized, service, body)


def _tokenized(service: Service, body: TokenizeBody) -> Response:
    if body.parse_special:
        ids = service.encode_prompt(body.content, body.add_special, None)
    else:
        before = leading_tokens(service.tokenizer) if body.add_special else []
        ids = before + service.text.encode(body.content)
    return json_response({"tokens": ids})
