"""A pytest plugin: linear layers round otherwise where they get another number of positions.

Processors differ in whether a forward's width changes its rounding. Under this plugin it does on
every machine, by up to 2e-7 of each value, one or two units in the last place. A test that compares
floats of forwards of different shapes exactly then fails: ``python -m pytest -p width_noise``.
"""

from __future__ import annotations

import torch

RELATIVE_NOISE = 2e-7
_linear = torch.nn.functional.linear


def _noisy(inputs: torch.Tensor, *weights: torch.Tensor | None) -> torch.Tensor:
    outputs = _linear(inputs, *weights)
    if outputs.dtype not in (torch.float32, torch.float64):
        return outputs
    positions = outputs.numel() // max(outputs.shape[-1], 1)
    columns = torch.arange(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)
    return outputs * (1.0 + RELATIVE_NOISE * torch.cos(columns * (positions + 1)))


def pytest_configure() -> None:
    torch.nn.functional.linear = _noisy
