"""Random requests for the server: valid, wrong in some fields, and no requests at all."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

KEYS = {"ann": "key-of-ann", "bob": "key-of-bob"}
COMPLETIONS, CHAT, INFILL, LLAMA = (
    "/v1/completions",
    "/v1/chat/completions",
    "/infill",
    "/completion",
)
VIEWS = ["/health", "/v1/models", "/v1/models/tiny", "/v1/models/other", "/metrics", "/nothing"]
VIEWS += [
    "/",
    "/docs",
    "/openapi.json",
    "/models",
    "/props",
    "/tokenize",
    "/v1/health",
    "/v1/models/%00",
    "//v1",
    "/%ff",
]
METHODS = ["GET", "GET", "GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST", "BREW"]
HOSTS = ["127.0.0.1", "localhost:8000", "evil.example", "", "[::1]:80", "127.0.0.1.evil.example"]
PROMPTS = [
    "def one():\n    return 1\n\n\ndef two():\n    return one() + one()\n",
    "the cat sat on the mat, the cat sat on the hat",
    "a",
    "x = [1, 2, 3]\ny = [1, 2, 3]\nz = [1, 2",
    "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
]
DIGITS = "@digits@"  # in place of a number that json cannot write
NUMBERS: list[Any] = [
    *(0, 1, -1, 2, 17, 2**31, 2**63 - 1, 2**63, 2**64, -(2**70), 10**9, 10**400, DIGITS),
    *(0.5, -0.0, 1e-38, 1e-320, 1e38, 1e308, -1e308, float("nan"), float("inf"), float("-inf")),
]
TEXTS: list[Any] = ["", "x", "\ud800", "\x00", "\udfff\ud800", "a" * 5000, "😀\u0301", "[DONE]"]
TEXTS += ["<|fim_prefix|>", "\n\ndata: x\n\n", "{{ messages }}", "\r\nX-Header: x"]
LISTS: list[Any] = [[], [[]], [{}], [None] * 2000, ["x"] * 2000, [1] * 300, [[1]] * 500, [-1]]
LISTS += [["a", 1], [2**31], ["\ud800"], [{"type": "text", "text": "\ud800"}], [{"text": 1}]]
OBJECTS: list[Any] = [
    *({}, {"": ""}, {"$ref": "#"}, {"a" * 2000: 1}, {DIGITS: 1}, {"1": 10**30}, {"1": 100}),
    *({"type": "json_object"}, {"type": "text"}, {"include_usage": True}, {"type": "function"}),
    *({"reference": "\ud800"}, {"stores": ["x"] * 3000}, {"namespace": "/../x"}, {"usage": 1}),
    *({"speculate": False}, {"speculate": 2}, {"type": "content", "content": "\ud800"}),
    *({"type": "content", "content": [{"type": "text", "text": "x"}] * 2000}, {"content": "x"}),
]
HOSTILE: list[Any] = [None, True, False, *NUMBERS, *TEXTS, *LISTS, *OBJECTS]
SCHEMAS: list[Any] = [{"$ref": "#"}, {"type": "array"}, {"pattern": "(a*)*b"}, {"type": 1}, {}]
SCHEMAS += [{"anyOf": [{"$ref": "#"}] * 3}, {"enum": ["\ud800"]}, {"minLength": 10**9}]
SCHEMAS += [{"$ref": "http://localhost/"}, {"type": "object", "properties": None}]


@dataclass
class Ask:
    """One request.

    Attributes:
        seed: it was drawn from.
        name: a text of its own, which no other request's answer may have.
        method, path, headers, body: of HTTP.
        leave: after how many messages of the answer the client goes; None: it stays.
        exact: whether it is valid and greedy, so that its text is the baseline's for ``prompt``.
        prompt: text; of a chat, what the template makes of it.
        stop: the stop string, or None.
        count: tokens of the answer.
    """

    seed: int
    name: str
    method: str = "POST"
    path: str = COMPLETIONS
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    leave: int | None = None
    exact: bool = False
    prompt: str = ""
    stop: str | None = None
    count: int = 0

    def __repr__(self) -> str:
        body = self.body if len(self.body) < 700 else self.body[:700] + b"..."
        left = "" if self.leave is None else f", left after {self.leave}"
        return f"{self.method} {self.path} {dict(self.headers)} {body!r}{left}"


def draw(seed: int) -> Ask:
    """The request of a seed."""
    rng = random.Random(seed)
    ask = Ask(seed, f"nonce{seed}x")
    kinds: list[Callable[[random.Random, Ask], None]] = [_valid, _mutated, _garbage, _view]
    rng.choices(kinds, (5, 7, 2, 2))[0](rng, ask)
    ask.headers += [("host", "127.0.0.1"), ("content-type", "application/json")]
    key = rng.choice([*KEYS.values()])
    if rng.random() < 0.9 or ask.exact:
        ask.headers.append(("authorization", f"Bearer {key}"))
    else:
        wrong = ["Bearer", "Bearer no", f"Basic {key}", key, "Bearer \xff", "Bearer " + "x" * 9000]
        ask.headers += [("authorization", each) for each in rng.sample(wrong, rng.randrange(3))]
    if not ask.exact and rng.random() < 0.1:
        ask.headers = [each for each in ask.headers if each[0] != "host"]
        ask.headers += [("host", rng.choice(HOSTS))]
    if rng.random() < 0.15:
        session = rng.choice(["one", "two", "x" * 300, "\xe9"])
        ask.headers.append(("x-session", session))
        ask.exact = ask.exact and len(session) <= 200
    if rng.random() < 0.15:
        ask.leave = rng.randrange(4)
    return ask


def _valid(rng: random.Random, ask: Ask) -> None:
    ask.body = _dumped(_base(rng, ask))


def _base(rng: random.Random, ask: Ask) -> dict[str, Any]:
    """A valid body; most of them are greedy, so that their text is known."""
    ask.path = rng.choice([COMPLETIONS, CHAT, INFILL, LLAMA])
    text = rng.choice(PROMPTS)
    text = f"{text}# {ask.name}\n" if rng.random() < 0.5 else text[: rng.randrange(1, 60)]
    ask.count, ask.exact = rng.randrange(1, 20), rng.random() < 0.8
    chat = {"messages": [{"role": rng.choice(["user", "system"]), "content": text}]}
    forms: dict[str, dict[str, Any]] = {
        COMPLETIONS: {"prompt": text},
        CHAT: chat,
        INFILL: {"input_prefix": text, "input_suffix": "\n}", "prompt": "x"},
        LLAMA: {"prompt": text},
    }
    body = forms[ask.path] | {"temperature": 0, "stream": rng.random() < 0.5}
    body["n_predict" if ask.path in (INFILL, LLAMA) else "max_tokens"] = ask.count
    role = chat["messages"][0]["role"]
    ask.prompt = f"{role}:{text};assistant:" if ask.path == CHAT else text
    if rng.random() < 0.3:
        ask.stop = rng.choice([" ", "e", "the", ask.name, "\n"])
        body["stop"] = [ask.stop]
    if rng.random() < 0.4:
        reference = rng.choice([text * 3, [1, 2, 3] * 20])
        body["ngramspec"] = {"reference": reference, "usage": rng.random() < 0.5}
        body["ngramspec"] |= rng.choice([{}, {}, {"speculate": False}, {"speculate": True}])
    if rng.random() < 0.3 and ask.path in (COMPLETIONS, CHAT):
        content = rng.choice([text * 2, [{"type": "text", "text": text}] * 3, "", []])
        body["prediction"] = {"type": "content", "content": content}
    if rng.random() < 0.3 and ask.path in (COMPLETIONS, CHAT):
        body["prompt_cache_key"] = rng.choice(["one", "two", "", "x" * 999])
    if rng.random() < 0.3 and ask.path in (COMPLETIONS, CHAT):
        body["logprobs"] = rng.randrange(4) if ask.path == COMPLETIONS else True
    if not ask.exact:
        body |= {"temperature": rng.choice([0.7, 1.0, 1.5]), "seed": rng.randrange(99)}
        body |= {"top_k": rng.randrange(50), "top_p": 0.9, "presence_penalty": 0.5}
    if ask.path == CHAT and rng.random() < 0.2:
        ask.exact = False
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
        if rng.random() < 0.5:
            schema = rng.choice([*SCHEMAS, _nested(rng, {}), {"properties": _many(rng)}])
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        body["response_format"] = rng.choice([form, form, {"type": "json_object"}])
    return body


def _mutated(rng: random.Random, ask: Ask) -> None:
    """A valid body with hostile values in some places."""
    body = _base(rng, ask)
    ask.exact = False
    for _ in range(rng.randrange(1, 4)):
        act, kinds = rng.random(), [HOSTILE, NUMBERS, NUMBERS, TEXTS, LISTS, OBJECTS]
        value = copy.deepcopy(rng.choice(rng.choice(kinds)))
        if act < 0.5:
            body[rng.choice(fields_of(ask.path))] = value
            continue
        found = [*places(body)]
        if not found:
            break
        holder, name = rng.choice(found)
        if act < 0.8:
            holder[name] = value
        elif act < 0.87:
            del holder[name]
        elif act < 0.95:
            holder[name] = [holder[name]] * rng.randrange(5)
        else:
            holder[name] = _nested(rng, holder[name])
    ask.body = _dumped(body)


@cache
def fields_of(path: str) -> list[str]:
    """The fields of a route's requests, and some that it does not know."""
    from ngramspec.server.app import BODY_ROUTES

    return [*BODY_ROUTES[path].kind.model_fields, "unknown_field", "max_tokenz"]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Where the values of a JSON value are."""
    names: Any = ()
    if isinstance(value, dict):
        names = value
    elif isinstance(value, list):
        names = range(len(value))
    for name in [*names][:50]:
        yield value, name
        yield from places(value[name])


def _nested(rng: random.Random, value: Any) -> Any:
    for _ in range(rng.choice([10, 100, 400])):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def _many(rng: random.Random) -> dict[str, Any]:
    """Properties of a schema that takes long to compile."""
    count = rng.choice([10, 100, 1000])
    return {f"p{index}": {"type": "string", "pattern": "^[a-z]{1,20}$"} for index in range(count)}


def _dumped(body: Any) -> bytes:
    text = json.dumps(body).replace(f'"{DIGITS}": ', f'"{"9" * 5000}": ')
    return text.replace(f'"{DIGITS}"', "9" * 5000).encode()


def _garbage(rng: random.Random, ask: Ask) -> None:
    """A body that is no JSON, or a strange one."""
    valid, ask.exact = _dumped(_base(rng, ask)), False
    at = rng.randrange(len(valid))
    ask.body = rng.choice(
        [
            b"",
            b"null",
            b"NaN",
            b"\xff\xfe\x00",
            b"[" * 100_000,
            b'{"prompt":' * 5000,
            b'"' + b"\\ud800" * 3000 + b'"',
            valid[:at],
            valid[:at] + bytes([rng.randrange(256)]) + valid[at + 1 :],
            valid + valid,
            valid.replace(b"{", b'{"prompt": 1, "prompt": "twice", ', 1),
            json.dumps([ask.name]).encode(),
            b"9" * 6000,
        ]
    )


def _view(rng: random.Random, ask: Ask) -> None:
    """A route that only tells, a method that no route has, or no route."""
    ask.method, ask.path = rng.choice(METHODS), rng.choice([*VIEWS, COMPLETIONS, CHAT, INFILL])
