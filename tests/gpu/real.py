"""A real GPU in place of the pretended one; a CPU does, too, to try the cases beforehand."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any
from unittest.mock import patch

import torch
from gpu.device import FORWARD, WAIT, Event, Seen

from benchmarks.syncs import host_syncs


class RealGpu:
    """A device of torch, with what ``cases`` asks of the pretended one."""

    def __init__(self, name: str) -> None:
        self.name, self.device = name, torch.device(name)
        self.make = partial(torch.Generator, self.device)

    def put(self, value: Any) -> Any:
        """A copy on the device of a tensor or a model."""
        return copy.deepcopy(value).to(self.device)

    @contextmanager
    def watch(self, model: Any) -> Iterator[Seen]:
        """The waits inside the block, and the beginnings of a model's forwards."""
        seen, table = Seen(), model.get_input_embeddings().weight
        embed, compiled = torch.nn.functional.embedding, model.get_compiled_call

        def embedding(ids: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling() and weight is table:
                places.append(FORWARD)
            return embed(ids, weight, *args, **kwargs)

        def get_compiled_call(settings: Any) -> Any:
            call = compiled(settings)

            def counted(**inputs: Any) -> Any:
                places.append(FORWARD)
                return call(**inputs)

            return call if isinstance(call, MethodType) else counted

        with (
            patch.object(torch.nn.functional, "embedding", embedding),
            patch.object(model, "get_compiled_call", get_compiled_call),
            host_syncs(self.device) as places,
        ):
            yield seen
        for each in places:
            event = Event(FORWARD) if each == FORWARD else Event(WAIT, "wait", each)
            seen.events.append(event)
