"""Joint steps: several open generations of one model share one forward.

Each generation drafts, verifies and rolls back separately, as in the decode loop. If all of them
draft by cost, the most probable draft tokens of all generations are verified first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import mean
from time import perf_counter
from typing import Any

import torch

from ngramspec.costs.joint import JointCosts, JointShare
from ngramspec.costs.tracker import StepCostTracker
from ngramspec.decoding.open_generation import OpenGeneration
from ngramspec.decoding.recorder import Step
from ngramspec.draft_length.batch_choice import worthwhile_rows
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.joint import ForwardShare, JointForward, why_not_tried

Added = list[int] | Exception


@dataclass(slots=True, eq=False)
class _Row:
    """A generation in a joint step: its step, its share of the forward, and the tokens added.

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

    def take_added(self) -> Added:
        """Return and drop ``added``: an error whose traceback holds this row would be a cycle."""
        added, self.added = self.added, []
        return added


class JointSteps:
    """Runs joint steps of a model's generations, and learns their costs. Not thread-safe.

    Attributes:
        why_not: why a trial found that the model's forwards cannot be joined; None if they can.
    """

    def __init__(self, model: Any) -> None:
        self.why_not = why_not_tried(model)
        self._model = model
        self._costs = JointCosts(model)

    @torch.no_grad()
    def step(self, generations: Sequence[OpenGeneration]) -> list[Added]:
        """Run the next step of each generation, with one forward for all.

        An error in one generation closes only that generation. An error in the forward closes all.
        A BaseException that is no Exception, such as a KeyboardInterrupt, closes all and is raised.

        Args:
            generations: at least one; each with ``OpenGeneration.why_alone`` None.

        Returns:
            For each generation the tokens that it added, one or more, or the error that closed it.

        Raises:
            ValueError: the list is empty, or has a generation twice or one of another model.
            UnsupportedError: the model (``why_not``) or a generation cannot share a forward.
        """
        self._check(generations)
        rows = [_Row(each) for each in generations]
        try:
            with generations[0].target.decoding(), self._sharing(rows) as tracker:
                self._step(rows, tracker)
        except BaseException as error:
            for row in rows:
                with suppress(Exception):
                    row.generation.close()
            if not isinstance(error, Exception):
                raise
            return [row.take_added() or error for row in rows]
        return [row.take_added() for row in rows]

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

    @contextmanager
    def _sharing(self, rows: Sequence[_Row]) -> Iterator[StepCostTracker | None]:
        """Let rows draft by the costs of a joint step, and do not time them separately.

        These costs are yielded, or None if no row drafts by cost.
        """
        own = [each for row in rows if (each := row.generation.step_costs) is not None]
        if not own:
            yield None
            return
        tracker = self._costs.of(own[0].tracker, len(rows))
        tracker.at(int(mean(row.generation.length for row in rows)))
        share = JointShare(tracker, len(rows), tracker.plain())
        for each in own:
            each.now = share
        try:
            yield tracker
        finally:
            for each in own:
                each.now = each.tracker

    def _step(self, rows: Sequence[_Row], tracker: StepCostTracker | None) -> None:
        for row in rows:
            with row.own_errors():
                row.step = row.generation.begin_step()
        stepped = _without_errors(rows)
        if tracker is not None:
            _cut(stepped, tracker)
        began = perf_counter()
        for row in stepped:
            with row.own_errors():
                row.share = row.generation.begin_forward(row.step)
        stepped = _without_errors(stepped)
        if not stepped:
            return
        hidden = any(row.generation.target.wants_hidden for row in stepped)
        shares = [row.share for row in stepped]
        # Only a generation opened in inference mode may get tensors that are made in it.
        inference = all(row.generation.inference_mode for row in stepped)
        with torch.inference_mode(inference), torch.no_grad():
            results = JointForward(self._model, shares).run(hidden)
        forwarded = perf_counter()
        for row, result in zip(stepped, results, strict=True):
            with row.own_errors():
                row.added = row.generation.end_step(row.step, result)
        waited = self._model.device.type == "cpu"  # see StepRecorder.mark_forwarded
        if tracker is not None and len(stepped) == len(rows):
            _learn(tracker, stepped, (forwarded if waited else perf_counter()) - began)


def _without_errors(rows: Sequence[_Row]) -> list[_Row]:
    return [row for row in rows if not isinstance(row.added, Exception)]


def _cut(rows: Sequence[_Row], tracker: StepCostTracker) -> None:
    """Cut the drafts to the lengths that maximize the expected tokens per cost.

    No draft is cut if one of them is sampled, because no sampled token may decide how many tokens
    are verified. None is cut either if a generation has a fixed gamma.
    """
    drafts = [row.step.drafts[0] for row in rows]
    by_cost = all(row.generation.step_costs is not None for row in rows)
    if not by_cost or any(draft.proposal is not None for draft in drafts):
        return
    for row, draft in zip(rows, worthwhile_rows(drafts, tracker.cost()[1:]), strict=True):
        row.step.drafts, row.step.width = [draft.as_chain()], 1 + len(draft)


def _learn(tracker: StepCostTracker, rows: Sequence[_Row], seconds: float) -> None:
    """Record a joint step's time and acceptance."""
    drafts = [row.step.drafts[0] for row in rows]
    drafted = sum(map(len, drafts))
    added = sum(len(row.added) for row in rows if not isinstance(row.added, Exception))
    tracker.record_time(1 + drafted, seconds, any(draft.parents is not None for draft in drafts))
    tracker.record_acceptance(drafted, max(added - len(rows), 0))
