"""Write a model folder whose generate speculates, for from_pretrained and transformers serve."""

from __future__ import annotations

import argparse
import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.cli.options import Options, UsageError, counted

if TYPE_CHECKING:
    from ngramspec.wrap.folder import Group, Wrapped

SUMMARY = "write a model folder whose generate speculates"
UNITS = ("B", "kB", "MB", "GB", "TB")


def add_arguments(options: Options) -> None:
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
    help = "write into an OUT_DIR that is not empty, and replace files of the same names"
    options.flag("--force", help)


def run(arguments: argparse.Namespace) -> int:
    """Write the folder, and print how to use it."""
    from ngramspec.wrap.folder import wrap

    settings = {
        "drafter": arguments.drafter,
        "gamma": arguments.gamma,
        "gamma_max": arguments.gamma_max,
        "policy": arguments.policy,
    } | stores(arguments)
    out = arguments.out_dir.expanduser()
    model = arguments.model_dir.expanduser()
    try:
        wrapped = wrap(model, out, settings, copy=arguments.copy, force=arguments.force)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"cannot read or write {error.filename or out}: {reason}") from error
    except (TypeError, ValueError) as error:
        raise UsageError(str(error).partition("\n")[0]) from error
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
    lines += [f"  weights   {group_line(group)}, {how}" for how, group in wrapped.weights.items()]
    lines.append(f"  others    {group_line(wrapped.others)}, copies")
    lines.append(f"  settings  {settings}")
    lines.append(f"            in {wrapped.folder / 'custom_generate' / 'ngramspec.json'}")
    loader = "AutoModelForSeq2SeqLM" if wrapped.encodes else "AutoModelForCausalLM"
    folder = str(wrapped.folder)
    lines += ["", f"  {loader}.from_pretrained({folder!r}, trust_remote_code=True)"]
    if not wrapped.encodes:
        lines.append(f"  transformers serve {shlex.quote(folder)} --trust-remote-code")
    return "\n".join(lines)


def group_line(group: Group) -> str:
    """The number of files and bytes."""
    power = min(int(math.log10(max(group.bytes, 1))) // 3, len(UNITS) - 1)
    size = group.bytes / 1000**power
    digits = 1 if power and size < 100 else 0
    return f"{counted(group.files, 'file')}, {size:.{digits}f} {UNITS[power]}"
