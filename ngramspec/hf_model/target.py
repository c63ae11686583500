"""The target model: its prefill, its forwards over drafts, and the rollback of its cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ngramspec.draft import Float64
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.attention import in_place
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compat import configs, forwards, models
from ngramspec.hf_model.compat.caches import cache_of, decoder_cache, is_callers
from ngramspec.hf_model.compat.devices import input_device, moved, on_host, sent
from ngramspec.hf_model.facts import (
    Ability,
    check_facts,
    check_model,
    facts_of,
    prefilled_length,
    why_unsupported,
)
from ngramspec.hf_model.inputs import Inputs, for_rows

if TYPE_CHECKING:
    from ngramspec.hf_model.cache.copies import Checkpoint, Pending
    from ngramspec.hf_model.cache.kinds import Room
    from ngramspec.hf_model.compiled import ForwardShapes
    from ngramspec.hf_model.masks import Trees
    from ngramspec.hf_model.outputs import OutputRecorder, StateChannel
    from ngramspec.hf_model.ragged import PresentRows, RaggedInputs

MAX_PREFILL_DRAFT_TOKENS = 1 << 20  # for models without a position limit


class MissingLogitsError(UnsupportedError):
    """A model returns logits of fewer positions than a draft has."""


@dataclass(slots=True, kw_only=True)
class Forward:
    """A forward over each row's last committed token and its draft, until it is rolled back.

    Attributes:
        block: int64 (batch, n + 1), these tokens; it and ``committed`` may be on the host. None: it
            was the prefill.
        lengths: for each row, how many of its tokens in the block are not padding.
        trees: parents of each row's draft; empty: all drafts are chains.
        committed: int64 (batch, length), all tokens up to and including the block's first, for
            models that read them (``facts.reads_text``); else None.
        width: positions of the forward in every row, including padding.
        outputs: of the model; None: the forward was interrupted.
        reread: whether it read the whole text again.
        trial: whether it will be undone.
    """

    block: torch.Tensor | None = None
    lengths: Sequence[int] = ()
    trees: Trees = ()
    committed: torch.Tensor | None = None
    width: int = 1
    outputs: Any = None
    reread: bool = False
    trial: bool = False


class Target:
    """One generation of a model, from its prefill on.

    Invariant after ``rollback``: the cache holds all committed tokens except each row's last one
    and the pending ones before it. In a ragged batch it also holds gaps that no row attends to.

    Attributes:
        device: on which the model takes its inputs.
        prompt: int64 (batch, n), on this device; ``prompt_ids`` on the host.
        prompt_mask: the prompt's mask on the host, int64 (batch, n or more); None: none was given.
        pending: accepted tokens that the next forward runs again; None: the model is not recurrent.
        no_drafts: why nothing can be drafted; None: drafts are allowed.
        hidden: input of the head in the last forward, (batch, n + 1, d), if ``keep_hidden``.
        states: the hidden states of committed positions for heads; None: no head reads them.

    Args:
        width: positions of every forward after the prefill; None: the draft decides.
        compiled: whether these forwards are compiled; None: if the baseline compiles them.
        beams: beams of each prompt; each prompt is repeated in this number of rows.
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
        self.device = device = input_device(model, input_ids.device)
        if device != input_ids.device:
            input_ids, model_kwargs = moved(input_ids, device), moved(model_kwargs, device)
        model_kwargs = model_kwargs | for_rows(model_kwargs, len(input_ids))
        self.model, self.config, self.prompt = model, config, input_ids
        self.cache = KVCache(cache_of(model_kwargs), recurrent=models.is_stateful(model))
        self.facts = facts = facts_of(model, input_ids, config, model_kwargs, self.cache)
        self.pending: Pending | None = None
        if facts.recurrent:
            from ngramspec.hf_model.cache.copies import Pending  # few models have such a state
            from ngramspec.hf_model.trials import check_recurrent

            if facts.longest > facts.end + 1:  # otherwise the prefill is the only forward
                check_recurrent(model, len(input_ids))
            self.pending = Pending()
        check_facts(facts)
        self.inputs = Inputs(facts)
        self._ragged: RaggedInputs | None = None  # these inputs, if rows may diverge
        self._recorder: OutputRecorder | None = None
        if config.return_dict_in_generate:
            from ngramspec.hf_model.outputs import OutputRecorder

            self._recorder = OutputRecorder(facts)
        positions, mask = model_kwargs.get("position_ids"), facts.kwargs.get(self.inputs.mask_name)
        self.prompt_ids, (self.prompt_mask, last) = on_host(
            input_ids,
            mask if isinstance(mask, torch.Tensor) and mask.ndim == 2 else None,
            None if positions is None or facts.hooks_positions else positions[..., -1:],
        )
        self.inputs.hides = self.prompt_mask is None or not self.prompt_mask.all()
        # Of the first generated token; 0: the model counts positions itself.
        self._next_position = 0 if last is None else int(last.max(initial=-1)) + 1
        self.no_drafts = why_unsupported(Ability.DRAFTS, facts)
        self._shapes: ForwardShapes | None = None
        if width is not None or compiled or facts.static:
            from ngramspec.hf_model.compiled import ForwardShapes

            self._shapes = ForwardShapes(
                facts, self.cache, width=width, compiled=compiled, gamma_max=gamma_max
            )
        self._room: Room | None = None  # of a static cache, from the prefill on
        self._graphs = None if self._shapes is None else self._shapes.graphs
        if self._graphs is not None:
            self.facts = replace(facts, compiled=True)
        self._costs: Callable[[int], Float64] = np.ones
        self._run: Callable[..., Any] = model if self._graphs is None else self._graphs
        once = beams > 1 and why_unsupported(Ability.ONE_PREFILL, facts) is None
        self._copies = beams if once else 1  # copies made of each row that the prefill runs
        self._unordered = False  # whether the prefill's rows may have to be reordered
        self._decoding: ExitStack | None = None  # inside of ``decoding``, on accelerators
        self._narrow = False  # whether it has entered the context of ``generate``
        self._slots = 0  # positions in the cache
        self._prefilled: int | None = None  # these after the prefill; None: before its end
        self._thresholds = facts.thresholds
        self.keep_hidden = False
        self.hidden: torch.Tensor | None = None
        self.states: StateChannel | None = None
        self._present: PresentRows | None = None  # None: no row has left
        self._forward: Forward | None = None  # the last one, until it is rolled back
        self.replayed_positions = 0  # of the last forward, how many had been accepted before it

    # What the generation can do

    def read_states(self) -> None:
        """Keep the hidden states of committed positions for heads; call it before the prefill."""
        if (self.config.num_beams or 1) == 1:
            from ngramspec.hf_model.outputs import StateChannel  # few calls have heads

            self.states = StateChannel(self.model, self.prompt_mask, len(self.prompt))

    def choose_widths(self, costs: Callable[[int], Float64], *, ahead: bool) -> None:
        """Choose the widths of a static cache's forwards; see ``ForwardShapes.choose``.

        It is called before the prefill. With other processes, which must run equally many
        forwards, nothing can be compiled ``ahead``.
        """
        if self._shapes is not None:
            self._shapes.choose(costs, ahead=ahead)
            self._costs = costs

    def make_ragged(self) -> None:
        """Let rows accept different numbers of tokens; call it before the prefill."""
        from ngramspec.hf_model.ragged import RaggedInputs  # most calls have one row

        self.facts = replace(self.facts, ragged=True)
        self._ragged = self.inputs = RaggedInputs(self.facts, keeps=self.outlives)

    @property
    def rows(self) -> int:
        """Number of rows that forwards run."""
        return len(self.prompt if self._present is None else self._present)

    @property
    def rows_may_leave(self) -> bool:
        """Whether finished rows can leave the batch; the shape of compiled forwards is fixed."""
        may_leave = self._ragged is not None and self._ragged.rows_may_leave
        return may_leave and not (self.widths or self.facts.hooked or self.outlives)

    @property
    def vocab(self) -> int | None:
        """Number of tokens that the model computes logits for; None: unknown."""
        return models.head_size(self.model)

    @property
    def lead(self) -> int | None:
        """How many tokens a row may be ahead of the slowest one; None: no limit.

        All rows write to the same slots of a static cache. So when the longest row has ended, the
        slowest one writes its last tokens to the slots after those of the longest.
        """
        capacity = None if self._shapes is None else self._shapes.capacity
        return None if capacity is None else max(capacity - self.facts.longest, 0)

    @property
    def widths(self) -> tuple[int, ...]:
        """Allowed widths of the forwards after the prefill, ascending; empty: any width."""
        return () if self._shapes is None else self._shapes.widths

    @property
    def compiled(self) -> bool:
        """Whether the forwards after the prefill are compiled."""
        return self._graphs is not None

    @property
    def compiling(self) -> bool:
        """Whether the last forward, or the prefill, spent its time compiling."""
        return self._graphs is not None and self._graphs.compiled

    @property
    def wants_hidden(self) -> bool:
        """Whether the next forward collects the input of the model's head."""
        return self.keep_hidden and not self.compiled  # no hook in a compiled forward

    @property
    def prefill_positions(self) -> int:
        """Number of the prompt's positions that the prefill runs, in all rows."""
        return self.prompt.shape[0] // self._copies * (self.facts.end - self.facts.cached)

    def prefill_room(self) -> int:
        """Maximum number of draft tokens that the prefill can verify."""
        checks = why_unsupported(Ability.PREFILL_DRAFT, self.facts) is None
        if self.widths or not checks or self.vocab is None:
            return 0
        if self.facts.position_limit is None:
            return MAX_PREFILL_DRAFT_TOKENS
        return self.facts.position_limit - max(self.facts.end, self._next_position)

    def room(self, new: int) -> int | None:
        """Maximum draft length after ``new`` generated tokens of each row; None: no limit.

        No forward crosses a length at which the model computes its positions differently, and the
        first one after it, which may read all tokens again, has no draft. Rotary frequencies depend
        on positions, and reading again on the number of tokens, so both are compared with
        thresholds.
        """
        if self.no_drafts is not None or (self.pending is not None and self.pending.full):
            return 0
        facts, rooms = self.facts, []
        if self._shapes is not None:
            rooms += self._shapes.rooms(self.cache.capacity, self._slots)
        if facts.token_capacity is not None:  # no forward has more, so that none is dropped
            rooms.append(facts.token_capacity // len(self.prompt) - 1)
        if self._prefilled is not None:
            ends = self._prefilled + new, self._next_position + new  # by tokens, by positions
            if facts.position_limit is not None:
                rooms.append(facts.position_limit - max(ends))
            for threshold in self._thresholds:
                rooms += [threshold - end for end in ends if end <= threshold + 1]
        return max(min(rooms), 0) if rooms else None

    # Forwards

    def prefill(self, draft: torch.Tensor | None = None) -> torch.Tensor:
        """Run the prompt and a draft after it, int64 (1, n), or None.

        The logits of the prompt's last token and of the draft are returned, (batch, n + 1, vocab).
        """
        count = 0 if draft is None else draft.shape[1]
        prompt, kwargs, config = self.prompt, self.inputs.kwargs, self.config
        if self._copies > 1:
            prompt, kwargs = prompt[:: self._copies], self.inputs.every(self._copies, len(prompt))
        if draft is not None:
            prompt = torch.cat((prompt, moved(draft, self.device).to(prompt.dtype)), dim=1)
            kwargs = self.inputs.with_prefill_draft(count)
            config = configs.with_longer_mask(config, count)
        capacity = None if self._shapes is None else self._shapes.capacity
        if capacity is not None and (self.no_drafts is None or self.widths):
            from ngramspec.hf_model.cache.kinds import Room  # few calls have a static cache

            self._room = Room(decoder_cache(cache_of(kwargs)), capacity)
        if (self.facts.cached or draft is not None) and config.prefill_chunk_size is None:
            self.cache.record()  # so that a draft or an interrupted prefill can be rolled back
        if self.cache.checkpoint is not None:
            self.cache.checkpoint.save()
        with ExitStack() as entered:
            hidden = self._collect(entered, self.keep_hidden)
            outputs = forwards.prefill(self.model, prompt, config, kwargs)
        if outputs.logits.shape[1] < 1 + count:
            raise self._missing(outputs.logits, 1 + count)
        if self.states is not None and not self.compiled:
            self.states.keep_prompt(count)
        self.hidden = self._copied(hidden[-1][:, -1 - count :]) if hidden else None
        self.inputs.carry(outputs)
        if self._copies > 1:
            cache_of(self.inputs.kwargs).batch_repeat_interleave(self._copies)
        stored = prefilled_length(self.facts, KVCache(cache_of(self.inputs.kwargs)))
        if self._room is not None:
            if self._room.cache is decoder_cache(cache_of(self.inputs.kwargs)):
                self._room.widen(stored - self.facts.end)
            else:  # the model has dropped that cache
                self._room.give_back(self.facts.cached)
                self._room = None
        self._use_cache()
        self._slots = (stored or self.facts.end) - count
        if draft is None:
            self.cache.truncate(0)  # no position is rejected, and windows slide
        self.inputs.begin(self.prompt, self._slots)
        self._prefilled = self._slots
        if self.facts.counting_hook is not None:
            self._check_lengths()
        if draft is not None:
            self._forward = Forward(width=count, outputs=outputs)
        if self._recorder is not None:
            self._recorder.keep_prefill(outputs)
        self._unordered = self._copies == 1  # the rows of a given cache may differ
        self._compile(self.to_compile())
        return self._copied(outputs.logits[:, -1 - count :])

    def skip_prefill(self) -> bool:
        """Let a step follow a cache of all tokens but the last. False: the prefill is needed."""
        facts = self.facts
        held = len(self.prompt) == 1 and facts.cached == facts.end - 1 == self.prompt.shape[1] - 1
        others = (self._recorder, self.states, self._shapes, self.pending, facts.counting_hook)
        if not held or self._copies > 1 or any(each is not None for each in others):
            return False
        self._use_cache()
        self._slots, self._prefilled = facts.cached, facts.end
        self.inputs.begin(self.prompt, self._slots)
        return True

    def to_compile(self) -> list[int]:
        """The widths that are compiled after the prefill."""
        return [] if self._shapes is None else self._shapes.to_compile()

    def compile_missing(self) -> None:
        """Compile the widths that were not compiled during the generation, after its end."""
        if self._shapes is not None and self._shapes.missing:
            self._shapes.choose(self._costs, ahead=True)  # which are known better now
            self._compile(self._shapes.to_compile(missing=True))

    def _compile(self, widths: Sequence[int]) -> None:
        if widths:
            assert self._shapes is not None
            free = (self.cache.capacity or 0) - self._slots
            with self.decoding():
                self._shapes.compile([each for each in widths if each <= free], self._try)

    def _try(self, width: int) -> None:
        """Run a forward of any tokens after the committed ones, and undo it."""
        rows, text = len(self.prompt), None
        if self.facts.reads_text:
            after = self.prompt.new_zeros((rows, self._slots + 1 - self.prompt.shape[1]))
            text = torch.cat((self.prompt, after), dim=1)
        block = torch.zeros((rows, width), dtype=torch.int64, device="cpu")
        try:
            self.forward(Forward(block=block, lengths=[width] * rows, committed=text, trial=True))
        finally:
            self._undo()

    def _check_lengths(self) -> None:
        """Rule drafts out if a hook has shortened the cache so that one mask does not fit.

        transformers hides the first positions of a shortened cache by the mask's first columns. In
        a batch with padding a row may then attend to nothing but what its forward adds.
        """
        lengths, mask = {*self.cache.lengths()}, self.prompt_mask
        if len(lengths) > 1:
            self.no_drafts = "a hook has shortened some layers of the cache"
        elif mask is not None and not mask.all() and lengths != {self.facts.end}:
            self.no_drafts = "a hook has shortened the cache of a batch with padding"

    def _copied(self, states: torch.Tensor) -> torch.Tensor:
        """Repeat the rows that the prefill ran, once for each beam."""
        return states.repeat_interleave(self._copies, dim=0) if self._copies > 1 else states

    def _use_cache(self) -> None:
        """Use the cache that the model has returned, and make it ready for rollbacks."""
        self.cache = KVCache(cache_of(self.inputs.kwargs), recurrent=self.facts.recurrent)
        self.cache.record()
        if self._ragged is not None:
            self.cache.make_ragged()
        if self._shapes is not None and self._shapes.keys is not None:
            self.cache.stretch(self._shapes.keys)
        elif self.facts.attention == "sdpa":  # it accepts keys with any stride
            self.cache.grow_in_place()

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Run the forwards after the prefill inside it.

        ``generate`` runs them in a context in which transformers, on accelerators, copies the
        weights of a token's experts for each token. That pays for few tokens, so there a forward
        with a draft leaves the context.
        """
        if self.device.type == "cpu":
            with forwards.decode_context(self.model):
                yield
            return
        with ExitStack() as self._decoding:
            try:
                yield
            finally:
                self._decoding, self._narrow = None, False

    def narrow(self, narrow: bool) -> None:
        """Be in the context of ``generate`` for the next forward, of one position, or leave it."""
        if self._decoding is None or narrow == self._narrow:
            return
        self._narrow = narrow
        if narrow:
            self._decoding.enter_context(forwards.decode_context(self.model))
        else:
            self._decoding.close()

    def _collect(self, entered: ExitStack, hidden: bool) -> list[torch.Tensor]:
        """Collect states for heads, and return the inputs of the model's head if ``hidden``."""
        if self.states is not None and not self.compiled:  # such a forward has no hooks
            entered.enter_context(self.states.reading())
        if not hidden:
            return []
        from ngramspec.hf_model.outputs import head_inputs

        return entered.enter_context(head_inputs(self.model))

    def forward(self, forward: Forward) -> torch.Tensor:
        """Run every row's last committed token and its draft in one forward, padded to its width.

        Its logits are returned, (batch, n + 1, vocab).
        """
        if self.cache.convolves:
            from ngramspec.hf_model.trials import give_notices  # few models have such layers

            give_notices(self.model, self.device)
        inputs = self.begin_forward(forward)
        if self._decoding is not None:
            self.narrow(forward.width == 1)
        plain = forward.width == 1 and not forward.reread
        plain = plain and not (self.keep_hidden and self.wants_hidden)
        if plain and self.states is None and not self.facts.hooks_positions:
            return self.end_forward(self._run(**inputs, return_dict=True))
        with ExitStack() as entered:
            if self._run is self.model:
                entered.enter_context(in_place(self.device, self.inputs.chain))
            if self.cache.indexed and forward.width > 1:
                from ngramspec.hf_model.compat.kernels import causal_topk  # few have an index

                keys = self.cache.length() + forward.width
                entered.enter_context(causal_topk(self.model, forward.width, keys))
            if self.facts.hooks_positions and not self.compiled:
                entered.enter_context(self.inputs.take_positions(inputs))
            hidden = self._collect(entered, self.wants_hidden)
            outputs = self._run(**inputs, return_dict=True)
        return self.end_forward(outputs, hidden[-1] if hidden else None)

    def begin_forward(self, forward: Forward, *, joint: bool = False) -> dict[str, Any]:
        """Return the model's arguments; the caller runs the model and calls ``end_forward``.

        ``joint``: it is a part of a joint forward, whose windows need masks that are made here.
        """
        block, lengths, trees = forward.block, forward.lengths, forward.trees
        assert block is not None
        committed, checkpoint = forward.committed, self.cache.checkpoint
        keys, new = self.cache.key_length, block.shape[1]
        if self._present is not None:
            block, lengths = self._present.select(block), self._present.of(lengths)
            trees = self._present.of(trees) if trees else ()
        block, committed = sent(block, self.device), moved(committed, self.device)
        if self.pending is not None:
            block, committed = self.pending.in_front(block, committed)
        positions = block.shape[1]
        width = positions if self._shapes is None else self._shapes.least_width(positions)
        self.replayed_positions = positions - new
        forward.block, forward.width, self._forward = block, width, forward
        if checkpoint is not None:
            if new > 1 or forward.trial or self.outlives:
                checkpoint.save()
            else:
                checkpoint.discard()
        inputs = self.inputs.prepare(
            block,
            lengths,
            trees,
            committed,
            width=width,
            slots=self._slots,
            keys=keys,
            held=self.cache.held if self.cache.slides and keys is None else None,
            masked=joint and self.facts.outgrows_windows,
        )
        forward.reread = self.facts.reads_text and cache_of(inputs) is None
        return inputs

    def end_forward(self, outputs: Any, hidden: torch.Tensor | None = None) -> torch.Tensor:
        """Accept the outputs of the prepared forward and its head's input; return its logits."""
        forward = self._forward
        assert forward is not None
        forward.outputs = outputs
        if forward.reread:
            self._replace_cache(forward)
        self.hidden = None if hidden is None else self._of_new(hidden)
        if self.states is not None:
            self.states.offer(self._of_new)
        return self._of_new(outputs.logits)

    def _of_new(self, states: torch.Tensor) -> torch.Tensor:
        """Select the states of the block's new tokens, (batch, n + 1, size), for all rows."""
        forward = self._forward
        assert forward is not None
        assert forward.block is not None
        new = forward.width - self.replayed_positions
        wanted = forward.block.shape[1] - self.replayed_positions
        if states.shape[1] < new:
            raise self._missing(states, new)
        if states.shape[1] != wanted:
            states = states[:, -new:][:, :wanted]
        return states if self._present is None else self._present.spread(states)

    def _missing(self, logits: torch.Tensor, positions: int) -> MissingLogitsError:
        return MissingLogitsError(
            f"{type(self.model).__name__} returns logits of {logits.shape[1]} tokens in a forward"
            f" over {positions}; pass Speculator('none')"
        )

    def _replace_cache(self, forward: Forward) -> None:
        """Continue with the cache that a forward made instead of the one that it was given."""
        self.close()
        self.inputs.replace_cache(cache_of(forward.outputs))
        self._use_cache()
        if self.cache.length() < self._slots + forward.width:  # before transformers 5.20 or so
            self.no_drafts = "the model forgot the text after its original length"

    # Rollback

    def rollback(self, paths: Sequence[Sequence[int]], origins: Sequence[int] = ()) -> None:
        """Roll cache, masks and positions back, also after an interrupt: accepted positions stay.

        Args:
            paths: for each row of the cache after the rollback, the forward's positions that the
                baseline would have run. In the prefill, position 0 is the prompt's last token.
            origins: which row of the forward each row continues; empty: each its own.
        """
        if self._prefilled is None:
            self.cache.truncate_to(self.facts.cached)
        forward = self._forward
        if self.states is not None and forward is not None:
            self.states.keep(paths, prefill=forward.block is None)
        if forward is None:
            if self._unordered:  # all positions of the prefill stay
                self.cache.reorder(origins)
                self._unordered = False
            return
        if self._present is not None:
            paths = self._present.of(paths)
        kept = list(map(len, paths))
        if forward.block is None:  # in a prefill, the prompt's last token stays in the cache
            kept, paths = [max(each - 1, 0) for each in kept], []
        stays, complete = max(kept), forward.outputs is not None
        if not complete:
            self.cache.truncate_to(self._slots + stays)
        else:
            if self._recorder is not None:
                new = [[self.replayed_positions + at for at in path] for path in paths]
                keys_of = self.inputs.keys_of(self._slots, static=self.cache.capacity is not None)
                self._recorder.keep(forward.outputs, new, keys_of, whole=forward.reread)
            forward.outputs = None
            if self.cache.checkpoint is not None:
                stays = self._all_or_none(self.cache.checkpoint, stays, origins)
                kept = [stays] * len(kept)
            if origins:
                self.cache.reorder(origins)
            if stays > 1:
                self.cache.keep_paths(self._slots, paths)
        self.inputs.commit(kept)
        if complete:
            self.cache.truncate(forward.width - stays, self.inputs.needed_slots)
        self._slots += stays
        self._forward = None
        if self._ragged is not None:
            full = self._shapes is not None and self._shapes.is_full(self._slots)
            self._compact(self._ragged.slots_to_keep(self._slots, 0 if full else None))

    def _compact(self, slots: torch.Tensor | None) -> None:
        if slots is not None:
            assert self._ragged is not None
            self.cache.compact(slots)
            self._ragged.compact(slots)
            self._slots = slots.shape[1]

    def drop(self, counts: Sequence[int]) -> None:
        """Give up each row's last ``counts`` tokens, after a rollback in a ragged batch."""
        assert self._ragged is not None
        self._ragged.drop(counts)
        if self._recorder is not None:
            self._recorder.drop(counts)

    def _all_or_none(self, checkpoint: Checkpoint, accepted: int, origins: Sequence[int]) -> int:
        """Return how many positions of a forward over recurrent states stay: all or none."""
        forward = self._forward
        assert forward is not None
        assert forward.block is not None
        assert self.pending is not None
        accepted += self.replayed_positions
        whole = accepted == forward.width or not checkpoint.restore()
        self.pending.keep(forward.block, 0 if whole else accepted, origins)
        return forward.width if whole else 0

    def without_drafts(self, reason: str) -> None:
        """Undo the last forward, and allow no further drafts in this generation."""
        self._undo()
        self.no_drafts = reason

    def _undo(self) -> None:
        """Undo the last forward, also if it was interrupted."""
        if self._forward is not None:
            self._forward.outputs = None
            self.rollback([()] * len(self.prompt))

    def keep_rows(self, rows: Collection[int]) -> None:
        """Run only these present rows later. Values of others are meaningless from then on."""
        assert self._ragged is not None
        if self._present is None:
            from ngramspec.hf_model.ragged import PresentRows

            self._present = PresentRows(len(self.prompt))
        order = self._present.keep(rows)
        self.cache.keep_rows(order)
        self._ragged.keep_rows(order)

    @property
    def outlives(self) -> bool:
        """Whether the cache is used after the generation."""
        return bool(self.config.return_dict_in_generate) or is_callers(self.cache.cache)

    def close(self) -> None:
        """Leave the cache as the baseline would."""
        if self._ragged is not None and self.outlives and self._prefilled is not None:
            self._ragged.level()
            self._compact(self._ragged.slots_to_keep(self._slots, 0))
            self.cache.truncate(0)  # layers with windows may hold more
        try:
            if self.outlives and self.pending is not None and self.pending.tokens is not None:
                rows = len(self.pending.tokens)
                nothing = self.pending.tokens[:, :0]
                try:
                    text = self.pending.text()
                    self.forward(Forward(block=nothing, lengths=[0] * rows, committed=text))
                finally:
                    self.rollback([()] * rows)
        finally:
            self.cache.release(outlives=self.outlives)
            if self._room is not None and (self.outlives or self._prefilled is None):
                self._room.give_back(self.cache.length())
            self._room = None

    def output(
        self,
        sequences: torch.Tensor,
        scores: list[torch.Tensor] | None,
        logits: list[torch.Tensor] | None,
        ranking: dict[str, Any] | None = None,
    ) -> Any:
        if self._recorder is None:
            return sequences
        kwargs, cache = self.inputs.kwargs, self.cache.cache
        return self._recorder.output(cache, kwargs, sequences, scores, logits, ranking)
