"""A small transformers model that drafts: its cache, its forwards, and its vocabulary."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.attention.gqa_attention import in_place
from ngramspec.hf_model.cache.kv_cache import KVCache, kv_cache_for
from ngramspec.hf_model.compat import hf_private
from ngramspec.hf_model.compat.cache_name import cache_argument, cache_of
from ngramspec.hf_model.traits import embedding_count, head_size


class AssistantModel:
    """One sequence in a drafting model, which can drop any number of its last tokens.

    ``model`` is a causal language model of transformers with full attention in every layer.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.vocab = head_size(model) or 0  # number of token ids that it computes logits for
        self.length = 0  # tokens read
        self._cache: KVCache | None = None
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    @property
    def room(self) -> int | None:
        """Maximum number of tokens that it can read; None: no limit."""
        most = getattr(self.model.config, "max_position_embeddings", None)
        return most if isinstance(most, int) and most > 0 else None

    def forward(self, tokens: torch.Tensor, last: int) -> torch.Tensor:
        """Read int64 (n,) tokens; return the logits after each of the ``last`` ones, (last, vocab).

        If the cache cannot be truncated, an UnsupportedError is raised.
        """
        cache = None if self._cache is None else self._cache.cache
        kept = {"logits_to_keep": last} if self._keeps else {}
        with torch.no_grad(), in_place(self.model, self.model.device):
            outputs = self.model(
                input_ids=tokens[None].to(self.model.device),
                use_cache=True,
                return_dict=True,
                **cache_argument(cache),
                **kept,
            )
        if self._cache is None:
            self._cache = self._checked(outputs)
        self.length += len(tokens)
        logits: torch.Tensor = outputs.logits[0, -last:]
        return logits

    def _checked(self, outputs: Any) -> KVCache:
        cache = kv_cache_for(cache_of(outputs))
        if cache.slides or cache.convolves or cache.capacity is not None:
            raise UnsupportedError(
                f"{type(self.model).__name__} cannot draft: its cache must be a dynamic one of full"
                " attention in every layer"
            )
        cache.grow_in_place()
        return cache

    def truncate(self, length: int) -> None:
        """Drop all tokens read except the first ``length``."""
        if self._cache is not None and length < self.length:
            self._cache.truncate(self.length - length)
        self.length = min(length, self.length)


def checked_cache(model: Any) -> Any:
    """Return a drafting model, or raise an UnsupportedError if its cache cannot be truncated."""
    from transformers import DynamicCache

    config = model.config.get_text_config(decoder=True)
    cache = kv_cache_for(DynamicCache(config=config))
    if cache.slides or cache.convolves or hf_private.is_stateful(model):
        raise UnsupportedError(
            f"{named(model)} cannot draft: it needs full attention in every layer, because drafts"
            " are rolled back without a copy of its cache"
        )
    return model


def parameters(model: Any) -> int:
    """Number of a model's parameters; those of embeddings are left out."""
    return sum(
        each.numel() for name, each in model.named_parameters() if "embed_tokens" not in name
    )


def read_folder(path: str, like: Any) -> Any:
    """Load a causal language model from a local folder, on the device and in the dtype of ``like``.

    An OSError is raised if there is no such folder. Nothing is downloaded.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True, dtype=like.dtype)
    return model.to(like.device).eval()


def named(model: Any) -> str:
    """Return a model's class and the place that it was loaded from."""
    place = getattr(model, "name_or_path", "")
    return f"{type(model).__name__} ({place})" if place else type(model).__name__


def tokenizer_of(model: Any) -> Any:
    """Load the tokenizer in the local folder that a model was loaded from; None: there is none."""
    place = Path(getattr(model, "name_or_path", "") or "")
    if not (place / "tokenizer.json").is_file():
        return None
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(place), local_files_only=True)


def check_assistant(assistant: Any, target: Any, own: str | None, targets: str | None) -> None:
    """Raise an UnsupportedError if a model's token ids are not those of the target.

    ``own`` and ``targets`` are the fingerprints of their tokenizers; None: there is no tokenizer.
    """
    what = f"{named(assistant)} cannot draft for {named(target)}: "
    if getattr(assistant.config, "is_encoder_decoder", False):
        raise UnsupportedError(what + "it is an encoder-decoder model")
    if own is not None and targets is not None:
        if own != targets:
            raise UnsupportedError(f"{what}their tokenizers differ ({own[:12]}, {targets[:12]})")
        return
    sizes = head_size(assistant), head_size(target)
    if sizes[0] is None or embedding_count(assistant) is None:
        raise UnsupportedError(what + "it has no embeddings or no output layer")
    if sizes[1] is not None and sizes[0] != sizes[1]:
        raise UnsupportedError(f"{what}it has {sizes[0]} token ids, the target has {sizes[1]}")
