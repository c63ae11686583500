"""Kernels of torch for forwards over several positions.

These are attention on CUDA, ``topk`` in indexes of keys, and linear layers of bfloat16 models with
weights packed for the CPU, by torch's oneDNN operators.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from platform import machine
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ngramspec.hf_model.compat.hooks import call_after, call_before


def skips_mask(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether FlashAttention takes them and aligns its causal mask to the end (not AMD's)."""
    kernels, fits = torch.backends.cuda, query.shape[3] % 8 == 0 and not torch.version.hip
    given = kernels.SDPAParams(query, key, value, None, 0.0, False, True)
    return fits and kernels.can_use_flash_attention(given)


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
) -> Tensor | None:
    """Attend under a mask added to the scores; without one under FlashAttention's causal mask.

    Returns None if the memory-efficient kernel cannot be used. So cuDNN is used only if the caller
    has excluded the other kernels: it plans for every new shape, which takes 20 to 70 ms, and
    forwards with drafts seldom have the same shape twice.
    """
    kernels, aten = torch.backends.cuda, torch.ops.aten
    out: Tensor | None = None
    if mask is None:
        flash = aten._scaled_dot_product_flash_attention
        out = flash(query, key, value, is_causal=True, scale=scale)[0]
        return out
    mask = mask.expand(*query.shape[:3], -1)
    given = kernels.SDPAParams(query, key, value, mask, 0.0, False, False)
    if kernels.can_use_efficient_attention(given):
        efficient = aten._scaled_dot_product_efficient_attention
        out = efficient(query, key, value, mask, False, scale=scale)[0]
    return out


TOPK_FUNCTIONS = (torch.topk, torch.Tensor.topk)
_indexers: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()  # by model


class _Thread(threading.local):
    """What changes the selections of one thread's forward, and whether it is entered."""

    alone: _Alone | None = None

    def __init__(self) -> None:
        self.entered = ExitStack()


@contextmanager
def causal_topk(model: Any, positions: int, keys: int) -> Iterator[None]:
    """Let each position of this thread's next forward select keys as in a separate forward.

    This changes selections among all ``keys`` in the modules that select for indexed attention.
    """
    if model not in _indexers:
        named = [(each, type(each).__name__) for each in model.modules()]
        _indexers[model] = [each for each, name in named if name.endswith("Indexer")]
    for each in _indexers[model]:
        call_before(each, _enter)
        call_after(each, _leave)
    _thread.alone = _Alone(positions, keys)
    try:
        yield
    finally:
        _thread.alone = None
        _thread.entered.close()  # the hooks do not run after an error


def _enter(*_: Any) -> None:
    if _thread.alone is not None:
        _thread.entered.enter_context(_thread.alone)


def _leave(*_: Any) -> None:
    _thread.entered.close()


class _Alone(TorchFunctionMode):
    """Runs ``topk`` of (batch, positions, keys) for each position on the keys up to its own."""

    def __init__(self, positions: int, keys: int) -> None:
        super().__init__()
        self.positions, self.keys = positions, keys

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if func in TOPK_FUNCTIONS and args[0].shape[1:] == (self.positions, self.keys):
            scores, selected = args[0], found[0].shape[-1]
            for at, seen in enumerate(range(self.keys - self.positions + 1, self.keys)):
                if seen > selected:  # otherwise it attends to all keys up to its own
                    own = func(scores[:, at : at + 1, :seen], *args[1:], **kwargs)
                    for whole, row in zip(found, own, strict=True):
                        whole[:, at : at + 1] = row
        return found


_thread = _Thread()


def can_pack() -> bool:
    """Return whether this torch can multiply by packed bfloat16 weights here: an x86 processor."""
    x86, built = machine() in ("x86_64", "AMD64"), torch._C._has_mkldnn
    return x86 and built and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_linear_layers(model: Any) -> None:
    """Store a bfloat16 model's linear weights in the order in which an x86 CPU multiplies by them.

    Products with few positions take less time than with torch's order. The layers' own weights are
    released, except the output layer's, so afterwards the model can only generate. It stays as it
    is on other devices, in other dtypes, and if it reads a layer's weights in its own code.
    """
    operators = torch.ops.mkldnn
    if not can_pack() or model.device.type != "cpu":
        return
    modules, head = list(model.modules()), model.get_output_embeddings()
    users = Counter(id(each) for module in modules for each in module.parameters(recurse=False))
    packed = {}
    for module in modules:
        if type(module) is torch.nn.Linear and module.weight.dtype == torch.bfloat16:
            weight = operators._reorder_linear_weight(module.weight.detach(), 1)
            multiply = partial(_multiply, operators._linear_pointwise, weight, module.bias)
            vars(module)["forward"] = multiply
            packed[module] = weight
            if module is not head and users[id(module.weight)] == 1:
                del module.weight
    ids = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    try:
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1)
    except AttributeError:  # a weight that is released
        for module, weight in packed.items():
            del module.forward
            if not hasattr(module, "weight"):
                module.weight = torch.nn.Parameter(weight.to_dense(), requires_grad=False)


def _multiply(linear: Any, weight: Any, bias: Any, inputs: Any) -> Any:
    return linear(inputs, weight, bias, "none", [], "")
