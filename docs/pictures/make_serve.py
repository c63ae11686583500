"""Record the terminal of the page on serving: a server, an editor's requests, and its metrics.

The commands are run, and the picture shows their output. The model is a file of weights that can
fill in the middle. From the root of the repository::

    python docs/pictures/make_serve.py qwen2.5-coder-0.5b.gguf
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from make_demo import FRAME
from rich.console import Console
from rich.text import Text

OUT = Path(__file__).with_name("serve.svg")
WIDTH = 100  # columns
START = 300.0  # seconds to wait for the server
SHAPES = '''\
"""Shapes in the plane."""


class Rectangle:
    """A rectangle with sides parallel to the axes."""

    def __init__(self, width, height):
        self.width = width
        self.height = height

    def area(self):
        """The area of the rectangle."""
        return self.width * self.height

    def perimeter(self):
        """The perimeter of the rectangle."""
        return 2 * (self.width + self.height)

    def scaled(self, factor):
        """A rectangle whose sides are some times as long."""
        return Rectangle(self.width * factor, self.height * factor)


class Square(Rectangle):
    """A rectangle with equal sides."""

    def __init__(self, side):
        super().__init__(side, side)
'''
CLIENT = '''\
from openai import OpenAI
client = OpenAI(base_url="http://127.0.0.1:{port}/v1", api_key="none")
text, square, rest = open("project/shapes.py").read().partition("class Square")
typed = [
    'class Box:\\n    """A box with sides parallel to the axes."""\\n\\n'
    '    def __init__(self, width',
    ', height, depth):\\n        self.width = width\\n        self.height = height\\n'
    '        self.depth = depth\\n\\n    def volume(self):\\n        """The',
    ' volume of the box."""\\n        return self.width * self.height * self.depth\\n\\n'
    '    def scaled(self',
]
for letters in typed:
    text += letters
    shown = ""
    for part in client.completions.create(
        model="any", prompt=text, suffix="\\n\\n\\n" + square + rest, max_tokens=48,
        temperature=0, stop=["\\n\\n"], stream=True, stream_options={{"include_usage": True}},
        extra_body={{"ngramspec": {{"usage": True}}}},
    ):
        shown += part.choices[0].text if part.choices else ""
    print(text.splitlines()[-1] + "|" + shown)
    usage = part.usage
    cached, speed = usage.prompt_tokens_details.cached_tokens, usage.ngramspec["tokens_per_call"]
    print(f"# {{cached}} of {{usage.prompt_tokens}} prompt tokens were cached; "
          + (f"{{speed:.1f}} tokens per forward" if speed else "all drafted with the prompt"))
'''


class Terminal:
    """What a terminal showed, as it happened.

    Args:
        folder: where commands run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[Text] = []

    def command(self, line: str) -> None:
        """Show a command."""
        self.lines.append(Text.assemble(("$ ", "bold green"), (line, "bold")))

    def output(self, text: str) -> None:
        """Show what was printed: remarks dim, what was typed before a cursor in colour."""
        for line in text.splitlines():
            typed, cursor, rest = line.rpartition("|")
            if cursor:
                self.lines.append(Text.assemble((typed, "bold cyan"), ("\u258f", "green"), rest))
            else:
                self.lines.append(Text(line, "dim" if line.startswith("#") else ""))

    def run(self, line: str, *, show: str | None = None, only: str = "") -> None:
        """Run a command, and show it and what it printed.

        Args:
            line: without a shell.
            show: in its place.
            only: a pattern of the lines to show; empty: all of them.
        """
        done = subprocess.run(
            shlex.split(line), cwd=self.folder, env=environment(), text=True, capture_output=True
        )
        if done.returncode:
            raise RuntimeError(f"{line} failed: {done.stderr}")
        self.command(line if show is None else show)
        kept = [each for each in done.stdout.splitlines() if re.search(only, each)]
        self.output("\n".join(kept))
        self.lines.append(Text())

    def picture(self, title: str) -> str:
        """The picture, as SVG."""
        console = Console(
            record=True,
            width=WIDTH,
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
        )
        console.print(*self.lines, sep="\n")
        return console.export_svg(title=title, code_format=FRAME, unique_id="serve")


def environment() -> dict[str, str]:
    """The variables of the commands: this checkout, this Python's folder first."""
    root = Path(__file__).parents[2]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PYTHONPATH": str(root), "PATH": path}


@contextmanager
def served(folder: Path, line: str, port: int) -> Iterator[None]:
    """The server, while it takes requests."""
    with (folder / "serve.log").open("w") as log:
        process = subprocess.Popen(
            shlex.split(line), cwd=folder, env=environment(), stdout=log, stderr=subprocess.STDOUT
        )
        try:
            end = time.monotonic() + START
            while socket.socket().connect_ex(("127.0.0.1", port)):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError((folder / "serve.log").read_text())
                time.sleep(0.2)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def record(folder: Path, weights: Path, port: int) -> Terminal:
    """The session."""
    (folder / weights.name).symlink_to(weights.resolve())
    (folder / "project").mkdir()
    (folder / "project" / "shapes.py").write_text(SHAPES)
    (folder / "type.py").write_text(CLIENT.format(port=port))
    python = shlex.quote(sys.executable)
    terminal = Terminal(folder)
    build = f"corpus build project.ngc project --tokenizer {weights.name}"
    terminal.run(f"{python} -m ngramspec {build}", show=f"ngramspec {build}")
    options = f"{weights.name} --corpus project.ngc --dtype float32 --port {port}"
    terminal.command(f"ngramspec serve {options} &")
    with served(folder, f"{python} -m ngramspec serve {options}", port):
        log = (folder / "serve.log").read_text()
        terminal.output("\n".join(re.findall(r"serving .*|.*running on \S+", log)))
        terminal.lines.append(Text())
        terminal.run(
            f"{python} type.py",
            show="python type.py  # an editor's requests at three of its keystrokes",
        )
        kept = "^ngramspec_(tokens|reused_tokens|target_calls)_total"
        ask = f"curl -s http://127.0.0.1:{port}/metrics"
        terminal.run(ask, show=f"{ask} | grep -E '{kept}'", only=kept)
    return terminal


def main() -> None:
    """Run the session and write the picture."""
    parser = argparse.ArgumentParser(description="record the picture of the server")
    parser.add_argument("weights", type=Path, help="a GGUF file")
    parser.add_argument("--port", type=int, default=8012)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        terminal = record(Path(folder), arguments.weights, arguments.port)
    svg = terminal.picture(f"ngramspec serve {arguments.weights.name}")
    arguments.out.write_text(svg + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
