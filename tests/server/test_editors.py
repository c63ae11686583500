"""The requests of editors, as llama.vim, llama.vscode and Continue send them."""

from __future__ import annotations

import pytest
import torch
from serving import ask, events, plain, text_of

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
pytest_plugins = ["server_fixtures"]
PROMPT = "def hello(name):\n    return name + 'hello"


# What llama.vim sends, and what it reads of the answer: autoload/llama.vim, s:default_config and
# llama#fim, at https://github.com/ggml-org/llama.vim (commit a1c8e6e, January 2026). Only
# n_predict (there 128) and t_max_predict_ms (there 1000) differ: a short answer, without a clock.
LLAMA_VIM = {
    "id_slot": 0,
    "input_prefix": "import os\n\n",
    "input_suffix": "\n    return total\n",
    "input_extra": [
        {"text": "def sum(x):\n    return 1\n", "time": [1764, 25], "filename": "other.py"}
    ],
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
    "model": "",  # of its default configuration
}
WHOLE = (
    "<|repo_name|>repository\n<|file_sep|>other.py\ndef sum(x):\n    return 1\n<|file_sep|>\n"
    "<|fim_prefix|>import os\n\ndef total(xs):\n    to<|fim_suffix|>\n    return total\n"
    "<|fim_middle|>"
)
# What it sends when its chunks have changed, so that they are read: s:ring_update.
WARM_UP = {
    "id_slot": 0,
    "input_prefix": "",
    "input_suffix": "",
    "input_extra": LLAMA_VIM["input_extra"],
    "prompt": "",
    "n_predict": 0,
    "temperature": 0.0,
    "samplers": [],
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 1,
    "t_max_predict_ms": 1,
    "response_fields": [""],
    "model": "",
}
# What llama.vscode sends: createRequestPayload in src/llama-server.ts at
# https://github.com/ggml-org/llama.vscode (commit 3938fb3, August 2026), shorter in the same way.
LLAMA_VSCODE = {
    "id_slot": 0,
    "input_prefix": "import os\n\n",
    "input_suffix": "\n    return total\n",
    "input_extra": [
        {"text": "def sum(x):\n    return 1\n", "time": 1764000000000, "filename": "other.py"}
    ],
    "prompt": "def total(xs):\n    to",
    "n_predict": 24,
    "n_cmpl": 3,
    "top_k": 40,
    "top_p": 0.99,
    "stream": False,
    "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 100000,
}


def test_llama_vim_is_answered(client, model, tokenizer):
    assert client.post("/infill", json=WARM_UP).json() == {}
    answer = ask(client, "/infill", **LLAMA_VIM)
    assert set(answer) == set(LLAMA_VIM["response_fields"])
    assert answer["content"] == plain(model, tokenizer, WHOLE, 24)
    assert answer["timings/predicted_n"] == 24
    warm = len(tokenizer(WHOLE.partition("<|fim_prefix|>")[0])["input_ids"])
    assert answer["timings/prompt_n"] <= len(tokenizer(WHOLE)["input_ids"]) - warm


def test_llama_vscode_is_answered(client, model, tokenizer):
    answers = ask(client, "/infill", **LLAMA_VSCODE)
    assert len(answers) == 3
    for answer in answers:
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


# What Continue sends: its template and stop strings (core/autocomplete/templating), its
# temperature (core/autocomplete/CompletionProvider.ts) and its fields (_legacystreamComplete in
# core/llm/llms/OpenAI.ts) at https://github.com/continuedev/continue (commit d0a3c0b, June 2026).
# max_tokens is 4096 unless the configuration says less.
CONTINUE = {
    "model": "tiny",
    "max_tokens": 24,
    "temperature": 0.01,
    "stream": True,
    "stop": [
        "<|endoftext|>",
        "<|fim_prefix|>",
        "<|fim_middle|>",
        "<|fim_suffix|>",
        "<|fim_pad|>",
        "<|repo_name|>",
        "<|file_sep|>",
        "<|im_start|>",
        "<|im_end|>",
        "/src/",
        "#- coding: utf-8",
        "```",
    ],
    "prompt": "<|repo_name|>project\n<|file_sep|>other.py\ndef sum(x):\n    return 1\n"
    "<|file_sep|>own.py\n<|fim_prefix|>import os\n<|fim_suffix|>\nend<|fim_middle|>",
}


def test_continues_requests_are_answered(client, model, tokenizer):
    """Continue fills a model's template itself, and streams."""
    answer = client.post("/v1/completions", json=CONTINUE | {"seed": 3})
    parts = events(answer.text)
    torch.manual_seed(3)
    settings = {"do_sample": True, "temperature": 0.01, "top_k": 0}
    expected = plain(model, tokenizer, CONTINUE["prompt"], 24, **settings)
    assert "".join(map(text_of, parts)) == expected
    assert answer.text.endswith("data: [DONE]\n\n")
    assert parts[-1]["choices"][0]["finish_reason"] == "length"
