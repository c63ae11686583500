"""The corpora that a server's requests draft from, which are opened again when they are rebuilt."""

from __future__ import annotations

import logging
import os
import threading
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ngramspec.stores import Corpus

logger = logging.getLogger("ngramspec.server")
watch_logger = logging.getLogger("ngramspec.watch")
QUIET_MS = 2000  # without a change before a rebuild
POLL_MS = 500  # between checks of ``stop``


class Shelf(UserDict[str, Corpus]):
    """Corpora by name, of a tokenizer. Each access compares the file's state, in microseconds."""

    def __init__(self, corpora: Mapping[str, Corpus], tokenizer: Any) -> None:
        super().__init__(corpora)
        self._tokenizer = tokenizer
        self._states = {name: _state(corpus) for name, corpus in corpora.items()}

    def __getitem__(self, name: str) -> Corpus:
        corpus = self.data[name]
        state = _state(corpus)
        if state not in (None, self._states[name]):
            self._states[name] = state
            try:
                opened = Corpus.open(corpus.path)
                opened.check_tokenizer(self._tokenizer)
                self.data[name] = opened
            except (OSError, ValueError) as error:
                logger.warning("the corpus %s cannot be opened again: %s", name, str(error))
        return self.data[name]


def _state(corpus: Corpus) -> tuple[int, int, int] | None:
    """Inode, time and size, which change when a file is replaced; None: it does not exist."""
    try:
        found = os.stat(corpus.path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def watch(
    paths: Iterable[Path],
    corpus: Path,
    rebuild: Callable[[], Any],
    *,
    stop: threading.Event | None = None,
    quiet: int = QUIET_MS,
) -> None:
    """Call ``rebuild`` whenever files have changed, until ``stop`` is set or Ctrl-C is pressed."""
    try:
        import watchfiles
    except ModuleNotFoundError as error:
        error.msg = "watching needs watchfiles: pip install watchfiles"
        raise
    own = corpus.absolute()
    usual = watchfiles.DefaultFilter()

    def of_sources(change: Any, path: str) -> bool:
        itself = Path(path).parent == own.parent and Path(path).name.startswith(own.name)
        return not itself and bool(usual(change, path))

    times = {"debounce": 10 * quiet, "step": quiet, "rust_timeout": POLL_MS}
    changes = watchfiles.watch(*paths, watch_filter=of_sources, stop_event=stop, **times)
    for changed in changes:
        watch_logger.info("%d files changed", len(changed))
        try:
            rebuild()
        except (OSError, ValueError) as error:
            watch_logger.warning("not rebuilt, the old corpus stays: %s", error)
