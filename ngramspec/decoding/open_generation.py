"""A generation that its caller advances step by step, and may end at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch

from ngramspec.decoding.generation import Generation
from ngramspec.decoding.loop import DecodeLoop, PlannedStep
from ngramspec.hf_model.joint_forward import JointResult, why_not_joint
from ngramspec.stats import DecodeStats


class OpenGeneration:
    """One row, decoded as far as its caller asks for; see ``stepwise.open_generation``.

    Between two steps, other generations of the model may take theirs, in the same thread.
    Not safe for several threads at once.

    Args:
        run: not yet prefilled.
        count: is given the run's statistics at the end.
        streamer: of the call, or None; it is ended at the end.

    Attributes:
        stats: of this generation, so far.
        target: the model, as this generation uses it.
        step_costs: of its steps; None: they are not measured.
        cache: of the model. After ``close`` it holds the prompt and the tokens but the last.
    """

    def __init__(
        self, run: Generation, count: Callable[[DecodeStats], None], streamer: Any = None
    ) -> None:
        self.stats, self.target, self.step_costs = run.stats, run.target, run.step_costs
        self._run, self._count, self._streamer = run, count, streamer
        self._loop = DecodeLoop(run)
        self._going, self._begun, self._closed = True, False, False

    @property
    def cache(self) -> Any:
        """The model's cache as transformers has it, such as a DynamicCache."""
        return self.target.cache.cache

    @property
    def finished(self) -> bool:
        """Whether a stopping rule has fired, or the generation is closed."""
        return self._closed or not self._going

    @property
    def length(self) -> int:
        """Tokens of the prompt and of the answer so far."""
        return self._loop.groups[0].length

    @property
    def tokens(self) -> list[int]:
        """The generated tokens so far."""
        group = self._loop.groups[0]
        return group.tokens_from(group.prompt_length)

    def take_logits(self) -> list[torch.Tensor]:
        """The target's logits of every token since the last call, float32 (1, vocab) each.

        The generation does not keep them, so a caller that takes them after every step holds a
        step's rows at most. Without ``output_logits=True`` there are none.
        """
        return self._run.sampler.record.take_logits()

    @property
    def why_alone(self) -> str | None:
        """Why its next step cannot be a joint one, see ``stepwise.JointSteps``; None: it can."""
        if self.finished or not self._begun:
            return "no step before the prefill, or after the end"
        return why_not_joint(self.target)

    @torch.no_grad()
    def step(self) -> list[int]:
        """Run the prefill, or after it the next step.

        If it raises, the generation is closed.

        Returns:
            the tokens that it added, one or more; none if the generation has finished.
        """
        if self.finished:
            return []
        before = self.length
        with self._closed_by_errors():
            if self._begun:
                with self.target.decoding():
                    self._going = self._loop.advance()
            else:
                self._begun = True
                self._going = self._loop.advance()
        return self._loop.groups[0].tokens_from(before)

    def plan(self) -> PlannedStep:
        """The first part of a joint step: propose. If it raises, the generation is closed."""
        with self._closed_by_errors():
            return self._loop.plan()

    def begin_forward(self, planned: PlannedStep) -> dict[str, Any]:
        """The arguments of the model's forward over a step's draft; errors close as before."""
        with self._closed_by_errors():
            arguments = self._loop.arguments(planned.drafts, planned.width)
            return self.target.begin_forward(*arguments)

    def take(self, planned: PlannedStep, result: JointResult) -> list[int]:
        """The rest of a joint step; errors close as before.

        Args:
            planned: the step.
            result: this generation's share of the forward's.

        Returns:
            the tokens that it added.
        """
        before = self.length
        with self._closed_by_errors():
            self._loop.take(planned, self.target.end_forward(result, result.hidden))
            self._going = self._loop.ended_step()
        return self._loop.groups[0].tokens_from(before)

    @contextmanager
    def _closed_by_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def finish(self) -> None:
        """End it as if a stopping rule had fired: its text may be shared as its stores say."""
        if not self._closed:
            self._loop.drafting.finish()
        self.close()

    @torch.no_grad()
    def close(self) -> None:
        """End it, once: the cache is left as plain decoding would leave it."""
        if self._closed:
            return
        self._closed = True
        try:
            self._loop.close()
        finally:
            self._count(self.stats)
            if self._streamer is not None:
                self._streamer.end()

    def __enter__(self) -> OpenGeneration:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
