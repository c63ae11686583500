"""What is read off the machine: seconds of forwards, and memory."""

from __future__ import annotations

import gc

import pytest
import torch
from conftest import tiny_llama
from forced_text import VOCAB

from ngramspec.hf_model.compat.caches import cache_of
from ngramspec.measure.forwards import forward_seconds
from ngramspec.measure.machine import PeakMemory, machine


@pytest.fixture(scope="module")
def model():
    return tiny_llama(vocab=VOCAB)


def test_forwards_are_timed_behind_their_context(model, monkeypatch):
    """On a clock that only forwards move, by a second for each position."""
    lengths = []
    clock = [0.0]
    plain = type(model).forward

    def noted(self, *args, **kwargs):
        width = kwargs["input_ids"].shape[1]
        lengths.append((width, cache_of(kwargs).get_seq_length()))
        clock[0] += width
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", noted)
    monkeypatch.setattr("ngramspec.measure.forwards.perf_counter", lambda: clock[0])
    assert forward_seconds(model, 50, [3, 1, 3], repeats=2) == {1: 1.0, 3: 3.0}
    assert lengths == [(50, 0)] + [(1, 50), (3, 50)] * 3


def test_memory_is_the_peak_since_it_was_reset():
    memory = PeakMemory(torch.device("cpu"))
    gc.collect()  # or what tests before left might be freed in between
    memory.reset()
    before = memory.read()
    if before is None:
        pytest.skip("the system cannot set the high-water mark back")
    torch.ones(256 << 20, dtype=torch.uint8)
    assert 150e6 < memory.read() - before < 350e6
    memory.reset()
    assert memory.read() < before + 30e6
    installed = machine()["packages"]["torch"]  # without the build, such as +cu130, in some wheels
    assert torch.__version__.startswith(installed)
