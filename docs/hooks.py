"""Puts the raw results of the benchmarks into the site: they lie outside of ``docs``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

RESULTS = "benchmarks/results"
LINK = re.compile(rf"\.\./((?:\.\./)*{RESULTS}/)")


def on_files(files: Any, config: Any) -> Any:
    """Add the results under the path that they have in the repository."""
    root = Path(config.config_file_path).parent
    for path in sorted((root / RESULTS).iterdir()):
        name = f"{RESULTS}/{path.name}"
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Shorten links to the results by the step out of ``docs``."""
    return LINK.sub(r"\1", markdown)
