"""Cancelling, sessions, fair turns and the end, in the engine itself."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from ngramspec import Speculator
from ngramspec.server.engine import Engine
from ngramspec.server.errors import ApiError
from ngramspec.server.job import CompletionRequest, ModelRunner
from ngramspec.server.kv_pool import CachePool, cache_maker, why_not_kept
from ngramspec.server.sampling import Sampling

TEXT = np.random.default_rng(1).integers(1, 97, 300).astype(np.int32)
LONG = 60  # seconds: only against hanging for ever


class Letters:
    """Token n is the character n + 160."""

    def decode(self, tokens, skip_special_tokens=False):
        return "".join(chr(token + 160) for token in tokens)


class Watched:
    """A model whose forwards wait for a permit, and are counted."""

    def __init__(self, model):
        self.model, self.forwards = model, []
        self.permits = threading.Semaphore(0)
        self.hook = model.register_forward_pre_hook(self.wait, with_kwargs=True)

    def wait(self, module, args, kwargs):
        ids = kwargs.get("input_ids", args[0] if args else None)
        self.forwards.append(ids.shape[1])
        assert self.permits.acquire(timeout=LONG)

    def let(self, count=1000):
        for _ in range(count):
            self.permits.release()


@pytest.fixture
def engine_of(tiny):
    made = []

    def make(watched=False, active=4, waiting=4, chunk=16):
        pool = CachePool(cache_maker(tiny), 1 << 30, 1 << 30, why_not_kept(tiny))
        speculator = Speculator("none")
        runner = ModelRunner(tiny, Letters(), pool, chunk, lambda user: speculator)
        engine = Engine(runner, active, waiting, lambda job: None)
        engine.watched = Watched(tiny) if watched else None
        engine.start()
        made.append(engine)
        return engine

    yield make
    for engine in made:
        if engine.watched is not None:
            engine.watched.let()
            engine.watched.hook.remove()
        engine.close()


class Heard:
    """The deltas of one request."""

    def __init__(self, answers=1):
        self.deltas, self.ends = [], {}
        self.left, self.ended, self.first = answers, threading.Event(), threading.Event()

    def __call__(self, index, delta):
        self.deltas.append((index, delta))
        self.first.set()
        if delta.ended is not None:
            self.ends[index] = delta.ended
            self.left -= 1
            if not self.left:
                self.ended.set()

    def wait(self):
        assert self.ended.wait(LONG)
        return self

    def text(self, index=0):
        return "".join(delta.text for at, delta in self.deltas if at == index)


def request_for(prompt, count=16, *, first=True, user="a"):
    greedy = Sampling(temperature=0.0)
    return CompletionRequest(
        prompt=prompt, user=user, sampling=greedy, max_tokens=count, first=first
    )


def expected(model, prompt, count=16):
    ids = torch.tensor(prompt[None].astype(np.int64))
    settings = {"do_sample": False, "max_new_tokens": count, "attention_mask": torch.ones_like(ids)}
    return Letters().decode(model.generate(ids, **settings)[0, ids.shape[1] :].tolist())


def test_a_cancelled_request_stops_after_the_chunk_that_runs_and_its_work_stays(tiny, engine_of):
    engine = engine_of(watched=True)
    heard = Heard()
    jobs = engine.submit([request_for(TEXT[:290])], heard)
    engine.watched.let(2)  # two chunks of 4 x 16, as it is alone, and a third one waits
    while len(engine.watched.forwards) < 3:
        time.sleep(0.001)
    engine.cancel(jobs)
    engine.watched.let(1)
    assert heard.wait().ends == {0: "cancelled"}
    assert engine.watched.forwards == [64, 64, 64]
    engine.watched.let()
    again = Heard()
    engine.submit([request_for(TEXT[:290])], again)
    assert again.wait().text() == expected(tiny, TEXT[:290])
    assert engine.watched.forwards[3:5] == [64, 290 - 4 * 64]


def test_a_prompt_is_read_in_shorter_chunks_while_another_request_takes_turns(engine_of):
    engine = engine_of(watched=True)
    one, other = Heard(), Heard()
    engine.submit([request_for(TEXT[:200], user="a")], one)
    while not engine.watched.forwards:
        time.sleep(0.001)
    engine.submit([request_for(TEXT[::-1][:200], user="b")], other)
    engine.watched.let()
    one.wait()
    other.wait()
    assert engine.watched.forwards[:4] == [64, 16, 16, 16]


def test_a_newer_request_of_the_session_ends_the_older_one(tiny, engine_of):
    engine = engine_of(watched=True)
    older, newer = Heard(), Heard()
    engine.submit([request_for(TEXT[:40], 200)], older, ("a", "editor"))
    engine.watched.let(5)
    assert older.first.wait(LONG)
    engine.submit([request_for(TEXT[:41])], newer, ("a", "editor"))
    engine.watched.let()
    assert older.wait().ends == {0: "cancelled"}
    assert newer.wait().text() == expected(tiny, TEXT[:41])
    assert len(older.text()) < 20


def test_a_completion_does_not_wait_for_a_long_chat(tiny, engine_of):
    engine = engine_of(watched=True, chunk=64)
    chat, completion = Heard(), Heard()
    engine.submit([request_for(TEXT[:20], 150, first=False)], chat)
    engine.watched.let(3)
    assert chat.first.wait(LONG)
    engine.submit([request_for(TEXT[100:120], 10)], completion)
    engine.watched.let()
    completion.wait()
    assert not chat.ended.is_set() or len(chat.text()) == 150
    at = next(i for i, size in enumerate(engine.watched.forwards[1:], 1) if size > 10)
    following = engine.watched.forwards[at : at + 10]
    assert following == [20] + [1] * 9
    assert chat.wait().text() == expected(tiny, TEXT[:20], 150)
    assert completion.text() == expected(tiny, TEXT[100:120], 10)


def test_requests_of_several_users_get_the_texts_that_they_get_alone(tiny, engine_of):
    engine = engine_of(active=3)
    prompts = [TEXT[at : at + 50] for at in (0, 20, 40, 60, 80)]
    heard = [Heard() for _ in prompts]
    for index, prompt in enumerate(prompts):
        engine.submit([request_for(prompt, user="ab"[index % 2])], heard[index])
    for each, prompt in zip(heard, prompts, strict=True):
        assert each.wait().text() == expected(tiny, prompt)


def test_several_answers_to_one_prompt_read_it_once(tiny, engine_of):
    engine = engine_of()
    heard = Heard(3)
    prompt = TEXT[:200]
    jobs = engine.submit([request_for(prompt) for _ in range(3)], heard)
    heard.wait()
    assert {heard.text(index) for index in range(3)} == {expected(tiny, prompt)}
    assert [job.progress.reused for job in jobs] == [0, 199, 199]
    assert engine.pool.copies == 2


def test_an_error_ends_its_own_request_only(tiny, engine_of):
    engine = engine_of()
    bad, good = Heard(), Heard()
    engine.submit([request_for(np.array([5, 999], np.int32))], bad)
    engine.submit([request_for(TEXT[:20])], good)
    assert isinstance(bad.wait().deltas[-1][1].error, (ValueError, IndexError))
    assert good.wait().text() == expected(tiny, TEXT[:20])
    assert engine.load == (0, 0)


def test_a_listener_that_raises_does_not_end_the_engine(tiny, engine_of):
    engine = engine_of()

    def broken(index, delta):
        raise RuntimeError("the loop is closed")

    engine.submit([request_for(TEXT[:20])], broken)
    good = Heard()
    engine.submit([request_for(TEXT[:20])], good)
    assert good.wait().text() == expected(tiny, TEXT[:20])


def test_closing_cancels_answers_and_refuses_others(tiny, engine_of):
    engine = engine_of(watched=True)
    cut = Heard()
    engine.submit([request_for(TEXT[:20], 200)], cut)
    engine.watched.let(3)
    assert cut.first.wait(LONG)
    closing = threading.Thread(target=engine.close)
    closing.start()
    while not engine.closing:
        time.sleep(0.001)
    engine.watched.let()
    closing.join(LONG)
    assert cut.ends == {0: "cancelled"}
    with pytest.raises(ApiError, match="shutting down") as refused:
        engine.submit([request_for(TEXT[:20])], cut)
    assert refused.value.status == 503


def test_too_many_requests_are_refused(tiny, engine_of):
    engine = engine_of(watched=True, active=1, waiting=1)
    for _ in range(2):
        engine.submit([request_for(TEXT[:20])], Heard())
    with pytest.raises(ApiError, match="too many requests") as refused:
        engine.submit([request_for(TEXT[:20])], Heard())
    assert refused.value.status == 429
