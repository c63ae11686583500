"""Writes the table of a Speculator's options into docs/guide/options.md.

Run it after a change of the Speculator's docstring: ``python docs/options.py``.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

from ngramspec import Speculator
from ngramspec.options import DEFAULTS

PAGE = Path(__file__).parent / "guide" / "options.md"
BEGIN = "<!-- Written by docs/options.py from the docstring of Speculator: -->\n"
END = "<!-- the end of the table -->\n"
SEE = {  # a page of the guide, or a section, about an option
    "drafter": "#drafters",
    "tree": "gpu.md#trees",
    "verification": "text.md#sampling",
    "costs": "#saved-costs",
    "width": "text.md#fixed-width",
    "compiled": "gpu.md#compiled-forwards",
    "stores": "stores.md",
}


def meanings() -> dict[str, str]:
    """What each option means, by name, from the Speculator's docstring."""
    text = inspect.cleandoc(Speculator.__doc__ or "")
    arguments = text.partition("\nArgs:\n")[2].partition("\n\n")[0]
    entries = re.split(r"^ {4}(\w+): ", arguments, flags=re.MULTILINE)[1:]
    names, texts = entries[::2], entries[1::2]
    return {name: " ".join(text.split()) for name, text in zip(names, texts, strict=True)}


def table() -> str:
    """The table of options in Markdown."""
    lines = ["| argument | meaning |", "|---|---|"]
    for name, doc in meanings().items():
        default = DEFAULTS[name]
        shown = json.dumps(default) if isinstance(default, str) else repr(default)
        meaning = re.sub(r'(\w+=)?"[^"]*"', r"`\g<0>`", doc)
        see = SEE.get(name)
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
