"""One sequence of a batch: its text, its draft session and draft length, its draft and verdict.

The decode loop, beams, joint steps and engines all draft through ``Row``. It is the only place
where a drafter is called, replaced, and guarded against faults, and where a text, a draft and a
verdict are assigned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ngramspec.costs.policies import GammaController, likeliest
from ngramspec.decoding.stores import RowStores
from ngramspec.draft import (
    EMPTY_DRAFT,
    NO_TOKENS,
    Computed,
    Draft,
    Evidence,
    EvidenceRequest,
    Float32,
    Int32,
    Int64,
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
from ngramspec.stats import DecodeStats

if TYPE_CHECKING:
    from ngramspec.stats import ReferenceCounter  # most calls have none

logger = logging.getLogger("ngramspec")

MAX_FAULTS = 4  # the drafter is then not called again: each fault may cost rereading the whole text
FORGIVING_DRAFTS = 8  # consecutive valid drafts after which earlier faults no longer count

# Called at each fault with the drafter, the error, and whether the drafter is no longer called.
OnFault = Callable[[Drafter, Exception, bool], None]
NO_VERDICT = Verdict((), 0, ())
NO_IDS: Int64 = np.empty(0, np.int64)
INITIAL_TOKENS = 256  # generated tokens that new memory of a text has room for; not tuned


class Row:
    """One sequence. Not for several threads at once.

    A fault of a drafter only loses drafts. If a session raises, it is closed, and the next draft
    comes from a new session, which starts from the committed tokens. A draft that cannot be
    verified is also a fault, but does not close the session. After ``MAX_FAULTS`` faults with fewer
    than ``FORGIVING_DRAFTS`` valid drafts in between, the drafter is not called again.

    Drafters never see ids without a logit of the target, such as placeholders of images and ids of
    a reference text with another vocabulary. The target never emits them. If a stochastic drafter
    sampled one, its draft would be rejected because of a sampled token, which biases the output.

    A row has two texts. The ids that the caller sees have placeholders and padding, and lie in
    memory that the rows of a group may share. What drafters read is derived from them in ``begin``.
    It grows in ``learn``, after the step's verdict.

    Args:
        on_fault: see ``OnFault``.
        lengths: chooses the length of each draft. None: the caller of ``ask`` does.
        tree: None: all drafts are chains; "auto": trees, once costs are known; an integer: trees.
        begin: prepares a new session of the row.

    Attributes:
        length: number of committed ids that the caller sees.
        prompt_length: how many of them are the prompt.
        last: the last of them.
        ended: whether a stopping rule has fired.
        draft: the draft that the step verifies.
        verdict: the result of its verification.
        position: the position of the step's forward that has the logits of the next token; None:
            the forward has none, because the last token was not drafted.
        kept: the positions of the step's forward that the cache keeps.
        drafter: the drafter in use; None before the first.
        session: None before it starts and after it was closed.
        source_names: names that ``draft.source`` indexes, as of the session's start.
        count: number of committed ids of the vocabulary.
    """

    draft: Draft
    verdict: Verdict
    position: int | None
    kept: list[int]

    def __init__(
        self,
        on_fault: OnFault,
        lengths: GammaController | None = None,
        *,
        tree: int | str | None = None,
        begin: Callable[[Row, DraftSession], None] | None = None,
    ) -> None:
        self.reset()
        self.length = self.prompt_length = self.last = 0
        self.ended = False
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
        self._ids = NO_IDS
        self._known, self._read = NO_TOKENS, 0  # what drafters read: before, and generated tokens
        self._evidence: EvidenceRequest | None = None
        self._wants_evidence = True
        self._faults = self._valid = self._referred = 0

    # The committed text

    def place_in(self, memory: Int64, length: int) -> None:
        """Store the text in the given memory, int64 (n,), which already has its ``length`` ids.

        In the first call these are the prompt. When the memory is full, ``append`` allocates more.
        """
        if not self.length:
            self.prompt_length = length
        self._ids, self.length = memory, length
        self.last = int(memory[length - 1]) if length else 0

    def append(self, token: int) -> None:
        """Add a token to the text that the caller sees, such as padding after the row's end."""
        if self.length == len(self._ids):
            more = np.empty(self.length + INITIAL_TOKENS, np.int64)
            self._ids = np.concatenate((self._ids, more))
        self._ids[self.length] = self.last = token
        self.length += 1

    def ids_from(self, start: int) -> list[int]:
        """The committed ids from ``start`` on."""
        found: list[int] = self._ids[start : self.length].tolist()
        return found

    def begin(
        self, vocab: int, before: Int32 = NO_TOKENS, mask: Int64 | None = None, reference: int = 0
    ) -> None:
        """Derive what drafters read, once the size of the target's vocabulary is known.

        Args:
            before: text before the prompt, int32 (n,), such as a reference text.
            mask: int64 (m,), zero at hidden ids; its last entries are the prompt's. None: none is.
            reference: how many tokens of ``before`` are the reference text.
        """
        prompt = self._ids[: self.prompt_length]
        if mask is not None:
            prompt = unmasked(prompt, mask)
        ids = np.concatenate((before, prompt.astype(np.int32)))
        known = (ids >= 0) & (ids < vocab)
        self.vocab, self._known = vocab, ids[known]
        self._referred = int(known[:reference].sum())
        self.count = len(self._known)

    @property
    def prompt(self) -> Int32:
        """What drafters read before the first generated token, int32 (n,)."""
        return self._known

    def committed(self) -> Int32:
        """The committed ids of the vocabulary, from which a session starts, int32 (count,)."""
        generated = self._ids[self.prompt_length : self.prompt_length + self._read]
        return np.concatenate((self._known, generated.astype(np.int32)))

    def follow(self, other: Row, tokens: Sequence[int]) -> None:
        """Restart from what another row's drafters have read, followed by ``tokens``."""
        self.close()
        self._known, self.prompt_length = other._known, other.prompt_length
        read = other._ids[: other.prompt_length + other._read]
        self._ids = np.concatenate((read, np.array(tokens, np.int64)))
        self.length, self.last = len(self._ids), int(self._ids[-1])
        self._read, self.count = other._read + len(tokens), other.count + len(tokens)

    # The drafter

    def connect(
        self,
        current: Callable[[], Drafter],
        *,
        prepared: Callable[[Drafter], Drafter] | None = None,
        stored: RowStores | None = None,
        reference: ReferenceCounter | None = None,
    ) -> None:
        """Allow drafting, after ``begin``.

        Args:
            current: returns the drafter to use; called at every step.
            prepared: makes the row's own drafter from it; called when it has changed.
            stored: adds the row's text to the call's shared stores.
        """
        self._current, self._prepared = current, prepared
        self.stored, self._reference = stored, reference
        self.take_up_drafter()  # to whose namespaces the prompt is added
        if stored is not None:
            stored.begin(self._known[self._referred :], self._known[: self._referred])

    @property
    def connected(self) -> bool:
        """Whether ``connect`` was called."""
        return self._current is not None

    @property
    def evidence(self) -> EvidenceRequest | None:
        """What the session asks of the next forward; None: nothing, or no session is open."""
        return self._evidence if self.session is not None and self._wants_evidence else None

    # The draft and its verdict

    def reset(self) -> None:
        """Begin a step: there is no draft and no verdict, and the cache keeps no position."""
        self.draft, self.verdict = EMPTY_DRAFT, NO_VERDICT
        self.position, self.kept = 0, []
        self._accepted, self._emitted = list[int](), list[int]()  # of the verdict

    def take(self, draft: Draft) -> None:
        """Use a draft from another process, or one that ``ask`` has returned."""
        self.draft = draft

    def cut(self, length: int, *, path: bool = False) -> None:
        """Verify only the draft's first ``length`` nodes, or those of its most probable path."""
        draft = likeliest(self.draft) if path else self.draft
        self.draft = draft.first(length).as_chain()

    def keep(self) -> None:
        """Let the cache keep ``position``, also if what follows raises."""
        assert self.position is not None
        self.kept.append(self.position)

    def advance(self, token: int) -> None:
        """Commit the target's token at ``position``, and move along the draft if it has it."""
        node = None
        if self.position is not None and len(self.draft.tokens):
            node = self.draft.node_with(token, self.position)
        self._emitted.append(token)
        if node is not None:
            self._accepted.append(node)
        self.position = None if node is None else node + 1
        self.append(token)

    def pad(self, token: int) -> None:
        """Append padding, and move to the next position, which also has padding."""
        assert self.position is not None
        self.append(token)
        self.position += 1

    def shorten(self, length: int) -> int:
        """Drop the tokens beyond a length; return how many of them earlier steps had committed."""
        extra = self.length - length
        if extra <= 0:
            return 0
        stay = max(len(self.kept) - extra, 0)
        before = extra - (len(self.kept) - stay)
        for each in (self._emitted, self._accepted, self.kept):
            del each[stay:]
        self.length, self.last = length, int(self._ids[length - 1])
        return before

    def stay_with(self, other: Row, token: int) -> None:
        """Append padding, and keep the positions that another row keeps."""
        self.append(token)
        self.position = other.position

    def judge(self, verdict: Verdict | None = None) -> None:
        """Set the verdict: a given one, or that of how the row has advanced in this step."""
        if verdict is not None:
            self.verdict = verdict
        elif self._emitted:
            self.verdict = self.draft.verdict(self._accepted, self._emitted)

    def propose(
        self, limit: int, nodes: int = 0, *, tree: bool = True, required: Float32 | None = None
    ) -> Draft:
        """Set ``draft``, maybe to an empty one, with paths of at most ``limit`` tokens.

        A tree may have ``nodes`` nodes if these are more. Near the end of a text this keeps
        branches from shortening the path. A tree without branches becomes a chain, which needs no
        tree mask. ``required``: see ``GammaController.plan``.
        """
        self.draft = EMPTY_DRAFT
        try:
            if limit < 1 or not self.take_up_drafter():
                return EMPTY_DRAFT
            lengths, drafter = self._lengths, self.drafter
            assert lengths is not None
            if self.session is None:
                self.start()
            gamma, required = lengths.plan(drafter.estimates, required)
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

    def take_up_drafter(self) -> bool:
        """Use the current drafter, which starts without faults; return whether it may be called."""
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
        self._read += len(tokens)
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
        """The last ``n`` tokens that drafters have read, or fewer."""
        first = max(self._read - n, 0)
        generated = self._ids[self.prompt_length + first : self.prompt_length + self._read]
        missing = n - len(generated)
        before = self._known[-missing:] if missing else NO_TOKENS
        return np.concatenate((before, generated.astype(np.int32)))


def unmasked(ids: Int64, mask: Int64) -> Int64:
    """The ids that a mask, int64 (m,), does not hide; its last entries are theirs."""
    if mask.ndim != 1 or len(mask) < len(ids):
        return ids
    shown: Int64 = ids[mask[len(mask) - len(ids) :] != 0]
    return shown


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
