"""Grammars are compiled within a time limit, for each user apart, and end with their client."""

from __future__ import annotations

import asyncio
import json
import socket
from functools import partial
from types import SimpleNamespace

import pytest
import stub_grammar_worker
from conftest import tiny_llama
from serving import END, HI, VOCAB, ask, letters, listening, refused, served, wait

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
xgrammar = pytest.importorskip("xgrammar", reason="pip install --no-deps xgrammar==0.2.8")

from ngramspec.server import grammars  # noqa: E402
from ngramspec.server.grammars import GrammarPool, _Kept, _Worker  # noqa: E402
from ngramspec.server.responses import ApiError  # noqa: E402

ROUTE = "/v1/chat/completions"
LONG = 600.0  # seconds; no test waits for it
FIELD = "response_format"
SIMPLE = FIELD, "json_schema", json.dumps({"type": "object"})
ENDLESS = FIELD, "json_schema", json.dumps({"enum": ["endless"]})  # see stub_grammar_worker
NESTED = {"type": "boolean"}
for _ in range(180):  # more are refused before they are parsed
    NESTED = {"type": "array", "items": NESTED}  # xgrammar compiles it for hours
USERS = ["ann", "bob"]
until = partial(asyncio.to_thread, wait)  # of a condition


def vocabulary():
    return xgrammar.TokenizerInfo.from_huggingface(
        letters(), vocab_size=VOCAB, stop_token_ids=[END]
    )


def pooled(test, **settings):
    """Run a test of a pool in an event loop."""

    async def run():
        given = {"seconds": LONG, "users": USERS, "waiting": 8} | settings
        pool = GrammarPool(vocabulary, **given)
        pool.prepare()
        try:
            await test(pool)
        finally:
            await pool.close()
        assert not pool.workers

    asyncio.run(run())


@pytest.fixture
def asked(monkeypatch):
    """What worker processes were asked to compile, in order."""
    found = []
    own = _Worker.fault_of

    def fault_of(self, kind, text):
        assert asyncio._get_running_loop() is None, "it would block the event loop"
        found.append(text)
        return own(self, kind, text)

    monkeypatch.setattr(_Worker, "fault_of", fault_of)
    return found


@pytest.fixture
def stub(monkeypatch):
    """Worker processes that start at once, and never end what is "endless"."""
    monkeypatch.setattr(grammars, "work", stub_grammar_worker.work)


@pytest.fixture(scope="module")
def model():
    return tiny_llama(vocab=VOCAB, positions=2048, eos_token_id=END)


@pytest.fixture(scope="module")
def client(model):
    with served(model, worker=_Worker, limits={"grammar_seconds": LONG}) as client:
        yield client


def body_of(schema):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return HI | {"response_format": form, "max_tokens": 4}


def test_a_schema_that_compiles_too_long_is_refused(client, monkeypatch):
    pool = client.app.state.service.grammars
    monkeypatch.setattr(pool, "_seconds", 0.1)
    error = refused(client, ROUTE, body_of(NESTED), "response_format")
    assert "more than 0.1 seconds" in error["message"]
    assert not pool.workers, "its process is killed"


WRONG = [
    ({"type": "object", "properties": {"a": {"type": "no"}}}, "Unsupported type"),
    ({"$ref": "#"}, "no text matches it"),
    ({"$ref": "#/none"}, ""),
    ({"type": "string", "pattern": "("}, ""),
    ({"type": "integer", "minimum": 1e30}, "cannot be used: Integer exceeds"),
]


@pytest.mark.parametrize(("schema", "reason"), WRONG, ids=str)
def test_an_error_says_why_without_source_lines_and_the_next_is_compiled(client, schema, reason):
    error = refused(client, ROUTE, body_of(schema), "response_format")
    assert reason in error["message"]
    assert ".cc" not in error["message"]
    assert "/" not in error["message"].replace("#/none", "")
    ask(client, ROUTE, **body_of({"const": str(schema)}))


def test_compiling_ends_when_the_client_disconnects(model, asked, stub):
    with listening(model, limits={"grammar_seconds": LONG}) as (address, app):
        pool = app.state.service.grammars
        host, port = address.removeprefix("http://").split(":")
        text = json.dumps(body_of({"enum": ["endless"]}))
        head = f"POST {ROUTE} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        with socket.create_connection((host, int(port))) as client:
            client.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode())
            wait(lambda: asked)
            (worker,) = pool.workers
        wait(lambda: not pool.workers)
        assert not worker.process.is_alive()


def test_a_users_slow_grammar_does_not_stop_another_users(asked, stub):
    async def test(pool):
        slow = [asyncio.ensure_future(pool.compile("ann", ENDLESS)) for _ in range(3)]
        await until(lambda: asked)
        with pytest.raises(ApiError, match="too many") as error:
            await pool.compile("ann", SIMPLE)
        assert error.value.status == 429
        assert await asyncio.wait_for(pool.compile("bob", SIMPLE), 120)  # against hanging only
        assert len(asked) == 2, "the others of ann wait for their turn"
        for task in slow:
            task.cancel()
        await asyncio.wait(slow)
        assert len(pool.workers) == 1, "bob's stays"
        assert await pool.compile("ann", SIMPLE)
        assert len(pool.workers) == 1

    pooled(test, waiting=3)


@pytest.mark.parametrize(("cores", "threads"), [(8, 4), (3, 1), (1, 1), (None, 1)])
def test_a_worker_uses_half_of_the_cores(monkeypatch, cores, threads):
    made = []
    monkeypatch.setattr(grammars.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(xgrammar, "GrammarCompiler", lambda *given, **options: made.append(options))
    grammars.compiler_of(vocabulary().serialize_json())
    assert [options["max_threads"] for options in made] == [threads]


def test_compiled_grammars_are_kept_for_each_user_apart(asked, stub):
    async def test(pool):
        first, again = [await pool.compile("ann", SIMPLE) for _ in range(2)]
        assert first is again
        assert len(asked) == 1
        await pool.compile("bob", SIMPLE)
        assert len(asked) == 2, "else the time tells bob that ann used it"
        assert await pool.compile("ann", SIMPLE) is first

    pooled(test)


def test_the_least_recently_used_grammar_goes():
    kept = _Kept(300)
    sources = {text: (FIELD, "json_schema", text) for text in "abcde"}
    for text in "abc":
        kept.add(sources[text], SimpleNamespace(memory_size_bytes=99))
    kept.get(sources["a"])
    kept.add(sources["d"], SimpleNamespace(memory_size_bytes=99))
    assert [text for text in "abcd" if kept.get(sources[text]) is None] == ["b"]
    kept.add(sources["e"], SimpleNamespace(memory_size_bytes=999))
    assert all(kept.get(each) is None for each in sources.values())


def test_a_grammar_that_ends_the_compiler_is_refused_and_the_next_one_compiled(asked, stub):
    async def test(pool):
        broken = asyncio.ensure_future(pool.compile("ann", ENDLESS))
        await until(lambda: asked)
        (worker,) = pool.workers
        await until(lambda: worker.process.pid)
        worker.process.kill()
        with pytest.raises(ApiError, match=f"{FIELD}: the schema cannot be used: .* failed"):
            await broken
        assert await pool.compile("ann", SIMPLE)

    pooled(test)


def test_a_vocabulary_that_once_had_no_memory_is_read_again(stub, monkeypatch, caplog):
    def short(*_, **__):
        raise MemoryError("none left")

    with monkeypatch.context() as without:
        without.setattr(xgrammar, "GrammarCompiler", short)
        pool = GrammarPool(vocabulary, seconds=LONG, users=USERS, waiting=8)
        pool.prepare()
        assert "none left" in caplog.text

    async def run():
        try:
            assert await pool.compile("ann", SIMPLE) is not None
        finally:
            await pool.close()

    asyncio.run(run())
