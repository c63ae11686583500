"""Branches of beams: top-k candidates that the last forward knows; they change no text."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from beams import BeamOracle, Watching, assert_same
from doubles import draft_of
from families import ENCODER_DECODER, build
from transformers import DynamicCache

import ngramspec
from ngramspec import Speculator
from ngramspec.decoding.beams.branches import (
    BranchGain,
    look_ahead,
    of_chain,
    with_branches,
)
from ngramspec.draft import EMPTY_DRAFT, Draft, Verdict
from ngramspec.hf_model.compat.caches import cache_argument, cache_of
from ngramspec.verification.sampler import DraftCursor

PAIR = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6], [0, 0, 0, 9, 8, 5, 6, 9, 8, 5]])
SETTINGS = [
    {"num_beams": 3},
    {"num_beams": 4, "eos_token_id": [3, 4, 5], "length_penalty": 2.0, "num_return_sequences": 2},
    {"num_beams": 4, "cache_implementation": "static"},
    {"num_beams": 2, "no_repeat_ngram_size": 3, "repetition_penalty": 1.3},
]


def both(model, settings, *, rows=1, drafter=None, tree=12, gamma=4):
    """What plain and our beam search return, and the statistics."""
    ids, oracle = PAIR[:rows], BeamOracle(right=0.9)
    kwargs = {"max_new_tokens": 24, "do_sample": False, "return_dict_in_generate": True}
    kwargs |= {"attention_mask": (ids != 0).long(), "output_scores": True, "output_logits": True}
    plain = model.generate(ids, **kwargs | settings, logits_processor=[oracle.watch])
    speculator = Speculator(drafter or oracle, gamma=gamma, tree=tree)
    ours = ngramspec.generate(model, ids, **kwargs | settings, speculator=speculator)
    assert speculator.stats.drafter_faults == 0
    return plain, ours, speculator.stats


@pytest.mark.parametrize("which", range(len(SETTINGS)))
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("family", ["llama", "gpt2", "bart", "t5"])
def test_beams_with_branches_are_those_of_plain_generate(family, rows, which):
    plain, ours, stats = both(build(family), SETTINGS[which], rows=rows, drafter="auto")
    assert_same(plain, ours)
    assert not stats.chains
    if family not in ENCODER_DECODER:  # their drafts may be wrong at the first token of every beam
        assert stats.sources["top_k"].drafted > 0


@pytest.mark.slow
@pytest.mark.parametrize("drafter", [None, "auto", "copy+ngram+recycle"])
@pytest.mark.parametrize("tree", [1, 2, 32])
@pytest.mark.parametrize("family", ["qwen3", "phi3", "gpt-neox", "mixtral (experts)", "opt"])
def test_branches_of_other_families(family, tree, drafter):
    for rows in (1, 2):
        kwargs = {"drafter": drafter, "tree": tree, "gamma": min(tree, 4)}
        plain, ours, _ = both(build(family), SETTINGS[0], rows=rows, **kwargs)
        assert_same(plain, ours)


def test_branches_make_fewer_forwards():
    model, settings = build("gpt2"), {"num_beams": 3, "max_new_tokens": 48}
    calls = []
    for tree in (None, 12):
        _, _, stats = both(model, settings, drafter="auto", tree=tree)
        calls.append(stats.target_calls)
    assert calls[1] < 0.95 * calls[0]
    assert stats.sources["top_k"].accepted > 0


@pytest.mark.parametrize("rows", [1, 2])
def test_the_returned_cache_is_that_of_plain_beam_search(rows):
    plain, ours, stats = both(build("gpt2"), SETTINGS[0], rows=rows, drafter="auto")
    assert stats.sources["top_k"].accepted > 0
    mine, theirs = (cache_of(each) for each in (ours, plain))
    assert mine.get_seq_length() == theirs.get_seq_length()
    for first, second in zip(mine.layers, theirs.layers, strict=True):
        torch.testing.assert_close(first.keys, second.keys, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(first.values, second.values, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("end", range(14, 30, 3))
def test_a_criterion_that_fails_leaves_the_cache_where_plain_beam_search_does(end):
    model, caches = build("gpt2"), []
    for speculator in (None, Speculator("auto", gamma=4, tree=12)):
        cache = DynamicCache(config=model.config)
        kwargs = {"num_beams": 3, "max_new_tokens": 30, "do_sample": False}
        kwargs |= {**cache_argument(cache), "stopping_criteria": [Watching(fail_at=end)]}
        kwargs["custom_generate"] = speculator
        with pytest.raises(RuntimeError, match=f"fails at {end}"):
            model.generate(PAIR[:1], **kwargs)
        caches.append(cache)
    assert caches[0].get_seq_length() == caches[1].get_seq_length()
    for first, second in zip(caches[0].layers, caches[1].layers, strict=True):
        torch.testing.assert_close(first.keys, second.keys, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("family", "branches"), [("bloom (alibi)", 0), ("mistral sliding", 1)])
def test_where_branches_cannot_be_the_statistics_say_why(family, branches):
    speculator = Speculator(gamma=4, tree=8)
    kwargs = {"num_beams": 2, "max_new_tokens": 30, "do_sample": False}
    model = build(family)
    ours = ngramspec.generate(model, PAIR[:1], **kwargs, speculator=speculator)
    assert torch.equal(ours, model.generate(PAIR[:1], **kwargs))
    assert bool(speculator.stats.chains) != branches
    assert ("top_k" in speculator.stats.sources) == branches


def test_top_tokens_beside_a_chain():
    known = {(): [5, 8], (5,): [7, 6], (8,): [9, 4], (5, 7): [1, 2]}
    tree = with_branches(draft_of([5, 6, 7]), known, 7, 3, branch_source=2)
    assert tree.tokens.tolist() == [5, 6, 7, 8, 7, 9, 4]  # then there is no room
    assert tree.parents.tolist() == [-1, 0, 1, -1, 0, 3, 3]
    assert tree.source.tolist() == [0, 0, 0, 2, 2, 2, 2]
    assert with_branches(draft_of([5, 6, 7]), known, 7, 1, branch_source=2).tokens.tolist() == [
        5,
        8,
    ]
    assert with_branches(draft_of([5, 6, 7]), {}, 6, 3, branch_source=2).parents is None
    assert len(with_branches(draft_of([5, 6, 7]), known, 0, 3, branch_source=2)) == 0


def test_unused_logits_are_those_behind_the_beams():
    tree = Draft(np.array([5, 6, 7], np.int32), np.array([-1, 0, 0], np.int32))
    logits = torch.zeros(2, 4, 10)
    logits[0, 1, [3, 4]] = torch.tensor([2.0, 1.0])  # behind 5
    logits[0, 3, [8, 2]] = torch.tensor([2.0, 1.0])  # behind 5 7
    cursors = [DraftCursor(tree), DraftCursor(EMPTY_DRAFT)]
    known = look_ahead([(0, 1), (1, None)], cursors, logits)
    assert [*known[0]] == [(), (6,), (7,)]
    assert known[0][()] == [3, 4]
    assert known[0][7,] == [8, 2]
    assert known[1] == {}


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Verdict([0, 1, 2], 3, (5, 6, 7, 1)), Verdict([0, 1, 2], 3, (5, 6, 7, 1))),
        (Verdict([0, 3], 3, (5, 8, 1), 5), Verdict([0], 2, (5, 8, 1), 1)),
        (Verdict([], 2, (1,), 0), Verdict([], 1, (1,), 0)),
        (Verdict([0], 1, (5,)), Verdict([0], 1, (5,))),
    ],
    ids=["whole", "left", "rejected", "not gone on"],
)
def test_a_drafter_hears_of_its_own_nodes(verdict, expected):
    found = of_chain(verdict, 3)
    assert (list(found.accepted), found.verified, found.emitted, found.rejected) == (
        expected.accepted,
        expected.verified,
        expected.emitted,
        expected.rejected,
    )


def test_branches_that_do_not_pay_are_tried_now_and_then():
    gain = BranchGain()
    assert gain.pays()
    for _ in range(10):
        gain.count(1, 1.5)
    tried = [gain.pays() for _ in range(64)]
    assert sum(tried) == 4
    for _ in range(10):
        gain.count(2, 1.2)
    assert gain.pays()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_branches_by_cost(family):
    settings = SETTINGS[0] | {"max_new_tokens": 64}  # some steps are plain ones, to be timed
    plain, ours, stats = both(build(family), settings, gamma="auto")
    assert_same(plain, ours)
    assert stats.drafted > 0
