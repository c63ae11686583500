"""Keeps a corpus like the files that it was built from."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

logger = logging.getLogger("ngramspec.watch")
QUIET = 2000  # milliseconds without a change before it is rebuilt
POLL = 500  # milliseconds between looks at whether to stop


def watch(
    paths: Iterable[Path],
    corpus: Path,
    rebuild: Callable[[], Any],
    *,
    stop: threading.Event | None = None,
    quiet: int = QUIET,
) -> None:
    """Call ``rebuild`` whenever files have changed, until ``stop`` is set, or Ctrl-C.

    Changes are gathered until none came for ``quiet`` milliseconds. What watchfiles leaves out by
    default, such as ``.git``, and the corpus itself, start nothing.

    Args:
        paths: files and folders.
        corpus: the file that is rebuilt; ``rebuild`` writes it beside and renames it into place.
        rebuild: rebuilds it; an error is logged, and the old corpus stays.
        stop: ends the watch; None: only Ctrl-C does.
        quiet: milliseconds.

    Raises:
        ModuleNotFoundError: watchfiles is not installed.
        OSError: a path is not there.
    """
    try:
        import watchfiles
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "watching needs watchfiles: pip install 'ngramspec[serve]'", name="watchfiles"
        ) from error
    own = corpus.absolute()

    usual = watchfiles.DefaultFilter()

    def of_sources(change: Any, path: str) -> bool:
        itself = Path(path).parent == own.parent and Path(path).name.startswith(own.name)
        return not itself and bool(usual(change, path))

    changes = watchfiles.watch(
        *paths,
        watch_filter=of_sources,
        stop_event=stop,
        debounce=10 * quiet,
        step=quiet,
        rust_timeout=POLL,
        yield_on_timeout=False,
        raise_interrupt=True,
    )
    for changed in changes:
        logger.info("%d files changed", len(changed))
        try:
            rebuild()
        except (OSError, ValueError) as error:
            logger.warning("not rebuilt, the old corpus stays: %s", error)
