"""Many clients at once, most of whom do something wrong: the others get their texts."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import threading
import time
from pathlib import Path

import pytest
from conftest import tiny_llama
from serving import VOCAB, letters, listening, plain, wait

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
httpx = pytest.importorskip("httpx2", reason="make test installs it")

KEYS = {"ann": "key-of-ann", "bob": "key-of-bob"}
TEXT = "def one():\n    return 1\n\n\ndef two():\n    return one() + one()\n\n\ndef three():\n"
NODE = Path(__file__).parents[3] / "build/node/node_modules/openai"
COUNT = 16  # tokens of an answer


class Clients:
    """Clients of one server, each in a thread, until each has done so many things or time is over.

    Args:
        address: of the server.
        expected: the text of each prompt's answer.
    """

    def __init__(self, address, expected):
        self.address, self.expected = address, expected
        self.failures, self.answered, self.refused = [], 0, 0
        self.lock = threading.Lock()

    def run(self, clients, things, until=float("inf")):
        threads = [
            threading.Thread(target=self.client, args=(seed, things, until))
            for seed in range(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert self.failures == []

    def client(self, seed, things, until):
        rng = random.Random(seed)
        acts = [self.ask, self.ask, self.ask, self.leave, self.hurry, self.err, self.err]
        with httpx.Client(base_url=self.address, timeout=120) as http:
            for _ in range(things):
                if time.monotonic() > until:
                    return
                act = rng.choice(acts)
                try:
                    act(http, rng)
                except Exception as error:
                    self.failures.append(f"{act.__name__}: {type(error).__name__}: {error}")
                    return

    def headers(self, rng, session=None):
        key = rng.choice(list(KEYS.values()))
        return {"Authorization": f"Bearer {key}"} | ({"X-Session": session} if session else {})

    def body(self, rng, **more):
        prompt = rng.choice(list(self.expected))
        return {"prompt": prompt, "max_tokens": COUNT, "temperature": 0} | more

    def ask(self, http, rng):
        """A whole answer, or "too many"."""
        body = self.body(rng)
        answer = http.post("/v1/completions", json=body, headers=self.headers(rng))
        if answer.status_code == 429:
            return
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["text"] == self.expected[body["prompt"]]
        with self.lock:
            self.answered += 1

    def leave(self, http, rng):
        """A stream that is closed after some events."""
        body = self.body(rng, stream=True)
        headers = self.headers(rng)
        with http.stream("POST", "/v1/completions", json=body, headers=headers) as stream:
            for _, _ in zip(range(rng.randint(0, 4)), stream.iter_lines(), strict=False):
                pass

    def hurry(self, http, rng):
        """A request of a session, given up at once; the next one takes its place."""
        for _ in range(2):
            headers = self.headers(rng, session="editor")
            with contextlib.suppress(httpx.TimeoutException):
                http.post("/v1/completions", json=self.body(rng), headers=headers, timeout=0.02)

    def err(self, http, rng):
        """Something wrong: an error in OpenAI's shape."""
        good = self.headers(rng)
        kind = {"content-type": "application/json"}
        wrong = [
            (401, {"json": self.body(rng), "headers": {"Authorization": "Bearer wrong"}}),
            (404, {"json": self.body(rng, model="other"), "headers": good}),
            (400, {"json": self.body(rng, prompt=""), "headers": good}),
            (400, {"json": self.body(rng, prompt="x" * 2000), "headers": good}),
            (400, {"json": self.body(rng, temperature=-1), "headers": good}),
            (400, {"content": b'{"prompt": "x"', "headers": good | kind}),
            (413, {"content": b"x" * 70_000, "headers": good | kind}),
        ]
        status, request = rng.choice(wrong)
        answer = http.post("/v1/completions", **request)
        assert answer.status_code == status, answer.text
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        with self.lock:
            self.refused += 1


@pytest.fixture(scope="module")
def model():
    return tiny_llama(vocab=VOCAB)


@pytest.fixture(scope="module")
def expected(model):
    tokenizer = letters()
    prompts = [TEXT[: len(TEXT) - cut] for cut in (0, 1, 2, 7, 20)]
    return {each: plain(model, tokenizer, each, COUNT) for each in prompts}


def serving_of(model):
    limits = {"body": 65536, "active": 6, "waiting": 12, "pool": 1 << 22, "pool_of_key": 1 << 21}
    return listening(model, keys=KEYS, limits=limits, other_models="refuse")


def ended(app):
    """Wait until no request is left."""
    engine = app.state.service.engine
    wait(lambda: engine.load == (0, 0))
    return engine


def test_a_few_clients_and_much_goes_wrong(model, expected):
    with serving_of(model) as (address, app):
        clients = Clients(address, expected)
        clients.run(clients=6, things=15)
        engine = ended(app)
        assert clients.answered > 10
        assert clients.refused > 10
        assert engine.pool.bytes <= 1 << 22


@pytest.mark.slow
def test_load(model, expected):
    """32 clients for SERVE_SECONDS: no failure, no stuck request, and memory stays flat."""
    seconds = float(os.environ.get("SERVE_SECONDS", "300"))
    with serving_of(model) as (address, app):
        clients = Clients(address, expected)
        clients.run(32, 10**9, time.monotonic() + seconds / 4)
        ended(app)
        before = resident()
        clients.run(32, 10**9, time.monotonic() + seconds * 3 / 4)
        ended(app)
        grown = resident() - before
        print(f"{clients.answered} answered, {clients.refused} refused, {grown >> 10} KiB grown")
        assert grown < 64 << 20


@pytest.mark.slow
def test_five_thousand_requests_leave_nothing_in_memory(model):
    """Distinct prompts, whose caches are evicted: memory ends where it was after a thousand."""
    limits = {"pool": 1 << 20, "pool_of_key": 1 << 20}
    rng, sizes = random.Random(0), []
    with (
        listening(model, limits=limits) as (address, app),
        httpx.Client(base_url=address, timeout=120) as http,
    ):
        for index in range(5000):
            prompt = "".join(rng.choices("abcdef ()\n", k=200))
            body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "stream": index % 2 == 0}
            assert http.post("/v1/completions", json=body).status_code == 200
            if index % 1000 == 999:
                ended(app)
                sizes.append(resident())
        assert app.state.service.engine.pool.evicted > 4000
    print("MiB after each thousand:", [size >> 20 for size in sizes])
    assert sizes[-1] - sizes[0] < 8 << 20


def resident():
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not NODE.is_dir(), reason="make test-serve installs openai for node")
def test_openais_client_for_node(model, expected):
    prompt = next(iter(expected))
    with serving_of(model) as (address, app):
        script = Path(__file__).with_name("client.mjs")
        arguments = [f"{address}/v1", KEYS["ann"], prompt, expected[prompt]]
        environment = os.environ | {"OPENAI_PACKAGE": str(NODE)}
        done = subprocess.run(
            ["node", script, *arguments], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        ended(app)
