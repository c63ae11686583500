"""A model folder and a log folder for servers; the tests need vLLM, see ``make test-engines``."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def smollm2_folder(tmp_path_factory) -> Path:
    """SmolLM2 in float32: of ENGINES_MODEL, or written anew."""
    import smollm2

    known = os.environ.get("ENGINES_MODEL")
    folder = Path(known) if known else tmp_path_factory.mktemp("model")
    if not (folder / "config.json").exists():
        smollm2.write(folder)
    return folder


@pytest.fixture(scope="session")
def logs(tmp_path_factory) -> Path:
    """A folder for what servers say."""
    return tmp_path_factory.mktemp("logs")
