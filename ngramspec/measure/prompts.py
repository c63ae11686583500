"""Prompts available on every machine: passages of Python's library, each with a task."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ngramspec.measure.record import Prompt
from ngramspec.measure.texts import modules

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
FUNCTION_LINES = range(8, 25)  # lengths of functions that are used
DOCSTRING_WORDS = range(40, 200)  # lengths of docstrings that are used


def library_prompts(count: int) -> list[Prompt]:
    """``count`` prompts, code and prose in turn, the same for one release of Python.

    A ValueError is raised if the library has too few.
    """
    found = {"code": _prompts("code", CODE_TASKS), "prose": _prompts("prose", PROSE_TASKS)}
    kinds = [*found]
    prompts: list[Prompt] = []
    while len(prompts) < count:
        prompt = next(found[kinds[len(prompts) % 2]], None)
        if prompt is None:
            raise ValueError(f"the library has {len(prompts)} prompts, {count} are needed")
        prompts.append(prompt)
    return prompts


def _prompts(kind: str, tasks: tuple[str, ...]) -> Iterator[Prompt]:
    number = 0
    for source, tree in modules():
        passage = _function(source, tree) if kind == "code" else _docstring(tree)
        if passage is not None:
            task = tasks[number % len(tasks)]
            number += 1
            yield Prompt(kind, str(number), task.format(passage))


def _function(source: str, tree: ast.Module) -> str | None:
    """A module's first function of the right length."""
    for node in tree.body:
        lines = 1 + (node.end_lineno or 0) - node.lineno
        if isinstance(node, ast.FunctionDef) and lines in FUNCTION_LINES:
            return ast.get_source_segment(source, node)
    return None


def _docstring(tree: ast.Module) -> str | None:
    """A module's docstring, if it has the right length."""
    text = ast.get_docstring(tree)
    return text if text is not None and len(text.split()) in DOCSTRING_WORDS else None
