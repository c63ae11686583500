"""Counting the draft tokens that continue a reference text."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_llama
from doubles import ids

import ngramspec
from ngramspec import Speculator
from ngramspec.decoding.reference import ReferenceCounter
from ngramspec.draft import Draft
from ngramspec.stats import DecodeStats


def counted(reference, last, draft, accepted):
    stats = DecodeStats()
    ReferenceCounter(reference, stats).count(last, draft, accepted)
    return stats.reference_drafted, stats.reference_accepted


CHAIN = ids(3, 4, 9, 5)
#  1 2 +- 3 +- 4 - 5
#      |    +- 7 - 5
#      +- 8 - 3
TREE = Draft(ids(3, 8, 4, 7, 3, 5, 5), ids(-1, -1, 0, 0, 1, 2, 3))


@pytest.mark.parametrize(
    ("reference", "last", "draft", "accepted", "counts"),
    [
        (ids(1, 2, 3, 4, 5), ids(1, 2), Draft(CHAIN), [0], (2, 1)),  # 3 after 1 2, 4 after 2 3
        (ids(1, 2, 3, 4, 5), ids(2, 1), Draft(CHAIN[:2]), [0, 1], (0, 0)),
        (ids(1, 2, 3, 4, 5), ids(3, 4), Draft(ids(5, 1)), [0, 1], (1, 1)),
        (ids(1, 2, 3, 4, 5), ids(1, 2), TREE, [0, 2], (3, 2)),
        (ids(1, 2, 3, 4, 5), ids(1, 2), TREE, [1, 4], (3, 0)),
        *((ids(*range(1, n)), ids(1, 2), Draft(ids(3)), [0], (0, 0)) for n in (1, 2, 3)),
        (ids(1, 2, 3), ids(2), Draft(ids(3)), [0], (0, 0)),
        (ids(1, 2, 3), ids(1, 2), Draft(ids()), [], (0, 0)),
    ],
)
def test_drafted_and_accepted_tokens_that_continue_it(reference, last, draft, accepted, counts):
    assert counted(reference, last, draft, accepted) == counts


def test_generate_counts_prefills_and_steps():
    model = tiny_llama()
    prompt = torch.tensor([[5, 6, 7]])
    whole = model.generate(prompt, max_new_tokens=40, do_sample=False)
    speculator = Speculator()
    given = {"max_new_tokens": 40, "do_sample": False, "speculator": speculator}
    found = ngramspec.generate(model, prompt, reference_ids=whole[0].tolist(), **given)
    assert found.tolist() == whole.tolist()
    stats = speculator.stats
    assert 20 < stats.reference_accepted <= stats.accepted + stats.prefill_accepted
    assert stats.reference_accepted <= stats.reference_drafted
    plain = Speculator()
    ngramspec.generate(model, prompt, speculator=plain, max_new_tokens=40, do_sample=False)
    assert plain.stats.reference_drafted == 0
