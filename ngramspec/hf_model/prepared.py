"""What a generation determines about its model and call before the first forward."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ngramspec.hf_model.abilities import Ability, obstacle
from ngramspec.hf_model.cache.kv_cache import kv_cache_for
from ngramspec.hf_model.cache.recurrent_state import Pending
from ngramspec.hf_model.call import Known, call_traits_of
from ngramspec.hf_model.compat import hf_private
from ngramspec.hf_model.compat.cache_name import cache_of
from ngramspec.hf_model.compat.layers import decoder_cache, widen_static
from ngramspec.hf_model.forward import LastForward
from ngramspec.hf_model.inputs.growth import next_position, prompt_end
from ngramspec.hf_model.inputs.inputs import Inputs
from ngramspec.hf_model.inputs.present_rows import PresentRows
from ngramspec.hf_model.inputs.shapes import ForwardShapes, most_positions
from ngramspec.hf_model.outputs import OutputRecorder
from ngramspec.hf_model.support import check_cache, check_model, check_states
from ngramspec.hf_model.traits import head_size, traits_of

if TYPE_CHECKING:
    from ngramspec.hf_model.assistants.states import StateChannel


MAX_PREFILL_DRAFT_TOKENS = 1 << 20  # for models without a position limit


@dataclass(slots=True)
class DraftLimits:
    """The maximum draft length at each point of a generation, from its Traits and CallTraits."""

    position_limit: int | None
    thresholds: Sequence[int]
    end: int
    next_position: int  # of the first generated token; 0: the model counts positions itself
    no_drafts: str | None  # why nothing can be drafted; None: drafts are allowed
    # Positions of the widest forward that drops none of them (``Traits.token_capacity``), or None.
    widest: int | None = None
    prefilled: int | None = None  # positions in the cache after the prefill; None: before its end

    def prefill(self) -> int:
        """Maximum number of draft tokens that the prefill can verify."""
        if self.position_limit is None:
            return MAX_PREFILL_DRAFT_TOKENS
        return self.position_limit - max(self.end, self.next_position)

    def longest(self, new: int, width: int | None) -> int | None:
        """Maximum draft length after ``new`` generated tokens of each row; None: no limit.

        No forward has more than ``width`` positions, and none crosses a length at which the model
        computes its positions differently (``Traits.thresholds``). The first forward after that
        length may read all tokens again, so it has no draft. Rotary frequencies depend on
        positions, and reading again on the number of tokens, so both are compared with them.
        """
        if self.no_drafts is not None:
            return 0
        rooms = [each - 1 for each in (width, self.widest) if each is not None]
        if self.prefilled is not None:
            ends = self.prefilled + new, self.next_position + new  # by tokens, by positions
            if self.position_limit is not None:
                rooms.append(self.position_limit - max(ends))
            for threshold in self.thresholds:
                rooms += [threshold - end for end in ends if end <= threshold + 1]
        return max(min(rooms), 0) if rooms else None


class PreparedTarget:
    """The checked model, cache and arguments of one generation; see ``Target``.

    Attributes:
        cache: the model's cache; the prefill may replace it.
        inputs: arguments of the next forward.
        widths: allowed widths of the forwards after the prefill, ascending; empty: any width.
        pending: accepted tokens that the next forward runs again; None: the model is not recurrent.
        keep_hidden: whether the next forward collects ``hidden``.
        hidden: input of the model's head in the last forward, (batch, n + 1, d), at the positions
            of its logits; None: not collected or not available.
        states: the hidden states of committed positions for heads; None: no head reads them.

    Args:
        model: a transformers model with a language-model head.
        input_ids: int64 (batch, prompt); of the decoder in an encoder-decoder model.
        config: the prepared GenerationConfig.
        model_kwargs: what ``generate`` prepared for the model's forward.
        width: positions of every forward after the prefill; None: the draft decides.
        compiled: whether these forwards are compiled; None: if the baseline compiles them.
        gamma_max: maximum number of draft tokens; used for compiled forwards only.
        beams: beams of each prompt; each prompt is repeated in this number of rows.

    An UnsupportedError is raised if the model, its cache or the call cannot be speculated with.
    """

    def __init__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        config: Any,
        model_kwargs: dict[str, Any],
        *,
        width: int | None = None,
        compiled: bool | None = False,
        gamma_max: int = 0,
        beams: int = 1,
    ) -> None:
        check_model(model, model_kwargs)
        self.model, self.config, self.prompt = model, config, input_ids
        self.traits = traits = traits_of(model, input_ids, model_kwargs)
        if config.cache_implementation is not None and traits.windows is not None:
            end = prompt_end(input_ids, model_kwargs, mask_length=hf_private.mask_length(config))
            most = end + int(config.max_length) - input_ids.shape[1] - 1
            widen_static(decoder_cache(cache_of(model_kwargs)), most)
        self.cache = kv_cache_for(cache_of(model_kwargs), recurrent=traits.recurrent)
        if traits.recurrent:
            from ngramspec.hf_model.recurrent_probe import check_recurrent

            check_recurrent(model, len(input_ids))
        check_cache(traits, self.cache)
        self.inputs = Inputs(model, traits, model_kwargs)
        self._recorder = OutputRecorder(
            config, model_kwargs, encodes=traits.encodes, streams_first=traits.streams_first
        )
        states = self._recorder.names
        self.call = call_traits_of(
            model, input_ids, config, model_kwargs, self.cache, traits=traits, states=states
        )
        check_states(traits, self.call)
        first = 0 if traits.hooked else next_position(model_kwargs.get("position_ids"))
        known = self.known()
        reason, capacity = obstacle(Ability.DRAFTS, known), traits.token_capacity
        widest = None if capacity is None else capacity // len(input_ids)
        self.limits = DraftLimits(
            traits.position_limit, traits.thresholds, self.call.end, first, reason, widest
        )
        self._shapes = ForwardShapes(
            known, self.cache, width=width, compiled=compiled, gamma_max=gamma_max
        )
        self.widths = self._shapes.widths
        once = beams > 1 and obstacle(Ability.ONE_PREFILL, known) is None
        self._copies = beams if once else 1  # copies made of each row that the prefill runs
        self._unordered = False  # whether the prefill's rows may have to be reordered
        self._slots = 0  # positions in the cache
        self.pending = Pending() if traits.recurrent else None
        self.keep_hidden = False
        self.hidden: torch.Tensor | None = None
        self.states: StateChannel | None = None
        self._present: PresentRows | None = None  # None: no row has left
        self._forward: LastForward | None = None

    def known(self, *, by_row: bool = False) -> Known:
        """Return the properties of the model and the call for ``obstacle``; see Known."""
        kwargs = self.inputs.kwargs
        return Known(self.traits, self.call, self.model, self.config, kwargs, by_row)

    def read_states(self) -> None:
        """Keep the hidden states of committed positions for heads; call it before the prefill."""
        if (self.config.num_beams or 1) == 1:
            from ngramspec.hf_model.assistants.states import StateChannel  # few calls have heads

            mask = self.inputs.kwargs.get("attention_mask")
            self.states = StateChannel(self.model, mask, len(self.prompt))

    def let_rows_diverge(self) -> None:
        """Let rows accept different numbers of tokens; call it before the prefill."""
        self.inputs.ragged = True

    @property
    def rows(self) -> int:
        """Number of rows that forwards run."""
        return len(self.prompt if self._present is None else self._present)

    @property
    def rows_may_leave(self) -> bool:
        """Whether finished rows can leave the batch; the shape of compiled forwards is fixed."""
        return self.inputs.rows_may_leave and not (self.widths or self.call.hooked)

    def keep_rows(self, rows: Collection[int]) -> None:
        """Run only these present rows in later forwards; call it after a rollback.

        Arguments and results keep all rows. Values of rows that have left are meaningless.
        """
        if self._present is None:
            self._present = PresentRows(len(self.prompt))
        order = self._present.keep(rows)
        self.cache.keep_rows(order)
        self.inputs.keep_rows(order)

    @property
    def compiling(self) -> bool:
        """Whether the last forward spent its time compiling."""
        return self._shapes.compiling

    @property
    def vocab(self) -> int | None:
        """Number of tokens that the model computes logits for; None: unknown."""
        return head_size(self.model)

    def prefill_room(self) -> int:
        """Maximum number of draft tokens that the prefill can verify."""
        checks = obstacle(Ability.PREFILL_DRAFT, self.known()) is None
        if self.widths or not checks or self.vocab is None:
            return 0
        return self.limits.prefill()

    def decoding(self) -> AbstractContextManager[Any]:
        """The context in which ``generate`` runs the forwards after the prefill."""
        return hf_private.decode_context(self.model)

    def room(self, new: int) -> int | None:
        """Maximum draft length after ``new`` generated tokens; None: no limit."""
        if self.pending is not None and self.pending.full:
            return 0
        capacity = self.cache.capacity
        free = None if capacity is None else capacity - self._slots
        return self.limits.longest(new, most_positions(self.widths, free))
