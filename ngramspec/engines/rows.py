"""Drafts for the rows of a serving engine's batch: the one core of all engine integrations.

An engine calls ``Rows.step`` once after every step with the rows as they stand, and verifies the
drafts that come back in the next one. It needs neither torch nor transformers.
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
from ngramspec.drafters.calibrated import CalibratedDrafter
from ngramspec.drafters.registry import build_drafter
from ngramspec.engines.row_pace import Pace
from ngramspec.engines.row_sessions import RowSessions, RowsStats
from ngramspec.engines.row_texts import Row, RowText
from ngramspec.errors import check_bool, check_int

__all__ = ["Row", "Rows", "RowsStats"]

# P(a drafted token is still wanted): a request's last draft reaches beyond its end. Chosen by
# replaying answers of 48 tokens; in simulated answers of 200, 0.98 makes sure copies 5 to 15 %
# faster, and loses where tokens are less sure.
LASTING = 0.9


class Rows:
    """Drafts for an engine's rows, which come, move, pause, and leave without a notice.

    A row's text is found by the request's id if there is one; else by its tokens: see
    ``RowTexts``. A drafter's fault costs a row its draft and nothing else: ``step`` never raises
    an Exception. The first fault is logged, all are counted.

    Sessions are bounded in number and bytes. The least recently seen are closed; one that returns
    is opened again from its tokens. A row for which there is no room goes undrafted.

    Drafts end where the expected tokens of the whole batch are worth most, at the tokens per cost
    of all its steps: each row's next token competes with those of all others. Where requests that
    end are not followed by others, tokens of the slowest rows count more: the others wait for them.

    Not for several threads at once.

    Args:
        drafter: or its description, as ``build_drafter`` takes it.
        k: most tokens (nodes of a tree) drafted for a row, >= 1.
        vocab: size of the target's vocabulary.
        max_len: most tokens of a text; drafts leave room for the token behind them.
        costs: of steps; None: drafts have up to ``k`` tokens, whatever that costs.
        tree: whether drafts may be trees.
        max_sessions: most texts that are known at a time.
        max_bytes: most bytes of texts and sessions, as far as they tell their size.
        clock: seconds, for the engine's steps and ``stats.seconds``.

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
        self._returned: float | None = None  # when the last call did

    @property
    def stats(self) -> RowsStats:
        """Counts since it began."""
        return self._sessions.stats

    def __len__(self) -> int:
        """How many texts are known."""
        return len(self._texts)

    @property
    def bytes(self) -> int:
        """Of texts and sessions, as counted last."""
        return self._texts.bytes

    def store_counts(self) -> dict[str, int]:
        """Of the shared stores: tokens in them, look-ups that found some, and accepted tokens."""
        return self._sessions.store_counts()

    def step(self, rows: Sequence[Row]) -> list[Draft]:
        """Learn what the engine's step committed, and draft for the next one.

        Args:
            rows: of the batch, in the engine's order; at best always the same row for a request.

        Returns:
            A draft for each row, of at most ``k`` nodes and of ids of the vocabulary, chains unless
            ``tree``. Empty for rows in their prefill.
        """
        began = self._clock()
        try:
            drafts = self._step(rows, began)
        except Exception as error:
            self._sessions.fault(error)
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
        """Count a fault of the integration's own, and log the first."""
        self._sessions.fault(error)

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
        """Bring the texts up to date.

        Returns:
            (row, its text) of those with new tokens; how many tokens the engine's step had drafted
            for them; and whether that was all that the step did.
        """
        self._texts.begin_call()
        texts: list[tuple[int, RowText]] = []
        drafted, timed = 0, True
        kept = tokens = 0  # rows of the last call, and what they got
        for place, row in enumerate(rows):
            if not len(row.new):
                self._texts.keep_row(place)
                timed = False  # part of a prefill
                continue
            try:
                text = self._texts.find(place, row)
                if text is None or text.seen != self._texts.call - 1:
                    timed = False  # it came, or came back, with a prefill
                else:
                    asked = len(text.draft.tokens)
                    told = row.length - text.text.count
                    timed = timed and told <= asked + 1  # else it had a prefill
                    drafted += asked
                    kept += 1
                    tokens += len(row.new)
                texts.append((place, self._sessions.advance(place, row, text)))
            except Exception as error:
                timed = False
                self._sessions.fault(error)
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
        """Ask every row's session, and cut what is not worth its cost; see ``Pace.price``."""
        cost = None if curve is None else generous_cost(curve, len(texts), self.k)
        found: list[Draft] = []
        ask, k, most = self._sessions.ask, self.k, self.max_len - 1
        for place, text in texts:
            room = min(k, most - rows[place].length)
            found.append(ask(text, room, cost) if room > 0 else EMPTY_DRAFT)
        if curve is None:
            return found
        weights = None
        if len(texts) > 1:
            emitted = [text.emitted for _, text in texts]
            steps = [text.steps for _, text in texts]
            weights = progress_weights(emitted, steps, LAG_POWER * (1.0 - self._pace.refilled))
        return worthwhile_rows(found, curve, LASTING, weights, price)
