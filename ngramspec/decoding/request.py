"""One call of ``generate``: its arguments and options, and what they ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ngramspec.costs.policies import PrefillDraftLength
from ngramspec.decoding.observer import Observer
from ngramspec.decoding.row import unmasked
from ngramspec.draft import NO_TOKENS, Int32
from ngramspec.hf_model.compat.devices import on_host
from ngramspec.hf_model.facts import set_by_call
from ngramspec.hf_model.target import Target
from ngramspec.options import Options
from ngramspec.stats import DecodeStats

if TYPE_CHECKING:
    from ngramspec.costs.saved import SavedCosts
    from ngramspec.drafters.base import Drafter
    from ngramspec.drafters.model import ModelDrafter
    from ngramspec.drafters.tool_calls import ToolCalls

MAX_SESSION_LENGTH = 1000  # characters of a conversation's name
ENTRY_KEYS = ("reference_ids", "session", "tools")  # of generation_config.ngramspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call of ``generate``, built once: everything else reads it.

    Its arguments are those that transformers has prepared; ``Speculator.__call__`` describes them.
    The other attributes are what the call takes from its Speculator when it begins.

    Attributes:
        options: the Speculator's; see ``own_options``.
        unsupported: "error" or "plain".
        saved_costs: the content of the file ``options.costs``, if there is one.
        drafter: returns the drafter to use; called at every step.
        prefill_length: how many draft tokens the prefill verifies under gamma="auto".
        count: adds a run's counts and times to the Speculator's statistics.
    """

    model: Any
    input_ids: torch.Tensor
    logits_processor: Any
    stopping_criteria: Any
    generation_config: Any
    streamer: Any = None
    reference_ids: Any = None
    stores: Any = None
    extra_stores: Any = None
    session: Any = None
    tools: Any = None
    inputs_tensor: Any = None
    generator: torch.Generator | None = None
    synced_gpus: bool | None = None
    num_assistant_tokens: int | None = None
    model_kwargs: dict[str, Any]

    options: Options
    unsupported: str = "error"
    saved_costs: SavedCosts | None = None
    drafter: Callable[[], Drafter]
    prefill_length: PrefillDraftLength
    observer: Observer | None = None
    count: Callable[[DecodeStats], None]
    log_once: Callable[[str], None]

    def __post_init__(self) -> None:
        if self.model_kwargs.get("use_cache", True) is None:  # None means that the call has a cache
            self.model_kwargs["use_cache"] = True

    @property
    def beams(self) -> int:
        """Number of beams; 1: no beam search."""
        beams: int = self.generation_config.num_beams or 1
        return beams

    @property
    def prompts(self) -> int:
        """Number of prompts; each is in as many rows as it has beams or answers."""
        answers: int = self.generation_config.num_return_sequences or 1
        return len(self.input_ids) // max(answers, self.beams)

    @property
    def samples(self) -> bool:
        """Whether tokens are sampled."""
        return bool(self.generation_config.do_sample)

    def own_options(self) -> Options:
        """The options with the call's ``num_assistant_tokens``, if it has some."""
        asked = self.num_assistant_tokens
        if asked is None:
            asked = set_by_call(self.generation_config, self.model, "num_assistant_tokens")
        return self.options if asked is None else self.options.with_chains_of(asked)

    def reference(self) -> Int32:
        """The text that drafters read before the prompt, int32 (n,).

        Raises:
            TypeError: ``generation_config.ngramspec`` is not a dict, or the text is not token ids.
            ValueError: the dict has an unknown key, or an id is out of bounds.
        """
        given = self._option("reference_ids")
        return NO_TOKENS if given is None else _flat(given)

    def conversation(self) -> str | None:
        """The checked name of the call's conversation, or None."""
        given = self._option("session")
        if given is None:
            return None
        if not isinstance(given, str):
            raise TypeError(f"session must be a string, got {type(given).__name__}")
        if not 1 <= len(given) <= MAX_SESSION_LENGTH:
            raise ValueError(
                f"session must have 1..{MAX_SESSION_LENGTH} characters, got {len(given)}"
            )
        return given

    def tool_calls(self) -> ToolCalls | None:
        """The tools whose calls the drafts predict, or None; a TypeError if they are not."""
        given = self._option("tools")
        if given is None:
            return None
        from ngramspec.drafters.tool_calls import ToolCalls  # most calls have none

        if not isinstance(given, ToolCalls):
            raise TypeError(
                f"tools must be a ngramspec.ToolCalls, got {type(given).__name__}; make one with"
                " ToolCalls(tools, tokenizer), or pass tokenizer= to ngramspec.generate"
            )
        return given

    def _option(self, name: str) -> Any:
        """The call's argument, else the entry of ``generation_config.ngramspec``, or None."""
        given = getattr(self, name)
        if given is not None:
            return given
        entries = getattr(self.generation_config, "ngramspec", None)
        if entries is None:
            return None
        if not isinstance(entries, dict):
            kind = type(entries).__name__
            raise TypeError(f"generation_config.ngramspec must be a dict, got {kind}")
        for key in entries:
            if key not in ENTRY_KEYS:
                raise ValueError(
                    f"generation_config.ngramspec has no entry {key!r};"
                    f" known: {', '.join(ENTRY_KEYS)}"
                )
        return entries.get(name)


def _flat(given: Any) -> Int32:
    """Token ids, or several sequences of them, as one int32 array."""
    if isinstance(given, torch.Tensor):
        given = given.detach().cpu().numpy()
    many = isinstance(given, list | tuple) and any(not np.isscalar(each) for each in given)
    texts = [_flat(each) for each in given] if many else [np.asarray(given).ravel()]
    ids = np.concatenate(texts) if texts else NO_TOKENS
    if ids.size and not np.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"reference_ids must hold token ids, got {ids.dtype}")
    if ids.size and not (ids.min() >= 0 and ids.max() < 2**31):
        bad = ids[(ids < 0) | (ids >= 2**31)][0]
        raise ValueError(f"reference_ids must lie in 0..{2**31 - 1}, got {bad}")
    return ids.astype(np.int32)


def text_before(target: Target, reference: Int32, encoded: Any) -> Callable[[int], Int32]:
    """Make the function that returns what a row's drafters read before its prompt, int32 (n,).

    It is the reference, int32 (n,), and the encoder's input ``encoded``, int64 (batch, n), without
    masked tokens. The target has not been prefilled yet.
    """
    holds_ids = isinstance(encoded, torch.Tensor) and encoded.ndim == 2  # no audio or images
    if not (target.facts.encodes and holds_ids) or encoded.is_floating_point():
        return lambda row: reference
    source, (mask,) = on_host(encoded, target.inputs.kwargs.get("attention_mask"))
    copies = len(target.prompt) // len(source)  # sequences per encoded text

    def before(row: int) -> Int32:
        own = source[row // copies]
        if mask is not None:
            own = unmasked(own, mask[row])
        return np.concatenate((reference, own.astype(np.int32)))

    return before


def mtp_head(wanted: Any) -> ModelDrafter | None:
    """The head of the target's own MTP layers, if it is wanted (``use_mtp``)."""
    if not wanted:
        return None
    from ngramspec.drafters.headed import MtpDrafter  # most calls have none

    return MtpDrafter()
