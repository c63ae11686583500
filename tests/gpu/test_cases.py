"""Every path of the decode loop on a pretended GPU."""

from __future__ import annotations

import pytest
from gpu.cases import CASES, measure


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_the_cpu_s_and_the_host_waits_as_seldom_as_it_may(name):
    case = CASES[name]
    found = measure(case)
    wrong = {
        "text": found["text"] != found["expected"],
        "step": found["ours"]["step"] > case.waits,
    }
    assert {each for each, is_so in wrong.items() if is_so} == set(case.known), found
