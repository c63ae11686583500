"""A server under load: random requests, its memory, and OpenAI's client for node."""

from __future__ import annotations

import os
import random
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import tiny_llama
from fuzz.server import fuzz, memory
from serving import END, TOOLS_CHAT, VOCAB, Script, letters, listening, plain, wait

from ngramspec.server.engine import Sampling

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
    """Distinct prompts, of eight clients: memory ends where it was after three thousand."""
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
    assert sizes[-1] - sizes[2] < 8 << 20


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


pytest.importorskip("openai", reason="pip install 'ngramspec[serve]'")
PAGE = Path(__file__).parents[2] / "docs" / "guide" / "agents.md"
CODE = "area=lambda(width,height):\nwidth*height"  # the tokenizer hides spaces
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.fixture
def address(monkeypatch):
    """A server whose model calls the tool first, and then answers with text of the prediction."""
    texts = iter([CALL, "Snow.", CODE])
    prompts: dict[int, Script] = {}

    def processors(self, prompt):
        if prompt > 2 and prompt not in prompts:  # 2: the server tries the model out
            prompts[prompt] = Script(prompt, letters()(next(texts))["input_ids"])
        return [prompts[prompt]] if prompt in prompts else []

    monkeypatch.setattr(Sampling, "_processors", processors)
    model = tiny_llama(vocab=VOCAB, positions=2048, eos_token_id=END)
    with listening(model, letters(chat=TOOLS_CHAT)) as (address, _):
        yield address


def test_the_clients_of_the_page_run(address, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    loop = blocks[0].replace("http://127.0.0.1:8012", address)
    names: dict = {}
    exec(loop, names)
    roles = [each["role"] for each in names["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert names["messages"][2]["content"] == '{"sky": "snow", "city": "Oslo"}'
    assert names["answer"].usage.prompt_tokens_details.cached_tokens > 0
    assert names["answer"].usage.ngramspec["tokens_per_call"] > 0
    text, counts = capsys.readouterr().out.splitlines()
    drafted, accepted = map(int, counts.split())
    assert text == "Snow. stop"
    assert drafted >= accepted >= 0
    predicted = names["client"].chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Add type hints."}],
        prediction={"type": "content", "content": CODE},
        temperature=0,
    )
    assert predicted.choices[0].message.content == CODE
    assert predicted.usage.completion_tokens_details.accepted_prediction_tokens > 5
