"""The examples in the package's docstrings."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import ngramspec

MODULES = sorted(
    each.name
    for each in pkgutil.walk_packages(ngramspec.__path__, "ngramspec.")
    if not each.name.endswith("__main__")
)
# Adapters whose engine has to be installed to import them; tests/engines tests them.
ENGINES = {f"ngramspec.engines.{name}" for name in ("llama_cpp", "mlx_lm", "vllm")}
FOUND = {
    test.name: test
    for module in MODULES
    if module not in ENGINES
    for test in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module))
    if test.examples
}


@pytest.mark.parametrize("name", FOUND)
def test_a_docstring_says_what_happens(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write a file
    failed, tried = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(FOUND[name])
    assert (failed, tried > 0) == (0, True)


def test_docstrings_have_examples():
    assert len(FOUND) >= 9
    assert {name.split(".")[1] for name in FOUND} >= {"speculator", "drafters", "costs"}
