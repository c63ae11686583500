"""Sessions that draft from shared stores, count accepted tokens, and may add their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ngramspec.draft import Draft, Evidence, Int32
from ngramspec.drafters.base import DraftSession, ForwardingSession
from ngramspec.drafters.value import ValueDrafter, ValueSession
from ngramspec.stores.choice import one_source
from ngramspec.stores.corpus import Corpus
from ngramspec.stores.shared import Namespace
from ngramspec.stores.shared_request import SharedRequest

# Last prompt tokens that calibrate a corpus; measured in docs/internals/value-engine.md.
REHEARSED_TOKENS = 512


def start_with_stores(drafter: ValueDrafter, tokens: Int32) -> DraftSession:
    """A session of a value drafter that has stores; ``tokens`` is the prompt, int32 (n,)."""
    own = {each: each.request() for each in drafter.stores if isinstance(each, Namespace)}
    stores = [own.get(each, each) for each in drafter.stores]
    rehearsed = REHEARSED_TOKENS if any(isinstance(each, Corpus) for each in stores) else 0
    for request in own.values():
        request.begin(tokens)
    known = (each.familiar for each in stores if isinstance(each, SharedRequest))
    engine = drafter.engine(one_source(stores), next(known, None))
    tools = drafter.predictor(tokens)
    session = ValueSession(engine, tokens, drafter.always, rehearsed=rehearsed, tools=tools)
    if not any(isinstance(each, SharedRequest) for each in stores):
        return session
    return SharedSession(session, drafter.source_names.index("store"), list(own.values()))


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
        verified: int | None = None,
        evidence: Evidence | None = None,
    ) -> None:
        if draft.source is not None and len(accepted):
            taken = int((draft.source[list(accepted)] == self._source).sum())
            if taken:
                self._credit(taken)
        super().observe(draft, accepted, verified, evidence)

    def extend(self, tokens: Int32) -> None:
        super().extend(tokens)
        for request in self._own:
            request.append(tokens)

    def close(self) -> None:
        super().close()
        for request in self._own:
            request.finish()
