"""Sampling of the target's tokens from a forward's logits, and the stopping rules after each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ngramspec.draft import Draft, Int32
from ngramspec.hf_model.compat.package import (
    CRITERION_MODULE,
    END_OF_SEQUENCE,
    MAX_LENGTH,
    MAX_TIME,
    STOP_STRING,
    stock_name,
)

if TYPE_CHECKING:  # greedy calls have none of these
    from ngramspec.hf_model.compat.processors import Histories
    from ngramspec.verification.rejection import Noise
    from ngramspec.verification.rule import Rule


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The target's ``tokens`` at all rows and positions of a forward, with ``extra`` evidence."""

    tokens: NDArray[np.integer[Any]]
    extra: Int32 | None = None


@dataclass(frozen=True)
class TokenSampler:
    """Chooses the target's tokens by the processors and then the verification rule.

    Attributes:
        rule: how tokens are chosen by the scores; None: by the argmax.
        pad: padding token of rows that have ended; None: ended rows get the target's tokens.
        scores, logits: of each generated token, float32 (batch, vocab); None: not returned.
        one_transfer: whether a transfer from the device costs more than unused sampling.
        known_processors: whether ``process_at_once`` applies the processors.
        beams: beams of each prompt; if more than one, ``BeamSearch`` chooses the tokens.
    """

    processors: Any
    stop: StopRules
    rule: Rule | None
    pad: int | None
    streamer: Any
    scores: list[torch.Tensor] | None = None
    logits: list[torch.Tensor] | None = None
    one_transfer: bool = False
    known_processors: bool = False
    beams: int = 1

    @cached_property
    def all_at_once(self) -> bool:
        """Whether a step's tokens need one transfer to the host, or on a CPU none."""
        apart = self.takes_argmax or (self.one_transfer and self.known_processors)
        return apart and self.beams == 1

    @cached_property
    def takes_argmax(self) -> bool:
        """Whether tokens are the argmax of the raw logits."""
        return self.rule is None and not self.processors

    @cached_property
    def records(self) -> bool:
        """Whether the call returns scores or logits."""
        return self.scores is not None or self.logits is not None

    def record(self, scores: torch.Tensor, logits: torch.Tensor) -> None:
        """Keep a token's scores and logits, float32 (batch, vocab) each, if they are returned."""
        if self.scores is not None:
            self.scores.append(scores)
        if self.logits is not None:
            self.logits.append(logits)

    @cached_property
    def fetches_at_once(self) -> bool:
        """Whether the tokens at all positions are fetched from the device in one transfer."""
        return self.all_at_once and self.one_transfer

    @cached_property
    def process(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Applies the processors to (ids int64 (m, length), scores float32 (m, vocab))."""
        from ngramspec.hf_model.compat.processors import caller_of  # many calls have none

        return caller_of(self.processors)

    def sample_all(
        self,
        drafts: Sequence[Draft],
        logits: torch.Tensor,
        histories: Callable[[Sequence[int], Sequence[Draft], int], Histories],
        noise: Callable[[Sequence[Draft], int], Noise | None],
        extra: torch.Tensor | None = None,
    ) -> SampledTokens:
        """Sample at all positions of a forward, if ``fetches_at_once``.

        ``logits`` is (rows, n + 1, vocab), ``histories`` is called with rows, their drafts and
        n + 1, and ``extra``, int32 (rows, n + 1, m), is fetched with the sampled tokens. ``noise``
        returns the baseline's random numbers for drafts and n + 1 positions, see ``Rule.choose``.
        """
        if self.takes_argmax:
            return SampledTokens(*fetched(logits.argmax(-1), extra))
        rows, positions, vocab = logits.shape
        scores = logits.to(copy=True, dtype=torch.float32).reshape(-1, vocab)
        if self.processors:
            from ngramspec.hf_model.compat.processors import process_at_once

            texts = histories(range(rows), drafts, positions)
            scores = process_at_once(self.processors, texts, scores)
        rule = self.rule
        if rule is None:
            tokens = scores.argmax(dim=-1)
        else:
            spots = [(each, at) for each in drafts for at in range(positions)]
            tokens = rule.choose(scores, spots, noise(drafts, positions))
        return SampledTokens(*fetched(tokens.view(rows, positions), extra))

    def choose_next(
        self,
        scores: torch.Tensor,
        spots: Sequence[tuple[Draft, int]],
        noise: Noise | None = None,
    ) -> list[int]:
        """The tokens at the positions that some rows' drafts have reached, on the host.

        ``torch.multinomial`` checks all rows before it samples. On a CPU this does the same: if a
        row's scores are no distribution, all tokens are -1. Elsewhere only that row's token is.
        """
        rule = self.rule
        if rule is None:
            best: list[int] = argmax_on_host(scores).tolist()
            return best
        checks = rule.do_sample and scores.device.type == "cpu"
        if checks and not scores.amax(dim=-1).isfinite().all():
            return [-1] * len(spots)
        tokens: list[int] = rule.choose(scores, spots, noise).tolist()
        return tokens


def fetched(
    tokens: torch.Tensor, extra: torch.Tensor | None
) -> tuple[NDArray[np.integer[Any]], Int32 | None]:
    """Transfer tokens and extra data, int64 and int32 (rows, positions, ...), at once."""
    if extra is None:
        return tokens.to("cpu").numpy(), None
    both = torch.cat((tokens.unsqueeze(-1).to(torch.int32), extra), dim=-1).to("cpu").numpy()
    return both[..., 0], both[..., 1:]


def argmax_on_host(scores: torch.Tensor) -> NDArray[np.int64]:
    """The index of the largest of (..., vocab) scores, int64 (...), on the host.

    NaN counts as the largest. On a CPU, NumPy's argmax is about six times as fast as torch's.
    """
    if scores.device.type != "cpu":
        return scores.argmax(dim=-1).cpu().numpy()
    known = scores if scores.dtype in (torch.float32, torch.float64) else scores.float()
    found: NDArray[np.int64] = known.detach().numpy().argmax(axis=-1)
    return found


# Stopping rules


class StopRules:
    """A list of stopping criteria; the common ones need no transfer to the host.

    End-of-sequence, maximum length and stop strings end each row by its own text. Criteria of
    length are called to warn of exceeded positions. All others see the whole batch: those of
    maximum time are called without tokens, and ``custom`` ones with the committed tokens, once per
    token, in the order of the list.
    """

    def __init__(self, criteria: Iterable[Any]) -> None:
        self.eos: set[int] = set()
        self.max_length: int | None = None
        self.timers: list[Any] = []
        self.strings: list[Any] = []
        self.custom: list[Any] = []
        self.warning: list[tuple[int, Any]] = []  # by the length that they warn of
        for criterion in criteria:
            name = stock_name(criterion, CRITERION_MODULE)
            if name == END_OF_SEQUENCE:
                self.eos.update(criterion.eos_token_id.flatten().tolist())
            elif name == MAX_LENGTH:
                lengths = [criterion.max_length, self.max_length]
                self.max_length = min(each for each in lengths if each is not None)
                if criterion.max_position_embeddings is not None:
                    self.warning.append((criterion.max_position_embeddings, criterion))
            elif name == MAX_TIME:
                self.timers.append(criterion)
            elif name == STOP_STRING:
                self.strings.append(criterion)
            else:
                self.custom.append(criterion)
        self.sees_batch = bool(self.timers or self.custom)

    @property
    def pads(self) -> bool:
        """Whether ended rows of a batch are padded, as in ``generate`` with an EOS criterion."""
        return bool(self.eos) or any(hasattr(each, "eos_token_id") for each in self.custom)

    def of_rows(
        self, tokens: Sequence[int], length: int, ids_on_host: Callable[[], torch.Tensor]
    ) -> list[bool]:
        """Whether rows of equal length end, each by its own text."""
        all_done = self.max_length is not None and length >= self.max_length
        for limit, criterion in self.warning:
            if length > limit:
                criterion(torch.empty((1, length), device="meta"), None)
        done = [all_done or token in self.eos for token in tokens]
        if not self.strings:
            return done
        return self._joined(done, (criterion(ids_on_host(), None) for criterion in self.strings))

    def of_batch(
        self, rows: int, ids: Callable[[], torch.Tensor], scores: Sequence[torch.Tensor] | None
    ) -> list[bool]:
        """Whether each of the batch's rows ends by a criterion that sees all of them."""
        no_ids = torch.empty((rows, 0), dtype=torch.int64, device="cpu")
        done = self._joined([False] * rows, (each(no_ids, None) for each in self.timers))
        given = tuple(scores) if scores is not None and self.custom else None
        return self._joined(done, (criterion(ids(), given) for criterion in self.custom))

    @staticmethod
    def _joined(done: list[bool], answers: Iterable[Any]) -> list[bool]:
        for each in answers:
            answer = _of_rows(each, len(done))
            done = [was or bool(now) for was, now in zip(done, answer, strict=True)]
        return done


def _of_rows(answer: Any, rows: int) -> list[bool]:
    """A criterion's answer for each row, from one answer for all or one for each, in any shape."""
    tensor = answer if isinstance(answer, torch.Tensor) else torch.tensor(answer, device="cpu")
    flat = tensor.flatten()
    if flat.shape[0] not in (1, rows):
        shape = tuple(tensor.shape)
        raise ValueError(f"a stopping criterion must answer for {rows} rows, got shape {shape}")
    return [bool(each) for each in flat.expand(rows).tolist()]
