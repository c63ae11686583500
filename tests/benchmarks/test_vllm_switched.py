"""vLLM's benchmark: which prompts a repeat measures."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.engines.vllm_switched import GROUPS, LEAST, choose
from ngramspec.measure.traces import Trace


def traces(each):
    tokens = np.arange(4, dtype=np.int32)
    groups = GROUPS["mixed"]
    return [Trace(group, f"{group} {at}", tokens, tokens) for group in groups for at in range(each)]


def test_no_prompt_is_measured_twice_in_a_repeat():
    chosen = choose(traces(12), [1, 8], seed=0)
    assert [(kind, at_once, len(found)) for kind, at_once, found in chosen] == [
        (kind, at_once, max(LEAST, at_once)) for kind in GROUPS for at_once in (1, 8)
    ]
    names = [trace.id for _, _, found in chosen for trace in found]
    assert len(set(names)) == len(names)
    assert all(trace.group in GROUPS[kind] for kind, _, found in chosen for trace in found)
    assert choose(traces(12), [1, 8], seed=1)[0][2][0].id != chosen[0][2][0].id


def test_too_few_prompts_are_an_error():
    with pytest.raises(SystemExit, match="copies: 8 more prompts are needed, 6 are left"):
        choose(traces(2), [8], seed=0)
