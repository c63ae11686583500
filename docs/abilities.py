"""Writes the table of abilities into docs/guide/compatibility.md.

Run it after a change of ngramspec/hf_model/facts.py: ``python docs/abilities.py``.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from ngramspec.hf_model.facts import FACTS, Ability

PAGE = Path(__file__).parent / "guide" / "compatibility.md"
BEGIN = "<!-- Written by docs/abilities.py from hf_model/facts.py: -->\n"
# What stands for the values of a call in the reasons.
ANY = SimpleNamespace(
    rows="several",
    gap_obstacle="recurrent state, convolution, or index of keys",
    attention="other than sdpa and eager",
    unaligned="the cache holds the whole prompt, or the model counts tokens itself",
)
END = "<!-- the end of the table -->\n"


def table() -> str:
    """The table of abilities in Markdown: a row for each fact, a column for each ability."""
    lines = [
        f"| | {' | '.join(ability.value for ability in Ability)} |",
        f"|---|{'---|' * len(Ability)}",
    ]
    for fact in FACTS:
        cells = [_cell(fact.cells.get(ability)) for ability in Ability]
        lines.append(f"| {fact.reason.format(ANY)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(reason: str | None) -> str:
    """What a reader can do about a reason, "no" for nothing, and an empty cell for no reason."""
    if reason is None:
        return ""
    return reason.partition("; ")[2] or "no"


def page() -> str:
    """The page with the table as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
