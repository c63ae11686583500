"""Grammars for xgrammar: cached for each user, and compiled within a time limit."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import multiprocessing
import os
import re
import signal
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any

from anyio.to_thread import run_sync

from ngramspec.server.responses import ApiError, bad, json_parts, refuse_unless

logger = logging.getLogger("ngramspec.server")
SPAWN = multiprocessing.get_context("spawn")
MAX_WORKERS = 2  # processes: a slow grammar must not block other users
MAX_KEPT_BYTES = 64 << 20  # of all users' compiled grammars
MAX_SCHEMA_CHARACTERS = 65536  # bounds the size of the compiled grammar
INSTALL = "pip install --no-deps xgrammar==0.2.8 && pip install apache-tvm-ffi"
# The request's field that requires a grammar, and the grammar's kind and text, see ``compiled``.
GrammarSource = tuple[str, str, str]
# The prefix of xgrammar's error messages: time, place in its source, and sometimes its condition.
SOURCE_LINE = re.compile(r"^\[[\d:]+\] \S+:\d+: (?:Check failed: \(.*\) is false: )?")


class GrammarPool:
    """Compiles grammars in processes that can be killed. Used in one event loop.

    Compilation is native code in a thread that cannot be stopped, and xgrammar has no time limit. A
    compiled grammar can be sent between processes only as JSON, which is up to 90 times as large
    and slower to convert than most grammars are to compile. So a worker process compiles each
    grammar first. It ends at the time limit, and is killed when the client disconnects. The server
    then compiles a grammar that passed again, in about the same time.

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
        self._made: tuple[str, Any] | None = None  # the vocabulary as JSON, and its compiler
        self._transient = False  # whether it is None because of the machine, not the tokenizer
        self._idle: list[_Worker] = []
        self.workers: set[_Worker] = set()  # busy or idle

    def prepare(self) -> None:
        """Read the vocabulary if xgrammar is installed. It holds the GIL, so do it at the start."""
        if find_spec("xgrammar") is None:
            return
        try:
            import xgrammar

            info = self._vocabulary()
            compiler = xgrammar.GrammarCompiler(info, cache_enabled=False)
            self._transient = False
            self._made = info.serialize_json(), compiler
        except Exception as error:  # whatever xgrammar raises about a tokenizer
            from ngramspec.hf_model.compat.devices import is_transient  # workers need no torch

            self._transient = is_transient(error)
            logger.warning("xgrammar cannot use the model's tokenizer: %s", str(error))

    async def processor(self, user: str, source: GrammarSource) -> Callable[[], Any]:
        """The factory of a logits processor; an ApiError names the field. This can take seconds."""
        grammar = await self.compile(user, source)
        import xgrammar

        return partial(xgrammar.contrib.hf.LogitsProcessor, grammar)

    async def compile(self, user: str, source: GrammarSource) -> Any:
        """A grammar compiled for a user, see ``compiled``; or an ApiError."""
        kept = self._kept[user]
        if (found := kept.get(source)) is not None:
            return found
        if self._waiting[user] >= self._max_waiting:
            raise ApiError(429, "too many requests wait for a grammar already", code="queue_full")
        self._waiting[user] += 1
        try:
            async with self._turns[user]:
                found = kept.get(source)  # the previous holder may have compiled it
                if found is None:
                    async with self._places:
                        found = await self._compile(*source)
                    kept.add(source, found)
                return found
        finally:
            self._waiting[user] -= 1

    async def close(self) -> None:
        for worker in list(self.workers):
            await self._end(worker)

    async def _compile(self, param: str, kind: str, text: str) -> Any:
        refused = f"the {'grammar' if kind == 'grammar' else 'schema'} cannot be used"
        if self._made is None and self._transient:
            await run_sync(self.prepare)
        if self._made is None:
            raise bad(param, f"{refused}: xgrammar cannot use the model's tokenizer")
        vocabulary, compiler = self._made
        worker = self._idle.pop() if self._idle else _Worker(self._seconds, vocabulary)
        self.workers.add(worker)
        try:
            fault = await run_sync(worker.fault_of, kind, text, abandon_on_cancel=True)
        except BaseException as error:
            await asyncio.shield(self._end(worker))
            if not isinstance(error, EOFError | OSError):
                raise
            limit = f"compiling it takes more than {self._seconds:g} seconds, the limit here"
            raise bad(param, f"{refused}: {limit}, or the compiler failed on it") from error
        self._idle.append(worker)
        if fault is not None:
            raise bad(param, f"{refused}: {fault}")
        return await run_sync(compiled, compiler, kind, text, abandon_on_cancel=True)

    async def _end(self, worker: _Worker) -> None:
        await run_sync(worker.end)
        self.workers.discard(worker)
        self._idle = [each for each in self._idle if each is not worker]


class _Worker:
    """A process that compiles grammars, and ends itself if one takes too long. Methods block."""

    def __init__(self, seconds: float, vocabulary: str) -> None:
        self._pipe, self._theirs = SPAWN.Pipe()
        given = self._theirs, seconds, vocabulary
        self.process = SPAWN.Process(target=work, args=given, daemon=True)
        self._lock, self._ended = threading.Lock(), False

    def fault_of(self, kind: str, text: str) -> str | None:
        """Why a grammar cannot be used, or None; an error if the process ends."""
        with self._lock:
            if self._ended:
                raise EOFError
            if self.process.pid is None:  # starting it waits for its imports
                self.process.start()
                self._theirs.close()
        self._pipe.send((kind, text))
        fault: str | None = self._pipe.recv()
        return fault

    def end(self) -> None:
        with self._lock:
            self._ended = True
            if self.process.pid is not None:
                self.process.kill()
                self.process.join()


class _Kept:
    """Compiled grammars of one user; the least recently used are dropped first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._size = max_bytes, 0
        self._grammars: OrderedDict[GrammarSource, tuple[Any, int]] = OrderedDict()

    def get(self, source: GrammarSource) -> Any:
        if source not in self._grammars:
            return None
        self._grammars.move_to_end(source)
        return self._grammars[source][0]

    def add(self, source: GrammarSource, grammar: Any) -> None:
        size = len(source[-1]) + int(grammar.memory_size_bytes)
        self._grammars[source] = grammar, size
        self._size += size
        while self._size > self._max_bytes:
            _, (_, size) = self._grammars.popitem(last=False)
            self._size -= size


def compiled(compiler: Any, kind: str, text: str) -> Any:
    """A compiled JSON schema, structural tag, grammar in GBNF, or any JSON ("json")."""
    if kind == "json":
        return compiler.compile_builtin_json_grammar()
    return getattr(compiler, f"compile_{kind}")(text)


def compiler_of(vocabulary: str) -> Any:
    """A worker's compiler for a serialized ``TokenizerInfo``, which uses half of the cores."""
    import xgrammar

    info = xgrammar.TokenizerInfo.deserialize_json(vocabulary)
    threads = max(1, (os.cpu_count() or 1) // 2)
    return xgrammar.GrammarCompiler(info, max_threads=threads, cache_enabled=False)


def work(pipe: Connection, seconds: float, vocabulary: str) -> None:
    """Send for each grammar why it cannot be used, or None, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle
    compiler = compiler_of(vocabulary)
    with suppress(EOFError):
        while True:
            kind, text = pipe.recv()
            # A thread that needs no GIL ends the process, even if the server was killed.
            with open(os.devnull, "w") as nowhere:
                faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
                fault = fault_of(compiler, kind, text)
                faulthandler.cancel_dump_traceback_later()
            pipe.send(fault)


def fault_of(compiler: Any, kind: str, text: str) -> str | None:
    """Why a grammar cannot be used, or None."""
    import xgrammar

    try:
        grammar = compiled(compiler, kind, text)
        allowed = xgrammar.allocate_token_bitmask(1, grammar.tokenizer_info.vocab_size)
        xgrammar.GrammarMatcher(grammar).fill_next_token_bitmask(allowed)
    except Exception as error:  # xgrammar raises errors of several types
        reason = str(error).strip().partition("\n")[0]
        return SOURCE_LINE.sub("", reason)[:500] or type(error).__name__
    return None if allowed.any() else "no text matches it"


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
