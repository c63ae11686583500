"""Beam search: one step from all beams' scores, the finished sequences, and when to stop.

A step is that of ``generate`` with ``num_beams``: the best continuations over all beams of a prompt
are taken; those that end are finished, and the best of the others are the beams of the next step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

LOST = -1.0e9  # added to the score of what may not be chosen, in ``generate``'s float32 arithmetic


@dataclass(frozen=True, slots=True)
class BeamConfig:
    """The settings of one call.

    Attributes:
        beams: of each prompt, >= 2.
        returned: sequences of each prompt that are returned, 1 to ``beams``.
        eos: the end-of-sequence tokens; none: only other criteria end a sequence.
        pad: what is behind a sequence's end, unless it is 0 or None: then the first of ``eos``.
        length_penalty: power of the length that a finished sequence's score is divided by.
        early_stopping: True: a prompt is done once ``beams`` sequences of it are finished; False or
            "never": once no beam can become better than these, as estimated or for certain.
        max_length: of prompt and generated tokens.
    """

    beams: int
    returned: int
    eos: tuple[int, ...]
    pad: int | None
    length_penalty: float
    early_stopping: bool | str
    max_length: int

    @property
    def candidates(self) -> int:
        """Continuations of each prompt that are looked at: were all beams to end, enough go on."""
        return max(2, 1 + len(self.eos)) * self.beams

    @property
    def filler(self) -> int:
        """The token behind a sequence's end."""
        if not self.eos:
            return -1
        return self.pad or self.eos[0]


@dataclass(slots=True)
class Ranked:
    """Some sequences of each prompt.

    Attributes:
        scores: float32 (batch, sequences).
        ids: int64 (batch, sequences, length), prompt and generated tokens.
        origins: int32 (batch, sequences, new), the beam, counted over all prompts, that each
            generated token continued; -1 behind the end.
    """

    scores: torch.Tensor
    ids: torch.Tensor
    origins: torch.Tensor

    def take(self, which: torch.Tensor) -> Ranked:
        """Those of the indices ``which``, int64 (batch, k)."""
        ids = self.ids.take_along_dim(which[:, :, None], dim=1)
        origins = self.origins.take_along_dim(which[:, :, None], dim=1)
        return Ranked(self.scores.take_along_dim(which, dim=1), ids, origins)

    def followed_by(self, tokens: torch.Tensor, origins: torch.Tensor) -> None:
        """Append a token to each, int64 (batch, sequences), with the beam that it continued."""
        self.ids = torch.cat((self.ids, tokens[:, :, None]), dim=2)
        self.origins = torch.cat((self.origins, origins[:, :, None].to(torch.int32)), dim=2)

    def beside(self, other: Ranked) -> Ranked:
        """These, and then the others."""
        pairs = ((self.scores, other.scores), (self.ids, other.ids), (self.origins, other.origins))
        return Ranked(*(torch.cat(pair, dim=1) for pair in pairs))


class BeamSearch:
    """The beams of a call and its finished sequences.

    Rows are beams, those of the first prompt first.

    Args:
        prompt: (batch * beams, length), each prompt once for each beam.
        config: of the call.
        criteria: stopping criteria; all of them are called, once a step.

    Attributes:
        config: of the call.
        stopped: whether the search has ended.
        length: of the beams, the prompt included.
    """

    def __init__(
        self, prompt: torch.Tensor, config: BeamConfig, criteria: Iterable[Any] = ()
    ) -> None:
        self.config = config
        self.stopped = False
        self._criteria = tuple(criteria)
        self._prompt = prompt
        self._prompt_length = self.length = prompt.shape[1]
        batch, device = prompt.shape[0] // config.beams, prompt.device
        ids = prompt.to(torch.int64).view(batch, config.beams, -1)
        nothing = torch.empty((*ids.shape[:2], 0), dtype=torch.int32, device=device)
        lost = torch.full(ids.shape[:2], LOST, dtype=torch.float32, device=device)
        first = lost.clone()  # all beams are equal, so only the first may be continued
        first[:, 0] = 0.0
        self._running = Ranked(first, ids, nothing)
        self._finished = Ranked(lost, ids, nothing)
        self._is_finished = torch.zeros(ids.shape[:2], dtype=torch.bool, device=device)
        self._improvable = torch.ones((batch, 1), dtype=torch.bool, device=device)
        self._in_front = torch.arange(config.candidates, device=device) < config.beams
        self._first_row = torch.arange(batch, device=device)[:, None] * config.beams

    def ids(self) -> torch.Tensor:
        """The tokens of the beams, int64 (batch * beams, length); the prompt in its own dtype."""
        new = self.length > self._prompt_length
        return self._running.ids.flatten(0, 1) if new else self._prompt

    def step(
        self, log_probs: torch.Tensor, scores: Sequence[torch.Tensor] | None = None
    ) -> tuple[list[int], list[int]]:
        """Continue the beams by one token.

        Args:
            log_probs: float32 (batch * beams, vocab), processed.
            scores: those of all steps, as ``generate`` passes them to criteria; or None.

        Returns:
            for each of the new beams the beam that it continues, and its last token.
        """
        beams = self.config.beams
        best = self._continuations(log_probs)
        self.length += 1
        ended = self._ended(best, scores)
        open_scores = best.scores + ended.to(torch.float32) * LOST
        self._running = Ranked(open_scores, best.ids, best.origins).take(
            torch.topk(open_scores, k=beams)[1]
        )
        self._finish(best, ended)
        self._stop(ended)
        last = torch.stack((self._running.origins[:, :, -1].long(), self._running.ids[:, :, -1]))
        origins, tokens = last.flatten(1).tolist()
        return origins, tokens

    def _continuations(self, log_probs: torch.Tensor) -> Ranked:
        """The best continuations of each prompt's beams, best first."""
        vocab = log_probs.shape[-1]
        batch, beams = self._running.scores.shape
        scores = log_probs.view(batch, beams, vocab) + self._running.scores[:, :, None]
        top, places = torch.topk(scores.view(batch, -1), k=self.config.candidates)
        beam = places // vocab
        best = self._running.take(beam)
        best.scores = top
        best.followed_by(places % vocab, beam + self._first_row)
        return best

    def _ended(self, best: Ranked, scores: Sequence[torch.Tensor] | None) -> torch.Tensor:
        """Whether each of the continuations ends, bool (batch, candidates)."""
        ids, given = best.ids.flatten(0, 1), None if scores is None else tuple(scores)
        ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        for criterion in self._criteria:
            ended = ended | criterion(ids, given)
        return ended.reshape(best.scores.shape)

    def _finish(self, best: Ranked, ended: torch.Tensor) -> None:
        """Keep the best finished sequences, those that have just ended among them."""
        config = self.config
        new = ended & self._in_front
        scores = best.scores / (self._new_length**config.length_penalty)
        full = self._is_finished.all(dim=-1, keepdim=True) & (config.early_stopping is True)
        scores = scores + full.to(torch.float32) * LOST
        scores = scores + (~self._improvable).to(torch.float32) * LOST
        scores = scores + (~new) * LOST
        fill = torch.full_like(self._is_finished, config.filler, dtype=torch.int64)
        self._finished.followed_by(fill, torch.full_like(fill, -1))
        merged = self._finished.beside(Ranked(scores, best.ids, best.origins))
        kept = torch.topk(merged.scores, k=config.beams)[1]
        self._finished = merged.take(kept)
        self._is_finished = torch.cat((self._is_finished, new), dim=1).take_along_dim(kept, dim=1)

    def _stop(self, ended: torch.Tensor) -> None:
        """Find out whether any beam may still become better than what is finished."""
        config, length = self.config, self._new_length
        if config.early_stopping == "never" and config.length_penalty > 0.0:
            length = config.max_length - self._prompt_length
        possible = self._running.scores[:, :1] / (length**config.length_penalty)
        worst = self._finished.scores.min(dim=1, keepdim=True)[0]
        worst = torch.where(self._is_finished, worst, LOST)
        self._improvable = self._improvable & (possible > worst).any(dim=-1, keepdim=True)
        done = self._is_finished.all() & (config.early_stopping is True)
        self.stopped = bool(~self._improvable.any() | done | ended.all())

    @property
    def _new_length(self) -> int:
        """Generated tokens of the beams."""
        return self.length - self._prompt_length

    def ranking(self, *, scores: bool) -> dict[str, torch.Tensor | None]:
        """What ``generate`` returns beside the sequences, by its names.

        Args:
            scores: whether scores are asked for.
        """
        result = self.result()
        found = result.scores if scores else None
        return {"sequences_scores": found, "beam_indices": result.origins}

    def result(self) -> Ranked:
        """The sequences that are returned, best first: scores, ids and origins without a batch
        dimension, (batch * returned, ...), cut to the longest."""
        returned = slice(self.config.returned)
        origins = self._finished.origins[:, returned].flatten(0, 1)
        new = int((origins >= 0).sum(dim=1).max())
        ids = self._finished.ids[:, returned].flatten(0, 1)[:, : self._prompt_length + new]
        scores = self._finished.scores[:, returned].flatten(0, 1)
        return Ranked(scores, ids.clone(), origins[:, :new].clone())
