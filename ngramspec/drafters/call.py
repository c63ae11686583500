"""The drafter of one call: the Speculator's, with the call's stores, tools and forced tokens."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ngramspec.costs.policies import worthwhile_nodes
from ngramspec.draft import EMPTY_DRAFT, NO_TOKENS, Draft, Evidence, Float32, Int32
from ngramspec.drafters.base import (
    MAX_SOURCES,
    Drafter,
    DraftSession,
    ForwardingSession,
    call_observe,
    verified_count,
)
from ngramspec.stores import open_stores

if TYPE_CHECKING:
    from ngramspec.drafters.tool_calls import ToolCalls
    from ngramspec.stores.shared import Namespace, SharedRequest, SiblingAnswer


class CallStores:
    """The stores and tools of one call, for its rows.

    ``current`` returns the Speculator's drafter. ``stores`` replace that drafter's (None: keep
    them), and ``extra`` come in addition. ``session`` names the conversation in the namespaces.
    """

    def __init__(
        self,
        current: Callable[[], Drafter],
        stores: Any,
        extra: Any,
        log_once: Callable[[str], None],
        session: str | None = None,
        tools: ToolCalls | None = None,
    ) -> None:
        self.current = current
        self.log_once, self.session, self.tools = log_once, session, tools
        self._stores = None if stores is None else open_stores(stores)
        given = open_stores(extra, "extra_stores")
        self._joined: dict[int, SiblingAnswer] = {}  # by row
        self.answers = tuple(each for each in given if hasattr(each, "others"))
        self._extra = tuple(each for each in given if each not in self.answers)
        current().with_stores(self.of(current()))

    def of(self, drafter: Drafter) -> tuple[Any, ...]:
        """The stores of a drafter in this call."""
        return (*(drafter.stores if self._stores is None else self._stores), *self._extra)

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
        return RowStores(self, vocab, self.answers if joined is None else (joined,))


class RowStores:
    """What one row drafts from, and what it adds to each namespace."""

    def __init__(self, call: CallStores, vocab: int, answers: Sequence[SiblingAnswer] = ()) -> None:
        self._call = call
        self._vocab = vocab
        self._written = [each.written() for each in answers]
        self._read = [each for own in answers for each in own.read(vocab)]
        self._requests: dict[Namespace, SharedRequest] = {}
        self._made: tuple[Drafter, Drafter] | None = None
        self.drafter()

    def drafter(self) -> Drafter:
        """The Speculator's current drafter with the row's stores and tools."""
        current = self._call.current()
        if self._made is None or self._made[0] is not current:
            stores = self._fitting(self._call.of(current))
            drafter = current if stores == current.stores else current.with_stores(stores)
            if self._read:
                with suppress(ValueError):  # it takes no stores
                    drafter = current.with_stores((*stores, *self._read))
            if self._call.tools is not None:
                drafter = drafter.with_tools(self._call.tools)
            self._made = (current, drafter)
        return self._made[1]

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
            except ValueError as error:
                self._call.log_once(f"drafting without a store: {error}")
                continue
            own = self._requests.get(store)
            if own is None:
                own = store.request(self._vocab, self._call.session)
                if own is not store:
                    self._requests[store] = own
            fitting.append(own)
        return tuple(fitting)


logger = logging.getLogger("ngramspec")

FORCED_SOURCE = "forced"
# Accepted and verified forced tokens that the counts begin with: all but the last, and the last,
# which a longer token may replace.
PRIOR_COUNTS, PRIOR_COUNTS_LAST = (19, 20), (1, 2)


class Forced(ABC):
    """The tokens that a call's constraints determine."""

    @abstractmethod
    def after(self, context: Sequence[int], max_tokens: int) -> list[int]:
        """The tokens that have to follow, of which ``max_tokens`` >= 1 are needed; empty: a choice.

        ``context`` has the last committed token, if there is one.
        """


class ForcedDrafter(Drafter):
    """Drafts forced tokens where there are any, otherwise what another drafter drafts.

    A grammar forces characters, and the target may encode them in other tokens. Each session counts
    how often it does, separately for the last token of a forced continuation.
    """

    def __init__(self, inner: Drafter, forced: Forced) -> None:
        self.inner = inner
        self.forced = forced
        self.estimates = inner.estimates
        self.branches = inner.branches
        self.evidence, self.assistants = inner.evidence, inner.assistants

    @property
    def source_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The inner drafter's sources, and one for forced tokens."""
        return (*self.inner.source_names, FORCED_SOURCE)

    def start(self, tokens: Int32) -> DraftSession:
        return _ForcedSession(self, self.inner.start(tokens), tokens)


class ForcedBefore:
    """Returns a row's drafter, preceded by forced tokens; the same one for the same drafter."""

    def __init__(self, current: Callable[[], Drafter], forced: Forced) -> None:
        self._current, self._forced = current, forced
        self._made: ForcedDrafter | None = None

    def __call__(self) -> Drafter:
        current = self._current()
        if len(current.source_names) >= MAX_SOURCES:
            return current
        if self._made is None or self._made.inner is not current:
            self._made = ForcedDrafter(current, self._forced)
        return self._made


class _ForcedSession(ForwardingSession):
    def __init__(self, drafter: ForcedDrafter, inner: DraftSession, tokens: Int32) -> None:
        super().__init__(inner)
        self._forced = drafter.forced
        self._source = len(drafter.source_names) - 1
        self._context = tokens[-1:].tolist()
        self._counts = [list(PRIOR_COUNTS), list(PRIOR_COUNTS_LAST)]
        self._broken = False
        self._mine = 0  # forced tokens of the last draft; 0: the inner session drafted it

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        """Draft the forced tokens, unless the inner draft begins with them and is longer."""
        forced = self._after(gamma)
        confidence = self._confidence(len(forced))
        if forced and cost is not None:
            forced = forced[: worthwhile_nodes(np.cumprod(confidence, dtype=np.float64), cost)]
        self._mine = len(forced)
        if not forced:
            return self.inner.propose(gamma, cost, tree=tree)
        draft = self.inner.propose(gamma, cost)
        agrees = draft.proposal is None and draft.tokens[: len(forced)].tolist() == forced
        if agrees and draft.parents is None:
            self._mine = 0
            return draft
        source = np.full(len(forced), self._source, np.int8)
        return Draft(np.array(forced, np.int32), None, confidence[: len(forced)], None, source)

    def _after(self, max_tokens: int) -> list[int]:
        """The forced tokens; always empty after an error, which is logged."""
        if max_tokens < 1 or self._broken:
            return []
        try:
            return self._forced.after(self._context, max_tokens)[:max_tokens]
        except Exception as error:
            self._broken = True
            kind = type(error).__name__  # the message can quote the text
            logger.warning("jump-forward decoding is disabled after an error: %s", kind)
            return []

    def _confidence(self, count: int) -> Float32:
        """P(accepted | those before accepted) of each of ``count`` forced tokens, float32."""
        within, last = (accepted / verified for accepted, verified in self._counts)
        return np.array([within] * (count - 1) + [last] * (count > 0), np.float32)

    def observe(
        self,
        draft: Draft,
        accepted: Sequence[int],
        verified: int | None = None,
        evidence: Evidence | None = None,
    ) -> None:
        if not self._mine:
            super().observe(draft, accepted, verified, evidence)
            return
        if evidence is not None:
            call_observe(self.inner, EMPTY_DRAFT, (), None, evidence)
        for node in range(verified_count(draft, accepted, verified)):
            counts = self._counts[node == self._mine - 1]
            counts[0] += node < len(accepted)
            counts[1] += 1

    def extend(self, tokens: Int32) -> None:
        self._context = tokens[-1:].tolist() or self._context
        super().extend(tokens)
