"""transformers' logits processors, applied to many positions and texts of unequal length at once.

Only processors whose result for a row depends on nothing but its scores and its text are applied
here (``all_by_row``). Their results are those of one call for each position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from inspect import signature
from typing import Any

import numpy as np
import torch

from ngramspec.draft import Draft
from ngramspec.hf_model.compat.devices import sent
from ngramspec.hf_model.compat.package import PROCESSOR_MODULE, stock_name

FormOf = Callable[[Any, "Histories", torch.Tensor], torch.Tensor]


# Processors whose result for a row depends only on its scores and its committed tokens. They are
# applied to all positions of a forward at once.
BY_ROW = frozenset(
    {
        *("EpsilonLogitsWarper", "EtaLogitsWarper", "ExponentialDecayLengthPenalty"),
        *("ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor"),
        *("InfNanRemoveLogitsProcessor", "LogitNormalization", "MinLengthLogitsProcessor"),
        *("MinNewTokensLengthLogitsProcessor", "MinPLogitsWarper", "NoBadWordsLogitsProcessor"),
        *("NoRepeatNGramLogitsProcessor", "RepetitionPenaltyLogitsProcessor"),
        *("SequenceBiasLogitsProcessor", "SuppressTokensAtBeginLogitsProcessor"),
        *("SuppressTokensLogitsProcessor", "TemperatureLogitsWarper", "TopHLogitsWarper"),
        *("TopKLogitsWarper", "TopPLogitsWarper", "TypicalLogitsWarper"),
    }
)
PROCESSOR_LIST = frozenset({"LogitsProcessorList"})  # it calls each processor


def processor_list() -> Any:
    """Return an empty LogitsProcessorList."""
    from transformers import LogitsProcessorList

    return LogitsProcessorList()


def all_by_row(processors: Iterable[Any] | None) -> bool:
    """Whether all processors are in ``BY_ROW``; True if there are none."""
    return all(stock_name(each, PROCESSOR_MODULE) in BY_ROW for each in processors or ())


def caller_of(processors: Any) -> Callable[..., Any]:
    """Return a function that applies processors without inspecting their signatures each time."""
    known = stock_name(processors, PROCESSOR_MODULE) in PROCESSOR_LIST
    if not known or any(len(signature(each.__call__).parameters) > 2 for each in processors):
        call: Callable[..., Any] = processors
        return call

    def apply(ids: Any, scores: Any) -> Any:
        for processor in processors:
            scores = processor(ids, scores)
        return scores

    return apply


class Histories:
    """The texts before m positions, those of a row one after another.

    A position's text is its row's committed tokens and the draft tokens that lead to it.

    Args:
        ids: returns the committed tokens of all rows, int64 or int32 (batch, longest), on the
            device.
        rows: the indices of the rows that have positions.
        committed: number of committed tokens of each of these rows.
        drafts: of each of these rows.
        positions: of each row, one more than its draft tokens or padded; m = rows * positions.
        batch: rows of the batch.
    """

    def __init__(
        self,
        ids: Callable[[], torch.Tensor],
        rows: Sequence[int],
        committed: Sequence[int],
        drafts: Sequence[Draft],
        positions: int,
        batch: int,
    ) -> None:
        self.batch, self._ids, self._rows = batch, ids, rows
        self._committed = [length for length in committed for _ in range(positions)]
        self._drafts, self._positions = drafts, positions

    @cached_property
    def _paths(self) -> list[list[int]]:
        return [path for draft in self._drafts for path in paths_of(draft, self._positions)]

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each text."""
        each = zip(self._committed, self._paths, strict=True)
        return [committed + len(path) for committed, path in each]

    @cached_property
    def _placed(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The texts aligned at their ends, each column's index in them, and the positions' rows."""
        rows, paths = self._ids(), self._paths
        table = np.zeros((len(paths), 3 + max(map(len, paths))), np.int64)
        table[:, 0] = np.repeat(self._rows, self._positions)
        table[:, 1], table[:, 2] = self._committed, self.lengths
        for at, path in enumerate(paths):
            table[at, 3 : 3 + len(path)] = path
        given = sent(torch.from_numpy(table), rows.device)
        row, own, length, drafted = given[:, 0], given[:, 1:2], given[:, 2:3], given[:, 3:]
        width = max(self.lengths)
        index = torch.arange(width, device=rows.device) + (length - width)
        joined = torch.cat((rows.index_select(0, row), drafted), dim=1)
        where = torch.where(index < own, index, index - own + rows.shape[1])
        return joined.gather(1, where.clamp_(min=0)), index, row

    @property
    def rows(self) -> torch.Tensor:
        """Each position's row in the batch, int64 (m,)."""
        return self._placed[2]

    def ids(self, filler: int, start: int | torch.Tensor = 0) -> torch.Tensor:
        """The texts, int64 (m, longest), aligned at their ends; ``filler`` is before them.

        The filler also replaces each text's first ``start`` tokens, an int or int64 (m, 1).
        """
        ids, index, _ = self._placed
        return ids.masked_fill(index < start, filler)


def paths_of(draft: Draft, positions: int) -> list[list[int]]:
    """The draft tokens that lead to each position of a forward; none for padding."""
    paths: list[list[int]] = [[]]
    tokens = draft.tokens.tolist()
    parents = range(-1, len(tokens) - 1) if draft.parents is None else draft.parents.tolist()
    for token, parent in zip(tokens, parents, strict=True):
        paths.append([*paths[parent + 1], token])
    return paths + [[]] * (positions - len(paths))


def process_at_once(
    processors: Iterable[Any], histories: Histories, scores: torch.Tensor
) -> torch.Tensor:
    """Apply such processors to the scores, float32 (m, vocab), at all positions."""
    for processor in processors:
        scores = _FORMS.get(type(processor).__name__, _unread)(processor, histories, scores)
    return scores


# How the processors are applied, by what they read of the texts


def _unread(processor: Any, histories: Histories, scores: torch.Tensor) -> torch.Tensor:
    """They read nothing."""
    return _call(processor, 0, scores)


def _call(processor: Any, length: int, scores: torch.Tensor) -> torch.Tensor:
    """A processor's result for texts of which it reads only the length."""
    token = torch.zeros((1, 1), dtype=torch.int64, device=scores.device)
    result: torch.Tensor = processor(token.expand(len(scores), length), scores)
    return result


def _by_length(same: Callable[[Any, int], Any]) -> FormOf:
    """They read the length, and treat lengths alike whose ``same`` is equal."""

    def form(processor: Any, histories: Histories, scores: torch.Tensor) -> torch.Tensor:
        alike: dict[Any, list[int]] = {}
        for at, length in enumerate(histories.lengths):
            alike.setdefault(same(processor, length), []).append(at)
        if len(alike) == 1:
            return _call(processor, histories.lengths[0], scores)
        found = torch.empty_like(scores)
        for places in alike.values():
            index = sent(torch.tensor(places, device="cpu"), scores.device)
            own = _call(processor, histories.lengths[places[0]], scores.index_select(0, index))
            found.index_copy_(0, index, own)
        return found

    return form


def _last_tokens(processor: Any, histories: Histories, scores: torch.Tensor) -> torch.Tensor:
    """They compare the last tokens with sequences, of which the filler is no part."""
    result: torch.Tensor = processor(histories.ids(-1), scores)
    return result


def _ngrams(processor: Any, histories: Histories, scores: torch.Tensor) -> torch.Tensor:
    """It bans the tokens that follow earlier occurrences of the last n - 1."""
    filler = -1 if processor.ngram_size > 1 else scores.shape[-1]  # n = 1 bans all tokens of a text
    result: torch.Tensor = processor(histories.ids(filler), scores)
    return result


def _penalty(processor: Any, histories: Histories, scores: torch.Tensor) -> torch.Tensor:
    """It changes scores of the text's tokens. The processor has no filler, so this computes it."""
    ignored, vocab = processor.prompt_ignore_length, scores.shape[-1]
    if isinstance(ignored, torch.Tensor):
        if len(ignored) != histories.batch:  # an error of the processor
            return _call(processor, 1, scores[: histories.batch])
        ignored = ignored.to(scores.device)[histories.rows][:, None]
    ids = histories.ids(vocab, 0 if ignored is None else ignored).clamp_(max=vocab)
    padded = torch.nn.functional.pad(scores, (0, 1))  # the filler's score
    own = padded.gather(1, ids)
    own = torch.where(own < 0, own * processor.penalty, own / processor.penalty)
    return padded.scatter_(1, ids, own)[:, :vocab]


_FORMS: dict[str, FormOf] = {
    "ExponentialDecayLengthPenalty": _by_length(lambda p, n: max(n, p.regulation_start)),
    "ForcedBOSTokenLogitsProcessor": _by_length(lambda p, n: n == 1),
    "ForcedEOSTokenLogitsProcessor": _by_length(lambda p, n: n == p.max_length - 1),
    "MinLengthLogitsProcessor": _by_length(lambda p, n: n < p.min_length),
    "MinNewTokensLengthLogitsProcessor": _by_length(
        lambda p, n: n < p.prompt_length_to_skip + p.min_new_tokens
    ),
    "NoBadWordsLogitsProcessor": _last_tokens,
    "NoRepeatNGramLogitsProcessor": _ngrams,
    "RepetitionPenaltyLogitsProcessor": _penalty,
    "SequenceBiasLogitsProcessor": _last_tokens,
    "SuppressTokensAtBeginLogitsProcessor": _by_length(lambda p, n: n == p.begin_index),
}
