"""The rows of a batch: their committed tokens, their drafts, and the walk that verifies these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ngramspec.costs.steps import StepCosts
from ngramspec.decoding.observer import STREAMING, Section, no_section
from ngramspec.decoding.row import NO_VERDICT, Row
from ngramspec.draft import EMPTY_DRAFT, Computed, EvidenceRequest, Int64
from ngramspec.hf_model.compat.devices import sent
from ngramspec.hf_model.target import Target
from ngramspec.verification.sampler import SampledTokens, TokenSampler, argmax_on_host

if TYPE_CHECKING:
    from ngramspec.hf_model.compat.processors import RowText

NO_LIMIT = 1 << 20  # tokens; the draft length limit if no other limit is known
INITIAL_TOKENS = 256  # generated tokens that a new buffer has room for; not tuned


class Batch(ABC):
    """The rows of a call: ``LockstepBatch``, ``RaggedBatch`` or ``BeamBatch``.

    Args:
        rows: all rows in order.
        connect: connects the rows, given the vocabulary's size; see ``Row.connect``.
        costs: the forwards' costs. None: unknown, and the prefill verifies no draft.
        section: returns the context of a section, see Observer.

    Attributes:
        length: committed tokens of the longest row.
        stopped: whether every row has ended.
        active: the rows that are drafted for. Ended rows count only if they are not padded.
        last: each row's last committed token.
        origins: the row of the last forward that each row continues; empty: each its own.
    """

    length: int
    stopped: bool
    active: list[int]
    last: list[int]
    origins: Sequence[int] = ()

    def __init__(
        self,
        rows: list[Row],
        sampler: TokenSampler,
        target: Target,
        connect: Callable[[Sequence[Row], int], None],
        *,
        costs: StepCosts | None = None,
        section: Section = no_section,
    ) -> None:
        self.rows, self.sampler, self.target, self.costs = rows, sampler, target, costs
        self.pad = 0 if sampler.pad is None else sampler.pad  # after a row's end
        self.section, self._connect = section, connect

    @abstractmethod
    def texts(self) -> Sequence[RowText]:
        """The committed tokens of all rows."""

    def ids(self) -> Tensor | None:
        """The committed tokens, int64 (rows, length); None if rows have different lengths."""
        return None

    @abstractmethod
    def sequences(self) -> Tensor:
        """The returned sequences, int64 (batch, longest), padded."""

    @abstractmethod
    def accepted_paths(self) -> Sequence[Sequence[int]]:
        """Each row's positions of the last forward that the cache keeps."""

    @abstractmethod
    def draft_limits(self) -> tuple[int, int]:
        """Maximum tokens of a path, by the length of the text too, and of a whole draft."""

    @abstractmethod
    def draft(self) -> None:
        """Draft for each row that has not ended."""

    @abstractmethod
    def verify(self, logits: Tensor, sampled: SampledTokens | None) -> None:
        """Commit the target's tokens of every row, up to the first that was not drafted.

        Args:
            logits: (batch, n + 1, vocab), at the last committed token and the n drafted tokens.
            sampled: the target's tokens at all n + 1 positions, or None to sample position by
                position along the accepted path.
        """

    def begin_step(self) -> None:
        """Reset the drafts and verdicts, and what is known about the last forward."""
        for row in self.rows:
            row.draft, row.verdict = EMPTY_DRAFT, NO_VERDICT

    def connect(self, vocab: int) -> None:
        """Let the rows draft for a vocabulary of ``vocab`` tokens, if they cannot yet."""
        if not self.rows[0].connected:
            self._connect(self.rows, vocab)

    def finish(self) -> None:
        """End the call successfully: shared stores may keep the rows' texts."""
        for row in self.rows:
            row.end(completed=True)

    def close(self) -> None:
        """End every row's session."""
        for row in self.rows:
            row.end(completed=False)  # no effect after ``finish``
            row.close()

    def propose_for_prefill(self, limit: int) -> None:
        """Draft at most ``limit`` tokens after the prompt, if the prefill can verify a draft."""
        costs, vocab = self.costs, self.target.vocab
        limit = min(limit, self.target.prefill_room(), self.draft_limits()[0])
        if limit < 1 or vocab is None or costs is None:
            return
        costs.at(self.length, prefill=True)
        self.connect(vocab)
        self.rows[0].propose(limit, tree=False)

    def propose(self) -> None:
        """Draft for each row, unless the step is to be timed without drafts."""
        if self.costs is not None:
            pending = self.target.pending
            self.costs.at(self.length, None if pending is None else len(pending))
            if self.costs.plain():
                return
        self.draft()

    def width(self) -> int:
        """Positions of the forward: at least one more than the tokens of the longest draft."""
        positions, branched = 1, False
        for row in self.rows:
            positions = max(positions, 1 + len(row.draft.tokens))
            branched = branched or row.draft.parents is not None
        costs = self.costs
        if costs is None or branched or costs.width(positions, costs.limit) == positions:
            return positions
        return costs.width(positions, 1 + self.draft_limits()[0])

    def evidence(self) -> EvidenceRequest | None:
        """The running sessions' joint request for evidence from the next forward, or None."""
        request = None
        for row in self.rows:
            if row.evidence is not None:
                request = row.evidence | request
        return request

    def learn(self, computed: list[Computed] | None = None) -> None:
        """Report each draft's verdict, with the row's evidence if any, to the row."""
        for at, row in enumerate(self.rows):
            if row.verdict.emitted:
                row.learn(None if computed is None else computed[at])

    def block(self, width: int) -> Tensor:
        """Every row's last committed token and draft, int64 (batch, width), on the host.

        A row is filled up with its last committed token, which is known to have an embedding. A
        row that has ended is padded as in the baseline. A padding token without an embedding, on
        which the baseline fails, is replaced by token 0.
        """
        last = self.last
        block = np.empty((len(last), width), np.int64)
        block[:] = np.array(last)[:, None]
        if len(self.active) < len(last) > 1:
            pad, embeddings = self.pad, self.target.facts.embeddings
            embedded = embeddings is None or 0 <= pad < embeddings
            ended = list(set(range(len(last))) - set(self.active))
            block[ended, 1:] = pad if embedded else 0
            block[[row for row in ended if not embedded and last[row] == pad], 0] = 0
        for at, row in enumerate(self.rows if width > 1 else ()):
            block[at, 1 : 1 + len(row.draft)] = row.draft.tokens
        return torch.from_numpy(block)

    def ranking(self, *, scores: bool) -> dict[str, Tensor | None] | None:
        """Beam search's report about the returned sequences, or None if these rows are no beams."""
        return None


class LockstepBatch(Batch):
    """Rows of equal length, which advance together. With several rows, all drafts are chains.

    Args:
        prompt: int64 or int32 (rows, length).
        ids: a copy of it on the host; None: the prompt is there.
        first: index of the first row in the target's forwards.
        more: arguments of ``Batch``.

    Attributes:
        places: the rows' indices in the target's forwards.
        finished: whether each row has ended.
        accepted_positions: positions of the step's forward that the baseline would have computed.
        position: the position of the forward at which verification needs the rows' next tokens;
            None once verification has ended.
    """

    finished: list[bool]

    def __init__(
        self, *args: Any, prompt: Tensor, ids: Int64 | None = None, first: int = 0, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        count = len(prompt)
        self.places: Sequence[int] = range(first, first + count)
        self.length = self.prompt_length = prompt.shape[1]
        self.end_rows([False] * count)
        self.last = [0] * count
        self.accepted_positions: list[int] = []
        self.position: int | None = None
        self._accepted: list[list[int]] = [[] for _ in range(count)]  # each row's nodes in the step
        self._emitted: list[list[int]] = [[] for _ in range(count)]  # and its committed tokens
        self.device = prompt.device
        self._dtype = prompt.dtype  # the baseline uses int64 from the first generated token on
        self._host = np.empty((count, self.length + INITIAL_TOKENS), np.int64)
        self._host[:, : self.length] = prompt.numpy() if ids is None else ids
        self._device = torch.from_numpy(self._host)  # on another device a copy; ``ids`` updates it
        if prompt.device.type != "cpu":
            self._device = torch.empty_like(self._device, device=prompt.device)
            self._device[:, : self.length] = prompt
        self._copied = self.length

    # The committed tokens

    def ids(self) -> Tensor:
        """The committed tokens on the prompt's device.

        Before the first generated token they have the prompt's dtype, which may be int32.
        """
        if self._device.device.type != "cpu" and self._copied < self.length:
            new = slice(self._copied, self.length)
            self._device[:, new] = sent(torch.from_numpy(self._host[:, new]), self._device.device)
            self._copied = self.length
        ids = self._device[:, : self.length]
        return ids if self.length > self.prompt_length else ids.to(self._dtype)

    def ids_on_host(self) -> Tensor:
        """The committed tokens, int64 (rows, length), on the host."""
        return torch.from_numpy(self._host[:, : self.length])

    def tokens_from(self, start: int) -> list[int]:
        """The first row's committed tokens from ``start`` on, without a device transfer."""
        found: list[int] = self._host[0, start : self.length].tolist()
        return found

    def texts(self) -> Sequence[RowText]:
        return [self]

    def sequences(self) -> Tensor:
        return self.ids().clone()

    def append(self, tokens: list[int]) -> None:
        """Append one token to each row, check the stopping rules and stream, as ``generate``."""
        sampler = self.sampler
        if self.length == self._host.shape[1]:
            self._make_room()
        self.last = tokens
        self._host[:, self.length] = tokens
        self.length += 1
        ended = sampler.stop(tokens, self.length, self.ids, self.ids_on_host, sampler.scores)
        if True in ended:
            self.end_rows([was or now for was, now in zip(self.finished, ended, strict=True)])
        if sampler.streamer is not None:
            with self.section(STREAMING):
                sampler.streamer.put(torch.tensor(tokens, device="cpu"))

    def _make_room(self) -> None:
        """Double the length of the buffers."""
        self._host = np.concatenate((self._host, np.empty_like(self._host)), axis=1)
        if self._device.device.type == "cpu":
            self._device = torch.from_numpy(self._host)
        else:
            self._device = torch.cat((self._device, torch.empty_like(self._device)), dim=1)

    def end_rows(self, finished: list[bool]) -> None:
        """Set which rows have ended."""
        pads = self.sampler.pad is not None
        self.finished, self.stopped = finished, all(finished)
        self.active = [row for row, ended in enumerate(finished) if not (ended and pads)]

    # Drafts

    def tokens_left(self) -> int:
        """Maximum tokens that the rows may still generate."""
        last = self.sampler.stop.max_length
        return NO_LIMIT if last is None else last - self.length

    def draft_limits(self) -> tuple[int, int]:
        room = self.target.room(self.length - self.prompt_length)
        nodes = NO_LIMIT if room is None else room
        return min(self.tokens_left() - 1, nodes), nodes

    def draft(self) -> None:
        """Draft for each row; deterministic drafts are cut to the shortest.

        Sampled drafts are not cut, because letting sampled tokens decide the length would bias the
        output.
        """
        limit, nodes = self.draft_limits()
        if len(self.rows) == 1:
            self.rows[0].propose(limit, nodes)
            return
        active = [self.rows[at] for at in self.active]
        for row in active:
            if row.propose(limit).proposal is None:
                limit = min(limit, len(row.draft))
        if all(row.draft.proposal is None for row in active):
            for row in active:
                row.draft = row.draft.first(limit)

    # Verification

    def begin_step(self) -> None:
        super().begin_step()
        self.accepted_positions, self.position = [], None
        self._accepted, self._emitted = [[] for _ in self.rows], [[] for _ in self.rows]

    def accepted_paths(self) -> Sequence[Sequence[int]]:
        return [self.accepted_positions] * len(self.places)

    def verify(self, logits: Tensor, sampled: SampledTokens | None) -> None:
        before, self.position = self.length, 0
        try:
            while self.position is not None:
                self.accept_position()
                self.commit_token(self.next_tokens(logits, sampled))
        finally:  # also after errors, leave the generator as the baseline would
            if sampled is not None:
                sampled.rewind(self.length - before)
        self.give_verdicts()

    def accept_position(self) -> None:
        """Accept ``position``, which the baseline computes before it samples the next token."""
        assert self.position is not None
        self.accepted_positions.append(self.position)

    def next_tokens(self, logits: Tensor, sampled: SampledTokens | None) -> list[int]:
        """Choose and record the rows' tokens at ``position``; see ``verify``."""
        sampler, position = self.sampler, self.position
        assert position is not None
        own = logits[:, position]
        if sampled is None and not sampler.takes_argmax:
            spots = [(row.draft, position) for row in self.rows]
            return sampler.choose_next(self._scores(own), spots)
        if sampler.records:
            self._scores(own)
        if sampled is None:  # as in ``generate``, the argmax of float32 logits
            best: list[int] = argmax_on_host(own.float()).tolist()
            return best
        known: list[int] = sampled.tokens[:, position].tolist()
        return known

    def _scores(self, logits: Tensor) -> Tensor:
        """Compute and record the rows' processed scores, float32 (rows, vocab)."""
        sampler, raw = self.sampler, logits.to(copy=True, dtype=torch.float32)
        scores = sampler.process(self.ids(), raw) if sampler.processors else raw
        sampler.record(scores, raw)
        return scores

    def commit_token(self, tokens: list[int]) -> None:
        """Commit each row's token at ``position``, then move to the next position or to None."""
        position, active = self.position, self.active
        assert position is not None
        tokens = self._padded(tokens)
        agreed, node = True, None
        for row in active:
            own = self.rows[row].draft.node_with(tokens[row], position)
            self._emitted[row].append(tokens[row])
            if own is not None:
                self._accepted[row].append(own)
            agreed, node = agreed and (row == active[0] or own == node), own
        self.append(tokens)
        agreed = agreed and node is not None and self.active == active and not self.stopped
        self.position = node + 1 if agreed and node is not None else None

    def _padded(self, tokens: list[int]) -> list[int]:
        """The tokens to commit, with padding in ended rows if they are padded."""
        if min(tokens) < 0:
            raise RuntimeError(
                "the target's scores are no distribution: NaN, or -inf for every token, at"
                f" position {self.length}"
            )
        pad = self.sampler.pad
        if pad is None or len(self.active) == len(tokens):
            return tokens
        rows = zip(tokens, self.finished, strict=True)
        return [pad if ended else token for token, ended in rows]

    def give_verdicts(self) -> None:
        """Tell each row the result of its verification in this step."""
        for row, accepted, emitted in zip(self.rows, self._accepted, self._emitted, strict=True):
            if emitted:
                row.verdict = row.draft.verdict(accepted, emitted)
