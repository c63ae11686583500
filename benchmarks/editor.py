"""A person typing through functions of a repository, against servers of the same weights.

    python -m benchmarks editor --json editor.json

The model is in ``build/engines/smollm2``, where ``make test-engines`` writes it. The repository is
the package rich. Both have options.

They are ``ngramspec serve`` and ``transformers serve``; and ``llama_cpp.server``, if the Python of
an environment with ``llama-cpp-python[server]`` is given, and the weights as a GGUF file of the
same type (``--llama-python``, ``--llama-gguf``). It gets as many threads as torch. The functions
are held out: ours drafts from a corpus of the repository without them. Each prompt ends where the
cursor is, and begins at a place that stays the same for a function. Every few characters there is
a request for the rest of the line; each is sent to one server after the other, by the ``openai``
client, greedy, as a stream that ends with the line. Under ``--mode pauses`` a second passes
between two requests and each is answered; under ``--mode typing`` all requests of a burst but its
last are cancelled by the next. Times are of the requests that were answered, from sending to the
first text, and to the end of the line.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import rich
import torch

from benchmarks.harness import write
from ngramspec.cli.options import Options, UsageError
from ngramspec.measure.calls import take_turns

OURS, THEIRS, LLAMA = "ngramspec", "transformers", "llama_cpp"
MODEL, RICH = Path("build/engines/smollm2"), Path(rich.__file__).parent
START = 300.0  # seconds to wait for a server
CONTEXT = 4096  # tokens, of llama.cpp's server; the others have the model's own limit
PAUSE = 1.0  # seconds between requests that are not cancelled


@dataclass(frozen=True)
class Function:
    """A function to type: the text of its file before it, and its own."""

    file: str
    name: str
    before: str
    text: str


@dataclass(frozen=True)
class Answer:
    """One request that was answered; times in seconds."""

    server: str
    function: str
    cursor: int
    text: str
    first: float
    line: float


def add_arguments(options: Options) -> None:
    options.add("--model", type=Path, default=MODEL, help="folder with safetensors")
    options.add("--repository", type=Path, default=RICH, help="folder of Python files")
    options.add("--llama-python", type=Path, help="with llama-cpp-python[server]")
    options.add("--llama-gguf", type=Path, help="the same weights for it")
    options.add("--mode", choices=("pauses", "typing"), default="pauses")
    options.add("--dtype", default="float32")
    options.add("--functions", type=int, default=10)
    options.add("--requests", type=int, default=8, help="answered ones in each function")
    options.add("--burst", type=int, default=4, help="requests of which the last one stays")
    options.add("--gap", type=float, default=0.3, help="seconds until one is cancelled")
    options.add("--context", type=int, default=1500, help="tokens before a function, about")
    options.add("--tokens", type=int, default=32, help="most tokens of a line")
    options.add("--seed", type=int, default=0)
    options.add("--json", type=Path, required=True)


def run(arguments: argparse.Namespace) -> int:
    if (arguments.llama_python is None) != (arguments.llama_gguf is None):
        raise UsageError("--llama-python and --llama-gguf go together")
    functions = choose(arguments)
    with ExitStack() as running:
        servers = start(arguments, functions, running)
        answers = play(arguments, functions, servers)
    report(arguments, answers)
    return 0


def choose(arguments: argparse.Namespace) -> list[Function]:
    """Functions of several lines, each of another file, as the seed has it."""
    found = []
    for path in sorted(arguments.repository.rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="ignore")
        lines = text.splitlines(keepends=True)
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef) or node.end_lineno is None:
                continue
            before = "".join(lines[: node.lineno - 1])
            own = "".join(lines[node.lineno - 1 : node.end_lineno])
            if 8 <= own.count("\n") <= 30 and len(before) > 3 * arguments.context:
                found.append(Function(str(path), node.name, before, own))
    random.Random(arguments.seed).shuffle(found)
    others: dict[str, Function] = {}
    for each in found:
        others.setdefault(each.file, each)
    return list(others.values())[: arguments.functions]


def start(
    arguments: argparse.Namespace, functions: Sequence[Function], running: ExitStack
) -> dict[str, str]:
    """Start the servers: their addresses by name."""
    folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
    rest = folder / "rest"
    own = {each.file: each for each in functions}
    for path in arguments.repository.rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="ignore")
        if str(path) in own:
            text = text.replace(own[str(path)].text, "")
        to = rest / path.relative_to(arguments.repository)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text)
    corpus = folder / "rest.ngc"
    build = ["corpus", "build", str(corpus), str(rest), "--tokenizer", str(arguments.model)]
    subprocess.run([sys.executable, "-m", "ngramspec", *build], check=True, capture_output=True)
    model, dtype = str(arguments.model), arguments.dtype
    ours = [sys.executable, "-m", "ngramspec", "serve", model, "--dtype", dtype]
    ours += ["--corpus", str(corpus), "--name", model]
    theirs = [str(Path(sys.executable).with_name("transformers"))]
    if not Path(theirs[0]).exists():
        theirs = [sys.executable, "-c", "from transformers.cli.transformers import main; main()"]
    theirs += ["serve", model, "--dtype", dtype, "--device", "cpu"]
    servers = {
        OURS: running.enter_context(serving(ours, folder / "ours.log")),
        THEIRS: running.enter_context(serving(theirs, folder / "theirs.log")),
    }
    if arguments.llama_python is not None:
        llama = serving(llama_command(arguments), folder / "llama.log", "/v1/models")
        servers[LLAMA] = running.enter_context(llama)
    return servers


def llama_command(arguments: argparse.Namespace) -> list[str]:
    """llama_cpp.server, with a cache of keys and values as exact as its weights."""
    threads = str(torch.get_num_threads())
    command = [str(arguments.llama_python), "-m", "llama_cpp.server"]
    command += ["--model", str(arguments.llama_gguf), "--n_ctx", str(CONTEXT)]
    command += ["--n_threads", threads, "--n_threads_batch", threads, "--logits_all", "false"]
    if arguments.dtype == "float32":
        command += ["--type_k", "0", "--type_v", "0"]
    return command


@contextmanager
def serving(command: list[str], log: Path, ready: str = "/health") -> Iterator[str]:
    """Run a server until the block ends: its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)], stdout=file, stderr=file
        )
    try:
        deadline = time.monotonic() + START
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{ready}").close()
                break
            except urllib.error.URLError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(log.read_text()) from None
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait()


def play(
    arguments: argparse.Namespace, functions: Sequence[Function], servers: dict[str, str]
) -> list[Answer]:
    """Type through all functions, on one server after the other."""
    import openai

    rng = random.Random(arguments.seed)
    clients = {
        name: openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=300)
        for name, url in servers.items()
    }
    answers: list[Answer] = []
    for client in clients.values():  # what the first request loads is not counted
        ask(client, arguments, "x = 1\ny =", None)
    for number, function in enumerate(functions):
        context = function.before[-4 * arguments.context :]
        bursts = cursors(function, arguments, rng)
        calls = {
            name: partial(type_function, client, name, function, context, bursts, arguments)
            for name, client in clients.items()
        }
        for (found,) in take_turns(calls, 1, warm_up=0, first=number).results.values():
            answers += found
    return answers


def type_function(
    client: Any,
    name: str,
    function: Function,
    context: str,
    bursts: Sequence[Sequence[int]],
    arguments: argparse.Namespace,
) -> list[Answer]:
    """Type through one function on one server: of each burst the last request is answered."""
    answers = []
    for *cancelled, cursor in bursts:
        for at in cancelled:
            ask(client, arguments, context + function.text[:at], arguments.gap)
        text, first, line = ask(client, arguments, context + function.text[:cursor], None)
        answers.append(Answer(name, function.name, cursor, text, first, line))
        print(f"{name:>12} {function.name}@{cursor}: {first:.3f} {line:.3f} {text!r}", flush=True)
        time.sleep(PAUSE)
    return answers


def cursors(
    function: Function, arguments: argparse.Namespace, rng: random.Random
) -> list[list[int]]:
    """Where requests are sent: bursts of places in a function, each 3 to 5 characters further."""
    body = function.text.index("\n") + 1
    size = arguments.burst if arguments.mode == "typing" else 1
    bursts, at = [], body
    for _ in range(arguments.requests):
        burst = []
        for _ in range(size):
            at += rng.randint(3, 5)
            burst.append(min(at, len(function.text) - 1))
        bursts.append(burst)
    return bursts


def ask(
    client: Any, arguments: argparse.Namespace, prompt: str, gap: float | None
) -> tuple[str, float, float]:
    """Ask for the rest of a line: its text, and the seconds to its first text and to its end."""
    started = time.perf_counter()
    settings = {"max_tokens": arguments.tokens, "temperature": 0, "stop": ["\n"]}
    if gap is not None:
        settings["timeout"] = gap
    text, first = "", 0.0
    try:
        stream = client.completions.create(
            model=str(arguments.model), prompt=prompt, stream=True, **settings
        )
        with stream:
            for part in stream:
                piece = part.choices[0].text if part.choices else ""
                if piece and not first:
                    first = time.perf_counter() - started
                text += piece
                if "\n" in text or (gap and time.perf_counter() - started > gap):
                    break
    except Exception as error:
        if gap is None or "imed out" not in str(error):
            raise
    line = time.perf_counter() - started
    if gap is not None:
        time.sleep(max(gap - line, 0.0))
    return text.partition("\n")[0], first or line, line


def report(arguments: argparse.Namespace, answers: Sequence[Answer]) -> None:
    """Print medians, 95th percentiles and their ratios; write all of it."""
    result: dict[str, Any] = {}
    for what in ("first", "line"):
        times: dict[str, list[float]] = {}
        for each in answers:
            times.setdefault(each.server, []).append(getattr(each, what))
        found = {
            name: {"median": statistics.median(several), "p95": p95(several)}
            for name, several in times.items()
        }
        result |= {f"{what}_{name}": figures for name, figures in found.items()}
        ours = found.pop(OURS)
        for name, theirs in found.items():
            result[f"{what}_ratio_{name}"] = {key: theirs[key] / ours[key] for key in ours}
    result["different_texts"] = differences(answers)
    print(json.dumps(result, indent=1))
    write(arguments, {**result, "answers": [asdict(each) for each in answers]})


def differences(answers: Sequence[Answer]) -> list[dict[str, str]]:
    """The answers of all servers where they are different."""
    texts: dict[tuple[str, int], dict[str, str]] = {}
    for each in answers:
        texts.setdefault((each.function, each.cursor), {})[each.server] = each.text
    return [each for each in texts.values() if len(set(each.values())) > 1]


def p95(found: Sequence[float]) -> float:
    """The 95th percentile: the time that one in twenty exceeds."""
    return sorted(found)[min(int(0.95 * len(found)), len(found) - 1)]
