"""Sessions that draft from shared stores: they count what was accepted, and may add their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ngramspec.draft import Draft, Evidence, Float32, Int32
from ngramspec.drafters.base import DraftSession, hand_over
from ngramspec.stores.shared_request import SharedRequest


class SharedSession(DraftSession):
    """A value engine's session whose stores count the tokens that were accepted from them.

    Args:
        session: of a value engine.
        source: of drafted tokens that come from stores, in Draft.source.
        own: parts in namespaces that end with this session, and get its committed tokens: ``close``
            counts as a good end. Those of a call of ``generate`` get their tokens from there.
        tokens: the prompt.
    """

    def __init__(
        self, session: Any, source: int, own: Sequence[SharedRequest], tokens: Int32
    ) -> None:
        self._session = session
        self._source = source
        self._own = own
        for request in own:
            request.begin(tokens)

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        draft: Draft = self._session.propose(gamma, cost, tree=tree)
        return draft

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
                self._session.engine.credit_store(taken)
        if evidence is not None:
            hand_over(self._session, draft, accepted, tested, evidence)

    def extend(self, tokens: Int32) -> None:
        self._session.extend(tokens)
        for request in self._own:
            request.append(tokens)

    def sizeof(self) -> int | None:
        size: int | None = self._session.sizeof()
        return size

    def close(self) -> None:
        for request in self._own:
            request.finish()
