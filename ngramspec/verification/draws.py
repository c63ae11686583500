"""Random samples of the target's distribution: those that plain sampling takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def draw(target_probs: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Sample a token for each row, the one of torch.multinomial, without its host transfers.

    torch.multinomial too samples one token as argmax p / e, with e exponential; the random numbers
    are the same.

    Args:
        target_probs: float32 (rows, vocab).
        generator: None: torch's global one.

    Returns:
        int64 (rows,), on the probabilities' device.
    """
    noise = torch.empty_like(target_probs).exponential_(generator=generator)
    return (target_probs / noise).argmax(dim=-1)


def draw_at_depths(
    target_probs: torch.Tensor, depths: Sequence[int], generator: torch.Generator
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Sample at every position of a forward at once, at one depth with the same random numbers.

    Whichever path is accepted, its tokens are those that ``draw`` gives one after another.

    Args:
        target_probs: float32 (rows, positions, vocab).
        depths: for each position, how many drafted tokens lead to it.
        generator: of the same device.

    Returns:
        (int64 (rows, positions) tokens; the generator's states after 1, 2, ... samples).
    """
    noise, states = [], []
    for _ in range(max(depths) + 1):
        empty = torch.empty_like(target_probs[:, 0], memory_format=torch.contiguous_format)
        noise.append(empty.exponential_(generator=generator))
        states.append(generator.get_state())
    scaled = [target_probs[:, at] / noise[depth] for at, depth in enumerate(depths)]
    return torch.stack(scaled, dim=1).argmax(dim=-1), states
