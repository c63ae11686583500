"""The target model: its prefill, its forward over a draft, and its cache."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ngramspec.cache import rollback_for
from ngramspec.errors import UnsupportedError

PER_TOKEN = ("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids")


class Target:
    """One generation of a decoder-only model, from its prefill on.

    Invariant after ``rollback``: the cache holds the positions of all committed tokens but the
    last, and nothing else.

    Args:
        model: a transformers model with a language-model head.
        input_ids: int64 (1, prompt).
        config: the prepared GenerationConfig.
        model_kwargs: what ``generate`` prepared for the model's forward.

    Raises:
        UnsupportedError: the model or its cache cannot be speculated with.
    """

    def __init__(
        self, model: Any, input_ids: torch.Tensor, config: Any, model_kwargs: dict[str, Any]
    ) -> None:
        check_model(model, model_kwargs)
        self.model = model
        self.config = config
        self.kwargs = dict(model_kwargs)
        self.prompt = input_ids
        self.cache = rollback_for(self.kwargs.get("past_key_values"))
        self._before = self.cache.length()  # what it held when we got it
        self._prefilled = 0
        text_config = model.config.get_text_config(decoder=True)
        self.position_limit: int | None = getattr(text_config, "max_position_embeddings", None)

    def prefill(self) -> torch.Tensor:
        """Run the prompt, in chunks if the config says so; its last logits, (1, vocab)."""
        outputs = self.model._prefill(self.prompt, self.config, self.kwargs)
        self.kwargs = self.model._update_model_kwargs_for_generation(outputs, self.kwargs)
        self.cache = rollback_for(self.kwargs["past_key_values"])
        self._prefilled = self.cache.length()
        logits: torch.Tensor = outputs.logits[0, -1:]
        return logits

    def decoding(self) -> AbstractContextManager[Any]:
        """The context in which ``generate`` runs the forwards after the prefill."""
        enter = getattr(self.model, "_optimize_model_for_decode", nullcontext)
        return enter()

    def room(self, new: int) -> int | None:
        """How many tokens a draft may have after ``new`` generated ones; None: any number."""
        if self.position_limit is None:
            return None
        return max(self.position_limit - (self._prefilled + new), 0)

    def forward(self, ids: torch.Tensor, drafted: int) -> torch.Tensor:
        """Run the last committed token and the draft behind it in one forward.

        Args:
            ids: int64 (1, committed + drafted).
            drafted: n, how many of them are the draft.

        Returns:
            logits, (n + 1, vocab), in the model's dtype.
        """
        grown = self.kwargs | {
            name: _grow(name, self.kwargs[name], drafted)
            for name in PER_TOKEN
            if self.kwargs.get(name) is not None
        }
        inputs = self.model.prepare_inputs_for_generation(
            ids, next_sequence_length=drafted + 1, **grown
        )
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = drafted + 1
        outputs = self.model(**inputs, return_dict=True)
        logits: torch.Tensor = outputs.logits[0, -(drafted + 1) :]
        return logits

    def commit(self, count: int) -> None:
        """Take ``count`` more tokens as committed: masks and positions grow by so many."""
        for name in PER_TOKEN:
            if self.kwargs.get(name) is not None:
                self.kwargs[name] = _grow(name, self.kwargs[name], count)

    def rollback(self, forwarded: int | None) -> None:
        """Make the cache what it is when only ``forwarded`` generated tokens went through.

        Args:
            forwarded: how many; None undoes the prefill, too.
        """
        self.cache.to(self._before if forwarded is None else self._prefilled + forwarded)

    def output(
        self,
        sequences: torch.Tensor,
        scores: list[torch.Tensor] | None,
        logits: list[torch.Tensor] | None,
    ) -> Any:
        """What ``generate`` returns: the sequences, or all of it under return_dict_in_generate."""
        if not self.config.return_dict_in_generate:
            return sequences
        from transformers.generation import GenerateDecoderOnlyOutput

        return GenerateDecoderOnlyOutput(
            sequences=sequences,
            scores=None if scores is None else tuple(scores),
            logits=None if logits is None else tuple(logits),
            past_key_values=self.cache.cache,
        )


def check_model(model: Any, model_kwargs: dict[str, Any]) -> None:
    """Raise an UnsupportedError if the model is of a kind that cannot be speculated with."""
    from transformers.generation.utils import GenerationMixin

    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise UnsupportedError(f"{name} is an encoder-decoder model; use a decoder-only model")
    if not model_kwargs.get("use_cache", True):
        raise UnsupportedError("use_cache=False leaves nothing to roll back; remove it")
    if getattr(model, "_is_stateful", False):
        raise UnsupportedError(f"{name} keeps a recurrent state that cannot be rolled back")
    own = getattr(type(model), "_update_model_kwargs_for_generation", None)
    if own is not GenerationMixin._update_model_kwargs_for_generation:
        raise UnsupportedError(f"{name} prepares its inputs between steps in a way of its own")
    for output in ("output_attentions", "output_hidden_states"):
        if model_kwargs.get(output):
            raise UnsupportedError(f"{output}=True is not supported; remove it")


def _grow(name: str, value: torch.Tensor, count: int) -> torch.Tensor:
    """``value`` (..., length) for ``count`` more tokens, as ``generate`` grows it by one."""
    if count == 0:
        return value
    last = value[..., -1:]
    shape = (*value.shape[:-1], count)
    if name == "position_ids":
        steps = torch.arange(1, count + 1, dtype=value.dtype, device=value.device)
        more = last + steps
    elif name == "attention_mask":
        more = value.new_ones(shape)
    elif name == "mm_token_type_ids":
        more = value.new_zeros(shape)
    else:
        more = last.expand(shape)
    return torch.cat((value, more), dim=-1)


def plain_method(config: Any) -> str | None:
    """Name of the model's own method for plain decoding under ``config``; None: a remote one."""
    from transformers.generation.utils import GENERATION_MODES_MAPPING

    method = str(GENERATION_MODES_MAPPING[config.get_generation_mode()])
    return None if "/" in method else method
