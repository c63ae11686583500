"""The configured object: what a user makes once and hands to ``generate``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import torch

from ngramspec.controller import check_gamma, make_controller
from ngramspec.decode import Generation, StepEvent, decode
from ngramspec.draft import DecodeStats, Drafter, Int32
from ngramspec.drafters import build_drafter
from ngramspec.drafting import Drafting
from ngramspec.errors import UnsupportedError, check_int
from ngramspec.group import Choosing, Record
from ngramspec.request import by_row, history_of, must_lockstep, read_request
from ngramspec.stopping import StopRules
from ngramspec.target import Target, plain_method

logger = logging.getLogger("ngramspec")

GAMMA_LIMIT = 4096


class Speculator:
    """Speculative decoding without a draft model, as transformers' ``custom_generate``.

    Reusable and thread-safe: each call keeps its state to itself, and ``stats`` sums them up.

    Args:
        drafter: what guesses the next tokens: a string for build_drafter, or a Drafter.
        gamma: tokens proposed in a step: an integer, "heuristic" (grows while whole drafts are
            accepted, shrinks otherwise), or "auto": as many as the expected tokens per cost are
            worth, by what a forward costs on such a machine as a rule; the heuristic for drafters
            without estimates.
        gamma_max: most tokens proposed in a step, 1..4096.
        policy: how a drafter built from a string decides between its tiers, see build_drafter.
        unsupported: what to do with a request that cannot be speculated: "error" raises an
            UnsupportedError, "plain" has transformers decode it, which is logged once.
        on_step: called with a StepEvent after the prefill and after every step.

    Raises:
        TypeError, ValueError: an argument is out of its bounds; the message says which.

    Example:
        >>> Speculator("copy+ngram", gamma=8).to_dict()["gamma"]
        8
    """

    def __init__(
        self,
        drafter: str | Drafter = "auto",
        gamma: int | str = "auto",
        *,
        gamma_max: int = 64,
        policy: str = "value",
        unsupported: str = "error",
        on_step: Callable[[StepEvent], None] | None = None,
    ) -> None:
        self._drafter = build_drafter(drafter, policy=policy)
        self.policy = policy
        self.gamma_max = check_int("gamma_max", gamma_max, 1, GAMMA_LIMIT)
        self.gamma = check_gamma(gamma, gamma_max)
        if unsupported not in ("error", "plain"):
            raise ValueError(f"unsupported must be 'error' or 'plain', got {unsupported!r}")
        if on_step is not None and not callable(on_step):
            raise TypeError(f"on_step must be callable or None, got {type(on_step).__name__}")
        self.unsupported = unsupported
        self.on_step = on_step
        self.stats = DecodeStats()
        self._lock = threading.Lock()
        self._logged: set[str] = set()

    @property
    def drafter(self) -> Drafter:
        """The drafter in use. Setting it takes effect at the next step of every running call,
        which then starts the new one from its committed tokens; in float32 the text stays the
        same whichever drafter runs."""
        return self._drafter

    @drafter.setter
    def drafter(self, drafter: str | Drafter) -> None:
        self._drafter = build_drafter(drafter, policy=self.policy)

    def reset(self) -> None:
        """Set the statistics to zero."""
        with self._lock:
            self.stats.reset()

    def to_dict(self) -> dict[str, Any]:
        """The arguments that make an equal Speculator, as plain JSON values; without on_step.

        Raises:
            ValueError: the drafter is an object that no string describes.
        """
        if self._drafter.spec is None:
            name = type(self._drafter).__name__
            raise ValueError(f"drafter {name} has no spec; give it one, or build it from a string")
        return {
            "drafter": self._drafter.spec,
            "gamma": self.gamma,
            "gamma_max": self.gamma_max,
            "policy": self.policy,
            "unsupported": self.unsupported,
        }

    @classmethod
    def from_dict(cls, arguments: dict[str, Any]) -> Speculator:
        """The Speculator that ``to_dict`` described; an unknown key is a TypeError."""
        return cls(**arguments)

    def __repr__(self) -> str:
        drafter = self._drafter.spec or self._drafter
        return f"Speculator({drafter!r}, gamma={self.gamma!r}, gamma_max={self.gamma_max})"

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        streamer: Any = None,
        reference_ids: Any = None,
        inputs_tensor: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """Decode, as ``model.generate(custom_generate=self)`` calls it with all prepared.

        transformers passes no streamer and no tokenizer to a custom_generate callable, and checks
        stop_strings before; ``ngramspec.generate`` and ``enabled`` bring all three.

        Args:
            reference_ids: text that the output will likely resemble, such as the file being
                edited: token ids, or several sequences of them. The drafters read it as if it
                stood before the prompt; the model never does. Others as in ``generate``.

        Returns:
            int64 (batch, prompt + generated), or what return_dict_in_generate asks for.

        Raises:
            UnsupportedError: the request cannot be speculated, and unsupported="error".
            ValueError: the prompt is empty or has ids outside the vocabulary.
        """
        try:
            check_request(generation_config)
            target = Target(model, input_ids, generation_config, model_kwargs)
        except UnsupportedError as error:
            method = plain_method(generation_config)
            if self.unsupported == "error" or method is None:
                raise
            self.log_once(f"decoding without speculation: {error}")
            return getattr(type(model), method)(
                model,
                input_ids,
                logits_processor=logits_processor,
                stopping_criteria=stopping_criteria,
                generation_config=generation_config,
                streamer=streamer,
                **model_kwargs,
            )
        check_prompt(model, input_ids, model_kwargs)
        config = generation_config
        request = read_request(config, reference_ids)
        keep = config.return_dict_in_generate
        record = Record(
            [] if keep and config.output_scores else None,
            [] if keep and config.output_logits else None,
        )
        stop = StopRules(stopping_criteria or ())
        pad = getattr(config, "_pad_token_tensor", None)
        choosing = Choosing(
            processors=logits_processor,
            stop=stop,
            do_sample=bool(config.do_sample),
            pad=int(pad) if pad is not None and stop.pads else None,
            streamer=streamer,
            record=record,
        )
        alone = input_ids.shape[0] == 1
        target.ragged = not alone and target.can_be_ragged and not must_lockstep(choosing, target)
        history = history_of(target, request, inputs_tensor)
        stats = DecodeStats()
        run = Generation(
            target=target,
            drafting=lambda row, vocab: self._start(history(row), vocab, input_ids, stats),
            choosing=choosing,
            by_row=by_row(choosing, input_ids.shape[0]) if target.ragged else None,
            stats=stats,
            on_step=self.on_step,
        )
        try:
            sequences = decode(run)
        finally:
            with self._lock:
                self.stats.add(stats)
        if streamer is not None:
            streamer.end()
        return target.output(sequences, record.scores, record.logits)

    def log_once(self, message: str) -> None:
        """Log a warning, the same one only once for this Speculator."""
        with self._lock:
            known = message in self._logged
            self._logged.add(message)
        if not known:
            logger.warning("%s", message)

    def _start(
        self, tokens: Int32, vocab: int, input_ids: torch.Tensor, stats: DecodeStats
    ) -> Drafting:
        kind = "cpu" if input_ids.device.type == "cpu" else "gpu"
        controller = make_controller(self.gamma, self.gamma_max, kind, input_ids.shape[0])
        return Drafting(lambda: self._drafter, controller, tokens, vocab, stats)


def check_request(config: Any) -> None:
    """Raise an UnsupportedError that names the argument of ``generate`` which rules it out."""
    refusals = {
        "num_beams": (config.num_beams or 1) > 1,
        "prompt_lookup_num_tokens": config.prompt_lookup_num_tokens is not None,
        "penalty_alpha": config.penalty_alpha is not None,
    }
    for name, refused in refusals.items():
        if refused:
            value = getattr(config, name)
            raise UnsupportedError(
                f"{name}={value} cannot be combined with a Speculator; remove it"
            )


def check_prompt(model: Any, input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> None:
    """Raise a ValueError for an empty prompt or ids that the model has no embedding for."""
    if model_kwargs.get("inputs_embeds") is not None:
        return
    if input_ids.shape[1] == 0:
        raise ValueError(f"input_ids must hold at least one token, got shape {(*input_ids.shape,)}")
    vocab = model.get_input_embeddings().weight.shape[0]
    low, high = int(input_ids.min()), int(input_ids.max())
    if low < 0 or high >= vocab:
        bad = low if low < 0 else high
        raise ValueError(f"input_ids must lie in 0..{vocab - 1}, got {bad}")
