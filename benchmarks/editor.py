"""A person typing through functions of a repository, against servers of the same weights.

    python -m benchmarks editor --json editor.json

The model is in ``build/engines/smollm2``, where ``make test-engines`` writes it. The repository is
the package rich. Both have options.

They are ``ngramspec serve`` and ``transformers serve``; and ``llama_cpp.server``, if the Python of
an environment with ``llama-cpp-python[server]`` is given, and the weights as a GGUF file of the
same type (``--llama-python``, ``--llama-gguf``). It gets as many threads as torch. The functions
are held out: ours drafts from a corpus of the repository without them, and is also asked without
the corpus and without drafts, each with separate keys and caches. Each prompt ends
where the cursor is, and begins at a place that stays the same for a function; under ``--infill``
the text after the function follows, in the format of Qwen2.5-Coder. Every few characters there is
a request for the rest of the line, or with ``--until block`` up to an empty one; each is sent to
one server after the other, by the ``openai`` client, greedy, as a stream that ends there. Under
``--mode pauses`` there is a pause between two requests and each is answered; under ``undo`` each
second one goes back to the place before; under ``typing`` all requests of a burst but its last are
cancelled by the next. Times are of the requests that were answered, from sending to the first
text, and to the end. ``right`` counts those that are equal to the rest of the file's line.
Functions that the file of results has already are left out, so a run can be continued.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import rich
import torch

from benchmarks.engines.server import free_port, started
from benchmarks.harness import write, written
from benchmarks.renderers import editor
from ngramspec.cli.options import CommandOptions, UsageError
from ngramspec.measure.calls import take_turns
from ngramspec.server.prompts import FIM

OURS, THEIRS, LLAMA = "ngramspec", "transformers", "llama_cpp"
EXTRAS: dict[str, dict[str, Any]] = {  # of requests to our server, by the way they are reported
    OURS: {},
    f"{OURS}, no corpus": {"stores": []},
    f"{OURS}, no drafts": {"speculate": False},
}
STOPS = {"line": "\n", "block": "\n\n"}
MODEL, RICH = Path("build/engines/smollm2"), Path(rich.__file__).parent
CONTEXT = 4096  # tokens, of llama.cpp's server; the others have the model's own limit
PAUSE = 0.25  # seconds between requests that are not cancelled
Ask = Callable[[str, float | None], tuple[str, float, float]]  # of a prompt and a gap


@dataclass(frozen=True)
class Function:
    """A function to type: its own text, and that of its file before and after it."""

    file: str
    name: str
    before: str
    text: str
    after: str


@dataclass(frozen=True)
class Server:
    """Where requests go, with which key, and what our server's extension says."""

    url: str
    key: str = "none"
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """One request that was answered; times in seconds."""

    server: str
    function: str
    cursor: int
    text: str
    first: float
    line: float
    right: bool = False  # whether it is the rest of the file's line


def add_arguments(options: CommandOptions) -> None:
    options.add("--model", type=Path, default=MODEL, help="folder with safetensors")
    options.add("--repository", type=Path, default=RICH, help="folder of Python files")
    options.add("--llama-python", type=Path, help="with llama-cpp-python[server]")
    options.add("--llama-gguf", type=Path, help="the same weights for it")
    options.add("--mode", choices=("pauses", "typing", "undo"), default="pauses")
    options.flag("--infill", "fill in the middle, in Qwen2.5-Coder's format")
    options.add("--until", choices=STOPS, default="line")
    options.add("--only", nargs="+", help="ask only these servers")
    options.add("--seconds", type=float, default=float("inf"), help="begin no function after them")
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
    answers = [Answer(**each) for each in written(arguments, "answers")]
    known = {each.function for each in answers}
    with ExitStack() as running:
        servers = start(arguments, functions, running)
        answers += play(arguments, [each for each in functions if each.name not in known], servers)
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
                after = "".join(lines[node.end_lineno :])
                name = f"{path.relative_to(arguments.repository)}:{node.name}"
                found.append(Function(str(path), name, before, own, after))
    random.Random(arguments.seed).shuffle(found)
    others: dict[str, Function] = {}
    for each in found:
        others.setdefault(each.file, each)
    return list(others.values())[: arguments.functions]


def start(
    arguments: argparse.Namespace, functions: Sequence[Function], running: ExitStack
) -> dict[str, Server]:
    """Start the servers: by the name under which they are reported."""
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
    ours += [word for at in range(len(EXTRAS)) for word in ("--api-key", f"{at}=key{at}")]
    theirs = [str(Path(sys.executable).with_name("transformers"))]
    if not Path(theirs[0]).exists():
        theirs = [sys.executable, "-c", "from transformers.cli.transformers import main; main()"]
    theirs += ["serve", model, "--dtype", dtype, "--device", "cpu"]
    only = arguments.only or (*EXTRAS, THEIRS, LLAMA)
    url = running.enter_context(serving(ours, folder / "ours.log"))
    servers = {
        name: Server(url, f"key{at}", {"ngramspec": extra})
        for at, (name, extra) in enumerate(EXTRAS.items())
        if name in only
    }
    if THEIRS in only:
        servers[THEIRS] = Server(running.enter_context(serving(theirs, folder / "theirs.log")))
    if arguments.llama_python is not None:
        llama = serving(llama_command(arguments), folder / "llama.log", "/v1/models")
        servers[LLAMA] = Server(running.enter_context(llama))
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
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with started([*command, "--host", "127.0.0.1", "--port", str(port)], url + ready, log):
        yield f"{url}/v1"


def play(
    arguments: argparse.Namespace, functions: Sequence[Function], servers: dict[str, Server]
) -> list[Answer]:
    """Type through the functions, on one server after the other."""
    import openai

    begun = time.monotonic()
    asks = {
        name: partial(
            ask,
            openai.OpenAI(base_url=each.url, api_key=each.key, max_retries=0, timeout=300),
            each.extra,
            arguments,
        )
        for name, each in servers.items()
    }
    answers: list[Answer] = []
    for each in asks.values():  # what the first request loads is not counted
        each("x = 1\ny =", None)
    for number, function in enumerate(functions):
        if time.monotonic() - begun > arguments.seconds:
            print("not done: run it again")
            break
        rng = random.Random(f"{arguments.seed} {function.name}")
        bursts = cursors(function, arguments, rng)
        calls = {
            name: partial(type_function, each, name, function, bursts, arguments)
            for name, each in asks.items()
        }
        for (found,) in take_turns(calls, 1, warm_up=0, first=number).results.values():
            answers += found
    return answers


def type_function(
    ask: Ask,
    name: str,
    function: Function,
    bursts: Sequence[Sequence[int]],
    arguments: argparse.Namespace,
) -> list[Answer]:
    """Type through one function on one server: of each burst the last request is answered."""
    before, after = function.before[-4 * arguments.context :], function.after[: arguments.context]

    def prompt(at: int) -> str:
        typed = before + function.text[:at]
        return FIM.format(prefix=typed, suffix=after) if arguments.infill else typed

    answers = []
    for *cancelled, cursor in bursts:
        for at in cancelled:
            ask(prompt(at), arguments.gap)
        text, first, line = ask(prompt(cursor), None)
        right = text.partition("\n")[0] == function.text[cursor:].partition("\n")[0]
        answers.append(Answer(name, function.name, cursor, text, first, line, right))
        print(f"{name:>12} {function.name}@{cursor}: {first:.3f} {line:.3f} {text!r}", flush=True)
        time.sleep(PAUSE)
    return answers


def cursors(
    function: Function, arguments: argparse.Namespace, rng: random.Random
) -> list[list[int]]:
    """Bursts of places, each 3 to 5 characters further, from the first half of a body on."""
    body = function.text.index("\n") + 1
    size = arguments.burst if arguments.mode == "typing" else 1
    bursts, at = [], rng.randrange(body, (body + len(function.text)) // 2)
    for _ in range(arguments.requests):
        burst = []
        for _ in range(size):
            at += rng.randint(3, 5)
            burst.append(min(at, len(function.text) - 1))
        bursts.append(burst)
    if arguments.mode == "undo":
        return [each for pair in pairwise(bursts) for each in pair[::-1]]
    return bursts


def ask(
    client: Any,
    extra: dict[str, Any],
    arguments: argparse.Namespace,
    prompt: str,
    gap: float | None,
) -> tuple[str, float, float]:
    """Ask for what follows: its text, and the seconds to its first text and to its end."""
    started, stop = time.perf_counter(), STOPS[arguments.until]
    settings: dict[str, Any] = {"max_tokens": arguments.tokens, "temperature": 0, "stop": [stop]}
    if gap is not None:
        settings["timeout"] = gap
    text, first = "", 0.0
    try:
        stream = client.completions.create(
            model=str(arguments.model), prompt=prompt, stream=True, extra_body=extra, **settings
        )
        with stream:
            for part in stream:
                piece = part.choices[0].text if part.choices else ""
                if piece and not first:
                    first = time.perf_counter() - started
                text += piece
                if stop in text or (gap and time.perf_counter() - started > gap):
                    break
    except Exception as error:
        if gap is None or "imed out" not in str(error):
            raise
    line = time.perf_counter() - started
    if gap is not None:
        time.sleep(max(gap - line, 0.0))
    return text.partition(stop)[0], first or line, line


def report(arguments: argparse.Namespace, answers: Sequence[Answer]) -> None:
    """Write all answers, what was right, and the texts that differ; print the table."""
    right = Counter(each.server for each in answers if each.right)
    found = {"right": right, "different_texts": differences(answers)}
    write(arguments, {**found, "answers": [asdict(each) for each in answers]})
    print(editor(json.loads(arguments.json.read_text(encoding="utf-8"))))


def differences(answers: Sequence[Answer]) -> list[dict[str, str]]:
    """The answers of all servers where they are different."""
    texts: dict[tuple[str, int], dict[str, str]] = {}
    for each in answers:
        texts.setdefault((each.function, each.cursor), {})[each.server] = each.text
    return [each for each in texts.values() if len(set(each.values())) > 1]
