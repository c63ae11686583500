"""README and docs: their length, links, pages, code blocks, and the rooms they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "ngramspec"
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
NOT_RUNNABLE = "<!-- not runnable -->"  # in the line above a block that is no Python file
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
# The folders whose files are all named.
PLACES = ("decoding", "draft_length", "target", "theory", "verification")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def links(path: Path) -> list[str]:
    """The files that a text links to, as they are written, without other sites and anchors."""
    found = LINK.findall(FENCE.sub("", path.read_text(encoding="utf-8")))
    files = [link.partition("#")[0] for link in found if not re.match(r"\w+:", link)]
    return [file for file in files if file]


def blocks() -> list[tuple[str, str]]:
    """The Python blocks of all texts, with the place where each begins."""
    found = []
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        for block in FENCE.finditer(text):
            before = text[: block.start()].rstrip()
            if block[1] in ("python", "py") and not before.endswith(NOT_RUNNABLE):
                found.append(
                    (f"{name(path)}:{text.count(chr(10), 0, block.start()) + 1}", block[2])
                )
    return found


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


@pytest.mark.parametrize(("place", "code"), blocks(), ids=[place for place, _ in blocks()])
def test_python_blocks_compile(place, code):
    compile(code, place, "exec")


def test_there_are_python_blocks():
    assert len(blocks()) > 10


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
    files = {path.stem for path in (PACKAGE / room).glob("*.py")} - {"__init__"}
    assert set(re.findall(r"`(\w+)`", rows()[room])) == files
