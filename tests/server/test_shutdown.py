"""A server that ends: answers have the time of ``--drain``, and then an error of its own form."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from types import SimpleNamespace

import pytest
from conftest import tiny_llama
from serving import VOCAB, listening

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")

from ngramspec.server.auth import Client
from ngramspec.server.engine import Answers
from ngramspec.server.errors import ApiError
from ngramspec.server.job import CANCELLED, Delta

LONG = 120  # seconds, against hanging for ever only


class Held:
    """A model whose forwards each need a permit."""

    def __init__(self):
        self.model = tiny_llama(vocab=VOCAB)
        self.permits = threading.Semaphore(10**6)
        self.model.register_forward_pre_hook(self._wait)

    def _wait(self, module, inputs):
        assert self.permits.acquire(timeout=LONG)

    def allow(self, count):
        """Only so many more."""
        while self.permits.acquire(blocking=False):
            pass
        self.permits.release(count)


def asked(address, route, **body):
    """A connection on which a request was sent."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=LONG)
    kind = {"Content-Type": "application/json"}
    connection.request("POST", route, json.dumps(body), kind)
    return connection


def wait(condition):
    for _ in range(LONG * 100):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


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
    held = Held()
    with listening(held.model, drain=0) as (address, app):
        engine = app.state.service.engine
        held.allow(4)  # prefill and some steps: less than its answer takes
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
        held.permits.release(10**6)
    assert engine.load == (0, 0)


def test_compiling_a_grammar_ends_too(monkeypatch):
    pytest.importorskip("xgrammar")
    monkeypatch.setattr("ngramspec.server.grammar_pool.WORKER_MODULE", "stub_grammar_worker")
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["endless"]}}}
    body = {"messages": [{"role": "user", "content": "hi"}], "response_format": form}
    model = tiny_llama(vocab=VOCAB, eos_token_id=100)
    limits = {"grammar_seconds": LONG}
    with listening(model, drain=0, limits=limits) as (address, app):
        connection = asked(address, "/v1/chat/completions", **body)
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


def test_answers_that_are_quick_enough_are_whole():
    held = Held()
    with listening(held.model, drain=LONG) as (address, app):
        held.allow(2)
        connection = asked(address, "/v1/completions", prompt="one", max_tokens=8)
        wait(lambda: sum(app.state.service.engine.load) == 1)
        app.state.server.should_exit = True
        wait(lambda: not app.state.server.servers[0].is_serving())
        held.permits.release(10**6)
        answer = connection.getresponse()
        assert answer.status == 200
        assert json.loads(answer.read())["usage"]["completion_tokens"] == 8


def test_an_engine_that_closes_says_so():
    """Under servers that do not cancel the tasks of requests."""

    class Engine(SimpleNamespace):
        def submit(self, requests, put, session):
            put(0, Delta(ended=CANCELLED))
            return [SimpleNamespace(ended=True)]

    async def status(closing):
        try:
            answers = Answers(Engine(closing=closing), [], Client(""))
            async for _ in answers.deltas():
                pass
        except ApiError as error:
            return error.status
        return None

    assert [asyncio.run(status(closing)) for closing in (False, True)] == [499, 503]
