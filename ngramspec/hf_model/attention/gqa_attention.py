"""Grouped-query attention on a CPU without a copy of the cache for every query head.

A forward over several positions has a mask, and with a mask transformers' sdpa attention first
repeats a layer's keys and values for all query heads of their group, because some GPU kernels need
that. torch's CPU kernel reads them in place, with the same arithmetic in the same order. The copies
take about 8 % of such a forward (SmolLM2-135M, two cores). So ngramspec registers a function that
makes no copies under a name of its own, with bitwise equal results.

transformers looks up the name in the model's config, and has no argument for it. So the configs of
the model's layers have our name during our forwards over several positions. Another thread that
runs the model at that time finds the same function, which then calls transformers' one, and the
name equals "sdpa". A copy of the model with other configs would miss the state that some models
keep between their forwards.

In bfloat16 the kernel converts the keys for each query head. With up to ``MAX_FOLDED_POSITIONS``
positions, which it handles in one block, this takes longer than the products. The query heads of a
group are then passed as additional positions of one head, which halves the time (batches of 4 to 16
rows). The results were bitwise equal on the processor where this was measured; other processors may
round the wider product differently.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.functional import scaled_dot_product_attention

from ngramspec.hf_model.compat.hf_private import attention_name, configs_of, set_attention_name

Attention = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]
# Attention in a forward over several sequences, see ``JointForward.attend``.
Splits = Callable[..., torch.Tensor]


# Arguments that ``grouped`` handles, and arguments that it leaves to the original function.
HANDLED = ("module", "query", "key", "value", "attention_mask", "dropout", "scaling", "is_causal")
UNHANDLED = ("softcap", "output_attentions")
MAX_FOLDED_POSITIONS = 32  # query positions of a group over all its heads: the kernel's block size


class _Thread(threading.local):
    """State of one thread's forwards."""

    on = False  # whether they attend without copies
    splits: Splits | None = None  # splits their attention by sequences

    def __init__(self) -> None:
        # Of the current forward, by identity, dtype and number of repetitions of its positions:
        # the mask as given, and as added to the scores.
        self.masks: dict[tuple[int, torch.dtype, int], tuple[torch.Tensor, torch.Tensor]] = {}


class _Name(str):
    """The name of our function. It equals "sdpa", because models compare it to choose masks.

    torch.compile traces these methods, and it cannot trace those of ``str`` called by a subclass.
    """

    __slots__ = ()

    def __hash__(self) -> int:
        return hash("ngramspec")

    def __eq__(self, other: object) -> bool:
        return other == "sdpa" or other == "ngramspec"

    def __ne__(self, other: object) -> bool:
        return not self == other


NAME = _Name("ngramspec")
_thread = _Thread()
_lock = threading.Lock()
_configs: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()  # by model, of its modules
_uses: dict[int, int] = {}  # by the ``id`` of a config, the running forwards that need our name


@contextmanager
def in_place(model: Any, device: torch.device) -> Iterator[None]:
    """Let this thread's forwards on a CPU attend without copies inside the block."""
    if device.type != "cpu":
        yield
        return
    before = _thread.on
    _thread.on = True
    try:
        with _named(model):
            yield
    finally:
        _thread.on = before
        _thread.masks.clear()


@contextmanager
def split_by(model: Any, splits: Splits) -> Iterator[None]:
    """Split this thread's attention by sequences inside the block; see ``available``."""
    before, _thread.splits = _thread.splits, splits
    try:
        with _named(model):
            yield
    finally:
        _thread.splits = before


@contextmanager
def _named(model: Any) -> Iterator[None]:
    """Let the layers of a model that use "sdpa" use our function inside the block."""
    if not available():
        yield
        return
    if model not in _configs:
        _configs[model] = configs_of(model)
    configs = [each for each in _configs[model] if attention_name(each) == "sdpa"]
    with _lock:
        for config in configs:
            _uses[id(config)] = _uses.get(id(config), 0) + 1
            set_attention_name(config, NAME)
    try:
        yield
    finally:
        with _lock:
            for config in configs:
                _uses[id(config)] -= 1
                if not _uses[id(config)]:
                    del _uses[id(config)]
                    if attention_name(config) is NAME:
                        set_attention_name(config, "sdpa")


def grouped(original: Attention) -> Attention:
    """Return an sdpa attention that makes no copies inside ``in_place``.

    It has the arguments of ``original``, transformers' function: query (batch, heads, n, size), key
    and value (batch, key heads, keys, size), attention_mask (batch or 1, 1 or heads, n, keys). It
    returns (batch, n, heads, size), and None in place of attention weights.
    """
    parameters = inspect.signature(original).parameters.values()
    named = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    others = (*(name for name in named if name not in HANDLED), *UNHANDLED)

    def attend_row(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if (
            torch.compiler.is_compiling()
            or not _thread.on
            or attention_mask is None
            or query.device.type != "cpu"
            or query.shape[2] == 1
            or getattr(module, "num_key_value_groups", 1) * key.shape[1] != query.shape[1]
            or not all(kwargs.get(name) is None or kwargs[name] is False for name in others)
        ):
            kwargs |= {"dropout": dropout, "scaling": scaling, "is_causal": is_causal}
            return original(module, query, key, value, attention_mask, **kwargs)
        positions, group = query.shape[2], query.shape[1] // key.shape[1]
        folds = query.dtype == torch.bfloat16 and positions * group <= MAX_FOLDED_POSITIONS
        if not folds or attention_mask.shape[1] > 1:  # Doge's masks differ between heads
            group = 1
        out = scaled_dot_product_attention(
            _fold(query, group),
            key,
            value,
            attn_mask=_added(attention_mask, query.dtype, group),
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=group == 1 and query.shape[1] != key.shape[1],
        )
        out = out.reshape(*query.shape[:3], out.shape[3])
        return out.transpose(1, 2).contiguous(), None

    @functools.wraps(original)
    def attend(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        splits = None if torch.compiler.is_compiling() else _thread.splits
        if splits is None:
            return attend_row(module, query, key, value, attention_mask, **kwargs)
        return splits(attend_row, module, query, key, value, **kwargs), None

    return attend


def _fold(query: torch.Tensor, group: int) -> torch.Tensor:
    """Reshape a group's query heads into positions: (batch, heads / group, group * n, size)."""
    if group == 1:
        return query
    batch, heads, positions, size = query.shape
    return query.reshape(batch, heads // group, group * positions, size)


def _added(mask: torch.Tensor, dtype: torch.dtype, times: int = 1) -> torch.Tensor:
    """Return a mask as torch adds it to scores of ``dtype``, made once for all layers.

    ``mask`` is (batch or 1, 1, n, keys), bool, or floats to add. Its positions are repeated
    ``times`` times.
    """
    if mask.dtype != torch.bool and times == 1:
        return mask
    known, added = _thread.masks.get((id(mask), dtype, times), (None, mask))
    if known is None:
        if mask.dtype == torch.bool:
            zero = torch.zeros((), dtype=dtype, device=mask.device)
            added = zero.masked_fill(~mask, -torch.inf)
        if times > 1:
            added = added.repeat(1, 1, times, 1)
        _thread.masks[id(mask), dtype, times] = mask, added
    return added


def available() -> bool:
    """Register our function. Return False if "sdpa" is another function than transformers'."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

    if NAME not in ALL_ATTENTION_FUNCTIONS:
        AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
        AttentionInterface.register(NAME, grouped(sdpa_attention_forward))
    return ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
