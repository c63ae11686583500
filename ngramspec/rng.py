"""Seeds and generators. torch is imported only when a function is called."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def default_generator(device: torch.device) -> torch.Generator:
    """torch's global generator of a device."""
    import torch

    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    return torch.default_generator


def seed_of(generator: torch.Generator) -> int:
    """Compute a seed from a generator's state, without changing the state."""
    state = generator.get_state().numpy().tobytes()
    return int.from_bytes(blake2b(state, digest_size=16).digest(), "little")
