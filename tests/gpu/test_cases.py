"""Every path of the decode loop on a pretended GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from gpu.cases import CASES, _embedded, _joint, measure

from ngramspec.hf_model.compat import kernels

RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "waits.json"

OTHER_CALLS = (_embedded, _joint)  # which begin with other forwards
SHOWN = ("before", "prefill", "step", "copies")


@pytest.fixture(scope="session")
def recorded(request):
    """The counts of docs/guide/gpu.md, or with --waits FILE new ones; {} for other versions."""
    path, found = request.config.getoption("--waits"), {}
    if path is None and RECORDED.exists():
        raw = json.loads(RECORDED.read_text(encoding="utf-8"))
        packages = raw["figure"]["where"]["packages"]
        here = {each.__name__: each.__version__.split("+")[0] for each in (torch, transformers)}
        if here.items() <= packages.items():
            found = raw["cases"]
    yield found
    if path is not None:
        Path(path).write_text(json.dumps({"cases": found}), encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_the_same_as_on_the_cpu_and_steps_wait_once(name, recorded, request):
    case = CASES[name]
    found = measure(case)
    ours = found["ours"]
    plain = found["plain"]
    assert found["text"] == found["expected"]
    assert ours["step"] <= max(case.waits, plain["step"]), ours["places"]
    if case.call not in OTHER_CALLS:
        assert ours["before"] <= plain["before"] + 2, ours["counts"]
        more = 4 if "cache_implementation" in case.args else 2  # a static cache's masks
        assert ours["prefill"] <= plain["prefill"] + more, ours["counts"]
    counts = {side: {n: found[side][n] for n in SHOWN} for side in ("plain", "ours")}
    if request.config.getoption("--waits"):
        recorded[name] = counts
    assert recorded.get(name, counts) == counts, (ours["places"], "run: make figures TABLES=waits")


def test_only_masks_of_chains_that_hide_nothing_else_are_skipped(monkeypatch):
    skipped = []
    for name in ("greedy, gamma 5", "batch", "static cache", "windows"):
        monkeypatch.setattr(kernels, "skips_mask", lambda *_, name=name: skipped.append(name))
        measure(CASES[name])
    assert set(skipped) == {"greedy, gamma 5"}
