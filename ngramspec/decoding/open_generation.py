"""A generation that its caller advances step by step and may end at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from ngramspec.decoding.loop import DecodeLoop
from ngramspec.decoding.recorder import Step
from ngramspec.decoding.request import GenerateCall
from ngramspec.decoding.setup import CallSetup, Settings
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.joint import ForwardShare, JointResult, share_of, why_not_joint
from ngramspec.hf_model.support import check_request
from ngramspec.stats import DecodeStats


class OpenGeneration:
    """One row that its caller decodes step by step; see ``stepwise.open_generation``.

    Between two steps, other generations of the model may run steps in the same thread. The object
    is not thread-safe. It always runs in the inference mode in which it was opened, whatever mode
    its caller is in: the mode belongs to the thread, and a tensor that was made in inference mode
    can be modified in place only in that mode.

    Attributes:
        stats: this generation's statistics so far.
        target: the model, as this generation uses it.
        step_costs: the costs of its steps; None if they are not measured.
        inference_mode: whether it was opened in torch's inference mode.
    """

    def __init__(
        self, loop: DecodeLoop, count: Callable[[DecodeStats], None], streamer: Any = None
    ) -> None:
        self.stats, self.step_costs = loop.recorder.stats, loop.recorder.costs
        self.target = loop.target
        self.inference_mode = torch.is_inference_mode_enabled()
        self._loop, self._count, self._streamer = loop, count, streamer
        self._row = loop.batch.groups[0]
        self._unfinished, self._closed = True, False

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
        return self._row.tokens_from(self._row.prompt_length)

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
        return why_not_joint(self.target)

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
        return self._row.tokens_from(before)

    def begin_step(self) -> Step:
        """First half of a joint step: propose. An error closes the generation."""
        with self._closed_by_errors():
            return self._loop.propose()

    def begin_forward(self, step: Step) -> ForwardShare:
        """Its share of a joint forward over a step's draft. An error closes the generation."""
        with self._closed_by_errors():
            target, arguments = self.target, self._loop.arguments(step)
            return share_of(target.begin_forward(*arguments, joint=True), target.traits.windows)

    def end_step(self, step: Step, result: JointResult) -> list[int]:
        """Second half of a joint step, from this generation's result; return the tokens it added.

        An error closes the generation.
        """
        before = self.length
        with self._closed_by_errors():
            self._loop.complete(step, self.target.end_forward(result, result.hidden))
            self._unfinished = self._loop.is_unfinished()
        return self._row.tokens_from(before)

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
            self._loop.drafting.finish()
        self.close()

    def close(self) -> None:
        """End it and leave the cache as the baseline would. Further calls do nothing."""
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

    def __exit__(self, *_: object) -> None:
        self.close()


def open_call(settings: Settings, call: GenerateCall) -> OpenGeneration:
    """Begin to decode a call of one row step by step; ``unsupported`` is ignored."""
    check_request(call.generation_config)
    beams, rows = call.beams, call.input_ids.shape[0]
    if beams > 1:
        raise UnsupportedError(
            f"num_beams={beams} cannot be decoded step by step, because no token is selected before"
            " the end; pass num_beams=1"
        )
    if rows != 1:
        raise ValueError(f"input_ids must have one row to be decoded step by step, got {rows}")
    return OpenGeneration(CallSetup(settings, call).loop(), settings.count, call.streamer)
