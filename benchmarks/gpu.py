"""What ngramspec gives on a GPU: on any CUDA machine, without a network.

    python -m benchmarks gpu --traces traces.jsonl --out gpu     # 8 billion parameters
    python -m benchmarks gpu --device cpu --tiny --out gpu       # the same, small: does it all run?

A model of Llama-3.1-8B's shape with random weights is forced to generate recorded traces (without
them, a few texts made of Python's own library). Its computation is real, and so is what drafts
find in the text. Measured are (a) whole calls of plain generate, prompt lookup and
ngramspec, in turn; (b) the cost of a forward of 1 to 128 positions by context; (c) where a step's
time goes; (d) SmolLM2 with its own words, if its weights are installed; (e) how often a step waits
for the GPU. Each part is written to the JSON file as it ends; the error of one that fails
is written there too, and the rest goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import torch

from benchmarks.harness import context
from benchmarks.profile import profile
from benchmarks.syncs import syncs_per_step
from benchmarks.texts import natural
from ngramspec import Speculator
from ngramspec.measure.configurations import usual_configurations
from ngramspec.measure.forced import forced_model
from ngramspec.measure.forwards import forward_seconds
from ngramspec.measure.summary import summarize
from ngramspec.measure.tasks import GROUPS, NOTHING, Prompt, of_length, read_tasks, unpredictable
from ngramspec.measure.traces import read_traces
from ngramspec.measure.turns import PLAIN
from ngramspec.measure.whole_calls import (
    EndToEnd,
    Forcing,
    Plan,
    by_model,
    forced_texts,
    to_dict,
)

LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
CONTEXTS, TINY_CONTEXTS = (512, 4096, 32768), (16, 64, 256)
MOST_POSITIONS = 128
LONGEST = 2048  # tokens of a trace's prompt that are kept, from its end
COPYING = "code_edit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.json and plots")
    parser.add_argument("--traces", type=Path, help="outputs that ngramspec record wrote")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and few repeats")
    parser.add_argument("--per-task", type=int, help="traces of each task (default: 2, tiny 1)")
    parser.add_argument("--tasks", nargs="+", help="only these tasks of the traces (default: all)")
    parser.add_argument("--new", type=int, help="tokens of each trace (default: 128, tiny 48)")
    parser.add_argument("--repeats", type=int, help="timed calls of each (default: 3, tiny 1)")
    parser.add_argument("--width", nargs="*", type=int, default=[8, 16], help="fixed widths")
    parser.add_argument("--tree", nargs="*", type=int, default=[], help="trees of N nodes, too")
    parser.add_argument("--no-compile", action="store_true", help="leave compiled forwards out")
    parser.add_argument("--parts", nargs="+", help="only these (default: all)")
    parser.add_argument(
        "--no-cudnn-attention",
        action="store_true",
        help="do not use torch's cuDNN attention, which prepares again for every length",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure part by part; the exit code is 1 if one failed."""
    for name, usual, tiny in (("per_task", 2, 1), ("new", 128, 48), ("repeats", 3, 1)):
        if getattr(arguments, name) is None:
            setattr(arguments, name, tiny if arguments.tiny else usual)
    arguments.out.mkdir(parents=True, exist_ok=True)
    report = context(arguments)

    def save(found: Any) -> None:  # what is known of the first part, in case it is stopped
        report["contenders"] = found
        write(report, arguments)

    if arguments.no_cudnn_attention:
        torch.backends.cuda.enable_cudnn_sdp(False)
    prompts = texts(arguments)
    write(report, arguments)
    model = build(arguments, prompts)
    with forced_model(model, room(arguments, prompts)) as set_text:
        forcing = by_model(set_text)
        parts: dict[str, Callable[[], Any]] = {
            "syncs": lambda: syncs(arguments, model, prompts, forcing),
            "costs": lambda: costs(arguments, model),
            "contenders": lambda: contenders(arguments, model, prompts, forcing, save),
        }
        failed = run_parts(parts, report, arguments)
    parts = {
        "profile": lambda: steps(arguments, model, prompts),
        "smollm2": lambda: smollm2(arguments),
        "plots": lambda: plots(arguments, report),
    }
    failed += run_parts(parts, report, arguments)
    for name in failed:
        print(f"failed: {name}: {report[name]['error'].splitlines()[-1]}", file=sys.stderr)
    print(arguments.out / "gpu.json")
    return int(bool(failed))


def run_parts(
    parts: dict[str, Callable[[], Any]], report: dict[str, Any], arguments: argparse.Namespace
) -> list[str]:
    """Run parts in order; the names of those that failed."""
    return [name for name, part in parts.items() if not run_part(name, part, report, arguments)]


def run_part(
    name: str, part: Callable[[], Any], report: dict[str, Any], arguments: argparse.Namespace
) -> bool:
    """Run a part and write all results so far; return whether it succeeded."""
    if arguments.parts and name not in arguments.parts:
        return True
    begin = perf_counter()
    try:
        report[name] = part()
    except Exception:
        report[name] = {"error": traceback.format_exc()}
    print(f"{name}: {perf_counter() - begin:.0f} s", flush=True)
    write(report, arguments)
    return not (isinstance(report[name], dict) and "error" in report[name])


def write(report: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Write all that is known."""
    text = json.dumps(report, indent=1) + "\n"
    (arguments.out / "gpu.json").write_text(text, encoding="utf-8")


def texts(arguments: argparse.Namespace) -> list[Prompt]:
    """What the model is made to generate: some traces of each group, and random text."""
    found = built_in() if arguments.traces is None else recorded(arguments.traces)
    chosen: dict[str, list[Prompt]] = {}
    for prompt in found:
        if arguments.tasks and prompt.task not in arguments.tasks:
            continue
        mine = chosen.setdefault(prompt.task, [])
        if len(mine) < arguments.per_task and len(prompt.text or ()) >= arguments.new:
            mine.append(replace(prompt, text=(prompt.text or ())[: arguments.new]))
    prompts = [prompt for mine in chosen.values() for prompt in mine]
    if not prompts:
        raise SystemExit(f"no trace of these tasks has {arguments.new} tokens of output")
    vocab = 1 + max(max(*prompt.ids, *(prompt.text or ())) for prompt in prompts)
    random = unpredictable(prompts, arguments.new, vocab)
    return [*prompts, *random[: arguments.per_task]]


def recorded(path: Path) -> list[Prompt]:
    """The traces of a file, by task."""
    return [
        Prompt(
            GROUPS.get(trace.group, trace.group),
            f"{trace.group} {trace.id}",
            tuple(trace.prompt[-LONGEST:].tolist()),
            tuple(trace.output.tolist()),
        )
        for trace in read_traces(path)
    ]


def built_in() -> Iterator[Prompt]:
    """Sources of Python's library, word by word: going on with them, and copying with changes."""
    tokens = natural(40_000).tolist()
    random = Random(0)
    for at in range(0, 36_000, 4000):
        prompt, following = tuple(tokens[at : at + 600]), tuple(tokens[at + 600 : at + 1200])
        changed = tuple(random.choice(prompt) if random.random() < 0.04 else t for t in prompt)
        yield Prompt(COPYING, str(at), prompt, changed)
        yield Prompt("code_completion", str(at), prompt, following)


def build(arguments: argparse.Namespace, prompts: list[Prompt]) -> Any:
    """The model, with random weights made on its device."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    vocab = 1 + max(max(*prompt.ids, *(prompt.text or ())) for prompt in prompts)
    shape: dict[str, Any] = TINY | {"vocab_size": vocab} if arguments.tiny else LLAMA_8B
    config = LlamaConfig(**shape, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    torch.manual_seed(0)
    with torch.device(arguments.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval()


def room(arguments: argparse.Namespace, prompts: list[Prompt]) -> int:
    """Positions of the longest prompt, its text, and drafts and padding after it."""
    longest = max(len(prompt.ids) for prompt in prompts) + arguments.new
    contexts = TINY_CONTEXTS if arguments.tiny else CONTEXTS
    most: int = max(longest + Speculator().gamma_max, *contexts) + 2 * MOST_POSITIONS
    return most


def contenders(
    arguments: argparse.Namespace,
    model: Any,
    prompts: list[Prompt],
    forcing: Forcing,
    save: Callable[[Any], None],
) -> Any:
    """(a) Whole calls of every configuration in turn."""
    ways = usual_configurations(
        widths=arguments.width,
        trees=arguments.tree,
        chains=True,
        compiled=not arguments.no_compile,
    )
    least = min(48, arguments.new)
    plan = Plan(arguments.repeats, arguments.new, least, arguments.per_task)
    found: dict[str, Any] = {"ways": [asdict(way) for way in ways]}

    class Saving(EndToEnd):
        """Saves what is known after each task."""

        def measure(self, key: tuple[str, int | None], candidates: Sequence[Prompt]) -> None:
            super().measure(key, candidates)
            rows = summarize(self.measured)
            found.update({"summary": rows, "against": against(rows), **to_dict(self.measured)})
            save(found)

    measured = Saving(model, ways, plan, forcing=forcing, progress=print).run(prompts)
    show(found["summary"])
    for way, reason in measured.skipped.items():
        print(f"skipped: {way}: {reason}")
    return found


def against(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fastest ngramspec of each task against the fastest baseline and prompt lookup."""

    def fastest(task: str, name: str) -> dict[str, Any] | None:
        mine = [row for row in rows if row["task"] == task and row["way"].startswith(name)]
        return max(mine, key=lambda row: row["tokens_per_second"], default=None)

    found = []
    for task in dict.fromkeys(row["task"] for row in rows):
        ours, plain, lookup = (fastest(task, n) for n in ("ngramspec", PLAIN, "prompt lookup"))
        if ours and plain and lookup:
            speed = ours["tokens_per_second"]
            found.append(
                {
                    "task": task,
                    "ngramspec": ours["way"],
                    "plain": plain["way"],
                    "lookup": lookup["way"],
                    "to_plain": speed / plain["tokens_per_second"],
                    "to_lookup": speed / lookup["tokens_per_second"],
                }
            )
    return found


def costs(arguments: argparse.Namespace, model: Any) -> Any:
    """(b) Seconds of a forward of 1 to 128 positions, by context."""
    contexts = TINY_CONTEXTS if arguments.tiny else CONTEXTS
    positions = range(1, MOST_POSITIONS + 1)
    repeats = 2 if arguments.tiny else 7
    found = {}
    for length in contexts:
        found[length] = each = forward_seconds(model, length, positions, repeats)
        some = [f"{n}: {each[n] / each[1]:.2f}" for n in (2, 4, 8, 16, 32, 64, 128)]
        print(f"cost at {length}: {', '.join(some)}, of {1000 * each[1]:.1f} ms", flush=True)
    return found


def syncs(
    arguments: argparse.Namespace, model: Any, prompts: list[Prompt], forcing: Forcing
) -> Any:
    """(e) How often a step waits for the device."""
    found = []
    for prompt in examples(prompts):
        forcing(prompt)
        counted = syncs_per_step(model, prompt.ids, arguments.new)
        found.append({"task": prompt.task, **counted})
        print(f"syncs a step, {prompt.task}: median {counted['median']}, most {counted['most']}")
    return found


def steps(arguments: argparse.Namespace, model: Any, prompts: list[Prompt]) -> Any:
    """(c) Where a step's time goes."""
    rows = profile(model, examples(prompts), arguments.new, arguments.repeats)
    for row in rows:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in row["share"].items())
        print(f"{row['task']}, {row['way']}, {1000 * row['step_seconds']:.1f} ms a step: {shares}")
    return rows


def plots(arguments: argparse.Namespace, report: dict[str, Any]) -> Any:
    """Plots of what was measured; they need matplotlib."""
    try:
        from benchmarks.plots import plot_costs
        from ngramspec.measure.plots import plot_e2e
    except ModuleNotFoundError as error:
        print(f"skipped: plots: {error}; pip install 'ngramspec[plots]'")
        return {"skipped": str(error)}
    if "summary" in report.get("contenders", {}):
        plot_e2e(report["contenders"]["summary"], arguments.out)
    if "costs" in report and "error" not in report["costs"]:
        plot_costs(report["costs"], arguments.out, "cost")
    return {}


def examples(prompts: list[Prompt]) -> list[Prompt]:
    """A text that copies, and one with nothing to predict."""
    copying = [prompt for prompt in prompts if prompt.task == COPYING] or prompts
    return [copying[0], next(prompt for prompt in prompts if prompt.task == NOTHING)]


def smollm2(arguments: argparse.Namespace) -> Any:
    """(d) SmolLM2 with its own text, if its weights are installed."""
    from ngramspec.measure.models import load, locate
    from ngramspec.measure.tasks import sample_prompts

    try:
        locate(None)
    except ModuleNotFoundError as error:
        print(f"skipped: smollm2: {error}")
        return {"skipped": str(error)}
    loaded = load(None, "bfloat16")
    loaded.model.to(arguments.device)
    prompts = sample_prompts(loaded)
    if arguments.traces is not None:
        prompts = of_length(read_tasks(arguments.traces, loaded.tokenizer.encode))
    if arguments.tiny:
        prompts = prompts[:1]
    prompts = [replace(prompt, text=None) for prompt in prompts]
    vocab = loaded.model.config.vocab_size
    prompts += unpredictable(prompts, arguments.new, vocab, [loaded.tokenizer.eos_token_id])
    ways = usual_configurations(
        widths=arguments.width,
        trees=arguments.tree,
        chains=True,
        compiled=not (arguments.no_compile or arguments.tiny),
    )
    plan = Plan(arguments.repeats, arguments.new, min(48, arguments.new), arguments.per_task)
    with forced_texts(loaded.model, prompts, plan) as forcing:
        compared = EndToEnd(loaded.model, ways, plan, forcing=forcing, progress=print)
        measured = compared.run(prompts)
    rows = summarize(measured)
    show(rows)
    return {"summary": rows, "against": against(rows), **to_dict(measured)}


def show(rows: list[dict[str, Any]]) -> None:
    """Print a line for each task and configuration."""
    head = f"{'tokens/s':>10}{'speedup':>10}{'tok/call':>10}{'of limit':>10}{'same':>8}"
    print(f"{'':<20}{'':<32}{head}")
    for row in rows:
        share = "-" if row["limit_share"] is None else f"{row['limit_share']:.1%}"
        per_call = "-" if row["tokens_per_call"] is None else f"{row['tokens_per_call']:.2f}"
        same = f"{row['same']}/{row['prompts']}"
        print(
            f"{row['task']:<20}{row['way']:<32}{row['tokens_per_second']:>10.1f}"
            f"{row['ratio']:>10.3f}{per_call:>10}{share:>10}{same:>8}"
        )
