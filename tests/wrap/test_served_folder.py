"""A real server of a wrapped folder."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from prompts import PROMPTS
from serving import wait
from wrapping import SETTINGS, checkout

from ngramspec.wrap.wrapped import wrap


@pytest.fixture(scope="module")
def real_folder(smollm2, tmp_path_factory):
    """SmolLM2 as a folder of safetensors, which a model loaded from GGUF does not save itself as.

    Its dequantised weights go into a model whose config says nothing of GGUF.
    """
    path = tmp_path_factory.mktemp("real") / "smollm2"
    config = copy.deepcopy(smollm2.model.config)
    del config.quantization_config
    model = type(smollm2.model)(config)
    model.load_state_dict(smollm2.model.state_dict())
    model.generation_config = smollm2.model.generation_config
    model.save_pretrained(path)
    smollm2.tokenizer.save_pretrained(path)
    yield path
    shutil.rmtree(path)  # half a gigabyte


@pytest.fixture(scope="module")
def server(real_folder, tmp_path_factory):
    """``transformers serve`` of the wrapped folder: its address, its model, and its log file."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    pytest.importorskip("openai")
    out = tmp_path_factory.mktemp("served") / "smollm2"
    wrap(real_folder, out, SETTINGS)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = Path(sys.executable).with_name("transformers")
    options = ["--trust-remote-code", "--device", "cpu", "--port", str(port)]
    environment = {"NGRAMSPEC_LOG": "info", "PYTHONPATH": checkout()}
    log = tmp_path_factory.mktemp("log") / "serve.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [command, "serve", out, *options],
            env=os.environ | environment,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(f"http://localhost:{port}/health", process, log)
        yield f"http://localhost:{port}/v1", str(out), log
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(out)  # its weights are links: they hold the space too


def wait_for(address, process, log):
    """Wait for an answer while the server lives; ten minutes only against hanging for ever."""
    for _ in range(1200):
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(address).close()
            return
        except urllib.error.URLError:
            time.sleep(0.5)
    raise AssertionError(f"no answer: {log.read_text()}")


@pytest.mark.slow
def test_transformers_serve_speculates_and_says_what_plain_generate_says(smollm2, server):
    import openai

    address, model, log = server
    client = openai.OpenAI(base_url=address, api_key="none")

    def ask(prompt, **settings):
        messages = [{"role": "user", "content": prompt}]
        return client.chat.completions.create(
            model=model, messages=messages, temperature=0, **settings
        )

    def streamed(prompt, **settings):
        chunks = [chunk.choices[0] for chunk in ask(prompt, stream=True, **settings)]
        return [chunk.delta.content for chunk in chunks if chunk.delta.content]

    def plainly(prompt, **settings):
        ids = smollm2.encode(prompt)
        out = smollm2.model.generate(**ids, **settings)[0, ids["input_ids"].shape[1] :]
        return out, smollm2.tokenizer.decode(out, skip_special_tokens=True)

    for prompt in PROMPTS[:6]:
        tokens, text = plainly(prompt, max_new_tokens=48, do_sample=False)
        answer = ask(prompt, max_tokens=48)
        assert answer.choices[0].message.content == text
        assert answer.usage.completion_tokens == len(tokens)
        pieces = streamed(prompt, max_tokens=48)
        assert "".join(pieces) == text
        assert len(pieces) > len(tokens) / 2
    logged = re.compile(r"ngramspec: (\d+) tokens in (\d+) target calls")
    wait(lambda: len(logged.findall(log.read_text())) == 12)  # the last one follows its answer
    counts = logged.findall(log.read_text())
    emitted, calls = (sum(map(int, column)) for column in zip(*counts, strict=True))
    assert emitted / calls > 1.5, "hardly speculative"

    word = text.split()[5]
    stopped = ask(prompt, max_tokens=48, stop=[word]).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.message.content == text[: text.index(word) + len(word)]

    sampling = {"do_sample": True, "temperature": 0.9, "max_new_tokens": 24}
    torch.manual_seed(5)
    _, sampled = plainly(prompt, **sampling)
    body = {"generation_config": json.dumps({"do_sample": True, "max_new_tokens": 24}), "seed": 5}
    settings = {"model": model, "temperature": 0.9, "extra_body": body}
    message = [{"role": "user", "content": prompt}]
    answer = client.chat.completions.create(messages=message, **settings)
    assert answer.choices[0].message.content == sampled

    beams = {"generation_config": json.dumps({"num_beams": 2, "max_new_tokens": 12})}
    _, text = plainly(prompt, num_beams=2, max_new_tokens=12, do_sample=False)
    assert ask(prompt, extra_body=beams).choices[0].message.content == text

    with ask("Write a long story.", max_tokens=400, stream=True) as abandoned:
        next(iter(abandoned))
    _, text = plainly(PROMPTS[1], max_new_tokens=16, do_sample=False)
    assert ask(PROMPTS[1], max_tokens=16).choices[0].message.content == text
