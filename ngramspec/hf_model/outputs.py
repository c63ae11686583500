"""The states that a call returns: attentions and hidden states."""

from __future__ import annotations

from typing import Any

import torch

from ngramspec.hf_model.compat.cache_name import cache_argument
from ngramspec.hf_model.forward import LastForward

# Names of the outputs that each option of ``generate`` asks for.
STATE_NAMES = {"output_attentions": ("attentions",), "output_hidden_states": ("hidden_states",)}
DECODER_STATE_NAMES = {
    "output_attentions": ("decoder_attentions", "cross_attentions"),
    "output_hidden_states": ("decoder_hidden_states",),
}


class OutputRecorder:
    """Keeps the requested attentions and hidden states of committed tokens.

    Attributes:
        names: of the outputs kept, such as "attentions"; empty: none were requested.
    """

    def __init__(
        self, config: Any, kwargs: dict[str, Any], *, encodes: bool, streams_first: bool
    ) -> None:
        self._returns_dict = bool(config.return_dict_in_generate)
        self._encodes = encodes
        self._streams_first = streams_first
        self._kept: dict[str, list[Any]] = {
            name: []
            for asked, names in (DECODER_STATE_NAMES if encodes else STATE_NAMES).items()
            if self._returns_dict and kwargs.get(asked)
            for name in names
        }
        self.names = tuple(self._kept)

    def keep_prefill(self, outputs: Any) -> None:
        """Keep the states of the prompt, as one entry."""
        for name, kept in self._kept.items():
            kept.append(getattr(outputs, name))

    def keep(self, forward: LastForward, count: int, before: int, *, static: bool) -> None:
        """Keep the states of the first ``count`` of a forward's new positions, one entry each.

        ``before`` positions were in the cache. ``static``: it attended to all of a static cache.
        """
        for name, kept in self._kept.items():
            layers = getattr(forward.outputs, name)
            if layers is None or forward.reread:  # not computed, or not of one position
                kept += [layers] * count
                continue
            for position in range(forward.again, forward.again + count):
                all_keys = static or name == "cross_attentions"
                keys = None if all_keys else before + position + 1
                kept.append(tuple(self._of_position(name, each, position, keys) for each in layers))

    def _of_position(
        self, name: str, layer: torch.Tensor, position: int, keys: int | None
    ) -> torch.Tensor:
        """Return one position's part of a layer's states, as its own forward would.

        ``layer`` has attentions, (batch, heads, n, keys), of which the first ``keys`` are kept if
        that is not None, or hidden states, (batch, n, size). With several streams these are
        (batch, n, streams, size) or (streams, batch, n, size).
        """
        if "attentions" in name:
            return layer[:, :, position : position + 1][..., :keys]
        axis = 1 if layer.ndim == 4 and not self._streams_first else -2
        return layer.narrow(axis, position, 1)

    def output(
        self,
        cache: Any,
        kwargs: dict[str, Any],
        sequences: torch.Tensor,
        scores: list[torch.Tensor] | None,
        logits: list[torch.Tensor] | None,
        ranking: dict[str, Any] | None = None,
    ) -> Any:
        """Build the return value of ``generate``.

        Args:
            cache: of the generation.
            kwargs: of the last forward.
            sequences: int64 (batch, prompt + generated).
            scores, logits: processed scores and raw logits per token, float32 (batch, vocab) each.
            ranking: additional output fields of a beam search, by name.
        """
        if not self._returns_dict:
            return sequences
        from transformers import generation

        search = "" if ranking is None else "Beam"
        model = "EncoderDecoder" if self._encodes else "DecoderOnly"
        states = {name: tuple(kept) for name, kept in self._kept.items()}
        encoder = kwargs.get("encoder_outputs") if self._encodes else None
        if encoder is not None:
            names = ("attentions", "hidden_states")
            asked = (name for name in names if kwargs.get(f"output_{name}"))
            states |= {f"encoder_{name}": encoder.get(name) for name in asked}
        return getattr(generation, f"Generate{search}{model}Output")(
            **(ranking or {}),
            sequences=sequences,
            scores=None if scores is None else tuple(scores),
            logits=None if logits is None else tuple(logits),
            **cache_argument(cache),
            **states,
        )
