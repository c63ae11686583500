"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from ngramspec.cli import Parser, execute
from ngramspec.cli.options import CommandOptions

PROGRAM = "python -m benchmarks"
# A new benchmark is a module and its name in this list.
BENCHMARKS = (
    "figures",
    "alpha",
    "plot",
    "models",
    "summaries",
    "many",
    "rollouts",
    "next_edit",
    "sampled",
    "traces",
    "gpu",
    "replay",
    "agents",
    "drafters",
    "stores",
    "openvino",
    "parity",
    "divergence",
    "editor",
    "engines.llama",
    "engines.vllm_propose",
    "engines.vllm_switched",
)
MODULES = {name.rpartition(".")[2]: f"benchmarks.{name}" for name in BENCHMARKS}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark; see ``ngramspec.cli.main`` for the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    if not given or given[0] not in MODULES:
        print(listing(), file=sys.stderr)
        return 0 if given[:1] in (["-h"], ["--help"]) else 2
    return execute(build_parser(given[0]), given[1:])


def build_parser(name: str) -> Parser:
    """The parser of one benchmark; only its own module is imported."""
    module = import_module(MODULES[name])
    parser = Parser(
        prog=f"{PROGRAM} {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=module.run, prog=parser.prog)
    module.add_arguments(CommandOptions(parser))
    return parser


def listing() -> str:
    """All benchmarks, each with the first line of its docstring; none is imported."""
    lines = [f"usage: {PROGRAM} NAME ...", ""]
    for name, module in MODULES.items():
        path = Path(__file__).parents[1] / f"{module.replace('.', '/')}.py"
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        lines.append(f"  {name:<18}{doc.partition(chr(10))[0]}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
