"""Functions that use private names of transformers.

Tests check these against the installed version (``PRIVATE`` in ``tests/transformers_names.py``).
Names that some supported versions lack are read with a default. Models and their configs are typed
``Any``, because transformers exports no types.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from ngramspec.hf_model.compat.versions import MARKS_CACHES, has

# Methods of a model that determine the inputs and outputs of its forwards. A subclass that
# overrides none of them behaves like its base class.
STEP_METHODS = (
    "__call__",
    "_prefill",
    "_update_model_kwargs_for_generation",
    "create_masks_for_generate",
    "forward",
    "get_decoder",
    "prepare_inputs_for_generation",
)
ATTENTION_NAME = "_attn_implementation_internal"  # the field of a config
# Methods of the baseline that the decode loop, its beam search and ``carried_kwargs`` replace.
LOOP_METHODS = ("_sample", "_has_unfinished_sequences")
BEAM_METHODS = ("_beam_search",)
UPDATE_METHODS = ("_update_model_kwargs_for_generation",)


# Models


def is_stateful(model: Any) -> bool:
    """Whether a model keeps a recurrent state, which cropping a cache does not restore."""
    return bool(getattr(model, "_is_stateful", False))


def overridden(model: Any, names: Sequence[str]) -> str | None:
    """Return the first of some methods of the baseline that a model's class overrides, or None."""
    from transformers.generation.utils import GenerationMixin

    kind = type(model)
    for name in names:
        if getattr(kind, name, None) is not getattr(GenerationMixin, name):
            return name
    return None


def device_mesh(model: Any) -> Any:
    """Return the torch DeviceMesh that a model was loaded on, or None."""
    return getattr(model, "_device_mesh", None)


# Forwards


def prefill(model: Any, input_ids: Any, config: Any, kwargs: dict[str, Any]) -> Any:
    """Run a prompt, int64 (batch, prompt), as the baseline does, in chunks if the config says so.

    Return the outputs of the last forward.
    """
    return model._prefill(input_ids, config, kwargs)


def carried_kwargs(
    model: Any, outputs: Any, kwargs: dict[str, Any], *, encodes: bool
) -> dict[str, Any]:
    """Return the keyword arguments of the next forward, over one token, from the last one's."""
    carried: dict[str, Any] = model._update_model_kwargs_for_generation(
        outputs, kwargs, is_encoder_decoder=encodes
    )
    return carried


def decode_context(model: Any) -> AbstractContextManager[Any]:
    """Return the context in which ``generate`` runs the forwards after the prefill."""
    context: AbstractContextManager[Any]
    context = getattr(model, "_optimize_model_for_decode", nullcontext)()
    return context


def compiles_by_default(model: Any, kwargs: dict[str, Any], config: Any) -> bool:
    """Whether the baseline compiles the forwards of a call."""
    criteria = getattr(model, "_valid_auto_compile_criteria", None)
    return criteria is not None and bool(criteria(kwargs, config))


def compile_settings(model: Any, config: Any) -> Any:
    """Return a copy of the CompileConfig of a call, or of the model's default one."""
    return copy.copy(config.compile_config or model._default_compile_config())


def compile_on_every_device(settings: Any) -> None:
    """Make ``generate`` with a CompileConfig compile on a CPU, too."""
    settings._compile_all_devices = True


def forget_compiled_call(model: Any) -> None:
    """Drop the compiled forward that ``get_compiled_call`` stored on a model, if there is one."""
    vars(model).pop("_compiled_call", None)


# Configs


def attention_of(model: Any) -> str:
    """Return the name of the attention implementation of a model's decoder, such as "sdpa"."""
    name = getattr(model.config.get_text_config(decoder=True), "_attn_implementation", "")
    return "sdpa" if name == "sdpa" else str(name)  # not the name in ``gqa_attention``


def configs_of(model: Any) -> list[Any]:
    """Return the different configs of a model's modules that name an attention implementation."""
    every = (vars(module).get("config") for module in model.modules())
    found = {id(each): each for each in every if ATTENTION_NAME in getattr(each, "__dict__", ())}
    return list(found.values())


def attention_name(config: Any) -> Any:
    """Return the name of the attention implementation in one config."""
    return vars(config)[ATTENTION_NAME]


def set_attention_name(config: Any, name: str) -> None:
    """Set the name of the attention implementation in one config, but not in its parts."""
    vars(config)[ATTENTION_NAME] = name


def pad_token(config: Any) -> int | None:
    """Return the padding token of a prepared GenerationConfig, or None; one host sync."""
    token = getattr(config, "_pad_token_tensor", None)
    return None if token is None else int(token)


def eos_tokens(config: Any) -> tuple[int, ...]:
    """Return the end-of-sequence tokens of a prepared GenerationConfig; one host sync."""
    tokens = getattr(config, "_eos_token_tensor", None)
    return () if tokens is None else tuple(tokens.tolist())


def mask_length(config: Any) -> int | None:
    """Return the length of the mask of ones that ``generate`` left out, or None."""
    length = getattr(config, "_mask_length", None)
    return None if length is None else int(length)


def with_longer_mask(config: Any, count: int) -> Any:
    """Return ``config``, or a copy whose left-out mask is ``count`` positions longer.

    The prefill compares this length with the input's to decide whether the input is the whole
    sequence or only its new tokens.
    """
    length = mask_length(config)
    if length is None:
        return config
    config = copy.copy(config)
    config._mask_length = length + count
    return config


# Caches


def is_callers(cache: Any) -> bool:
    """Whether a cache belongs, or may belong, to the caller, who may use it again."""
    marked = getattr(cache, "_is_user_defined", None)
    return not has(MARKS_CACHES) if marked is None else bool(marked)


def mark_as_made_by_generate(cache: Any) -> None:
    """Mark a cache as made by ``generate``, as newer versions of transformers do."""
    cache._is_user_defined = False


# Files


def commit_hash(config: Any) -> str | None:
    """Return the commit of the hub repository that a model's config was loaded from, or None."""
    found: str | None = getattr(config, "_commit_hash", None)
    return found


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


def mtp_logits(layers: Any, states: Any) -> Any:
    """The logits, (batch, n, vocab), of hidden states of a model's MTP layers, (batch, n, d)."""
    return layers._project_to_logits(states)
