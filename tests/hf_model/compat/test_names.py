"""transformers' names: they exist in the installed version, and only compat knows them."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import transformers
from packaging.version import Version
from transformers import GenerationConfig, cache_utils
from transformers_names import (
    CLASS_MODULES,
    CLASSES,
    COMMON_FIELDS,
    FIELDS,
    MODEL_NAMES,
    PRIVATE,
    REPLACED,
    Name,
    modules_of_models,
)

import ngramspec
from ngramspec.hf_model.compat import (
    caches,
    configs,
    forwards,
    models,
    package,
    positions,
    resources,
)
from ngramspec.hf_model.compat.package import MARKS_CACHES, Change, has
from ngramspec.options import Options

ROOT = Path(ngramspec.__file__).parent
COMPAT = ROOT / "hf_model" / "compat"
KINDS = ROOT / "hf_model" / "cache"  # the kinds of cache layers know the fields of these
TRANSFORMERS = Path(transformers.__file__).parent
CHANGES = {name: each for name, each in vars(package).items() if isinstance(each, Change)}
FIELD_ROWS = [*FIELDS.values(), *REPLACED.values(), *COMMON_FIELDS.values()]
FILES = sorted(path for path in ROOT.rglob("*.py") if not path.is_relative_to(COMPAT))


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


# The table and the installed version


def is_there(row: Name) -> bool:
    """Whether the installed version is in a row's range."""
    from_here = row.since is None or not package.before(row.since)
    return from_here and (row.until is None or package.before(row.until))


@cache
def bound_in(module: str) -> set[str]:
    """Names that a module of transformers binds, or sets on an object, or has as parameters."""
    found = set()
    for node in ast.walk(tree_of(TRANSFORMERS / f"{module.replace('.', '/')}.py")):
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
    assert not models.ONE_AT_A_TIME.keys() & models.OWN_CACHE.keys()


def test_models_have_the_names():
    files = (TRANSFORMERS / "models").rglob("modeling_*.py")
    whole = "".join(path.read_text(encoding="utf-8") for path in files)
    assert [name for name in MODEL_NAMES if name not in whole] == []
    computed = positions.POSITION_EMBEDDINGS | positions.POSITION_BIASES
    assert computed - modules_of_models().keys() == set()


def test_the_module_that_captures_states_is_there():
    importlib.import_module(f"transformers.{package.CAPTURE_MODULE}")


def test_a_version_is_compared_as_packaging_does(monkeypatch):
    for installed, before in {
        "5.18.2": True,
        "5.19.0.dev0": True,  # a pre-release may lack what 5.19.0 has
        "5.19.0": False,
        "5.100.0": False,
    }.items():
        monkeypatch.setattr("transformers.__version__", installed)
        assert package.before("5.19") is before
        assert package.has(Change("5.19", "a test")) is not before


def test_no_row_is_older_than_the_oldest_supported_version():
    pyproject = (ROOT.parent / "pyproject.toml").read_text(encoding="utf-8")
    oldest = Version(re.search(r"transformers>=([\d.]+)", pyproject)[1])
    rows = [*PRIVATE.values(), *FIELD_ROWS, *CLASSES]
    stated = [each for row in rows for each in (row.since, row.until) if each is not None]
    stated += [change.version for change in CHANGES.values()]
    assert len(CHANGES) == 3
    assert [each for each in stated if Version(each) <= oldest] == []


def test_what_a_version_lacks_has_a_default():
    nothing = SimpleNamespace()
    assert caches.is_callers(nothing) is not has(MARKS_CACHES)
    assert configs.mask_length(nothing) is None
    assert configs.with_longer_mask(nothing, 3) is nothing
    assert resources.commit_hash(nothing) is None
    assert models.device_mesh(nothing) is None
    assert not models.is_stateful(nothing)
    assert not forwards.compiles_by_default(nothing, {}, None)
    with forwards.decode_context(nothing):
        forwards.forget_compiled_call(nothing)


def test_settings_that_nobody_set_have_these_values(tiny):
    prepared, _ = tiny._prepare_generation_config(None)
    for name, value in configs.DEFAULT_SETTINGS.items():
        assert getattr(prepared, name) == value


# Private names, classes, imports, and fields of layers and of configs

# Private names in compat that are not transformers': torch's, Python's, and endings.
OTHERS = {"_abc_impl", "_token_id", "_token_index"}
OTHERS |= {f"_scaled_dot_product_{kernel}_attention" for kernel in ("flash", "efficient")}
OTHERS |= {"_C", "_has_mkldnn", "_is_mkldnn_bf16_supported"}  # torch's, run by test_assistant.py
OTHERS |= {"_linear_pointwise", "_reorder_linear_weight"}
OTHERS |= {"_forward_hooks", "_forward_pre_hooks", "_torchdynamo_orig_callable"}  # torch's
OTHERS |= {"_hf_hook", "_old_forward"}  # accelerate's, run by test_hooks.py


def test_every_private_name_in_compat_is_listed():
    used = set()
    for path in COMPAT.glob("*.py"):
        nodes = ast.walk(tree_of(path))
        used |= {each.arg or "" for each in nodes if isinstance(each, ast.keyword)}
        used |= attributes(tree_of(path), own=False) | literals(tree_of(path))
    private = {name for name in used if re.fullmatch(r"_[A-Za-z]\w*", name)}
    assert private - OTHERS == PRIVATE.keys()


# Other things that have the name of a row, by file.
HOMONYMS = {
    ("hf_model/compiled.py", "max_cache_len"): "a setting of a GenerationConfig",
    ("hf.py", "GenerationMixin"): "where its ``generate`` is bound",
    ("hf.py", "StoppingCriteriaList"): "the stop strings of a call",
    ("hf.py", "StopStringCriteria"): "likewise",
}
# Fields of configs that ``GenerationConfig`` of every version, or a class here, does not have.
CONFIG_FIELDS = {
    "dtype": "a model's dtype, which callers state",
    "get": "of a config file, which is a dict",
    "ngramspec": "our own entry",
    "use_mtp": "newer than 5.16",
}


def literals(tree: ast.AST) -> set[str]:
    """The strings of a module, without docstrings."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    }


def attributes(tree: ast.AST, *, own: bool = True) -> set[str]:
    """The attributes that a module reads, with or without those of ``self``."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {node.attr for node in found if own or getattr(node.value, "id", "") != "self"}


def replaced(tree: ast.AST) -> set[str]:
    """Attributes of other objects than ``self`` that a module assigns."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if not (isinstance(node.value, ast.Name) and node.value.id == "self")
    }


def imported(tree: ast.AST) -> Iterator[str]:
    """What a module imports from transformers, except its Auto classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if is_transformers(each.name))
        elif isinstance(node, ast.ImportFrom) and is_transformers(node.module or ""):
            yield from (each.name for each in node.names if not each.name.startswith("Auto"))


def is_transformers(module: str) -> bool:
    return module.split(".")[0] == "transformers"


@cache
def known_fields() -> set[str]:
    """Fields of configs that any module may read: those of ``generate`` and our own."""
    ours = {*dir(Options), *Options.__annotations__}
    return {*vars(GenerationConfig()), *dir(GenerationConfig), *ours, *CONFIG_FIELDS}


def config_fields(tree: ast.AST) -> set[str]:
    """Fields of a model's config that a module reads."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_config(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.Call) and len(node.args) > 1 and is_config(node.args[0]):
            named = isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
            if named and isinstance(node.args[1], ast.Constant):
                found.add(node.args[1].value)
    return found - known_fields()


def is_config(node: ast.AST) -> bool:
    """Whether an expression is called a config, or makes one."""
    name = getattr(node, "attr", getattr(node, "id", ""))
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return name == "config" or name.endswith("_config")


def uses(tree: ast.AST, *, fields: bool = True) -> set[str]:
    """Names of the table and fields of models' configs that a module uses, and what it imports."""
    words = {row.name for row in CLASSES}
    words |= positions.POSITION_EMBEDDINGS | positions.POSITION_BIASES
    known = MODEL_NAMES.keys() | (FIELDS.keys() if fields else set())
    found = (attributes(tree) & known) | (attributes(tree, own=False) & PRIVATE.keys())
    found |= replaced(tree) & REPLACED.keys()
    found |= literals(tree) & (words | known | PRIVATE.keys())
    modules = (
        package.PROCESSOR_MODULE,
        package.CRITERION_MODULE,
        package.CAPTURE_MODULE,
        "cache_utils",
    )
    found |= {each for each in modules if f"transformers.{each}" in literals(tree)}
    return found | set(imported(tree)) | config_fields(tree)


@pytest.mark.parametrize("path", FILES, ids=label)
def test_what_is_transformers_is_known_in_compat_only(path):
    if label(path).startswith("engines/"):  # an engine's own configs
        pytest.skip("it does not use transformers")
    found = uses(tree_of(path), fields=not path.is_relative_to(KINDS))
    allowed = {name for file, name in HOMONYMS if file == label(path)}
    assert found == allowed, "call a function of hf_model/compat"


def test_every_row_is_used():
    files = [*COMPAT.glob("*.py"), *KINDS.glob("*.py")]
    used = set().union(*(attributes(tree_of(path)) | literals(tree_of(path)) for path in files))
    assert sorted(FIELDS.keys() - used) == []
    assert REPLACED.keys() <= replaced(tree_of(COMPAT / "caches.py"))
    assert sorted(MODEL_NAMES.keys() - used) == []
    everywhere = "".join(path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py"))
    for name in (*CHANGES, *CLASS_MODULES):
        assert everywhere.count(name) > 1
