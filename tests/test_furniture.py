"""The files around the package: workflows, forms, hooks, citation, and what they name."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))
FORMS = sorted(set(GITHUB.glob("ISSUE_TEMPLATE/*.yml")) - {GITHUB / "ISSUE_TEMPLATE/config.yml"})
HOOKS = ROOT / ".pre-commit-config.yaml"
CITATION = ROOT / "CITATION.cff"
PROSE = [GITHUB / "pull_request_template.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def parsed(path: Path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def jobs():
    return [(path, *job) for path in WORKFLOWS for job in parsed(path)["jobs"].items()]


def steps(key: str) -> list[str]:
    return [step[key] for _, _, job in jobs() for step in job["steps"] if key in step]


def hooks() -> list[dict]:
    return [hook for repo in parsed(HOOKS)["repos"] for hook in repo["hooks"]]


def test_the_files_are_there():
    assert {path.stem for path in WORKFLOWS} >= {"test", "wheels"}
    assert {path.stem for path in FORMS} >= {"bug", "feature", "question"}


def test_the_citation_is_of_this_version():
    citation = parsed(CITATION)
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_workflows_name_targets_of_the_makefile():
    named = [target for run in steps("run") for target in re.findall(r"\bmake ([\w-]+)", run)]
    assert {"lint", "test"} <= set(named) <= TARGETS


@pytest.mark.parametrize("path", PROSE, ids=name)
def test_texts_name_targets_of_the_makefile(path):
    named = re.findall(r"(?:`|^)make ([\w-]+)", path.read_text(), re.MULTILINE)
    assert named
    assert set(named) <= TARGETS


def test_workflows_may_read_only_and_end():
    for path in WORKFLOWS:
        workflow = parsed(path)
        assert workflow["permissions"] == {"contents": "read"}
        assert workflow["concurrency"]["group"]
    for path, job, content in jobs():
        assert content["timeout-minutes"] <= 120, f"{job} in {path.name}"
        assert "permissions" not in content, f"{job} in {path.name}"


def test_actions_are_pinned_by_their_major_version():
    assert steps("uses")
    for action in steps("uses"):
        assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", action)


def test_tested_pythons_are_supported_and_built():
    tested = parsed(GITHUB / "workflows/test.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert PROJECT["requires-python"] == f">={tested[0]}"
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert {f"cp{each.replace('.', '')}-*" for each in tested} <= {*tool["cibuildwheel"]["build"]}


@pytest.mark.parametrize("path", FORMS, ids=name)
def test_forms_have_what_the_host_asks_for(path):
    form = parsed(path)
    assert form["name"]
    assert form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    ids = [field["id"] for field in fields]
    assert len(ids) == len(set(ids)) > 0
    for field in fields:
        assert field["attributes"]["label"]
        options = field["attributes"].get("options", [])
        assert (len(options) > 1) == (field["type"] == "dropdown")
        assert all(isinstance(each, str) for each in options)  # a bare Yes is True


def command(entry: str) -> str:
    """What an entry runs: its first word, or that of the line it gives to bash."""
    words = shlex.split(entry)
    if words[:2] == ["bash", "-c"]:
        words = [word for word in shlex.split(words[2]) if not word.startswith("PATH=")]
    what = words[0].removeprefix(".venv/bin/")
    second = words[1] if len(words) > 1 else ""
    return {"make": f"make {second}", "python": second}.get(what, what)


@pytest.mark.parametrize("hook", hooks(), ids=lambda hook: hook["id"])
def test_hooks_run_what_make_sets_up(hook):
    assert hook["language"] == "system"  # nothing is downloaded
    what = command(hook["entry"])
    if what.startswith("make ") or what.endswith(".py"):
        assert what.removeprefix("make ") in TARGETS or (ROOT / what).is_file()
        return
    extra = PROJECT["optional-dependencies"]["dev"]
    assert what in {re.split("[<>=]", each)[0] for each in extra}
    assert f"\n{what}==" in (ROOT / "constraints.txt").read_text()
    try:
        distribution(what)
    except PackageNotFoundError:
        pytest.skip("an environment without the tools for development")
    assert (Path(sys.executable).parent / what).exists()


def test_hooks_are_the_checks_of_make_lint():
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[1]
    checks = re.findall(r"(?:\$\(BIN\)/(?:python )?|\" )([\w/.-]+)", recipe)
    assert {command(hook["entry"]) for hook in hooks()} == set(checks)
