"""The decode loop: draft, verify in one forward, accept, roll back, extend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from ngramspec.draft import EMPTY_DRAFT, DecodeStats, Draft, Verdict
from ngramspec.drafting import Drafting
from ngramspec.stopping import StopRules
from ngramspec.target import Target
from ngramspec.verify.greedy import greedy_tokens
from ngramspec.verify.sampled import draw


@dataclass(frozen=True, slots=True)
class StepEvent:
    """What one step did, for ``on_step``.

    Attributes:
        index: 0 for the prefill, which drafts nothing and emits the first token.
        drafted: the draft's token ids.
        source: for each of them the name of the tier it came from.
        verdict: what the target made of it.
        draft_seconds, forward_seconds, other_seconds: the step's wall time.
    """

    index: int
    drafted: tuple[int, ...]
    source: tuple[str, ...]
    verdict: Verdict
    draft_seconds: float
    forward_seconds: float
    other_seconds: float

    @property
    def accepted(self) -> tuple[int, ...]:
        """Draft tokens that stand."""
        return tuple(self.drafted[node] for node in self.verdict.accepted)

    @property
    def rejected(self) -> tuple[int, ...]:
        """Draft tokens that do not, untested ones included."""
        return self.drafted[len(self.verdict.accepted) :]


@dataclass(slots=True)
class Record:
    """Scores and logits per generated token, where they were asked for.

    Attributes:
        scores: processed scores, float32 (1, vocab) each, or None.
        logits: raw logits, float32 (1, vocab) each, or None.
    """

    scores: list[torch.Tensor] | None = None
    logits: list[torch.Tensor] | None = None

    def __bool__(self) -> bool:
        """Whether anything is kept."""
        return self.scores is not None or self.logits is not None


@dataclass(slots=True)
class Generation:
    """The arguments of one run of the loop.

    Attributes:
        target: the model, not yet prefilled.
        drafting: makes the Drafting once the vocabulary is known; called with its size.
        processors: logits processors in order, called as ``generate`` calls them.
        stop: after which token to end.
        do_sample: draw from the distribution, or take the most probable token.
        streamer: gets every token, int64 (1,) on the host, or None.
        record: what to keep of each token.
        stats: counts and times of this run, added to while it runs.
        on_step: called with every StepEvent, or None.
    """

    target: Target
    drafting: Callable[[int], Drafting]
    processors: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None
    stop: StopRules
    do_sample: bool = False
    streamer: Any = None
    record: Record = field(default_factory=Record)
    stats: DecodeStats = field(default_factory=DecodeStats)
    on_step: Callable[[StepEvent], None] | None = None


def decode(run: Generation) -> torch.Tensor:
    """Generate until a stopping rule fires.

    Whatever ends it, an exception included, the target's cache holds what plain decoding would
    have left there, and the draft session is closed.

    Returns:
        int64 (1, prompt + generated), on the prompt's device.
    """
    state = _State(run)
    drafting: Drafting | None = None
    try:
        begin = perf_counter()
        logits = run.target.prefill()
        verdict = state.verify(EMPTY_DRAFT, logits, state.choices(logits))
        seconds = perf_counter() - begin
        run.stats.runs += 1
        run.stats.prefill_seconds += seconds
        state.report(0, EMPTY_DRAFT, (), verdict, (0.0, seconds, 0.0))
        if state.stopped:
            return state.ids()
        drafting = run.drafting(logits.shape[-1])
        drafting.learn(EMPTY_DRAFT, verdict)
        with run.target.decoding():
            while not state.stopped:
                state.step(drafting)
        return state.ids()
    finally:
        run.target.rollback(state.forwarded)
        if drafting is not None:
            drafting.close()


class _State:
    """The committed tokens of a run, and what is done with each.

    Attributes:
        forwarded: generated tokens that plain decoding would have forwarded by now, and so what
            stays in the cache if the run ends here; None: not even the prompt.
    """

    def __init__(self, run: Generation) -> None:
        prompt = run.target.prompt
        self.run = run
        self.length = prompt.shape[1]
        self.prompt_length = prompt.shape[1]
        self.forwarded: int | None = None
        self.stopped = False
        self.steps = 0
        self.buffer = prompt.new_empty((1, self.length + 256))
        self.buffer[:, : self.length] = prompt
        # Greedy without processors needs one transfer a step, anything else one per token.
        self.at_once = not run.do_sample and not run.processors

    @property
    def new(self) -> int:
        """Generated tokens so far."""
        return self.length - self.prompt_length

    def ids(self) -> torch.Tensor:
        """The committed tokens, int64 (1, length)."""
        return self.buffer[:, : self.length].clone()

    def step(self, drafting: Drafting) -> None:
        """One step: propose, forward, verify, roll back, observe and extend."""
        run = self.run
        started = perf_counter()
        draft = drafting.propose(self.draft_limit())
        tiers = drafting.tiers
        proposed = perf_counter()
        logits = run.target.forward(self.with_draft(draft), len(draft))
        choices = self.choices(logits)
        forwarded = perf_counter()
        verdict = self.verify(draft, logits, choices)
        run.target.commit(len(verdict.emitted))
        run.target.rollback(self.forwarded)
        drafting.learn(draft, verdict)
        ended = perf_counter()
        self.steps += 1
        seconds = (proposed - started, forwarded - proposed, ended - forwarded)
        run.stats.count_step(draft, verdict, tiers)
        run.stats.host_syncs += 1 if self.at_once else len(verdict.emitted)
        run.stats.host_syncs += len(verdict.emitted) if run.stop.custom else 0
        run.stats.draft_seconds += seconds[0]
        run.stats.forward_seconds += seconds[1]
        run.stats.other_seconds += seconds[2]
        self.report(self.steps, draft, tiers, verdict, seconds)

    def draft_limit(self) -> int:
        """How many tokens a draft may have: none may pass the maximum length or the positions."""
        limits = [1 << 20]
        if self.run.stop.max_length is not None:
            limits.append(self.run.stop.max_length - self.length - 1)
        room = self.run.target.room(self.new)
        if room is not None:
            limits.append(room)
        return min(limits)

    def with_draft(self, draft: Draft) -> torch.Tensor:
        """The committed tokens and the draft behind them, int64 (1, length + n)."""
        end = self.length + len(draft)
        self.reserve(end + 1)
        if len(draft):
            self.buffer[0, self.length : end] = torch.from_numpy(draft.tokens)
        return self.buffer[:, :end]

    def reserve(self, length: int) -> None:
        if length > self.buffer.shape[1]:
            self.buffer = torch.cat((self.buffer, self.buffer.new_empty((1, length))), dim=1)

    def choices(self, logits: torch.Tensor) -> list[int] | None:
        """The target's tokens at all positions, where they can be had at once; else None."""
        return greedy_tokens(logits) if self.at_once else None

    def verify(self, draft: Draft, logits: torch.Tensor, choices: list[int] | None) -> Verdict:
        """Commit the target's tokens position by position, as far as the draft agrees.

        Args:
            draft: the n tokens that were forwarded.
            logits: (n + 1, vocab).
            choices: the target's n + 1 tokens, or None: choose as far as the draft agrees.
        """
        drafted = draft.tokens.tolist()
        accepted = 0
        emitted: list[int] = []
        for position in range(len(drafted) + 1):
            self.forwarded = self.new
            known = None if choices is None else choices[position]
            token = self.choose(logits[position : position + 1], known)
            emitted.append(token)
            agrees = position < len(drafted) and drafted[position] == token
            accepted += agrees
            self.commit(token)
            if self.stopped or not agrees:
                break
        tested = min(len(emitted), len(drafted))
        return Verdict(range(accepted), tested, tuple(emitted))

    def choose(self, row: torch.Tensor, known: int | None) -> int:
        """The target's token at one position, from its logits (1, vocab), and its record."""
        run, record = self.run, self.run.record
        if known is not None and not record:
            return known
        logits = row.to(copy=True, dtype=torch.float32, device=self.buffer.device)
        ids = self.buffer[:, : self.length]
        scores = run.processors(ids, logits) if run.processors else logits
        if record.scores is not None:
            record.scores.append(scores)
        if record.logits is not None:
            record.logits.append(logits)
        if known is not None:
            return known
        return int(draw(scores) if run.do_sample else scores.argmax(dim=-1))

    def commit(self, token: int) -> None:
        """Append one token, ask whether to stop, stream it: in the order of ``generate``."""
        run = self.run
        self.reserve(self.length + 1)
        self.buffer[0, self.length] = token
        self.length += 1
        ids = self.buffer[:, : self.length]
        self.stopped = run.stop(token, ids, run.record.scores)
        if run.streamer is not None:
            run.streamer.put(torch.tensor([token]))

    def report(
        self,
        index: int,
        draft: Draft,
        tiers: Sequence[str],
        verdict: Verdict,
        seconds: tuple[float, float, float],
    ) -> None:
        if self.run.on_step is None:
            return
        source = [0] * len(draft) if draft.source is None else draft.source.tolist()
        names = tuple(tiers[each] for each in source)
        drafted = tuple(draft.tokens.tolist())
        self.run.on_step(StepEvent(index, drafted, names, verdict, *seconds))
