"""``python -m fuzz.server``: random requests to a tiny server in this process, several at once.

Each answer has to have its form, greedy ones the baseline's text, and nothing may be left at the
end. A request is made from one integer, its seed; several in a row are sent at once.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import json
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fuzz.server_requests import CHAT, COMPLETIONS, INFILL, KEYS, LLAMA, Ask, draw
from fuzz.work import begin

SECONDS = 120.0  # after which a group of requests hangs
MIB = 1 << 20
GROWTH = 768 * MIB  # of the process, whatever it was sent
ANSWERS = (COMPLETIONS, CHAT, INFILL, LLAMA)
HEAD, DONE = b"data: ", b"[DONE]"
MAY_FAIL = (429, 499)  # any valid request: too many at once, or a newer one of its session
FORM = {"message", "type", "param", "code"}


class Answer:
    """What a client has received.

    Attributes:
        status: of HTTP; None: there was no answer.
        body: what came of it.
        messages: how many of ASGI came.
        whole: whether the last one came.
        streams: whether it is a stream of events.
        error: that the application raised, or None.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.body, self.messages, self.whole, self.streams = b"", 0, False, False
        self.error: BaseException | None = None


async def sent(app: Any, ask: Ask) -> Answer:
    """Send a request, whose client may go before its answer is whole."""
    answer, gone = Answer(), asyncio.Event()
    parts = [ask.body[: len(ask.body) // 2], ask.body[len(ask.body) // 2 :]]
    if ask.leave == 0:
        parts, _ = parts[:1], gone.set()

    async def receive() -> dict[str, Any]:
        if parts:
            part = parts.pop(0)
            more = bool(parts) or ask.leave == 0
            return {"type": "http.request", "body": part, "more_body": more}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.streams = b"event-stream" in dict(message["headers"]).get(b"content-type", b"")
        else:
            answer.body += message.get("body", b"")
            answer.whole = not message.get("more_body", False)
        answer.messages += 1
        if answer.messages == ask.leave:
            gone.set()

    headers = [(name.encode(), value.encode("latin-1")) for name, value in ask.headers]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": ask.method,
        "scheme": "http",
        "path": unquote(ask.path),
        "raw_path": ask.path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }
    try:
        await app(scope, receive, send)
    except Exception as error:
        answer.error = error
    gone.set()
    return answer


class Fuzz:
    """A tiny server, and what its answers are compared with.

    Args:
        tell: called with each finding; or None.

    Attributes:
        findings: a line each.
        outcomes: how many answers had each status.
        compared: how many texts were the baseline's.
    """

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        from conftest import tiny_llama
        from serving import VOCAB, letters, settings_of

        from ngramspec.server.app import make_app
        from ngramspec.server.settings import SharedText

        self.model = tiny_llama(vocab=VOCAB, eos_token_id=100)
        self.tokenizer = letters()
        limits = {"active": 4, "waiting": 24, "pool": MIB, "pool_of_key": MIB, "chunk": 32}
        shared = SharedText(1 << 20, KEYS, self.tokenizer)
        settings = settings_of(keys=KEYS, shared=shared, limits=limits, max_tokens=24)
        self.app = make_app(self.model, self.tokenizer, settings)
        self.service = self.app.state.service
        self._tell = tell
        self.findings: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.compared = 0
        self._baseline = cache(self._made)

    async def run(self, seed: int, requests: int, seconds: float = inf) -> None:
        """Send requests in groups for ``seconds``, with seeds from ``seed`` upwards."""
        async with self.app.router.lifespan_context(self.app):
            at, before, end = seed, memory(), time.monotonic() + seconds
            while at < seed + requests and time.monotonic() < end:
                group = [draw(each) for each in range(at, min(at + size(at), seed + requests))]
                await self._group(group)
                at += len(group)
                grown = memory() - before
                if grown > GROWTH:
                    self._found(group[-1], f"the process has grown by {grown // MIB} MiB")
                    break
            await self._check_left()

    async def _group(self, group: list[Ask]) -> None:
        hangs = f"hangs: seeds {group[0].seed} to {group[-1].seed}"
        watch = threading.Timer(SECONDS, print, (hangs,), {"file": sys.stderr, "flush": True})
        watch.start()
        faulthandler.dump_traceback_later(SECONDS + 5, exit=True)
        health = Ask(group[0].seed, "health", "GET", "/health", [("host", "127.0.0.1")])
        *answers, well = await asyncio.gather(
            *(sent(self.app, each) for each in group), sent(self.app, health)
        )
        watch.cancel()
        faulthandler.cancel_dump_traceback_later()
        if (well.status, well.body) != (200, b'{"status":"ok"}'):
            self._found(group[0], f"/health says {well.status} {well.body!r}")
        for ask, answer in zip(group, answers, strict=True):
            self.outcomes[str(answer.status)] += 1
            wrong = self._wrong(ask, answer)
            if wrong is not None:
                self._found(ask, wrong)

    def _found(self, ask: Ask, wrong: str) -> None:
        self.findings.append(f"seed {ask.seed}: {wrong[:600]}\n    {ask!r}")
        if self._tell is not None:  # at once: a later group may hang
            self._tell(self.findings[-1])

    def _wrong(self, ask: Ask, answer: Answer) -> str | None:
        """What is wrong with an answer, or None."""
        if answer.error is not None:
            return f"{type(answer.error).__name__}: {answer.error}"
        others = set(re.findall(rb"nonce\d+x", answer.body)) - {ask.name.encode()}
        if others:
            return f"the answer has the text of other requests: {others}"
        if ask.leave is not None:
            return None if (answer.status or 200) < 500 or answer.status == 503 else "5xx"
        if answer.status is None or not answer.whole:
            return f"the answer has no end; status {answer.status}"
        if answer.status >= 500 and answer.status != 503:
            return f"{answer.status} {answer.body!r}"
        if answer.status >= 400:
            if ask.exact and answer.status not in MAY_FAIL:
                return f"a valid request is refused: {answer.status} {answer.body!r}"
            return None if ask.method == "HEAD" else wrong_error(answer.body)
        if ask.path not in ANSWERS or ask.method != "POST":
            return None
        return self._wrong_answer(ask, answer)

    def _wrong_answer(self, ask: Ask, answer: Answer) -> str | None:
        try:
            text, failure = read(ask, answer)
        except Exception as error:
            return f"the answer has not its form: {type(error).__name__}: {error}: {answer.body!r}"
        if failure is not None:
            known = failure["type"] == "cancelled_error"
            return None if known else f"the stream ends with {failure}"
        if ask.exact:
            expected = self._baseline(ask.path, ask.prompt, ask.count).split(ask.stop or "\0")[0]
            if text != expected:
                return f"the text is {text!r}, the baseline's {expected!r}"
            self.compared += 1
        return None

    def _made(self, path: str, prompt: str, count: int) -> str:
        """The text of plain ``generate``."""
        from serving import plain

        service = self.service
        if path == CHAT:
            ids, ends = service.text.encode(prompt), service.eos
        else:
            filled = path == INFILL
            ids = service.fim.prompt(prompt, "\n}", line="x") if filled else service.encode(prompt)
            ends = service.ends_of(service.check_prompt(ids))
        return plain(self.model, self.tokenizer, ids, count, eos_token_id=list(ends))

    async def _check_left(self) -> None:
        """Nothing may be left: no jobs (which hold their sessions) and no caches in use."""
        engine = self.service.engine
        for _ in range(600):
            if engine.load == (0, 0):
                break
            await asyncio.sleep(0.05)
        left = {
            "jobs": engine.load != (0, 0),
            "caches in use": any(each.busy for each in engine.pool._caches),
            "bytes of caches": engine.pool.bytes > MIB,
        }
        for name in (name for name, is_left in left.items() if is_left):
            self._found(Ask(0, ""), f"left at the end: {name}")


def size(seed: int) -> int:
    """How many requests are sent at once with the one of this seed."""
    return random.Random(f"group {seed}").randrange(1, 9)


def memory() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def parsed(text: bytes) -> Any:
    """A JSON value; NaN and infinities are none."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def wrong_error(body: bytes) -> str | None:
    """What is wrong with the body of an error, or None."""
    try:
        error = parsed(body)["error"]
        message = error["message"]
        right = set(error) == FORM and isinstance(message, str) and bool(message)
        right = right and not any(each in message for each in ("Traceback", "site-packages"))
    except (ValueError, LookupError, TypeError):
        right = False
    return None if right else f"the error has not its form: {body!r}"


def read(ask: Ask, answer: Answer) -> tuple[str, dict[str, Any] | None]:
    """The first text of an answer, and the error that its stream ends with, or None."""
    if not answer.streams:
        return text_of(ask, parsed(answer.body)), None
    lines = [line for line in answer.body.split(b"\n\n") if line]
    values = [line.removeprefix(HEAD) for line in lines if line.startswith(HEAD)]
    if len(values) < len(lines):
        raise ValueError("a line is no event")
    if ask.path in (COMPLETIONS, CHAT) and values.pop() != DONE:
        raise ValueError("the stream does not end with [DONE]")
    found = [parsed(value) for value in values]
    if found and "error" in found[-1]:
        return "", found[-1]["error"]
    if ask.path in (INFILL, LLAMA) and not found[-1].get("stop"):
        raise ValueError("the last event is not the end")
    return "".join(text_of(ask, each) for each in found), None


def text_of(ask: Ask, value: Any) -> str:
    """The text of an answer, or of an event; that of the first one, if there are several."""
    if not ask.exact:
        return ""
    if ask.path in (INFILL, LLAMA):
        return str(value["content"])
    if not value["choices"]:
        return ""
    choice = value["choices"][0]
    if ask.path == COMPLETIONS:
        return str(choice["text"])
    return (choice.get("message") or choice["delta"]).get("content") or ""


def fuzz(
    requests: int, seed: int, tell: Callable[[str], None] | None = None, seconds: float = inf
) -> Fuzz:
    """Send one request per seed, from ``seed`` upwards, for at most ``seconds``."""
    found = Fuzz(tell)
    asyncio.run(found.run(seed, requests, seconds))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.server", description=__doc__)
    parser.add_argument("--requests", type=int, default=1000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the first request; one more each")
    given = parser.parse_args()
    begin()
    found = fuzz(given.requests, given.seed, partial(print, flush=True))
    print(f"{given.requests} requests: {dict(sorted(found.outcomes.items()))}")
    print(f"{found.compared} texts equal the baseline's; {len(found.findings)} findings")
    return 1 if found.findings else 0


if __name__ == "__main__":
    sys.exit(main())
