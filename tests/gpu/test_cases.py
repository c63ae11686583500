"""Every path of the decode loop on a pretended GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gpu.cases import CASES, _embedded, _joint, measure

from ngramspec.hf_model.compat import kernels

OTHER_CALLS = (_embedded, _joint)  # which begin with other forwards
SHOWN = ("before", "prefill", "step", "copies")


@pytest.fixture(scope="session")
def recorded(request):
    """With --waits FILE, the counts of all cases, which are written there."""
    path, found = request.config.getoption("--waits"), {}
    yield found
    if path is not None:
        Path(path).write_text(json.dumps({"cases": found}), encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_the_same_as_on_the_cpu_and_steps_wait_once(name, recorded):
    case = CASES[name]
    found = measure(case)
    ours = found["ours"]
    plain = found["plain"]
    assert found["text"] == found["expected"]
    assert ours["step"] <= max(case.waits, plain["step"]), ours["places"]
    if case.call not in OTHER_CALLS:
        assert ours["before"] <= plain["before"] + 2, ours["counts"]
        assert ours["prefill"] <= plain["prefill"] + 2, ours["counts"]
    recorded[name] = {side: {n: found[side][n] for n in SHOWN} for side in ("plain", "ours")}


def test_only_masks_of_chains_that_hide_nothing_else_are_skipped(monkeypatch):
    skipped = []
    for name in ("greedy, gamma 5", "batch", "static cache", "windows"):
        monkeypatch.setattr(kernels, "skips_mask", lambda *_, name=name: skipped.append(name))
        measure(CASES[name])
    assert set(skipped) == {"greedy, gamma 5"}
