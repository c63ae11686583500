"""The stores and tools of one call, and of each of its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ngramspec.draft import NO_TOKENS, Int32
from ngramspec.drafters.base import Drafter
from ngramspec.stores import have_entries, open_entries, open_stores

if TYPE_CHECKING:
    from ngramspec.drafters.tool_calls import ToolCalls
    from ngramspec.stores.shared import Namespace, SharedRequest, SiblingAnswer


class CallStores:
    """The stores and tools of one call, for its rows.

    ``current`` returns the Speculator's drafter. ``stores`` replace that drafter's (None: keep
    them), for all ``prompts`` or one entry for each, and ``extra`` come in addition. ``session``
    names the conversation in the namespaces. ``rows`` are those of all prompts.
    """

    def __init__(
        self,
        current: Callable[[], Drafter],
        stores: Any,
        extra: Any,
        log_once: Callable[[str], None],
        session: str | None = None,
        tools: ToolCalls | None = None,
        rows: int = 1,
        prompts: int = 1,
    ) -> None:
        for name, given in (("stores", stores), ("extra_stores", extra)):
            entries = given if have_entries(given) else [given]
            if any(isinstance(each, Mapping) for entry in entries for each in entry or ()):
                raise ValueError(f"{name} of a call must be stores, not settings of a new one")
        self.current = current
        self.log_once, self.session, self.tools = log_once, session, tools
        self._stores = open_entries(stores, None)  # None: the drafter's
        count = len(self._stores)
        if have_entries(stores) and count != prompts:
            raise ValueError(f"stores must have an entry for each prompt, {prompts}, got {count}")
        self._rows = rows // count  # of each entry
        opened = open_stores(extra, "extra_stores")
        self._joined: dict[int, SiblingAnswer] = {}  # by row
        self.answers = tuple(each for each in opened if hasattr(each, "others"))
        self._extra = tuple(each for each in opened if each not in self.answers)
        for row in range(0, rows, self._rows):
            current().with_stores(self.of(current(), row))

    def of(self, drafter: Drafter, row: int = 0) -> tuple[Any, ...]:
        """The stores of a row's drafter."""
        own = self._stores[0 if len(self._stores) == 1 else row // self._rows]
        return (*(drafter.stores if own is None else own), *self._extra)

    def join_equal(self, prompts: Sequence[Int32], tokens: int) -> None:
        """Draft rows with equal ``prompts``, int32 (n,) each, from each other."""
        same: dict[bytes, list[int]] = {}
        for row, prompt in enumerate(prompts):
            same.setdefault(prompt.tobytes(), []).append(row)
        for rows in same.values():
            if len(rows) > 1:
                from ngramspec.stores.shared import sibling_answers  # most calls have one row

                self._joined |= zip(rows, sibling_answers(len(rows), tokens), strict=True)

    def row(self, vocab: int, index: int = 0) -> RowStores:
        """The stores of the row ``index``, for a target with ``vocab`` token ids."""
        joined = self._joined.get(index)
        answers = self.answers if joined is None else (joined,)
        return RowStores(self, vocab, index, answers)


class RowStores:
    """What one row drafts from, and what it adds to each namespace.

    Attributes:
        writes: whether it adds the row's text anywhere.
    """

    def __init__(
        self, call: CallStores, vocab: int, row: int, answers: Sequence[SiblingAnswer] = ()
    ) -> None:
        self._call, self._vocab, self._row = call, vocab, row
        self._written = [each.written() for each in answers]
        self._read = [each for own in answers for each in own.read(vocab)]
        self._requests: dict[Namespace, SharedRequest] = {}
        self.writes = bool(answers)

    def given_to(self, drafter: Drafter) -> Drafter:
        """The Speculator's drafter with the row's stores and tools; to be called before ``begin``.

        The row's text is then added to the namespaces among the stores.
        """
        stores, own = self._fitting(self._call.of(drafter, self._row)), drafter
        if stores != drafter.stores:
            own = drafter.with_stores(stores)
        if self._read:
            with suppress(ValueError):  # it takes no stores
                own = drafter.with_stores((*stores, *self._read))
        return own if self._call.tools is None else own.with_tools(self._call.tools)

    def begin(self, prompt: Int32, reference: Int32 = NO_TOKENS) -> None:
        """Record the row's prompt, int32 (n,), and the reference text before it, int32 (m,)."""
        for request in self._requests.values():
            request.begin(prompt, reference)

    def append(self, tokens: Int32) -> None:
        """Record the row's committed tokens, int32 (n,)."""
        for request in self._requests.values():
            request.append(tokens)
        for answer in self._written:
            answer.append(tokens)
            answer.pause()  # at once

    def pause(self) -> None:
        """Called when the row may have ended without notice."""
        for request in self._requests.values():
            request.pause()

    def end(self, *, completed: bool) -> None:
        """End the row; if not ``completed``, text that is not added yet is discarded."""
        for request in self._requests.values():
            if completed:
                request.finish()
            else:
                request.abort()

    def _fitting(self, stores: Sequence[Any]) -> tuple[Any, ...]:
        """The stores that fit the vocabulary, with the row's requests instead of namespaces."""
        fitting: list[Any] = []
        for store in stores:
            try:
                store.check_vocabulary(self._vocab)
                own = self._requests.get(store) or store.request(self._vocab, self._call.session)
            except ValueError as error:
                self._call.log_once(f"drafting without a store: {error}")
                continue
            if own is not store:
                self._requests[store] = own
            fitting.append(own)
        self.writes = self.writes or bool(self._requests)
        return tuple(fitting)
