"""A draft session that limits the damage of a faulty drafter to its drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ngramspec._native.rows import sound_chain
from ngramspec.draft import EMPTY_DRAFT, Draft, Evidence, EvidenceRequest, Float32, Int32
from ngramspec.drafters.base import Drafter, DraftSession, hand_over
from ngramspec.drafters.validation import (
    check_draft,
    check_evidence,
    check_source_names,
    sound_head,
)

MAX_FAULTS = 4  # the drafter is then not called again: each fault may cost rereading the whole text
FORGIVING_DRAFTS = 8  # consecutive sound drafts after which earlier faults no longer count


class GuardedSession:
    """The draft session of one text. Not for several threads at once.

    If the session raises, it is closed, and the next draft comes from a new session, which starts
    from the committed tokens. A draft that cannot be verified is also a fault, but does not close
    the session. After ``MAX_FAULTS`` faults with fewer than ``FORGIVING_DRAFTS`` sound drafts in
    between, the drafter is not called again.

    ``on_fault`` is called with the drafter and the error at every fault.

    Attributes:
        drafter: the drafter in use, None before the first.
        source_names: names that its drafts' sources index, as of the session's start.
        session: None before it starts and after it was closed.
        returned: the last draft as the session returned it.
    """

    def __init__(self, vocab: int, on_fault: Callable[[Drafter, Exception], None]) -> None:
        self.drafter: Any = None
        self.source_names: tuple[str, ...] = ()
        self.session: DraftSession | None = None
        self.returned = EMPTY_DRAFT
        self._vocab, self._on_fault = vocab, on_fault
        self._evidence: EvidenceRequest | None = None
        self._wants_evidence = True
        self._faults = self._sound = 0

    @property
    def gave_up(self) -> bool:
        """Whether the drafter failed too often to be called again."""
        return self._faults >= MAX_FAULTS

    @property
    def evidence(self) -> EvidenceRequest | None:
        """What the session asks of the next forward; None: nothing, or no session is open."""
        return self._evidence if self.session is not None and self._wants_evidence else None

    def use(self, drafter: Drafter) -> None:
        """Use a drafter from now on. A drafter other than the current one starts without faults."""
        if drafter is not self.drafter:
            self.close()
            self.drafter, self.source_names, self._faults, self._sound = drafter, (), 0, 0

    def start(self, tokens: Int32) -> DraftSession:
        """Start a session of the drafter in use from the committed tokens, int32 (n,).

        It may raise, as every call of the drafter may. The caller reports that with ``fault``.
        """
        drafter = self.drafter
        self.source_names = check_source_names(drafter.source_names)
        self._evidence = check_evidence(drafter.evidence)
        self._wants_evidence = True
        session = drafter.start(tokens)
        if not isinstance(session, DraftSession):
            raise TypeError(f"start must return a DraftSession, got {type(session).__name__}")
        self.session = session
        return session

    def propose(
        self, gamma: int, cost: Float32 | None, *, tree: bool, copied: bool = True
    ) -> Draft:
        """A draft of at most ``gamma`` >= 1 tokens that can be verified. It may raise.

        If a draft cannot be verified, its sound part is returned, see ``sound_head``. ``copied``:
        the draft must be independent of later calls of the session.
        """
        assert self.session is not None
        draft = self.session.propose(gamma, cost, tree=tree)
        self._wants_evidence = self._evidence is not None and self.session.wants_evidence
        self.returned = draft
        if draft is EMPTY_DRAFT:
            self._count_sound()
            return draft
        plain = type(draft) is Draft and draft.parents is None and draft.proposal is None
        if not copied and plain and sound_chain(draft.tokens, draft.confidence, gamma, self._vocab):
            self._count_sound()
            return draft if len(draft.tokens) else EMPTY_DRAFT
        sources = len(self.source_names)
        try:
            checked = check_draft(draft, gamma, self._vocab, tree=tree, sources=sources)
        except Exception as error:
            self.fault(error)
            return sound_head(draft, gamma, self._vocab, tree=tree, sources=sources)
        self._count_sound()
        return checked

    def _count_sound(self) -> None:
        self._sound += 1
        if self._sound >= FORGIVING_DRAFTS:
            self._faults = 0

    def learn(
        self,
        draft: Draft,
        accepted: Sequence[int],
        verified: int | None,
        evidence: Evidence | None,
        tokens: Int32,
    ) -> None:
        """Pass the result of a draft, if there is one, and the committed tokens to the session."""
        if self.session is None:
            return
        try:
            if len(draft.tokens) or evidence is not None:
                hand_over(self.session, draft, accepted, verified, evidence)
            self.session.extend(tokens)
        except Exception as error:
            self.fault(error)
            self.close()

    def close(self) -> None:
        """Close the session, if one is open; an error in it is a fault."""
        session, self.session = self.session, None
        if session is not None:
            try:
                session.close()
            except Exception as error:
                self.fault(error)

    def fault(self, error: Exception) -> None:
        """Count a fault of the drafter and report it."""
        self._faults, self._sound = self._faults + 1, 0
        self._on_fault(self.drafter, error)
