"""Rows of a batch that advance together: their committed tokens, and what they accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ngramspec.decoding.observer import NO_OBSERVER, STREAMING, Observer
from ngramspec.draft import Draft, Verdict
from ngramspec.verification.sampler import DraftCursor, TokenSampler

INITIAL_TOKENS = 256  # generated tokens that a group's buffer has room for at first
NO_VERDICT = Verdict((), 0, ())


@dataclass(slots=True)
class Judged:
    """What a step's verification has found in one row so far; the fields are Verdict's."""

    accepted: list[int] = field(default_factory=list)
    tested: int = 0
    emitted: list[int] = field(default_factory=list)
    rejected: int | None = None

    def judge(self, cursor: DraftCursor, position: int, token: int) -> int | None:
        """Compare what was drafted at a position with the target's token there.

        Returns:
            the accepted node; None: there is none.
        """
        nodes, drafted = cursor.nodes(position), cursor.drafted(position)
        self.emitted.append(token)
        if token in drafted:
            sibling = drafted.index(token)
            self.tested += sibling + 1
            self.accepted.append(nodes[sibling])
            return nodes[sibling]
        self.tested += len(nodes)
        if nodes:
            self.rejected = nodes[0]
        return None

    def verdict(self) -> Verdict:
        """All of it."""
        if not self.emitted:
            return NO_VERDICT
        return Verdict(self.accepted, self.tested, tuple(self.emitted), self.rejected)


class Group:
    """The committed tokens of some rows, which all have the same number of them.

    Args:
        rows: their indices in the batch.
        prompt: int64 or int32 (len(rows), prompt).
        sampler: how their tokens are chosen.
        observer: is told of streaming.

    Attributes:
        length: committed tokens of each row.
        finished: whether each row has ended.
        last: each row's last committed token.
        accepted_positions: positions of the step's forward that plain decoding would have computed.
        origins: which row of that forward each row continues; empty: its own.
        cursors: each row's draft, while it is verified.
        position: of the forward, where verification needs the rows' next tokens; None: it has
            ended.
        device: the prompt's.
    """

    def __init__(
        self,
        rows: Sequence[int],
        prompt: torch.Tensor,
        sampler: TokenSampler,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self.rows = rows
        self.sampler = sampler
        self.length = self.prompt_length = prompt.shape[1]
        self.finished = [False] * len(rows)
        self.last = [0] * len(rows)
        self.accepted_positions: list[int] = []
        self.origins: Sequence[int] = ()
        self.cursors: list[DraftCursor] = []
        self.position: int | None = None
        self._judged: list[Judged] = [Judged() for _ in self.rows]
        self.device = prompt.device
        self._observer = observer
        self._dtype = prompt.dtype  # plain decoding gives it up with the first token
        room = self.length + INITIAL_TOKENS
        self._host = torch.empty((len(rows), room), dtype=torch.int64, device="cpu")
        self._host[:, : self.length] = prompt
        self._device = self._host  # on another device a copy, which ``ids`` completes
        if prompt.device.type != "cpu":
            self._device = torch.empty_like(self._host, device=prompt.device)
            self._device[:, : self.length] = prompt
        self._copied = self.length

    @property
    def new(self) -> int:
        """Generated tokens of each row so far."""
        return self.length - self.prompt_length

    @property
    def stopped(self) -> bool:
        """Whether every row has ended."""
        return all(self.finished)

    @property
    def accepted_paths(self) -> Sequence[Sequence[int]]:
        """The same of each row that the cache has after the step."""
        return [self.accepted_positions] * len(self.rows)

    @property
    def going(self) -> list[int]:
        """Rows of the group that are drafted for; ended ones too, unless they are padded."""
        pads = self.sampler.pad is not None
        return [row for row, ended in enumerate(self.finished) if not (ended and pads)]

    def ids(self) -> torch.Tensor:
        """The committed tokens, int64 (rows, length), on the prompt's device.

        Of the prompt's dtype, int32 for instance, as long as there is nothing but the prompt.
        """
        if self._device is not self._host and self._copied < self.length:
            new = slice(self._copied, self.length)
            self._device[:, new].copy_(self._host[:, new], non_blocking=True)
            self._copied = self.length
        ids = self._device[:, : self.length]
        return ids if self.new else ids.to(self._dtype)

    def tokens_from(self, start: int) -> list[int]:
        """The first row's committed tokens from ``start`` on; no transfer from a device."""
        found: list[int] = self._host[0, start : self.length].tolist()
        return found

    def sequences(self) -> torch.Tensor:
        """What is returned of the rows, int64 (rows, length)."""
        return self.ids().clone()

    def begin_step(self) -> None:
        """Reset what is known about the last forward."""
        self.accepted_positions, self.position = [], None
        self._judged = [Judged() for _ in self.rows]

    def begin_verification(self, drafts: Sequence[Draft]) -> None:
        """Begin to verify each row's draft: ``position`` is the first that needs tokens."""
        self.begin_step()
        self.cursors = [DraftCursor(draft) for draft in drafts]
        self.position = 0

    def reach(self) -> None:
        """Accept ``position``: the baseline runs it before it samples the next token."""
        assert self.position is not None
        self.accepted_positions.append(self.position)

    def take(self, tokens: list[int]) -> None:
        """Commit each row's token at ``position``, which becomes the next one, or None."""
        position, going = self.position, self.going
        assert position is not None
        tokens = self._padded(tokens)
        nodes = {self._judged[row].judge(self.cursors[row], position, tokens[row]) for row in going}
        self.commit(tokens)
        agreed = len(nodes) == 1 and self.going == going and not self.stopped
        node = nodes.pop() if agreed else None
        self.position = None if node is None else node + 1

    def verdicts(self) -> list[Verdict]:
        """The result of each row's verification in this step; an empty one for rows that ended."""
        return [each.verdict() for each in self._judged]

    def _padded(self, tokens: list[int]) -> list[int]:
        """The tokens to commit: padding in rows that have ended, if they are padded.

        Raises:
            RuntimeError: a row's scores were no distribution.
        """
        if min(tokens) < 0:
            raise RuntimeError(
                "the target's scores are no distribution: NaN, or -inf for every token, at"
                f" position {self.length}"
            )
        pad = self.sampler.pad
        if pad is None:
            return tokens
        rows = zip(tokens, self.finished, strict=True)
        return [pad if ended else token for token, ended in rows]

    def commit(self, tokens: list[int]) -> None:
        """Append one token to each row, check whether to stop, stream: in ``generate``'s order."""
        sampler = self.sampler
        self.reserve(self.length + 1)
        self.last = tokens
        column = torch.tensor(tokens, device="cpu")
        self._host[:, self.length] = column
        self.length += 1
        ended = sampler.stop(tokens, self.length, self.ids, sampler.record.scores)
        self.finished = [was or now for was, now in zip(self.finished, ended, strict=True)]
        if sampler.streamer is not None:
            with self._observer.section(STREAMING):
                sampler.streamer.put(column)

    def reserve(self, length: int) -> None:
        """Make room for ``length`` tokens a row."""
        if length > self._host.shape[1]:
            on_host = self._device is self._host
            self._host = _wider(self._host, length)
            self._device = self._host if on_host else _wider(self._device, length)


def _wider(tokens: torch.Tensor, length: int) -> torch.Tensor:
    more = tokens.new_empty((tokens.shape[0], length))
    return torch.cat((tokens, more), dim=1)
