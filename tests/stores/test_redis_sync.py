"""Stores of several processes, synchronized by a real Redis server."""

from __future__ import annotations

import logging
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import redis
import torch
from redis_processes import WORDS, Vocabulary, shared

import ngramspec
from ngramspec import SharedStore, Speculator

pytestmark = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed"
)
SCRIPT = Path(__file__).with_name("redis_processes.py")
PATIENCE = 60.0  # seconds that a test waits for what must happen


class RedisServer:
    """A redis-server without files, on a free port, with the password ``pw``."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder = folder
        self.address = f"redis://:pw@127.0.0.1:{self.port}/0?salt=test"
        self.process = None

    def start(self):
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--dir", str(self.folder), "--requirepass", "pw"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.client = redis.Redis(port=self.port, password="pw")
        wait_for(self.answers)

    def answers(self):
        try:
            return self.client.ping()
        except redis.RedisError:
            return False

    def stop(self):
        self.process.kill()
        self.process.wait()


def wait_for(true):
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@pytest.fixture
def server(tmp_path):
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def stores():
    made = []

    def make(address, **settings):
        made.append(shared(address, **settings))
        return made[-1]

    yield make
    for store in made:
        store.sync.close(0)


def tokens_of(store, name="a"):
    codes = store.ring(name).codes(0)[1].tolist()
    return [code for code in codes if code != 2**31 - 1]


def numbers(first, last):
    return np.arange(first, last, dtype=np.int32)


def test_text_reaches_all_processes_and_those_that_start_later(server, stores):
    first, second = stores(server.address), stores(server.address)
    second.ring("a")
    first["a"].add(numbers(0, 50))
    wait_for(lambda: tokens_of(second) == list(range(50)))
    second["a"].add(numbers(60, 70))
    wait_for(lambda: len(tokens_of(first)) == 60)
    late = stores(server.address)
    late.ring("a")
    wait_for(lambda: tokens_of(late) == [*range(50), *range(60, 70)])
    assert tokens_of(first) == tokens_of(second)  # no process reads its own entries
    assert first.sync.received == 10
    assert late.sync.received == 60
    assert tokens_of(late, "b") == []


def test_the_second_process_gains_what_one_process_gains(server, stores, tiny):
    """The calls that a repeated prompt saves, in the process that saw it and in another one."""
    first, second = stores(server.address), stores(server.address)
    second.ring("a")
    prompts = [torch.tensor([[5, 6, 7, 8, 15, 16, 17, 9, 25, last]]) for last in range(20, 26)]

    def calls(store):
        speculator = Speculator(stores=[store["a"]])
        for prompt in prompts:
            ngramspec.generate(tiny, prompt, speculator=speculator, max_new_tokens=40)
        return speculator.stats.target_calls

    before = calls(first)
    wait_for(lambda: second.sync.received >= 40 * len(prompts))
    one, two = calls(first), calls(second)
    assert before - one > 20
    assert before - two >= 0.95 * (before - one)


def test_processes_with_another_salt_or_tokenizer_exchange_nothing(server, stores):
    class Larger:
        def get_vocab(self):
            return Vocabulary().get_vocab() | {"more": WORDS}

    given = stores(server.address)
    other_salt = stores(server.address.replace("salt=test", "salt=other"))
    other_tokenizer = SharedStore(1 << 20, tokenizer=Larger(), sync=server.address)
    for other in (other_salt, other_tokenizer):
        other.ring("a")
    same = stores(server.address)
    same.ring("a")
    given["a"].add(numbers(0, 50))
    wait_for(lambda: len(tokens_of(same)) == 50)
    for other in (other_salt, other_tokenizer):
        other["a"].add(numbers(0, 3))
        assert other.sync.flush(PATIENCE)  # it has read before
        assert tokens_of(other) == [0, 1, 2]
    other_tokenizer.sync.close(0)


@pytest.mark.parametrize("delete", ["drop", "clear", "all", "never used"])
def test_a_deleted_namespace_is_deleted_everywhere(server, stores, delete):
    first, second, third = (stores(server.address) for _ in range(3))
    second.ring("a")
    first["a"].add(numbers(0, 50))
    wait_for(lambda: len(tokens_of(second)) == 50)
    ways = {"drop": lambda: second.drop("a"), "never used": lambda: third.drop("a")}
    (ways | {"clear": second["a"].clear, "all": second.clear})[delete]()
    wait_for(lambda: tokens_of(first) == [])
    late = stores(server.address)
    late.ring("a")
    second["a"].add(numbers(7, 9))
    wait_for(lambda: tokens_of(first) == tokens_of(late) == [7, 8])
    first["a"].add(numbers(3, 5))
    wait_for(lambda: tokens_of(second) == [7, 8, 3, 4])


def test_a_namespace_that_another_process_deletes_loses_its_conversations(server, stores):
    """The text of a conversation's first turn is added again by the next turn."""
    first, second = (stores(server.address, write="all") for _ in range(2))
    second.ring("a")
    turns = numbers(0, 200), numbers(0, 230)
    for n, added in ((0, 210), (1, 240)):
        request = first["a"].request(session="s")
        before = first["a"].statistics().added
        request.begin(turns[n])
        request.append(numbers(200 + 30 * n, 210 + 30 * n))
        request.finish()
        assert first["a"].statistics().added - before == added
        if n == 0:
            wait_for(lambda: len(tokens_of(second)) == 210)
            second.drop("a")
            wait_for(lambda: tokens_of(first) == [])


def test_a_dropped_oldest_namespace_stays_in_redis(server, stores):
    """Memory that runs out in one process deletes nothing of the others."""
    small = stores(server.address, namespace_bytes=1 << 20)
    other = stores(server.address)
    other.ring("a")
    small["a"].add(numbers(0, 50))
    wait_for(lambda: len(tokens_of(other)) == 50)
    small["b"].add(numbers(0, 5))
    assert list(small) == ["b"]
    assert small.sync.flush(PATIENCE)
    assert len(tokens_of(other)) == 50


def test_a_server_that_restarts(server, stores, caplog):
    first, second = stores(server.address), stores(server.address)
    second.ring("a")
    first["a"].add(numbers(0, 50))
    wait_for(lambda: len(tokens_of(second)) == 50)
    with caplog.at_level(logging.WARNING):
        server.stop()
        wait_for(lambda: not first.sync.connected)
        first["a"].add(numbers(60, 70))  # it waits, and drafts come from memory
        assert len(tokens_of(first)) == 60
        server.start()
        wait_for(lambda: len(tokens_of(second)) == 60)
    warned = [each for each in caplog.records if "cannot use Redis" in each.message]
    assert 1 <= len(warned) <= 2  # once in each of the two stores


def test_entries_that_are_sent_again_are_added_once(server, stores, monkeypatch):
    """The connection breaks after Redis ran the commands, so the writer does not know of it."""
    first, second = stores(server.address), stores(server.address)
    second.ring("a")
    execute, failed = redis.client.Pipeline.execute, []

    def fails_once(pipeline):
        answers = execute(pipeline)
        if not failed:
            failed.append(answers)
            raise redis.ConnectionError("the answer was lost")
        return answers

    monkeypatch.setattr(redis.client.Pipeline, "execute", fails_once)
    first["a"].add(numbers(0, 50))
    assert first.sync.flush(PATIENCE)
    first["a"].add(numbers(60, 70))
    wait_for(lambda: second.sync.received >= 60)
    assert tokens_of(second) == [*range(50), *range(60, 70)]


def test_a_full_stream_keeps_the_latest_entries(server, stores):
    first = stores(server.address + "&max_entries=200")
    for i in range(1500):
        first["a"].add(numbers(i % 100, i % 100 + 5))
    assert first.sync.flush(PATIENCE)
    [key] = server.client.keys("ngramspec:*")
    assert server.client.xlen(key) <= 400  # Redis removes whole nodes of 100 entries
    assert server.client.ttl(key) > 0
    late = stores(server.address)
    late.ring("a")
    wait_for(lambda: tokens_of(late)[-5:] == list(range(99, 104)))
    assert len(tokens_of(late)) <= 2000


def test_a_server_without_memory_is_reported_once(server, stores, caplog):
    first = stores(server.address)
    server.client.config_set("maxmemory", "1")
    with caplog.at_level(logging.WARNING):
        first["a"].add(numbers(0, 50))
        wait_for(lambda: "OutOfMemory" in caplog.text)
        server.client.config_set("maxmemory", "0")
        assert first.sync.flush(PATIENCE)
    assert caplog.text.count("cannot use Redis") == 1
    assert first.sync.published == 50


def test_entries_that_are_too_old_are_removed(server, stores, monkeypatch):
    monkeypatch.setattr("ngramspec.stores.redis.TRIM_SECONDS", 0.0)
    first = stores(server.address + "&max_age=1")
    first["a"].add(numbers(0, 50))
    assert first.sync.flush(PATIENCE)
    wait_for(lambda: not any(server.client.xlen(key) for key in server.client.keys("ngramspec:*")))


def test_a_wrong_password_is_named_once_and_stops_nothing(server, stores, tiny, caplog):
    prompt = torch.tensor([[5, 6, 7, 8, 15, 16, 17, 9, 25, 26]])
    with caplog.at_level(logging.DEBUG):
        store = stores(server.address.replace("pw", "secret"))
        text = ngramspec.generate(tiny, prompt, max_new_tokens=20, stores=[store["a"]])
        wait_for(lambda: "AuthenticationError" in caplog.text)
    assert text.tolist() == tiny.generate(prompt, max_new_tokens=20).tolist()
    assert caplog.text.count("cannot use Redis") == 1
    assert "secret" not in caplog.text


def test_entries_of_strangers_are_ignored(server, stores):
    first, second = stores(server.address), stores(server.address)
    second.ring("a")
    first["a"].add(numbers(0, 5))
    wait_for(lambda: len(tokens_of(second)) == 5)
    [key] = server.client.keys("ngramspec:*")
    bad = np.array([WORDS], "<i4").tobytes()
    for fields in ({"x": "y"}, {"p": b"p", "n": b"0 0 0 0 1", "t": bad}, {"n": b"", "t": b"1"}):
        server.client.xadd(key, fields)
    first["a"].add(numbers(5, 9))
    wait_for(lambda: tokens_of(second) == list(range(9)))


def test_only_its_own_thread_uses_redis(server, stores, tiny):
    store = stores(server.address)
    users, client = set(), store.sync._redis

    class Noted:
        def __getattr__(self, name):
            users.add(threading.current_thread())
            return getattr(client, name)

    store.sync._redis = Noted()
    prompt = torch.tensor([[5, 6, 7, 8, 15, 16, 17, 9, 25, 26]])
    ngramspec.generate(tiny, prompt, max_new_tokens=20, stores=[store["a"]])
    store["a"].clear()
    store["a"].add(numbers(0, 9))
    store.drop("a")
    assert store.sync.flush(PATIENCE)
    assert users == {store.sync._thread}


def test_a_thread_ends_with_its_store(server):
    store = shared(server.address)
    store["a"].add(numbers(0, 5))
    thread = store.sync._thread
    del store
    wait_for(lambda: not thread.is_alive())


def test_a_process_that_ends_publishes_first_and_its_fork_has_its_own_thread(server, stores):
    store = stores(server.address)
    store.ring("a")
    subprocess.run(
        [sys.executable, str(SCRIPT), "end", server.address], check=True, timeout=PATIENCE
    )
    wait_for(lambda: len(tokens_of(store)) == 120)
    assert sorted(tokens_of(store)) == [*range(40), *range(100, 140), *range(200, 240)]


@pytest.mark.slow
def test_writers_that_are_killed(server, stores):
    store = stores(server.address)
    store.ring("a")
    for seed in range(200):
        command = [sys.executable, str(SCRIPT), "write", server.address]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE)
        writer.stdout.readline()
        time.sleep(random.Random(seed).random() * 0.3)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        store.check_integrity()
    received = store.sync.received
    assert received > 0
    assert received % 100 == 0  # documents arrive whole
    other = stores(server.address)
    other["a"].add(numbers(200, 210))
    wait_for(lambda: store.sync.received == received + 10)


def test_an_engine_with_a_tokenizer_shares_a_store(server, stores):
    from ngramspec.engines.row_options import EngineOptions

    settings = {"stores": [{"namespace": "a", "sync": server.address}]}
    options = EngineOptions.read(settings, "options")
    engine = {"vocab": 1000, "max_len": 300, "device": "cpu", "dtype": "float32"}
    with pytest.raises(ValueError, match="sync needs tokenizer="):
        options.rows(4, **engine)
    [namespace] = options.rows(4, **engine, tokenizer=Vocabulary()).drafter.stores
    with pytest.raises(ValueError, match="sync has a password"):
        namespace.description()
    namespace.store.ring("a")
    stores(server.address)["a"].add(numbers(200, 210))
    wait_for(lambda: namespace.store.sync.received == 10)
    namespace.store.sync.close(0)
