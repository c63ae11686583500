"""Writes the table of a Speculator's options into docs/guide/options.md.

Run it after a change of ngramspec/options.py: ``python docs/options.py``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from ngramspec.options import DEFAULTS, documentation

PAGE = Path(__file__).parent / "guide" / "options.md"
BEGIN = "<!-- Written by docs/options.py from options.py: -->\n"
END = "<!-- the end of the table -->\n"


def table() -> str:
    """The table of options in Markdown."""
    lines = ["| argument | meaning |", "|---|---|"]
    for name, (doc, see) in documentation().items():
        default = DEFAULTS[name]
        shown = json.dumps(default) if isinstance(default, str) else repr(default)
        meaning = re.sub(r'(\w+=)?"[^"]*"', r"`\g<0>`", doc)
        more = f" See [{_title(see)}]({see})." if see else ""
        lines.append(f"| `{name}={shown}` | {meaning}{more} |")
    return "\n".join(lines)


def _title(see: str) -> str:
    """The heading of a page, or of a section."""
    file, _, section = see.partition("#")
    if section:
        return section.replace("-", " ").capitalize()
    return (PAGE.parent / file).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def page() -> str:
    """The page with the table as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
