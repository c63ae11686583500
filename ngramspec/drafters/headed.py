"""A drafting head and tables under one estimate: the head is consulted where it pays."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from ngramspec.draft import Draft, Float32, Int32, Nodes, Observed
from ngramspec.drafters.base import Drafter, LearningDrafter, verified_count
from ngramspec.drafters.known import NullDrafter
from ngramspec.drafters.model import ModelDrafter, ModelReader, ReadingSession
from ngramspec.drafters.priority import CalibratedDrafter, PriorityDrafter
from ngramspec.drafters.stochastic import distribution, distributions, proposal_of, sampled
from ngramspec.drafters.value import (
    SOURCES_OF_ENGINE,
    TOOLS,
    StoreDrafter,
    ValueDrafter,
    ValueSession,
)
from ngramspec.errors import UnsupportedError
from ngramspec.stores import Store

if TYPE_CHECKING:
    from ngramspec.drafters.tool_calls import ToolCalls

# Not tuned one by one:
CONFIDENCE_BOUNDS = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 0.95, 0.98)  # buckets of a confidence
DEPTHS = 6  # buckets of the number of draft tokens before
GUESS = 0.8  # P(a head's first token is right) before anything was seen
FADED = 100.0  # most earlier times that a mean remembers
PRIOR_TIMES = 15.0  # times that the initial value of a mean counts as
PATIENCE, MAX_PATIENCE = 16, 256  # steps between trials of a head that does not pay
PEAKS = 10  # buckets of the highest probability of a head's distribution
RATE_MEMORY = 0.98  # weight of earlier steps in the sequence's tokens per cost

HEAD = len(SOURCES_OF_ENGINE)  # the engine's source of a head's tokens and of predicted calls


class Means:
    """Running means by bucket, which begin with the values of ``prior``."""

    def __init__(self, prior: NDArray[np.float64]) -> None:
        self._values, self._times = prior, np.full(prior.shape, PRIOR_TIMES)

    def __getitem__(self, at: int | tuple[int, int]) -> float:
        return float(self._values[at])

    def learn(self, at: int | tuple[int, int], value: float) -> None:
        """Learn a value of the bucket ``at``."""
        self._times[at] = min(self._times[at] + 1, FADED)
        self._values[at] += (value - self._values[at]) / self._times[at]


class HeadWorth:
    """What a head's rows and sampled tokens were worth, over all sequences of a drafter.

    It contains no text. Threads may share it: a lost update changes drafts, never the output.

    Attributes:
        gain: what a row added to the draft's expected tokens, less what the draft then costs more,
            by ``cell``.
        accepted: P(a token is accepted) that is sampled from a distribution, by ``peak``.
    """

    def __init__(self) -> None:
        middles = np.array([0.05, 0.18, 0.33, 0.48, 0.63, 0.75, 0.85, 0.93, 0.965, 0.99])
        prior = np.maximum(GUESS - middles, 0.1 * (1 - middles))
        self.gain = Means(np.repeat(prior[:, None], DEPTHS, axis=1))
        self.accepted = Means((np.arange(PEAKS) + 0.5) / PEAKS * 0.6 + 0.35)
        self._skipped, self._patience = 0, PATIENCE

    def should_retry(self, cost: float) -> bool:
        """Count a step in which the head does not pay; whether to try it nevertheless."""
        self._skipped += 1
        if self._skipped < self._patience * cost:
            return False
        self._skipped, self._patience = 0, min(2 * self._patience, MAX_PATIENCE)
        return True

    def pays(self) -> None:
        """Note that the head pays: if it no longer does, it is tried again soon."""
        self._skipped, self._patience = 0, PATIENCE


def cell(confidence: float, depth: int) -> tuple[int, int]:
    """The bucket of a position, by the confidence of the tables' token there and its depth."""
    return int(np.searchsorted(CONFIDENCE_BOUNDS, confidence)), min(depth, DEPTHS - 1)


def peak(probabilities: Float32) -> int:
    """The bucket of a distribution, by its highest probability, which is the first."""
    return min(int(float(probabilities[0]) * PEAKS), PEAKS - 1)


@dataclass(slots=True)
class Chain:
    """The chain that the engine would draft now."""

    tokens: Int32
    confidence: Float32
    source: Any
    known: int  # number of leading positions at which the head has a row

    def reach(self, depth: int) -> float:
        """P(the first ``depth`` tokens are accepted)."""
        return float(np.prod(self.confidence[:depth], dtype=np.float64))

    def chance(self, depth: int) -> float:
        """The confidence of the token at a depth, 0 after the end."""
        return float(self.confidence[depth]) if depth < len(self.tokens) else 0.0

    def expected(self) -> float:
        """Expected accepted tokens."""
        return float(np.cumprod(self.confidence, dtype=np.float64).sum())


class HeadedSession(ReadingSession):
    """Drafts for one sequence from the tables, and from the head where that is worth its cost.

    Before each draft, the head is consulted about the position at which its row promises the
    largest gain, as long as that exceeds the cost of its forward at the sequence's tokens per cost.
    A head that does not pay is tried from time to time. One that must read much text first is
    consulted once the gains that were missed without it exceed the cost of reading.

    In sampled requests a token is sampled from the head's distribution where it is accepted with
    a higher probability than the tables' best one, which is decided before. Rows and sampled tokens
    are kept until tokens are committed, so a draft that is proposed again needs no further forward.
    """

    tables: ValueSession

    def __init__(self, drafter: HeadedDrafter, tokens: Int32) -> None:
        super().__init__(drafter.head, ValueSession(drafter.tables, tokens), tokens)
        self._tools_source = np.int8(HEAD + len(drafter.head.source_names))
        self.worth = drafter.worth
        self._path: list[int] = []  # draft tokens before the head's rows but the first
        self._rows: list[tuple[Int32, Float32]] = []  # the head's distributions along them
        self._emitted = self._cost = 1.0  # decaying sums over steps
        self._paid = 0.0  # cost of the head's forwards in this step
        self._verifying = 0.0  # additional cost of the target's forward for the draft
        self._missed = 0.0  # gains that the head promised since it last read the text
        self._failed: Exception | None = None
        self._sampled: dict[int, tuple[Int32, Float32]] = {}  # by depth: what it was sampled from

    @property
    def wants_evidence(self) -> bool:
        return self.tables.wants_evidence

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        plan, tools = None, self.tables.tools
        in_call = tools is not None and tools.predicts
        if self.reader is not None and self.text and gamma > 0 and not in_call:
            self.reader.model.commit(len(self.text))
            if self.reader.model.ready:
                plan = self._consult(self.reader, gamma, cost)
        if plan is not None and self._sampled:
            draft = self._stated(plan)
        else:
            draft = self.tables.propose(gamma, self._with_paid(cost), tree=tree)
            if in_call and draft.source is not None:
                source = np.where(draft.source == HEAD, self._tools_source, draft.source)
                draft = replace(draft, source=source)
        self._verifying = 0.0 if cost is None else float(cost[len(draft) + 1]) - float(cost[1])
        return draft

    def _with_paid(self, cost: Float32 | None) -> Float32 | None:
        """The costs of the step, with those of the head's forwards."""
        return cost if cost is None or not self._paid else cost + np.float32(self._paid)

    def _consult(self, reader: ModelReader, gamma: int, cost: Float32 | None) -> Chain:
        """Consult the head while it pays; return the chain that is drafted then."""
        plan = self._plan(gamma, cost)
        rate = 0.0 if cost is None else self._emitted / self._cost  # without costs, all are free
        while True:
            at = self._worthwhile(reader, plan, gamma, rate)
            if at is None:
                return plan
            before = plan
            try:
                self._read(reader, plan, at)
            except Exception as error:
                if not self._sampled:
                    raise
                self._failed = error  # sampled tokens stay in the draft
                return plan
            plan = self._plan(gamma, cost)
            if self.temperature is not None:
                plan = self._sample(plan, gamma, cost, rate)
            self._learn(before, plan, at, cost, rate)

    def _plan(self, gamma: int, cost: Float32 | None) -> Chain:
        """The chain that the engine drafts with the rows read so far."""
        tokens, confidence, source = self.tables.engine.draft(gamma, self._with_paid(cost))
        known, rows = 0, len(self._rows)
        while known < rows and (known == 0 or known <= len(tokens)):
            if known and int(tokens[known - 1]) != self._path[known - 1]:
                break
            known += 1
        return Chain(tokens, confidence, source, known)

    def _worthwhile(self, reader: ModelReader, plan: Chain, gamma: int, rate: float) -> int | None:
        """The depth at which to consult the head, or None. ``rate``: tokens per cost."""
        model = reader.model
        last = min(len(reader.readable(plan.tokens.tolist())), gamma - 1)
        if model.ahead is not None:
            last = min(last, model.ahead - 1)
        best, highest = None, -np.inf
        for depth in range(plan.known, last + 1):
            gain = plan.reach(depth) * self.worth.gain[cell(plan.chance(depth), depth)]
            net = gain - rate * model.cost(depth + 1 - plan.known)
            if net > highest:
                best, highest = depth, net
        if best is None or not reader.fits(self.text, gamma):
            return None
        if self._rows:
            return best if highest > 0 else None
        reading = rate * model.reading_cost(reader.unread(len(self.text))) if rate else 0.0
        if highest <= 0:
            return best if self.worth.should_retry(1.0 + reading) else None
        self._missed += highest
        if self._missed < reading:
            return None
        self.worth.pays()
        return best

    def _read(self, reader: ModelReader, plan: Chain, depth: int) -> None:
        """Read the head's rows up to a depth of the chain."""
        path: list[int] = plan.tokens[:depth].tolist()
        first = plan.known
        last = depth + 1 - first  # the head's distributions after that many tokens are new
        ids, log_probs = reader.forward(reader.rest(self.text, path, last), last)
        before = np.array([0, *path], np.int32)[first:]
        self.tables.engine.set_head_rows(before, ids, log_probs, first)
        self._rows[first:] = list(zip(ids, log_probs, strict=True))
        self._path, self._missed = path, 0.0
        self._paid += reader.model.cost(last)

    def _learn(
        self, before: Chain, after: Chain, depth: int, cost: Float32 | None, rate: float
    ) -> None:
        """Learn what the row at a depth has changed."""
        more = 0.0
        if cost is not None:
            more = float(cost[len(after.tokens) + 1]) - float(cost[len(before.tokens) + 1])
        gain = after.expected() - before.expected() - rate * more
        reach = max(before.reach(depth), 1e-3)
        self.worth.gain.learn(cell(before.chance(depth), depth), gain / reach)

    def _sample(self, plan: Chain, gamma: int, cost: Float32 | None, rate: float) -> Chain:
        """Sample the head's tokens where they are accepted with a higher probability."""
        assert self.temperature is not None
        depth = max(self._sampled, default=-1) + 1
        while depth < min(plan.known, gamma):
            q = distribution(*self._rows[depth], self.temperature)
            if not len(q[0]):  # NaN
                break
            share = self.worth.accepted[peak(q[1])]
            price = 0.0 if cost is None else float(cost[depth + 2] - cost[depth + 1])
            worth = plan.reach(depth) * share > rate * price
            if share > plan.chance(depth) and worth:
                (token,) = sampled(*q, self._rng)
                self._sampled[depth] = q
                tokens = np.append(plan.tokens[:depth], np.int32(token))
                shares = np.append(plan.confidence[:depth], np.float32(share))
                self.tables.engine.fix(tokens.astype(np.int32), shares.astype(np.float32))
                plan = self._plan(gamma, cost)
            depth += 1
        return plan

    def _stated(self, plan: Chain) -> Draft:
        """The chain with the distributions that its tokens were sampled from."""
        draft = Draft(plan.tokens, None, plan.confidence, None, plan.source)
        parts = [self._sampled.get(depth, q) for depth, q in enumerate(distributions(draft))]
        return replace(draft, proposal=proposal_of(parts))

    def observe(
        self, draft: Draft, accepted: Nodes, verified: int | None = None, evidence: Observed = None
    ) -> None:
        judged = verified_count(draft, accepted, verified)
        for depth, (_, probs) in self._sampled.items():
            if depth < judged:
                self.worth.accepted.learn(peak(probs), depth < len(accepted))
        self.tables.observe(draft, accepted, verified, evidence)

    def extend(self, tokens: Int32) -> None:
        if self._failed is not None:
            raise self._failed
        self._emitted = RATE_MEMORY * self._emitted + len(tokens)
        self._cost = RATE_MEMORY * self._cost + 1.0 + self._paid + self._verifying
        self._paid = self._verifying = 0.0
        self._path, self._rows, self._sampled = [], [], {}
        super().extend(tokens)

    def sizeof(self) -> int | None:
        return self.tables.sizeof()


class HeadedDrafter(LearningDrafter):
    """Tables and a head, under one calibrated estimate.

    Sequences share what the head was worth, besides the calibration of the tables.

    Args:
        tables: the drafter that is combined with the head. Both use its learned state, until
            ``forget``.
        head: the drafter that is consulted where its forward is worth the cost.
    """

    estimates = True
    branches = True
    learned = ("worth",)

    def __init__(self, tables: ValueDrafter, head: ModelDrafter) -> None:
        self.tables = tables.with_attributes(headed=True)
        self.head, self.assistants = head, (head,)
        self.evidence, self.stores = tables.evidence, tables.stores
        self.by_request = tables.by_request
        unnamed = None in (tables.spec, head.spec)
        self.spec = None if unnamed else f"{tables.spec}+{head.spec}"
        self.worth = HeadWorth()

    @property
    def source_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The engine's sources, the head's, and "tools" if calls are predicted."""
        names = (*SOURCES_OF_ENGINE, *self.head.source_names)
        return names if self.tables.tools is None else (*names, TOOLS)

    def with_stores(self, stores: Sequence[Store]) -> Self:
        """A copy of this drafter with other stores; both share what they learn."""
        tables = self.tables.with_stores(stores)
        return self.with_attributes(tables=tables, stores=tables.stores)

    def with_tools(self, tools: ToolCalls) -> Self:
        """A copy of this drafter that predicts tool calls; both share what they learn."""
        return self.with_attributes(tables=self.tables.with_tools(tools))

    def forget(self) -> None:
        # New tables, because other drafters may share what the old ones have learned.
        self.tables, self.worth = copy.copy(self.tables), HeadWorth()

    def start(self, tokens: Int32) -> HeadedSession:
        return HeadedSession(self.of_sequence(), tokens)


class MtpDrafter(ModelDrafter):
    """Drafts with the target's layers for multi-token prediction, one token with each layer."""

    source_names = ("mtp",)
    reads_states = True

    def __init__(self, gamma: int = 8, threshold: float = 0.4, top_k: int | None = 64) -> None:
        self._begin(gamma, threshold, top_k)
        self.spec = f"mtp(gamma={gamma},threshold={self.threshold},top_k={top_k})"


def with_head(drafter: Drafter, head: ModelDrafter) -> Drafter:
    """A drafter with a head: one estimate with tables by value; others continue its draft."""
    if isinstance(drafter, NullDrafter):
        drafter = StoreDrafter()  # without stores: the head drafts alone
    if isinstance(drafter, HeadedDrafter):
        drafter = drafter.tables
    if isinstance(drafter, ValueDrafter):
        return HeadedDrafter(drafter, head)
    if drafter.stores:
        raise UnsupportedError(f"no model can draft beside {drafter!r}, which has stores")
    return CalibratedDrafter(PriorityDrafter((head, drafter)))


HEADS_KEPT = 4


class HeadOfCalls:
    """The heads that the calls of a Speculator bring, with their drafters. Threads may share it.

    It keeps what was learned about the last HEADS_KEPT heads, but not their models alive.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: list[tuple[Drafter, ModelDrafter, bool, Drafter]] = []

    def drafter(self, own: Drafter, head: ModelDrafter, *, by_request: bool) -> Drafter:
        """The Speculator's drafter ``own`` with a call's head; see ``with_calibration``."""
        with self._lock:
            for tables, known, alone, made in self._made:
                if tables is own and known.same_as(head) and alone == by_request:
                    return made
            head = head.held_weakly()
            made = with_head(own, head).with_calibration(by_request=by_request)
            self._made = [*self._made[1 - HEADS_KEPT :], (own, head, by_request, made)]
            return made
