"""Writes the tutorial as a notebook, ``docs/tutorial.ipynb``, from its page."""

from __future__ import annotations

import json
import re
from pathlib import Path

PAGE = Path(__file__).parent / "tutorial.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def notebook(page: str) -> str:
    """A notebook with the page's Python blocks as code, and the texts between them."""
    cells = []
    for place, text in enumerate(BLOCK.split(page)):  # code at the odd places
        cell = {"cell_type": "markdown", "id": f"cell-{place}", "metadata": {}}
        if place % 2:
            cell |= {"cell_type": "code", "execution_count": None, "outputs": []}
        if text.strip():
            cells.append(cell | {"source": text.strip("\n").splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": cells, "metadata": {"kernelspec": kernel}}
    return json.dumps(content | {"nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


if __name__ == "__main__":
    PAGE.with_suffix(".ipynb").write_text(notebook(PAGE.read_text("utf-8")), encoding="utf-8")
