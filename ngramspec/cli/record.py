"""Record what a model generates after your prompts, greedily, for ngramspec replay."""

from __future__ import annotations

import argparse
import sys
from itertools import starmap
from typing import TYPE_CHECKING

from ngramspec.cli.options import CommandOptions, check_least, counted, load_model, usable, writable

if TYPE_CHECKING:
    from ngramspec.measure.tasks import Prompt
    from ngramspec.measure.traces import Trace

SUMMARY = "record what a model generates, for replay"


def add_arguments(options: CommandOptions) -> None:
    """Declare the options."""
    help = 'JSON lines: texts, or {"prompt": ..., "group": ..., "id": ...}'
    options.path("--prompts", "FILE", help, required=True)
    options.path("--out", "FILE", "file to write the traces to", required=True)
    options.model()
    options.count("--max-new-tokens", 256, "maximum new tokens of each trace")
    options.count("--top-k", 0, "record the N most probable tokens at each position")
    options.flag("--no-chat", "continue the prompts as text, without the chat template")


def run(arguments: argparse.Namespace) -> int:
    """Load the model and write a trace for each prompt."""
    import numpy as np

    from ngramspec import Speculator
    from ngramspec.measure.calls import Configuration, ModelCaller
    from ngramspec.measure.forwards import top_tokens
    from ngramspec.measure.tasks import check_prompts, prompts_of
    from ngramspec.measure.traces import Trace, write_traces

    check_least(arguments, max_new_tokens=2, top_k=0)
    loaded = load_model(arguments)
    with usable("--prompts"):
        prompts = prompts_of(loaded, arguments.prompts, chat=not arguments.no_chat)
        check_prompts(loaded, prompts, arguments.max_new_tokens)
    speculator = Speculator(unsupported="plain")
    caller, ours = ModelCaller(loaded.model), Configuration("ngramspec", speculator=speculator)

    end = "\r" if sys.stderr.isatty() else "\n"

    def recorded(number: int, prompt: Prompt) -> Trace:
        print(f"prompt {number} of {len(prompts)}", end=end, flush=True, file=sys.stderr)
        output = caller.call(ours, prompt.ids, arguments.max_new_tokens).tokens
        k = arguments.top_k
        top = top_tokens(loaded.model, prompt.ids, output, k) if k else None
        ids, text = np.array(prompt.ids, np.int32), np.array(output, np.int32)
        return Trace(prompt.task, prompt.id, ids, text, top_tokens=top)

    with writable("--out", arguments.out):
        count = write_traces(arguments.out, starmap(recorded, enumerate(prompts, 1)))
    print(f"{counted(count, 'trace')} of {loaded.name} ({arguments.dtype}) in {arguments.out}")
    return 0
