"""A real server in a process of its own, and real clients."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from conftest import tiny_llama
from serving import VOCAB, letters, listening, plain
from wrapping import checkout

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
openai = pytest.importorskip("openai", reason="pip install 'ngramspec[serve]'")
KEY = "ann-s-key"
CODE = "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, d):\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """``ngramspec serve`` of a tiny model: its address, its process and its log."""
    folder = tmp_path_factory.mktemp("served")
    tiny_llama(vocab=VOCAB).save_pretrained(folder / "tiny")
    letters().save_pretrained(folder / "tiny")
    log = folder / "serve.log"
    command = [sys.executable, "-m", "ngramspec", "serve", folder / "tiny", "--port", "0"]
    environment = os.environ | {"PYTHONPATH": checkout(), "NGRAMSPEC_API_KEYS": f"ann={KEY}"}
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield wait_for_address(process, log), process, log
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


def wait_for_address(process, log):
    """The address that uvicorn names; ten minutes only against hanging for ever."""
    for _ in range(6000):
        assert process.poll() is None, log.read_text()
        found = re.search(r"running on (http://[\d.]+:\d+)", log.read_text())
        if found:
            return found[1]
        time.sleep(0.1)
    raise AssertionError(log.read_text())


@pytest.fixture
def client(server):
    with client_of(server[0]) as client:
        yield client


def client_of(address, key=KEY):
    return openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)


def greedy(client, **settings):
    model = client.models.list().data[0].id
    return client.completions.create(model=model, prompt=CODE, temperature=0, **settings)


def test_openais_client_gets_plain_generates_text_of_a_real_model(smollm2):
    expected = plain(smollm2.model, smollm2.tokenizer, CODE, 16)
    extras = {"ngramspec": {"reference": CODE, "usage": True}}
    with listening(smollm2.model, smollm2.tokenizer) as (address, _), client_of(address) as client:
        answer = greedy(client, max_tokens=16, extra_body=extras)
        assert answer.choices[0].text == expected
        assert answer.usage.completion_tokens == 16
        parts = greedy(client, max_tokens=16, stream=True)
        assert "".join(part.choices[0].text for part in parts) == expected
        again = greedy(client, max_tokens=16, extra_body=extras)
        assert again.usage.ngramspec["reused_tokens"] == answer.usage.prompt_tokens - 1


def test_the_client_of_the_guide_is_answered_by_the_embedded_model(smollm2, capsys):
    guide = Path(__file__).parents[2] / "docs/guide/serve.md"
    (block,) = re.findall(r"^```python\n(.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL)
    with listening(smollm2.model, smollm2.tokenizer, shared=None) as (address, _):
        exec(block.replace("http://127.0.0.1:8012", address), {})
    *text, tokens_per_call = capsys.readouterr().out.rstrip().splitlines()
    assert "return width * height" in "\n".join(text)
    assert float(tokens_per_call) > 1.5


def test_the_curl_command_of_the_guide_is_answered_as_it_says(smollm2):
    """In float32, where the text does not depend on rounding."""
    guide = (Path(__file__).parents[2] / "docs/guide/serve.md").read_text()
    route, body, shown = re.search(
        r"^curl \S+(/\w+) .* -d '(.*?)'$.*?^```json\n(.*?)\n```$", guide, re.MULTILINE | re.DOTALL
    ).groups()
    with listening(smollm2.model, smollm2.tokenizer, shared=None) as (address, _):
        head = {"Content-Type": "application/json"}
        with urlopen(Request(address + route, body.encode(), head)) as answer:
            assert json.loads(answer.read()) == json.loads(shown)


@pytest.mark.slow
def test_openais_client_understands_the_errors(client, server):
    with pytest.raises(openai.BadRequestError) as error:
        greedy(client, max_tokens=-1)
    assert error.value.param == "max_tokens"
    address, _, log = server
    with client_of(address, "wrong") as other, pytest.raises(openai.AuthenticationError):
        other.models.list()
    assert KEY not in log.read_text()


@pytest.mark.slow
def test_the_device_is_reported(server):
    assert re.search(
        r"^serving tiny on (cpu|cuda:0) in bfloat16$", server[2].read_text(), re.MULTILINE
    )


@pytest.mark.slow
def test_sigterm_drains(server):
    """The last test of this file: answers that run are finished, and new ones refused.

    The log that is left holds no text.
    """
    address, process, log = server
    with client_of(address) as client:
        stream = greedy(client, max_tokens=200, stream=True)
        parts = iter(stream)
        next(parts)
        process.send_signal(signal.SIGTERM)
        assert [part.choices[0].finish_reason for part in parts][-1] == "length"
    assert process.wait(timeout=60) in (0, -signal.SIGTERM), log.read_text()
    host, _, port = address.removeprefix("http://").partition(":")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)), timeout=5)
    text = log.read_text()
    assert "running on" in text
    assert "width" not in text
    assert "Traceback" not in text
