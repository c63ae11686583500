"""A framework's usual call, plain and enabled: same result, accepted drafts, flat memory."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from any_model import tiny_chat
from doubles import half_right

import ngramspec
from ngramspec import DecodeStats, Drafter, DraftSession, Speculator
from ngramspec.draft import EMPTY_DRAFT

REPEATED = 20  # calls after which no more tensors may be alive than before


class Known(Drafter):
    """Knows texts, and is right about half of their tokens; nothing about others."""

    source_names = ("known",)

    def __init__(self, texts: Sequence[list[int]], vocab: int) -> None:
        self.texts, self.vocab = texts, vocab

    def start(self, tokens: Any) -> DraftSession:
        begun = tokens.tolist()
        for text in self.texts:
            if text[: len(begun)] == begun:
                return half_right(text, self.vocab).start(tokens)
        return Nothing()


class Nothing(DraftSession):
    def propose(self, gamma, cost=None, *, tree=False):
        return EMPTY_DRAFT

    def extend(self, tokens):
        pass


@contextmanager
def recorded(model: Any):
    """The texts that ``generate`` returns inside the block, without padding on the left.

    It may run in a thread, whose streamer ends before it returns.
    """
    texts: list[list[int]] = []
    plain, idle = model.generate, threading.Event()
    idle.set()

    def generate(*args: Any, **kwargs: Any) -> Any:
        idle.clear()
        try:
            return noted(*args, **kwargs)
        finally:
            idle.set()

    def noted(*args: Any, **kwargs: Any) -> Any:
        out = plain(*args, **kwargs)
        sequences = out if isinstance(out, torch.Tensor) else out.sequences
        mask = kwargs.get("attention_mask")
        for row, ids in enumerate(sequences.tolist()):
            padding = 0 if mask is None else int((mask[row] == 0).sum())
            texts.append(ids[padding:])
        return out

    model.generate = generate
    try:
        yield texts
        assert idle.wait(60)
    finally:
        del model.generate


def tensors() -> int:
    """How many tensors are alive, once threads that stream have ended."""
    for each in threading.enumerate():
        if each.name.startswith("Thread-"):  # others may wait for further work
            each.join(5)
    gc.collect()
    return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())


def check(
    model: Any,
    call: Callable[[], Any],
    *,
    repeated: int = REPEATED,
    limits: Sequence[str] = (),
    drafter: Drafter | str | None = None,
) -> DecodeStats:
    """Compare a call's results with and without drafts.

    Args:
        repeated: calls after which the memory must be what it was before.
        limits: the beginnings of what may limit the runs.
        drafter: None: one that knows what ``generate`` returns, for models that are no
            encoder-decoders.
    """
    call()  # what a framework does once
    with recorded(model) as texts:
        plain = call()
    assert texts, "the framework did not call model.generate"
    vocab = model.config.get_text_config().vocab_size
    speculator = Speculator(drafter or Known(texts, vocab), 4)
    with ngramspec.enable(model, speculator):
        assert call() == plain
        stats = speculator.stats
        assert stats.accepted > 0, stats
        assert stats.drafter_faults == 0
        assert all(each.startswith(tuple(limits)) for each in stats.limits), stats.limits
        call()
        before = tensors()
        for _ in range(repeated):
            call()
        assert tensors() <= before
    assert "generate" not in vars(model)
    return stats


def tiny(tmp_path: Any = None) -> tuple[Any, Any]:
    """A tiny chat model, and its tokenizer with an EOS token; saved into a folder if given."""
    model, tokenizer = tiny_chat()
    tokenizer.eos_token = "~"
    model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = model.config.pad_token_id = tokenizer.pad_token_id
    if tmp_path is not None:
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
    return model, tokenizer
