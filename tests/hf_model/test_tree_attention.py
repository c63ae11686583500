"""Token trees: masks, positions, every outcome of a small tree, and drafts that are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from doubles import bushy
from plain_text import PROMPT as IDS

from ngramspec import Draft, Proposal, Speculator
from ngramspec.draft import verified_nodes
from ngramspec.drafters.base import check_draft
from ngramspec.hf_model.attention import added
from ngramspec.hf_model.masks import ancestry, tree_mask, tree_positions

# The tree of Stratos's note, section 2.1: context (a, b), drafts c e, c f, d g, d h, depth first.
A, B, C, E, F, D, G, H = 11, 12, 13, 14, 15, 16, 17, 18
STRATOS = Draft(np.array([C, E, F, D, G, H], np.int32), np.array([-1, 0, 0, -1, 3, 3], np.int32))


def test_mask_and_positions_of_stratos_tree():
    sees, depths = ancestry(STRATOS.parents)
    assert depths.tolist() == [0, 1, 2, 2, 1, 2, 2]
    positions = tree_positions(torch.tensor([[7]]), [STRATOS.parents], [1 + len(STRATOS)])
    assert positions.tolist() == [[7, 8, 9, 9, 8, 9, 9]]
    # columns:             b  c  e  f  d  g  h
    assert sees.astype(int).tolist() == [
        [1, 0, 0, 0, 0, 0, 0],  # b
        [1, 1, 0, 0, 0, 0, 0],  # c
        [1, 1, 1, 0, 0, 0, 0],  # e
        [1, 1, 0, 1, 0, 0, 0],  # f
        [1, 0, 0, 0, 1, 0, 0],  # d
        [1, 0, 0, 0, 1, 1, 0],  # g
        [1, 0, 0, 0, 1, 0, 1],  # h
    ]
    past = torch.tensor([[0, 1, 1]])  # a left-padded prompt; the last column is of b itself
    mask = tree_mask([STRATOS.parents], 7, past, 2, torch.device("cpu"))
    assert mask.shape == (1, 1, 7, 9)
    assert mask[0, 0, :, :2].tolist() == [[False, True]] * 7
    assert mask[0, 0, :, 2:].tolist() == sees.tolist()
    as_added = added(mask, torch.bfloat16)
    assert as_added.dtype == torch.bfloat16
    assert torch.equal(as_added == 0, mask)


# What the target says after b, then after c or d, and so on: what becomes of the draft.
OUTCOMES = [
    ([C, E, 40], [0, 1], 2, [C, E, 40]),
    ([C, F, 40], [0, 2], 3, [C, F, 40]),
    ([C, 41], [0], 3, [C, 41]),
    ([D, G, 40], [3, 4], 3, [D, G, 40]),
    ([D, H, 40], [3, 5], 4, [D, H, 40]),
    ([D, 41], [3], 4, [D, 41]),
    ([42], [], 2, [42]),
]


@pytest.mark.parametrize(("says", "accepted", "verified", "emitted"), OUTCOMES)
def test_every_greedy_outcome_of_stratos_tree(says, accepted, verified, emitted):
    from ngramspec.decoding.group import LockstepGroup
    from ngramspec.decoding.row import Row
    from ngramspec.decoding.step import verify
    from ngramspec.verification.rule import Rule
    from ngramspec.verification.sampler import StopRules, TokenSampler

    for seed in (None, 0):  # greedy, and sampled from a distribution that is sure of itself
        rule = None if seed is None else Rule(do_sample=True)
        choosing = TokenSampler(None, StopRules(()), rule, None, None)
        logits = torch.full((1, 7, 50), float("-inf"))
        logits[:, :, 49] = 0.0  # after what is not on the path
        at = 0
        for depth, token in enumerate(says):
            logits[0, at] = float("-inf")
            logits[0, at, token] = 1.0
            at = accepted[depth] + 1 if depth < len(accepted) else -1
        row = Row(None)
        row.take(STRATOS)
        group = LockstepGroup([row], choosing, None, None, prompt=torch.tensor([[A, B]]))
        verify(group, logits, None)
        verdict = row.verdict
        assert list(verdict.accepted) == accepted
        assert verdict.verified == verified
        assert list(verdict.emitted) == emitted
        assert row.kept == [0, *(node + 1 for node in accepted)]
        judged = list(verified_nodes(STRATOS, accepted, verified))
        assert len(judged) == verified
        assert judged == list(verified_nodes(STRATOS, accepted, len(STRATOS)))


def test_a_recovered_token_stands_in_place_of_the_first_sibling():
    model = tiny_llama()
    text = model.generate(IDS, max_new_tokens=60)[0].tolist()
    events = []
    drafter = bushy(text, 97, right=0.6)
    speculator = Speculator(drafter, 12, tree=12, on_step=events.append)
    model.generate(IDS, custom_generate=speculator, max_new_tokens=60)
    kinds = set()
    for event in events:
        verdict = event.verdict
        last = verdict.accepted[-1] if verdict.accepted else -1
        parents = event.parents or range(-1, len(event.drafted) - 1)
        children = [at for at, parent in enumerate(parents) if parent == last]
        ended = len(verdict.emitted) == len(verdict.accepted)
        expected = None if ended or not children else children[0]
        assert verdict.rejected == expected
        assert verdict.corrected == (None if expected is None else verdict.emitted[-1])
        judged_beside = verdict.verified > len(verdict.accepted)
        kinds.add((expected is None, judged_beside))
    assert {(True, True), (False, True)} <= kinds  # a bonus token after a rejected sibling, too


def tree_of(tokens, parents, **more):
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32), **more)


def proposal_of(*nodes):
    """From (ids, probs) of each node."""
    starts = np.cumsum([0, *(len(ids) for ids, _ in nodes)]).astype(np.int32)
    ids = np.array([token for ids, _ in nodes for token in ids], np.int32)
    probs = np.array([prob for _, probs in nodes for prob in probs], np.float32)
    return Proposal(starts, ids, probs)


BAD = [
    (tree_of([1, 2], [-1]), "parents must have 2 entries, got 1"),
    (tree_of([1, 2], [-1, 1]), r"parents\[1\] must lie in -1..0, got 1"),
    (tree_of([1, 2], [-2, 0]), r"parents\[0\] must lie in -1..-1, got -2"),
    (tree_of([4, 3, 4], [-1, 0, -1]), "different tokens, got 4 twice"),
    (tree_of([1, 2], [-1, -1], proposal=proposal_of(([1], [1.0]))), "starts must have 3 entries"),
    (tree_of([1], [-1], source=np.array([2], np.int8)), r"source must lie in 0\.\.1, got 2"),
    (tree_of([1], [-1], source=np.array([-1], np.int8)), r"source must lie in 0\.\.1, got -1"),
    (tree_of([1], [-1], confidence=np.ones(2, np.float32)), "confidence must have 1 entries"),
]


@pytest.mark.parametrize(("draft", "message"), BAD)
def test_trees_and_proposals_that_cannot_be_verified_are_named(draft, message):
    with pytest.raises(ValueError, match=message):
        check_draft(draft, 10, 97, tree=True, sources=2)


def test_the_head_of_a_tree_is_a_tree():
    share = np.full(6, 1 / 6, np.float32)
    proposal = proposal_of(*((STRATOS.tokens, share) for _ in STRATOS.tokens))
    draft = Draft(STRATOS.tokens, STRATOS.parents, None, proposal)
    for n in range(7):
        head = check_draft(draft.first(n), 6, 97, tree=True)
        assert len(head) == n
        assert head.children()[0] == [node for node in (0, 3) if node < n]
