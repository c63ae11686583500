"""A test double for torch.compile, which does not work on the simulated GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any
from unittest.mock import patch

from ngramspec.hf_model import compiled
from ngramspec.hf_model.compat.caches import cache_of

IDS = ("decoder_input_ids", "input_ids")


class Compiler:
    """Compiles a forward of a new shape in its first run, and captures it in its second one.

    Attributes:
        events: in order, the widths compiled and captured, "token" for each, and "end".
        widths: of all forwards.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.events, self.widths = model, [], []
        self.runs, self.count = Counter(), 0
        self._compiled = model.get_compiled_call

    def get_compiled_call(self, settings: Any) -> Any:
        assert settings is None or settings.dynamic is False  # None: of a prefill in chunks
        call = self._compiled(settings)  # which compiles nothing before it is called
        return call if isinstance(call, MethodType) else partial(self.run)

    def run(self, **inputs: Any) -> Any:
        width = next(inputs[each].shape[1] for each in IDS if each in inputs)
        cache = cache_of(inputs)
        size = getattr(cache, "self_attention_cache", cache).layers[0].max_cache_len
        self.runs[width, size] += 1
        self.widths.append(width)
        if self.runs[width, size] <= 2:
            self.count += 1
            self.events.append(width)
        return self.model(**inputs)

    def put(self, tokens: Any) -> None:
        self.events.append("token")

    def end(self) -> None:
        self.events.append("end")


@contextmanager
def compiling(model: Any) -> Iterator[Compiler]:
    """Replace a model's compiler by the double inside the block; nothing is compiled before."""
    found = Compiler(model)
    compiled._ready.clear()
    try:
        with (
            patch.object(model, "get_compiled_call", found.get_compiled_call),
            patch.object(compiled, "compilations", lambda: found.count),
        ):
            yield found
    finally:
        compiled._ready.clear()
