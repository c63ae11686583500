"""Texts and prompts that every machine has, from the source of Python's library.

``library_prompts`` asks for something to be done with a passage. ``content_prompts`` are beginnings
of texts, to be continued without a chat template, by the types of akunu's chapter on n-gram drafts:
alpha depends on repetition in the text. ``natural`` is a long text to measure structures on.
"""

from __future__ import annotations

import ast
import json
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ngramspec.draft import Int32

CODE_TASKS = (
    "Repeat this function exactly:\n\n{}",
    "Explain what this function does, line by line:\n\n{}",
    "Rewrite this function with a docstring and type hints:\n\n{}",
)
PROSE_TASKS = (
    "Summarize this text in two sentences:\n\n{}",
    "{}\n\nWhat is this text about? Use words of the text in your answer.",
    "Write a list of five points about this text:\n\n{}",
)
TASK_FUNCTION_LINES = range(8, 25)  # lengths of functions in a task
TASK_DOCSTRING_WORDS = range(40, 200)  # lengths of docstrings in a task
NATURAL, CODE, STRUCTURED, REPEATED = "natural text", "code", "structured data", "repeated text"
TYPES = (NATURAL, CODE, STRUCTURED, REPEATED)
DOCSTRING_WORDS = range(80, 300)  # lengths of docstrings that are begun
FUNCTION_LINES = range(12, 60)  # lengths of functions that are begun
RECORDS_PER_PROMPT = 6  # of structured data


class Text(NamedTuple):
    """A text to continue, and the group in which its figures are reported."""

    group: str
    id: str
    text: str


def library() -> Iterator[str]:
    """The source of Python's library, file by file."""
    found: list[Path] = []
    for top in Path(sysconfig.get_path("stdlib")).iterdir():
        if top.name != "site-packages":
            found += top.rglob("*.py") if top.is_dir() else [top] if top.suffix == ".py" else []
    for path in sorted(found):
        try:
            yield path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def _modules() -> Iterator[tuple[str, ast.Module]]:
    """The source and the syntax tree of each file of the library that can be parsed."""
    for source in library():
        try:
            yield source, ast.parse(source)
        except (SyntaxError, ValueError):  # the tests of the parser
            continue


def library_prompts(count: int) -> list[Text]:
    """``count`` prompts, code and prose in turn, the same for one release of Python.

    A ValueError is raised if the library has too few.
    """
    kinds = (_tasks("code", CODE_TASKS), _tasks("prose", PROSE_TASKS))
    prompts: list[Text] = []
    while len(prompts) < count:
        prompt = next(kinds[len(prompts) % 2], None)
        if prompt is None:
            raise ValueError(f"the library has {len(prompts)} prompts, {count} are needed")
        prompts.append(prompt)
    return prompts


def _tasks(kind: str, tasks: tuple[str, ...]) -> Iterator[Text]:
    number = 0
    for source, tree in _modules():
        if kind == "code":
            passage = _function(source, tree, TASK_FUNCTION_LINES)
        else:
            passage = ast.get_docstring(tree)
            if passage is None or len(passage.split()) not in TASK_DOCSTRING_WORDS:
                continue
        if passage is not None:
            task = tasks[number % len(tasks)]
            number += 1
            yield Text(kind, str(number), task.format(passage))


def content_prompts(count: int) -> list[Text]:
    """``count`` prompts of each type, in the order of TYPES; the same for one release of Python.

    A ValueError is raised if the library has too few.
    """
    found: dict[str, list[Text]] = {kind: [] for kind in TYPES}
    for number, (source, tree) in enumerate(_modules()):
        for kind, text in _beginnings(source, tree):
            if len(found[kind]) < count:
                found[kind].append(Text(kind, str(number), text))
        if all(len(prompts) == count for prompts in found.values()):
            return [prompt for prompts in found.values() for prompt in prompts]
    least = min(len(prompts) for prompts in found.values())
    raise ValueError(f"the library has {least} prompts of each type, {count} are needed")


def _beginnings(source: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(type, text) of the prompts from one module."""
    prose = ast.get_docstring(tree) or ""
    words = prose.split(" ")
    if len(prose.split()) in DOCSTRING_WORDS:
        yield NATURAL, " ".join(words[: len(words) // 2])
        yield REPEATED, f"{prose}\n\n{prose}\n\n{prose[: len(prose) // 8]}"
    function = _function(source, tree, FUNCTION_LINES)
    if function is not None:
        lines = function.splitlines()
        yield CODE, "\n".join(lines[: len(lines) // 2]) + "\n"
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if len(functions) >= RECORDS_PER_PROMPT:
        yield STRUCTURED, _records(functions[:RECORDS_PER_PROMPT])


def _function(source: str, tree: ast.Module, lengths: range) -> str | None:
    """A module's first function with one of these numbers of lines."""
    for node in tree.body:
        lines = 1 + (node.end_lineno or 0) - node.lineno
        if isinstance(node, ast.FunctionDef) and lines in lengths:
            return ast.get_source_segment(source, node)
    return None


def _records(functions: list[ast.FunctionDef]) -> str:
    """The beginning of a JSON list that describes functions."""
    records = [
        {
            "name": node.name,
            "kind": "function",
            "line": node.lineno,
            "arguments": [argument.arg for argument in node.args.args],
            "documented": ast.get_docstring(node) is not None,
        }
        for node in functions
    ]
    return json.dumps(records, indent=1)[:-2] + ",\n"  # without the closing bracket


WORDS = re.compile(r"\w+|\n\s*|[^\w\s]")


def natural(n: int) -> Int32:
    """``n`` tokens of the source of Python's own library.

    A token is a word, a punctuation mark or a line's beginning, numbered as they first occur.
    """
    ids: dict[str, int] = {}
    tokens: list[int] = []
    for text in library():
        tokens += [ids.setdefault(word, len(ids)) for word in WORDS.findall(text)]
        if len(tokens) >= n:
            return np.array(tokens[:n], np.int32)
    raise ValueError(f"the library has {len(tokens)} tokens, {n} are needed")
