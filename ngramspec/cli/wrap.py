"""Write a model folder whose generate speculates, for from_pretrained and transformers serve."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.cli.options import CommandOptions, counted, usable

if TYPE_CHECKING:
    from ngramspec.wrap.wrapped import Wrapped

SUMMARY = "write a model folder whose generate speculates"


def add_arguments(options: CommandOptions) -> None:
    """Declare the command's arguments."""
    options.path("model_dir", "MODEL_DIR", "folder with config.json and weights; it is only read")
    options.path("out_dir", "OUT_DIR", "a new or empty folder")
    options.drafter()
    options.policy()
    options.gamma()
    options.count("--gamma-max", 64, "maximum draft tokens per step")
    options.add(
        "--shared",
        nargs="?",
        const="outputs",
        choices=("outputs", "all"),
        help="share a store of earlier outputs, or with all: also of prompts, between all requests."
        " Clients who can time requests can infer some of its contents",
    )
    options.repeated("--corpus", "FILE", "a corpus to draft from; may be repeated", type=Path)
    options.flag(
        "--copy",
        "copy the weights instead of linking them. If OUT_DIR's weights are links, overwriting them"
        " overwrites MODEL_DIR's",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the folder, and print how to use it."""
    from ngramspec.wrap.wrapped import wrap

    settings = {
        "drafter": arguments.drafter,
        "gamma": arguments.gamma,
        "gamma_max": arguments.gamma_max,
        "policy": arguments.policy,
    } | stores(arguments)
    out = arguments.out_dir.expanduser()
    model = arguments.model_dir.expanduser()
    with usable():
        wrapped = wrap(model, out, settings, copy=arguments.copy)
    print(summary(wrapped))
    return 0


def stores(arguments: argparse.Namespace) -> dict[str, Any]:
    """The Speculator's stores, if any."""
    chosen: list[Any] = [str(path.expanduser().absolute()) for path in arguments.corpus or ()]
    if arguments.shared is not None:
        chosen.append({"namespace": "default", "write": arguments.shared})
    return {"stores": chosen} if chosen else {}


def summary(wrapped: Wrapped) -> str:
    """The contents of the folder, and the commands to use it."""
    settings = ", ".join(f"{name} {value}" for name, value in wrapped.settings.items())
    lines = [f"{wrapped.folder}: {wrapped.model}, speculative"]
    lines += [f"  weights   {counted(n, 'file')}, {how}" for how, n in wrapped.weights.items()]
    lines.append(f"  settings  {settings}")
    lines.append(f"            in {wrapped.folder / 'custom_generate' / 'ngramspec.json'}")
    loader = "AutoModelForSeq2SeqLM" if wrapped.encodes else "AutoModelForCausalLM"
    folder = str(wrapped.folder)
    lines += ["", f"  {loader}.from_pretrained({folder!r}, trust_remote_code=True)"]
    if not wrapped.encodes:
        lines.append(f"  transformers serve {shlex.quote(folder)} --trust-remote-code")
    lines.append("  without trust_remote_code, the model generates without speculation")
    return "\n".join(lines)
