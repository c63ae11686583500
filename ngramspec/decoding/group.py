"""Rows of a batch that advance in lock-step: their committed and accepted tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ngramspec.decoding.observer import STREAMING, Section, no_section
from ngramspec.draft import Draft, Verdict
from ngramspec.verification.cursor import DraftCursor
from ngramspec.verification.sampler import TokenSampler

INITIAL_TOKENS = 256  # generated tokens that a new buffer has room for; not tuned


class Group:
    """The committed tokens of some rows of equal length.

    The prompt is int64 or int32 (rows, length).

    Attributes:
        rows: the rows' indices in the batch, which are consecutive.
        length: committed tokens of each row.
        finished, stopped: whether each row and whether every row has ended.
        active: the group's rows that are drafted for. Ended rows count only if they are not padded.
        last: each row's last committed token.
        accepted_positions: positions of the step's forward that the baseline would have computed.
        origins: the row of that forward that each row continues; empty if each continues itself.
        cursors: each row's draft, during verification.
        position: the position of the forward at which verification needs the rows' next tokens;
            None once verification has ended.
    """

    def __init__(
        self,
        rows: Sequence[int],
        prompt: torch.Tensor,
        sampler: TokenSampler,
        section: Section = no_section,
    ) -> None:
        self.rows = rows
        self.sampler = sampler
        self.length = self.prompt_length = prompt.shape[1]
        self.finished: list[bool]
        self.stopped: bool
        self.active: list[int]
        self.end_rows([False] * len(rows))
        self.last = [0] * len(rows)
        self.accepted_positions: list[int] = []
        self.origins: Sequence[int] = ()
        self.cursors: list[DraftCursor] = []
        self.position: int | None = None
        self._accepted: list[list[int]] = [[] for _ in rows]  # each row's nodes in the step
        self._emitted: list[list[int]] = [[] for _ in rows]  # and its committed tokens
        self.device = prompt.device
        self._section = section
        self._dtype = prompt.dtype  # the baseline uses int64 from the first generated token on
        room = self.length + INITIAL_TOKENS
        self._host = np.empty((len(rows), room), np.int64)
        self._host[:, : self.length] = prompt.cpu()
        self._device = torch.from_numpy(self._host)  # on another device a copy; ``ids`` updates it
        if prompt.device.type != "cpu":
            self._device = torch.empty_like(self._device, device=prompt.device)
            self._device[:, : self.length] = prompt
        self._copied = self.length

    @property
    def new(self) -> int:
        """Generated tokens of each row so far."""
        return self.length - self.prompt_length

    @property
    def accepted_paths(self) -> Sequence[Sequence[int]]:
        """Each row's positions of the last forward that the cache keeps; here equal for all."""
        return [self.accepted_positions] * len(self.rows)

    def end_rows(self, finished: list[bool]) -> None:
        """Set which rows have ended."""
        pads = self.sampler.pad is not None
        self.finished, self.stopped = finished, all(finished)
        self.active = [row for row, ended in enumerate(finished) if not (ended and pads)]

    def ids(self) -> torch.Tensor:
        """The committed tokens, int64 (rows, length), on the prompt's device.

        Before the first generated token they have the prompt's dtype, which may be int32.
        """
        if self._device.device.type != "cpu" and self._copied < self.length:
            new = slice(self._copied, self.length)
            self._device[:, new].copy_(torch.from_numpy(self._host[:, new]), non_blocking=True)
            self._copied = self.length
        ids = self._device[:, : self.length]
        return ids if self.new else ids.to(self._dtype)

    def tokens_from(self, start: int) -> list[int]:
        """The first row's committed tokens from ``start`` on, without a device transfer."""
        found: list[int] = self._host[0, start : self.length].tolist()
        return found

    def sequences(self) -> torch.Tensor:
        """The returned sequences, int64 (rows, length)."""
        return self.ids().clone()

    def begin_step(self) -> None:
        """Reset what is known about the last forward."""
        self.accepted_positions, self.position = [], None
        self._accepted, self._emitted = [[] for _ in self.rows], [[] for _ in self.rows]

    def begin_verification(self, drafts: Sequence[Draft]) -> None:
        """Begin to verify each row's draft, at position 0; call ``begin_step`` before."""
        self.cursors = [DraftCursor(draft) for draft in drafts]
        self.position = 0

    def reach(self) -> None:
        """Accept ``position``, which the baseline computes before it samples the next token."""
        assert self.position is not None
        self.accepted_positions.append(self.position)

    def take(self, tokens: list[int]) -> None:
        """Commit each row's token at ``position``, then move to the next position or to None."""
        position, active = self.position, self.active
        assert position is not None
        tokens = self._padded(tokens)
        nodes = [self.cursors[row].node_with(tokens[row], position) for row in active]
        for row, node in zip(active, nodes, strict=True):
            self._emitted[row].append(tokens[row])
            if node is not None:
                self._accepted[row].append(node)
        self.commit(tokens)
        node = nodes[0]
        agreed = nodes.count(node) == len(nodes) and self.active == active and not self.stopped
        self.position = node + 1 if agreed and node is not None else None

    def verdicts(self) -> list[Verdict]:
        """The result of each row's verification in this step; an empty one for rows that ended."""
        rows = zip(self.cursors, self._accepted, self._emitted, strict=True)
        return [cursor.verdict(accepted, emitted) for cursor, accepted, emitted in rows]

    def _padded(self, tokens: list[int]) -> list[int]:
        """The tokens to commit: padding in rows that have ended, if they are padded.

        Raises:
            RuntimeError: a row's scores are no distribution.
        """
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

    def commit(self, tokens: list[int]) -> None:
        """Append one token to each row, check the stopping rules and stream, as ``generate``."""
        sampler = self.sampler
        self.reserve(self.length + 1)
        self.last = tokens
        self._host[:, self.length] = tokens
        self.length += 1
        ended = sampler.stop(tokens, self.length, self.ids, sampler.scores)
        if True in ended:
            self.end_rows([was or now for was, now in zip(self.finished, ended, strict=True)])
        if sampler.streamer is not None:
            with self._section(STREAMING):
                sampler.streamer.put(torch.tensor(tokens, device="cpu"))

    def reserve(self, length: int) -> None:
        """Make room for ``length`` tokens in each row."""
        if length <= self._host.shape[1]:
            return
        self._host = np.concatenate((self._host, np.empty((len(self.rows), length), np.int64)), 1)
        on_host = torch.from_numpy(self._host)
        if self._device.device.type == "cpu":
            self._device = on_host
        else:
            more = self._device.new_empty((len(self.rows), length))
            self._device = torch.cat((self._device, more), dim=1)
