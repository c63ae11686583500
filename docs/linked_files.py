"""Copies the files outside ``docs`` that pages link to into the built site: raw results, examples.

A page's link to such a file leaves the site by one folder, so the links are shortened by it.
``make docs`` runs this after the build.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINK = re.compile(r'(?<=href=")((?:\.\./)+[^"#?]+)')


def publish(site: Path) -> list[str]:
    """Copy the linked files and correct the links.

    Returns:
        The links that lead to no file of the repository, with the page.
    """
    site, missing = site.resolve(), []
    for page in site.rglob("*.html"):

        def corrected(link: re.Match[str], page: Path = page) -> str:
            target = Path(os.path.normpath(page.parent / link[1]))
            if target.is_relative_to(site):
                return link[1]
            name = os.path.relpath(target, site.parent)
            source = ROOT / name
            if source.is_file():
                (site / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, site / name)
            elif source.is_dir():
                shutil.copytree(source, site / name, dirs_exist_ok=True)
            else:
                missing.append(f"{page.relative_to(site)}: {link[1]}")
            return link[1].removeprefix("../")

        text = page.read_text(encoding="utf-8")
        page.write_text(LINK.sub(corrected, text), encoding="utf-8")
    return missing


if __name__ == "__main__":
    if missing := publish(Path(sys.argv[1])):
        sys.exit("\n".join(["links to files that do not exist:", *missing]))
