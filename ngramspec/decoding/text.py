"""Memory for the texts of a group's rows, on the host and on the prompt's device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ngramspec.decoding.row import INITIAL_TOKENS, Row
from ngramspec.draft import Int64
from ngramspec.hf_model.compat.devices import sent


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
        if prompt.device.type != "cpu":
            self._device = torch.empty_like(self._device, device=prompt.device)
            self._device[:, :length] = prompt

    def place(self, rows: list[Row]) -> None:
        """Let rows keep their texts here."""
        for memory, row in zip(self._host, rows, strict=True):
            row.place_in(memory, row.length or self._prompt_length)

    def make_room(self, rows: list[Row]) -> None:
        """Make sure that every row has room for one more token."""
        if max(row.length for row in rows) < self._host.shape[1]:
            return
        self._host = np.concatenate((self._host, np.empty_like(self._host)), axis=1)
        if self.device.type == "cpu":
            self._device = torch.from_numpy(self._host)
        else:
            self._device = torch.cat((self._device, torch.empty_like(self._device)), dim=1)
        self.place(rows)

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
