"""Drafts for the rows of a serving engine's batch: the common core of all engine integrations.

An engine calls ``Rows.step`` once after every step with the current rows, and verifies the returned
drafts in the next step. This module needs neither torch nor transformers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence

from ngramspec.costs.engine_rows import EngineCosts
from ngramspec.draft import EMPTY_DRAFT, Draft, Float32
from ngramspec.draft_length.batch_choice import (
    LAG_POWER,
    generous_cost,
    may_pay,
    progress_weights,
    worthwhile_rows,
)
from ngramspec.drafters.base import Drafter
from ngramspec.drafters.priority import CalibratedDrafter
from ngramspec.drafters.registry import build_drafter
from ngramspec.engines.row_pace import Pace
from ngramspec.engines.row_sessions import RowSessions, RowsStats
from ngramspec.engines.row_texts import Row, RowText
from ngramspec.errors import check_bool, check_int
from ngramspec.stores.shared import Namespace

__all__ = ["Row", "Rows", "RowsStats"]

# P(a drafted token is still needed): a request's last draft exceeds its end. Chosen by replaying
# answers of 48 tokens. In simulated answers of 200 tokens, 0.98 makes confident copies 5 to 15 %
# faster, but uncertain drafts slower.
STILL_NEEDED_PROBABILITY = 0.9


class Rows:
    """Drafts for an engine's rows, which may start, move, pause and end without notice.

    A row's text is found by the request's id, or else by its tokens: see ``RowTexts``. If a drafter
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
        k: maximum number of tokens (nodes of a tree) drafted for a row, >= 1.
        vocab: size of the target's vocabulary.
        max_len: maximum number of tokens of a text. Drafts leave room for the token after them.
        costs: costs of steps; None: drafts have up to ``k`` tokens, whatever their cost.
        tree: whether drafts may be trees.
        max_sessions: maximum number of known texts.
        max_bytes: maximum bytes of texts and sessions that report their size.
        clock: returns seconds; used for the engine's steps and ``stats.seconds``.

    Example:
        >>> import numpy as np
        >>> rows = Rows("auto", k=4, vocab=100, max_len=64)
        >>> text = np.array([5, 6, 7, 8, 5, 6], np.int32)
        >>> rows.step([Row("request 1", text, 6, [6])])[0].tokens.tolist()
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
        tree: bool = False,
        max_sessions: int = 1024,
        max_bytes: int = 1 << 30,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        drafter = build_drafter(drafter)
        self.drafter = drafter if drafter.estimates else CalibratedDrafter(drafter)
        self.k = check_int("k", k, 1)
        self.max_len = check_int("max_len", max_len, 1)
        self.costs = costs
        self._sessions = RowSessions(
            self.drafter,
            check_int("vocab", vocab, 1),
            check_bool("tree", tree),
            check_int("max_sessions", max_sessions, 1),
            check_int("max_bytes", max_bytes, 1),
        )
        self._texts = self._sessions.texts
        self._pace = Pace()
        self._clock = clock
        self._returned: float | None = None  # time at which the last call returned

    @property
    def stats(self) -> RowsStats:
        """Counts since the object was created."""
        return self._sessions.stats

    def __len__(self) -> int:
        """Number of known texts."""
        return len(self._texts)

    @property
    def bytes(self) -> int:
        """Bytes of texts and sessions, at the last count."""
        return self._texts.bytes

    def store_counts(self) -> dict[str, int]:
        """Counts of the shared stores: tokens, look-ups with a match, and accepted tokens."""
        stores = [each for each in self.drafter.stores if isinstance(each, Namespace)]
        counts = [each.statistics() for each in stores]
        return {
            f"store_{name}": sum(getattr(each, name) for each in counts)
            for name in ("tokens", "hits", "accepted")
            if counts
        }

    def step(self, rows: Sequence[Row]) -> list[Draft]:
        """Learn what the engine's step committed, and draft for the next one.

        Args:
            rows: rows of the batch in the engine's order. A request should keep its row.

        Returns:
            One draft per row, with at most ``k`` nodes and valid ids, a chain unless ``tree``.
            Empty for rows in their prefill.
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
        text = self._texts.of_key(key)
        if text is not None:
            self._sessions.drop(text)

    def fault(self, error: Exception) -> None:
        """Count a fault of the integration, and log the first one."""
        self._sessions.report_fault(self.drafter, error)

    def close(self) -> None:
        """Close every session."""
        for text in self._texts.all():
            self._sessions.drop(text)

    def _step(self, rows: Sequence[Row], began: float) -> list[Draft]:
        texts, drafted, timed = self._advance(rows)
        self.stats.row_steps += len(texts)
        drafts = [EMPTY_DRAFT] * len(rows)
        if not texts:
            return drafts
        curve, price = None, self._pace.price(len(texts))
        if self.costs is not None:
            if timed and self._returned is not None:
                self.costs.record_time(len(texts), drafted, began - self._returned)
            curve = self.costs.curve(len(texts))
        asked = 0
        if self.costs is None or (curve is not None and may_pay(curve, len(texts), self.k, price)):
            found = self._draft(rows, texts, curve, price)
            for (place, text), draft in zip(texts, found, strict=True):
                text.draft = drafts[place] = draft
                asked += len(draft.tokens)
        self.stats.drafted += asked
        self._pace.drafted(1.0 if curve is None else float(curve[asked]))
        self._sessions.shrink()
        return drafts

    def _advance(self, rows: Sequence[Row]) -> tuple[list[tuple[int, RowText]], int, bool]:
        """Update the texts.

        Return (row index, text) of each row with new tokens; the number of tokens drafted for them
        in the engine's last step; and whether that step did nothing else, such as a prefill.
        """
        self._texts.begin_call()
        texts: list[tuple[int, RowText]] = []
        drafted, timed = 0, True
        kept = tokens = 0  # rows that the last call had too, and their new tokens
        for place, row in enumerate(rows):
            if not len(row.new):
                self._texts.keep_row(place)
                timed = False  # part of a prefill
                continue
            try:
                text = self._texts.find(place, row)
                if text is None or text.seen != self._texts.call - 1:
                    timed = False  # new or resumed, so it had a prefill
                else:
                    asked = len(text.draft.tokens)
                    added = row.length - text.text.count
                    timed = timed and added <= asked + 1  # else it had a prefill
                    drafted += asked
                    kept += 1
                    tokens += len(row.new)
                texts.append((place, self._sessions.advance(place, row, text)))
            except Exception as error:
                timed = False
                self.fault(error)
        self._sessions.rows_known()
        self._pace.step(len(texts), kept, tokens)
        return texts, drafted, timed

    def _draft(
        self,
        rows: Sequence[Row],
        texts: list[tuple[int, RowText]],
        curve: Float32 | None,
        price: float,
    ) -> list[Draft]:
        """Draft for every row, and cut what is not worth its cost: see ``Pace.price``."""
        cost = None if curve is None else generous_cost(curve, len(texts), self.k)
        found: list[Draft] = []
        for place, text in texts:
            room = min(self.k, self.max_len - 1 - rows[place].length)
            found.append(self._sessions.ask(text, room, cost) if room > 0 else EMPTY_DRAFT)
        if curve is None:
            return found
        weights = None
        if len(texts) > 1:
            emitted = [text.emitted for _, text in texts]
            steps = [text.steps for _, text in texts]
            weights = progress_weights(emitted, steps, LAG_POWER * (1.0 - self._pace.refilled))
        return worthwhile_rows(found, curve, STILL_NEEDED_PROBABILITY, weights, price)
