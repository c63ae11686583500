"""The first layers of a model as a drafting model (LayerSkip, Elhoushi et al. 2024)."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from ngramspec.errors import UnsupportedError


class EarlyExit:
    """The first ``layers`` layers of a model, its final norm and its output layer.

    It shares the model's modules and has its own config and cache. The model itself does not
    change, so other threads may run it meanwhile.

    Args:
        model: a causal language model of transformers whose decoder has a list ``layers``.
        layers: number of layers, 1 to that of the model less one.

    Raises:
        UnsupportedError: the decoder has no such list, or ``layers`` is out of bounds.
    """

    def __init__(self, model: Any, layers: int) -> None:
        decoder = model.get_decoder()
        whole = getattr(decoder, "layers", None)
        name = type(model).__name__
        if not isinstance(whole, nn.ModuleList) or decoder is model:
            raise UnsupportedError(
                f"assistant_early_exit={layers}: {name} has no list of decoder layers to exit from"
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
        self._model = _shallow(model)
        for path, module in model.named_modules():
            if module is decoder:
                _place(self._model, path, part)
        self._model.config = part.config
        self.config, self.generation_config = part.config, model.generation_config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._model(*args, **kwargs)


def _shallow(module: Any) -> Any:
    """A module object with the same parameters and submodules, whose attributes are its own."""
    other = object.__new__(type(module))
    other.__dict__.update(module.__dict__)
    other._modules = dict(module._modules)
    return other


def _place(root: Any, path: str, module: Any) -> None:
    """Replace the submodule at a dotted path, copying the modules above it."""
    *above, last = path.split(".")
    for name in above:
        root._modules[name] = _shallow(root._modules[name])
        root = root._modules[name]
    root._modules[last] = module
