"""A model's forwards: their times by width, their number, their candidates, and a forced text.

A measurement with a given text does not depend on what the model generates. The model's own logits
are changed so that the text is most probable. A logits processor would make every decoder choose
its tokens one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from statistics import median
from time import perf_counter
from typing import Any

import torch

from ngramspec.hf_model.attention import in_place
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compat.caches import cache_argument, cache_of, new_cache
from ngramspec.hf_model.compat.devices import device_of
from ngramspec.hf_model.compat.positions import given_positions
from ngramspec.hf_model.compiled import forget_graphs
from ngramspec.measure.machine import synchronize
from ngramspec.measure.traces import RecordedTopTokens
from ngramspec.verification.evidence import leading

PREFILL_CHUNK_POSITIONS = 2048  # positions of a prefill's forward


@torch.inference_mode()
def forward_seconds(
    model: Any, context: int, widths: Sequence[int], repeats: int = 7, rows: int = 1
) -> dict[int, float]:
    """Median wall time in seconds of a forward of n >= 1 positions, for each n in ``widths``.

    The widths take turns, so that a slow moment of the machine affects all of them; a turn before
    the ``repeats`` timed ones warms up. After each forward the dynamic cache of the causal language
    model is truncated to ``context`` positions.
    """
    device = device_of(model)
    generator = torch.Generator().manual_seed(0)
    vocab = model.get_input_embeddings().weight.shape[0]
    count = max(context, *widths)
    tokens = torch.randint(vocab, (rows, count), generator=generator, device="cpu").to(device)
    cache = new_cache(model.config)
    for begin in range(0, context, PREFILL_CHUNK_POSITIONS):
        block = tokens[:, begin : min(begin + PREFILL_CHUNK_POSITIONS, context)]
        model(input_ids=block, **cache_argument(cache), use_cache=True, logits_to_keep=1)
    rolled = KVCache(cache)
    rolled.record()
    seconds: dict[int, list[float]] = {width: [] for width in sorted(set(widths))}
    for turn in range(repeats + 1):
        for width, times in seconds.items():
            block = tokens[:, :width]
            synchronize(device)
            began = perf_counter()
            with in_place(device):
                model(
                    input_ids=block, **cache_argument(cache), use_cache=True, logits_to_keep=width
                )
            synchronize(device)
            if turn:
                times.append(perf_counter() - began)
            rolled.truncate(width)
    return {width: median(times) for width, times in seconds.items()}


@torch.inference_mode()
def top_tokens(
    model: Any, prompt: Sequence[int], output: Sequence[int], k: int
) -> RecordedTopTokens:
    """A model's k >= 1 most probable tokens at the positions of an output, by one forward."""
    text = torch.tensor([[*prompt, *output]], device=device_of(model))
    logits = model(input_ids=text[:, :-1], logits_to_keep=len(output), use_cache=False).logits
    ids, log_probs = leading(logits[0, -len(output) :].float(), k)
    return RecordedTopTokens(ids.int().cpu().numpy(), log_probs.cpu().numpy())


TARGETS = "_forced_targets"
POSITIONS_AFTER_TEXT = 4352  # for the longest draft that may be asked for, and padding


@contextmanager
def forced_model(model: Any, capacity: int) -> Iterator[Callable[[Sequence[int] | None], None]]:
    """Make a text's tokens the most probable ones of ``model``'s forward, by position.

    The logits are computed as usual. Then the token of the text that follows each position gets the
    highest logit. Positions are ``position_ids``, those that ngramspec gives a model which counts
    them itself, or counted on from the cache, so that drafts, trees, static caches and compiled
    forwards see the same text. The model's class is replaced by a subclass of the same name for the
    length of the block. All rows of a batch have the same text, and prompt, text and drafts after
    its end have at most ``capacity`` tokens.

    Yields:
        A function that sets the text: the sequence's token ids from position 0 on, or None for the
        model's own text, which is the initial state. It may be called repeatedly.
    """
    kind = type(model)
    targets = torch.zeros(capacity, dtype=torch.int64, device=device_of(model))
    forcing = [False]

    @wraps(kind.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        positions = kwargs.get("position_ids", given_positions())
        if positions is None:  # before the forward: it moves the cache's length
            ids, cache = args[0] if args else kwargs["input_ids"], cache_of(kwargs)
            before = 0 if cache is None else cache.get_seq_length()
            positions = (torch.arange(ids.shape[1], device=ids.device) + before)[None]
        outputs = kind.forward(self, *args, **kwargs)
        if not forcing[0]:
            return outputs
        logits = outputs.logits  # (batch, n, vocab)
        wanted = getattr(self, TARGETS)[positions[:, -logits.shape[1] :]]
        highest = torch.finfo(logits.dtype).max / 2
        index = wanted[..., None].expand(*logits.shape[:2], 1)
        logits.scatter_(-1, index, highest)
        return outputs

    def set_text(tokens: Sequence[int] | None) -> None:
        forcing[0] = tokens is not None
        if tokens is None:
            return
        if not 2 <= len(tokens) <= capacity:
            raise ValueError(f"a text must have 2..{capacity} tokens, got {len(tokens)}")
        following = torch.tensor([*tokens[1:], tokens[-1]], device=targets.device)
        targets[: len(following)] = following
        targets[len(following) :] = following[-1]

    members = {"forward": forward, "__module__": kind.__module__}  # which decides abilities
    model.__class__ = type(kind.__name__, (kind,), members)
    model.register_buffer(TARGETS, targets, persistent=False)
    try:
        yield set_text
    finally:
        model.__class__ = kind
        delattr(model, TARGETS)
        forget_graphs(model)  # it was compiled for the subclass


@contextmanager
def forwards_of(model: Any, *, watch: bool) -> Iterator[list[tuple[int, int]]]:
    """The width of every forward inside the block, and the cache's length before it."""
    seen: list[tuple[int, int]] = []

    def note(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        cache = cache_of(kwargs)
        seen.append((kwargs["input_ids"].shape[1], int(cache.get_seq_length())))

    handle = model.register_forward_pre_hook(note, with_kwargs=True) if watch else nullcontext()
    with handle:  # a hook's handle removes it
        yield seen


@contextmanager
def compiled_forwards(model: Any) -> Iterator[list[int]]:
    """Counts the compiled forwards inside the block; yields a list with the count."""
    count = [0]
    plain = model.get_compiled_call

    def get(config: Any) -> Any:
        compiled = plain(config)

        def run(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            return compiled(*args, **kwargs)

        return run

    model.get_compiled_call = get
    try:
        yield count
    finally:
        del model.get_compiled_call
