"""Copies the raw results of the benchmarks into the built site, and corrects the links to them.

The results are outside of ``docs``, so a page's link to one leaves the site by one folder.
``make docs`` runs this after the build.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

RESULTS = Path("benchmarks/results")
LINK = re.compile(rf'(?<=href=")\.\./((?:\.\./)*{RESULTS}/[^"]+)')


def publish(site: Path) -> list[str]:
    """Copy the results and shorten the links by one folder.

    Returns:
        The links that lead to no file, with the page.
    """
    shutil.copytree(RESULTS, site / RESULTS, dirs_exist_ok=True)
    missing = []
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        links = LINK.findall(text)
        missing += [f"{page}: {link}" for link in links if not (page.parent / link).is_file()]
        if links:
            page.write_text(LINK.sub(r"\1", text), encoding="utf-8")
    return missing


if __name__ == "__main__":
    if missing := publish(Path(sys.argv[1])):
        sys.exit("\n".join(["links to results that do not exist:", *missing]))
