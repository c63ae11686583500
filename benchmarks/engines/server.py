"""Servers on this machine, for tests and benchmarks: vLLM, and any command. It needs no torch."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROPOSER = "ngramspec.engines.vllm.NgramspecProposer"
START = 600.0  # seconds to wait for a server
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"


@dataclass
class Server:
    """A running server."""

    url: str
    pid: int
    log: Path

    def processes(self) -> list[int]:
        """It and all that it started."""
        found = [self.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                try:
                    found += [int(each) for each in task.read_text().split()]
                except OSError:
                    continue
        return found

    def memory(self) -> int:
        """Resident bytes of all its processes."""
        total = 0
        for pid in self.processes():
            try:
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except OSError:
                continue
        return total * os.sysconf("SC_PAGE_SIZE")

    def metrics(self) -> dict[str, float]:
        """Its counters by name, labels left out; those of several labels are added."""
        text = urllib.request.urlopen(self.url.removesuffix("/v1") + "/metrics").read().decode()
        found: dict[str, float] = {}
        for name, value in re.findall(r"^(vllm:\w+)(?:\{.*?\})? (\S+)$", text, re.MULTILINE):
            found[name] = found.get(name, 0.0) + float(value)
        return found

    def counts(self) -> dict[str, float]:
        """What ngramspec logged last (``log_every``); {} if nothing yet."""
        lines = re.findall(r"ngramspec (\{.*\})", self.log.read_text(errors="replace"))
        return dict(json.loads(lines[-1])) if lines else {}


def ask_all(
    server: Server, prompts: Sequence[Sequence[int]], at_once: int, tokens: int
) -> dict[str, float]:
    """Figures of greedy answers of ``tokens`` tokens to all prompts, ``at_once`` at a time."""
    import openai

    def ask(prompt: Sequence[int]) -> int:
        out = client.completions.create(
            model="model",
            prompt=list(prompt),
            max_tokens=tokens,
            temperature=0,
            extra_body={"ignore_eos": True},  # the same number of tokens from every method
        )
        return int(out.usage.completion_tokens)

    before = server.metrics()
    with (
        openai.OpenAI(base_url=server.url, api_key="none", timeout=600, max_retries=0) as client,
        ThreadPoolExecutor(at_once) as pool,
    ):
        began = time.perf_counter()
        emitted = sum(pool.map(ask, prompts))
        seconds = time.perf_counter() - began
    after = server.metrics()
    accepted, drafted = (after.get(m, 0.0) - before.get(m, 0.0) for m in (ACCEPTED, DRAFTED))
    row_steps = max(emitted - accepted, 1)
    return {
        "tokens": emitted,
        "seconds": seconds,
        "tokens_per_second": emitted / seconds,
        "tokens_per_row_step": emitted / row_steps,
        "drafted_per_row_step": drafted / row_steps,
    }


def free_port() -> int:
    """A free port."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def environment(cores: str) -> dict[str, str]:
    """The environment of a server bound to ``cores``, as VLLM_CPU_OMP_THREADS_BIND takes them."""
    own = Path(sys.prefix) / "lib"
    libraries = [own / "libiomp5.so", *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")]
    return os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "LD_PRELOAD": ":".join(str(each) for each in libraries if each.exists()),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
    }


@contextmanager
def serve(
    model: Path,
    speculative: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    *arguments: str,
    cores: str = "0",
    log: Path,
    path: Path | None = None,
) -> Iterator[Server]:
    """Run a server, eager and in float32, until the block ends."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
        *("--served-model-name", "model", "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "16"),
        *("--enforce-eager", "--no-enable-prefix-caching", *arguments),
    ]
    if speculative is not None:
        command += ["--speculative-config", json.dumps(speculative)]
    if options is not None:
        command += ["--additional-config", json.dumps({"ngramspec": options})]
    setting = environment(cores)
    if path is not None:
        setting["PYTHONPATH"] = os.pathsep.join(
            [str(path), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
    url = f"http://127.0.0.1:{port}"
    with started(command, f"{url}/health", log, setting) as process:
        yield Server(f"{url}/v1", process.pid, log)


@contextmanager
def started(
    command: Sequence[str], health: str, log: Path, setting: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server, which answers at the address ``health``, until the block ends.

    ``setting`` is its environment (None: this process's). If it does not start within START
    seconds, a RuntimeError quotes the end of its log.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=setting, stdout=out, stderr=out, start_new_session=True
        )
    try:
        _wait(process, health, log)
        yield process
    finally:
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(process: subprocess.Popen[bytes], health: str, log: Path) -> None:
    ends = time.monotonic() + START
    while time.monotonic() < ends:
        if process.poll() is not None:
            break
        try:
            urllib.request.urlopen(health, timeout=5).read()
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"no server: {log.read_text(errors='replace')[-3000:]}")
