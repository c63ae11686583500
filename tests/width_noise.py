"""A pytest plugin: linear layers round otherwise where they get another number of positions.

Processors differ in whether a forward's width changes its rounding. Under this plugin it does on
every machine, by up to two units in the last place of each value. A test that compares
floats of forwards of different shapes exactly then fails: ``python -m pytest -p width_noise``.
"""

from __future__ import annotations

import torch

UNITS = 1.7  # in the last place
_linear = torch.nn.functional.linear


def _noisy(inputs: torch.Tensor, *weights: torch.Tensor | None) -> torch.Tensor:
    outputs = _linear(inputs, *weights)
    if outputs.dtype not in (torch.float32, torch.float64):
        return outputs
    positions = outputs.numel() // max(outputs.shape[-1], 1)
    columns = torch.arange(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)
    noise = UNITS * torch.finfo(outputs.dtype).eps
    return outputs * (1.0 + noise * torch.cos(columns * (positions + 1)))


def pytest_configure() -> None:
    torch.nn.functional.linear = _noisy
