"""Tiny random models of many families, each in some random shapes."""

from __future__ import annotations

import copy
import functools
import inspect
import random
import warnings
from collections import OrderedDict
from typing import Any

import torch
import transformers

from benchmarks import tiny
from fuzz import remote
from fuzz.drawn_families import CLASSES, EXCLUDED, FAMILIES, POSITIONS, VISION, VOCAB, Family

SHAPES = 4  # random sizes of each family
KEPT = 80  # models that a process keeps
MOST_PARAMETERS = 2_000_000
_models: OrderedDict[tuple[Any, ...], Any] = OrderedDict()


def draw_family(rng: random.Random) -> str:
    """A family's name, or that of any class of transformers."""
    if rng.random() < 0.15:
        return rng.choice([each for each in CLASSES if each not in EXCLUDED])
    weights = [each.weight for each in FAMILIES.values()]
    return rng.choices([*FAMILIES], weights)[0]


def images_of(family: str) -> str:
    """How a family takes images; "" if it takes none here."""
    return FAMILIES[family].images if family in FAMILIES else ""


def model_of(family: str, shape: int, attention: str, dtype: str) -> Any:
    """A model in eval mode, the same at every call; kept for the process.

    Raises:
        Exception: whatever its class raises where it cannot be built.
    """
    key = (family, shape, attention, dtype)
    if key not in _models:
        while len(_models) >= KEPT:
            _models.popitem(last=False)
        _models[key] = _build(*key)
    _models.move_to_end(key)
    return _models[key]


def unused_copy(model: Any) -> Any:
    """A copy of a model, with the rotary frequencies that it had before its first forward."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if hasattr(module, "original_inv_freq") and hasattr(module, "max_seq_len_cached"):
            module.inv_freq = module.original_inv_freq.clone()
            module.max_seq_len_cached = module.original_max_seq_len
    return model


def forget(model: Any) -> None:
    """Build a model anew when it is next asked for: something was left on it."""
    for key in [key for key, known in _models.items() if known is model]:
        del _models[key]


def _build(family: str, shape: int, attention: str, dtype: str) -> Any:
    """The first of some random models whose greedy text varies; the last where none does."""
    rng = random.Random(f"{family} {shape}")
    sizes = _settings(FAMILIES[family], rng) if family in FAMILIES else {}
    for spread in (1.0, 0.25, 4.0):
        for seed in range(shape + 3, shape + 3 + 3 * SHAPES, SHAPES):
            model = _random(family, sizes, attention, seed, spread)
            if _varies(model):
                return model.to(getattr(torch, dtype))
    return model.to(getattr(torch, dtype))


def _random(family: str, sizes: dict[str, Any], attention: str, seed: int, spread: float) -> Any:
    if family in FAMILIES:
        kind = _class(FAMILIES[family])
        config = tiny.small(kind.config_class, **sizes)
    else:
        kind = getattr(transformers, family)
        config = tiny.small(kind.config_class)
        with torch.device("meta"):
            size = sum(each.numel() for each in kind(config).parameters())
        if size > MOST_PARAMETERS:
            raise ValueError(f"{size / 1e6:.0f} million parameters are too many to try")
    torch.manual_seed(seed)
    if attention != "default":
        config._attn_implementation = attention
    model = kind(config).eval().float()
    if family != "own embeddings":
        tiny.untie(model)
    given = model.generation_config
    given.eos_token_id = given.forced_eos_token_id = None
    given.pad_token_id = 0
    if model.config.is_encoder_decoder:
        given.decoder_start_token_id = 2
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(spread if weight.ndim > 1 else 1.0)
    return model


def _varies(model: Any) -> bool:
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = model.generate(ids, max_new_tokens=14, do_sample=False, num_beams=1)
    return len(set(text[0, -14:].tolist())) >= 4


def _settings(family: Family, rng: random.Random) -> dict[str, Any]:
    """A family's settings and random sizes, as far as its configuration knows them."""
    config = _class(family).config_class
    heads = rng.choice((2, 4))
    drawn = {
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([each for each in (1, 2, 4) if heads % each == 0]),
        "hidden_size": 8 * heads,
        "num_hidden_layers": rng.choice((1, 2, 3)),
        "intermediate_size": rng.choice((24, 48)),
        "initializer_range": rng.choice((0.4, 0.6)),
        "max_position_embeddings": POSITIONS,
    }
    if family.images:
        text = {**tiny.SMALL, "vocab_size": VOCAB, "max_position_embeddings": POSITIONS}
        if family.images == "slots":
            kind = {"model_type": "llama"} if "Llava" in family.kind else {}
            of_text = transformers.LlamaConfig if kind else transformers.Gemma3TextConfig
            vision = dict(VISION, model_type="clip_vision_model") if kind else VISION
            parts = {"text_config": _known(of_text, text) | kind, "vision_config": vision}
            return parts | family.settings
        return _known(config, text) | {"vision_config": VISION} | family.settings
    plain = config.__name__ in ("LlamaConfig", "MistralConfig", "Phi3Config")
    sizes = drawn if plain else {"max_position_embeddings": POSITIONS}
    return _known(config, sizes) | family.settings


def _class(family: Family) -> Any:
    return getattr(remote, family.kind, None) or getattr(transformers, family.kind)


def _known(kind: Any, settings: dict[str, Any]) -> dict[str, Any]:
    known = set(inspect.signature(kind.__init__).parameters) | set(kind().to_dict())
    return {name: value for name, value in settings.items() if name in known}


@functools.cache
def encodes(family: str) -> bool:
    """Whether a family's models have an encoder."""
    if family not in FAMILIES:
        config = getattr(transformers, family).config_class
        return bool(config().is_encoder_decoder)
    return FAMILIES[family].kind.endswith(("ConditionalGeneration", "MTModel")) and not (
        FAMILIES[family].images
    )
