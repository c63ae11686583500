"""Sampling of the target's tokens from a forward's logits, and the stopping rules after each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ngramspec.draft import Draft, Int32, Verdict
from ngramspec.hf_model.compat.names import (
    END_OF_SEQUENCE,
    MAX_LENGTH,
    MAX_TIME,
    STOP_STRING,
    caller_of,
    criterion_name,
)
from ngramspec.verification.evidence import fetched
from ngramspec.verification.rejection import (
    DeviceGenerator,
    default_generator,
    draw_at_depths,
)
from ngramspec.verification.rule import Rule, children_tensor, proposal_tensor

if TYPE_CHECKING:  # many calls have no processors
    from ngramspec.hf_model.compat.processors import Text


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The target's ``tokens`` at all rows and positions of a forward, with ``extra`` evidence.

    ``states`` are those of ``generator`` after sampling 0, 1, 2, ... depths.
    """

    tokens: NDArray[np.integer[Any]]
    extra: Int32 | None = None
    states: list[torch.Tensor] | None = None
    generator: torch.Generator | DeviceGenerator | None = None

    def rewind(self, committed: int) -> None:
        """Set the generator to the baseline's state after sampling ``committed`` tokens."""
        if self.states is not None and self.generator is not None:
            self.generator.set_state(self.states[committed])


@dataclass(frozen=True)
class TokenSampler:
    """Chooses the target's tokens by the processors and then the verification rule.

    Attributes:
        pad: padding token of rows that have ended; None: ended rows get the target's tokens.
        scores, logits: of each generated token, float32 (batch, vocab); None: not returned.
        one_transfer: whether a transfer from the device costs more than unused sampling.
        known_processors: whether ``process_at_once`` applies the processors.
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
        self,
        drafts: Sequence[Draft],
        logits: torch.Tensor,
        texts: Sequence[Text],
        extra: torch.Tensor | None = None,
    ) -> SampledTokens | None:
        """Sample at all positions of a forward; None: ``Batch.verify`` computes each position.

        ``logits`` is (rows, n + 1, vocab), ``texts`` are the committed tokens of all rows, and
        ``extra``, int32 (rows, n + 1, m), is fetched with the sampled tokens.
        """
        if not self.fetches_at_once:
            return None
        if self.takes_argmax:
            return SampledTokens(*fetched(logits.argmax(-1), extra))
        rows, positions, vocab = logits.shape
        scores = logits.to(copy=True, dtype=torch.float32).reshape(-1, vocab)
        if self.processors:
            from ngramspec.hf_model.compat.processors import Histories, process_at_once

            histories = Histories(texts, drafts, positions, rows)
            scores = process_at_once(self.processors, histories, scores)
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
        row's scores are no distribution, all tokens are -1. Elsewhere only that row's token is.
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
        """The rule's tokens, int64 (m,), by processed scores, float32 (m, vocab), at m spots."""
        if self._ignores([cursor for cursor, _ in spots]):
            return self.rule.choose(scores)
        return self.rule.choose(scores, *drafted_at(spots, scores.shape[-1], scores.device))

    def _sample_depths(
        self, cursors: Sequence[DraftCursor], scores: torch.Tensor, extra: torch.Tensor | None
    ) -> SampledTokens:
        """Sample at all positions, with the random numbers of the baseline for each depth."""
        positions = scores.shape[1]
        probs = torch.softmax(scores, dim=-1)
        depths = [cursor.depths(positions) for cursor in cursors]
        tokens, states = draw_at_depths(probs, depths, self.rule.generator)
        tokens = tokens.masked_fill(torch.isnan(probs[..., 0]), -1)
        generator = self.rule.generator or default_generator(scores.device)
        return SampledTokens(*fetched(tokens, extra), states, generator)


def argmax_on_host(scores: torch.Tensor) -> NDArray[np.int64]:
    """The index of the largest of (..., vocab) scores, int64 (...), on the host.

    NaN counts as the largest. On a CPU, NumPy's argmax is about six times as fast as torch's.
    """
    if scores.device.type != "cpu":
        return scores.argmax(dim=-1).cpu().numpy()
    known = scores if scores.dtype in (torch.float32, torch.float64) else scores.float()
    found: NDArray[np.int64] = known.detach().numpy().argmax(axis=-1)
    return found


# Drafts by the positions of their forward


class DraftCursor:
    """Access to a draft by the positions of its forward; position i + 1 follows node i."""

    __slots__ = ("_children", "draft", "tokens")

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.tokens: list[int] = draft.tokens.tolist()
        self._children = None if draft.parents is None else draft.children()

    def nodes(self, position: int) -> Sequence[int]:
        """The nodes drafted at a position; siblings in order."""
        if self._children is not None:
            return self._children[position]
        return (position,) if position < len(self.tokens) else ()

    def node_with(self, token: int, position: int) -> int | None:
        """The node with a token among those drafted at a position, or None."""
        for node in self.nodes(position):
            if self.tokens[node] == token:
                return node
        return None

    def verdict(self, accepted: Sequence[int], emitted: Sequence[int]) -> Verdict:
        """The result of the draft's verification, by its accepted nodes and committed tokens."""
        verified, position = len(accepted), 0
        for node in accepted:
            verified += self.nodes(position).index(node)  # the siblings before it
            position = node + 1
        rejected = self.nodes(position) if len(emitted) > len(accepted) else ()
        first = rejected[0] if rejected else None
        return Verdict(accepted, verified + len(rejected), tuple(emitted), first)

    def depths(self, positions: int) -> list[int]:
        """How many draft tokens lead to each position of the forward; 0 for padding."""
        depths = [0, *self.draft.depths()]
        return depths + [0] * (positions - len(depths))


def drafted_at(
    spots: Sequence[tuple[DraftCursor, int]], vocab: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The draft tokens at m spots, int64 (m, k), and their distributions, for ``Rule.choose``."""
    nodes = [cursor.nodes(at) if at <= len(cursor.tokens) else () for cursor, at in spots]
    pairs = [(cursor, each) for (cursor, _), each in zip(spots, nodes, strict=True)]
    tokens = [[cursor.tokens[node] for node in each] for cursor, each in pairs]
    drafts = [(cursor.draft, each) for cursor, each in pairs]
    return children_tensor(tokens, device), proposal_tensor(drafts, vocab, device)


# Stopping rules


class StopRules:
    """A list of stopping criteria; the common ones need no transfer to the host.

    End-of-sequence and maximum length are decided from the token's id and the length. Criteria of
    maximum time are called without tokens, and stop strings with tokens on the host. All others
    (``custom``) are called with the committed tokens, once per token, in the order of the list.
    """

    def __init__(self, criteria: Iterable[Any]) -> None:
        self.eos: set[int] = set()
        self.max_length: int | None = None
        self.timers: list[Any] = []
        self.strings: list[Any] = []
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
            elif name == STOP_STRING:
                self.strings.append(criterion)
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
        ids_on_host: Callable[[], torch.Tensor],
        scores: Sequence[torch.Tensor] | None,
    ) -> list[bool]:
        """Whether each row ends with its last token; ``ids`` is called for custom criteria only."""
        all_done = self.max_length is not None and length >= self.max_length
        if not (self.timers or self.strings or self.custom):
            return [all_done or token in self.eos for token in tokens]
        for criterion in self.timers:
            no_ids = torch.empty((len(tokens), 0), dtype=torch.int64, device="cpu")
            all_done |= any(_of_rows(criterion(no_ids, None), len(tokens)))
        done = [all_done or token in self.eos for token in tokens]
        given = tuple(scores) if scores is not None and self.custom else None
        answers = [criterion(ids_on_host(), None) for criterion in self.strings]
        answers += [criterion(ids(), given) for criterion in self.custom]
        for each in answers:
            answer = _of_rows(each, len(tokens))
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
