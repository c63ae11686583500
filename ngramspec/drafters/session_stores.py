"""The stores of one sequence: what it drafts from, and the namespaces that get its text."""

from __future__ import annotations

from collections.abc import Sequence

from ngramspec.draft import Int32
from ngramspec.stores.choice import OpenStore, one_source
from ngramspec.stores.corpus import Corpus
from ngramspec.stores.shared import Namespace
from ngramspec.stores.shared_request import SharedRequest

# Last prompt tokens that calibrate a corpus; measured in docs/internals/value-engine.md.
REHEARSED_TOKENS = 512


class SessionStores:
    """The stores, at least one, of one sequence that begins with ``prompt``, int32 (n,).

    The sequence is a separate request in each namespace. Requests among ``stores`` are begun, fed
    and ended by the call of ``generate`` that they belong to.

    Attributes:
        source: all stores as one.
        familiar: what the conversation's earlier requests learned about the first shared store.
        rehearsed: number of last prompt tokens to learn from.
    """

    def __init__(self, stores: Sequence[OpenStore | SharedRequest], prompt: Int32) -> None:
        own = {each: each.request() for each in stores if isinstance(each, Namespace)}
        for request in own.values():
            request.begin(prompt)
        read = [own[each] if isinstance(each, Namespace) else each for each in stores]
        known = (each.familiar for each in read if isinstance(each, SharedRequest))
        self.source = one_source(read)
        self.familiar = next(known, None)
        self.rehearsed = REHEARSED_TOKENS if any(isinstance(each, Corpus) for each in read) else 0
        self._own = list(own.values())

    def append(self, tokens: Int32) -> None:
        """Add committed tokens, int32 (n,), to the namespaces."""
        for request in self._own:
            request.append(tokens)

    def finish(self) -> None:
        """End the sequence normally."""
        for request in self._own:
            request.finish()
