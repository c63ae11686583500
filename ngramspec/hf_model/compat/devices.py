"""The device on which a model takes its inputs, and copies between it and the host.

A copy to the host waits for the device. One to a GPU of CUDA does not, if it is made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch

from ngramspec.draft import Int64

Indices = Callable[[torch.device], torch.Tensor]  # int64, on a device


def input_device(model: Any, given: torch.device) -> torch.device:
    """Return the device to which ``generate`` moves a model's inputs; ``given`` is the prompt's.

    There is no such device if the model's first weights are offloaded.
    """
    own: torch.device = model.device
    return given if own.type == "meta" else own


def device_of(model: Any) -> torch.device:
    """Return the device on which a model computes, also if its weights are offloaded."""
    own: torch.device = model.device
    if own.type != "meta":
        return own
    hooks = (getattr(module, "_hf_hook", None) for module in model.modules())
    devices = (getattr(hook, "execution_device", None) for hook in hooks)
    return torch.device(next((each for each in devices if each is not None), "cpu"))


def is_transient(error: BaseException) -> bool:
    """Whether an error is of the machine, such as too little memory, and proves nothing else."""
    known = isinstance(error, MemoryError | OSError | torch.OutOfMemoryError)
    # A RuntimeError on a CPU, and on Apple's GPUs.
    return known or any(each in str(error) for each in ("can't allocate memory", "out of memory"))


@contextmanager
def loaded(module: Any) -> Iterator[None]:
    """Have a module's own weights inside the block, also if accelerate offloads them."""
    hook = getattr(module, "_hf_hook", None)
    if hook is None:
        yield
        return
    hook.pre_forward(module)
    try:
        yield
    finally:
        hook.post_forward(module, None)


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on a device, without waiting for CUDA, which first copies pageable memory.

    Apple's GPUs would read it later, when it may have been freed (pytorch issue 189690).
    """
    return tensor.to(device, non_blocking=device.type == "cuda")


def moved(value: Any, device: torch.device) -> Any:
    """Return a tensor, or the tensors in a model's arguments or outputs, on a device."""
    return changed(value, lambda tensor: sent(tensor, device))


def changed(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Change a tensor, or each tensor in a model's arguments or outputs."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return type(value)(**{name: changed(each, change) for name, each in value.items()})
    if isinstance(value, tuple | list):
        return type(value)(changed(each, change) for each in value)
    return value


def indices(values: Sequence[Any] | Int64) -> Indices:
    """Return the function that makes an int64 tensor of values on a device, on each only once."""
    host = torch.tensor(values, dtype=torch.int64, device="cpu")
    return cache(lambda device: sent(host, device))


def on_host(first: torch.Tensor, *others: torch.Tensor | None) -> tuple[Int64, list[Int64 | None]]:
    """Return copies of tensors of integers or bools on the host, made in one transfer."""
    given = [first, *(each for each in others if each is not None)]
    flat = torch.cat([each.to(first.device, torch.int64).flatten() for each in given])
    ends = np.cumsum([each.numel() for each in given])
    parts = iter(np.split(flat.cpu().numpy(), ends[:-1]))
    own = next(parts).reshape(first.shape)
    return own, [None if each is None else next(parts).reshape(each.shape) for each in others]
