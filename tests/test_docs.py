"""README and docs: their length, links, pages, and the rooms they name."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "ngramspec"
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
# The folders whose files are all named.
PLACES = (  # whose files are all named
    *("_native", "cli", "decoding", "draft_length", "drafters", "measure"),
    *("integrations", "target", "theory", "verification"),
)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def links(path: Path) -> list[str]:
    """The files that a text links to, as they are written, without other sites and anchors."""
    found = LINK.findall(FENCE.sub("", path.read_text(encoding="utf-8")))
    files = [link.partition("#")[0] for link in found if not re.match(r"\w+:", link)]
    return [file for file in files if file]


def rows() -> dict[str, str]:
    """The rooms of the internals' table: what is in each, by its name."""
    text = (DOCS / "internals" / "rooms.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `([\w.]+)/?` \| (.*) \|$", text, re.MULTILINE))


def nav(entries: list) -> list[str]:
    """The pages of a part of mkdocs.yml's nav."""
    pages = []
    for entry in entries:
        for target in [entry] if isinstance(entry, str) else entry.values():
            pages += nav(target) if isinstance(target, list) else [target]
    return pages


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("path", TEXTS, ids=name)
def test_links_lead_to_files(path):
    assert [link for link in links(path) if not (path.parent / link).exists()] == []


def test_texts_have_links():
    assert len(links(ROOT / "README.md")) > 10
    assert sum(len(links(page)) for page in PAGES) > 40


def test_the_nav_lists_every_page_once():
    listed = nav(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


def test_included_files_are_there():
    included = [
        file
        for page in PAGES
        for file in re.findall(r'^--8<-- "(.+)"$', page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert "CHANGELOG.md" in included
    assert [file for file in included if not (ROOT / file).is_file()] == []


def test_every_raw_result_is_linked():
    linked = {(page.parent / link).resolve() for page in PAGES for link in links(page)}
    results = (ROOT / "benchmarks" / "results").iterdir()
    assert [path.name for path in results if path.resolve() not in linked] == []


def test_the_reference_lists_the_public_names():
    import ngramspec

    text = (DOCS / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: ngramspec\.(\w+)$", text, re.MULTILINE)) == ngramspec.__all__


def test_the_rooms_are_those_of_the_package():
    files = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    folders = {path.name for path in PACKAGE.iterdir() if any(path.glob("*.py"))}
    assert rows().keys() == files | folders


@pytest.mark.parametrize("room", PLACES)
def test_a_room_names_its_files(room):
    files = {
        path.stem for kind in ("py", "pyx", "pxd") for path in (PACKAGE / room).glob(f"*.{kind}")
    }
    below = {path.parent.name for path in (PACKAGE / room).glob("*/*.py")}
    said = set(re.findall(r"`(\w+)/?`", rows()[room])) - {"ngramspec"}
    assert said - below == files - {"__init__"}


def test_twins_have_the_names_of_their_natives():
    twins = {path.stem for path in (PACKAGE / "_reference").glob("*.py")}
    assert twins <= {path.stem for path in (PACKAGE / "_native").glob("*.p*")}


def answers() -> list[tuple[str, str, str]]:
    """The questions of a newcomer, with the file and the name that answer them."""
    text = (DOCS / "internals" / "rooms.md").read_text(encoding="utf-8")
    return re.findall(r"^\| ([^|]*\?) \| `([\w/.]+)` \| `(\w+)` \|$", text, re.MULTILINE)


@pytest.mark.parametrize(("question", "file", "name"), answers())
def test_a_question_leads_to_a_file(question, file, name):
    source = (PACKAGE / file).read_text(encoding="utf-8")
    assert re.search(rf"^ *(?:def|class) {name}\b|^{name}\b", source, re.MULTILINE)


def test_a_newcomer_finds_the_parts_of_the_algorithm():
    asked = " ".join(question for question, _, _ in answers())
    for part in ("cache rolled back", "Algorithm 1", "draft length", "add a drafter"):
        assert part in asked


SOURCES = "".join(
    path.read_text(encoding="utf-8")
    for folder in ("ngramspec", "tests", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.p*"))
    if path.suffix in (".py", ".pyx", ".pxd") and path.name != "test_docs.py"
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
