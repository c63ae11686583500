"""A generation that its caller advances step by step, and may end at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch

from ngramspec.decoding.call import checked_run, checked_target
from ngramspec.decoding.distributed import ALONE
from ngramspec.decoding.generation import Generation
from ngramspec.decoding.loop import DecodeLoop, OpenStep, finish
from ngramspec.decoding.recorder import Step
from ngramspec.decoding.request import GenerateCall
from ngramspec.decoding.setup import Settings
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.joint_forward import JointResult, Share, share_of, why_not_joint
from ngramspec.hf_model.support import check_request
from ngramspec.stats import DecodeStats


class OpenGeneration:
    """One row, decoded as far as its caller asks for; see ``stepwise.open_generation``.

    Between two steps, other generations of the model may take theirs, in the same thread.
    Not safe for several threads at once. torch keeps its inference mode for each thread, so every
    part of the generation runs in the mode in which it was opened, whichever mode its caller is in.
    A tensor that is made in the mode can be changed in place only in the mode.

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
        self._inference_mode = torch.is_inference_mode_enabled()
        self._loop = DecodeLoop(run)
        self._going, self._begun, self._closed = True, False, False
        self._open_step: OpenStep | None = None  # a joint step before its forward

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
        return self._loop.batch.groups[0].length

    @property
    def tokens(self) -> list[int]:
        """The generated tokens so far."""
        group = self._loop.batch.groups[0]
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
        return self._loop.batch.groups[0].tokens_from(before)

    def begin_step(self) -> Step:
        """The first half of a joint step: propose. If it raises, the generation is closed."""
        with self._closed_by_errors():
            self._open_step = self._loop.step()
            return next(self._open_step)

    def begin_forward(self, step: Step) -> Share:
        """The generation's share of a joint forward over a step's draft; errors close as before."""
        with self._closed_by_errors():
            return share_of(self.target.begin_forward(*self._loop.arguments(step)))

    def end_step(self, result: JointResult) -> list[int]:
        """The second half of a joint step, after its forward; errors close as before.

        Args:
            result: this generation's share of the forward's.

        Returns:
            the tokens that it added.
        """
        before = self.length
        with self._closed_by_errors():
            assert self._open_step is not None
            finish(self._open_step, self.target.end_forward(result, result.hidden))
            self._going = self._loop.going()
        return self._loop.batch.groups[0].tokens_from(before)

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
        """The context that ``generate`` would have run in: no gradients, and the opening's mode."""
        with torch.inference_mode(self._inference_mode), torch.no_grad():
            yield

    def finish(self) -> None:
        """End it as if a stopping rule had fired: its text may be shared as its stores say."""
        if not self._closed:
            self._loop.drafting.finish()
        self.close()

    def close(self) -> None:
        """End it, once: the cache is left as plain decoding would leave it."""
        if self._closed:
            return
        self._closed = True
        try:
            with self._as_opened():
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


def open_call(settings: Settings, call: GenerateCall) -> OpenGeneration:
    """Begin to decode a call of one row in this process, step by step.

    Raises:
        UnsupportedError: the request cannot be speculated, whatever ``unsupported`` says.
        ValueError: there are several rows, or the prompt is empty or has ids outside the
            vocabulary.
    """
    check_request(call.generation_config)
    beams, rows = call.generation_config.num_beams or 1, call.input_ids.shape[0]
    if beams > 1:
        raise UnsupportedError(
            f"num_beams={beams} cannot be decoded step by step, as no token is decided on before"
            " the end; pass num_beams=1"
        )
    if rows != 1:
        raise ValueError(f"input_ids must have one row to be decoded step by step, got {rows}")
    target = checked_target(settings, ALONE, call)
    run = checked_run(settings, ALONE, target, call)
    return OpenGeneration(run, settings.count, call.streamer)
