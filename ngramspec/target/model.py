"""The target model: its prefill, its forward over drafts, and its cache."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ngramspec.draft import Int32
from ngramspec.errors import UnsupportedError
from ngramspec.target.compiled import ROOM, Graphs, bucket_sizes
from ngramspec.target.gqa_attention import in_place
from ngramspec.target.inputs import grow, grow_ragged, used_slots
from ngramspec.target.kv_cache import is_callers, kv_cache_for
from ngramspec.target.padding import Widths, needed_positions, rope_turn, rope_types
from ngramspec.target.support import NOT_STATIC, check_model, require_fixed, wants_graphs
from ngramspec.target.traits import traits_of
from ngramspec.target.tree_attention import ancestry, attended, attention_of, takes_masks, tree_mask

PER_TOKEN = ("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids")
STATES = {"output_attentions": ("attentions",), "output_hidden_states": ("hidden_states",)}
DECODER_STATES = {
    "output_attentions": ("decoder_attentions", "cross_attentions"),
    "output_hidden_states": ("decoder_hidden_states",),
}
PER_DECODER_TOKEN = ("decoder_attention_mask", "decoder_position_ids")
WASTE = 0.25  # share of the cache's positions that may be gaps before they are closed,
LEAST_WASTE = 32  # and how many may be at least
MASK_LENGTH = "_mask_length"  # of a config whose mask, all ones, generate left out
LONGEST_PREFILL_DRAFT = 1 << 20  # tokens that the prefill checks, where nothing else says


class Target:
    """One generation of a model, from its prefill on.

    Invariant after ``rollback``: the cache holds the positions of all committed tokens but each
    row's last, and, in a ragged batch, gaps that no row attends to.

    Args:
        model: a transformers model with a language-model head.
        input_ids: int64 (batch, prompt); of the decoder in an encoder-decoder model.
        config: the prepared GenerationConfig.
        model_kwargs: what ``generate`` prepared for the model's forward.
        width: of every forward after the prefill, in positions; None: as wide as the draft is.
        compiled: whether these forwards are compiled; None: if plain ``generate`` would.
        gamma_max: the most tokens that a draft will have; looked at for compiled ones only.

    Raises:
        UnsupportedError: the model or its cache cannot be speculated with, or not in that way.
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
    ) -> None:
        check_model(model, model_kwargs)
        self.model = model
        self.config = config
        self.kwargs = dict(model_kwargs)
        self.prompt = input_ids
        self.encodes: bool = model.config.is_encoder_decoder
        self.ragged = False
        self.cache = kv_cache_for(self.kwargs.get("past_key_values"))
        self.traits = traits_of(model, input_ids, self.kwargs)
        if self.cache.capacity is not None and self.traits.names & NOT_STATIC:
            raise UnsupportedError(
                f"{type(model).__name__} decodes otherwise on a static cache; remove"
                " cache_implementation, or pass a DynamicCache"
            )
        self._per_token = PER_DECODER_TOKEN if self.encodes else PER_TOKEN
        self._before = self.cache.length()  # what it held when we got it
        self.unaligned = self._why_unaligned()
        self._prefilled: int | None = None
        self._slots = 0  # positions in the cache,
        self._used: list[int] = []  # and how many of them are a row's own, in a ragged batch
        self._width = 0  # of the forward that was not rolled back yet
        self._reread = False  # whether it read the whole text anew
        self._outputs: Any = None  # of that forward, if it came to its end
        self._ahead = False  # whether it was the prefill, with a draft behind the prompt
        self.states: dict[str, list[Any]] = {  # per token, where they were asked for
            name: []
            for asked, names in (DECODER_STATES if self.encodes else STATES).items()
            if config.return_dict_in_generate and self.kwargs.get(asked)
            for name in names
        }
        self._check_states()
        text_config = model.config.get_text_config(decoder=True)
        self.position_limit: int | None = getattr(text_config, "max_position_embeddings", None)
        self._masks = not self.encodes and takes_masks(model) and self.traits.passes_masks
        turns = (rope_turn(text_config), self.traits.rereads_at)
        self.turns = sorted({each for each in turns if each is not None})  # lengths
        self._rope_grows = "dynamic" in rope_types(text_config)
        self._farthest = _farthest(self.kwargs.get("position_ids"))
        self._stretch: int | None = None  # to how many keys a forward attends
        self.widths = Widths() if width is None else Widths((width,))
        if width is not None:
            require_fixed(self, width)
        self._call: Callable[..., Any] = model
        if wants_graphs(self, compiled):
            if width is None:
                self.widths = Widths(bucket_sizes(gamma_max + 1))
            self._call = Graphs(model, config, len(self.widths.sizes))
        if self.widths.sizes:
            self._make_room(fixed=width is not None)

    def _check_states(self) -> None:
        """Raise an UnsupportedError if the states asked for are not those of single tokens."""
        if not any("attentions" in name for name in self.states):
            return
        remedy = "pass output_attentions=False"
        if self.cache.slides:
            raise UnsupportedError(
                f"output_attentions=True is not supported with sliding-window attention; {remedy}"
            )
        falcon = "FalconForCausalLM" in self.traits.names
        if falcon and attention_of(self.model) == "sdpa":  # plain decoding's text changes, too
            raise UnsupportedError(
                "FalconForCausalLM attends otherwise under sdpa with output_attentions=True;"
                f" {remedy}, or load it with attn_implementation='eager'"
            )

    @property
    def can_be_ragged(self) -> bool:
        """Whether rows may have gaps: each token's place is what masks and positions say.

        A model that takes no positions counts them itself, by the cache's length as a rule; and
        so does the next call, if the cache is the caller's own. Where rotary frequencies follow
        the largest position of a batch, rows have to be where plain decoding has them.
        """
        given = self._before > 0 or is_callers(self.cache.cache)
        couples = bool(self.turns) or self._rope_grows  # by the largest position of all
        own = self.traits.reads_text and self.traits.stock is None  # and it may count on the text
        if given or couples or own or self.encodes or self.traits.by_slot:
            return False
        return self.cache.allows_gaps and self.traits.places

    @property
    def compiling(self) -> bool:
        """Whether the last forward took its time for being compiled."""
        return isinstance(self._call, Graphs) and self._call.compiled

    @property
    def vocab(self) -> int | None:
        """How many tokens it knows; None: its head does not say."""
        weight = getattr(self.model.get_output_embeddings(), "weight", None)
        if isinstance(weight, torch.Tensor) and weight.ndim == 2 and weight.is_floating_point():
            return int(weight.shape[0])
        return None

    def prefill_room(self) -> int:
        """How many tokens a draft may have that the prefill checks, 0 if it can check none.

        It can where it is one forward of plain text into a cache that grows, for a single row.
        Types of tokens may say that a prompt is read in both directions: then it cannot.
        """
        known = ("past_key_values", "use_cache", "logits_to_keep", "attention_mask", "position_ids")
        beside = [
            name
            for name, value in self.kwargs.items()
            if name not in known and value is not None and value is not False
        ]
        whole = self.config.prefill_chunk_size is None and not self.states and not beside
        simple = self.cache.key_length is None and not self.cache.slides and not self.widths.sizes
        if self.prompt.shape[0] > 1 or self.encodes or not (whole and simple):
            return 0
        turns = bool(self.turns) or self._rope_grows  # by the prefill's length, too
        if self._stretch is not None or turns or self.vocab is None:
            return 0
        if self.unaligned is not None:
            return 0
        if self.position_limit is None:
            return LONGEST_PREFILL_DRAFT
        return self.position_limit - max(self._end(), self._farthest + 1)

    def _why_unaligned(self) -> str | None:
        """Why the cache will hold other positions than masks say, so that nothing can be drafted.

        Plain decoding goes on all the same.
        """
        if not self.encodes and self._before > 0 and self._before >= self._end():
            return "the cache given holds the whole prompt; crop it by one token, cache.crop(-1)"
        if self.kwargs.get("inputs_embeds") is not None and self.config.prefill_chunk_size:
            return "prefill_chunk_size reads all inputs_embeds in every chunk; remove it"
        return None

    def _end(self) -> int:
        """How many positions a row has when it is prefilled, those in the cache before included."""
        mask = self.kwargs.get("attention_mask")
        if mask is not None:
            return int(mask.shape[-1])
        otherwise = self._before + self.prompt.shape[1]  # less, if it repeats what the cache holds
        return int(getattr(self.config, MASK_LENGTH, otherwise))

    def prefill(self, ahead: torch.Tensor | None = None) -> torch.Tensor:
        """Run the prompt, in chunks if the config says so, and a draft behind it.

        Args:
            ahead: int64 (1, n), n within ``prefill_room``; None: no draft.

        Returns:
            logits behind the prompt's last token and the n drafted ones, (batch, n + 1, vocab).
        """
        if self.ragged and self.kwargs.get("attention_mask") is None:
            self.kwargs["attention_mask"] = self.prompt.new_ones(len(self.prompt), self._end())
        count = 0 if ahead is None else ahead.shape[1]
        prompt, kwargs, config = self.prompt, self.kwargs, self.config
        if ahead is not None:
            prompt, kwargs = (
                torch.cat((prompt, ahead.to(prompt.dtype)), dim=1),
                self._grown(count, ()),
            )
            if kwargs.get("logits_to_keep") is not None:
                kwargs["logits_to_keep"] = 1 + count
            if hasattr(config, MASK_LENGTH):  # tells a whole sequence from one behind the cache
                config = copy.copy(config)
                setattr(config, MASK_LENGTH, getattr(config, MASK_LENGTH) + count)
        if self._before and config.prefill_chunk_size is None:
            self.cache.record()  # what slides out comes back if the prefill is interrupted
        outputs = self.model._prefill(prompt, config, kwargs)
        self.kwargs = self.model._update_model_kwargs_for_generation(
            outputs, self.kwargs, is_encoder_decoder=self.encodes
        )
        self._use_cache()
        if count == 0:
            self.cache.truncate(0)  # windows are as long as they are
        self._prefilled = self._slots = self.cache.length() - count
        self._ahead, self._width, self._outputs = count > 0, count, outputs
        if self.ragged:
            self._used = self.kwargs["attention_mask"][:, :-1].sum(dim=1).tolist()
        for name, kept in self.states.items():
            kept.append(getattr(outputs, name))
        logits: torch.Tensor = outputs.logits[:, -1 - count :]
        return logits

    def _use_cache(self) -> None:
        """Roll back, from here on, the cache that the model has returned."""
        self.cache = kv_cache_for(self.kwargs["past_key_values"])
        self.cache.record()
        if self._stretch is not None:
            self.cache.stretch(self._stretch)
        elif attention_of(self.model) == "sdpa":  # which takes keys as they lie
            self.cache.grow_in_place()

    def decoding(self) -> AbstractContextManager[Any]:
        """The context in which ``generate`` runs the forwards after the prefill."""
        enter = getattr(self.model, "_optimize_model_for_decode", nullcontext)
        return enter()

    def room(self, new: int) -> int | None:
        """How many tokens a draft may have after ``new`` generated ones; None: any number."""
        if self.unaligned is not None:  # what plain decoding runs, runs
            return 0
        rooms = []
        if self._prefilled is not None:
            places = {self._prefilled + new, self._farthest + 1 + new}  # by slots, by positions
            if self.position_limit is not None:
                rooms.append(self.position_limit - max(places))
            # No forward reaches over the turn, and the first one behind it may read all anew.
            # Rotary factors turn by positions, models that read anew by the number of tokens.
            for turn in self.turns:
                rooms += [turn - at for at in places if at <= turn + 1]
        capacity = self.cache.capacity
        most = self.widths.most(None if capacity is None else capacity - self._slots)
        if most is not None:
            rooms.append(most - 1)
        return max(min(rooms), 0) if rooms else None

    def forward(
        self,
        block: torch.Tensor,
        lengths: Sequence[int],
        parents: Int32 | None = None,
        committed: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run every row's last committed token and the draft behind it in one forward.

        What pads it to its width stands behind everything that is looked at. A model may drop its
        cache and read all tokens anew (Phi-3, where its rotary factors change): what it then
        returns is the cache from there on.

        Args:
            block: int64 (batch, n + 1), on the prompt's device.
            lengths: how many of a row's tokens count; those behind are padding. Looked at in a
                ragged batch only.
            parents: of the only row's draft, if it is a tree.
            committed: int64 (batch, length), all tokens up to the block's first, for models that
                look at them (``traits.reads_text``); None: nobody does.

        Returns:
            logits, (batch, n + 1, vocab), in the model's dtype.
        """
        positions = block.shape[1]
        self._width = self.widths.of(positions)
        self._outputs = None
        grown = self._grown(positions - 1, lengths)
        if parents is not None:
            grown["position_ids"] = self._tree_positions(parents)
        if self._width > positions:
            block, grown = self._padded(block, grown, self._width - positions)
        static = self._masks and self.cache.key_length is not None and not self._will_reread()
        if parents is not None or static:
            grown["attention_mask"] = self._mask(parents)
        if committed is not None:
            block = torch.cat((committed[:, :-1], block.to(committed.dtype)), dim=1)
        inputs = self.model.prepare_inputs_for_generation(
            block, next_sequence_length=self._width, **grown
        )
        if (parents is not None or self.ragged) and inputs.get("position_ids") is None:
            name = type(self.model).__name__
            remedy = "pass tree=None, and one prompt at a time"
            raise UnsupportedError(f"{name} drops the positions that it is given; {remedy}")
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = self._width
        with in_place(block.device):
            self._outputs = self._call(**inputs, return_dict=True)
        self._reread = inputs.get("past_key_values") is None
        if self._reread:
            self._replace_cache()
        logits: torch.Tensor = self._outputs.logits[:, -self._width :]
        if logits.shape[1] < self._width:
            name = type(self.model).__name__
            raise UnsupportedError(
                f"{name} gives logits of {logits.shape[1]} tokens in a forward of {self._width};"
                " pass Speculator('none')"
            )
        return logits[:, :positions]

    def _will_reread(self) -> bool:
        """Whether the model drops its cache in a plain step from here; no draft reaches further."""
        at = self.traits.rereads_at
        return at is not None and self._slots == at

    def _replace_cache(self) -> None:
        """Go on with the cache that the last forward made in place of the one it was to use."""
        self.close()
        self.kwargs["past_key_values"] = self._outputs.past_key_values
        self._use_cache()
        if self.cache.length() < self._slots + self._width:  # before transformers 5.20 or so
            self.unaligned = "the model forgot the text behind its original length"

    def rollback(self, kept: Sequence[int], path: Sequence[int] = ()) -> None:
        """Roll the last forward back to what stays; the masks and positions follow.

        Whatever became of that forward, and if the prefill did not come to its end, that too.

        Args:
            kept: per row, how many of the forward's positions plain decoding would have done.
            path: which ones, in a tree's order; without it the first ones.
                Of the prefill the first position counted is that of the prompt's last token.
        """
        if self._prefilled is None:
            self.cache.truncate_to(self._before)
        if self._width == 0:
            return
        if self._ahead:  # the prompt's last token, which comes first, is in the cache to stay
            kept, path = [max(each - 1, 0) for each in kept], ()
        self._ahead = False
        stays = max(kept)
        if self._outputs is None:
            self.cache.truncate_to(self._slots + stays)
        else:
            if len(path) == stays and list(path) != list(range(stays)):
                self.cache.keep_path(self._slots, path)
            self.cache.truncate(self._width - stays)
            self._keep_states(stays)
        self._outputs = None
        self.kwargs |= self._grown(stays, [each + 1 for each in kept], committed=True)
        self._slots += stays
        self._width = 0
        if self.ragged:
            self._used = [used + more for used, more in zip(self._used, kept, strict=True)]
            self._close_gaps()

    def close(self) -> None:
        """Leave the cache as plain decoding would."""
        returned = self.config.return_dict_in_generate
        self.cache.release(outlives=returned or is_callers(self.cache.cache))

    def _grown(
        self, count: int, lengths: Sequence[int], *, committed: bool = False
    ) -> dict[str, Any]:
        """The kwargs for ``count`` more positions behind each row's last committed token."""
        kwargs = dict(self.kwargs)
        for name in self._per_token:
            if kwargs.get(name) is None:
                continue
            if self.ragged:
                kwargs[name] = grow_ragged(name, kwargs[name], count, lengths, committed=committed)
            else:
                kwargs[name] = grow(name, kwargs[name], count)
        return kwargs

    def _padded(
        self, block: torch.Tensor, kwargs: dict[str, Any], count: int
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Repeat the block's last token ``count`` times, at its own position.

        So no position is beyond those that the model knows, whatever they are.
        """
        for name in self._per_token:
            value = kwargs.get(name)
            if value is not None:
                kwargs[name] = torch.cat(
                    (value, value[..., -1:].expand(*value.shape[:-1], count)), -1
                )
        return torch.cat((block, block[:, -1:].expand(-1, count)), dim=1), kwargs

    def _make_room(self, *, fixed: bool) -> None:
        """Have a cache in which the widest forward always fits, or looks as if.

        The size of one that is ours to make depends on the request alone where the width is fixed,
        and so does the length that is attended to. Otherwise it does not shrink from one call to
        the next, as in ``generate``: what was compiled for it serves again.

        Args:
            fixed: whether all forwards are as wide.
        """
        widest, capacity = self.widths.sizes[-1], self.cache.capacity
        needed = needed_positions(self, widest)
        if capacity is None:
            self._stretch = needed
        elif self.config.cache_implementation is not None:  # generate made it
            needed = max(needed, self.config.max_cache_len or 0)
            if not fixed:
                needed = max(needed, capacity + widest - 1)
            if self._call is not self.model:
                needed = -(-needed // ROOM) * ROOM
            self.cache.resize(needed)
        elif fixed and capacity < needed:
            raise UnsupportedError(
                f"width={widest} needs a static cache of {needed} positions, the one given has"
                f" {capacity}: make it with max_cache_len={needed}, or pass"
                " cache_implementation='static'"
            )

    def _tree_positions(self, parents: Int32) -> torch.Tensor:
        """Where the last committed token and the nodes of the tree behind it stand."""
        last = self.kwargs["position_ids"][..., -1:]
        positions: torch.Tensor = last + torch.from_numpy(ancestry(parents)[1]).to(
            last.device, non_blocking=True
        )
        return positions

    def _mask(self, parents: Int32 | None) -> torch.Tensor:
        """The mask of the forward's positions, those that pad it included.

        Made here for constant key lengths too, as transformers reads the cache's length back from
        the device to make it.
        """
        like = torch.empty(0, dtype=self.model.dtype, device=self.prompt.device)
        return tree_mask(
            attended(parents, self._width, like.device),
            self.kwargs.get("attention_mask"),
            self._slots,
            like,
            attention_of(self.model) == "eager",
            self.cache.key_length,
        ).expand(len(self.prompt), -1, -1, -1)

    def _keep_states(self, count: int) -> None:
        """Keep attentions and hidden states of the first ``count`` positions, one by one."""
        for name, kept in self.states.items():
            layers = getattr(self._outputs, name)
            if layers is None or self._reread:  # not made; or made for the whole text
                kept += [layers] * count
                continue
            kept += [
                tuple(self._cut(name, layer, position) for layer in layers)
                for position in range(count)
            ]

    def _cut(self, name: str, layer: torch.Tensor, position: int) -> torch.Tensor:
        """One position's share of a layer's states, as a forward of that position gives it."""
        if "attentions" not in name:  # (batch, positions, size), or of several streams each
            return layer[..., position : position + 1, :]
        own = layer[:, :, position : position + 1]
        if name == "cross_attentions" or self.cache.capacity is not None:
            return own
        return own[..., : self._slots + position + 1]

    def _close_gaps(self) -> None:
        """Move every row's positions together once too many lie between them unused."""
        used = max(self._used)
        if self._slots - used <= max(WASTE * self._slots, LEAST_WASTE):
            return
        mask = self.kwargs["attention_mask"][:, :-1]  # the last is of the token to be forwarded
        slots = used_slots(mask, used)
        self.cache.compact(slots)
        for name in self._per_token:
            value = self.kwargs.get(name)
            if value is not None:
                kept = value[..., :-1].gather(-1, slots.expand(*value.shape[:-1], used))
                self.kwargs[name] = torch.cat((kept, value[..., -1:]), dim=-1)
        self._slots = used

    def output(
        self,
        sequences: torch.Tensor,
        scores: list[torch.Tensor] | None,
        logits: list[torch.Tensor] | None,
    ) -> Any:
        """What ``generate`` returns: the sequences, or all of it under return_dict_in_generate."""
        if not self.config.return_dict_in_generate:
            return sequences
        from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

        kind = GenerateEncoderDecoderOutput if self.encodes else GenerateDecoderOnlyOutput
        return kind(
            sequences=sequences,
            scores=None if scores is None else tuple(scores),
            logits=None if logits is None else tuple(logits),
            past_key_values=self.cache.cache,
            **{name: tuple(kept) for name, kept in self.states.items()},
            **self._encoder_states(),
        )

    def _encoder_states(self) -> dict[str, Any]:
        encoder = self.kwargs.get("encoder_outputs") if self.encodes else None
        asked = ("attentions", "hidden_states")
        return {
            f"encoder_{name}": encoder.get(name)
            for name in asked
            if encoder is not None and self.kwargs.get(f"output_{name}")
        }


def _farthest(positions: torch.Tensor | None) -> int:
    """The largest position of a prompt's last tokens; -1: the model counts by itself."""
    if positions is None or not positions.numel():
        return -1
    return int(positions[..., -1].max())
