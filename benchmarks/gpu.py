"""What ngramspec gives on a GPU: on any CUDA machine, without a network.

    python -m benchmarks gpu --json gpu.json                        # 8 billion parameters
    python -m benchmarks gpu --device cpu --tiny --json gpu.json    # small: does it all run?

A model of Llama-3.1-8B's shape with random weights is forced to generate recorded traces, and
random text. Its computation is real, and so is what drafts find in the text. Measured are the cost
of a forward of 1 to 128 positions by context, how often a step waits for the GPU, whole calls of
plain generate, prompt lookup and ngramspec, in turn, and where a step's time goes. Each part is
written to the JSON file as it ends; the error of one that fails is written there too, and the rest
goes on.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from benchmarks.harness import write
from benchmarks.profile import profile
from benchmarks.syncs import syncs_per_step
from benchmarks.traces import PUBLIC
from ngramspec import Speculator
from ngramspec.cli.bench import tables
from ngramspec.cli.options import Options, console
from ngramspec.measure.bench import EndToEnd, Forcing, Plan, by_model, summarize, to_dict
from ngramspec.measure.calls import usual_configurations
from ngramspec.measure.forwards import forced_model, forward_seconds
from ngramspec.measure.tasks import NOTHING, Prompt, unpredictable
from ngramspec.measure.traces import read_traces

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
MAX_POSITIONS = 128
MAX_PROMPT = 2048  # tokens of a trace's prompt that are kept, from its end
COPYING = "edit"


def add_arguments(options: Options) -> None:
    options.json()
    options.path("--traces", "FILE", "what ngramspec record wrote", default=PUBLIC)
    options.text("--device", "DEVICE", "default: cuda", default="cuda")
    options.flag("--tiny", "a tiny model and few repeats")
    options.text("--tasks", "TASK", "only these groups of the traces (default: all)", nargs="+")
    options.count("--per-task", 2, "traces of each task")
    options.count("--new", 64, "tokens of each trace")
    options.count("--repeats", 3, "timed calls of each")
    options.text("--width", "N", "fixed widths", nargs="*", type=int, default=[8, 16])
    options.text("--tree", "N", "trees of N nodes, too", nargs="*", type=int, default=[])
    options.flag("--no-compile", "leave compiled forwards out")
    options.text("--parts", "PART", "only these (default: all)", nargs="+")
    help = "do not use torch's cuDNN attention, which prepares again for every length"
    options.flag("--no-cudnn-attention", help)


def run(arguments: argparse.Namespace) -> int:
    if arguments.no_cudnn_attention:
        torch.backends.cuda.enable_cudnn_sdp(False)
    prompts = texts(arguments)
    model = build(arguments, prompts)
    report: dict[str, Any] = {}
    failed: list[str] = []

    def measure(name: str, part: Callable[[], Any]) -> None:
        if arguments.parts and name not in arguments.parts:
            return
        begin = perf_counter()
        try:
            report[name] = part()
        except Exception:
            report[name] = {"error": traceback.format_exc()}
            failed.append(name)
        print(f"{name}: {perf_counter() - begin:.0f} s", flush=True)
        write(arguments, report)

    with forced_model(model, room(arguments, prompts)) as set_text:
        forcing = by_model(set_text)
        measure("syncs", lambda: syncs(arguments, model, prompts, forcing))
        measure("costs", lambda: costs(arguments, model))
        measure("contenders", lambda: contenders(arguments, model, prompts, forcing))
    measure("profile", lambda: steps(arguments, model, prompts))
    for name in failed:
        print(f"failed: {name}: {report[name]['error'].splitlines()[-1]}", file=sys.stderr)
    return int(bool(failed))


def texts(arguments: argparse.Namespace) -> list[Prompt]:
    """What the model is made to generate: some traces of each group, and random text."""
    chosen: dict[str, list[Prompt]] = {}
    for trace in read_traces(arguments.traces):
        mine = chosen.setdefault(trace.group, [])
        output = trace.output.tolist()[: arguments.new]
        wanted = not arguments.tasks or trace.group in arguments.tasks
        if wanted and len(output) == arguments.new and len(mine) < arguments.per_task:
            ids = tuple(trace.prompt[-MAX_PROMPT:].tolist())
            mine.append(Prompt(trace.group, trace.id, ids, tuple(output)))
    prompts = [prompt for mine in chosen.values() for prompt in mine]
    if not prompts:
        raise SystemExit(f"no trace of these tasks has {arguments.new} tokens of output")
    random = unpredictable(prompts, arguments.new, vocab_of(prompts))
    return [*prompts, *random[: arguments.per_task]]


def vocab_of(prompts: list[Prompt]) -> int:
    """One more than the largest token id."""
    return 1 + max(max(*prompt.ids, *(prompt.text or ())) for prompt in prompts)


def build(arguments: argparse.Namespace, prompts: list[Prompt]) -> Any:
    """The model, with random weights made on its device."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    shape: dict[str, Any] = LLAMA_8B
    if arguments.tiny:
        shape = TINY | {"vocab_size": vocab_of(prompts)}
    config = LlamaConfig(**shape, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    torch.manual_seed(0)
    with torch.device(arguments.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval()


def room(arguments: argparse.Namespace, prompts: list[Prompt]) -> int:
    """Positions of the longest prompt, its text, and drafts and padding after it."""
    longest = max(len(prompt.ids) for prompt in prompts) + arguments.new
    contexts = TINY_CONTEXTS if arguments.tiny else CONTEXTS
    positions: int = max(longest + Speculator().gamma_max, *contexts) + 2 * MAX_POSITIONS
    return positions


def contenders(
    arguments: argparse.Namespace, model: Any, prompts: list[Prompt], forcing: Forcing
) -> dict[str, Any]:
    """Whole calls of every configuration in turn."""
    ways = usual_configurations(
        widths=arguments.width, trees=arguments.tree, chains=True, compiled=not arguments.no_compile
    )
    least = min(24, arguments.new)
    plan = Plan(arguments.repeats, arguments.new, least, arguments.per_task)
    measured = EndToEnd(model, ways, plan, forcing=forcing, progress=print).run(prompts)
    rows = summarize(measured)
    screen = console()
    for table in tables(rows):
        screen.print(table)
    return {"summary": rows, **to_dict(measured)}


def costs(arguments: argparse.Namespace, model: Any) -> dict[int, dict[int, float]]:
    """Seconds of a forward of 1 to 128 positions, by context."""
    contexts = TINY_CONTEXTS if arguments.tiny else CONTEXTS
    found = {}
    for length in contexts:
        widths = range(1, MAX_POSITIONS + 1)
        found[length] = each = forward_seconds(model, length, widths, 2 if arguments.tiny else 7)
        some = [f"{n}: {each[n] / each[1]:.2f}" for n in (2, 4, 8, 16, 32, 64, 128)]
        print(f"cost at {length}: {', '.join(some)}, of {1000 * each[1]:.1f} ms", flush=True)
    return found


def syncs(
    arguments: argparse.Namespace, model: Any, prompts: list[Prompt], forcing: Forcing
) -> list[dict[str, Any]]:
    """How often a step waits for the device."""
    found = []
    for prompt in examples(prompts):
        forcing(prompt)
        counted = syncs_per_step(model, prompt.ids, arguments.new)
        found.append({"task": prompt.task, **counted})
        print(f"syncs a step, {prompt.task}: median {counted['median']}, most {counted['most']}")
    return found


def steps(arguments: argparse.Namespace, model: Any, prompts: list[Prompt]) -> list[dict[str, Any]]:
    """Where a step's time goes."""
    rows = profile(model, examples(prompts), arguments.new, arguments.repeats)
    for row in rows:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in row["share"].items())
        print(f"{row['task']}, {row['way']}, {1000 * row['step_seconds']:.1f} ms a step: {shares}")
    return rows


def examples(prompts: list[Prompt]) -> list[Prompt]:
    """A text that copies, and one with nothing to predict."""
    copying = [prompt for prompt in prompts if prompt.task == COPYING] or prompts
    return [
        replace(copying[0], task=COPYING),
        next(prompt for prompt in prompts if prompt.task == NOTHING),
    ]
