"""Private names of others are used in one module."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers_names import PRIVATE as TABLE

import ngramspec
from ngramspec.hf_model.compat import hf_private
from ngramspec.hf_model.compat.versions import MARKS_CACHES, has

ROOT = Path(ngramspec.__file__).parent
THE_MODULE = "hf_model/compat/hf_private.py"
PRIVATE = re.compile(r"_[A-Za-z]\w*")
OWNERS = {"self", "cls", "other"}
# Other private names, which are not of transformers: (file, name) and whose it is.
OTHERS = {
    ("measure/forced.py", "_forced_targets"): "its own buffer on a model",
    ("cli/__init__.py", "_SubParsersAction"): "argparse's, the class of a list of commands",
    ("cli/options.py", "_ArgumentGroup"): "argparse's, a type that has no public name",
    ("drafters/call_text.py", "_replace"): "a method of every named tuple",
    ("decoding/distributed.py", "_is_fsdp_managed_module"): "torch's mark of a sharded module",
    ("hf.py", "_orig_mod"): "the model in a torch.compile wrapper",
    ("hf_model/compiled.py", "_dynamo"): "torch's compiler: its callbacks and its limit of graphs",
    ("hf_model/support.py", "_DropoutNd"): "the base class of torch's dropouts",
    ("hf_model/compat/classes.py", "_abc_impl"): "Python sets it on every abstract class",
    ("hf_model/compat/layers.py", "_foreach_sub_"): "torch's one launch for all layers",
    ("hf_model/inputs/present_rows.py", "_forward_hooks"): "torch's own name of a module's hooks",
    ("hf_model/inputs/present_rows.py", "_forward_pre_hooks"): "likewise",
    ("hf_model/cache/recurrent_state.py", "_foreach_copy_"): "torch's one launch for all states",
    ("hf_model/support.py", "_token_id"): "the end of public names in configs",
    ("hf_model/support.py", "_token_index"): "the end of public names in configs",
}


def private_uses(source: str) -> set[str]:
    """Private names of others that a module's source uses.

    A private name is one's own where it is read from ``self``, ``cls`` or ``other``, or where the
    module itself binds it: as a function, a class, a variable, an attribute of ``self`` or ``cls``,
    or a slot. Names of transformers (``TABLE``) are one's own on ``self``, ``cls`` and ``other``
    only.
    Looked at: attributes, imports, keyword arguments, and strings that are a private name.
    """
    tree = ast.parse(source)
    own = bound_names(tree)
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    used = set()
    for node in ast.walk(tree):
        if id(node) in parts:  # the text between the fields of an f-string
            continue
        if isinstance(node, ast.Attribute):
            if not (isinstance(node.value, ast.Name) and node.value.id in OWNERS):
                used.add(node.attr)
        elif isinstance(node, ast.Import):
            used.update(part for each in node.names for part in each.name.split("."))
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("ngramspec"):
            used.update((node.module or "").split("."))
            used.update(each.name for each in node.names)
        elif isinstance(node, ast.keyword) and node.arg is not None:
            used.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            used.add(node.value)
    private = {name for name in used if PRIVATE.fullmatch(name)}
    return private - (own - TABLE.keys())


def bound_names(tree: ast.Module) -> set[str]:
    """Names that a module binds itself."""
    bound = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
            bound.update(_slots(node, tree))
        elif isinstance(node, ast.Attribute) and _is_stored_on_self(node):
            bound.add(node.attr)
    return bound


def _is_stored_on_self(node: ast.Attribute) -> bool:
    owner = node.value.id if isinstance(node.value, ast.Name) else None
    return isinstance(node.ctx, ast.Store) and owner in ("self", "cls")


def _slots(name: ast.Name, tree: ast.Module) -> set[str]:
    """The strings that a module assigns to ``__slots__``, if that is the name."""
    if name.id != "__slots__":
        return set()
    assigned = [each for each in ast.walk(tree) if isinstance(each, ast.Assign)]
    slots = [each.value for each in assigned if name in each.targets]
    return {each.value for one in slots for each in ast.walk(one) if isinstance(each, ast.Constant)}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("model._prefill(ids)", {"_prefill"}),
        ("self.model._tp_plan", {"_tp_plan"}),
        ("getattr(model, '_tp_plan', None)", {"_tp_plan"}),
        ("vars(model).pop('_tp_plan')", {"_tp_plan"}),
        ("call(_fast=True)", {"_fast"}),
        ("from transformers import _x", {"_x"}),
        ("import torch._dynamo as dynamo", {"_dynamo"}),
        ("model._sample = 1", {"_sample"}),
        ("def _sample(): pass\nmodel._sample()", {"_sample"}),
        ("class A:\n  def f(self, other): return self._x + other._x", set()),
        ("class A:\n  def f(self): self._x = 1\ndef g(a): return a._x", set()),
        ("class A:\n  __slots__ = ('_x', 'y')\ndef g(a): return a._x", set()),
        ("_x = 1\nprint(module._x, '_', '__name__', '_ b')", set()),
        ("from ngramspec.module import _x", set()),
    ],
)
def test_the_rule(source, found):
    assert private_uses(source) == found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_private_names_of_others_are_used_in_one_module(path):
    file = path.relative_to(ROOT).as_posix()
    used = private_uses(path.read_text(encoding="utf-8"))
    if file == THE_MODULE:
        assert used == TABLE.keys()
    else:
        allowed = {name for other, name in OTHERS if other == file}
        assert used == allowed, f"{file}: put what is transformers' into {THE_MODULE}"


def test_every_exception_is_of_a_file():
    assert [file for file, _ in OTHERS if not (ROOT / file).is_file()] == []
    assert not {name for _, name in OTHERS} & TABLE.keys()


def test_what_a_version_lacks_has_a_default():
    nothing = SimpleNamespace()
    assert hf_private.is_callers(nothing) is not has(MARKS_CACHES)
    assert hf_private.mask_length(nothing) is None
    assert hf_private.with_longer_mask(nothing, 3) is nothing
    assert hf_private.commit_hash(nothing) is None
    assert hf_private.pad_token(nothing) is None
    assert hf_private.device_mesh(nothing) is None
    assert not hf_private.is_stateful(nothing)
    assert not hf_private.compiles_by_default(nothing, {}, None)
    with hf_private.decode_context(nothing):
        hf_private.forget_compiled_call(nothing)


def test_a_longer_mask_is_a_copy_s():
    config = SimpleNamespace(_mask_length=7, max_length=20)
    longer = hf_private.with_longer_mask(config, 3)
    assert (hf_private.mask_length(longer), hf_private.mask_length(config)) == (10, 7)
    assert longer.max_length == 20
