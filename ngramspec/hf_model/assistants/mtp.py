"""A target's layers for multi-token prediction: loaded once, and run for one sequence."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.assistants.states import StateChannel
from ngramspec.hf_model.compat import hf_private

_lock = threading.Lock()
_loaded: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def mtp_layers(model: Any) -> Any:
    """A model's MTP layers (transformers' MtpModel), read from its checkpoint at the first call.

    An UnsupportedError is raised if it has none, or if they cannot be rolled back.
    """
    with _lock:
        if model not in _loaded:
            _loaded[model] = _load(model)
        return _loaded[model]


def _load(model: Any) -> Any:
    from transformers import modeling_layers

    what = f"use_mtp=True is not supported: {type(model).__name__}"
    if not getattr(model.config.get_text_config(), "num_mtp_layers", None):
        raise UnsupportedError(f"{what} has no layers for multi-token prediction; remove it")
    kind: Any = getattr(modeling_layers, "MtpModel", None)
    if not hasattr(kind, "forward_layer"):
        raise UnsupportedError("use_mtp=True is not supported before transformers 5.20")
    kinds = set(getattr(model.config.get_mtp_config(), "layer_types", None) or ())
    if kinds - {"full_attention", "sliding_attention"}:
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

    cached: int = 0  # positions in its cache
    outputs: torch.Tensor | None = None  # (1, n, d), at the last positions that it has computed
    end: int = 0  # the position after these

    def since(self, position: int) -> torch.Tensor:
        """The outputs from a position on."""
        assert self.outputs is not None
        return self.outputs[:, self.outputs.shape[1] - max(self.end - position, 0) :]


@dataclass(slots=True)
class MtpHead:
    """The MTP layers along one sequence. Layer k predicts the token k + 1 after the last state's.

    Layer k at position t reads the output of layer k - 1 there (layer 0: the target's state) and
    token t + 1 + k. Its last k positions have read draft tokens, and are dropped from its cache
    after every draft. So its cache rolls back along the accepted path whichever source drafted it.
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
        """Tokens read."""
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
        from transformers.cache_utils import MtpCache

        self._start, self._known, self._states = start, 0, LayerRun()
        self._cache = MtpCache(config=self.layers.config)
        self._cache.activate_past_recording()
        self._runs = [LayerRun() for _ in range(self.ahead)]
        self._run_now = 0

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens read."""
        del self._tokens[length:]
        if self._known:
            self._settle(max(length - self._committed, -1) + 1)

    def _settle(self, first: int) -> None:
        """Drop what layers from ``first`` on have computed from draft tokens."""
        for k in range(max(first, 0), self._run_now):
            run = self._runs[k]
            final = max(self._known - k, 0)
            drop = run.cached - final
            if drop > 0:
                self._cache.layers[k].crop(-drop)
                run.cached = final
            if run.outputs is not None and run.end > final:
                run.outputs = run.outputs[:, : run.outputs.shape[1] - (run.end - final)]
                run.end = final
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
        if run.cached < self._known:
            self._run(k, run, above)
        self._run_now = max(self._run_now, k + 1)
        logits: torch.Tensor = hf_private.mtp_logits(self.layers, run.since(self._known - 1))[0]
        return logits

    @torch.no_grad()
    def _run(self, k: int, run: LayerRun, above: LayerRun) -> None:
        begin, end = run.cached, self._known
        first = self._start + begin + 1 + k
        device = self.layers.layers[k].eh_proj.weight.device
        ids = torch.tensor([self._tokens[first : first + end - begin]], device=device)
        places = torch.arange(begin + 1 + k, end + 1 + k, device=device)[None]
        new = self.layers.forward_layer(
            k, above.since(begin).to(device), places, self._cache, input_ids=ids
        )
        kept = run.outputs
        if kept is not None and k + 1 < self.ahead:  # the next layer may not have read them
            new = torch.cat((run.since(self._runs[k + 1].cached), new), dim=1)
        run.outputs, run.end, run.cached = new, end, end
        settled = max(end - k, 0)
        above.outputs = above.since(settled).clone()  # all that layer k reads again
