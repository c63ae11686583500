"""Record what a model generates after your prompts, greedily, for ngramspec replay."""

from __future__ import annotations

import argparse
import sys

from ngramspec.cli.options import Options, check_least, load_model, usable, writable

SUMMARY = "record what a model generates, for replay"


def add_arguments(options: Options) -> None:
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
    from ngramspec import Speculator, build_drafter
    from ngramspec.measure.calls import Measurement
    from ngramspec.measure.traces import RecordingDrafter, read_prompts, record, write_traces

    check_least(arguments, max_new_tokens=2, top_k=0)
    with usable("--prompts"):
        prompts = read_prompts(arguments.prompts)
    loaded = load_model(arguments)
    keeper = RecordingDrafter(build_drafter("auto"), arguments.top_k) if arguments.top_k else None
    measurement = Measurement(loaded, Speculator(keeper or "auto"), arguments.max_new_tokens)

    def encode(text: str) -> list[int]:
        with usable():
            return loaded.encode(text, chat=not arguments.no_chat)

    def generate(ids: list[int]) -> list[int]:
        print(".", end="", flush=True, file=sys.stderr)
        return measurement.speculate(ids)

    with writable("--out", arguments.out):
        take = {} if keeper is None else {"take": keeper.take}
        count = write_traces(arguments.out, record(prompts, encode, generate, **take))
    print(file=sys.stderr)
    print(f"{count} traces of {loaded.name} ({arguments.dtype}) in {arguments.out}")
    return 0
