"""One sequence of a batch: its text, its draft session and draft length, its draft and verdict.

The decode loop, beams, joint steps and engines all draft through ``Row``. It is the only place
where a drafter is called, replaced, and guarded against faults.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ngramspec.costs.policies import GammaController
from ngramspec.draft import (
    EMPTY_DRAFT,
    NO_TOKENS,
    Computed,
    Draft,
    Evidence,
    EvidenceRequest,
    Float32,
    Int32,
    Nodes,
    Observed,
    Verdict,
)
from ngramspec.drafters.base import (
    Drafter,
    DraftSession,
    call_observe,
    check_draft,
    check_evidence,
    check_source_names,
    is_plain_chain,
    valid_prefix,
)
from ngramspec.drafters.call import RowStores
from ngramspec.stats import DecodeStats

if TYPE_CHECKING:
    from ngramspec.decoding.reference import ReferenceCounter  # most calls have none

logger = logging.getLogger("ngramspec")

MAX_FAULTS = 4  # the drafter is then not called again: each fault may cost rereading the whole text
FORGIVING_DRAFTS = 8  # consecutive valid drafts after which earlier faults no longer count

# Called at each fault with the drafter, the error, and whether the drafter is no longer called.
OnFault = Callable[[Drafter, Exception, bool], None]
NO_VERDICT = Verdict((), 0, ())


class Row:
    """One sequence. Not for several threads at once.

    A fault of a drafter only loses drafts. If a session raises, it is closed, and the next draft
    comes from a new session, which starts from the committed tokens. A draft that cannot be
    verified is also a fault, but does not close the session. After ``MAX_FAULTS`` faults with fewer
    than ``FORGIVING_DRAFTS`` valid drafts in between, the drafter is not called again.

    Drafters never see ids without a logit of the target, such as placeholders of images and ids of
    a reference text with another vocabulary. The target never emits them. If a stochastic drafter
    sampled one, its draft would be rejected because of a sampled token, which biases the output.

    Args:
        on_fault: see ``OnFault``.
        lengths: chooses the length of each draft. None: the caller of ``ask`` does.
        tree: None: all drafts are chains; "auto": trees, once costs are known; an integer: trees.
        begin: prepares a new session of the row.

    Attributes:
        draft: the draft that the step verifies.
        verdict: the result of its verification.
        drafter: the drafter in use; None before the first.
        session: None before it starts and after it was closed.
        source_names: names that ``draft.source`` indexes, as of the session's start.
        count: number of committed ids of the vocabulary.
    """

    def __init__(
        self,
        on_fault: OnFault,
        lengths: GammaController | None = None,
        *,
        tree: int | str | None = None,
        begin: Callable[[Row, DraftSession], None] | None = None,
    ) -> None:
        self.draft, self.verdict = EMPTY_DRAFT, NO_VERDICT
        self.drafter: Any = None
        self.session: DraftSession | None = None
        self.source_names: tuple[str, ...] = ()
        self.stored: RowStores | None = None
        self.vocab = self.count = 0
        self._on_fault, self._lengths, self._begin = on_fault, lengths, begin
        self.tree = tree
        self._current: Callable[[], Drafter] | None = None
        self._prepared: Callable[[Drafter], Drafter] | None = None
        self._given: Drafter | None = None  # what ``_current`` returned at the last step
        self._reference: ReferenceCounter | None = None
        self._prompt, self._generated = NO_TOKENS, list[int]()
        self._evidence: EvidenceRequest | None = None
        self._wants_evidence = True
        self._faults = self._valid = 0

    def connect(
        self,
        current: Callable[[], Drafter],
        vocab: int,
        tokens: Int32 = NO_TOKENS,
        *,
        prepared: Callable[[Drafter], Drafter] | None = None,
        stored: RowStores | None = None,
        reference: ReferenceCounter | None = None,
    ) -> None:
        """Allow drafting, once the size of the target's vocabulary is known.

        Args:
            current: returns the drafter to use; called at every step.
            prepared: makes the row's own drafter from it; called when it has changed.
            tokens: the committed tokens, int32 (n,), which begin with the reference text.
            stored: adds the row's text to the call's shared stores.
        """
        self._current, self._prepared = current, prepared
        self.vocab, self.stored, self._reference = vocab, stored, reference
        self.may_draft()  # takes up the drafter, to whose namespaces the prompt is added
        known = (tokens >= 0) & (tokens < vocab)
        begin = 0 if reference is None else int(known[: reference.length].sum())
        self._prompt = tokens[known]
        self.count = len(self._prompt)
        if stored is not None:
            stored.begin(self._prompt[begin:], self._prompt[:begin])

    @property
    def connected(self) -> bool:
        """Whether ``connect`` was called."""
        return self._current is not None

    @property
    def evidence(self) -> EvidenceRequest | None:
        """What the session asks of the next forward; None: nothing, or no session is open."""
        return self._evidence if self.session is not None and self._wants_evidence else None

    def committed(self) -> Int32:
        """The committed ids of the vocabulary, from which a session starts, int32 (count,)."""
        return np.concatenate((self._prompt, np.array(self._generated, np.int32)))

    def propose(self, limit: int, nodes: int = 0, *, tree: bool = True) -> Draft:
        """Set ``draft``, maybe to an empty one, with paths of at most ``limit`` tokens.

        A tree may have ``nodes`` nodes if these are more. Near the end of a text this keeps
        branches from shortening the path. A tree without branches becomes a chain, which needs no
        tree mask.
        """
        self.draft = EMPTY_DRAFT
        try:
            if limit < 1 or not self.may_draft():
                return EMPTY_DRAFT
            lengths, drafter = self._lengths, self.drafter
            assert lengths is not None
            if self.session is None:
                self.start()
            gamma, required = lengths.plan(drafter.estimates)
            if tree and self.tree == "auto":
                tree = required is not None and bool(drafter.branches)
            tree = tree and self.tree is not None
            gamma = min(max(limit, nodes) if tree else limit, gamma)
            if gamma < 1:
                return EMPTY_DRAFT
            required = None if required is None else required.copy()  # drafters may change it
            draft = self.ask(gamma, required, tree=tree)
        except Exception as error:
            return self.lose_draft(error)
        if len(draft.tokens):
            self.draft = lengths.keep(draft.within(limit).as_chain())
        return self.draft

    def may_draft(self) -> bool:
        """Take up the current drafter, which starts without faults; whether it may be called."""
        if self._current is None:
            return False
        given = self._current()
        if given is not self._given:
            self.close()
            self._given, self._faults = given, MAX_FAULTS - 1  # in case it cannot be prepared
            self.drafter = given if self._prepared is None else self._prepared(given)
            self.source_names, self._faults, self._valid = (), 0, 0
        if self._faults < MAX_FAULTS:
            return True
        self.close()
        return False

    def start(self) -> None:
        """Start a session from the committed tokens. It may raise, as every call of a drafter."""
        drafter = self.drafter
        self.source_names = check_source_names(drafter.source_names)
        self._evidence = check_evidence(drafter.evidence)
        self._wants_evidence = True
        session = drafter.start(self.committed())
        if not isinstance(session, DraftSession):
            raise TypeError(f"start must return a DraftSession, got {type(session).__name__}")
        self.session = session
        if self._begin is not None:
            self._begin(self, session)

    def ask(
        self, gamma: int, required: Float32 | None, *, tree: bool, copied: bool = True
    ) -> Draft:
        """A draft of at most ``gamma`` >= 1 tokens that can be verified. It may raise.

        If a draft cannot be verified, its valid part is returned, see ``valid_prefix``. ``copied``:
        the draft must be independent of later calls of the session.
        """
        assert self.session is not None
        draft = self.session.propose(gamma, required, tree=tree)
        self._wants_evidence = self._evidence is not None and self.session.wants_evidence
        if draft is not EMPTY_DRAFT and (copied or not is_plain_chain(draft, gamma, self.vocab)):
            sources = len(self.source_names)
            try:
                draft = check_draft(draft, gamma, self.vocab, tree=tree, sources=sources)
            except Exception as error:
                self.fault(error)
                return valid_prefix(draft, gamma, self.vocab, tree=tree, sources=sources)
        self._valid += 1
        if self._valid >= FORGIVING_DRAFTS:
            self._faults = 0
        return draft if len(draft.tokens) else EMPTY_DRAFT

    def learn(self, computed: Computed | None = None) -> None:
        """Report the verdict of the draft, and commit the tokens of the verdict."""
        draft, verdict = self.draft, self.verdict
        if len(draft.tokens) and self._lengths is not None:
            self._lengths.observe(len(draft.tokens), len(verdict.accepted))
        if self._reference is not None:
            self._reference.count(self._last(2), draft, verdict.accepted)
        evidence = None
        if computed is not None and self.evidence is not None:
            last = int(self._last(1)[-1]) if self.count else 0
            evidence = Evidence.of(draft, verdict.accepted, last, computed)
        tokens = np.array(verdict.emitted, np.int32)
        self._generated += verdict.emitted
        self.count += len(tokens)
        if self.stored is not None and self.stored.writes:
            self.stored.append(tokens)
        self.observe(tuple(verdict.accepted), verdict.verified, evidence, tokens)

    def observe(
        self, accepted: Nodes, verified: int | None, evidence: Observed, tokens: Int32
    ) -> None:
        """Pass the draft's result, and then the committed ids of the vocabulary, to the session."""
        if self.session is None:
            return
        try:
            if len(self.draft.tokens) or evidence is not None:
                call_observe(self.session, self.draft, accepted, verified, evidence)
            self.session.extend(tokens)
        except Exception as error:
            self.lose_draft(error)

    def follow(self, other: Row, tokens: Sequence[int]) -> None:
        """Restart from another row's committed tokens, followed by ``tokens``."""
        self.close()
        self._prompt, self._generated = other._prompt, [*other._generated, *tokens]
        self.count = other.count + len(tokens)

    def end(self, *, completed: bool) -> None:
        """End the text in shared stores, which add the remaining tokens only if ``completed``."""
        if self.stored is not None and self.stored.writes:
            self.stored.end(completed=completed)

    def close(self) -> None:
        """End the session, if one is open; an error in it is a fault."""
        session, self.session = self.session, None
        if session is not None:
            try:
                session.close()
            except Exception as error:
                self.fault(error)

    def lose_draft(self, error: Exception) -> Draft:
        """Count a fault after which the session cannot be used; return the empty draft."""
        self.fault(error)
        self.close()
        return EMPTY_DRAFT

    def fault(self, error: Exception) -> None:
        """Count a fault of the drafter and report it."""
        self._faults, self._valid = self._faults + 1, 0
        self._on_fault(self.drafter, error, self._faults == MAX_FAULTS)

    def _last(self, n: int) -> Int32:
        """The last ``n`` committed tokens, or fewer."""
        generated = self._generated[-n:]
        missing = n - len(generated)
        before = self._prompt[-missing:] if missing else NO_TOKENS
        return np.concatenate((before, np.array(generated, np.int32)))


def report_fault(stats: DecodeStats, drafter: Drafter, error: Exception, stopped: bool) -> None:
    """Count a drafter's fault in a generation, and log the first one of all rows."""
    name = type(drafter).__name__
    stats.drafter_faults += 1
    if stats.drafter_faults == 1:
        logger.warning("%s failed, the step has no draft: %r", name, error, exc_info=error)
    if stopped:
        stats.drafters_stopped += 1
        if stats.drafters_stopped == 1:
            what = "%s failed %d times and is no longer called in this generation"
            logger.warning(what, name, MAX_FAULTS)
