"""The drafting sessions of an engine's rows: begun, asked, fed, closed, and bounded."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields

import numpy as np

from ngramspec._native.row_text import sound_chain
from ngramspec.draft import EMPTY_DRAFT, Draft, Float32, Int32
from ngramspec.drafters.base import Drafter, DraftSession
from ngramspec.drafters.stored import CallDrafter, RowDrafter
from ngramspec.drafters.validation import check_draft
from ngramspec.engines.row_choice import accepted_nodes
from ngramspec.engines.row_texts import Row, RowText, RowTexts
from ngramspec.stores.shared import Namespace

logger = logging.getLogger("ngramspec")

FAULTS = 4  # after so many in one text the drafter is not asked any more there:
FORGIVEN = 8  # each may cost reading the text. Unless so many sound drafts came between
IDLE = 4096  # calls after which a text that was not seen is dropped
MEASURED = 64  # tokens after which a text's bytes are counted anew


@dataclass(slots=True)
class RowsStats:
    """Counts of ``Rows`` since it began.

    Attributes:
        calls: of ``step``.
        row_steps: rows with new tokens, over all calls.
        emitted: new tokens that were told, first ones behind prompts included.
        drafted: draft tokens that were returned.
        accepted: of those, as many as the next new tokens agreed with.
        opened: sessions begun, those begun anew included.
        moved: texts found again in another row, or after a pause.
        dropped: texts dropped because they were not seen for long, or for want of room.
        faults: drafts lost because the drafter raised or returned what cannot be verified.
        crowded: row-steps without a draft since all room was taken by rows of the same call.
        seconds: in ``step``.
    """

    calls: int = 0
    row_steps: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    opened: int = 0
    moved: int = 0
    dropped: int = 0
    faults: int = 0
    crowded: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, int | float]:
        """All counts by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


class RowSessions:
    """The texts of all rows with a session each, at most so many and so large.

    Not for several threads at once.

    Args:
        drafter: whose sessions they are.
        vocab: size of the target's vocabulary: no other ids are told to a session, or drafted.
        tree: whether drafts may be trees.
        max_sessions: most texts.
        max_bytes: most bytes of texts and sessions, as far as they tell their size.
    """

    def __init__(
        self, drafter: Drafter, vocab: int, tree: bool, max_sessions: int, max_bytes: int
    ) -> None:
        self.drafter = drafter
        self.vocab = vocab
        self.tree = tree
        self.max_sessions = max_sessions
        self.max_bytes = max_bytes
        shares = any(isinstance(store, Namespace) for store in drafter.stores)
        self._shared = CallDrafter(lambda: drafter, None, None, logger.warning) if shares else None
        self.texts = RowTexts()
        self.stats = RowsStats()
        self.open = 0  # sessions
        self._per_token = 64.0  # bytes, of the texts that were opened

    def advance(self, place: int, row: Row, text: RowText | None) -> RowText:
        """The text of row ``place``, brought up to date.

        Args:
            text: which the row continues, as ``RowTexts.find`` says; None: one that is new.
        """
        if text is None:
            known = None if row.key is None else self.texts.of_key(row.key)
            if known is not None:
                self.drop(known)  # the engine took tokens back, or gave the id to another request
            text = self.texts.add(row.key)
            if self._shared is not None:
                text.stored = self._shared.row(self.vocab)
        draft, text.draft, begin = text.draft, EMPTY_DRAFT, text.text.count
        new = self.texts.take(place, text, row, self.vocab)
        self.stats.emitted += len(row.new)
        text.steps += 1
        text.emitted += len(row.new)
        if text.stored is not None:
            _store(text.stored, new, len(row.new), begin)
        if text.session is not None:
            self._learn(text, draft, row, begin, new)
            if row.length // MEASURED != begin // MEASURED:
                self.texts.measure(text)
        return text

    def rows_known(self) -> None:
        """All rows of a call were told. Texts that have none any more may have ended: what they
        said is added to shared stores.
        """
        self.stats.moved = self.texts.moves
        if self._shared is not None:
            for text in self.texts.gone():
                if text.stored is not None:
                    text.stored.pause()

    def store_counts(self) -> dict[str, int]:
        """As ``Rows.store_counts``."""
        shared = [each for each in self.drafter.stores if isinstance(each, Namespace)]
        counts = [each.statistics() for each in shared]
        return {
            f"store_{name}": sum(getattr(each, name) for each in counts)
            for name in ("tokens", "hits", "accepted")
            if counts
        }

    def _learn(self, text: RowText, draft: Draft, row: Row, begin: int, new: Int32) -> None:
        assert text.session is not None
        try:
            if len(draft.tokens):
                accepted = accepted_nodes(draft, row.tokens, begin, row.length)
                self.stats.accepted += len(accepted)
                whole = len(accepted) == row.length - begin  # the engine verified no more of it
                text.session.observe(draft, accepted, len(accepted) if whole else None)
            text.session.extend(new)
        except Exception as error:
            self.fault(error, text)

    def ask(self, text: RowText, room: int, cost: Float32 | None) -> Draft:
        """A sound draft of at most ``room`` nodes.

        Args:
            text: whose.
            room: >= 1.
            cost: float32 (room + 2,) or longer, for ``DraftSession.propose``; None: none is known.
        """
        if text.faults >= FAULTS:
            return EMPTY_DRAFT
        try:
            if text.session is None and not self._open(text):
                self.stats.crowded += 1
                return EMPTY_DRAFT
            assert text.session is not None
            given = None if cost is None else cost[: room + 2].copy()
            draft = text.session.propose(room, given, tree=self.tree)
        except Exception as error:
            self.fault(error, text)
            return EMPTY_DRAFT
        try:
            sound = self._checked(draft, room)
        except Exception as error:
            self.fault(error, text, close=False)
            return self._sound_head(draft, room)
        text.sound += 1
        if text.sound >= FORGIVEN:
            text.faults = 0
        return sound

    def _checked(self, draft: Draft, room: int) -> Draft:
        """The draft, if it is sound, else an error. The usual chain is not copied."""
        if self.tree:
            tiers = len(self.drafter.tiers)
            return check_draft(draft, room, self.vocab, tree=True, tiers=tiers).as_chain()
        if (
            type(draft) is Draft
            and draft.parents is None
            and draft.proposal is None
            and sound_chain(draft.tokens, draft.confidence, room, self.vocab)
        ):
            return draft if len(draft.tokens) else EMPTY_DRAFT
        return check_draft(draft, room, self.vocab)

    def _sound_head(self, draft: object, room: int) -> Draft:
        """The longest head of a chain that can be verified, without its confidence."""
        if type(draft) is not Draft or type(draft.tokens) is not np.ndarray:
            return EMPTY_DRAFT
        tokens = draft.tokens[:room].copy() if draft.tokens.ndim == 1 else draft.tokens
        if draft.parents is not None or tokens.dtype != np.int32 or tokens.ndim != 1:
            return EMPTY_DRAFT
        wrong = ((tokens < 0) | (tokens >= self.vocab)).nonzero()[0]
        return Draft(tokens[: wrong[0]] if len(wrong) else tokens)

    def _open(self, text: RowText) -> bool:
        """Begin the text's session; False: there is no room."""
        tokens = text.text.copy()
        tokens = tokens[(tokens >= 0) & (tokens < self.vocab)]
        wanted = int(self._per_token * text.count)
        while self.open >= self.max_sessions or self.texts.bytes + wanted > self.max_bytes:
            oldest = self.texts.oldest()
            if oldest is None:
                return False
            self.drop(oldest, counted=True)
        drafter = self.drafter if text.stored is None else text.stored()
        session = drafter.start(tokens)
        if not isinstance(session, DraftSession):
            raise TypeError(f"start must return a DraftSession, got {type(session).__name__}")
        text.session = session
        self.open += 1
        self.stats.opened += 1
        self.texts.measure(text)
        self._per_token = 0.9 * self._per_token + 0.1 * text.size / max(text.count, 1)
        return True

    def shrink(self) -> None:
        """Drop what was not seen for long, and what is too much; last, texts of this call."""
        texts = self.texts
        while (oldest := texts.oldest()) is not None and (
            len(texts) > self.max_sessions
            or texts.bytes > self.max_bytes
            or oldest.seen + IDLE < texts.call
        ):
            self.drop(oldest, counted=True)
        if len(texts) > self.max_sessions or texts.bytes > self.max_bytes:
            texts_of_call = texts.all()[::-1]
            texts_of_call.sort(key=lambda text: text.session is not None)
            for text in texts_of_call:  # their rows go without
                if len(texts) <= self.max_sessions and texts.bytes <= self.max_bytes:
                    break
                self.drop(text, counted=True)

    def drop(self, text: RowText, counted: bool = False) -> None:
        """Close a text's session and forget it; ``counted`` in the statistics."""
        self.texts.drop(text)
        self.stats.dropped += counted
        self._close(text)
        if text.stored is not None:
            text.stored.end(well=True)

    def _close(self, text: RowText) -> None:
        session, text.session = text.session, None
        if session is not None:
            self.open -= 1
            try:
                session.close()
            except Exception as error:
                self.fault(error)

    def fault(self, error: Exception, text: RowText | None = None, close: bool = True) -> None:
        """Count a fault, log the first one, and close the session that raised it."""
        self.stats.faults += 1
        if self.stats.faults == 1:
            name = type(self.drafter).__name__
            logger.warning("%s failed, rows go on undrafted: %r", name, error, exc_info=error)
        if text is not None:
            text.faults, text.sound = text.faults + 1, 0
            if close:
                self._close(text)
                self.texts.measure(text)


def _store(stored: RowDrafter, tokens: Int32, said: int, begin: int) -> None:
    """Tell shared stores what follows a text's first ``begin`` tokens.

    All but the last ``said`` are a prompt: of a request that begins, or goes on with an earlier
    one's text.
    """
    prompt = max(len(tokens) - said, 0)
    if prompt:
        if begin:
            stored.end(well=True)
        stored.begin(tokens[:prompt])
    stored.append(tokens[prompt:])
