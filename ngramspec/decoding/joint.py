"""Generations that their caller advances step by step, and joint steps of several of them.

In a joint step several open generations of one model share one forward. Each generation drafts,
verifies and rolls back separately, as in the decode loop. If all of them draft by cost, the most
probable draft tokens of all generations are verified first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from statistics import mean
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from ngramspec.costs.row_lengths import worthwhile_rows
from ngramspec.costs.steps import MAX_JOINT_TOKENS, JointPart, StepCosts
from ngramspec.decoding.loop import DecodeLoop
from ngramspec.decoding.request import Request
from ngramspec.decoding.setup import loop_of, output_of, ranks_for
from ngramspec.decoding.step import Step
from ngramspec.draft import Draft
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.cache.rows import SharedRows
from ngramspec.hf_model.compat.devices import device_of
from ngramspec.hf_model.facts import check_request
from ngramspec.hf_model.joint import (
    ForwardShare,
    JointForward,
    JointResult,
    is_tried,
    piece_of,
    share_of,
    why_not_attending,
    why_not_joint,
    why_not_tried,
)


class OpenGeneration:
    """One row that its caller decodes step by step; see ``stepwise.open_generation``.

    Between two steps, other generations of the model may run steps in the same thread. The object
    is not thread-safe. It always runs in the inference mode in which it was opened.

    Attributes:
        stats: this generation's statistics so far.
        target: the model, as this generation uses it.
        step_costs: the costs of its steps; None if they are not measured.
        inference_mode: whether it was opened in torch's inference mode.
    """

    def __init__(self, loop: DecodeLoop, request: Request) -> None:
        self.stats, self.step_costs = loop.stats, loop.costs
        self.target = loop.target
        self.inference_mode = torch.is_inference_mode_enabled()
        self._loop, self._request = loop, request
        (self._row,) = loop.group.rows
        self._unfinished, self._closed = True, False
        self._why_alone: tuple[str | None] | None = None  # from the prefill on
        self._rows: SharedRows | None = None  # of joint steps, which hold its cache

    @property
    def cache(self) -> Any:
        """The model's cache as a transformers object, such as a DynamicCache.

        After ``close`` it holds all committed tokens except the last.
        """
        return self.target.cache.cache

    @property
    def finished(self) -> bool:
        """Whether a stopping rule has fired, or the generation is closed."""
        return self._closed or not self._unfinished

    @property
    def length(self) -> int:
        """Number of tokens so far, including the prompt."""
        return self._row.length

    @property
    def tokens(self) -> list[int]:
        """The generated tokens so far."""
        return self._row.ids_from(self._row.prompt_length)

    def take_logits(self) -> list[torch.Tensor]:
        """Return and drop the logits of the tokens since the last call, float32 (1, vocab) each.

        A caller that takes them after every step holds only one step's logits in memory. The list
        is empty without ``output_logits=True``.
        """
        logits = self._loop.sampler.logits or []
        taken = list(logits)
        logits.clear()
        return taken

    @property
    def why_alone(self) -> str | None:
        """Why its next step cannot be joint (see ``stepwise.JointSteps``); None if it can."""
        if self.finished or not self._loop.prefilled:
            return "it has not been prefilled, or it has ended"
        if self._why_alone is None:
            self._why_alone = (why_not_joint(self.target),)
        return self._why_alone[0] or why_not_attending()

    @property
    def allows_pieces(self) -> bool:
        """Whether pieces of prompts can be read in its joint steps; not with windows."""
        return self.target.facts.windows is None

    def skip_prefill(self) -> None:
        """Begin with a step, if the cache holds all of the prompt but its last token."""
        vocab, loop = self.target.vocab, self._loop
        if vocab is not None and self.target.skip_prefill():
            loop.prefilled = True
            loop.stats.runs += 1
            loop.group.connect(vocab)

    def step(self) -> list[int]:
        """Run the prefill if it has not run yet, else the next step; return the tokens it added.

        There is none only if the generation has finished. If it raises, the generation is closed.
        """
        if self.finished:
            return []
        before = self.length
        context = self.target.decoding() if self._loop.prefilled else nullcontext()
        with self._closed_by_errors(), context:
            self._unfinished = self._loop.advance()
        return self._row.ids_from(before)

    def begin_step(self, part: JointPart | None) -> Step:
        """First half of a joint step: propose. An error closes the generation.

        ``part``: what it costs, if this generation drafts by cost.
        """
        with self._closed_by_errors():
            return self._loop.propose(None if self.step_costs is None else part)

    def begin_forward(self, step: Step) -> ForwardShare:
        """Its share of a joint forward over a step's draft. An error closes the generation."""
        with self._closed_by_errors():
            inputs = self.target.begin_forward(self._loop.prepared(step), joint=True)
            return share_of(inputs, self.target.facts.windows)

    def share_rows(self, rows: SharedRows) -> None:
        """Note that joint steps hold its cache in these rows."""
        self._rows = rows

    def end_step(self, step: Step, result: JointResult) -> list[int]:
        """Second half of a joint step, from this generation's result; return the tokens it added.

        An error closes the generation.
        """
        before = self.length
        with self._closed_by_errors():
            self._loop.complete(step, self.target.end_forward(result, result.hidden))
            self._unfinished = self._loop.is_unfinished()
        return self._row.ids_from(before)

    @contextmanager
    def _closed_by_errors(self) -> Iterator[None]:
        try:
            with self._as_opened():
                yield
        except BaseException:
            self.close()
            raise

    @contextmanager
    def _as_opened(self) -> Iterator[None]:
        """The context of ``generate``: no gradients, and the inference mode of the opening."""
        with torch.inference_mode(self.inference_mode), torch.no_grad():
            yield

    def finish(self) -> None:
        """End it as if a stopping rule had fired, so shared stores may keep its text."""
        if not self._closed:
            self._loop.group.finish()
        self.close()

    def output(self) -> Any:
        """What ``generate`` returns for these tokens; call it after ``close``."""
        with self._as_opened():
            return output_of(self._request, self._loop, self._loop.group.sequences())

    def close(self) -> None:
        """End it and leave the cache as the baseline would. Further calls do nothing."""
        if self._closed:
            return
        self._closed = True
        notice = self.target.facts.padding_notice
        if notice is not None and notice.token in self.tokens[:-1]:  # the last one was not read
            notice.give()
        try:
            with self._as_opened():
                self._loop.close()
                if self._rows is not None:
                    self._rows.leave(self.cache)
        finally:
            self._request.count(self.stats)
            if self._request.streamer is not None:
                self._request.streamer.end()

    def __enter__(self) -> OpenGeneration:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def opened(request: Request) -> OpenGeneration:
    """Begin to decode a request of one row step by step; ``unsupported`` is ignored."""
    check_request(request.generation_config, request.model)
    beams, rows = request.beams, request.input_ids.shape[0]
    if beams > 1:
        raise UnsupportedError(
            f"num_beams={beams} cannot be decoded step by step, because no token is selected before"
            " the end; pass num_beams=1"
        )
    if rows != 1:
        raise ValueError(f"input_ids must have one row to be decoded step by step, got {rows}")
    ranks = ranks_for(request)
    if ranks is not None and ranks.together:
        raise UnsupportedError("several processes cannot decode step by step; use generate")
    return OpenGeneration(loop_of(request), request)


class PromptPiece(NamedTuple):
    """Tokens of a prompt, int64 (1, n), that a joint step reads into a cache of transformers.

    The cache holds the tokens before them.
    """

    cache: Any
    ids: torch.Tensor


Added = list[int] | Exception
MIN_ROWS = 8  # that share a forward before its costs are measured
MAX_TOKEN_COST = 1.1  # of a token in a joint step, relative to the number of rows with the lowest


@dataclass(slots=True, eq=False)
class _Turn:
    """A generation's turn in a joint step: its step, its share of the forward, the tokens added.

    ``added`` may also be the error that closed the generation.
    """

    generation: OpenGeneration
    added: Added = field(default_factory=list)
    step: Step = field(init=False)
    share: ForwardShare = field(init=False)

    @contextmanager
    def own_errors(self) -> Iterator[None]:
        """Record an error that closes this generation, so that it does not affect the others."""
        try:
            yield
        except Exception as error:
            self.added = error

    @property
    def draft(self) -> Draft:
        """The draft of the generation's one row."""
        return self.step.rows[0].draft

    def take_added(self) -> Added:
        """Return and drop ``added``: an error whose traceback holds this row would be a cycle."""
        added, self.added = self.added, []
        return added


class JointSteps:
    """Runs joint steps of a model's generations, and learns their costs. Not thread-safe."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._costs: StepCosts | None = None
        self._why_not, self._tried = why_not_tried(model), is_tried(model)
        self._rows = SharedRows()

    @property
    def why_not(self) -> str | None:
        """Why a trial found that the model's forwards cannot be joined; None if they can.

        A trial that had too little memory is repeated.
        """
        if not self._tried:
            self._why_not, self._tried = why_not_tried(self._model), is_tried(self._model)
        return self._why_not

    def worthwhile_rows(self, most: int) -> int:
        """The fewest rows, at most ``most``, whose plain tokens cost about the least, as measured.

        It is MIN_ROWS until joint steps were measured.
        """
        if self._costs is None:
            return min(MIN_ROWS, most)
        model, counts = self._costs.model, np.arange(1, most + 1)
        times = np.exp([float(model.logs(int(n), np.array([n]))[0]) for n in counts]) / counts
        return int(counts[times <= MAX_TOKEN_COST * times.min()][0])

    @torch.no_grad()
    def step(
        self, generations: Sequence[OpenGeneration], pieces: Sequence[PromptPiece] = ()
    ) -> list[Added]:
        """Run the next step of each generation, with one forward for all.

        An error in one generation closes only that generation. An error in the forward closes all.
        A BaseException that is no Exception, such as a KeyboardInterrupt, closes all and is raised.

        Args:
            generations: at least one; each with ``OpenGeneration.why_alone`` None.
            pieces: of prompts of generations that are opened later; all of these generations have
                ``OpenGeneration.allows_pieces``.

        Returns:
            For each generation the tokens that it added, one or more, or the error that closed it.
            Then for each piece nothing, or the error because of which it was not read.

        Raises:
            ValueError: the list is empty, or has a generation twice or one of another model.
            UnsupportedError: the model (``why_not``) or a generation cannot share a forward.
        """
        self._check(generations)
        turns = [_Turn(each) for each in generations]
        try:
            with generations[0].target.decoding():
                self._step(turns, self._tracker(turns), pieces)
        except BaseException as error:
            for turn in turns:
                with suppress(Exception):
                    turn.generation.close()
            if not isinstance(error, Exception):
                raise
            return [*(turn.take_added() or error for turn in turns), *[error for _ in pieces]]
        return [*(turn.take_added() for turn in turns), *([] for _ in pieces)]

    def _check(self, generations: Sequence[OpenGeneration]) -> None:
        if not generations:
            raise ValueError("generations must not be empty")
        if len({id(each) for each in generations}) < len(generations):
            raise ValueError("generations must be distinct, got one of them twice")
        if self.why_not is not None:
            name = type(self._model).__name__
            raise UnsupportedError(f"steps of {name} cannot share a forward: {self.why_not}")
        for at, generation in enumerate(generations):
            if generation.target.model is not self._model:
                raise ValueError(
                    f"generations[{at}] belongs to another model than these joint steps"
                )
            why = generation.why_alone
            if why is not None:
                raise UnsupportedError(f"generations[{at}] cannot share a forward: {why}")

    def _tracker(self, turns: Sequence[_Turn]) -> StepCosts | None:
        """The costs of this joint step; None if no turn drafts by cost."""
        own = [each for turn in turns if (each := turn.generation.step_costs) is not None]
        if not own:
            return None
        model, limit = own[0].model, max(MAX_JOINT_TOKENS, *(each.limit for each in own)) + 1
        joint = self._costs
        if joint is None or joint.model is not model or joint.limit < limit:
            joint = self._costs = StepCosts(model, limit, packed=True)
        joint.rows = len(turns)
        joint.at(int(mean(turn.generation.length for turn in turns)))
        joint.plain()
        return joint

    def _step(
        self, turns: Sequence[_Turn], tracker: StepCosts | None, pieces: Sequence[PromptPiece]
    ) -> None:
        part = None if tracker is None else tracker.part()
        for turn in turns:
            with turn.own_errors():
                turn.step = turn.generation.begin_step(part)
        stepped = _without_errors(turns)
        if tracker is not None:
            _cut(stepped, tracker)
        began = perf_counter()
        for turn in stepped:
            with turn.own_errors():
                turn.share = turn.generation.begin_forward(turn.step)
                turn.generation.share_rows(self._rows)
        stepped = _without_errors(stepped)
        if not stepped:
            raise next(turn.added for turn in turns if isinstance(turn.added, Exception))
        hidden = any(turn.generation.target.wants_hidden for turn in stepped)
        shares = [turn.share for turn in stepped]
        narrow = not pieces and all(share.ids.shape[1] == 1 for share in shares)
        turns[0].generation.target.narrow(narrow)
        # Only a generation opened in inference mode may get tensors that are made in it.
        inference = all(turn.generation.inference_mode for turn in stepped)
        inference = inference and (not pieces or torch.is_inference_mode_enabled())
        with torch.inference_mode(inference), torch.no_grad():
            read = [piece_of(*each) for each in pieces]
            results = JointForward(self._model, shares, self._rows, read).run(hidden)
        forwarded = perf_counter()
        for turn, result in zip(stepped, results, strict=True):
            with turn.own_errors():
                turn.added = turn.generation.end_step(turn.step, result)
        waited = device_of(self._model).type == "cpu"  # see Step.waited
        if tracker is not None and len(stepped) == len(turns) and not pieces:
            _learn(tracker, stepped, (forwarded if waited else perf_counter()) - began)


def _without_errors(turns: Sequence[_Turn]) -> list[_Turn]:
    return [turn for turn in turns if not isinstance(turn.added, Exception)]


def _cut(turns: Sequence[_Turn], tracker: StepCosts) -> None:
    """Maximize the expected tokens per cost, unless a draft is sampled or a gamma is fixed."""
    drafts = [turn.draft for turn in turns]
    by_cost = all(turn.generation.step_costs is not None for turn in turns)
    if not by_cost or any(draft.proposal is not None for draft in drafts):
        return
    for turn, draft in zip(
        turns, worthwhile_rows(drafts, tracker.required_tokens()[1:]), strict=True
    ):
        turn.step.rows[0].cut(len(draft))
        turn.step.width = 1 + len(draft)


def _learn(tracker: StepCosts, turns: Sequence[_Turn], seconds: float) -> None:
    """Record a joint step's time and acceptance."""
    drafts = [turn.draft for turn in turns]
    drafted = sum(map(len, drafts))
    added = sum(len(turn.added) for turn in turns if not isinstance(turn.added, Exception))
    if drafted < tracker.limit:  # it knows no wider forwards
        branched = any(draft.parents is not None for draft in drafts)
        tracker.record_time(1 + drafted, seconds, branched)
    tracker.record_acceptance(1 + drafted, drafted, max(added - len(turns), 0))
