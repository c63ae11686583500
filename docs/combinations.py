"""Writes the table of calls on a simulated GPU into docs/guide/gpu.md.

Run it after a change of what runs on a GPU: ``PYTHONPATH=tests:. python docs/combinations.py``.
"""

from __future__ import annotations

from pathlib import Path

from gpu.combinations import table

PAGE = Path(__file__).parent / "guide" / "gpu.md"
BEGIN = "<!-- Written by docs/combinations.py from calls on a simulated GPU: -->\n"
END = "<!-- the end of the table -->\n"


def page() -> str:
    """The page with the table as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
