"""The first layers of a model as a drafting model (LayerSkip, Elhoushi et al. 2024)."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from ngramspec.errors import UnsupportedError


def early_exit(model: Any, layers: int) -> Any:
    """The model that consists of the first layers of a model, its final norm and output layer.

    It shares the model's modules and has its own config. The model itself does not change, so other
    threads may run it meanwhile. An UnsupportedError is raised if the model's decoder has no list
    ``layers``, or if the number of ``layers`` is out of bounds.
    """
    decoder, name = model.get_decoder(), type(model).__name__
    whole = getattr(decoder, "layers", None)
    encodes = getattr(model.config, "is_encoder_decoder", False)
    if not isinstance(whole, nn.ModuleList) or decoder is model or encodes:
        raise UnsupportedError(
            f"assistant_early_exit={layers} is not supported: {name} is no decoder with a list of"
            " layers; remove it"
        )
    if not 1 <= layers < len(whole):
        raise UnsupportedError(
            f"assistant_early_exit must be in 1..{len(whole) - 1} for {name}, got {layers}"
        )
    part = _shallow(decoder)
    part.layers = nn.ModuleList(whole[:layers])
    part.config = copy.copy(decoder.config)
    part.config.num_hidden_layers = layers
    if getattr(part.config, "layer_types", None) is not None:
        part.config.layer_types = part.config.layer_types[:layers]
    exits = _shallow(model)
    path = next(path for path, module in model.named_modules() if module is decoder)
    _place(exits, path, part)
    exits.config = part.config
    return exits


def _shallow(module: Any) -> Any:
    """A module object with the same parameters and submodules, whose attributes are its own."""
    shared = [*module.children(), *module.parameters(False), *module.buffers(False)]
    shared += [each for each in vars(module).values() if not isinstance(each, dict)]
    return copy.deepcopy(module, {id(each): each for each in shared})


def _place(root: Any, path: str, module: Any) -> None:
    """Replace the submodule at a dotted path, copying the modules above it."""
    *above, last = path.split(".")
    for name in above:
        setattr(root, name, _shallow(root.get_submodule(name)))
        root = root.get_submodule(name)
    setattr(root, last, module)
