"""transformers' classes of models and outputs, and new models, caches and configs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ngramspec.hf_model.compat.caches import new_cache


def output_class(*, beams: bool, encodes: bool) -> Any:
    """Return the class of what ``generate`` returns, for beam search and encoder-decoder models."""
    from transformers import generation

    search, model = "Beam" if beams else "", "EncoderDecoder" if encodes else "DecoderOnly"
    return getattr(generation, f"Generate{search}{model}Output")


def compile_settings(model: Any, config: Any) -> Any:
    """Return a copy of the CompileConfig of a call, or of the model's default one."""
    return copy.copy(config.compile_config or model._default_compile_config())


def compile_config(**settings: Any) -> Any:
    """Return a CompileConfig with which ``generate`` compiles on a CPU, too."""
    from transformers import CompileConfig

    config = CompileConfig(**settings)
    config._compile_all_devices = True
    return config


def model_class(name: str) -> Any:
    """Return the class of transformers with this name, or None."""
    import transformers

    return getattr(transformers, name, None)


def mtp_model(model: Any) -> tuple[Any, set[str]]:
    """Return the class of MTP layers, None before 5.20, and the types of a model's, maybe none."""
    from transformers import modeling_layers

    kind: Any = getattr(modeling_layers, "MtpModel", None)
    if not getattr(model.config.get_text_config(), "num_mtp_layers", None):
        return kind, set()
    if not hasattr(kind, "forward_layer"):
        return None, {"full_attention"}
    kinds = getattr(model.config.get_mtp_config(), "layer_types", None)
    return kind, set(kinds or ("full_attention",))


def mtp_cache(layers: Any) -> Any:
    """Return an empty cache for MTP layers."""
    from transformers.cache_utils import MtpCache

    return MtpCache(config=layers.config)


def mtp_logits(layers: Any, states: Any) -> Any:
    """The logits, (batch, n, vocab), of hidden states of a model's MTP layers, (batch, n, d)."""
    return layers._project_to_logits(states)


def small_model(vocab: int) -> Any:
    """Return a random Llama in float32 on the CPU, to check an untested version with."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.device("cpu"), _OwnGenerator():
        return LlamaForCausalLM(config).eval().float()


class _OwnGenerator(TorchFunctionMode):
    """Weights that are initialized inside are drawn from a separate generator. One thread."""

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator("cpu").manual_seed(0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "generator" in kwargs and kwargs["generator"] is None:
            kwargs["generator"] = self._generator
        return func(*args, **kwargs)


def new_encoder_decoder_cache(own: Any) -> Any:
    """Return a cache for an encoder-decoder model, around that of its decoder."""
    from transformers import EncoderDecoderCache

    return EncoderDecoderCache(own, new_cache())


def new_static_layer(capacity: int) -> Any:
    """Return an empty layer of ``capacity`` positions."""
    from transformers.cache_utils import StaticLayer

    return StaticLayer(max_cache_len=capacity)


def unpacked() -> dict[str, Any]:
    """Arguments of ``from_pretrained`` that convert GGUF weights once, without a hub's kernels."""
    import transformers

    kind = getattr(transformers, "GgufConfig", None)  # before 5.17 there is no other way
    return {} if kind is None else {"quantization_config": kind(dequantize=True)}
