"""The requests of editors, as llama.vim, llama.vscode and Continue send them."""

from __future__ import annotations

import pytest
from conftest import tiny_llama
from serving import VOCAB, ask, events, letters, plain, served, text_of

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
PROMPT = "def hello(name):\n    return name + 'hello"


@pytest.fixture(scope="module")
def model():
    return tiny_llama(vocab=VOCAB)


@pytest.fixture(scope="module")
def tokenizer():
    return letters()


@pytest.fixture(scope="module")
def client(model, tokenizer):
    with served(model, tokenizer) as client:
        yield client


# What llama.vim sends, from its source, with a shorter answer; and what it reads of the answer.
LLAMA_VIM = {
    "id_slot": 0,
    "input_prefix": "import os\n\n",
    "input_suffix": "\n    return total\n",
    "input_extra": [{"filename": "other.py", "text": "def sum(x):\n    return 1\n"}],
    "prompt": "def total(xs):\n    to",
    "n_predict": 24,
    "stop": [],
    "n_indent": 0,
    "top_k": 40,
    "top_p": 0.90,
    "samplers": ["top_k", "top_p", "infill"],
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 100000,
    "response_fields": [
        "content",
        "timings/prompt_n",
        "timings/prompt_ms",
        "timings/prompt_per_token_ms",
        "timings/prompt_per_second",
        "timings/predicted_n",
        "timings/predicted_ms",
        "timings/predicted_per_token_ms",
        "timings/predicted_per_second",
        "truncated",
        "tokens_cached",
    ],
}
WHOLE = (
    "<|repo_name|>repository<|file_sep|>other.py\ndef sum(x):\n    return 1\n<|file_sep|>\n"
    "<|fim_prefix|>import os\n\ndef total(xs):\n    to<|fim_suffix|>\n    return total\n"
    "<|fim_middle|>"
)
WARM_UP = {
    **LLAMA_VIM,
    "input_prefix": "",
    "input_suffix": "",
    "prompt": "",
    "n_predict": 0,
    "samplers": [],
    "temperature": 0.0,
    "t_max_prompt_ms": 1,
    "t_max_predict_ms": 1,
    "response_fields": [""],
}
# What llama.vscode sends, from its source: no ``stream``, ``stop`` or ``response_fields``.
LLAMA_VSCODE = {
    **{name: value for name, value in LLAMA_VIM.items() if name != "response_fields"},
    "n_cmpl": 1,
    "top_p": 0.99,
    "input_extra": [{"text": "def sum(x):\n    return 1\n", "filename": "other.py"}],
}


def test_llama_vim_is_answered(client, model, tokenizer):
    assert client.post("/infill", json=WARM_UP).json() == {}
    answer = ask(client, "/infill", **LLAMA_VIM)
    assert set(answer) == set(LLAMA_VIM["response_fields"])
    assert answer["content"] == plain(model, tokenizer, WHOLE, 24)
    assert answer["timings/predicted_n"] == 23
    warm = len(tokenizer(WHOLE.partition("<|fim_prefix|>")[0])["input_ids"])
    assert answer["timings/prompt_n"] <= len(tokenizer(WHOLE)["input_ids"]) - warm


def test_llama_vscode_is_answered(client, model, tokenizer):
    answer = ask(client, "/infill", **LLAMA_VSCODE)
    assert answer["content"] == plain(model, tokenizer, WHOLE, 24)
    assert answer["stop"] is True
    assert answer["stop_type"] == "limit"
    assert answer["tokens_predicted"] == 24


def test_llama_cpps_completion_is_answered_and_streamed(client, model, tokenizer):
    body = {"prompt": PROMPT, "n_predict": 16, "temperature": 0}
    expected = plain(model, tokenizer, PROMPT, 16)
    assert ask(client, "/completion", **body)["content"] == expected
    parts = events(client.post("/completion", json=body | {"stream": True}).text)
    assert "".join(part["content"] for part in parts) == expected
    assert [part["stop"] for part in parts] == [False] * (len(parts) - 1) + [True]
    stopped = ask(client, "/completion", stop=[expected[5:7]], **body)
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", expected[5:7])


def test_continues_requests_are_answered(client, model, tokenizer):
    """Continue fills a model's template itself, and streams."""
    prompt = "<|fim_prefix|>import os\n<|fim_suffix|>\nend<|fim_middle|>"
    body = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": 24,
        "temperature": 0.0,
        "stream": True,
        "stop": ["<|endoftext|>", "<|fim_prefix|>", "/src/", "#- coding: utf-8", "```"],
        "suffix": "",
    }
    parts = events(client.post("/v1/completions", json=body).text)
    assert "".join(map(text_of, parts)) == plain(model, tokenizer, prompt, 24)
