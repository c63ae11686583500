"""Keeps a corpus up to date with the files that it was built from."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

logger = logging.getLogger("ngramspec.watch")
QUIET_MS = 2000  # without a change before a rebuild; not tuned
POLL_MS = 500  # between checks of ``stop``; not tuned


def watch(
    paths: Iterable[Path],
    corpus: Path,
    rebuild: Callable[[], Any],
    *,
    stop: threading.Event | None = None,
    quiet: int = QUIET_MS,
) -> None:
    """Call ``rebuild`` whenever files have changed, until ``stop`` is set or Ctrl-C is pressed.

    Changes are collected until there are none for ``quiet`` milliseconds. An error of ``rebuild``
    is logged, and the old corpus is kept. Paths that watchfiles ignores by default, such as
    ``.git``, and the corpus itself, which is written under a temporary name first, do not trigger
    a rebuild. An OSError is raised if a path does not exist.
    """
    try:
        import watchfiles
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "watching needs watchfiles: pip install watchfiles", name="watchfiles"
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
        rust_timeout=POLL_MS,
        yield_on_timeout=False,
        raise_interrupt=True,
    )
    for changed in changes:
        logger.info("%d files changed", len(changed))
        try:
            rebuild()
        except (OSError, ValueError) as error:
            logger.warning("not rebuilt, the old corpus stays: %s", error)
