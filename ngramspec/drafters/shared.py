"""Sessions that draft from shared stores, count accepted tokens, and may add their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ngramspec.draft import Draft, Evidence, Int32
from ngramspec.drafters.base import ForwardingSession
from ngramspec.stores.shared_request import SharedRequest


class SharedSession(ForwardingSession):
    """Counts in a value engine's stores the tokens that were accepted from them.

    Args:
        session: a value engine's session.
        source: index in ``Draft.source`` of tokens from stores.
        own: requests that this session feeds with its committed tokens and ends: ``close`` counts
            as a normal end. Those of a call of ``generate`` are fed and ended there.
    """

    def __init__(self, session: Any, source: int, own: Sequence[SharedRequest]) -> None:
        super().__init__(session)
        self._credit = session.engine.credit_store
        self._source = source
        self._own = own

    def observe(
        self,
        draft: Draft,
        accepted: Sequence[int],
        tested: int | None = None,
        evidence: Evidence | None = None,
    ) -> None:
        if draft.source is not None and len(accepted):
            taken = int((draft.source[list(accepted)] == self._source).sum())
            if taken:
                self._credit(taken)
        super().observe(draft, accepted, tested, evidence)

    def extend(self, tokens: Int32) -> None:
        super().extend(tokens)
        for request in self._own:
            request.append(tokens)

    def close(self) -> None:
        super().close()
        for request in self._own:
            request.finish()
