"""Streamers: the prompt, every token in order, and one end, whatever ends the text."""

from __future__ import annotations

import threading

import pytest
from any_model import tiny_chat
from doubles import InterruptedStreamer, Puts, ScriptedDrafter, oracle
from plain_text import PROMPT
from transformers import TextIteratorStreamer

import ngramspec
from ngramspec import Speculator, UnsupportedError

GREEDY = {"max_new_tokens": 25, "do_sample": False}
SHORT = {"max_new_tokens": 16, "do_sample": False}


class Raising(InterruptedStreamer):
    """A streamer that raises at one put, and then at its end."""

    def end(self):
        super().end()
        raise OSError("closed")


def two_ways(model, streamer, **kwargs):
    """ngramspec.generate and enable, as calls without arguments."""
    yield lambda: ngramspec.generate(model, PROMPT, streamer=streamer(), **kwargs)

    def under_enabled():
        with ngramspec.enable(model, kwargs.pop("speculator", None)):
            return model.generate(PROMPT, streamer=streamer(), **kwargs)

    yield under_enabled


@pytest.mark.parametrize("settings", [{}, {"eos_token_id": list(range(0, 97, 3))}, {"max_time": 0}])
def test_prompt_and_tokens_in_order_then_one_end(tiny, settings):
    plain, streamers = Puts(), []
    kwargs = GREEDY | settings | {"pad_token_id": 0}
    text = tiny.generate(PROMPT, **kwargs, streamer=plain)[0].tolist()

    def new():
        streamers.append(Puts())
        return streamers[-1]

    for drafter in ("auto", oracle(text)):
        for call in two_ways(tiny, new, **kwargs, speculator=Speculator(drafter, 6)):
            assert call()[0].tolist() == text
    assert len(plain.puts) == 1 + len(text) - PROMPT.shape[1]
    assert all((each.puts, each.ended) == (plain.puts, 1) for each in streamers)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("stop")])
@pytest.mark.parametrize("source", ["streamer", "processor", "criterion", "on_step", "drafter"])
def test_one_end_where_an_error_passes(tiny, error, source):
    """A drafter's exception costs its draft only; an interrupt is no exception of the drafter's."""

    def fail(*args, **kwargs):
        raise error

    streamers = []

    def new():
        streamers.append(Raising(8, error) if source == "streamer" else Puts())
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
    kwargs = GREEDY | {"use_cache": False}
    ngramspec.generate(tiny, PROMPT, streamer=streamer, speculator=plain, **kwargs)
    baseline = Puts()
    tiny.generate(PROMPT, streamer=baseline, **kwargs)
    assert (streamer.puts, streamer.ended) == (baseline.puts, 1)


def test_the_raw_hook_drops_the_streamer_inside_transformers(tiny):
    """Documented in Speculator.__call__; when this fails, the documentation can be lightened."""
    dropped = Puts()
    tiny.generate(PROMPT, custom_generate=Speculator(), streamer=dropped, **GREEDY)
    assert (len(dropped.puts), dropped.ended) == (1, 0)  # only the prompt


@pytest.fixture
def chatting():
    """A model, its tokenizer and the text of plain ``generate``."""
    model, tokenizer = tiny_chat()
    new = model.generate(PROMPT, **SHORT)[0, PROMPT.shape[1] :]
    return model, tokenizer, tokenizer.decode(new, skip_special_tokens=True)


def test_a_reader_in_another_thread_gets_the_text_and_stops(chatting):
    model, tokenizer, text = chatting

    def read(**more):
        streamer = TextIteratorStreamer(
            tokenizer, skip_prompt=True, timeout=60, skip_special_tokens=True
        )
        failed = []

        def run():
            try:
                ngramspec.generate(model, PROMPT, **SHORT, **more, streamer=streamer)
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
