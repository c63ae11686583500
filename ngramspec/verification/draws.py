"""Random samples of the target's distribution, equal to the baseline's."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def draw(target_probs: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Sample the same token for each row as torch.multinomial, without its host transfers.

    torch.multinomial also samples one token as argmax p / e, with exponential e. The random numbers
    are the same. ``target_probs`` is float32 (rows, vocab), the result int64 (rows,) on its device.
    """
    noise = torch.empty_like(target_probs).exponential_(generator=generator)
    return (target_probs / noise).argmax(dim=-1)


def draw_at_depths(
    target_probs: torch.Tensor, depths: Sequence[Sequence[int]], generator: torch.Generator
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Sample at all positions of a forward at once; equal depths use the same random numbers.

    For any accepted path, the tokens are those of successive calls of ``draw``. ``target_probs`` is
    float32 (rows, positions, vocab), and ``depths`` are the numbers of draft tokens that lead to
    each position. Returned are the tokens, int64 (rows, positions), and the generator's states
    after 0, 1, 2, ... samples.
    """
    rows, _, vocab = target_probs.shape
    noise = target_probs.new_empty((max(map(max, depths)) + 1, rows, vocab))
    states = [generator.get_state()]
    for of_depth in noise:
        of_depth.exponential_(generator=generator)
        states.append(generator.get_state())
    at = torch.tensor(depths, device="cpu").to(target_probs.device, non_blocking=True)
    row = torch.arange(rows, device=target_probs.device)[:, None]
    own = noise[at, row]  # (rows, positions, vocab)
    return torch.div(target_probs, own, out=own).argmax(dim=-1), states
