"""The sections of the loop, as an observer sees them."""

from __future__ import annotations

import copy
import pickle
from contextlib import contextmanager

import pytest
from doubles import InterruptedStreamer, oracle
from plain_text import PROMPT

import ngramspec
from ngramspec import Speculator
from ngramspec.decoding.observer import (
    DRAFTING,
    INPUT_PREPARATION,
    PREFILL,
    ROLLBACK,
    STEP,
    STREAMING,
    VERIFICATION,
    Observer,
)

GREEDY = {"max_new_tokens": 12, "do_sample": False}


class Seen(Observer):
    """Notes every section with those around it, and whether it has ended."""

    def __init__(self):
        self.open, self.sections = [], []

    @contextmanager
    def section(self, name):
        self.open.append(name)
        self.sections.append(tuple(self.open))
        try:
            yield
        finally:
            self.open.pop()


def observed(model):
    seen = Seen()
    text = model.generate(PROMPT, **GREEDY)[0].tolist()
    speculator = Speculator(oracle(text), 5)
    speculator.observer = seen
    return seen, text, speculator


def test_every_step_has_its_sections_in_order(tiny):
    seen, text, speculator = observed(tiny)
    streamer = InterruptedStreamer(100)
    out = ngramspec.generate(tiny, PROMPT, speculator=speculator, streamer=streamer, **GREEDY)
    assert out[0].tolist() == text
    names = [sections for sections in seen.sections if sections[0] == STEP]
    step = [
        (STEP,),
        (STEP, DRAFTING),
        (STEP, INPUT_PREPARATION),
        (STEP, VERIFICATION),
        *[(STEP, VERIFICATION, STREAMING)] * 6,
        (STEP, ROLLBACK),
        (STEP, DRAFTING),
    ]
    assert names[: len(step)] == step
    assert names.count((STEP,)) == speculator.stats.target_calls == 2
    assert (PREFILL, VERIFICATION, STREAMING) in seen.sections
    assert seen.open == []


@pytest.mark.parametrize("put", [2, 5])
def test_sections_end_where_a_call_is_interrupted(tiny, put):
    seen, _, speculator = observed(tiny)
    with pytest.raises(KeyboardInterrupt):
        ngramspec.generate(
            tiny, PROMPT, speculator=speculator, streamer=InterruptedStreamer(put), **GREEDY
        )
    assert seen.open == []
    assert seen.sections[-1] == (ROLLBACK,)  # the cache is left as plain decoding would


def test_copies_have_no_observer():
    speculator = Speculator("copy")
    speculator.observer = Seen()
    for other in (copy.copy(speculator), pickle.loads(pickle.dumps(speculator))):
        assert other.observer is None
