"""One request's access to a namespace: what it adds, and when."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ngramspec._native.store_reader import Familiar
from ngramspec._native.store_ring import WRITTEN_AGAIN, StoreStream
from ngramspec.draft import NO_TOKENS, Int32
from ngramspec.stores.conversations import NO_CONVERSATIONS, Begun, Conversations, TextHash

Outlet = Callable[..., None]  # see ``RedisSync.outlet``


class SharedRequest:
    """Reads a namespace's text and adds a request's own. One thread at a time.

    It replaces the namespace in the drafter's stores. It does not find its own text, nor the text
    that earlier requests of the same conversation added, because both are in the sequence itself.

    ``write`` and ``live`` are those of SharedStore. ``outlet`` gets the text that is added, for
    other processes. ``session`` is the conversation's name.
    """

    def __init__(
        self,
        stream: StoreStream,
        write: str,
        live: bool,
        outlet: Outlet | None = None,
        conversations: Conversations = NO_CONVERSATIONS,
        session: str | None = None,
    ) -> None:
        self.index = stream
        # What the conversation's requests learned about the store, from ``begin`` on.
        self.familiar: Familiar | None = None
        self._write, self._live, self._outlet = write, live, outlet
        self._conversations, self._session = conversations, session
        self._begun: Begun | None = None
        self._ended = False
        self._text = TextHash()
        self._new: list[Int32] = []  # committed tokens that are not hashed yet
        self._kept: list[Int32] = []

    def begin(self, prompt: Int32, reference: Int32 = NO_TOKENS) -> None:
        """Record the prompt, int32 (n,), and the reference text before it, int32 (m,).

        Of a prompt that begins like earlier ones, only what is new is added.
        """
        self._begun, self._text = self._conversations.begin(prompt, self._session)
        self.familiar, known = self._begun.familiar, self._begun.known
        if self._begun.earlier is not None:
            self.index.follow(self._begun.earlier.stream)
        else:
            known = max(known - WRITTEN_AGAIN, 0)  # so that they find what is new
        if self._write != "all" and known < len(prompt):
            self.index.end()  # what is added next does not follow the last text that was added
        if self._write == "all":
            self._add(reference)
            self._add(prompt[known:])
            if self._live:
                self._mark()

    def append(self, tokens: Int32) -> None:
        """Record committed tokens, int32 (n,)."""
        if self._begun is not None:
            self._new.append(tokens)
        if self._write != "none":
            self._add(tokens)

    def _mark(self) -> None:
        if self._begun is not None and self._write == "all":
            self._conversations.mark(self._begun, self._text)

    def _add(self, tokens: Int32) -> None:
        if self._live:
            self._put(tokens)
        else:
            self._kept.append(np.array(tokens, np.int32))

    def _put(self, tokens: Int32) -> None:
        self.index.append(tokens)
        if self._outlet is not None:
            self._outlet(tokens)

    def pause(self) -> None:
        """Publish all text if it may be added before the end; the request may have ended."""
        if self._live:
            self.index.publish()
            self._keep()

    def _keep(self) -> None:
        """Keep the conversation with all text so far."""
        if self._begun is None:
            return
        self._text.add(np.concatenate([NO_TOKENS, *self._new]))
        self._new = []
        self._mark()
        self._begun = self._conversations.end(self._begun, self._text, self.index)

    def finish(self) -> None:
        """End the request normally: all text is added."""
        self._ended = True
        kept, self._kept = self._kept, []
        for tokens in kept:
            self._put(tokens)
        if self._outlet is not None:
            self._outlet(NO_TOKENS, end=True)
        if self._begun is None:
            self.index.finish()
        else:
            self.index.close()  # the next turn follows
        self._keep()

    def abort(self) -> None:
        """End a failed or aborted request: text that is not added yet is discarded.

        After ``finish`` this has no effect.
        """
        if self._ended:
            return
        self._kept = []
        self.index.end()
        if self._outlet is not None:
            self._outlet(NO_TOKENS, end=True)
