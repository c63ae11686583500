"""Writing JSON of any size without blocking other threads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fastapi import Response

_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=dict
)
PART_PIECES = 4096  # pieces of few characters that are joined at once; not tuned


def json_parts(value: Any) -> Iterator[str]:
    """Parts of a value's JSON text, each written without holding the GIL for long.

    Args:
        value: a JSON value; it may contain pydantic models.
    """
    pieces = []
    for piece in _ENCODER.iterencode(value):
        pieces.append(piece)
        if len(pieces) == PART_PIECES:
            yield "".join(pieces)
            pieces.clear()
    yield "".join(pieces)


def json_response(value: Any) -> Response:
    """The response with a value's JSON text. For a large value this can take seconds."""
    parts = b"".join([part.encode() for part in json_parts(value)])
    return Response(parts, media_type="application/json")
