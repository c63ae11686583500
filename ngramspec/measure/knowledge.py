"""Text that all drafters of a replay know in addition to each request."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ngramspec.drafters.base import Drafter
from ngramspec.drafters.tool_calls import ToolCalls
from ngramspec.measure.traces import Trace
from ngramspec.stores import Corpus, SharedStore

SEPARATOR_ID = 0  # after each document of an .npy file
NAMESPACE = "replay"
STORE_BYTES = 256 << 20  # bytes of a store of earlier requests


class Known(ABC):
    """Text that drafters know in addition to each request.

    If it ``shares``, requests add their text, and an output's first token is not in the prompt.
    """

    shares = False
    _last: tuple[Drafter, str, Drafter] | None = None

    def given_to(self, drafter: Drafter, trace: Trace) -> Drafter:
        """A drafter that knows what belongs to a trace; all such traces share it."""
        which = self.which(trace)
        if self._last is None or self._last[0] is not drafter or self._last[1] != which:
            self._last = None  # one at a time: suffix trees take much memory
            self._last = (drafter, which, self.with_text(drafter, which))
        return self._last[2]

    def which(self, trace: Trace) -> str:
        """The name of the text that belongs to a trace; "" if all traces share one."""
        return ""

    @abstractmethod
    def with_text(self, drafter: Any, which: str) -> Drafter:
        """The drafter with a text; the same drafter if it supports none."""


class Earlier(Known):
    """The outputs of earlier traces, or with ``write`` "all" also their prompts."""

    shares = True

    def __init__(self, write: str) -> None:
        self.write = write

    def with_text(self, drafter: Any, which: str) -> Drafter:
        store = SharedStore(STORE_BYTES, namespace_bytes=STORE_BYTES, write=self.write)
        return _with_store(drafter, store[NAMESPACE])


class Tools(Known):
    """The tools of all traces, in OpenAI's form, in addition to other knowledge, if there is any.

    ``tokenizer`` is that of the traces.
    """

    def __init__(self, tools: Sequence[Any], tokenizer: Any, also: Known | None) -> None:
        self._calls = ToolCalls(tools, tokenizer)
        self._also = also
        self.shares = also is not None and also.shares

    def given_to(self, drafter: Drafter, trace: Trace) -> Drafter:
        if self._also is not None:
            drafter = self._also.given_to(drafter, trace)
        return super().given_to(drafter, trace)

    def with_text(self, drafter: Any, which: str) -> Drafter:
        return drafter.with_tools(self._calls)  # type: ignore[no-any-return]


class Knowledge(Known):
    """A corpus for all traces, or one for each repository that traces name.

    ``place`` is a corpus; or a folder with ``REPO.ngc``, a corpus, or ``REPO.npy``, token ids with
    a 0 after each document, for each trace's ``repo``.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self._corpora: dict[str, Corpus] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="ngramspec-")
        if not place.is_dir():
            self._corpora[""] = Corpus.open(place)

    def corpus(self, repo: str) -> Corpus:
        """A repository's corpus; from an .npy file it is built once, if it exists."""
        name = repo if self.place.is_dir() else ""
        if name not in self._corpora:
            path = self.place / f"{name}.ngc"
            if not path.is_file():
                tokens = np.load(path.with_suffix(".npy"))
                path = Path(self._folder.name) / path.name
                Corpus.build(np.split(tokens, np.flatnonzero(tokens == SEPARATOR_ID) + 1), path)
            self._corpora[name] = Corpus.open(path)
        return self._corpora[name]

    def which(self, trace: Trace) -> str:
        return trace.repo if self.place.is_dir() else ""

    def with_text(self, drafter: Any, which: str) -> Drafter:
        return _with_store(drafter, self.corpus(which))


def _with_store(drafter: Drafter, store: Any) -> Drafter:
    try:
        return drafter.with_stores([store])
    except ValueError:  # it supports none
        return drafter
