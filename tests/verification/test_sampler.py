"""The target's tokens, by the sampler."""

from __future__ import annotations

import pytest
import torch
from any_model import tiny_chat
from transformers import StopStringCriteria

from ngramspec.decoding.batch import LockstepBatch
from ngramspec.verification.sampler import StopRules, TokenSampler


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_greedy_tokens_on_a_cpu_are_those_of_generate(dtype):
    """The argmax is torch's of a float32 copy: the first of equals, and NaN before all."""
    sampler = TokenSampler(None, StopRules(()), None, None, None)
    prompt = torch.zeros(2, 1, dtype=torch.int64)
    batch = LockstepBatch([], sampler, None, None, prompt=prompt)
    torch.manual_seed(0)
    logits = torch.randn(2, 40, 1000, dtype=dtype)[:, ::2]  # rows that do not touch
    logits[0, 0] = 1.0
    logits[0, 1, 7:] = float("-inf")
    logits[0, 2, [50, 20, 30]] = float("inf")
    logits[0, 3, [600, 400]] = float("nan")
    logits[1] = logits[1].round()  # ties everywhere
    expected = logits.to(torch.float32).argmax(dim=-1)
    assert expected[0, [0, 2, 3]].tolist() == [0, 20, 400]
    for each in (logits, logits.requires_grad_()):
        assert not sampler.fetches_at_once
        for batch.position in range(20):
            assert batch.next_tokens(each, None) == expected[:, batch.position].tolist()
        assert each.argmax(-1).tolist() == expected.tolist()  # as at once, on a device


def test_stop_strings_read_the_tokens_on_the_host():
    """Stop strings read tokens on the host; custom criteria read those on the device."""
    stop = StopRules([StopStringCriteria(tiny_chat()[1], ["ab"])])
    a, b = ord("a") - 31, ord("b") - 31
    ids = torch.tensor([[a, b], [b, a]])

    def answers(criteria=()):
        stop.custom = list(criteria)
        return stop(ids[:, -1].tolist(), 2, lambda: ids.to("meta"), lambda: ids, None)

    assert answers() == [True, False]
    devices = []
    assert answers([lambda ids, scores: devices.append(ids.device.type) or False]) == [True, False]
    assert devices == ["meta"]
