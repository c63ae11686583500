"""A tiny server in the test's process, and what its requests are compared with."""

from __future__ import annotations

import json
import re
import time
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
import tiny_tokenizers
import torch

from ngramspec.server import grammars

CHAT = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}assistant:"
VOCAB = 104
END = 100  # of the letters, one that can end a text
TOOLS_CHAT = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}"
    'as <tool_call>{"name": N}</tool_call>;{% endif %}'
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %};"
    "{% endfor %}assistant:"
)
HI = {"messages": [{"role": "user", "content": "hi"}]}
ROUTES = {
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/chat/completions": HI | {"max_tokens": 1},
    "/completion": {"prompt": "x", "n_predict": 1},
    "/infill": {"input_prefix": "x", "input_suffix": "y", "n_predict": 1},
}
BODIES = {**ROUTES, "/tokenize": {"content": "x"}, "/detokenize": {"tokens": [1]}}
JSON = {"content-type": "application/json"}


class Script:
    """A logits processor that has a model say a text after a prompt, and end."""

    def __init__(self, prompt, ids):
        self.prompt, self.ids = prompt, [*ids, END]

    def __call__(self, input_ids, scores):
        forced = self.ids[min(input_ids.shape[1] - self.prompt, len(self.ids) - 1)]
        scores = scores.new_full(scores.shape, -float("inf"))
        scores[:, forced] = 0.0
        return scores


def letters(fim: bool = True, chat: str = CHAT):
    """A tokenizer: token n is the character n + 32, 95 a line end; special tokens after."""
    from ngramspec.server.prompts import FAMILIES

    known = {chr(n + 32): n for n in range(95)} | {"\n": 95}
    tokenizer = tiny_tokenizers.letters(known, FAMILIES[0].tokens if fim else ())  # Qwen's
    tokenizer.chat_template = chat
    return tokenizer


def settings_of(**given):
    from ngramspec.server.settings import Limits, ServerSettings

    limits = given.pop("limits", {})
    return ServerSettings(**{"name": "tiny", "limits": Limits(**limits), **given})


class ThreadWorker:
    """Compiles grammars for a ``GrammarPool`` in the thread that asks; a process takes longer."""

    def __init__(self, seconds, vocabulary):
        self.compiler = grammars.compiler_of(vocabulary)

    def fault_of(self, kind, text):
        return grammars.fault_of(self.compiler, kind, text)

    def end(self):
        return None


@contextmanager
def served(model, tokenizer=None, worker=ThreadWorker, **settings):
    pytest.importorskip("prometheus_client")
    from starlette.testclient import TestClient

    from ngramspec.server.app import make_app

    app = make_app(model, tokenizer or letters(), settings_of(**settings))
    local = {"base_url": "http://localhost", "raise_server_exceptions": False}
    with patch.object(grammars, "_Worker", worker), TestClient(app, **local) as client:
        yield client


def plain(model, tokenizer, prompt, count, **settings):
    """The text that plain ``generate`` gives, greedily unless told otherwise."""
    ids = tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else list(prompt)
    settings = {"do_sample": False, "max_new_tokens": count} | settings
    whole = torch.tensor([ids])
    out = model.generate(whole, attention_mask=torch.ones_like(whole), **settings)[0, len(ids) :]
    return tokenizer.decode(out, skip_special_tokens=True)


def events(text):
    """The JSON values of a stream of server-sent events; its end is not among them."""
    lines = [line for line in text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    values = [line.removeprefix("data: ") for line in lines]
    return [json.loads(value) for value in values if value != "[DONE]"]


@contextmanager
def listening(model, tokenizer=None, *, drain=None, **settings):
    """The address of a server that listens, in a thread of this process, and its application.

    ``app.state.server`` is uvicorn's; ``drain`` is what the option of this name is.
    """
    import threading

    import uvicorn

    from ngramspec.server.app import make_app

    app = make_app(model, tokenizer or letters(), settings_of(**settings))
    ending = {"timeout_graceful_shutdown": drain}
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", **ending))
    app.state.server = server
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait(lambda: server.started or not thread.is_alive())
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", app
    finally:
        server.should_exit = True
        thread.join()


def wait(condition):
    """Wait for a condition of another thread; two minutes only against hanging for ever."""
    for _ in range(12000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def ask(client, route="/v1/completions", **body):
    answer = client.post(route, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def error_of(answer, status=400):
    """The error of an answer with this status."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def refused(client, route, body, param, status=400):
    """The error of a request, which names a field."""
    error = error_of(client.post(route, json=body), status)
    assert error["param"] == param
    return error


def parts_of(client, route, stream, **body):
    """The events of an answer that is streamed, or the one JSON value."""
    answer = client.post(route, json=body | {"stream": stream})
    assert answer.status_code == 200, answer.text
    return events(answer.text) if stream else [answer.json()]


def shown(text):
    """A text without the names of special tokens."""
    return re.sub(r"<\|\w+\|>", "", text)


def text_of(answer, index=0):
    return answer["choices"][index]["text"]


class Letters:
    """Token n is the character n + 160."""

    def decode(self, tokens, skip_special_tokens=False):
        return "".join(chr(token + 160) for token in tokens)

    def convert_tokens_to_ids(self, name):
        return None


def fresh(model, prompt, count):
    """The tokens that plain ``generate`` gives."""
    ids = torch.tensor(prompt[None].astype(np.int64))
    settings = {"do_sample": False, "max_new_tokens": count, "attention_mask": torch.ones_like(ids)}
    return model.generate(ids, **settings)[0, ids.shape[1] :].tolist()
