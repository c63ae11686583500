"""One request's access to a namespace: what it adds, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ngramspec._native.store_stream import StoreStream
from ngramspec.draft import Int32

if TYPE_CHECKING:
    from ngramspec.stores.redis_sync import Outlet


class SharedRequest:
    """Reads a namespace's text and adds a request's own. One thread at a time.

    It replaces the namespace in the drafter's stores. It does not find its own text.

    Args:
        stream: a stream of the namespace.
        write: "outputs", "all" or "none", as in SharedStore.
        live: whether text is added before ``finish``.
        outlet: gets the text that is added, for other processes.
    """

    def __init__(
        self, stream: StoreStream, write: str, live: bool, outlet: Outlet | None = None
    ) -> None:
        self.index = stream
        self._outlet = outlet
        self._write = write
        self._live = live
        self._kept: list[Int32] = []

    def begin(self, prompt: Int32) -> None:
        """Record the prompt, int32 (n,)."""
        if self._write == "all":
            self._add(prompt)

    def append(self, tokens: Int32) -> None:
        """Record committed tokens, int32 (n,)."""
        if self._write != "none":
            self._add(tokens)

    def _add(self, tokens: Int32) -> None:
        if self._live:
            self._put(tokens)
        else:
            self._kept.append(np.array(tokens, np.int32))

    def _put(self, tokens: Int32) -> None:
        self.index.append(tokens)
        if self._outlet is not None:
            self._outlet.append(tokens)

    def pause(self) -> None:
        """Publish all text if it may be added before the end; the request may have ended."""
        if self._live:
            self.index.publish()

    def finish(self) -> None:
        """End the request normally: all text is added."""
        kept, self._kept = self._kept, []
        for tokens in kept:
            self._put(tokens)
        self.index.finish()
        if self._outlet is not None:
            self._outlet.end()

    def abort(self) -> None:
        """End a failed or aborted request: text that is not added yet is discarded."""
        self._kept = []
        self.index.end()
        if self._outlet is not None:
            self._outlet.end()
