"""A small transformers model that drafts: its cache, its forwards, and its vocabulary."""

from __future__ import annotations

import inspect
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.attention.gqa_attention import in_place
from ngramspec.hf_model.cache.kv_cache import KVCache, kv_cache_for
from ngramspec.hf_model.compat import hf_private
from ngramspec.hf_model.compat.cache_name import cache_argument, cache_of
from ngramspec.hf_model.compat.layers import widen_windows
from ngramspec.hf_model.traits import embedding_count, head_size


class AssistantModel:
    """One sequence in a drafting model, which can drop any number of its last tokens.

    ``model`` is a causal language model of transformers with attention in every layer.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.length = 0  # tokens read
        self._cache: KVCache | None = None
        self._first = full_cache(model)  # for the first forward
        self._takes = inspect.signature(model.forward).parameters

    @property
    def vocab(self) -> int | None:
        """Number of token ids that it can read; None: unknown."""
        return embedding_count(self.model)

    @property
    def room(self) -> int | None:
        """Maximum number of tokens that it can read; None: no limit."""
        most = getattr(self.model.config, "max_position_embeddings", None)
        return most if isinstance(most, int) and most > 0 else None

    def forward(self, tokens: torch.Tensor, last: int) -> torch.Tensor:
        """Read int64 (n,) tokens; return the logits after each of the ``last`` ones, (last, vocab).

        If the cache cannot be truncated, an UnsupportedError is raised.
        """
        cache = self._first if self._cache is None else self._cache.cache
        given: dict[str, Any] = {"logits_to_keep": last} if "logits_to_keep" in self._takes else {}
        if "position_ids" in self._takes:  # without them Qwen2-VL counts on from its last generate
            end = self.length + len(tokens)
            given["position_ids"] = torch.arange(self.length, end, device=self.model.device)[None]
        with torch.no_grad(), in_place(self.model, self.model.device):
            outputs = self.model(
                input_ids=tokens[None].to(self.model.device),
                use_cache=True,
                return_dict=True,
                **cache_argument(cache),
                **given,
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
                f"{type(self.model).__name__} cannot draft: its cache must be a dynamic one of"
                " attention in every layer"
            )
        cache.grow_in_place()
        return cache

    def truncate(self, length: int) -> None:
        """Drop all tokens read except the first ``length``."""
        if self._cache is not None and length < self.length:
            self._cache.truncate(self.length - length)
        self.length = min(length, self.length)


def full_cache(model: Any) -> Any:
    """An empty cache for a drafting model, whose windows are applied by its masks alone."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    widen_windows(cache)
    return cache


def check_rollback(model: Any) -> None:
    """Raise an UnsupportedError if a drafting model's cache cannot be truncated."""
    if kv_cache_for(full_cache(model)).convolves or hf_private.is_stateful(model):
        raise UnsupportedError(
            f"{named(model)} cannot draft: it has layers without attention, and drafts are rolled"
            " back without a copy of its state"
        )


def parameters(model: Any) -> int:
    """Number of a model's parameters; those of embeddings are left out."""
    return sum(
        each.numel() for name, each in model.named_parameters() if "embed_tokens" not in name
    )


def read_folder(path: str, like: Any) -> Any:
    """Load a causal language model from a local folder, on the device and in the dtype of ``like``.

    It may also be the name of a repository in the hub's cache. An OSError is raised if there is
    neither. Nothing is downloaded, and code in the folder is not run.
    """
    from transformers import AutoModelForCausalLM

    check_folder(path)
    model = AutoModelForCausalLM.from_pretrained(
        path, local_files_only=True, trust_remote_code=False, dtype=like.dtype
    )
    return model.to(like.device).eval()


def check_folder(path: str) -> None:
    """Raise an OSError if a path is not that of a folder, and no name in the hub's cache."""
    file = found = False
    with suppress(OSError, ValueError):  # neither a path nor the name of a repository
        file = Path(path).is_file()
        found = bool(path) and Path(path).is_dir()
        found = found or isinstance(try_to_load_from_cache(path, "config.json"), str)
    if file:
        raise NotADirectoryError(f"{path!r} is a file; pass the folder of a causal language model")
    if not found:
        raise FileNotFoundError(
            f"there is no folder {path!r}; pass the folder of a causal language model"
        )


def named(model: Any) -> str:
    """Return a model's class and the place that it was loaded from."""
    place = getattr(model, "name_or_path", "")
    return f"{type(model).__name__} ({place})" if place else type(model).__name__


def tokenizer_file(model: Any) -> Path | None:
    """Return the tokenizer.json that belongs to a model; None: it is not known.

    It is in the folder that the model was loaded from, or in the hub's cache under the model's name
    and commit. Nothing is downloaded.
    """
    name, commit = getattr(model, "name_or_path", ""), hf_private.commit_hash(model.config)
    if not isinstance(name, str) or not name:
        return None
    try:
        found: Any = Path(name) / "tokenizer.json"
        if not Path(name).is_dir():
            found = try_to_load_from_cache(name, "tokenizer.json", revision=commit)
        return Path(found) if isinstance(found, str | Path) and Path(found).is_file() else None
    except (OSError, ValueError):  # the name is neither a path nor that of a repository
        return None


def check_assistant(assistant: Any, target: Any, same: bool | None) -> None:
    """Raise an UnsupportedError if a model's token ids are not those of the target.

    ``same``: whether their tokenizers are equal; None: not known. Then their numbers of logits must
    be equal. Models with equal tokenizers may be padded to different numbers.
    """
    what = f"{named(assistant)} cannot draft for {named(target)}: "
    if getattr(assistant.config, "is_encoder_decoder", False):
        raise UnsupportedError(
            what + "it is an encoder-decoder model; pass a causal language model"
        )
    own, targets = head_size(assistant), head_size(target)
    if own is None or embedding_count(assistant) is None:
        raise UnsupportedError(what + "it has no embeddings or no output layer")
    if same is False:
        raise UnsupportedError(f"{what}their tokenizers differ")
    if same is None and targets is not None and own != targets:
        raise UnsupportedError(
            f"{what}it has {own} token ids, the target has {targets}, and their tokenizers are not"
            " known; if they are equal, pass tokenizer and assistant_tokenizer, or load both"
            " models from folders with a tokenizer.json"
        )
