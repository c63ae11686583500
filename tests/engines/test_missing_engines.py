"""Adapters whose engine is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "engine", "package"),
    [("llama_cpp", "llama_cpp", "llama-cpp-python"), ("mlx_lm", "mlx", "mlx-lm")],
)
def test_without_the_engine_the_error_says_what_to_install(module, engine, package):
    code = f"""
import sys
sys.modules["{engine}"] = sys.modules["torch"] = sys.modules["transformers"] = None
try:
    import ngramspec.engines.{module}
except ImportError as error:
    assert "needs {package}: pip install {package}" in str(error), error
else:
    sys.exit("it was imported")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
