"""Checks the form of README and docs: lengths, widths, kinds of blocks. ``make lint`` runs it."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
README = ROOT / "README.md"
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#]+)")
GENERATED = re.compile(
    r"<!-- table .*?<!-- end of table -->|<!-- Written by .*?<!-- the end of the table -->",
    re.DOTALL,
)
KINDS = {"python", "bash", "json", "yaml", "lua", "text"}  # text: a picture made of characters
MAX_WORDS, MAX_WORDS_OF_A_PAGE, MAX_WORDS_OF_README = 10_000, 600, 750
MAX_COLUMNS = 95  # on a page of 1280 pixels; beyond them code lies under the copy button
COPIED = re.compile(r"^\tcp (\S+) docs/(\S+)$", re.MULTILINE)  # by make docs, before it builds
FIRST_LINKS = ("guide/stores.md", "guide/serve.md", "engines/index.md", "guide/serving.md")


def text_of(path: Path) -> str:
    """What a file says."""
    return path.read_text(encoding="utf-8")


def hand_written_words(page: Path) -> int:
    """Words of a page without generated tables; none of the generated references."""
    generated = page.name in ("api.md", "cli.md")
    return 0 if generated else len(GENERATED.sub("", text_of(page)).split())


def lengths() -> Iterator[str]:
    """Pages that are too long, alone or together."""
    words = {page: hand_written_words(page) for page in (README, *PAGES)}
    for page, count in words.items():
        most = MAX_WORDS_OF_README if page == README else MAX_WORDS_OF_A_PAGE
        if count > most:
            yield f"{page.relative_to(ROOT)}: {count} words, at most {most}"
    if sum(words.values()) > MAX_WORDS:
        yield f"README and docs: {sum(words.values())} words, at most {MAX_WORDS}"


def blocks() -> Iterator[str]:
    """Blocks of an unknown kind, and lines of code that are wider than their box."""
    for path in (README, ROOT / "CONTRIBUTING.md", *PAGES):
        for kind, block in FENCE.findall(text_of(path)):
            if kind not in KINDS:
                yield f"{path.relative_to(ROOT)}: a block is marked {kind!r}, not one of {KINDS}"
            for line in block.splitlines():
                if len(line) > MAX_COLUMNS:
                    yield f"{path.relative_to(ROOT)}: over {MAX_COLUMNS} columns: {line}"


def pages_of(nav: list) -> Iterator[str]:
    """The pages of a part of zensical.toml's nav."""
    for entry in nav:
        for target in [entry] if isinstance(entry, str) else entry.values():
            yield from pages_of(target) if isinstance(target, list) else [target]


def navigation() -> Iterator[str]:
    """Pages that cannot be found from the navigation or the first page."""
    settings = tomllib.loads(text_of(ROOT / "zensical.toml"))
    listed = sorted(pages_of(settings["project"]["nav"]))
    pages = [str(page.relative_to(DOCS)) for page in PAGES]
    for source, page in COPIED.findall(text_of(ROOT / "Makefile")):
        pages.append(page)
        if not (ROOT / source).is_file():
            yield f"Makefile: there is no {source}"
    if listed != sorted(pages):
        yield f"zensical.toml must list every page once: {sorted({*listed} ^ {*pages})}"
    linked = LINK.findall(text_of(DOCS / "index.md"))
    for part in FIRST_LINKS:
        if part not in linked:
            yield f"docs/index.md: no link to {part}"


def raw_results() -> Iterator[str]:
    """Raw results of benchmarks that no page refers to."""
    links = [(page, link) for page in PAGES for link in LINK.findall(text_of(page))]
    linked = {(page.parent / link).resolve() for page, link in links}
    for path in sorted((ROOT / "benchmarks" / "results").iterdir()):
        if path.resolve() not in linked:
            yield f"benchmarks/results/{path.name}: no page links to it"


if __name__ == "__main__":
    sys.exit("\n".join([*lengths(), *blocks(), *navigation(), *raw_results()]) or None)
