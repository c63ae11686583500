"""Prompts by content type, from Python's own library: alpha depends on repetition in the text.

The types of akunu's chapter on n-gram drafts: natural text, code, structured data, repeated text.
Each prompt is the beginning of a text of its type, to be continued without a chat template.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from itertools import islice

from ngramspec.measure.record import Prompt
from ngramspec.measure.texts import modules

NATURAL, CODE, STRUCTURED, REPEATED = "natural text", "code", "structured data", "repeated text"
TYPES = (NATURAL, CODE, STRUCTURED, REPEATED)
DOCSTRING_WORDS = range(80, 300)  # lengths of docstrings that are used
FUNCTION_LINES = range(12, 60)  # lengths of functions that are used
RECORDS_PER_PROMPT = 6  # of structured data


def content_prompts(count: int) -> list[Prompt]:
    """``count`` prompts of each type, in the order of TYPES; the same for one release of Python.

    A ValueError is raised if the library has too few.
    """
    found: dict[str, list[Prompt]] = {kind: [] for kind in TYPES}
    for number, module in enumerate(modules()):
        for kind, text in _beginnings(module):
            if len(found[kind]) < count:
                found[kind].append(Prompt(kind, str(number), text))
        if all(len(prompts) == count for prompts in found.values()):
            return [prompt for prompts in found.values() for prompt in prompts]
    least = min(len(prompts) for prompts in found.values())
    raise ValueError(f"the library has {least} prompts of each type, {count} are needed")


def _beginnings(module: tuple[str, ast.Module]) -> Iterator[tuple[str, str]]:
    """(type, text) of the prompts from one module."""
    source, tree = module
    prose = ast.get_docstring(tree) or ""
    words = prose.split(" ")
    if len(prose.split()) in DOCSTRING_WORDS:
        yield NATURAL, " ".join(words[: len(words) // 2])
        yield REPEATED, f"{prose}\n\n{prose}\n\n{prose[: len(prose) // 8]}"
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    for node in functions:
        lines = (ast.get_source_segment(source, node) or "").splitlines()
        if len(lines) in FUNCTION_LINES:
            yield CODE, "\n".join(lines[: len(lines) // 2]) + "\n"
            break
    if len(functions) >= RECORDS_PER_PROMPT:
        yield STRUCTURED, _records(list(islice(functions, RECORDS_PER_PROMPT)))


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
