"""The rows of a call that share forwards, and the layout in which they advance.

A group lays its rows out in the target's forwards: which tokens they commit together, and how their
drafts' lengths depend on each other. Texts, drafts and verdicts belong to the rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ngramspec.costs.steps import JointPart, StepCosts
from ngramspec.decoding.observer import STREAMING, Section, no_section
from ngramspec.decoding.row import INITIAL_TOKENS, Row
from ngramspec.draft import Computed, Draft, EvidenceRequest, Float32, Int64
from ngramspec.hf_model.compat.devices import sent
from ngramspec.hf_model.target import Target
from ngramspec.verification.sampler import SampledTokens, TokenSampler, argmax_on_host

if TYPE_CHECKING:
    from ngramspec.hf_model.compat.processors import Histories
    from ngramspec.verification.rejection import BatchNoise, Noise

NO_LIMIT = 1 << 20  # tokens; the draft length limit if no other limit is known


class Group(ABC):
    """The rows of a call: a ``LockstepGroup``, ``RaggedGroup`` or ``BeamGroup``.

    Args:
        rows: all rows in order.
        connect: connects the rows, given the vocabulary's size; see ``Row.connect``.
        prompt: int64 or int32 (rows, length).
        ids: a copy of it on the host; None: the prompt is there.
        costs: the forwards' costs. None: unknown, and the prefill verifies no draft.
        section: returns the context of a section, see Observer.

    Attributes:
        origins: the row of the last forward that each row continues; empty: each its own.
        dropped: tokens that steps had counted before they were dropped from the texts.
        padding: how many tokens of it each row adds in the step; empty: none does.
        noise: the baseline's random numbers, if they are drawn ahead of the committed tokens.
    """

    origins: Sequence[int] = ()
    dropped = 0
    padding: Sequence[int] = ()
    noise: BatchNoise | None = None

    def __init__(
        self,
        rows: list[Row],
        sampler: TokenSampler,
        target: Target,
        connect: Callable[[Sequence[Row], int], None],
        *,
        prompt: Tensor,
        ids: Int64 | None = None,
        costs: StepCosts | None = None,
        section: Section = no_section,
    ) -> None:
        self.rows, self.sampler, self.target, self.costs = rows, sampler, target, costs
        self.section, self._connect = section, connect
        self.memory = TextMemory(prompt, ids)
        self.memory.place(rows)
        rule = sampler.rule
        if rule is not None and rule.do_sample and rule.exact and self.draws_ahead:
            from ngramspec.verification.rejection import BatchNoise  # many calls are greedy

            self.noise = BatchNoise(len(rows), rule.generator)

    # The texts

    @property
    def length(self) -> int:
        """Committed tokens of the longest row."""
        return max(row.length for row in self.rows)

    @property
    def stopped(self) -> bool:
        """Whether every row has ended."""
        for row in self.rows:  # noqa: SIM110 - each item of a generator is a call
            if not row.ended:
                return False
        return True

    @property
    def settled(self) -> int:
        """How much of each text will not change."""
        return self.length

    def ids(self) -> Tensor | None:
        """The committed tokens, int64 (rows, length); None if rows have different lengths."""
        return None

    @abstractmethod
    def sequences(self) -> Tensor:
        """The returned sequences, int64 (batch, longest), padded."""

    def histories(self, rows: Sequence[int], drafts: Sequence[Draft], positions: int) -> Histories:
        """The texts before some rows' positions, for processors; see ``Histories``."""
        from ngramspec.hf_model.compat.processors import Histories  # many calls have none

        lengths = [self.rows[at].length for at in rows]
        ids = partial(self.memory.ids, self.length, self.settled)
        return Histories(ids, rows, lengths, drafts, positions, len(self.rows))

    def ranking(self, *, scores: bool) -> dict[str, Tensor | None] | None:
        """Beam search's report about the returned sequences, or None if these rows are no beams."""
        return None

    # The drafts

    def begin_step(self) -> None:
        """Reset the drafts and verdicts, and what is known about the last forward."""
        for row in self.rows:
            row.reset()

    def connect(self, vocab: int) -> None:
        """Let the rows draft for a vocabulary of ``vocab`` tokens, if they cannot yet."""
        if not self.rows[0].connected:
            self._connect(self.rows, vocab)

    def is_padded(self, row: Row) -> bool:
        """Whether a row has ended and gets padding."""
        return row.ended and self.sampler.pad is not None

    def tokens_left(self, row: Row) -> int:
        """Maximum tokens that a row may still generate."""
        last = self.sampler.stop.max_length
        return NO_LIMIT if last is None else last - row.length

    def limits(self, row: Row) -> tuple[int, int]:
        """Maximum tokens of a row's path, by the length of the text too, and of its whole draft."""
        room = self.target.room(row.length - row.prompt_length)
        nodes = NO_LIMIT if room is None else room
        return min(self.tokens_left(row) - 1, nodes), nodes

    def shortest_limit(self) -> int:
        """Maximum tokens of a path in every row."""
        return self.limits(self.rows[0])[0]

    def propose_for_prefill(self, limit: int) -> None:
        """Draft at most ``limit`` tokens after the prompt, if the prefill can verify a draft."""
        costs, vocab = self.costs, self.target.vocab
        limit = min(limit, self.target.prefill_room(), self.shortest_limit())
        if limit < 1 or vocab is None or costs is None:
            return
        costs.at(self.length, prefill=True)
        self.connect(vocab)
        self.rows[0].propose(limit, tree=False)

    def propose(self, part: JointPart | None = None) -> None:
        """Draft for each row, unless the step is to be timed without drafts.

        ``part``: what the step costs as a part of a joint one.
        """
        if self.costs is not None:
            pending = self.target.pending
            self.costs.at(self.length, None if pending is None else len(pending))
            if self.costs.plain() if part is None else part.due:
                return
        self.draft(None if part is None else part.required)

    @abstractmethod
    def draft(self, required: Float32 | None = None) -> None:
        """Draft for each row that has not ended; ``required``: see ``Row.propose``."""

    def width(self, *, pads: bool = True) -> int:
        """Positions of the forward: one more than the tokens of the longest draft, or padded."""
        positions, branched = 1, False
        for row in self.rows:
            positions = max(positions, 1 + len(row.draft.tokens))
            branched = branched or row.draft.parents is not None
        costs = self.costs
        if costs is None or branched or not pads:
            return positions
        if costs.width(positions, costs.limit) == positions:
            return positions
        return costs.width(positions, 1 + self.shortest_limit())

    def evidence(self) -> EvidenceRequest | None:
        """The running sessions' joint request for evidence from the next forward, or None."""
        request = None
        for row in self.rows:
            if row.evidence is not None:
                request = row.evidence | request
        return request

    def block(self, width: int) -> Tensor:
        """Every row's last committed token and draft, int64 (batch, width), on the host.

        A row is filled up with its last committed token, which is known to have an embedding. A
        row that has ended is padded as in the baseline. A padding token without an embedding, on
        which the baseline fails, is replaced by token 0.
        """
        block = np.empty((len(self.rows), width), np.int64)
        for own, row in zip(block, self.rows, strict=True):
            own[:] = row.last
            if row.ended and len(block) > 1 and self.is_padded(row):
                self._pad(own)
            elif width > 1:
                own[1 : 1 + len(row.draft)] = row.draft.tokens
        return torch.from_numpy(block)

    def _pad(self, own: Int64) -> None:
        """Fill an ended row of a forward, int64 (width,), whose first token is its last one."""
        pad, embeddings = self.sampler.pad, self.target.facts.embeddings
        assert pad is not None
        embedded = embeddings is None or 0 <= pad < embeddings
        own[1:] = pad if embedded else 0
        if not embedded and own[0] == pad:
            own[0] = 0

    # Random numbers

    @property
    def draws_ahead(self) -> bool:
        """Whether tokens are sampled at positions that may be rejected, or before other rows'."""
        return self.sampler.fetches_at_once

    def noise_at(self, drafts: Sequence[Draft], positions: int) -> Noise | None:
        """The random numbers of all rows at all positions of a forward, if they are kept."""
        noise = self.noise
        return None if noise is None else noise.along(self.generated(), drafts, positions)

    def generated(self) -> list[int]:
        """Committed tokens of each row without its prompt."""
        return [row.length - row.prompt_length for row in self.rows]

    def leave_noise(self) -> None:
        """Leave the random generator in the baseline's state, when a step is verified."""
        if self.noise is not None:
            self.noise.rewind(self.settled - self.rows[0].prompt_length)

    # Verification: see ``step.verify``

    @abstractmethod
    def walking(self) -> Sequence[int]:
        """The rows that are verified in this step."""

    def keep(self, walking: Sequence[int]) -> None:
        """Let the cache keep the positions that these rows have reached."""
        for at in walking:
            self.rows[at].keep()

    @abstractmethod
    def choose(
        self, walking: Sequence[int], logits: Tensor, sampled: SampledTokens | None
    ) -> list[int]:
        """Choose, and maybe record, the next token of each walking row."""

    @abstractmethod
    def commit(self, walking: Sequence[int], tokens: list[int]) -> Sequence[int]:
        """Commit a token of each walking row; return the rows that have their next logits."""

    def judge(self) -> None:
        """Set the rows' verdicts."""
        for row in self.rows:
            row.judge()

    def accepted_paths(self) -> Sequence[Sequence[int]]:
        """Each row's positions of the last forward that the cache keeps."""
        return [*map(attrgetter("kept"), self.rows)]

    def no_distribution(self) -> RuntimeError:
        """The error if a token was not chosen, and is negative."""
        return RuntimeError(
            "the target's scores are no distribution: NaN, or -inf for every token, at position"
            f" {self.length}"
        )

    def stream(self, tokens: list[int]) -> None:
        """Give a token of each row to the streamer."""
        with self.section(STREAMING):
            self.sampler.streamer.put(torch.tensor(tokens, device="cpu"))

    # The ends of steps and of the call

    def learn(self, computed: list[Computed] | None = None) -> None:
        """Report each draft's verdict, with the row's evidence if any, to the row."""
        for at, row in enumerate(self.rows):
            if row.verdict.emitted:
                row.learn(None if computed is None else computed[at])

    def finish(self) -> None:
        """End the call successfully: shared stores may keep the rows' texts."""
        for row in self.rows:
            row.end(completed=True)

    def close(self) -> None:
        """End every row's session."""
        for row in self.rows:
            row.end(completed=False)  # no effect after ``finish``
            row.close()


class LockstepGroup(Group):
    """Rows of equal length, which advance together. With several rows, all drafts are chains."""

    @property
    def length(self) -> int:
        return self.rows[0].length

    def ids(self) -> Tensor:
        return self.memory.ids(self.length)

    def ids_on_host(self) -> Tensor:
        """The committed tokens, int64 (rows, length), on the host."""
        return self.memory.ids_on_host(self.length)

    def sequences(self) -> Tensor:
        return self.ids().clone()

    def draft(self, required: Float32 | None = None) -> None:
        """Draft for each row; deterministic drafts are cut to the shortest.

        Sampled drafts are not cut, because letting sampled tokens decide the length would bias the
        output.
        """
        limit, nodes = self.limits(self.rows[0])
        if len(self.rows) == 1:
            self.rows[0].propose(limit, nodes, required=required)
            return
        active = [row for row in self.rows if not self.is_padded(row)]
        for row in active:
            if row.propose(limit).proposal is None:
                limit = min(limit, len(row.draft))
        if all(row.draft.proposal is None for row in active):
            for row in active:
                row.cut(limit)

    def walking(self) -> Sequence[int]:
        return range(len(self.rows))

    def choose(
        self, walking: Sequence[int], logits: Tensor, sampled: SampledTokens | None
    ) -> list[int]:
        sampler, position = self.sampler, self.rows[0].position
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

    def commit(self, walking: Sequence[int], tokens: list[int]) -> Sequence[int]:
        """Commit a token of each row, or padding, check the stopping rules and stream.

        The rows go on while the drafts of all of them agree with what they commit.
        """
        if min(tokens) < 0:
            raise self.no_distribution()
        self.memory.make_room(self.rows)
        pad, going, padded = self.sampler.pad, list[Row](), list[Row]()
        for row, token in zip(self.rows, tokens, strict=True):
            if row.ended and pad is not None:
                padded.append(row)
            else:
                going.append(row)
                row.advance(token)
        for row in padded:
            assert pad is not None
            row.stay_with(going[0], pad)
        if padded:
            tokens = [row.last for row in self.rows]
        self._end_position(tokens)
        position = going[0].position
        if position is None or self.stopped or any(map(self.is_padded, going)):
            return ()
        return walking if all(row.position == position for row in going) else ()

    def _end_position(self, tokens: list[int]) -> None:
        """Check the stopping rules and stream, as ``generate`` after each token."""
        sampler, stop = self.sampler, self.sampler.stop
        ended = stop.of_rows(tokens, self.rows[0].length, self.ids_on_host)
        if stop.sees_batch:
            seen = stop.of_batch(len(tokens), self.ids, sampler.scores)
            ended = [was or now for was, now in zip(ended, seen, strict=True)]
        if True in ended:
            for row, now in zip(self.rows, ended, strict=True):
                row.ended = row.ended or now
        if sampler.streamer is not None:
            self.stream(tokens)


class TextMemory:
    """A matrix with a row for each text: the rows write on the host, and ``ids`` on the device.

    On a CPU both are the same memory. Tokens after a row's text have no meaning.

    Args:
        prompt: int64 or int32 (rows, length).
        ids: a copy of it on the host; None: the prompt is there.
    """

    def __init__(self, prompt: Tensor, ids: Int64 | None = None) -> None:
        self.device, self._dtype = prompt.device, prompt.dtype
        self._prompt_length = self._copied = length = prompt.shape[1]
        self._host = np.empty((len(prompt), length + INITIAL_TOKENS), np.int64)
        self._host[:, :length] = prompt.numpy() if ids is None else ids
        self._device = torch.from_numpy(self._host)
        if self.device.type != "cpu":
            self._device = torch.empty_like(self._device, device=prompt.device)
            self._device[:, :length] = prompt

    def place(self, rows: list[Row]) -> None:
        """Let rows keep their texts here."""
        for memory, row in zip(self._host, rows, strict=True):
            row.place_in(memory, row.length or self._prompt_length)

    def make_room(self, rows: list[Row]) -> None:
        """Make sure that every row has room for one more token."""
        for row in rows:
            if row.length == self._host.shape[1]:
                self._double(rows)
                return

    def _double(self, rows: list[Row]) -> None:
        self._host = np.concatenate((self._host, np.empty_like(self._host)), axis=1)
        if self.device.type == "cpu":
            self._device = torch.from_numpy(self._host)
        else:
            self._device = torch.cat((self._device, torch.empty_like(self._device)), dim=1)
        self.place(rows)

    def token(self, row: int, at: int) -> int:
        """A token of a text."""
        return int(self._host[row, at])

    def put(self, row: int, at: int, token: int) -> None:
        """Set a token that follows a text, such as padding."""
        self._host[row, at] = token

    def ids(self, length: int, shortest: int | None = None) -> Tensor:
        """The first ``length`` tokens of each text, int64 (rows, length), on the prompt's device.

        Before the first generated token they have the prompt's dtype, which may be int32.
        ``shortest``: length of the shortest text; None: all have this length.
        """
        if self.device.type != "cpu" and self._copied < length:
            new = slice(self._copied, length)
            self._device[:, new] = sent(torch.from_numpy(self._host[:, new]), self.device)
            self._copied = length if shortest is None else shortest
        ids = self._device[:, :length]
        return ids if length > self._prompt_length else ids.to(self._dtype)

    def ids_on_host(self, length: int) -> Tensor:
        """The first ``length`` tokens of each text, int64 (rows, length), on the host."""
        return torch.from_numpy(self._host[:, :length])
