"""Whose turn it is, answers side by side, and an engine that ends."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import numpy as np
import pytest
import stub_grammar_worker
from conftest import tiny_llama
from serving import END, HI, VOCAB, Letters, fresh, listening, wait

from ngramspec import Speculator
from ngramspec.hf_model.pool import CachePool, cache_maker, why_not_kept
from ngramspec.server.engine import (
    CANCELLED,
    MAX_TURNS_BEFORE_CHAT,
    AnswerRunner,
    Answers,
    CompletionRequest,
    Delta,
    Engine,
    Sampling,
    Scheduler,
)
from ngramspec.server.responses import ApiError
from ngramspec.server.settings import Client

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")


class FakeJob:
    def __init__(self, name, first=True, ready=True, joins=False, user=""):
        self.name, self.request = name, SimpleNamespace(first=first, user=user)
        self.cancelled, self.ended, self.ready, self.joins = False, False, ready, joins

    def __repr__(self):
        return self.name


def scheduler_of(active, waiting, *jobs, **settings):
    """A scheduler with these jobs; each comes from a separate request."""
    scheduler = Scheduler(active, waiting, **settings)
    for job in jobs:
        scheduler.add([job])
    return scheduler


def turns(scheduler, count):
    return "".join(str(job) for _ in range(count) for job in scheduler.next())


def test_completions_come_before_chats_which_are_not_forgotten():
    job, scheduler = FakeJob("a"), scheduler_of(4, 4, FakeJob("x", first=False))
    assert turns(scheduler, 2) == "xx"
    scheduler.add([job])
    expected = ("a" * MAX_TURNS_BEFORE_CHAT + "x") * 2
    assert turns(scheduler, len(expected)) == expected
    scheduler.remove(job)
    assert turns(scheduler, 2) == "xx"


def test_a_waiting_completion_gets_the_next_place():
    first = FakeJob("a")
    scheduler = scheduler_of(1, 4, first)
    assert turns(scheduler, 1) == "a"
    for job in (FakeJob("x", first=False), FakeJob("b")):
        scheduler.add([job])
    assert turns(scheduler, 1) == "a"
    assert scheduler.load == (2, 1)  # the key had no chat in progress
    scheduler.remove(first)
    assert turns(scheduler, 2) == "bb"


def test_places_go_to_the_key_with_the_fewest():
    scheduler = Scheduler(4, 4)
    jobs = [FakeJob(name, user=name.lower()) for name in "aaabAB"]
    scheduler.add(jobs[:3])
    scheduler.add(jobs[3:4])
    assert turns(scheduler, 2) == "ab"
    scheduler.add(jobs[4:5])
    scheduler.add(jobs[5:])
    assert turns(scheduler, 6) == "ababab"
    assert scheduler.load == (4, 2)
    scheduler.remove(jobs[0])
    assert turns(scheduler, 6) == "abaBab"


def test_a_key_without_a_place_begins_all_the_same():
    jobs = [FakeJob(name, name != "x", user="b" if name == "b" else "a") for name in "axbb"]
    scheduler = scheduler_of(1, 4, *jobs)
    assert turns(scheduler, 4) == "abab"
    assert scheduler.load == (3, 1)


@pytest.mark.parametrize("seed", range(6))
def test_no_key_waits_longer_than_stated_whatever_the_others_send(seed):
    """Keys send, withdraw and end answers of all lengths; those of some take too much memory."""
    rng = np.random.default_rng(seed)
    active, keys = int(rng.integers(1, 6)), "abcdef"[: int(rng.integers(2, 7))]
    large = keys[2:] if seed % 2 else ""
    scheduler, waited = Scheduler(active, 8, crowded=lambda jobs: large), Counter()
    left = {}  # turns of each job that has not ended

    def send(key, count, first, lengths):
        jobs = [FakeJob(key, first, joins=rng.random() < 0.5, user=key) for _ in range(count)]
        with suppress(ApiError):
            scheduler.add(jobs)
            left.update({job: int(rng.choice(lengths)) for job in jobs})

    def end(job):
        scheduler.remove(job)
        del left[job]

    for turn in range(1200):
        for key in keys[1:]:
            if rng.random() < 0.5:
                send(key, rng.integers(1, 9), rng.random() < 0.7, [1, 30, 10**9])
        if turn % 50 == 0:
            send("a", 1, turn % 100 == 0, [4])
        for job in rng.choice([None, *left], int(rng.random() < 0.1)):
            if job is not None and job.request.user != "a":
                job.cancelled = True
                assert scheduler.next() == [job]
                end(job)
        asked = {(job.request.user, job.request.first) for job in left}
        taken = scheduler.next()
        assert len(taken) <= active
        assert len({job.request.first for job in taken}) == 1
        assert scheduler.load[0] <= active + 2 * len(keys)
        given = {(job.request.user, job.request.first) for job in taken}
        for key in set(keys) - set(large):
            chat, first = (key, False), (key, True)
            for some, bound in (
                ((chat, first), 1),
                ((chat,), MAX_TURNS_BEFORE_CHAT + 1),
                ((first,), 2),
            ):
                left_out = asked.intersection(some) and not given.intersection(some)
                waited[some] = waited[some] + 1 if left_out else 0
                assert waited[some] < bound * len(keys)
        for job in taken:
            left[job] -= 1
            if not left[job]:
                end(job)


def test_a_newer_request_of_a_session_cancels_the_older_one():
    scheduler = Scheduler(4, 4)
    older, newer, other, late = map(FakeJob, "abcd")
    first, second, third = Client("u", "s"), Client("u", "s"), Client("u", "s")
    scheduler.add([older], first)
    scheduler.add([other], Client("v", "s"))
    scheduler.add([newer], third)
    scheduler.add([late], second)  # it arrived before, but was longer in the reading
    assert [job.cancelled for job in (older, newer, other, late)] == [True, False, False, True]
    older.ended = True
    scheduler.remove(older)
    scheduler.add([FakeJob("e")], Client("u", "s"))
    assert newer.cancelled


def test_more_requests_than_a_key_may_have_waiting_are_refused_whole():
    """They cancel none of their session, and leave the places of others."""
    running = FakeJob("a", user="a")
    scheduler = Scheduler(1, 2)
    scheduler.add([running], Client("a", "s"))
    scheduler.add([FakeJob("a", user="a")])
    with pytest.raises(ApiError, match="too many requests") as refused:
        scheduler.add([FakeJob("a", user="a") for _ in range(3)], Client("a", "s"))
    assert refused.value.status == 429
    assert not running.cancelled
    scheduler.add([FakeJob("a", user="a")])
    assert sum(scheduler.load) == 3
    scheduler.add([FakeJob("b", user="b")])
    assert sorted(turns(scheduler, 2)) == ["a", "b"]


def test_a_job_that_is_not_ready_is_passed_over():
    second = FakeJob("b", ready=False)
    scheduler = scheduler_of(4, 4, FakeJob("a"), second)
    assert turns(scheduler, 2) == "aa"
    second.ready = True
    assert sorted(turns(scheduler, 2)) == ["a", "b"]


def test_steps_that_can_share_a_forward_are_one_turn():
    steps = [FakeJob(name, joins=True) for name in "ac"]
    prefill = FakeJob("b")
    scheduler = scheduler_of(5, 5, steps[0], prefill, steps[1])
    assert [scheduler.next() for _ in range(4)] == [steps, [prefill], steps, [prefill]]
    prefill.joins = True
    assert scheduler.next() == [*steps, prefill]
    steps[1].cancelled = True
    assert scheduler.next() == [steps[1]]
    scheduler.remove(steps[1])
    assert sorted(turns(scheduler, 1)) == ["a", "b"]


def test_chats_do_not_ride_along_with_completions():
    chats = [FakeJob(name, first=False, joins=True) for name in "xy"]
    job = FakeJob("a", joins=True)
    scheduler = scheduler_of(4, 4, *chats, job)
    expected = [*[[job]] * MAX_TURNS_BEFORE_CHAT, chats]
    assert [scheduler.next() for _ in expected] == expected


TEXT = np.random.default_rng(1).integers(1, 97, 300).astype(np.int32)
LONG = 120  # seconds: only against hanging for ever


class Held:
    """A model whose forwards each need a permit, and are counted."""

    def __init__(self, model, permits=0):
        self.model, self.forwards = model, []
        self.permits = threading.Semaphore(permits)
        self.hook = model.register_forward_pre_hook(self._wait, with_kwargs=True)

    def _wait(self, module, args, kwargs):
        ids = kwargs.get("input_ids", args[0] if args else None)
        self.forwards.append(ids.shape[1])
        assert self.permits.acquire(timeout=LONG)

    def let(self, count=1000):
        self.permits.release(count)

    def let_only(self, count):
        """Take back the permits that are left, and give some."""
        while self.permits.acquire(blocking=False):
            pass
        self.let(count)


@pytest.fixture
def engine_of(tiny):
    made = []

    def make(watched=False, active=4, waiting=4, chunk=16):
        pool = CachePool(cache_maker(tiny), 1 << 30, 1 << 30, why_not_kept(tiny))
        speculator = Speculator("none")
        runner = AnswerRunner(tiny, Letters(), pool, chunk, lambda user: speculator)
        engine = Engine(runner, active, waiting, lambda job: None)
        engine.watched = Held(tiny) if watched else None
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
    return Letters().decode(fresh(model, prompt, count))


def test_a_cancelled_request_stops_after_the_chunk_that_runs_and_its_work_stays(tiny, engine_of):
    engine = engine_of(watched=True)
    heard = Heard()
    jobs = engine.submit([request_for(TEXT[:290])], heard)
    engine.watched.let(2)  # two chunks of 4 x 16, as it is alone, and a third one waits
    wait(lambda: len(engine.watched.forwards) == 3)
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
    wait(lambda: engine.watched.forwards)
    engine.submit([request_for(TEXT[::-1][:200], user="b")], other)
    engine.watched.let()
    one.wait()
    other.wait()
    assert engine.watched.forwards[:4] == [64, 16, 16, 16]


def test_a_completion_is_answered_while_another_key_holds_all_places(tiny, engine_of):
    engine = engine_of(watched=True, active=2)
    others, one = Heard(4), Heard()
    prompts = [np.roll(TEXT, at)[:20] for at in range(5)]
    engine.submit([request_for(each, 60) for each in prompts[1:]], others)
    engine.watched.let(6)
    wait(lambda: len(engine.watched.forwards) == 7)
    engine.submit([request_for(prompts[0], 4, user="b")], one)
    engine.watched.let(40)  # fewer than two answers of the other key take
    assert one.wait().text() == expected(tiny, prompts[0], 4)
    assert others.left == 4
    engine.watched.let()
    others.wait()
    assert [others.text(at) for at in range(4)] == [
        expected(tiny, each, 60) for each in prompts[1:]
    ]


def test_several_answers_to_one_prompt_read_it_once(tiny, engine_of):
    engine = engine_of()
    heard = Heard(3)
    prompt = TEXT[:200]
    jobs = engine.submit([request_for(prompt) for _ in range(3)], heard, Client("a", "editor"))
    assert {job.session for job in jobs} == {Client("a", "editor")}
    heard.wait()
    assert {heard.text(index) for index in range(3)} == {expected(tiny, prompt)}
    assert [job.progress.reused for job in jobs] == [0, 199, 199]
    assert engine.pool.copies == 2


def test_an_error_of_a_request_or_of_its_listener_ends_no_other(tiny, engine_of):
    engine = engine_of()
    bad, good = Heard(), Heard()

    def broken(index, delta):
        raise RuntimeError("the loop is closed")

    engine.submit([request_for(np.array([5, 999], np.int32))], bad)
    for listener in (broken, good):
        engine.submit([request_for(TEXT[:20])], listener)
    assert isinstance(bad.wait().deltas[-1][1].error, (ValueError, IndexError))
    assert good.wait().text() == expected(tiny, TEXT[:20])
    wait(lambda: engine.load == (0, 0))


def test_closing_cancels_answers_and_refuses_others(tiny, engine_of):
    engine = engine_of(watched=True)
    cut = Heard()
    engine.submit([request_for(TEXT[:20], 200)], cut)
    engine.watched.let(3)
    assert cut.first.wait(LONG)
    closing = threading.Thread(target=engine.close)
    closing.start()
    wait(lambda: engine.closing)
    engine.watched.let()
    closing.join(LONG)
    assert cut.ends == {0: "cancelled"}
    with pytest.raises(ApiError, match="shutting down") as refused:
        engine.submit([request_for(TEXT[:20])], cut)
    assert refused.value.status == 503


@contextmanager
def slow_server(**settings):
    """A model that waits after the prefill and some steps, its server's address and application."""
    held = Held(tiny_llama(vocab=VOCAB), 10**6)  # the server tries the model out
    with listening(held.model, **settings) as (address, app):
        held.let_only(4)
        yield held, address, app


def asked(address, route, **body):
    """A connection on which a request was sent."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=LONG)
    kind = {"Content-Type": "application/json"}
    connection.request("POST", route, json.dumps(body), kind)
    return connection


def event_after(stream):
    """The next line of a stream that is not empty."""
    line = stream.readline()
    while line == b"\n":
        line = stream.readline()
    return line.decode().removeprefix("data: ").strip()


@pytest.mark.parametrize(
    ("route", "body", "done"),
    [
        ("/v1/completions", {"prompt": "one", "max_tokens": 400, "temperature": 0}, ["[DONE]"]),
        ("/completion", {"prompt": "one", "n_predict": 400, "temperature": 0}, []),
    ],
)
def test_answers_that_take_too_long_end_with_an_error(route, body, done):
    """The model is stuck in a forward, which nothing on the event loop may wait for."""
    with slow_server(drain=0) as (held, address, app):
        engine = app.state.service.engine
        streamed = asked(address, route, stream=True, **body)
        stream = streamed.getresponse()
        first = event_after(stream)
        assert "error" not in json.loads(first)
        whole = [asked(address, route, **body) for _ in range(2)]
        wait(lambda: sum(engine.load) == 3)
        app.state.server.should_exit = True
        for connection in whole:
            answer = connection.getresponse()
            error = json.loads(answer.read())["error"]
            assert (answer.status, error["code"]) == (503, "shutting_down")
            assert error["type"] == "service_unavailable_error"
            assert answer.headers["content-type"] == "application/json"
        rest = stream.read().decode().split("\n\n")
        *_, last = [text.removeprefix("data: ") for text in rest if text and "[DONE]" not in text]
        assert json.loads(last)["error"]["code"] == "shutting_down"
        assert ["[DONE]"] * rest.count("data: [DONE]") == done
        assert rest[-1] == ""
        held.let()
    assert engine.load == (0, 0)


def test_an_answer_that_runs_is_finished_before_the_server_ends():
    """By default; ``test_real_server.py`` has a process that is told to end."""
    with slow_server() as (held, address, app):
        body = {"prompt": "one", "max_tokens": 20, "temperature": 0, "stream": True}
        stream = asked(address, "/v1/completions", **body).getresponse()
        event_after(stream)
        app.state.server.should_exit = True
        held.let()
        text = stream.read().decode()
    assert '"length"' in text
    assert text.endswith("data: [DONE]\n\n")


def test_a_closed_connection_ends_the_answer():
    with slow_server() as (held, address, app):
        engine = app.state.service.engine
        connection = asked(address, "/v1/completions", prompt="one", max_tokens=400, stream=True)
        assert "error" not in json.loads(event_after(connection.getresponse()))
        (job,) = engine._scheduler._active
        connection.close()
        wait(lambda: job.cancelled)
        held.let()
        wait(lambda: engine.load == (0, 0))
    assert job.end == "cancelled"


def test_compiling_a_grammar_ends_too(monkeypatch):
    pytest.importorskip("xgrammar")
    monkeypatch.setattr("ngramspec.server.grammars.work", stub_grammar_worker.work)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["endless"]}}}
    model, limits = tiny_llama(vocab=VOCAB, eos_token_id=END), {"grammar_seconds": LONG}
    with listening(model, drain=0, limits=limits) as (address, app):
        connection = asked(address, "/v1/chat/completions", **HI, response_format=form)
        pool = app.state.service.grammars
        wait(lambda: pool.workers)
        app.state.server.should_exit = True
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["error"]["code"]) == (503, "shutting_down")
    assert not pool.workers


def test_the_event_loop_does_not_wait_for_the_engine(monkeypatch):
    with listening(tiny_llama(vocab=VOCAB), drain=0) as (_, app):
        engine, loops = app.state.service.engine, []
        own = engine.close

        def close():
            loops.append(asyncio._get_running_loop())  # of this thread
            own()

        monkeypatch.setattr(engine, "close", close)
    assert loops == [None]


def test_an_engine_that_closes_says_so():
    """Under servers that do not cancel the tasks of requests."""

    class Engine(SimpleNamespace):
        def submit(self, requests, put, session):
            assert session == Client("ann", "editor")
            put(0, Delta(ended=CANCELLED))
            return [SimpleNamespace(ended=True)]

    async def status(closing):
        try:
            answers = Answers(Engine(closing=closing), [], Client("ann", "editor"))
            async for _ in answers.deltas():
                pass
        except ApiError as error:
            return error.status
        return None

    assert [asyncio.run(status(closing)) for closing in (False, True)] == [499, 503]
