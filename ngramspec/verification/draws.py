"""Drawing tokens from the target's distribution, as plain sampling draws them."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def draw(target_probs: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Draw a token for each row: what torch.multinomial draws, without its transfers to the host.

    One token is drawn there as argmax p / e with e exponential, too, from the same randomness.

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
    """Draw for every position of a forward at once, for each depth with the same randomness.

    Whichever path is accepted, its tokens are those that ``draw`` gives one after another.

    Args:
        target_probs: float32 (rows, positions, vocab).
        depths: for each position, how many tokens are drawn before its own.
        generator: of the same device.

    Returns:
        (int64 (rows, positions) tokens; the generator's states behind 1, 2, ... draws).
    """
    noise, states = [], []
    for _ in range(max(depths) + 1):
        drawn = torch.empty_like(target_probs[:, 0], memory_format=torch.contiguous_format)
        noise.append(drawn.exponential_(generator=generator))
        states.append(generator.get_state())
    scaled = [target_probs[:, at] / noise[depth] for at, depth in enumerate(depths)]
    return torch.stack(scaled, dim=1).argmax(dim=-1), states
