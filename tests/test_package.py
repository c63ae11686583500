"""What importing the package costs, and who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ngramspec

ROOT = Path(ngramspec.__file__).parent
# Each layer may import those before it.
LAYERS = [
    {"errors", "_native", "analysis", "growing"},
    {
        "draft",
        "attention",
        "cache",
        "stopping",
        "reference",
        "holes",
        "adapters",
        "dropout",
        "traits",
    },
    {"reference_value", "checks", "trees", "saved", "stored"},
    {"width", "compiled"},
    {"controller", "drafters", "verify", "target", "ranks"},
    {"choosing", "costs"},
    {"drafting", "group"},
    {"decode", "request"},
    {"prepare"},
    {"speculator"},
    {"hf"},
    {"stand_in"},
    {"__init__"},
    {"bench", "integrations"},
    {"cli"},
    {"__main__"},
]


def test_importing_ngramspec_imports_nothing_optional():
    code = (
        "import sys, ngramspec; bad = {'transformers', 'vllm', 'rich', 'matplotlib', 'scipy',"
        " 'gguf', 'xxhash'} & set(sys.modules); sys.exit(f'imported {bad}' if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _layer(module: str) -> int:
    parts = module.split(".")
    name = parts[1] if len(parts) > 1 else "__init__"
    return next(i for i, layer in enumerate(LAYERS) if name in layer)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_only_downward(path):
    own = ".".join(["ngramspec", *path.relative_to(ROOT).with_suffix("").parts])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ngramspec"):
            assert node.level == 0
            same_folder = node.module.split(".")[:2] == own.split(".")[:2]
            assert same_folder or _layer(node.module) < _layer(own), f"{own} imports {node.module}"


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_transformers_is_imported_lazily_and_only_at_the_boundary(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if any(name.split(".")[0] == "transformers" for name in names):
            if path.parent.name == "cli" and path.name != "__init__.py":
                continue  # a command's own file is imported when the command runs
            assert node not in tree.body, f"{path.name} imports transformers when it is imported"
            bounds = {
                "hf.py",
                "target.py",
                "traits.py",
                "attention.py",
                "cache.py",
                "wrap.py",
                "wrapped.py",
            }
            assert path.name in bounds or path.parent.name == "bench"
