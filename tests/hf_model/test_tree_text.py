"""Trees in the loop, also over equal index scores: plain generate's text, down to the cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from doubles import ScriptedDrafter, half_right
from families import build
from layer_states import GREEDY, PROMPT, model_of

import ngramspec
from benchmarks import tiny
from ngramspec import Draft, Speculator
from ngramspec.hf_model.compat import kernels
from ngramspec.hf_model.compat.kernels import causal_topk
from ngramspec.hf_model.compat.package import MARKS_CACHES, has
from ngramspec.hf_model.target import Target


def run(model, ids, speculator, **kwargs):
    return model.generate(ids, custom_generate=speculator, max_new_tokens=60, **kwargs)


@pytest.mark.every(6)
@pytest.mark.parametrize(
    ("settings", "rows", "branches"),
    [
        ({}, 1, True),
        ({"tree": "auto", "gamma_max": 16}, 1, True),
        ({"tree": None}, 1, False),
        ({"gamma": 8}, 1, False),
        ({"drafter": "copy+ngram", "policy": "priority"}, 1, False),
        ({"drafter": "ngram(sample=True)"}, 1, False),
        ({"drafter": "copy+ngram(order=3)"}, 1, False),
        ({}, 2, True),
        ({"tree": None}, 2, False),
    ],
)
def test_by_themselves_drafts_branch_where_a_cost_says_that_it_pays(settings, rows, branches):
    branches &= rows == 1 or has(MARKS_CACHES)  # not in lock-step
    model = tiny_llama(1, initializer_range=0.2)
    ids = PROMPT.repeat(rows, 4)
    plain = model.generate(ids, max_new_tokens=60)
    events = []
    speculator = Speculator(**settings, on_step=events.append)
    assert torch.equal(plain, run(model, ids, speculator))
    trees = [event for event in events if event.parents is not None]
    assert bool(trees) == branches
    assert any(event.drafted and event.parents is None for event in events)
    assert not speculator.stats.limits
    for event in trees:
        assert len(event.parents) == len(event.drafted) <= speculator.gamma_max
        path = [-1, *event.verdict.accepted]
        assert [event.parents[node] for node in path[1:]] == path[:-1]


def test_what_cannot_take_trees_by_itself_says_nothing():
    speculator = Speculator()
    run(build("gpt-neo (windows)"), PROMPT, speculator)
    assert speculator.stats.drafted > 0
    assert not speculator.stats.limits
    model, events = tiny_llama(1, initializer_range=0.2), []
    model.set_attn_implementation("eager")
    run(model, PROMPT.repeat(1, 4), Speculator(width=8, on_step=events.append))
    assert any(event.drafted for event in events)
    assert all(event.parents is None for event in events)


def test_near_the_end_branches_do_not_take_the_place_of_the_path():
    """A wrong sibling stands in front of each right token: two nodes for each token of the path."""
    model = tiny_llama()
    text = model.generate(PROMPT, max_new_tokens=12)[0].tolist()

    def guess(at, gamma):
        right = text[at : at + gamma // 2]
        tokens = [token for each in right for token in ((each + 1) % 97, each)]
        parents = [-1, -1, *(2 * depth + 1 for depth in range(len(right) - 1) for _ in "ab")]
        return Draft(np.array(tokens, np.int32), np.array(parents[: len(tokens)], np.int32))

    for left in range(2, 6):  # at first 8 nodes are asked for
        drafter, events = ScriptedDrafter(guess, branches=True), []
        speculator = Speculator(drafter, tree=16, on_step=events.append)
        ours = model.generate(PROMPT, custom_generate=speculator, max_new_tokens=left + 1)
        assert ours[0].tolist() == text[: PROMPT.shape[1] + left + 1]
        assert [event.width for event in events if event.index] == [1 + 2 * (left - 1)]
        ((draft, accepted, _),) = drafter.observed
        assert len(draft) == 2 * (left - 1)
        assert accepted == [*range(1, len(draft), 2)]


def test_a_tree_without_branches_runs_as_a_chain(monkeypatch):
    model = tiny_llama()
    text = model.generate(PROMPT, max_new_tokens=60)[0].tolist()
    seen = []
    own = Target.forward

    def spied(self, forward):
        seen.append((forward.block.shape[1] - 1, forward.trees[0] if forward.trees else None))
        return own(self, forward)

    def tree_of(tokens, parents):
        return Draft(np.array(tokens, np.int32), np.array(list(parents), np.int32))

    def guess(at, gamma):
        tokens = text[at : at + min(at % 4, gamma)]  # none, too
        if at % 5 == 0 and 0 < len(tokens) < gamma:
            tokens.append((tokens[0] + 1) % 97)  # a sibling of the first
            return tree_of(tokens, [*range(-1, len(tokens) - 2), -1])
        return tree_of(tokens, range(-1, len(tokens) - 1))

    monkeypatch.setattr(Target, "forward", spied)
    drafter = ScriptedDrafter(guess, branches=True)
    speculator = Speculator(drafter, tree=17)
    assert run(model, PROMPT, speculator)[0].tolist() == text
    branched = [parents for _, parents in seen if parents is not None]
    assert branched
    assert all(parents[-1] == -1 and len(parents) > 1 for parents in branched)
    assert len(branched) < len([nodes for nodes, _ in seen if nodes])
    trees = [draft.parents is not None for draft, _, _ in drafter.observed]
    assert trees.count(True) == len(branched)  # the others are observed as chains
    assert speculator.stats.drafter_faults == 0


KEYS, POSITIONS, SELECTED = 23, 4, 8


class Indexer(torch.nn.Module):
    """Selects like a model's own."""

    def __init__(self, *, error=None):
        super().__init__()
        self.error = error

    def forward(self, scores):
        if self.error:
            raise self.error
        return scores.topk(min(SELECTED, scores.shape[-1]), dim=-1).indices


class Model(torch.nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
        self.indexer = Indexer(**kwargs)

    def forward(self, scores):
        return self.indexer(scores), scores.topk(SELECTED).indices


def wide(scores):
    """(rows, positions, keys) of a forward: what is after a position is masked."""
    ahead = torch.ones(POSITIONS, KEYS, dtype=torch.bool).triu(KEYS - POSITIONS + 1)
    return scores.masked_fill(ahead, float("-inf"))


def chosen(model, scores, *, positions=POSITIONS):
    with causal_topk(model, positions, KEYS):
        return model(scores)


@pytest.mark.parametrize("rows", [1, 2])
def test_equal_scores_are_selected_as_in_forwards_of_one_position(rows):
    model, differ = Model(), 0
    for seed in range(20):
        torch.manual_seed(seed)
        scores = torch.randint(0, 3, (rows, POSITIONS, KEYS)).float()
        found = chosen(model, wide(scores))[0]
        for at in range(POSITIONS):
            alone = model.indexer(scores[:, at : at + 1, : KEYS - POSITIONS + 1 + at])
            assert torch.equal(found[:, at : at + 1], alone)
        differ += not torch.equal(found, model.indexer(wide(scores)))
    assert differ > 0  # a forward over all of them selects otherwise


def test_other_selections_are_left_alone():
    torch.manual_seed(0)
    model, scores = Model(), wide(torch.randint(0, 3, (1, POSITIONS, KEYS)).float())
    as_it_is, outside = model(scores)
    assert torch.equal(chosen(model, scores)[1], outside)
    assert torch.equal(chosen(model, scores, positions=1)[0], as_it_is)
    few = scores[:, :, :9]
    assert torch.equal(chosen(model, few)[0], model(few)[0])


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_behind_where_an_index_fails(error):
    model, scores = Model(error=error("no index")), wide(torch.zeros(1, POSITIONS, KEYS))
    with pytest.raises(error, match="no index"):
        chosen(model, scores)
    assert kernels._thread.alone is None  # the hooks stay, and have no effect
    assert torch.overrides._get_current_function_mode_stack() == []


@pytest.mark.parametrize("name", ["DeepseekV32ForCausalLM", "Dots3NoteForCausalLM"])
@pytest.mark.parametrize("gamma", [5, "auto"])
def test_a_text_with_equal_scores_is_that_of_plain_generate(name, gamma):
    model = model_of(name)
    prompt = PROMPT.clone()
    prompt[:, 4::3] = 0  # whose embedding is zero
    mask = torch.ones_like(prompt)
    plain = model.generate(prompt, attention_mask=mask, **GREEDY)
    speculator = Speculator(half_right(plain[0].tolist(), tiny.VOCAB), gamma)
    kwargs = GREEDY | {"attention_mask": mask, "speculator": speculator}
    assert torch.equal(ngramspec.generate(model, prompt, **kwargs), plain)
    assert speculator.stats.accepted > 0
    assert kernels._indexers[model]
