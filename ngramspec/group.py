"""Rows of a batch that advance together, and how their tokens are chosen and committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ngramspec.draft import Draft, Verdict
from ngramspec.stopping import StopRules
from ngramspec.verify.sampled import draw

NOTHING = Verdict((), 0, ())


@dataclass(slots=True)
class Record:
    """Scores and logits per generated token, where they were asked for.

    Attributes:
        scores: processed scores, float32 (batch, vocab) each, or None.
        logits: raw logits, float32 (batch, vocab) each, or None.
    """

    scores: list[torch.Tensor] | None = None
    logits: list[torch.Tensor] | None = None

    def __bool__(self) -> bool:
        """Whether anything is kept."""
        return self.scores is not None or self.logits is not None


@dataclass(frozen=True, slots=True)
class Choosing:
    """How tokens are chosen, and what is told of them.

    Attributes:
        processors: logits processors in order, called as ``generate`` calls them; or None.
        stop: after which token a row ends.
        do_sample: draw from the distribution, or take the most probable token.
        pad: what an ended row goes on with; None: whatever the target says.
        streamer: gets every token, int64 (rows,) on the host, or None.
        record: what to keep of each token.
    """

    processors: Any
    stop: StopRules
    do_sample: bool
    pad: int | None
    streamer: Any
    record: Record

    @property
    def at_once(self) -> bool:
        """Whether a step's tokens are had in one transfer: greedy, without processors."""
        return not self.do_sample and not self.processors


class Group:
    """The committed tokens of some rows, which all have the same number of them.

    Args:
        rows: their indices in the batch.
        prompt: int64 (len(rows), prompt).
        choosing: how their tokens are chosen.
    """

    def __init__(self, rows: Sequence[int], prompt: torch.Tensor, choosing: Choosing) -> None:
        self.rows = rows
        self.choosing = choosing
        self.length = self.prompt_length = prompt.shape[1]
        self.finished = [False] * len(rows)
        self.last = [0] * len(rows)  # each row's last committed token
        self.kept = 0  # positions of the step's forward that plain decoding would have forwarded
        self.buffer = prompt.new_empty((len(rows), self.length + 256))
        self.buffer[:, : self.length] = prompt

    @property
    def new(self) -> int:
        """Generated tokens of each row so far."""
        return self.length - self.prompt_length

    @property
    def stopped(self) -> bool:
        """Whether every row has ended."""
        return all(self.finished)

    @property
    def going(self) -> list[int]:
        """Rows of the group that are drafted for: ended ones, too, where nothing pads them."""
        pads = self.choosing.pad is not None
        return [row for row, ended in enumerate(self.finished) if not (ended and pads)]

    def ids(self) -> torch.Tensor:
        """The committed tokens, int64 (rows, length)."""
        return self.buffer[:, : self.length]

    def verify(
        self, drafts: Sequence[Draft], logits: torch.Tensor, choices: Sequence[Sequence[int]] | None
    ) -> list[Verdict]:
        """Commit the target's tokens position by position, as far as all drafts agree.

        Args:
            drafts: each row's draft; an ended row's counts for nothing.
            logits: (rows, n + 1, vocab), behind the last committed token and the n drafted ones.
            choices: the target's tokens, n + 1 for each row, or None: choose as far as the drafts
                agree.
        """
        drafted = [draft.tokens.tolist() for draft in drafts]
        going = self.going
        emitted: list[list[int]] = [[] for _ in self.rows]
        accepted = [0] * len(self.rows)
        for position in range(min(len(drafted[row]) for row in going) + 1):
            self.kept = position + 1
            known = None if choices is None else [row[position] for row in choices]
            tokens = self.choose(logits[:, position], known)
            agree = True
            for row in going:
                emitted[row].append(tokens[row])
                right = position < len(drafted[row]) and drafted[row][position] == tokens[row]
                accepted[row] += right
                agree &= right
            self.commit(tokens)
            if not agree or self.stopped or self.going != going:
                break
        return [
            Verdict(range(accepted[row]), min(len(emitted[row]), len(drafted[row])), tuple(tokens))
            if (tokens := emitted[row])
            else NOTHING
            for row in range(len(self.rows))
        ]

    def choose(self, logits: torch.Tensor, known: list[int] | None) -> list[int]:
        """The target's tokens at one position, from its logits (rows, vocab), and their record."""
        choosing, record = self.choosing, self.choosing.record
        if known is None or record:
            logits = logits.to(copy=True, dtype=torch.float32, device=self.buffer.device)
            scores = logits
            if choosing.processors:
                scores = choosing.processors(self.ids(), logits)
            if record.scores is not None:
                record.scores.append(scores)
            if record.logits is not None:
                record.logits.append(logits)
            if known is None:
                chosen = draw(scores) if choosing.do_sample else scores.argmax(dim=-1)
                known = chosen.tolist()
        if choosing.pad is None:
            return known
        ended = zip(known, self.finished, strict=True)
        return [choosing.pad if finished else token for token, finished in ended]

    def commit(self, tokens: list[int]) -> None:
        """Append one token to each row, ask whether to stop, stream: in ``generate``'s order."""
        choosing = self.choosing
        self.reserve(self.length + 1)
        self.last = tokens
        column = torch.tensor(tokens)
        self.buffer[:, self.length] = column
        self.length += 1
        ended = choosing.stop(tokens, self.ids(), choosing.record.scores)
        self.finished = [was or now for was, now in zip(self.finished, ended, strict=True)]
        if choosing.streamer is not None:
            choosing.streamer.put(column)

    def reserve(self, length: int) -> None:
        """Make room for ``length`` tokens a row."""
        if length > self.buffer.shape[1]:
            more = self.buffer.new_empty((len(self.rows), length))
            self.buffer = torch.cat((self.buffer, more), dim=1)
