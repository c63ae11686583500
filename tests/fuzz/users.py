"""What users do to a model before its calls: hooks that tell lengths, offloaded weights."""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fuzz.case import Case
from ngramspec.hf_model.compat.caches import cache_of

LONG = 70  # positions: more than any draft of these cases has
COMPRESSING = ("compress", "compress by forward")
STEERING = ("steer one", "steer more")
HOOKS = (*COMPRESSING, *STEERING)
OFFLOADS = ("cpu", "disk")
# Families whose weights are offloaded more often than others': those that count their own
# positions, and hybrids, of which trial forwards are made.
OFFLOADED = (
    *("bart", "mbart", "m2m100", "marian", "trocr decoder", "bart decoder", "t5", "gpt2"),
    *("BlenderbotForConditionalGeneration", "FalconH1ForCausalLM", "JambaForCausalLM"),
    *("Lfm2ForCausalLM", "Qwen3NextForCausalLM", "BambaForCausalLM", "GraniteMoeHybridForCausalLM"),
)


@contextmanager
def prepared(case: Case, model: Any) -> Iterator[Any]:
    """The model of a case's calls: the given one, or a copy with hooks or offloaded weights."""
    vars(model).pop("_previous_max_cache_length", None)  # of another case, or the other side
    if not (case.hooks or case.offload):
        yield model
        return
    model = copy.deepcopy(model)
    with tempfile.TemporaryDirectory() as folder:
        if case.offload:
            _offload(model, case.offload, folder)
        if case.hooks in STEERING:
            steer = functools.partial(_steer, case.hooks == "steer one")
            model.get_input_embeddings().register_forward_hook(steer)
        for module in model.modules() if case.hooks in COMPRESSING else ():
            if "layer_idx" not in vars(module) or "Attention" not in type(module).__name__:
                continue
            if case.hooks == "compress":
                module.register_forward_hook(_compress, with_kwargs=True)
            else:
                module.forward = functools.partial(_compressing, module, module.forward)
        yield model


def _offload(model: Any, kind: str, folder: str) -> None:
    from accelerate import cpu_offload, dispatch_model

    if kind == "cpu":
        cpu_offload(model, execution_device=torch.device("cpu"))
    else:
        parts = dict.fromkeys(model._modules, "disk")
        parts |= dict.fromkeys((*model._parameters, *model._buffers), "cpu")
        dispatch_model(model, parts, offload_dir=folder)


def _steer(one: bool, module: Any, args: Any, embeddings: torch.Tensor) -> torch.Tensor:
    """Other embeddings in forwards of one position, or of more than one."""
    return embeddings.flip(-1) if (embeddings.shape[1] == 1) == one else embeddings


def _compress(module: Any, args: Any, kwargs: Any, output: Any) -> None:
    """Keep the first 4 and the last 12 keys and values after a forward of many positions."""
    states, cache = [*args, kwargs.get("hidden_states")][0], cache_of(kwargs)
    if cache is None or states is None or states.shape[1] <= LONG:
        return
    layer = cache.layers[module.layer_idx]
    if not layer.is_sliding:
        for name in ("keys", "values"):
            whole = getattr(layer, name)
            setattr(layer, name, torch.cat((whole[..., :4, :], whole[..., -12:, :]), dim=-2))


def _compressing(module: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
    output = forward(*args, **kwargs)
    _compress(module, args, kwargs, output)
    return output
