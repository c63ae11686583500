"""A server under load: random requests, its memory, and OpenAI's client for node."""

from __future__ import annotations

import os
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import tiny_llama
from fuzz.server import fuzz, memory
from serving import VOCAB, letters, listening, plain, wait

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
httpx = pytest.importorskip("httpx2", reason="make test installs it")

NODE = Path(__file__).parents[3] / "build/node/node_modules/openai"


@pytest.mark.slow
def test_random_requests_have_their_answers():
    """For SERVE_SECONDS; several at once, of clients that leave, hurry or are wrong."""
    found = fuzz(10**9, seed=0, seconds=float(os.environ.get("SERVE_SECONDS", "300")))
    print(f"{found.compared} texts equal the baseline's, of {dict(found.outcomes)}")
    assert found.findings == []


def ended(app):
    """Wait until no request is left."""
    engine = app.state.service.engine
    wait(lambda: engine.load == (0, 0))
    return engine


@pytest.mark.slow
def test_five_thousand_requests_leave_nothing_in_memory():
    """Distinct prompts, of eight clients: memory ends where it was after a thousand."""
    limits, sizes = {"pool": 1 << 20, "pool_of_key": 1 << 20}, []

    def send(index):
        prompt = "".join(random.Random(index).choices("abcdef ()\n", k=200))
        body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "stream": index % 2 == 0}
        return http.post("/v1/completions", json=body).status_code

    with (
        listening(tiny_llama(vocab=VOCAB), limits=limits) as (address, app),
        httpx.Client(base_url=address, timeout=120) as http,
        ThreadPoolExecutor(8) as clients,
    ):
        for first in range(0, 5000, 1000):
            assert set(clients.map(send, range(first, first + 1000))) == {200}
            ended(app)
            sizes.append(memory())
        assert app.state.service.engine.pool.evicted > 4000
    print("MiB after each thousand:", [size >> 20 for size in sizes])
    assert sizes[-1] - sizes[0] < 8 << 20


@pytest.mark.slow
@pytest.mark.skipif(not NODE.is_dir(), reason="make test-serve installs openai for node")
def test_openais_client_for_node():
    model, prompt = tiny_llama(vocab=VOCAB), "def one():\n    return 1\n\n\ndef two():\n"
    expected = plain(model, letters(), prompt, 16)
    with listening(model, keys={"ann": "key-of-ann"}) as (address, app):
        script = Path(__file__).with_name("client.mjs")
        arguments = [f"{address}/v1", "key-of-ann", prompt, expected]
        environment = os.environ | {"OPENAI_PACKAGE": str(NODE)}
        done = subprocess.run(
            ["node", script, *arguments], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        ended(app)
