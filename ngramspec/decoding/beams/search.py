"""Beam search: its steps, the finished sequences, and the stopping rule.

A step is that of ``generate`` with ``num_beams``. It selects the best continuations over all beams
of a prompt. Those that end are finished, and the best others are the beams of the next step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ngramspec.hf_model.compat.configs import eos_tokens, pad_token

# Added to the score of a sequence that must not be selected, as ``generate`` does.
EXCLUDED_SCORE = -1.0e9


@dataclass(slots=True)
class RankedSequences:
    """Some sequences of each prompt.

    Attributes:
        scores: float32 (batch, sequences).
        ids: int64 (batch, sequences, length), prompt and generated tokens.
        origins: int32 (batch, sequences, new), the beam that each generated token continued, an
            index over all prompts' beams; -1 after the end.
    """

    scores: torch.Tensor
    ids: torch.Tensor
    origins: torch.Tensor

    def take(self, which: torch.Tensor) -> RankedSequences:
        """Select sequences by their indices ``which``, int64 (batch, k)."""
        ids = self.ids.take_along_dim(which[:, :, None], dim=1)
        origins = self.origins.take_along_dim(which[:, :, None], dim=1)
        return RankedSequences(self.scores.take_along_dim(which, dim=1), ids, origins)

    def followed_by(self, tokens: torch.Tensor, origins: torch.Tensor) -> None:
        """Append a token to each sequence, int64 (batch, sequences), and the beam it continues."""
        self.ids = torch.cat((self.ids, tokens[:, :, None]), dim=2)
        self.origins = torch.cat((self.origins, origins[:, :, None].to(torch.int32)), dim=2)

    def concatenated(self, other: RankedSequences) -> RankedSequences:
        """These sequences, followed by the others."""
        pairs = ((self.scores, other.scores), (self.ids, other.ids), (self.origins, other.origins))
        return RankedSequences(*(torch.cat(pair, dim=1) for pair in pairs))


class BeamSearch:
    """The beams of a call and its finished sequences.

    Rows are beams, beginning with those of the first prompt. The prompt is (batch * beams, length),
    each prompt once for each beam. All stopping criteria are called once in each step.

    ``config`` is the call's GenerationConfig. If its ``early_stopping`` is True, a prompt is done
    when ``num_beams`` sequences are finished. False: when it is estimated that no beam can become
    better than these. "never": when this is certain.

    Attributes:
        beams: beams of each prompt, >= 2.
        filler: token after a sequence's end; -1 without end-of-sequence tokens.
        stopped: whether the search has ended.
        length: tokens of each beam, including the prompt.
    """

    def __init__(self, prompt: torch.Tensor, config: Any, criteria: Iterable[Any] = ()) -> None:
        self.beams, eos = config.num_beams, eos_tokens(config)
        self.filler: int = (pad_token(config) or eos[0]) if eos else -1
        self.stopped = False
        self._config = config
        self._criteria = tuple(criteria)
        self._prompt = prompt
        self._prompt_length = self.length = prompt.shape[1]
        batch, device = prompt.shape[0] // self.beams, prompt.device
        ids = prompt.to(torch.int64).view(batch, self.beams, -1)
        nothing = torch.empty((*ids.shape[:2], 0), dtype=torch.int32, device=device)
        excluded = torch.full(ids.shape[:2], EXCLUDED_SCORE, dtype=torch.float32, device=device)
        first = excluded.clone()  # all beams are equal, so only the first may be continued
        first[:, 0] = 0.0
        self._running = RankedSequences(first, ids, nothing)
        self._finished = RankedSequences(excluded, ids, nothing)
        self._is_finished = torch.zeros(ids.shape[:2], dtype=torch.bool, device=device)
        self._improvable = torch.ones((batch, 1), dtype=torch.bool, device=device)
        self._candidates = max(2, 1 + len(eos)) * self.beams  # enough for beams that do not end
        self._in_front = torch.arange(self._candidates, device=device) < self.beams
        self._first_row = torch.arange(batch, device=device)[:, None] * self.beams

    def ids(self) -> torch.Tensor:
        """The beams' tokens, int64 (batch * beams, length); at first in the prompt's dtype."""
        new = self.length > self._prompt_length
        return self._running.ids.flatten(0, 1) if new else self._prompt

    def step(
        self, log_probs: torch.Tensor, scores: Sequence[torch.Tensor] | None = None
    ) -> tuple[list[int], list[int]]:
        """Continue the beams by one token.

        ``log_probs`` is float32 (batch * beams, vocab), processed. The ``scores`` of all steps are
        passed to criteria, as in ``generate``. Returned are, for each new beam, the beam that it
        continues, and its last token.
        """
        best = self._continuations(log_probs)
        self.length += 1
        ended = self._ended(best, scores)
        open_scores = best.scores + ended.to(torch.float32) * EXCLUDED_SCORE
        kept = torch.topk(open_scores, k=self.beams)[1]
        self._running = RankedSequences(open_scores, best.ids, best.origins).take(kept)
        self._finish(best, ended)
        origins, tokens = self._running.origins[:, :, -1].long(), self._running.ids[:, :, -1]
        stops = self._stops(ended).expand_as(tokens)
        found = torch.stack((origins, tokens, stops)).flatten(1).tolist()  # one transfer
        self.stopped = bool(found[2][0])
        return found[0], found[1]

    def _continuations(self, log_probs: torch.Tensor) -> RankedSequences:
        """The best continuations of each prompt's beams, best first."""
        vocab = log_probs.shape[-1]
        batch, beams = self._running.scores.shape
        scores = log_probs.view(batch, beams, vocab) + self._running.scores[:, :, None]
        top, places = torch.topk(scores.view(batch, -1), k=self._candidates)
        beam = places // vocab
        best = self._running.take(beam)
        best.scores = top
        best.followed_by(places % vocab, beam + self._first_row)
        return best

    def _ended(self, best: RankedSequences, scores: Sequence[torch.Tensor] | None) -> torch.Tensor:
        """Whether each of the continuations ends, bool (batch, candidates)."""
        ids, given = best.ids.flatten(0, 1), None if scores is None else tuple(scores)
        ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        for criterion in self._criteria:
            ended = ended | criterion(ids, given)
        return ended.reshape(best.scores.shape)

    def _finish(self, best: RankedSequences, ended: torch.Tensor) -> None:
        """Update the best finished sequences with those that have just ended."""
        config = self._config
        new = ended & self._in_front
        scores = best.scores / (self.new_tokens**config.length_penalty)
        full = self._is_finished.all(dim=-1, keepdim=True) & (config.early_stopping is True)
        scores = scores + full.to(torch.float32) * EXCLUDED_SCORE
        scores = scores + (~self._improvable).to(torch.float32) * EXCLUDED_SCORE
        scores += (~new) * EXCLUDED_SCORE  # the product has the default dtype, as in ``generate``
        fill = torch.full_like(self._is_finished, self.filler, dtype=torch.int64)
        self._finished.followed_by(fill, torch.full_like(fill, -1))
        merged = self._finished.concatenated(RankedSequences(scores, best.ids, best.origins))
        kept = torch.topk(merged.scores, k=self.beams)[1]
        self._finished = merged.take(kept)
        self._is_finished = torch.cat((self._is_finished, new), dim=1).take_along_dim(kept, dim=1)

    def _stops(self, ended: torch.Tensor) -> torch.Tensor:
        """Whether no beam can become better than the finished sequences, a bool."""
        config, length = self._config, self.new_tokens
        if config.early_stopping == "never" and config.length_penalty > 0.0:
            length = config.max_length - self._prompt_length
        possible = self._running.scores[:, :1] / (length**config.length_penalty)
        worst = self._finished.scores.min(dim=1, keepdim=True)[0]
        worst = torch.where(self._is_finished, worst, EXCLUDED_SCORE)
        self._improvable = self._improvable & (possible > worst).any(dim=-1, keepdim=True)
        done = self._is_finished.all() & (config.early_stopping is True)
        return ~self._improvable.any() | done | ended.all()

    @property
    def new_tokens(self) -> int:
        """Generated tokens of the beams."""
        return self.length - self._prompt_length

    def ranking(self, *, scores: bool) -> dict[str, torch.Tensor | None]:
        """The additional outputs of ``generate`` by name, with the beams' scores if ``scores``."""
        result = self.result()
        found = result.scores if scores else None
        return {"sequences_scores": found, "beam_indices": result.origins}

    def result(self) -> RankedSequences:
        """The returned sequences, best first, cut to the longest.

        Scores, ids and origins have no batch dimension: (batch * returned, ...).
        """
        returned = slice(self._config.num_return_sequences or 1)
        origins = self._finished.origins[:, returned].flatten(0, 1)
        new = int((origins >= 0).sum(dim=1).max())
        ids = self._finished.ids[:, returned].flatten(0, 1)[:, : self._prompt_length + new]
        scores = self._finished.scores[:, returned].flatten(0, 1)
        return RankedSequences(scores, ids.clone(), origins[:, :new].clone())
