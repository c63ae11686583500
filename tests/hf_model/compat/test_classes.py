"""transformers' classes and names: every row exists in the installed version, and is used."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from functools import cache
from pathlib import Path

import pytest
import transformers
from packaging.version import Version
from transformers import cache_utils
from transformers_names import (
    CLASS_MODULES,
    CLASSES,
    COMMON_FIELDS,
    FIELDS,
    MODEL_NAMES,
    POSITION_FOLDERS,
    PRIVATE,
    REPLACED,
    Name,
)

import ngramspec
from ngramspec.hf_model.compat import classes, versions
from ngramspec.hf_model.compat.versions import Change

ROOT = Path(ngramspec.__file__).parent
COMPAT = ROOT / "hf_model" / "compat"
TRANSFORMERS = Path(transformers.__file__).parent
CHANGES = [each for each in vars(versions).values() if isinstance(each, Change)]
FIELD_ROWS = [*FIELDS.values(), *REPLACED.values(), *COMMON_FIELDS.values()]
# Other things that have the name of a row, by file.
OTHERS = {
    ("hf_model/inputs/shapes.py", "max_cache_len"): "a setting of a GenerationConfig",
    ("hf_model/cache/kinds.py", "offloading"): "a word of a message",
}


def is_there(row: Name) -> bool:
    """Whether the installed version is in a row's range."""
    from_here = row.since is None or not versions.before(row.since)
    return from_here and (row.until is None or versions.before(row.until))


def source_of(module: str) -> ast.Module:
    return ast.parse((TRANSFORMERS / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))


@cache
def bound_in(module: str) -> set[str]:
    """Names that a module of transformers binds, or sets on an object, or has as parameters."""
    found = set()
    for node in ast.walk(source_of(module)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return found


@pytest.mark.parametrize("row", PRIVATE.values(), ids=lambda row: row.name)
def test_a_private_name_is_where_and_when_the_table_says(row):
    assert (row.name in bound_in(row.where)) == is_there(row)


@cache
def made(name: str) -> object:
    """An empty layer or cache."""
    kind = getattr(cache_utils, name)
    if name == "EncoderDecoderCache":
        return kind(made("DynamicCache"), cache_utils.DynamicCache())
    if name == "StaticCache":
        return kind(transformers.LlamaConfig(num_hidden_layers=1), max_cache_len=8)
    known = {"max_cache_len": 8, "sliding_window": 4}
    wanted = inspect.signature(kind).parameters
    return kind(**{name: value for name, value in known.items() if name in wanted})


@pytest.mark.parametrize("row", FIELD_ROWS, ids=lambda row: row.name)
def test_a_layer_has_its_fields(row):
    for name in row.where.split():
        assert hasattr(made(name), row.name) == is_there(row), name


@pytest.mark.parametrize("row", CLASSES, ids=lambda row: row.name)
def test_a_class_is_where_and_when_the_table_says(row):
    if row.where.startswith("quantizers"):  # its module needs another package
        file = TRANSFORMERS / f"{row.where.replace('.', '/')}.py"
        assert (file.exists() and row.name in bound_in(row.where)) == is_there(row)
        return
    module = importlib.import_module(".".join(["transformers", *filter(None, [row.where])]))
    assert hasattr(module, row.name) == is_there(row)


def test_a_class_is_listed_for_one_reason_where_it_is_refused():
    assert not classes.ONE_AT_A_TIME.keys() & classes.OWN_CACHE.keys()


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_a_model_has_the_name(name):
    files = (TRANSFORMERS / "models").rglob("modeling_*.py")
    assert any(name in path.read_text(encoding="utf-8") for path in files)


def test_the_module_that_captures_states_is_there():
    importlib.import_module(f"transformers.{classes.CAPTURE_MODULE}")


def test_a_version_is_compared_as_packaging_does(monkeypatch):
    for installed, before in {
        "5.18.2": True,
        "5.19.0.dev0": True,  # a pre-release may lack what 5.19.0 has
        "5.19.0": False,
        "5.100.0": False,
    }.items():
        monkeypatch.setattr("transformers.__version__", installed)
        assert versions.before("5.19") is before
        assert versions.has(Change("5.19", "a test")) is not before


def test_no_row_is_older_than_the_oldest_supported_version():
    pyproject = (ROOT.parent / "pyproject.toml").read_text(encoding="utf-8")
    oldest = Version(re.search(r"transformers>=([\d.]+)", pyproject)[1])
    rows = [*PRIVATE.values(), *FIELD_ROWS, *CLASSES]
    stated = [each for row in rows for each in (row.since, row.until) if each is not None]
    stated += [change.version for change in CHANGES]
    assert len(CHANGES) == 3
    assert [each for each in stated if Version(each) <= oldest] == []


# Uses


def literals(tree: ast.AST) -> set[str]:
    """The strings of a module, without docstrings."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    }


def attributes(tree: ast.AST) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def replaced(tree: ast.AST) -> set[str]:
    """Attributes of other objects than ``self`` that a module assigns."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if not (isinstance(node.value, ast.Name) and node.value.id == "self")
    }


def uses(source: str) -> set[str]:
    """Names of the table that a module uses: fields, replaced methods, classes and versions."""
    tree = ast.parse(source)
    words = {row.name for row in CLASSES} | MODEL_NAMES.keys() | FIELDS.keys()
    found = (attributes(tree) & (FIELDS.keys() | MODEL_NAMES.keys())) | (
        replaced(tree) & REPLACED.keys()
    )
    found |= literals(tree) & words
    modules = (classes.CACHE_MODULE, classes.PROCESSOR_MODULE)
    modules += (classes.CRITERION_MODULE, classes.CAPTURE_MODULE)
    found |= {each for each in modules if f"transformers.{each}" in literals(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "transformers":
            found |= {each.name for each in node.names if each.name == "__version__"}
    return found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("layer.record_past = False", {"record_past"}),
        ("getattr(layer, 'indexer_keys', None)", {"indexer_keys"}),
        ("layer.update = f", {"update"}),
        ("layer.update(keys); self.update = f", set()),
        ("'PhimoeForCausalLM' in names", {"PhimoeForCausalLM"}),
        ("kind.__module__ == 'transformers.cache_utils'", {"cache_utils"}),
        ("from transformers import __version__", {"__version__"}),
        ("def f():\n  'record_past'", set()),
        ("from transformers import DynamicCache\nDynamicCache()", set()),
    ],
)
def test_the_rule(source, found):
    assert uses(source) == found


FILES = sorted(path for path in ROOT.rglob("*.py") if not path.is_relative_to(COMPAT))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_table_s_names_are_used_in_compat_only(path):
    file = path.relative_to(ROOT).as_posix()
    allowed = {name for other, name in OTHERS if other == file}
    assert uses(path.read_text(encoding="utf-8")) == allowed, "call a function of hf_model/compat"


def test_every_row_is_used():
    fields = ast.parse((COMPAT / "layers.py").read_text(encoding="utf-8"))
    used = attributes(fields) | literals(fields)
    assert sorted(FIELDS.keys() - used) == []
    assert REPLACED.keys() <= replaced(fields)
    recognized = ast.parse((COMPAT / "classes.py").read_text(encoding="utf-8"))
    assert sorted(MODEL_NAMES.keys() - attributes(recognized) - literals(recognized)) == []
    assert POSITION_FOLDERS.keys() == classes.POSITION_EMBEDDINGS | classes.POSITION_BIASES
    everywhere = "".join(path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py"))
    changes = [name for name, each in vars(versions).items() if isinstance(each, Change)]
    for name in (*changes, *CLASS_MODULES):
        assert everywhere.count(name) > 1
