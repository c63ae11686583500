"""When a call ends, for whatever reason, its cache is freed without a garbage collection."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from caches_made import made_caches
from conftest import tiny_llama
from doubles import Failing, InterruptedStreamer, ids
from plain_text import PROMPT as IDS

import ngramspec
from ngramspec import Speculator, UnsupportedError
from ngramspec.draft import Draft
from ngramspec.stats import DecodeStats, ReferenceCounter
from ngramspec.stepwise import JointSteps, open_generation

GREEDY = {"max_new_tokens": 12, "do_sample": False}


def ours(model, ids=IDS, **kwargs):
    ngramspec.generate(model, ids, **GREEDY | kwargs)


def closed_early(model):
    with open_generation(model, IDS, **GREEDY) as run:
        run.step()
        run.step()


# Calls that the fuzzer, which looks for cycles after each of its own, does not make.
CALLS = {
    "stepwise, closed early": closed_early,
    "assistant": lambda model: ours(model, assistant_model=tiny_llama(seed=1)),
    "interrupted": lambda model: ours(model, streamer=InterruptedStreamer(4)),
    "refused": lambda model: ours(model, num_beams=2, streamer=InterruptedStreamer(99)),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_cache_of_a_call_outlives_it(name, tiny):
    call = CALLS[name]
    with made_caches() as caches, suppress(KeyboardInterrupt, UnsupportedError):
        call(tiny)
    assert caches.made
    assert not caches.alive


def test_a_generation_that_fails_in_a_joint_step_frees_its_cache(tiny):
    with made_caches() as caches:
        steps = JointSteps(tiny)
        before = caches.alive
        runs = [
            open_generation(tiny, IDS, **GREEDY, stopping_criteria=criteria)
            for criteria in ([], [Failing(ValueError)])
        ]
        for run in runs:
            run.step()
        failed = 0
        while not all(run.finished for run in runs):
            added = steps.step([run for run in runs if not run.finished])
            failed += sum(isinstance(each, ValueError) for each in added)
            for each in added:
                if isinstance(each, Exception):
                    each.__traceback__ = None  # as the server does once it has logged it
            del added, each
        for run in runs:
            run.close()
        del runs, run
        assert failed == 1
        assert caches.made > before
        assert caches.alive == before


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
