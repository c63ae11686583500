"""Grammars for xgrammar: cached for each user, and compiled within a time limit."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

from anyio.to_thread import run_sync

from ngramspec.server import grammar_worker
from ngramspec.server.responses import ApiError, bad, json_parts, refuse_unless

logger = logging.getLogger("ngramspec.server")
WORKER_MODULE = "ngramspec.server.grammar_worker"
MAX_WORKERS = 2  # processes: a slow grammar must not block other users; not tuned
MAX_KEPT_BYTES = 64 << 20  # of all users' compiled grammars; not tuned
MAX_SCHEMA_CHARACTERS = 65536  # bounds the size of the compiled grammar; not tuned
INSTALL = "pip install --no-deps xgrammar==0.2.8 && pip install apache-tvm-ffi"
# The request's field that requires a grammar, and the grammar's kind and text, see
# ``grammar_worker.compiled``.
Source = tuple[str, str, str]


class UnusableGrammarError(Exception):
    """A grammar cannot be compiled, or exceeds the time limit; the message says why."""


class GrammarPool:
    """Compiles grammars in processes that can be killed. Used in one event loop.

    Compilation is native code in a thread that cannot be stopped, and xgrammar has no time limit. A
    compiled grammar can be sent between processes only as JSON, which is up to 90 times as large
    and slower to convert than most grammars are to compile. So a worker process compiles each
    grammar first, and is killed at the time limit or when the client disconnects. The server then
    compiles a grammar that passed again, in about the same time.

    Each user has an equal share of the memory and compiles one grammar at a time, so that response
    times reveal nothing about other users' grammars. At most ``waiting`` of a user's requests wait.
    """

    def __init__(
        self, vocabulary: Callable[[], Any], seconds: float, users: list[str], waiting: int
    ) -> None:
        self._vocabulary, self._seconds, self._max_waiting = vocabulary, seconds, waiting
        self._kept = {user: _Kept(MAX_KEPT_BYTES // len(users)) for user in users}
        self._turns = {user: asyncio.Lock() for user in users}
        self._waiting = dict.fromkeys(users, 0)
        self._places = asyncio.Semaphore(MAX_WORKERS)
        self._made: tuple[bytes, Any] | None = None  # a worker's first line, and the compiler
        self._idle: list[_Worker] = []
        self.workers: set[_Worker] = set()  # running, busy or idle

    def prepare(self) -> None:
        """Read the vocabulary if xgrammar is installed. It holds the GIL, so do it at the start."""
        if find_spec("xgrammar") is None:
            return
        try:
            import xgrammar

            info = self._vocabulary()
            compiler = xgrammar.GrammarCompiler(info, cache_enabled=False)
            self._made = _line([self._seconds, info.serialize_json()]), compiler
        except Exception as error:  # whatever xgrammar raises about a tokenizer
            logger.warning("xgrammar cannot use the model's tokenizer: %s", str(error))

    async def processor(self, user: str, source: Source) -> Callable[[], Any]:
        """The factory of a logits processor; an ApiError names the field. This can take seconds."""
        param, kind, text = source
        try:
            grammar = await self.compile(user, kind, text)
        except UnusableGrammarError as error:
            what = "grammar" if kind == "grammar" else "schema"
            raise bad(param, f"the {what} cannot be used: {error}") from error
        import xgrammar

        return partial(xgrammar.contrib.hf.LogitsProcessor, grammar)

    async def compile(self, user: str, kind: str, text: str) -> Any:
        """A grammar compiled for a user, see ``grammar_worker``; or an UnusableGrammarError."""
        kept = self._kept[user].get(kind, text)
        if kept is not None:
            return kept
        if self._waiting[user] >= self._max_waiting:
            raise ApiError(429, "too many requests wait for a grammar already", code="queue_full")
        self._waiting[user] += 1
        try:
            async with self._turns[user]:
                kept = self._kept[user].get(kind, text)  # the previous holder may have compiled it
                if kept is None:
                    async with self._places:
                        kept = await self._compile(kind, text)
                    self._kept[user].add(kind, text, kept)
                return kept
        finally:
            self._waiting[user] -= 1

    async def close(self) -> None:
        self._idle.clear()
        for worker in list(self.workers):
            await self._end(worker)

    async def _compile(self, kind: str, text: str) -> Any:
        if self._made is None:
            raise UnusableGrammarError("xgrammar cannot use the model's tokenizer")
        first_line, compiler = self._made
        worker = self._idle.pop() if self._idle else _Worker()
        self.workers.add(worker)
        try:
            await worker.start(first_line)
            async with asyncio.timeout(self._seconds):
                fault = await worker.fault_of(kind, text)
        except BaseException as error:
            await asyncio.shield(self._end(worker))
            if isinstance(error, TimeoutError):
                limit = f"compiling it takes more than {self._seconds:g} seconds, the limit here"
                raise UnusableGrammarError(limit) from error
            raise
        self._idle.append(worker)
        if fault is not None:
            raise UnusableGrammarError(fault)
        compiled = partial(grammar_worker.compiled, compiler, kind, text)
        return await run_sync(compiled, abandon_on_cancel=True)

    async def _end(self, worker: _Worker) -> None:
        await worker.end()
        self.workers.discard(worker)


class _Worker:
    """A worker process that runs ``grammar_worker``."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, first_line: bytes) -> None:
        """Start the process unless it is running. Its imports take some seconds."""
        if self._process is not None and self._process.returncode is None:
            return
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", WORKER_MODULE),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
        )
        if await self._ask(first_line):
            raise RuntimeError("the process that compiles grammars did not start; see the log")

    async def fault_of(self, kind: str, text: str) -> str | None:
        return await self._ask(_line([kind, text]))

    async def end(self) -> None:
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()

    async def _ask(self, line: bytes) -> str | None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line)
            await process.stdin.drain()
            answer = await process.stdout.readline()
        except ConnectionError:
            answer = b""
        if not answer:
            await self.end()
            return "the compiler failed on it"
        fault: str | None = json.loads(answer)
        return fault


def _line(given: list[Any]) -> bytes:
    return json.dumps(given).encode() + b"\n"


class _Kept:
    """Compiled grammars of one user; the least recently used are dropped first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._size = max_bytes, 0
        self._grammars: OrderedDict[tuple[str, str], tuple[Any, int]] = OrderedDict()

    def get(self, kind: str, text: str) -> Any:
        if (kind, text) not in self._grammars:
            return None
        self._grammars.move_to_end((kind, text))
        return self._grammars[kind, text][0]

    def add(self, kind: str, text: str, grammar: Any) -> None:
        size = len(text) + int(grammar.memory_size_bytes)
        self._grammars[kind, text] = grammar, size
        self._size += size
        while self._size > self._max_bytes:
            _, (_, size) = self._grammars.popitem(last=False)
            self._size -= size


def bounded_json(param: str, schema: Any) -> str:
    """The JSON text of a schema, which is written only up to the limit."""
    text = ""
    try:
        for part in json_parts(schema):
            text += part
            message = f"at most {MAX_SCHEMA_CHARACTERS} characters of schema"
            refuse_unless(len(text) <= MAX_SCHEMA_CHARACTERS, param, message)
    except ValueError as error:
        raise bad(param, "the schema has a number that float64 cannot represent") from error
    return text
