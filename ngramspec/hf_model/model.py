"""The target model: its prefill, its forwards over drafts, and the rollback of its cache."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from ngramspec.hf_model.attention.gqa_attention import in_place
from ngramspec.hf_model.attention.tree_attention import Trees
from ngramspec.hf_model.cache.kv_cache import kv_cache_for
from ngramspec.hf_model.cache.recurrent_state import Checkpoint
from ngramspec.hf_model.compat import hf_private
from ngramspec.hf_model.compat.cache_name import cache_of
from ngramspec.hf_model.forward import NOTHING, LastForward, check_logits, head_inputs, reading
from ngramspec.hf_model.inputs.shapes import least_width
from ngramspec.hf_model.prepared import PreparedTarget
from ngramspec.hf_model.support import check_prefilled

if TYPE_CHECKING:
    from ngramspec.hf_model.assistants.states import StateChannel


class Target(PreparedTarget):
    """One generation of a model, from its prefill on.

    Invariant after ``rollback``: the cache holds all committed tokens except each row's last one
    and the pending ones before it. In a ragged batch it also holds gaps that no row attends to.
    """

    def prefill(self, draft: torch.Tensor | None = None) -> torch.Tensor:
        """Run the prompt, in chunks if the config says so, followed by a draft.

        Args:
            draft: int64 (1, n), n <= ``prefill_room()``; None: no draft.

        Returns:
            logits at the prompt's last token and the n draft tokens, (batch, n + 1, vocab).

        An UnsupportedError is raised if the cache does not hold the prompt afterwards, or if logits
        are missing.
        """
        count = 0 if draft is None else draft.shape[1]
        prompt, kwargs, config = self.prompt, self.inputs.kwargs, self.config
        if self._copies > 1:
            prompt, kwargs = prompt[:: self._copies], self.inputs.every(self._copies, len(prompt))
        if draft is not None:
            prompt = torch.cat((prompt, draft.to(prompt.dtype)), dim=1)
            kwargs = self.inputs.with_prefill_draft(count)
            config = hf_private.with_longer_mask(config, count)
        if (self.call.cached or draft is not None) and config.prefill_chunk_size is None:
            self.cache.record()  # so that a draft or an interrupted prefill can be rolled back
        if self.cache.checkpoint is not None:
            self.cache.checkpoint.save()
        states = self._read_states
        with head_inputs(self.model, self.keep_hidden) as hidden, reading(states):
            outputs = hf_private.prefill(self.model, prompt, config, kwargs)
        check_logits(outputs.logits, 1 + count, self.traits.name)
        if states is not None:
            states.keep_prompt(count)
        self.hidden = self._copied(hidden[-1][:, -1 - count :]) if hidden else None
        self.inputs.carry(outputs)
        if self._copies > 1:
            cache_of(self.inputs.kwargs).batch_repeat_interleave(self._copies)
        self._use_cache()
        check_prefilled(self.model, self.cache, self.call)
        if draft is None:
            self.cache.truncate(0)  # no position is rejected, and windows slide
        self._slots = (self.cache.length() or self.call.end) - count
        self.inputs.begin(self.prompt, self._slots)
        self.limits.prefilled = self._slots
        if draft is not None:
            self._forward = LastForward(count, is_prefill=True, outputs=outputs)
        self._recorder.keep_prefill(outputs)
        self._unordered = self._copies == 1  # the rows of a given cache may differ
        return self._copied(outputs.logits[:, -1 - count :])

    @property
    def prefill_positions(self) -> int:
        """Number of positions that the prefill runs, in all rows."""
        return self.prompt.shape[0] // self._copies * (self.call.end - self.call.cached)

    def _copied(self, states: torch.Tensor) -> torch.Tensor:
        """Repeat the rows that the prefill ran, once for each beam."""
        return states.repeat_interleave(self._copies, dim=0) if self._copies > 1 else states

    def _use_cache(self) -> None:
        """Use the cache that the model has returned, and make it ready for rollbacks."""
        self.cache = kv_cache_for(cache_of(self.inputs.kwargs), recurrent=self.traits.recurrent)
        self.cache.record()
        if self.inputs.ragged:
            self.cache.windows.let_rows_diverge()
        if self._shapes.keys is not None:
            self.cache.stretch(self._shapes.keys)
        elif self.traits.attention == "sdpa":  # it accepts keys with any stride
            self.cache.grow_in_place()

    def forward(
        self,
        block: torch.Tensor,
        lengths: Sequence[int],
        trees: Trees = (),
        committed: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run every row's last committed token and its draft in one forward.

        Padding up to the forward's width follows the block. A model may drop its cache and read
        all tokens again (Phi-3, where its rotary factors change); generation then continues with
        the cache that it returns.

        Args:
            block: int64 (batch, n + 1), on the prompt's device.
            lengths: for each row, how many of its tokens in the block are not padding.
            trees: parents of each row's draft; empty: all drafts are chains.
            committed: int64 (batch, length), all tokens up to and including the block's first, for
                models that read them (``traits.reads_text``); else None.

        Returns:
            logits, (batch, n + 1, vocab), in the model's dtype.

        A MissingLogitsError is raised if the model returns fewer; see ``without_drafts``.
        """
        inputs = self.begin_forward(block, lengths, trees, committed)
        assert self._forward is not None
        plain = self._forward.width == 1 and not (self.wants_hidden or self._forward.reread)
        if plain and self.states is None and not self.traits.hooked:
            return self.end_forward(self._shapes.run(**inputs, return_dict=True))
        alone: AbstractContextManager[None] = NOTHING
        if self.cache.indexed:
            from ngramspec.hf_model.attention.index_ties import selecting_alone

            alone = selecting_alone(self.model, self.cache, inputs)
        collected = head_inputs(self.model, self.wants_hidden)
        own, positions = in_place(self.model, block.device), self.inputs.take_positions(inputs)
        with own, alone, positions, collected as hidden, reading(self._read_states):
            outputs = self._shapes.run(**inputs, return_dict=True)
        return self.end_forward(outputs, hidden[-1] if hidden else None)

    @property
    def _read_states(self) -> StateChannel | None:
        """What collects hidden states for heads; a compiled forward has no hooks."""
        return None if self.widths else self.states

    def begin_forward(
        self,
        block: torch.Tensor,
        lengths: Sequence[int],
        trees: Trees = (),
        committed: torch.Tensor | None = None,
        *,
        joint: bool = False,
    ) -> dict[str, Any]:
        """Return the model's arguments; the caller runs the model and calls ``end_forward``.

        ``joint``: the positions are part of a joint forward, for which windows that hide a position
        need masks that are made here. The other arguments are those of ``forward``.
        """
        new, keys = block.shape[1], self.cache.key_length
        if self._present is not None:
            block, lengths = self._present.select(block), self._present.of(lengths)
            trees = self._present.of(trees) if trees else ()
        if self.pending is not None:
            block, committed = self.pending.in_front(block, committed)
        positions = block.shape[1]
        width = least_width(self.widths, positions)
        forward = self._forward = LastForward(width, block, positions - new)
        checkpoint = self.cache.checkpoint
        if checkpoint is not None:
            if new > 1 or self._outlives:
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
            held=self.cache.windows.held if self.cache.slides and keys is None else None,
            masked=joint and self.known().slides,
        )
        forward.reread = cache_of(inputs) is None
        return inputs

    @property
    def wants_hidden(self) -> bool:
        """Whether the next forward collects the input of the model's head."""
        return self.keep_hidden and not self.widths  # no hook in a compiled forward

    def end_forward(self, outputs: Any, hidden: torch.Tensor | None = None) -> torch.Tensor:
        """Accept the outputs of the forward that ``begin_forward`` prepared, and return its logits.

        ``hidden`` is the input of the model's head, (batch, width or more, d), or None.
        """
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
        assert self._forward is not None
        new = self._forward.of_new(states, self.traits.name)
        return new if self._present is None else self._present.spread(new)

    @property
    def again(self) -> int:
        """Number of positions in the last forward that had been accepted before it."""
        return 0 if self._forward is None else self._forward.again

    def _replace_cache(self, forward: LastForward) -> None:
        """Continue with the cache that a forward made instead of the one that it was given."""
        self.close()
        self.inputs.replace_cache(cache_of(forward.outputs))
        self._use_cache()
        if self.cache.length() < self._slots + forward.width:  # before transformers 5.20 or so
            self.limits.no_drafts = "the model forgot the text after its original length"

    def rollback(self, paths: Sequence[Sequence[int]], origins: Sequence[int] = ()) -> None:
        """Roll cache, masks and positions back: of the last forward, only accepted positions stay.

        It may also be called after an interrupted forward or prefill.

        Args:
            paths: for each row of the cache after the rollback, the forward's positions that the
                baseline would have run, in order. In the prefill, position 0 is that of the
                prompt's last token.
            origins: which row of the forward each row continues; empty: each its own.
        """
        if self.limits.prefilled is None:
            self.cache.truncate_to(self.call.cached)
        forward = self._forward
        if self.states is not None and forward is not None:
            self.states.keep(paths, prefill=forward.is_prefill)
        if forward is None:
            if self._unordered:  # all positions of the prefill stay
                self.cache.reorder(origins)
                self._unordered = False
            return
        if self._present is not None:
            paths = self._present.of(paths)
        kept = [len(path) for path in paths]
        if forward.is_prefill:  # the prompt's last token stays in the cache
            kept, paths = [max(each - 1, 0) for each in kept], []
        stays, complete = max(kept), forward.outputs is not None
        if not complete:
            self.cache.truncate_to(self._slots + stays)
        else:
            if self._recorder.names:
                static = self.cache.capacity is not None
                self._recorder.keep(forward, stays, self._slots, static=static)
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
        slots = self.inputs.slots_to_keep(self._slots)
        if slots is not None:
            self.cache.compact(slots)
            self.inputs.compact(slots)
            self._slots = slots.shape[1]

    def _all_or_none(self, checkpoint: Checkpoint, accepted: int, origins: Sequence[int]) -> int:
        """Return how many positions of a forward over recurrent states stay: all or none.

        If a token was rejected, the states are restored and the accepted tokens of each row's
        origin become pending.
        """
        forward = self._forward
        assert forward is not None
        assert forward.block is not None
        assert self.pending is not None
        accepted += forward.again
        whole = accepted == forward.width or not checkpoint.restore()
        self.pending.keep(forward.block, 0 if whole else accepted, origins)
        return forward.width if whole else 0

    def without_drafts(self, reason: str) -> None:
        """Undo the last forward, and allow no further drafts in this generation."""
        assert self._forward is not None
        self._forward.outputs = None
        self.rollback([()] * len(self.prompt))
        self.limits.no_drafts = reason

    @property
    def _outlives(self) -> bool:
        """Whether the cache is used after the generation."""
        return bool(self.config.return_dict_in_generate) or hf_private.is_callers(self.cache.cache)

    def close(self) -> None:
        """Leave the cache as the baseline would."""
        try:
            if self._outlives and self.pending is not None and self.pending.tokens is not None:
                rows = len(self.pending.tokens)
                nothing = self.pending.tokens[:, :0]
                try:
                    self.forward(nothing, [0] * rows, (), self.pending.text())
                finally:
                    self.rollback([()] * rows)
        finally:
            self.cache.release(outlives=self._outlives)

    def output(self, *found: Any) -> Any:
        """Build the return value of ``generate``; see ``OutputRecorder.output``."""
        return self._recorder.output(self.cache.cache, self.inputs.kwargs, *found)
