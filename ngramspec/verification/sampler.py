"""Sampling of the target's tokens from a forward's logits, and the record of each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ngramspec.draft import Draft, Int32
from ngramspec.hf_model.compat.names import caller_of
from ngramspec.rng import default_generator
from ngramspec.verification.cursor import DraftCursor, drafted_at
from ngramspec.verification.evidence import fetched
from ngramspec.verification.rule import Rule
from ngramspec.verification.stopping import StopRules


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The target's ``tokens`` at all rows and positions of a forward.

    Attributes:
        extra: evidence that was transferred with the tokens, int32 (rows, positions, n), or None.
        states: the generator's states after sampling 0, 1, 2, ... depths, or None.
        generator: the generator of these states.
    """

    tokens: NDArray[np.integer[Any]]
    extra: Int32 | None = None
    states: list[torch.Tensor] | None = None
    generator: torch.Generator | None = None

    def rewind(self, committed: int) -> None:
        """Set the generator to the baseline's state after sampling ``committed`` tokens."""
        if self.states is not None and self.generator is not None:
            self.generator.set_state(self.states[committed])


@dataclass(frozen=True)
class TokenSampler:
    """Chooses the target's tokens by the processors and then the verification rule.

    Attributes:
        processors: logits processors, called in order as in ``generate``, or None.
        pad: padding token of rows that have ended; None: ended rows get the target's tokens.
        streamer: receives every token, int64 (rows,) on the host, or None.
        scores: the processed scores of each generated token, float32 (batch, vocab) each; None:
            the call does not return them.
        logits: the same of the raw logits.
        one_transfer: whether a transfer from the device costs more than sampling at unused
            positions.
        history_free: whether the processors' result is independent of the committed tokens.
        beams: beams of each prompt; if more than one, ``BeamSearch`` chooses the tokens.
    """

    processors: Any
    stop: StopRules
    rule: Rule
    pad: int | None
    streamer: Any
    scores: list[torch.Tensor] | None = None
    logits: list[torch.Tensor] | None = None
    one_transfer: bool = False
    history_free: bool = False
    beams: int = 1

    @cached_property
    def all_at_once(self) -> bool:
        """Whether a step's tokens need one transfer to the host, or on a CPU none."""
        apart = self.takes_argmax or (self.one_transfer and self.history_free)
        return apart and self.beams == 1

    @cached_property
    def takes_argmax(self) -> bool:
        """Whether tokens are the argmax of the raw logits."""
        return self.rule.argmax and not self.processors

    @property
    def records(self) -> bool:
        """Whether the call returns scores or logits."""
        return self.scores is not None or self.logits is not None

    def record(self, scores: torch.Tensor, logits: torch.Tensor) -> None:
        """Keep a token's scores and logits, float32 (batch, vocab) each, if they are returned."""
        if self.scores is not None:
            self.scores.append(scores)
        if self.logits is not None:
            self.logits.append(logits)

    @property
    def fetches_at_once(self) -> bool:
        """Whether the tokens at all positions are fetched from the device in one transfer."""
        return self.all_at_once and self.one_transfer

    @cached_property
    def process(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Applies the processors to (ids int64 (m, length), scores float32 (m, vocab))."""
        return caller_of(self.processors)

    def sample_all(
        self, drafts: Sequence[Draft], logits: torch.Tensor, extra: torch.Tensor | None = None
    ) -> SampledTokens | None:
        """Sample at all positions of a forward; None: ``Batch.verify`` computes each position.

        On a CPU, an argmax is computed only at the positions that verification reaches.

        ``logits`` is (rows, n + 1, vocab); each draft has at most n tokens. ``extra`` is data to
        fetch with the tokens, int32 (rows, n + 1, m), if ``fetches_at_once``; or None.
        """
        if not self.fetches_at_once:
            return None
        if self.takes_argmax:
            return SampledTokens(*fetched(logits.argmax(-1), extra))
        rows, positions, vocab = logits.shape
        scores = logits.to(copy=True, dtype=torch.float32).reshape(-1, vocab)
        if self.processors:
            no_ids = torch.empty((rows * positions, 0), dtype=torch.int64, device=logits.device)
            scores = self.process(no_ids, scores)
        cursors = [DraftCursor(draft) for draft in drafts]
        if self.rule.do_sample and self._ignores(cursors):
            return self._sample_depths(cursors, scores.view(rows, positions, vocab), extra)
        tokens = self.choose(scores, [(each, at) for each in cursors for at in range(positions)])
        return SampledTokens(*fetched(tokens.view(rows, positions), extra))

    def _ignores(self, cursors: Sequence[DraftCursor]) -> bool:
        """Whether the tokens are independent of the drafts."""
        return all(self.rule.ignores(cursor.draft) for cursor in cursors)

    def choose_next(
        self, scores: torch.Tensor, spots: Sequence[tuple[DraftCursor, int]]
    ) -> list[int]:
        """The rule's tokens at the positions that some rows have reached, on the host.

        ``torch.multinomial`` checks all rows before it samples. On a CPU this does the same: if a
        row's scores are no distribution, all tokens are -1 and nothing is sampled. On other
        devices, on which the check would need a transfer, only that row's token is -1. The
        arguments are those of ``choose``.
        """
        if self.rule.argmax:
            best: list[int] = argmax_on_host(scores).tolist()
            return best
        checks = self.rule.do_sample and scores.device.type == "cpu"
        if checks and not scores.amax(dim=-1).isfinite().all():
            return [-1] * len(spots)
        tokens: list[int] = self.choose(scores, spots).tolist()
        return tokens

    def choose(
        self, scores: torch.Tensor, spots: Sequence[tuple[DraftCursor, int]]
    ) -> torch.Tensor:
        """The rule's tokens, int64 (m,), by processed scores, float32 (m, vocab).

        ``spots`` are m drafts, each with a position in its forward.
        """
        if self._ignores([cursor for cursor, _ in spots]):
            return self.rule.choose(scores)
        return self.rule.choose(scores, *drafted_at(spots, scores.shape[-1], scores.device))

    def _sample_depths(
        self, cursors: Sequence[DraftCursor], scores: torch.Tensor, extra: torch.Tensor | None
    ) -> SampledTokens:
        """Sample at all positions, with the random numbers of the baseline for each depth."""
        positions = scores.shape[1]
        probs = torch.softmax(scores, dim=-1)
        generator = self.rule.generator or default_generator(scores.device)
        depths = [cursor.depths(positions) for cursor in cursors]
        from ngramspec.verification.draws import draw_at_depths

        tokens, states = draw_at_depths(probs, depths, generator)
        tokens = tokens.masked_fill(torch.isnan(probs[..., 0]), -1)
        return SampledTokens(*fetched(tokens, extra), states, generator)


def argmax_on_host(scores: torch.Tensor) -> NDArray[np.int64]:
    """The index of the largest of (..., vocab) scores, int64 (...), on the host.

    Of equal maxima it is the first, and NaN counts as the largest. On a CPU, NumPy's argmax is
    about six times as fast as torch's.
    """
    if scores.device.type != "cpu":
        return scores.argmax(dim=-1).cpu().numpy()
    known = scores if scores.dtype in (torch.float32, torch.float64) else scores.float()
    found: NDArray[np.int64] = known.detach().numpy().argmax(axis=-1)
    return found
