"""Stopping rules, checked after every committed token as in the baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ngramspec.hf_model.compat.names import END_OF_SEQUENCE, MAX_LENGTH, MAX_TIME, criterion_name


class StopRules:
    """A list of stopping criteria; the common ones need no transfer to the host.

    End-of-sequence and maximum length are decided from the token's id and the length. Criteria of
    maximum time are called without tokens. All others (``custom``) are called with the committed
    tokens, once per token, in the order of the list.
    """

    def __init__(self, criteria: Iterable[Any]) -> None:
        self.eos: set[int] = set()
        self.max_length: int | None = None
        self.timers: list[Any] = []
        self.custom: list[Any] = []
        for criterion in criteria:
            name = criterion_name(criterion)
            if name == END_OF_SEQUENCE:
                self.eos.update(criterion.eos_token_id.flatten().tolist())
            elif name == MAX_LENGTH:
                lengths = [criterion.max_length, self.max_length]
                self.max_length = min(each for each in lengths if each is not None)
            elif name == MAX_TIME:
                self.timers.append(criterion)
            else:
                self.custom.append(criterion)

    @property
    def pads(self) -> bool:
        """Whether ended rows of a batch are padded, as in ``generate`` with an EOS criterion."""
        return bool(self.eos) or any(hasattr(each, "eos_token_id") for each in self.custom)

    def __call__(
        self,
        tokens: Sequence[int],
        length: int,
        ids: Callable[[], torch.Tensor],
        scores: Sequence[torch.Tensor] | None,
    ) -> list[bool]:
        """Whether each row ends with its last token, which is in ``tokens``.

        ``ids`` returns all tokens, int64 (rows, length); it is called only for custom criteria.
        ``scores`` are those that ``generate`` passes to criteria, or None.
        """
        all_done = self.max_length is not None and length >= self.max_length
        if not (self.timers or self.custom):
            return [all_done or token in self.eos for token in tokens]
        for criterion in self.timers:
            no_ids = torch.empty((len(tokens), 0), dtype=torch.int64, device="cpu")
            all_done |= any(_of_rows(criterion(no_ids, None), len(tokens)))
        done = [all_done or token in self.eos for token in tokens]
        given = tuple(scores) if scores is not None and self.custom else None
        for criterion in self.custom:  # call all of them, as they may keep state
            answer = _of_rows(criterion(ids(), given), len(tokens))
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
