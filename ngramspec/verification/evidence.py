"""The target's most probable tokens and hidden states of a forward, in one array of integers.

On a device the array goes to the host in the transfer that brings the step's tokens. On a CPU it is
made after verification, position by position, so that a row of logits is read while it is cached.
Measured with one thread, float32, 49152 tokens, k = 8: some 50 microseconds a position (torch.topk
and logsumexp: 100), that is 0.8 ms at 16 positions, beside a forward of some 100 ms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ngramspec.draft import EvidenceRequest, Float32, Int32

BLOCK = 64  # logits whose maximum is looked at first
Computed = tuple[Int32, Float32, Float32 | None]  # ids, log_probs, hidden: see Evidence


def evidence_tensor(
    logits: torch.Tensor, hidden: torch.Tensor | None, request: EvidenceRequest
) -> torch.Tensor:
    """What is asked for at some positions, on the logits' device.

    Args:
        logits: (..., vocab), as the model gave them, any floating dtype.
        hidden: (..., d), or None.
        request: what is asked for.

    Returns:
        int32 (..., 2 k + d): k ids, the bits of k float32 logarithms of probability, and those of d
        float32 hidden values. k is ``top_k``, or the vocabulary's size if that is less.
    """
    ids, log_probs = leading(logits.detach().float(), min(request.top_k, logits.shape[-1]))
    parts = [ids.to(torch.int32), log_probs.view(torch.int32)]
    if hidden is not None and request.hidden:
        parts.append(hidden.detach().float().contiguous().view(torch.int32))
    return torch.cat(parts, dim=-1)


def leading(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k most probable ids and their logarithms of probability.

    Args:
        scores: float32 (..., vocab).
        k: at most vocab.

    Returns:
        (int64 (..., k), float32 (..., k)), the most probable first.
    """
    values, ids = top_k(scores, k)
    return ids, values - scores.logsumexp(-1, keepdim=True) if k else values


def top_k(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest scores, the largest first, and their indices: as ``torch.topk``.

    The k largest lie in the k blocks whose maxima are largest (or are equal to some that do), and
    maxima are found several times as fast as ``torch.topk`` reads all scores.

    Args:
        scores: float32 (..., n).
        k: at most n.
    """
    n = scores.shape[-1]
    blocks = n // BLOCK
    if blocks < 4 * max(k, 1):
        return scores.topk(k, dim=-1)
    even = scores[..., : blocks * BLOCK].reshape(*scores.shape[:-1], blocks, BLOCK)
    best = even.amax(-1).topk(k, dim=-1).indices
    found = even.gather(-2, best.unsqueeze(-1).expand(*best.shape, BLOCK))
    within = torch.arange(BLOCK, device=scores.device)
    index = (best.unsqueeze(-1) * BLOCK + within).flatten(-2)
    if n > blocks * BLOCK:
        rest = torch.arange(blocks * BLOCK, n, device=scores.device)
        index = torch.cat((index, rest.expand(*index.shape[:-1], -1)), dim=-1)
    values, which = torch.cat((found.flatten(-2), scores[..., blocks * BLOCK :]), -1).topk(k, -1)
    return values, index.gather(-1, which)


def evidence_on_host(
    logits: torch.Tensor, hidden: torch.Tensor | None, request: EvidenceRequest
) -> Int32:
    """``evidence_tensor`` of logits (m, vocab) on a CPU, one position after another."""
    rows = [
        evidence_tensor(logits[at], None if hidden is None else hidden[at], request)
        for at in range(len(logits))
    ]
    packed: Int32 = torch.stack(rows).numpy()
    return packed


def computed(packed: Int32, request: EvidenceRequest, vocab: int) -> Computed:
    """The parts of what ``evidence_tensor`` made, int32 (m, 2 k + d)."""
    k = min(request.top_k, vocab)
    ids, log_probs, hidden = np.split(packed, (k, 2 * k), axis=1)
    states = np.ascontiguousarray(hidden).view(np.float32) if hidden.shape[1] else None
    return np.ascontiguousarray(ids), np.ascontiguousarray(log_probs).view(np.float32), states


def fetched(
    tokens: torch.Tensor, beside: torch.Tensor | None
) -> tuple[list[list[int]], Int32 | None]:
    """A step's tokens on the host, and what comes along, in one transfer.

    Args:
        tokens: int64 (rows, positions).
        beside: int32 (rows, positions, n), or None.
    """
    if beside is None:
        return tokens.tolist(), None
    both = torch.cat((tokens.unsqueeze(-1).to(torch.int32), beside), dim=-1).to("cpu").numpy()
    return both[..., 0].tolist(), both[..., 1:]


class EvidenceChannel:
    """One generation's evidence, from the drafting's request to what its sessions are told.

    Attributes:
        request: of the running step; None: nothing is computed, kept or fetched.
        transfers: how many of its own the last step took.

    Args:
        with_tokens: whether the step's tokens are fetched at all positions, in one transfer from
            the device, which evidence can share.
    """

    def __init__(self, with_tokens: bool) -> None:
        self.request: EvidenceRequest | None = None
        self.transfers = 0
        self._with_tokens = with_tokens

    def beside(self, logits: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor | None:
        """What comes to the host with the step's tokens; None: nothing does.

        Args:
            logits: (rows, positions, vocab).
            hidden: (rows, positions, d), or None.
        """
        self.transfers = 0
        if self.request is None or not self._with_tokens:
            return None
        return evidence_tensor(logits, hidden, self.request)

    def read(
        self,
        positions: Sequence[int],
        logits: torch.Tensor,
        hidden: torch.Tensor | None,
        came: Int32 | None,
    ) -> list[Computed] | None:
        """What was computed at each row's first positions; None: nothing is asked for.

        Args:
            positions: how many positions are each row's own.
            logits, hidden: as above.
            came: what came with the tokens, int32 (rows, positions, n), or None.
        """
        request = self.request
        if request is None:
            return None
        if came is None and logits.device.type != "cpu":
            came, self.transfers = evidence_tensor(logits, hidden, request).to("cpu").numpy(), 1
        found = []
        for row, own in enumerate(positions):
            if came is not None:
                packed = came[row, :own]
            else:
                states = None if hidden is None else hidden[row, :own]
                packed = evidence_on_host(logits[row, :own], states, request)
            found.append(computed(packed, request, logits.shape[-1]))
        return found
