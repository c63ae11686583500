"""Streamers: the prompt, every token in order, and one end, whatever ends the text."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
from any_model import tiny_chat
from doubles import ScriptedDrafter, oracle
from transformers import AsyncTextIteratorStreamer, TextIteratorStreamer

import ngramspec
from ngramspec import Speculator, UnsupportedError

PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
GREEDY = {"max_new_tokens": 25, "do_sample": False}


class Puts:
    """A streamer that keeps what it is given, and raises at the n-th put."""

    def __init__(self, error=None, at=8):
        self.puts, self.ended, self.error, self.at = [], 0, error, at

    def put(self, tokens):
        assert self.ended == 0
        self.puts.append(tokens.flatten().tolist())
        if self.error is not None and len(self.puts) == self.at:
            raise self.error

    def end(self):
        self.ended += 1


def two_ways(model, streamer, **kwargs):
    """ngramspec.generate and enabled, as calls without arguments."""
    yield lambda: ngramspec.generate(model, PROMPT, streamer=streamer(), **kwargs)

    def under_enabled():
        with ngramspec.enabled(model, kwargs.pop("speculator", None)):
            return model.generate(PROMPT, streamer=streamer(), **kwargs)

    yield under_enabled


@pytest.mark.parametrize("settings", [{}, {"eos_token_id": list(range(0, 97, 3))}, {"max_time": 0}])
def test_prompt_and_tokens_in_order_then_one_end(tiny, settings):
    text = tiny.generate(PROMPT, **GREEDY, pad_token_id=0, **settings)[0].tolist()
    streamers = []

    def new():
        streamers.append(Puts())
        return streamers[-1]

    for drafter in ("auto", oracle(text)):
        kwargs = GREEDY | settings | {"pad_token_id": 0, "speculator": Speculator(drafter, 6)}
        for call in two_ways(tiny, new, **kwargs):
            assert call()[0].tolist() == text
    for each in streamers:
        assert each.puts == [PROMPT[0].tolist(), *([token] for token in text[PROMPT.shape[1] :])]
        assert each.ended == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("stop")])
@pytest.mark.parametrize("source", ["streamer", "processor", "criterion", "on_step", "drafter"])
def test_one_end_where_an_error_passes(tiny, error, source):
    """A drafter's exception costs its draft only; an interrupt is no exception of the drafter's."""

    def fail(*args, **kwargs):
        raise error

    streamers = []

    def new():
        streamers.append(Puts(error if source == "streamer" else None))
        return streamers[-1]

    kwargs = GREEDY | {"speculator": Speculator(on_step=fail if source == "on_step" else None)}
    if source == "processor":
        kwargs["logits_processor"] = [fail]
    elif source == "criterion":
        kwargs["stopping_criteria"] = [fail]
    elif source == "drafter":
        kwargs["speculator"] = Speculator(ScriptedDrafter(fail))
    for call in two_ways(tiny, new, **kwargs):
        if source == "drafter" and isinstance(error, Exception):
            assert call().shape[1] == PROMPT.shape[1] + 25
            continue
        with pytest.raises(type(error)):
            call()
    assert [each.ended for each in streamers] == [1, 1]


def test_one_end_where_the_request_is_refused(tiny):
    for extra in ({"num_beams": 2}, {"use_cache": False}, {"token_healing": True}):
        streamer = Puts()
        with pytest.raises((UnsupportedError, ValueError)):
            ngramspec.generate(tiny, PROMPT, streamer=streamer, **GREEDY, **extra)
        assert streamer.ended == 1
    streamer = Puts()
    plain = Speculator(unsupported="plain")
    kwargs = GREEDY | {"use_cache": False, "speculator": plain}
    ngramspec.generate(tiny, PROMPT, streamer=streamer, **kwargs)
    assert streamer.ended == 1


def test_an_end_that_fails_does_not_hide_the_error(tiny):
    class Broken(Puts):
        def end(self):
            raise OSError("closed")

    with pytest.raises(KeyboardInterrupt):
        ngramspec.generate(tiny, PROMPT, streamer=Broken(KeyboardInterrupt()), **GREEDY)


def plain_text(model, tokenizer, **kwargs):
    new = model.generate(PROMPT, **kwargs)[0, PROMPT.shape[1] :]
    return tokenizer.decode(new, skip_special_tokens=True)


def test_a_reader_in_another_thread_gets_the_text_and_stops():
    model, tokenizer = tiny_chat()
    kwargs = {"max_new_tokens": 16, "do_sample": False}
    text = plain_text(model, tokenizer, **kwargs)

    def read(**more):
        streamer = TextIteratorStreamer(
            tokenizer, skip_prompt=True, timeout=60, skip_special_tokens=True
        )
        failed = []

        def run():
            try:
                ngramspec.generate(model, PROMPT, **kwargs, **more, streamer=streamer)
            except RuntimeError as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        pieces = list(streamer)  # a missing end would raise queue.Empty after the timeout
        thread.join()
        return "".join(pieces), failed

    assert read() == (text, [])

    def fail(ids, scores):
        if ids.shape[1] == PROMPT.shape[1] + 9:
            raise RuntimeError("no more")
        return scores

    cut, failed = read(logits_processor=[fail])
    assert len(failed) == 1
    assert cut
    assert text.startswith(cut)
    assert len(cut) < len(text)


def test_async_streamer():
    model, tokenizer = tiny_chat()
    kwargs = {"max_new_tokens": 16, "do_sample": False}

    async def read():
        streamer = AsyncTextIteratorStreamer(
            tokenizer, skip_prompt=True, timeout=60, skip_special_tokens=True
        )
        call = asyncio.to_thread(ngramspec.generate, model, PROMPT, **kwargs, streamer=streamer)
        task = asyncio.create_task(call)
        pieces = [piece async for piece in streamer]
        await task
        return "".join(pieces)

    assert asyncio.run(read()) == plain_text(model, tokenizer, **kwargs)
