"""The benchmark of the host time: which part of a call it counts, and what it reports."""

from __future__ import annotations

import pytest
import torch

from benchmarks import host_time
from benchmarks.host_time import (
    ForcedProcessor,
    Host,
    chosen,
    random_tokens,
    row_of,
    small_llama,
    speeds,
)


def test_a_row_has_medians_per_forward_and_per_token():
    calls = [Host(seconds, 10, 40, 0.5, seconds / 20) for seconds in (0.004, 0.001, 0.002)]
    row = row_of(chosen(["auto, own"])[0], calls)
    assert row["per_forward"] == pytest.approx(200)
    assert row["least"] == pytest.approx(100)
    assert row["per_token"] == pytest.approx(50)
    assert row["drafted"] == 0.5
    assert row["undrafted"] == pytest.approx(100)


def test_steps_between_forwards_of_one_position_are_undrafted():
    spans = [
        (0.0, 1.0, 1),
        (1.5, 2.0, 1),
        (2.25, 3.0, 1),
        (3.5, 4.0, 1),
        (6.0, 7.0, 5),
        (9.0, 10.0, 1),
    ]
    assert host_time.undrafted(spans) == 0.5
    assert host_time.undrafted(spans[4:]) is None


def test_the_speed_at_an_assumed_forward_counts_forward_and_host():
    assert speeds(240, 240) == [1.0] * 4
    assert speeds(240, 280)[0] == pytest.approx(3.24 / 3.28)


def test_the_time_of_the_forwards_is_left_out(monkeypatch):
    """Forwards of a second each, on a clock that nothing else moves."""
    now = [0.0]
    monkeypatch.setattr(host_time, "perf_counter", lambda: now[0])
    model = small_llama()
    inner = model.model.forward

    def forward(*args, **kwargs):
        now[0] += 1.0
        return inner(*args, **kwargs)

    model.model.forward = forward
    for cell in chosen(["baseline, copy", "chain of 10"]):
        found = host_time.host_time(model, random_tokens(20, seed=1), 40, cell)
        assert found.seconds == 0.0
        assert found.tokens == 39
        assert (found.forwards == 39) == (cell.settings is None)
        assert (found.drafted > 0.5) == (cell.settings is not None)


def test_a_forced_processor_goes_by_length():
    forced = ForcedProcessor(2, (5, 6))
    scores = torch.zeros(1, 9)
    for length, token in ((2, 5), (3, 6), (4, 6)):
        assert forced(torch.zeros(1, length), scores).argmax().item() == token
