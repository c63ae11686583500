"""Runs examples and writes what they print into their docstrings: run it on an idle machine.

    python tests/examples_output.py --model FOLDER [NAME ...]

FOLDER holds SmolLM2-135M-Instruct; ``editor_client`` needs a running ``ngramspec serve``.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import textwrap
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "examples"
OUTPUT = re.compile(r"\A(\"\"\".*?Output on [^:]*::\n\n)(.*?)(\"\"\"\n)", re.DOTALL)
NO_OUTPUT = {"mlx_speed", "vllm_offline"}
NO_MODEL = {"editor_client"}


def wrap(line: str) -> list[str]:
    """A line in parts of at most 95 characters; one that fits is unchanged."""
    return [line] if len(line) <= 95 else textwrap.wrap(line, 95)


def main() -> None:
    """Rewrite the docstrings of the named examples, or of all."""
    names = sorted({path.stem for path in FOLDER.glob("*.py")} - NO_OUTPUT)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("names", nargs="*", default=names, choices=[*names, []])
    options = parser.parse_args()
    for name in options.names:
        path = FOLDER / f"{name}.py"
        model = [] if name in NO_MODEL else ["--model", options.model]
        command = [sys.executable, str(path), *model]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        lines = [wrapped for line in printed.rstrip().splitlines() for wrapped in wrap(line)]
        output = textwrap.indent("\n".join(lines) + "\n", "    ")
        print(name, output, sep="\n")
        found = OUTPUT.match(path.read_text(encoding="utf-8"))
        assert found, f"{path} has no 'Output on …::' in its docstring"
        path.write_text(found[1] + output + found[3] + found.string[found.end() :])


if __name__ == "__main__":
    main()
