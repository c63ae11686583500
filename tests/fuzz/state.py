"""What a process, a model and a call's arguments hold: put back, or compared."""

from __future__ import annotations

import copy
import logging
import pickle
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from conftest import AssumedStepCosts

from ngramspec.costs import model as cost_model
from ngramspec.costs.processors import AMX
from ngramspec.decoding import setup
from ngramspec.hf_model.compat.caches import CACHE_NAMES


@contextmanager
def isolated(default_dtype: str) -> Iterator[None]:
    """Nothing that ran before counts, and forwards take what is assumed of them."""
    cost_model._models.clear()
    before = torch.get_default_dtype()
    fixed = {"StepCosts": AssumedStepCosts, "cpu_kind": lambda: AMX}
    with warnings.catch_warnings(), mock.patch.multiple(setup, **fixed):
        warnings.simplefilter("ignore")
        torch.set_default_dtype(getattr(torch, default_dtype))
        try:
            yield
        finally:
            torch.set_default_dtype(before)


OF_LAST_FORWARD = ("expert_capacity",)  # NLLB-MoE's routers compute it in each forward


def of_model(model: Any) -> dict[str, Any]:
    """What can be left on a model: attributes, modes, hooks, its configurations."""
    found: dict[str, Any] = {"config": model.config.to_dict()}
    found["generation_config"] = model.generation_config.to_dict()
    for name, module in model.named_modules():
        hooks = {**module._forward_hooks, **module._forward_pre_hooks}.items()
        stay = {at for at, each in hooks if type(each).__module__.startswith("ngramspec.")}
        for key, value in vars(module).items():
            if key in OF_LAST_FORWARD:
                continue
            if key.startswith("_forward_"):
                value = {at: each for at, each in value.items() if at not in stay}
            if key == "_modules":
                value = [*value]
            elif key in ("_parameters", "_buffers"):  # and whether they are offloaded
                value = {each: str(getattr(part, "device", "")) for each, part in value.items()}
            found[f"{name}.{key}"] = _brief(value)
    return found


def of_process() -> tuple[Any, ...]:
    """Random states that are nobody's here, and torch's modes."""
    numpy = np.random.get_state()
    return (
        random.getstate(),
        (numpy[0], numpy[1].tobytes(), *numpy[2:]),  # type: ignore[index]
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
    )


def of_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, but for its cache, which a call is to change."""
    return {name: _brief(value) for name, value in kwargs.items() if name not in CACHE_NAMES}


def length_of(cache: Any) -> int | None:
    """How many positions a cache holds; None: there is none."""
    try:
        return None if cache is None else int(cache.get_seq_length())
    except (AttributeError, TypeError, ValueError):  # recurrent layers, and caches of old kinds
        return None


def layers_of(cache: Any) -> list[Any]:
    """The kind and size of each layer of a cache, or of a decoder's, and the shapes of its states.

    Others than keys and values are not compared: a recurrent state has one shape.
    """
    own = getattr(cache, "self_attention_cache", cache)
    found = []
    for each in getattr(own, "layers", ()):
        states = [getattr(each, name, None) for name in ("keys", "values")]
        shapes = [None if one is None else (*one.shape,) for one in states]
        found.append((type(each).__name__, getattr(each, "max_cache_len", None), shapes))
    return found


def bytes_of(*values: Any) -> int:
    """Bytes of the memory that the tensors in some values keep alive."""
    found, left = dict[int, int](), [*values]
    while left:
        value = left.pop()
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, list | tuple):
            left += value
        elif isinstance(value, dict):
            left += value.values()
        elif hasattr(value, "layers"):  # a cache
            left += [vars(each) for each in value.layers]
    return sum(found.values())


def saved(model: Any) -> set[str]:
    """What is found in a model and its copies: their attentions' names; or why it has no copy."""
    try:
        copies = [model, copy.deepcopy(model.config), pickle.loads(pickle.dumps(model))]
    except Exception as error:
        return {f"{type(error).__name__}: {error}"}
    parts = [part for each in (copies[0], copies[2]) for part in each.modules()]
    configs = [copies[1], *(vars(each).get("config") for each in parts)]
    names = [getattr(each, "_attn_implementation", None) for each in configs]
    return {f"{type(each).__name__} {each}" for each in names}


UNSHOWN = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)


class Told(logging.Handler):
    """What a block warns of and logs, ngramspec's own lines excepted; each as if for once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("ngramspec"):
            self.lines.append(f"{record.levelname} {record.getMessage()}")

    @contextmanager
    def listening(self) -> Iterator[None]:
        root, own = logging.getLogger(), logging.getLogger("transformers")
        before = logging.root.manager.disable, torch.is_warn_always_enabled()
        logging.Logger.warning_once.cache_clear()  # type: ignore[attr-defined]
        logging.disable(logging.NOTSET)
        torch.set_warn_always(True)
        try:
            with (
                warnings.catch_warnings(record=True) as shown,
                mock.patch.multiple(own, handlers=[self], level=logging.WARNING),
                mock.patch.multiple(root, handlers=[self]),
            ):
                warnings.simplefilter("always")
                yield
        finally:
            logging.disable(before[0])
            torch.set_warn_always(before[1])
            kept = [each for each in shown if not issubclass(each.category, UNSHOWN)]
            self.lines += [f"{each.category.__name__} {each.message}" for each in kept]


def _brief(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, list | tuple):
        return [_brief(each) for each in value]
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, dict):
        if value and all(isinstance(each, int) for each in value):  # hooks, by running numbers
            return [_brief(each) for each in value.values()]
        return {str(key): _brief(each) for key, each in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return type(value).__name__


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Names under which two states differ."""
    names = sorted(first.keys() | second.keys())
    missing = object()
    return [each for each in names if first.get(each, missing) != second.get(each, missing)]
