"""The cases on a real GPU, with ``pytest tests/gpu/test_real.py --device cuda``; some on a CPU."""

from __future__ import annotations

import pytest
from gpu import cases
from gpu.cases import CASES, COMPILED, is_near_tie, measure_real, text_of
from gpu.real import RealGpu

ALL = CASES | {f"compiled: {name}": case for name, case in COMPILED.items()}
TRIED = ("greedy", "sampled, tree", "static cache, tree", "enabled", "encoder-decoder, batch")
# Only a GPU's compiler is quick enough for `make test`; a real GPU samples as the CPU does not.
OWN = [name for name, case in ALL.items() if case.own and case.args.get("do_sample")]


def pytest_generate_tests(metafunc):
    device = metafunc.config.getoption("--device")
    names = [name for name in (ALL if device else TRIED) if name not in OWN]
    if "gpu" in metafunc.fixturenames:
        metafunc.parametrize("name", names)


@pytest.fixture(scope="module")
def gpu(request):
    return RealGpu(request.config.getoption("--device") or "cpu")


def test_the_text_is_the_cpu_s_or_a_near_tie_and_steps_wait_once(name, gpu):
    case = ALL[name]
    found = measure_real(case, gpu)
    ours, text, expected = found["ours"], found["text"], found["expected"]
    assert isinstance(text, list), text
    searched = case.args.get("do_sample") or "num_beams" in case.args
    assert text == expected or (not searched and is_near_tie(case, text, expected))
    assert ours["steps"] > 1
    if gpu.device.type != "cpu":  # where nothing waits
        assert ours["step"] <= max(case.waits, found["plain"]["step"]), ours["places"]


@pytest.mark.parametrize("name", ["greedy", "batch", "encoder-decoder"])
def test_only_tokens_with_almost_equal_scores_are_a_near_tie(name, monkeypatch):
    case = CASES[name]
    expected = text_of(case, None)
    text = [row[:-5] + [(token + 1) % 61 for token in row[-5:]] for row in expected]
    assert not is_near_tie(case, text, expected)
    monkeypatch.setattr(cases, "NEAR", float("inf"))
    assert is_near_tie(case, text, expected)
