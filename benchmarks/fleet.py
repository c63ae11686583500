"""Two servers that share text through Redis, against each alone and against one shared store.

    python -m benchmarks fleet --json fleet.json    # the agent sessions of the public traces
    python -m benchmarks fleet --traces FILE --tokenizer FOLDER

Sessions go to the servers in turn, and the servers take turns, one turn of a session each. They
rest after every turn, because a real model would take seconds for it. Each server has a drafter
with its own calibration. The redis-server is started here, and reached through a proxy for the
case of a distant one. In the last case it ends after a quarter of the turns.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import zip_longest
from typing import Any

import numpy as np

from benchmarks.agents import TRACES_HELP, summary, tokenizer, turns
from benchmarks.engines.server import free_port
from benchmarks.harness import add_traces, show, write
from benchmarks.traces import PUBLIC
from ngramspec.cli.options import CommandOptions, UsageError, usable
from ngramspec.draft import Int32
from ngramspec.drafters import build_drafter
from ngramspec.measure.replay import Known, Player, ReplayPlan, cost_curve
from ngramspec.measure.traces import Trace
from ngramspec.stores import SharedStore

NAMESPACE, STORE_BYTES, TREE = "fleet", 64 << 20, 64
SERVERS = 2
ALONE, ONE, REDIS, FAR, GONE = "alone", "one store", "Redis", "Redis 50 ms away", "Redis gone"
DELAYS = 20  # documents whose arrival is timed
MAX_WAIT_SECONDS = 5.0


def add_arguments(options: CommandOptions) -> None:
    add_traces(options, TRACES_HELP, PUBLIC)
    options.text("--tokenizer", "FOLDER", "of the traces (default: the embedded model's)")
    options.text("--rest", "S", "seconds after each turn", type=float, default=0.5)
    options.json()


def run(arguments: argparse.Namespace) -> int:
    if shutil.which("redis-server") is None:
        raise UsageError("there is no redis-server; install it (Debian: redis-server)")
    with usable():
        schedule = divided(turns(arguments.traces))
    known = tokenizer(arguments.tokenizer)
    logging.getLogger("ngramspec.stores").setLevel(logging.ERROR)  # Redis ends in each case
    rows = []
    for case in (ALONE, ONE, REDIS, FAR, GONE):
        with stores_of(case, known) as (stores, server):
            ends = len(schedule) // 4 if case == GONE else None
            row = {"case": case, **served(schedule, stores, server, ends, arguments.rest)}
            if case in (REDIS, FAR):
                row["delay_ms"] = delays(stores)
            rows.append(row)
        show(**row)
    write(arguments, {"turns": len(schedule), "rows": rows})
    return 0


def divided(traces: Sequence[Trace]) -> list[tuple[int, Trace]]:
    """The turns in the order of the servers, each with its server: one of each server in turn."""
    sessions = list(dict.fromkeys(trace.session for trace in traces))
    own: list[list[Trace]] = [[] for _ in range(SERVERS)]
    for trace in traces:
        own[sessions.index(trace.session) % SERVERS].append(trace)
    rounds = zip_longest(*own)
    return [(at, each) for turn in rounds for at, each in enumerate(turn) if each is not None]


class InStore(Known):
    """What is in a namespace, to which outputs are added."""

    shares = True

    def __init__(self, store: SharedStore) -> None:
        super().__init__()
        self._namespace = store[NAMESPACE]

    def store(self, which: str) -> Any:
        return self._namespace


def served(
    schedule: Sequence[tuple[int, Trace]],
    stores: Sequence[SharedStore],
    server: subprocess.Popen[bytes] | None,
    ends: int | None,
    rest: float,
) -> dict[str, Any]:
    """Replay the turns on the servers; ``ends``: the turn before which the redis-server ends."""
    plan = ReplayPlan(cost_curve("gpu", TREE), gamma_max=TREE, tree=True)
    players = [Player(build_drafter("auto"), plan, InStore(store)) for store in stores]
    groups: dict[str, Any] = {}
    for player in players:
        player.groups = groups
    for index, (at, trace) in enumerate(schedule):
        if server is not None and index == ends:
            server.kill()
        players[at].play([trace])
        time.sleep(rest)
    found = summary(groups)
    return {**found, "mib": sum(store.sizeof() for store in set(stores)) / 2**20}


def delays(stores: Sequence[SharedStore]) -> float:
    """Median milliseconds until the second server finds what the first has added."""
    writer, reader = (store[NAMESPACE] for store in stores)
    found = []
    for number in range(DELAYS):
        text: Int32 = np.arange(number * 50, number * 50 + 50, dtype=np.int32)[::-1].copy()
        begin = time.perf_counter()
        writer.add(text)
        while not any(length >= 40 for _, length in reader.index.find(text[:45], 4)):
            if time.perf_counter() > begin + MAX_WAIT_SECONDS:
                break
            time.sleep(0.001)
        found.append(time.perf_counter() - begin)
    return 1000 * float(np.median(found))


@contextmanager
def stores_of(
    case: str, known: Any
) -> Iterator[tuple[list[SharedStore], subprocess.Popen[bytes] | None]]:
    """The store of each server, and the redis-server if there is one."""

    def store(sync: str | None = None) -> SharedStore:
        tokens = known if sync is not None else None
        return SharedStore(STORE_BYTES, namespace_bytes=STORE_BYTES, tokenizer=tokens, sync=sync)

    if case == ALONE:
        yield [store() for _ in range(SERVERS)], None
        return
    if case == ONE:
        yield [store()] * SERVERS, None
        return
    with ExitStack() as stack:
        server, port = stack.enter_context(redis_server())
        if case == FAR:
            port = stack.enter_context(distant(port, 0.025))
        stores = [store(f"redis://127.0.0.1:{port}/0") for _ in range(SERVERS)]
        yield stores, server
        for each in stores:
            assert each.sync is not None
            each.sync.close(0.0)


@contextmanager
def redis_server() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A redis-server without files, and its port."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        process = subprocess.Popen([*command, "--dir", folder], stdout=subprocess.DEVNULL)
        try:
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.01)
            yield process, port
        finally:
            process.kill()
            process.wait()


@contextmanager
def distant(port: int, seconds: float) -> Iterator[int]:
    """The port of a proxy that passes everything on ``seconds`` later, in both directions."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", port))
            except OSError:  # one of them is closed
                return
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=pump, args=(source, sink, seconds), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with listener:
        yield int(listener.getsockname()[1])


def pump(source: socket.socket, sink: socket.socket, seconds: float) -> None:
    """Pass bytes on later, until an end closes."""
    with source, sink, suppress(OSError):
        while data := source.recv(1 << 20):
            time.sleep(seconds)
            sink.sendall(data)
