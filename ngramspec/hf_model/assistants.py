"""Models that draft: small ones, the target's layers for multi-token prediction, and heads."""

from __future__ import annotations

import inspect
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from huggingface_hub import try_to_load_from_cache

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.attention import in_place
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compat import configs, factories, models, resources
from ngramspec.hf_model.compat.caches import cache_argument, cache_of, new_cache
from ngramspec.hf_model.compat.devices import device_of, indices, moved
from ngramspec.hf_model.outputs import StateChannel


class AssistantModel:
    """One sequence in a causal drafting model, which can drop any number of its last tokens."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.length = 0  # tokens read
        self._device = device_of(model)
        self._cache: KVCache | None = None
        self._first = _full_cache(model)  # for the first forward
        self._takes = inspect.signature(model.forward).parameters

    @property
    def vocab(self) -> int | None:
        """Number of token ids that it can read; None: unknown."""
        return models.embedding_count(self.model)

    @property
    def room(self) -> int | None:
        """Maximum number of tokens that it can read; None: no limit."""
        limit = configs.position_limit(self.model.config)
        return limit if isinstance(limit, int) and limit > 0 else None

    def forward(self, tokens: torch.Tensor, last: int) -> torch.Tensor:
        """Read int64 (n,) tokens; return the logits after the ``last`` ones, (last, vocab)."""
        cache = self._first if self._cache is None else self._cache.cache
        given: dict[str, Any] = {"logits_to_keep": last} if "logits_to_keep" in self._takes else {}
        if "position_ids" in self._takes:  # without them Qwen2-VL counts on from its last generate
            end = self.length + len(tokens)
            given["position_ids"] = torch.arange(self.length, end, device=self._device)[None]
        with torch.no_grad(), in_place(self._device):
            outputs = self.model(
                input_ids=moved(tokens[None], self._device),
                use_cache=True,
                return_dict=True,
                **cache_argument(cache),
                **given,
            )
        if self._cache is None:
            self._cache = KVCache(cache_of(outputs))
            self._cache.grow_in_place()
        self.length += len(tokens)
        logits: torch.Tensor = outputs.logits[0, -last:]
        return logits

    def truncate(self, length: int) -> None:
        """Drop all tokens read except the first ``length``."""
        if self._cache is not None and length < self.length:
            self._cache.truncate(self.length - length)
        self.length = min(length, self.length)


def _full_cache(model: Any) -> Any:
    return new_cache(configs.text_config(model), windows=False)


def check_rollback(model: Any) -> None:
    """Raise an UnsupportedError if a drafting model's cache cannot be truncated."""
    if KVCache(_full_cache(model)).convolves or models.is_stateful(model):
        raise UnsupportedError(
            f"{named(model)} cannot draft: it has layers without attention, and drafts are rolled"
            " back without a copy of its state"
        )


def parameters(model: Any) -> int:
    """Number of a model's parameters; those of embeddings are left out."""
    return sum(
        each.numel() for name, each in model.named_parameters() if "embed_tokens" not in name
    )


_lock = threading.Lock()
# By target: its folders' models that are in use, by path and place, and its MTP layers.
_folders: WeakKeyDictionary[Any, WeakValueDictionary[Any, Any]] = WeakKeyDictionary()
_mtp: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def folder_model(path: str, target: Any) -> Any:
    """A folder's model on the target's device and in its dtype, read if nothing uses it yet."""
    with _lock:
        known = _folders.setdefault(target, WeakValueDictionary())
        key = path, device_of(target), target.dtype
        model = known[key] = known.get(key) or read_folder(path, target)
        return model


def read_folder(path: str, like: Any) -> Any:
    """Load a causal model from a local folder or the hub's cache, without running its code."""
    from transformers import AutoModelForCausalLM

    check_folder(path)
    model = AutoModelForCausalLM.from_pretrained(
        path, local_files_only=True, trust_remote_code=False, dtype=like.dtype
    )
    return model.to(device_of(like)).eval()


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
    """Return a model's local tokenizer.json, in its folder or in the hub's cache, or None."""
    name, commit = getattr(model, "name_or_path", ""), resources.commit_hash(model.config)
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

    ``same``: whether their tokenizers are equal; None: not known. Models with equal tokenizers may
    be padded to different numbers of logits.
    """
    what = f"{named(assistant)} cannot draft for {named(target)}: "
    if models.is_encoder_decoder(assistant):
        raise UnsupportedError(
            what + "it is an encoder-decoder model; pass a causal language model"
        )
    own, targets = models.head_size(assistant), models.head_size(target)
    if own is None or models.embedding_count(assistant) is None:
        raise UnsupportedError(what + "it has no embeddings or no output layer")
    if same is False:
        raise UnsupportedError(f"{what}their tokenizers differ")
    if same is None and targets is not None and own != targets:
        raise UnsupportedError(
            f"{what}it has {own} token ids, the target has {targets}, and their tokenizers are not"
            " known; if they are equal, pass tokenizer and assistant_tokenizer, or load both"
            " models from folders with a tokenizer.json"
        )


# Layers for multi-token prediction


def mtp_layers(model: Any) -> Any:
    """A model's MTP layers (transformers' MtpModel), read from its checkpoint at the first call."""
    with _lock:
        if model not in _mtp:
            _mtp[model] = _load(model)
        return _mtp[model]


def _load(model: Any) -> Any:
    what = f"use_mtp=True is not supported: {type(model).__name__}"
    kind, types = factories.mtp_model(model)
    if not types:
        raise UnsupportedError(f"{what} has no layers for multi-token prediction; remove it")
    if kind is None:
        raise UnsupportedError("use_mtp=True is not supported before transformers 5.20")
    if types - {"full_attention", "sliding_attention"}:
        raise UnsupportedError(f"{what}'s MTP layers keep a state that cannot be rolled back")
    device = next(model.get_decoder().layers[-1].parameters()).device
    try:
        layers = kind.from_pretrained(model, device_map={"": device})
    except (OSError, RuntimeError, ValueError) as error:
        raise UnsupportedError(f"{what}'s MTP layers cannot be read: {error}") from error
    return layers.eval()


@dataclass(slots=True)
class LayerRun:
    """What one MTP layer has computed. Positions count from the first with a known state."""

    outputs: torch.Tensor | None = None  # (1, n, d), at the last positions that it has computed
    end: int = 0  # the position after these, and the length of its cache

    def since(self, position: int) -> torch.Tensor:
        """The outputs from a position on."""
        assert self.outputs is not None
        return self.outputs[:, self.outputs.shape[1] - max(self.end - position, 0) :]


@dataclass(slots=True)
class MtpHead:
    """The MTP layers along one sequence. Layer k predicts the token k + 1 after the last state's.

    Layer k at position t reads the output of layer k - 1 there (layer 0: the target's state) and
    token t + 1 + k. Its last k positions have read draft tokens, and are dropped after every draft.
    """

    layers: Any  # transformers' MtpModel
    channel: StateChannel | None  # the target's states; None: the head is never ready
    row: int  # of the sequence
    _tokens: list[int] = field(default_factory=list)
    _committed: int = 0
    _known: int = 0  # positions with a state since the start
    _start: int = 0  # index of the token of position 0
    _runs: list[LayerRun] = field(default_factory=list)
    _states: LayerRun = field(default_factory=LayerRun)
    _cache: Any = None
    _run_now: int = 0  # layers that have run with the current draft tokens

    @property
    def length(self) -> int:
        return len(self._tokens)

    @property
    def ahead(self) -> int:
        """Number of tokens that it can predict after the committed ones."""
        return len(self.layers.layers)

    @property
    def ready(self) -> bool:
        """Whether the state before the last committed token is known."""
        return self._known > 0 and self._start + self._known + 1 == self._committed

    def commit(self, length: int) -> None:
        """Take the new states; ``length`` tokens are committed now."""
        if self.channel is None:
            return
        self._settle(0)
        taken = self.channel.take(self.row)
        new = sum(len(each) for each in taken)
        if not self._known or self._start + self._known + new + 1 != length:
            self._restart(length - 1 - new)
        self._committed = length
        if new:
            states = torch.cat(taken)[None]
            if self._states.outputs is not None:
                states = torch.cat((self._states.outputs, states), dim=1)
            self._states.outputs = states
            self._known += new
            self._states.end = self._known

    def _restart(self, start: int) -> None:
        self._start, self._known, self._states = start, 0, LayerRun()
        self._cache = factories.mtp_cache(self.layers)
        self._cache.activate_past_recording()
        self._runs = [LayerRun() for _ in range(self.ahead)]
        self._run_now = 0

    def truncate(self, length: int) -> None:
        del self._tokens[length:]
        if self._known:
            self._settle(max(length - self._committed, -1) + 1)

    def _settle(self, first: int) -> None:
        """Drop what layers from ``first`` on have computed from draft tokens."""
        for k in range(first, self._run_now):
            run = self._runs[k]
            drop = run.end - max(self._known - k, 0)
            if drop > 0 and run.outputs is not None:
                self._cache.layers[k].crop(-drop)
                run.outputs = run.outputs[:, : run.outputs.shape[1] - drop]
                run.end -= drop
        self._run_now = min(self._run_now, first)

    def forward(self, tokens: torch.Tensor, last: int) -> torch.Tensor:
        """Read tokens; see AssistantModel.forward. ``last`` is at most the draft tokens + 1."""
        self._tokens += tokens.tolist()
        depth = len(self._tokens) - self._committed
        logits = [self._logits(k) for k in range(depth + 1)]
        return torch.cat(logits[depth + 1 - last :])

    def _logits(self, k: int) -> torch.Tensor:
        """Run layer ``k`` if it has not run; its logits (1, vocab) after the last position."""
        run, above = self._runs[k], self._states if k == 0 else self._runs[k - 1]
        if run.end < self._known:
            self._run(k, run, above)
        self._run_now = max(self._run_now, k + 1)
        logits: torch.Tensor = factories.mtp_logits(self.layers, run.since(self._known - 1))[0]
        return logits

    @torch.no_grad()
    def _run(self, k: int, run: LayerRun, above: LayerRun) -> None:
        begin, end = run.end, self._known
        first = self._start + begin + 1 + k
        device = self.layers.layers[k].eh_proj.weight.device
        ids = indices([self._tokens[first : first + end - begin]])(device)
        places = torch.arange(begin + 1 + k, end + 1 + k, device=device)[None]
        new = self.layers.forward_layer(
            k, moved(above.since(begin), device), places, self._cache, input_ids=ids
        )
        if run.outputs is not None and k + 1 < self.ahead:  # the next layer may not have read them
            new = torch.cat((run.since(self._runs[k + 1].end), new), dim=1)
        run.outputs, run.end = new, end
        settled = max(end - k, 0)
        above.outputs = above.since(settled).clone()  # all that layer k reads again
