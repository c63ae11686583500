"""The repository's workflows, citation and address."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))
CITATION = ROOT / "CITATION.cff"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ADDRESS = PROJECT["urls"]["Repository"]
ADDRESSED = ["README.md", "CITATION.cff", "docs/install.md", "pyproject.toml"]
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def parsed(path: Path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def jobs():
    return [(path, *job) for path in WORKFLOWS for job in parsed(path)["jobs"].items()]


def steps(key: str) -> list[str]:
    return [step[key] for _, _, job in jobs() for step in job["steps"] if key in step]


def test_the_citation_is_of_this_version():
    citation = parsed(CITATION)
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == ADDRESS
    assert [each["name"] for each in citation["authors"]] == ["The ngramspec authors"]
    assert [each["name"] for each in PROJECT["authors"]] == ["The ngramspec authors"]
    assert {"cff-version", "message", "title"} <= citation.keys()


@pytest.mark.parametrize("file", ADDRESSED)
def test_files_name_the_repository_by_its_address(file):
    text = (ROOT / file).read_text()
    assert ADDRESS in text
    assert set(re.findall(r"git\+([^\s\"'`]+)", text)) <= {ADDRESS}
    if os.environ.get("RELEASE_CHECK"):
        assert "/OWNER/" not in ADDRESS, "make address REPOSITORY=https://..."


@pytest.mark.skipif(not (shutil.which("git") and shutil.which("make")), reason="runs both")
def test_one_command_writes_the_address(tmp_path):
    for file in (*ADDRESSED, "Makefile"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    run = {"cwd": tmp_path, "check": True, "capture_output": True}
    subprocess.run(["git", "init", "--quiet"], **run)
    subprocess.run(["git", "add", "."], **run)
    for new in ("https://one.example/a/b", "https://two.example/c"):
        subprocess.run(["make", "address", f"REPOSITORY={new}"], **run)
        for file in ADDRESSED:
            text = (tmp_path / file).read_text()
            assert text == (ROOT / file).read_text().replace(ADDRESS, new), file
    assert not [*tmp_path.rglob("*.bak")]


def test_workflows_name_targets_of_the_makefile():
    named = [target for run in steps("run") for target in re.findall(r"\bmake ([\w-]+)", run)]
    assert {"lint", "test"} <= set(named) <= TARGETS


def test_workflows_may_read_only_and_end():
    for path in WORKFLOWS:
        workflow = parsed(path)
        assert workflow["permissions"] == {"contents": "read"}
        assert workflow["concurrency"]["group"]
    for path, job, content in jobs():
        assert content["timeout-minutes"] <= 120, f"{job} in {path.name}"
        if "permissions" in content:  # it publishes: after the others, and when somebody approves
            assert (path.name, job) == ("wheels.yml", "publish")
            assert content["permissions"]["contents"] == "read"
            assert content["environment"] == "pypi"
            assert {"wheels", "sdist"} == set(content["needs"])
            assert content["if"] == "github.event_name == 'push'"  # of a version's tag


def test_actions_are_pinned_by_their_commit():
    used = [line for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line]
    assert len(used) == len(steps("uses"))
    for line in used:
        assert re.search(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_tested_pythons_are_supported_and_built():
    tested = parsed(GITHUB / "workflows/test.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert PROJECT["requires-python"] == f">={tested[0]}"
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert [f"cp{each.replace('.', '')}-*" for each in tested] == tool["cibuildwheel"]["build"]
    assert "test-skip" not in tool["cibuildwheel"]
    assert f"PYTHONS = {tested}".replace("'", '"') in (ROOT / "noxfile.py").read_text()
    for each in tested:
        assert f"Programming Language :: Python :: {each}" in PROJECT["classifiers"]
