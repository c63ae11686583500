"""Drafts for the rows of a serving engine's batch: the common core of all engine integrations.

An engine calls ``Rows.step`` once after every step with the current rows, and verifies the returned
drafts in the next step. This module needs neither torch nor transformers.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ngramspec._native import TokenText, agreed, generous_cost, may_pay, text_hash
from ngramspec.costs.engine import EngineCosts
from ngramspec.costs.row_lengths import LAG_POWER, Refills, urgencies, worthwhile_rows
from ngramspec.decoding.row import OnFault, Row
from ngramspec.decoding.stores import CallStores
from ngramspec.draft import EMPTY_DRAFT, Draft, Float32, Int32
from ngramspec.drafters.base import Drafter
from ngramspec.drafters.priority import CalibratedDrafter
from ngramspec.drafters.registry import build_drafter
from ngramspec.errors import check_int
from ngramspec.stores.shared import Namespace

logger = logging.getLogger("ngramspec")

TOKENS_BETWEEN_MEASUREMENTS = 64  # after which a row's bytes are counted again; not tuned


# P(a drafted token is still needed): a request's last draft exceeds its end. Chosen by replaying
# answers of 48 tokens. In simulated answers of 200 tokens, 0.98 makes confident copies 5 to 15 %
# faster, but uncertain drafts slower.
STILL_NEEDED_PROBABILITY = 0.9


class RowState(NamedTuple):
    """One row of an engine's batch after a step.

    Attributes:
        key: the engine's id of the request, or None if it does not provide one.
        tokens: int32, contiguous, the row's committed tokens. Those after ``length`` are ignored.
        length: number of committed tokens, including the new ones.
        new: tokens that the step committed; empty for a row in its prefill.
    """

    key: Hashable | None
    tokens: Int32
    length: int
    new: Sequence[int]


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
        dropped: texts dropped because they exceeded a limit.
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


class KnownRow(Row):
    """One request's row, found again at every step. Its session starts from ``text``.

    Attributes:
        key: the engine's id, or None.
        text: the committed tokens, ids outside the vocabulary included.
        counted: whether its session is counted as open.
        seen: number of the last call that had this row.
        size: bytes at the last count.
        live: whether it is still known.
        steps, emitted: the engine's steps that committed tokens of it, and these tokens.
    """

    def __init__(self, key: Hashable | None, on_fault: OnFault) -> None:
        super().__init__(on_fault)
        self.key, self.text = key, TokenText()
        self.counted, self.live = False, True
        self.seen = self.size = self.steps = self.emitted = 0

    def committed(self) -> Int32:
        return self.known(self.text.copy())

    def known(self, tokens: Int32) -> Int32:
        """The tokens that are ids of the vocabulary."""
        return tokens[(tokens >= 0) & (tokens < self.vocab)]

    def store(self, state: RowState, begin: int, new: Int32) -> None:
        """Add to shared stores the tokens that follow the first ``begin`` ones.

        Those before the step's tokens are a prompt, either of a new request or of one that
        continues an earlier request's text. ``new``, int32 (n,), are the added ids of the
        vocabulary.
        """
        stored = self.stored
        if stored is None:
            return
        prompt = max(state.length - len(state.new), begin)  # length
        if prompt > begin:
            if begin:
                stored.end(completed=True)
            stored.begin(self.known(self.text.copy()[:prompt]))
            new = self.known(state.tokens[prompt : state.length])
        stored.append(new)

    def learn_step(self, state: RowState, begin: int, new: Int32) -> int:
        """Report how much of the draft the engine's step accepted; return that number."""
        accepted = 0
        verified: int | None = None
        if len(self.draft.tokens):
            accepted = agreed(self.draft.tokens, state.tokens, begin, state.length)
            if accepted == state.length - begin:  # the engine verified no more of it
                verified = accepted
        self.observe(range(accepted), verified, None, new)
        return accepted


class KnownRows:
    """The known rows, found by id, by place in the batch, or by hash. Not thread-safe.

    A state with an id continues the row of that id. A state without an id continues the row that
    had the same place in the last call, if its tokens begin with that row's text. Otherwise it
    continues any row whose text equals its tokens before the new ones, since equal texts are
    interchangeable. No row is used twice in one call.
    """

    def __init__(self) -> None:
        self.by_key: dict[Hashable, KnownRow] = {}
        self._by_hash: dict[tuple[int, int], list[KnownRow]] | None = None  # in this call, see find
        self._rows: dict[int, KnownRow] = {}  # those of the current call, by place
        self._last: dict[int, KnownRow] = {}
        self._order: OrderedDict[int, KnownRow] = OrderedDict()  # least recently seen first
        self.call = 0
        self.bytes = 0
        self.moves = 0

    def __len__(self) -> int:
        return len(self._order)

    def begin_call(self) -> None:
        """Start a call: the current rows become those of the last call."""
        self.call += 1
        self._last, self._rows, self._by_hash = self._rows, {}, None

    def find(self, place: int, state: RowState) -> KnownRow | None:
        """The known row that continues in the batch's row ``place``, or None."""
        key, tokens, length, new = state
        row = self._last.get(place) if key is None else self.by_key.get(key)
        if (
            row is not None
            and (row.live and row.seen != self.call and row.key == key)
            and row.text.begins(tokens, length)
        ):
            return row
        if key is not None:
            return None
        before = length - len(new)
        if self._by_hash is None:  # rows that grow later in this call continue nothing else
            self._by_hash = {}
            for row in self._order.values():
                if row.key is None:
                    self._by_hash.setdefault((row.text.count, row.text.hash), []).append(row)
        for row in self._by_hash.get((before, text_hash(tokens, before)), ()):
            if row.live and row.seen != self.call and row.text.equals(tokens, before):
                self.moves += 1
                return row
        return None

    def add(self, key: Hashable | None, on_fault: OnFault) -> KnownRow:
        """Add and return a row without text."""
        row = KnownRow(key, on_fault)
        if key is not None:
            self.by_key[key] = row
        self._order[id(row)] = row
        return row

    def take(self, place: int, row: KnownRow, state: RowState) -> Int32:
        """Assign the row to a place of the batch, and append the committed tokens.

        Return a copy of the new tokens that are ids of the vocabulary, int32 (n,).
        """
        new = row.text.append(state.tokens, state.length, row.vocab)
        row.seen = self.call
        self._rows[place] = row
        self._order.move_to_end(id(row))
        return new

    def keep_row(self, place: int) -> None:
        """Keep the row at a place of the batch, for which nothing was committed."""
        row = self._last.get(place)
        if row is not None:
            self._rows.setdefault(place, row)

    def gone(self) -> list[KnownRow]:
        """The rows that had places in the last call and have none now."""
        here = set(self._rows.values())
        return [row for row in self._last.values() if row.live and row not in here]

    def measure(self, row: KnownRow) -> None:
        """Count the bytes of a row's text and of its session's structures again."""
        if row.live:
            session = row.session
            own = None if session is None else session.sizeof()
            self.bytes -= row.size
            row.size = row.text.sizeof() + (own or 0)
            self.bytes += row.size

    def oldest(self) -> KnownRow | None:
        """The least recently seen row, or None if all were seen in this call."""
        row = next(iter(self._order.values()), None)
        return None if row is None or row.seen == self.call else row

    def drop(self, row: KnownRow) -> None:
        """Forget a row. The caller must close its session."""
        if not row.live:
            return
        row.live = False
        del self._order[id(row)]
        self.bytes -= row.size
        if row.key is not None and self.by_key.get(row.key) is row:
            del self.by_key[row.key]

    def all(self) -> list[KnownRow]:
        """Every known row, least recently seen first."""
        return list(self._order.values())


class Rows:
    """Drafts for an engine's rows, which may start, move, pause and end without notice.

    A row is found by the request's id, or else by its tokens: see ``KnownRows``. If a drafter
    fails, only that row's draft is lost: ``step`` never raises an Exception. The first fault is
    logged, and all are counted.

    The number and bytes of sessions are bounded. The least recently seen are closed. If such a row
    returns, its session is opened again from its tokens. A row without room gets no draft.

    Drafts are cut so that the expected tokens per cost of the whole batch are highest: each row's
    next token competes with those of all others. If ended requests are not replaced, tokens of the
    slowest rows count more, because the others wait for them.

    Not thread-safe.

    Args:
        drafter: a drafter, or its description for ``build_drafter``.
        k: maximum number of tokens drafted for a row, >= 1.
        vocab: size of the target's vocabulary.
        max_len: maximum number of tokens of a text. Drafts leave room for the token after them.
        costs: costs of steps; None: drafts have up to ``k`` tokens, regardless of their cost.
        max_sessions: maximum number of known texts.
        max_bytes: maximum bytes of texts and sessions that report their size.
        clock: returns seconds; used for the engine's steps and ``stats.seconds``.

    Example:
        >>> import numpy as np
        >>> rows = Rows("auto", k=4, vocab=100, max_len=64)
        >>> text = np.array([5, 6, 7, 8, 5, 6], np.int32)
        >>> rows.step([RowState("request 1", text, 6, [6])])[0].tokens.tolist()
        [7, 8, 5, 6]
    """

    def __init__(
        self,
        drafter: str | Drafter,
        k: int,
        vocab: int,
        max_len: int,
        costs: EngineCosts | None = None,
        *,
        max_sessions: int = 1024,
        max_bytes: int = 1 << 30,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        drafter = build_drafter(drafter) if isinstance(drafter, str) else drafter
        self.drafter = drafter if drafter.estimates else CalibratedDrafter(drafter)
        self.k = check_int("k", k, 1)
        self.max_len = check_int("max_len", max_len, 1)
        self.costs = costs
        self.vocab = check_int("vocab", vocab, 1)
        self.max_sessions = check_int("max_sessions", max_sessions, 1)
        self.max_bytes = check_int("max_bytes", max_bytes, 1)
        self.stats = RowsStats()
        log_once = lru_cache(16)(logger.warning)  # each of the last messages
        reads = bool(self.drafter.stores)
        self._stores = CallStores(self._own, None, None, log_once) if reads else None
        self._known = KnownRows()
        self._open_sessions = 0
        self._bytes_per_token = 64.0  # average of a row with a session
        self._refills = Refills()
        self._clock = clock
        self._returned: float | None = None  # time at which the last call returned

    def __len__(self) -> int:
        """Number of known texts."""
        return len(self._known)

    @property
    def bytes(self) -> int:
        """Bytes of texts and sessions, at the last count."""
        return self._known.bytes

    def store_counts(self) -> dict[str, int]:
        """Counts of the shared stores: tokens, look-ups with a match, and accepted tokens."""
        stores = [each for each in self.drafter.stores if isinstance(each, Namespace)]
        counts = [each.statistics() for each in stores]
        return {
            f"store_{name}": sum(getattr(each, name) for each in counts)
            for name in ("tokens", "hits", "accepted")
            if counts
        }

    def step(self, rows: Sequence[RowState]) -> list[Draft]:
        """Learn what the engine's step committed, and draft for the next one.

        Args:
            rows: rows of the batch in the engine's order. A request should keep its row.

        Returns:
            One draft per row, a chain of at most ``k`` valid ids. Empty for rows in their prefill.
        """
        began = self._clock()
        try:
            drafts = self._step(rows, began)
        except Exception as error:
            self.fault(error)
            drafts = [EMPTY_DRAFT] * len(rows)
        self._returned = self._clock()
        self.stats.calls += 1
        self.stats.seconds += self._returned - began
        return drafts

    def finish(self, key: Hashable) -> None:
        """Forget the request with this id, which has ended. Unknown ids are legal."""
        row = self._known.by_key.get(key)
        if row is not None:
            self._drop(row)

    def fault(self, error: Exception) -> None:
        """Count a fault of the integration, and log the first one."""
        self._report_fault(self.drafter, error, False)

    def close(self) -> None:
        """Close every session."""
        for row in self._known.all():
            self._drop(row)

    def _own(self) -> Drafter:
        return self.drafter

    def _report_fault(self, drafter: Drafter, error: Exception, _stopped: bool) -> None:
        self.stats.faults += 1
        if self.stats.faults == 1:
            name = type(drafter).__name__
            logger.warning("%s failed, so rows get no draft: %r", name, error, exc_info=error)

    def _step(self, states: Sequence[RowState], began: float) -> list[Draft]:
        rows, drafted, timed = self._advance(states)
        self.stats.row_steps += len(rows)
        drafts = [EMPTY_DRAFT] * len(states)
        if not rows:
            return drafts
        curve, price = None, self._refills.price(len(rows))
        if self.costs is not None:
            if timed and self._returned is not None:
                self.costs.record_time(len(rows), drafted, began - self._returned)
            curve = self.costs.curve(len(rows))
        asked = 0
        if self.costs is None or (curve is not None and may_pay(curve, len(rows), self.k, price)):
            found = self._draft(states, rows, curve, price)
            for (place, row), draft in zip(rows, found, strict=True):
                row.take(draft)
                drafts[place] = draft
                asked += len(draft.tokens)
        self.stats.drafted += asked
        self._shrink()
        return drafts

    def _advance(self, states: Sequence[RowState]) -> tuple[list[tuple[int, KnownRow]], int, bool]:
        """Update the rows: (place, row) of each, tokens drafted, and whether the step was timed."""
        known = self._known
        known.begin_call()
        rows: list[tuple[int, KnownRow]] = []
        drafted, timed = 0, True
        kept = 0  # rows that the last call had too
        for place, state in enumerate(states):
            if not len(state.new):
                known.keep_row(place)
                timed = False  # part of a prefill
                continue
            try:
                row = known.find(place, state)
                if row is None or row.seen != known.call - 1:
                    timed = False  # new or resumed, so it had a prefill
                else:
                    asked = len(row.draft.tokens)
                    added = state.length - row.text.count
                    timed = timed and added <= asked + 1  # else it had a prefill
                    drafted += asked
                    kept += 1
                rows.append((place, self._advance_row(place, state, row)))
            except Exception as error:
                timed = False
                self.fault(error)
        self.stats.moved = known.moves
        for row in known.gone() if self._stores is not None else ():
            if row.stored is not None:
                row.stored.pause()
        self._refills.step(len(rows), kept)
        return rows, drafted, timed

    def _advance_row(self, place: int, state: RowState, row: KnownRow | None) -> KnownRow:
        """Update and return the row at a place of the batch; None: a new one."""
        if row is None:
            earlier = self._known.by_key.get(state.key)  # None is no key
            if earlier is not None:
                self._drop(earlier)  # the engine withdrew tokens, or reuses the id
            row = self._known.add(state.key, self._report_fault)
            try:
                stored = None if self._stores is None else self._stores.row(self.vocab)
                prepared = None if stored is None else stored.given_to
                row.begin(self.vocab)
                row.connect(self._own, prepared=prepared, stored=stored)
            except Exception:
                self._drop(row)
                raise
        begin = row.text.count
        new = self._known.take(place, row, state)
        self.stats.emitted += len(state.new)
        row.steps += 1
        row.emitted += len(state.new)
        row.store(state, begin, new)
        if row.session is not None:
            self.stats.accepted += row.learn_step(state, begin, new)
            self._settle(row)
        if state.length // TOKENS_BETWEEN_MEASUREMENTS != begin // TOKENS_BETWEEN_MEASUREMENTS:
            self._known.measure(row)
        row.reset()
        return row

    def _draft(
        self,
        states: Sequence[RowState],
        rows: list[tuple[int, KnownRow]],
        curve: Float32 | None,
        price: float,
    ) -> list[Draft]:
        """Draft for every row, and cut what is not worth its cost: see ``Refills.price``."""
        cost = None if curve is None else generous_cost(curve, len(rows), self.k)
        found: list[Draft] = []
        for place, row in rows:
            room = min(self.k, self.max_len - 1 - states[place].length)
            found.append(self._ask(row, room, cost) if room > 0 else EMPTY_DRAFT)
        if curve is None:
            return found
        weights = None
        if len(rows) > 1:
            emitted = [row.emitted for _, row in rows]
            steps = [row.steps for _, row in rows]
            power = LAG_POWER - (LAG_POWER + 1.0) * self._refills.share
            shares = urgencies([1] * len(rows), emitted, steps, power)
            weights = (len(rows) * shares).tolist()
        return worthwhile_rows(found, curve, STILL_NEEDED_PROBABILITY, weights, price)

    def _ask(self, row: KnownRow, room: int, cost: Float32 | None) -> Draft:
        """A valid draft of at most ``room`` >= 1 tokens for a row.

        ``cost`` is float32 (room + 2,) or longer, for ``DraftSession.propose``; None: not known.
        """
        if not row.take_up_drafter():
            self._settle(row)
            return EMPTY_DRAFT
        try:
            if row.session is None and not self._open(row):
                self.stats.crowded += 1
                return EMPTY_DRAFT
            given = None if cost is None else cost[: room + 2].copy()
            return row.ask(room, given, tree=False, copied=False)
        except Exception as error:
            row.lose_draft(error)
            self._settle(row)
            return EMPTY_DRAFT

    def _open(self, row: KnownRow) -> bool:
        """Open the row's session. False: there is no room."""
        known = self._known
        wanted = int(self._bytes_per_token * row.text.count)
        while self._open_sessions >= self.max_sessions or known.bytes + wanted > self.max_bytes:
            oldest = known.oldest()
            if oldest is None:
                return False
            self._drop(oldest, counted=True)
        row.start()
        row.counted = True
        self._open_sessions += 1
        self.stats.opened += 1
        known.measure(row)
        size = row.size / max(row.text.count, 1)
        self._bytes_per_token = 0.9 * self._bytes_per_token + 0.1 * size
        return True

    def _shrink(self) -> None:
        """Drop rows beyond the limits: those of this call last."""
        while self._exceeds_limits() and (oldest := self._known.oldest()) is not None:
            self._drop(oldest, counted=True)
        if self._exceeds_limits():
            rows_of_call = self._known.all()[::-1]
            rows_of_call.sort(key=lambda row: row.session is not None)
            for row in rows_of_call:  # they get no draft
                if self._exceeds_limits():
                    self._drop(row, counted=True)

    def _exceeds_limits(self) -> bool:
        return len(self._known) > self.max_sessions or self._known.bytes > self.max_bytes

    def _drop(self, row: KnownRow, counted: bool = False) -> None:
        """Close a row's session and forget it. ``counted``: add it to ``stats.dropped``."""
        self._known.drop(row)
        self.stats.dropped += counted
        row.close()
        self._settle(row)
        row.end(completed=True)

    def _settle(self, row: KnownRow) -> None:
        """Stop counting a row's session as open if it was closed."""
        if row.counted and row.session is None:
            row.counted = False
            self._open_sessions -= 1
            self._known.measure(row)
