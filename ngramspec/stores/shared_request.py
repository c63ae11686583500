"""One request's part in a namespace: what it adds, and when."""

from __future__ import annotations

import numpy as np

from ngramspec._native.store_stream import StoreStream
from ngramspec.draft import Int32


class SharedRequest:
    """Reads a namespace's text and adds a request's own. One thread at a time.

    It stands in the drafter's stores in place of the namespace, and does not find its own text.

    Args:
        stream: of the namespace.
        write: "outputs", "all" or "none", as of SharedStore.
        live: whether text is added before ``finish``.
    """

    def __init__(self, stream: StoreStream, write: str, live: bool) -> None:
        self.index = stream
        self._write = write
        self._live = live
        self._kept: list[Int32] = []

    def begin(self, prompt: Int32) -> None:
        """Note the prompt, int32 (n,)."""
        if self._write == "all":
            self._add(prompt)

    def append(self, tokens: Int32) -> None:
        """Note committed tokens, int32 (n,)."""
        if self._write != "none":
            self._add(tokens)

    def _add(self, tokens: Int32) -> None:
        if self._live:
            self.index.append(tokens)
        else:
            self._kept.append(np.array(tokens, np.int32))

    def pause(self) -> None:
        """The request may have ended: what may be added before its end is, to the last token."""
        if self._live:
            self.index.publish()

    def finish(self) -> None:
        """The request ended well: everything is added."""
        kept, self._kept = self._kept, []
        for tokens in kept:
            self.index.append(tokens)
        self.index.finish()

    def abort(self) -> None:
        """The request failed, or was aborted: what is not added yet never is."""
        self._kept = []
        self.index.end()
