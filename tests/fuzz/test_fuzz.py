"""Thirty seeds of the fuzzer, and the cases that failed once."""

from __future__ import annotations

import pytest

from fuzz.kept import KEPT, TEXTS
from fuzz.options import draw
from fuzz.run import run
from ngramspec.hf_model.compat.package import before

SEEDS = range(30)


@pytest.mark.every(4)
@pytest.mark.parametrize("tens", range(0, len(SEEDS), 10))
def test_seeds_are_as_plain(tens):
    outcomes = set()
    for seed in SEEDS[tens : tens + 10]:
        case = draw(seed)
        result = run(case)
        assert result.outcome != "finding", f"seed {seed}: {result.kind}: {result.detail}\n{case}"
        outcomes.add(result.outcome)
    assert "identical" in outcomes


@pytest.mark.parametrize("name", KEPT)
def test_kept_cases_are_as_plain(name):
    result = run(KEPT[name])
    if result.outcome == "not run":
        pytest.skip(result.detail)
    if name == "hidden states after the cache is dropped" and before("5.23"):
        pytest.skip("plain decoding then reads only the last token, with a wrong mask")
    assert result.outcome != "finding", f"{result.kind}: {result.detail}"


@pytest.mark.parametrize("name", TEXTS)
def test_drafts_are_accepted_and_the_text_is_the_baselines(name):
    result = run(TEXTS[name])
    assert result.outcome == "identical" or before("5.24"), result
    assert result.accepted > 0 or before("5.24")
    assert not result.chains or "tree" not in TEXTS[name].settings


def test_a_seed_is_the_same_case_everywhere():
    assert repr(draw(11)) == repr(draw(11))
    assert len({repr(draw(seed)) for seed in range(50)}) == 50
