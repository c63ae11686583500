"""What few calls need of transformers: fields of configs, compiled forwards, MTP layers, files."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch.overrides import TorchFunctionMode

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.compat.caches import new_cache
from ngramspec.hf_model.compat.hooks import call_after, call_before
from ngramspec.hf_model.compat.names import text_config

# Classes of models and of outputs


def model_class(name: str) -> Any:
    """Return the class of transformers with this name, or None."""
    import transformers

    return getattr(transformers, name, None)


def check_adapters(configs: dict[str, Any]) -> None:
    """Raise an UnsupportedError if the effect of a PEFT adapter depends on a forward's width."""
    for name, own in configs.items():
        if getattr(own, "is_prompt_learning", False):
            kind = str(getattr(own.peft_type, "value", own.peft_type))
            raise UnsupportedError(
                f"the adapter {name!r} ({kind}) forwards one token at a time after its own prompt;"
                " use one that changes weights, such as LoRA"
            )
        if getattr(own, "alora_invocation_tokens", None):
            raise UnsupportedError(
                f"the adapter {name!r} is an activated LoRA, whose start is counted from the end of"
                " each forward; use a LoRA without alora_invocation_tokens"
            )


def commit_hash(config: Any) -> str | None:
    """Return the commit of the hub repository that a model's config was loaded from, or None."""
    found: str | None = getattr(config, "_commit_hash", None)
    return found


def output_class(*, beams: bool, encodes: bool) -> Any:
    """Return the class of what ``generate`` returns, for beam search and encoder-decoder models."""
    from transformers import generation

    search, model = "Beam" if beams else "", "EncoderDecoder" if encodes else "DecoderOnly"
    return getattr(generation, f"Generate{search}{model}Output")


# Models and their configs


def least_step_size(model: Any) -> float:
    """Return the largest lower bound on step sizes among a model's recurrent layers; 0: none."""
    bounds = (getattr(module, "time_step_limit", (0.0,))[0] for module in model.modules())
    return max(bounds, default=0.0)


def device_mesh(model: Any) -> Any:
    """Return the torch DeviceMesh that a model was loaded on, or None."""
    return getattr(model, "_device_mesh", None)


def layer_count(model: Any) -> int:
    """Return the number of layers of a model's decoder, or 1 if its config does not have it."""
    return int(getattr(text_config(model), "num_hidden_layers", 1))


def vocab_size(model: Any) -> int:
    """Return the number of tokens that a model's config states."""
    return int(model.config.get_text_config().vocab_size)


def placeholders(config: Any) -> set[int]:
    """Token ids of placeholders for an image, audio and the like in a model's configuration."""
    text = ("bos", "eos", "pad", "decoder_start", "sep", "cls", "mask", "unk")
    return {
        value
        for name, value in vars(config).items()
        if name.endswith(("_token_id", "_token_index")) and isinstance(value, int)
        if name.removesuffix("_token_id") not in text
    }


# Compiled forwards


def compiles_by_default(model: Any, kwargs: dict[str, Any], config: Any) -> bool:
    """Whether the baseline compiles the forwards of a call."""
    criteria = getattr(model, "_valid_auto_compile_criteria", None)
    return criteria is not None and bool(criteria(kwargs, config))


def compile_settings(model: Any, config: Any) -> Any:
    """Return a copy of the CompileConfig of a call, or of the model's default one."""
    return copy.copy(config.compile_config or model._default_compile_config())


def compile_config(**settings: Any) -> Any:
    """Return a CompileConfig with which ``generate`` compiles on a CPU, too."""
    from transformers import CompileConfig

    config = CompileConfig(**settings)
    config._compile_all_devices = True
    return config


def forget_compiled_call(model: Any) -> None:
    """Drop the compiled forward that ``get_compiled_call`` stored on a model, if there is one."""
    vars(model).pop("_compiled_call", None)


# Layers for multi-token prediction


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


# Indexes of keys

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

# Caches


def new_encoder_decoder_cache(own: Any) -> Any:
    """Return a cache for an encoder-decoder model, around that of its decoder."""
    from transformers import EncoderDecoderCache

    return EncoderDecoderCache(own, new_cache())


def new_static_layer(capacity: int) -> Any:
    """Return an empty layer of ``capacity`` positions."""
    from transformers.cache_utils import StaticLayer

    return StaticLayer(max_cache_len=capacity)


# Files, tokenizers and logs


def cached_file_or_none(repository: str, name: str, revision: str) -> Path | None:
    """Return a file of a hub repository, cached or downloaded; None: it does not exist."""
    from transformers.utils import cached_file

    found = cached_file(
        repository,
        name,
        revision=revision,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if found is None else Path(found)


PADDING_METHOD = "warn_if_padding_and_no_attention_mask"  # that some forwards call


class PaddingNotice(NamedTuple):
    """A module whose forwards warn of its padding token, if they find it and have no mask."""

    module: Any
    token: int

    def give(self) -> None:
        """Log the warning, which transformers does once."""
        self.module.warn_if_padding_and_no_attention_mask(
            torch.tensor([[self.token]], device="cpu"), None
        )


def find_padding_notice(model: Any) -> PaddingNotice | None:
    """Return the notice that a model's forwards over text may give; None: they give none."""
    found: dict[Any, Any] = {type(each): each for each in model.get_decoder().modules()}
    for kind, module in found.items():
        code = getattr(inspect.unwrap(kind.forward), "__code__", None)
        if code is not None and PADDING_METHOD in code.co_names:
            token = module.config.pad_token_id
            return None if token is None else PaddingNotice(module, int(token))
    return None


class _Memory(threading.local):
    """A logger to transformers' ``warning_once``, which calls it for what it does not remember."""

    new = False

    def warning(self, _: object) -> None:
        self.new = True


_memory = _Memory()


def is_first_notice(about: object) -> bool:
    """Whether this was not asked since transformers began, or forgot, what it logs only once."""
    from transformers.utils.logging import warning_once

    _memory.new = False
    warning_once(_memory, about)
    return _memory.new


def is_slow(tokenizer: Any) -> bool:
    """Whether a tokenizer is written in Python."""
    from transformers import PreTrainedTokenizer

    return isinstance(tokenizer, PreTrainedTokenizer)


def byte_letters() -> dict[int, str]:
    """Return the letter that represents each byte in a vocabulary of bytes."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters: dict[int, str] = bytes_to_unicode()
    return letters


def response_template(model: Any, tokenizer: Any) -> dict[str, Any] | None:
    """Return the response template that ``transformers serve`` uses for a model, if it has one."""
    try:
        from transformers.cli.serving.utils import get_response_template
    except ImportError:  # older versions of transformers
        return None
    template: dict[str, Any] | None = get_response_template(tokenizer, model)
    return template


def silence() -> None:
    """Have transformers log errors only, and show no progress bars."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def unpacked() -> dict[str, Any]:
    """Arguments of ``from_pretrained`` that convert GGUF weights once, without a hub's kernels."""
    import transformers

    kind = getattr(transformers, "GgufConfig", None)  # before 5.17 there is no other way
    return {} if kind is None else {"quantization_config": kind(dequantize=True)}


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
