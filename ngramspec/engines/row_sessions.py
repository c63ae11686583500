"""The drafting sessions of an engine's rows, and the limits on them."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ngramspec._native.rows import agreed
from ngramspec.draft import EMPTY_DRAFT, Draft, Float32, Int32
from ngramspec.drafters.base import Drafter
from ngramspec.drafters.call_stores import CallStores, RowStores
from ngramspec.drafters.guarded import GuardedSession
from ngramspec.drafters.prefix_tree import path_along
from ngramspec.engines.row_texts import Row, RowText, RowTexts
from ngramspec.stores.shared import Namespace

logger = logging.getLogger("ngramspec")

MAX_IDLE_CALLS = 4096  # a text not seen in this number of calls is dropped; not tuned
TOKENS_BETWEEN_MEASUREMENTS = 64  # after which a text's bytes are counted again; not tuned


@dataclass(slots=True)
class RowsStats:
    """Counts of a ``Rows`` since its creation.

    Attributes:
        calls: calls of ``step``.
        row_steps: rows with new tokens, over all calls.
        emitted: new tokens, including the first ones after prompts.
        drafted: returned draft tokens.
        accepted: draft tokens that agreed with the next new tokens.
        opened: opened sessions, including those opened again.
        moved: texts found in another row, or after a pause.
        dropped: texts dropped because they were idle for long, or exceeded a limit.
        faults: drafts lost because the drafter raised an error or returned an invalid draft.
        crowded: row-steps without a draft because rows of the same call filled all sessions.
        seconds: time in ``step``.
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


class RowSessions:
    """The texts of all rows with one session each, within limits. Not thread-safe.

    Ids outside the vocabulary are neither passed to a session nor drafted. The arguments are those
    of ``Rows``.
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
        self._shared = CallStores(lambda: drafter, None, None, logger.warning) if shares else None
        self.texts = RowTexts()
        self.stats = RowsStats()
        self.open = 0  # number of open sessions
        self._per_token = 64.0  # average bytes of a token of an opened text

    def advance(self, place: int, row: Row, text: RowText | None) -> RowText:
        """Update and return the text of row ``place``; None: a new text."""
        if text is None:
            known = None if row.key is None else self.texts.of_key(row.key)
            if known is not None:
                self.drop(known)  # the engine withdrew tokens, or gave the id to another request
            text = self.texts.add(row.key, GuardedSession(self.vocab, self.report_fault))
            if self._shared is not None:
                text.stored = self._shared.row(self.vocab)
        draft, text.draft, begin = text.draft, EMPTY_DRAFT, text.text.count
        new = self.texts.take(place, text, row, self.vocab)
        self.stats.emitted += len(row.new)
        text.steps += 1
        text.emitted += len(row.new)
        if text.stored is not None:
            self._store(text, text.stored, row, begin, new)
        if text.guarded.session is not None:
            self._learn(text, draft, row, begin, new)
            if row.length // TOKENS_BETWEEN_MEASUREMENTS != begin // TOKENS_BETWEEN_MEASUREMENTS:
                self.texts.measure(text)
        return text

    def rows_known(self) -> None:
        """After all rows advanced: add texts without a row, which may have ended, to stores."""
        self.stats.moved = self.texts.moves
        if self._shared is not None:
            for text in self.texts.gone():
                if text.stored is not None:
                    text.stored.pause()

    def _store(self, text: RowText, stored: RowStores, row: Row, begin: int, new: Int32) -> None:
        """Add to shared stores the tokens that follow a text's first ``begin`` tokens.

        Those before the step's tokens are a prompt, either of a new request or of one that
        continues an earlier request's text. ``new``, int32 (n,), are the added ids of the
        vocabulary.
        """
        prompt = max(row.length - len(row.new), begin)  # length
        if prompt > begin:
            if begin:
                stored.end(well=True)
            stored.begin(self._valid(text.text.copy()[:prompt]))
            new = self._valid(row.tokens[prompt : row.length])
        stored.append(new)

    def _valid(self, tokens: Int32) -> Int32:
        """The tokens that are ids of the vocabulary."""
        return tokens[(tokens >= 0) & (tokens < self.vocab)]

    def _learn(self, text: RowText, draft: Draft, row: Row, begin: int, new: Int32) -> None:
        accepted: list[int] = []
        verified: int | None = None
        if len(draft.tokens):
            if draft.parents is None:
                accepted = list(range(agreed(draft.tokens, row.tokens, begin, row.length)))
            else:
                accepted = path_along(draft, row.tokens[begin : row.length].tolist())
            self.stats.accepted += len(accepted)
            if len(accepted) == row.length - begin:  # the engine verified no more of it
                verified = len(accepted)
        text.guarded.learn(draft, accepted, verified, None, new)
        self._settle(text)

    def ask(self, text: RowText, room: int, cost: Float32 | None) -> Draft:
        """A valid draft of at most ``room`` >= 1 nodes for a text.

        ``cost`` is float32 (room + 2,) or longer, for ``DraftSession.propose``; None: not known.
        """
        guarded = text.guarded
        guarded.use(self.drafter if text.stored is None else text.stored.drafter())
        if guarded.gave_up:
            return EMPTY_DRAFT
        try:
            if guarded.session is None and not self._open(text):
                self.stats.crowded += 1
                return EMPTY_DRAFT
            given = None if cost is None else cost[: room + 2].copy()
            return guarded.propose(room, given, tree=self.tree, copied=False).as_chain()
        except Exception as error:
            guarded.fault(error)
            guarded.close()
            self._settle(text)
            return EMPTY_DRAFT

    def _open(self, text: RowText) -> bool:
        """Open the text's session. False: there is no room."""
        tokens = self._valid(text.text.copy())
        wanted = int(self._per_token * text.text.count)
        while self.open >= self.max_sessions or self.texts.bytes + wanted > self.max_bytes:
            oldest = self.texts.oldest()
            if oldest is None:
                return False
            self.drop(oldest, counted=True)
        text.guarded.start(tokens)
        text.counted = True
        self.open += 1
        self.stats.opened += 1
        self.texts.measure(text)
        self._per_token = 0.9 * self._per_token + 0.1 * text.size / max(text.text.count, 1)
        return True

    def shrink(self) -> None:
        """Drop idle texts, and texts beyond the limits: those of this call last."""
        while (oldest := self.texts.oldest()) is not None and (
            self._exceeds_limits() or oldest.seen + MAX_IDLE_CALLS < self.texts.call
        ):
            self.drop(oldest, counted=True)
        if self._exceeds_limits():
            texts_of_call = self.texts.all()[::-1]
            texts_of_call.sort(key=lambda text: text.guarded.session is not None)
            for text in texts_of_call:  # their rows get no draft
                if self._exceeds_limits():
                    self.drop(text, counted=True)

    def _exceeds_limits(self) -> bool:
        return len(self.texts) > self.max_sessions or self.texts.bytes > self.max_bytes

    def drop(self, text: RowText, counted: bool = False) -> None:
        """Close a text's session and forget it. ``counted``: add it to ``stats.dropped``."""
        self.texts.drop(text)
        self.stats.dropped += counted
        text.guarded.close()
        self._settle(text)
        if text.stored is not None:
            text.stored.end(well=True)

    def _settle(self, text: RowText) -> None:
        """Stop counting a text's session as open if it was closed."""
        if text.counted and text.guarded.session is None:
            text.counted = False
            self.open -= 1
            self.texts.measure(text)

    def report_fault(self, drafter: Drafter, error: Exception) -> None:
        """Count a fault, and log the first one."""
        self.stats.faults += 1
        if self.stats.faults == 1:
            name = type(drafter).__name__
            logger.warning("%s failed, so rows get no draft: %r", name, error, exc_info=error)
