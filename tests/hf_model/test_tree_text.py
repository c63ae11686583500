"""Trees in the loop: the same text as plain generate, down to the cache, or a reason for chains."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from doubles import ScriptedDrafter, bushy, oracle
from families import ENCODER_DECODER, FAMILIES, VARIED, VOCAB, build

from ngramspec import Draft, Speculator
from ngramspec.hf_model.compat.caches import cache_argument, cache_of
from ngramspec.hf_model.compat.names import MARKS_CACHES, has
from ngramspec.hf_model.target import Target

IDS = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])


def run(model, ids, speculator, **kwargs):
    return model.generate(ids, custom_generate=speculator, max_new_tokens=60, **kwargs)


def texts_of(name, plain):
    """What a drafter has read before it drafts: an encoder's input comes before the text."""
    return (IDS[0].tolist() if name in ENCODER_DECODER else []) + plain[0].tolist()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", FAMILIES)
def test_trees_give_plain_text(name, attention):
    model = build(name)
    if attention == "eager" or model._supports_sdpa:
        model.set_attn_implementation(attention)
    varied = VARIED if name in ENCODER_DECODER else {}
    plain = model.generate(IDS, max_new_tokens=60, **varied)
    trees = bushy(texts_of(name, plain), VOCAB, seed=int(attention == "eager"))
    speculator = Speculator(trees, 17, tree=17)
    assert torch.equal(plain, run(model, IDS, speculator, **varied))
    assert speculator.stats.drafter_faults == 0 or speculator.stats.chains


def test_trees_run_where_they_can():
    causal = ("llama", "gemma", "qwen2", "qwen3", "phi3", "mixtral (experts)", "gpt2")
    for name in (*causal, "bart decoder", *ENCODER_DECODER):
        model = build(name)
        plain = model.generate(IDS, max_new_tokens=60)
        speculator = Speculator(bushy(texts_of(name, plain), VOCAB), 17, tree=17)
        run(model, IDS, speculator)
        assert not speculator.stats.chains, name
        assert speculator.stats.tokens_per_call > 1.8
        assert speculator.stats.drafted > speculator.stats.verified > speculator.stats.accepted


@pytest.mark.parametrize(
    ("settings", "rows", "branches"),
    [
        ({}, 1, True),
        ({"tree": "auto", "gamma_max": 16}, 1, True),
        ({"tree": None}, 1, False),
        ({"gamma": 8}, 1, False),
        ({"gamma": "heuristic"}, 1, False),
        ({"drafter": "copy+ngram", "policy": "priority"}, 1, False),
        ({"drafter": "ngram(sample=True)"}, 1, False),
        ({"drafter": "copy+ngram(sample=True)"}, 1, False),
        ({"drafter": "copy+ngram(order=3)"}, 1, False),
        ({}, 2, True),
        ({"tree": None}, 2, False),
    ],
)
def test_by_themselves_drafts_branch_where_a_cost_says_that_it_pays(settings, rows, branches):
    branches &= rows == 1 or has(MARKS_CACHES)  # not in lock-step
    model = tiny_llama(1, initializer_range=0.2)
    ids = IDS.repeat(rows, 4)
    plain = model.generate(ids, max_new_tokens=60)
    events = []
    speculator = Speculator(**settings, on_step=events.append)
    assert torch.equal(plain, run(model, ids, speculator))
    trees = [event for event in events if event.parents is not None]
    assert bool(trees) == branches
    assert any(event.drafted and event.parents is None for event in events)
    assert not speculator.stats.chains
    for event in trees:
        assert len(event.parents) == len(event.drafted) <= speculator.gamma_max
        path = [-1, *event.verdict.accepted]
        assert [event.parents[node] for node in path[1:]] == path[:-1]


def test_what_cannot_take_trees_by_itself_says_nothing():
    speculator = Speculator()
    run(build("gpt-neo (windows)"), IDS, speculator)
    assert speculator.stats.drafted > 0
    assert not speculator.stats.chains
    model, events = tiny_llama(1, initializer_range=0.2), []
    model.set_attn_implementation("eager")
    run(model, IDS.repeat(1, 4), Speculator(width=8, on_step=events.append))
    assert any(event.drafted for event in events)
    assert all(event.parents is None for event in events)


def test_near_the_end_branches_do_not_take_the_place_of_the_path():
    """A wrong sibling stands in front of each right token: two nodes for each token of the path."""
    model = tiny_llama()
    text = model.generate(IDS, max_new_tokens=12)[0].tolist()

    def guess(at, gamma):
        right = text[at : at + gamma // 2]
        tokens = [token for each in right for token in ((each + 1) % 97, each)]
        parents = [-1, -1, *(2 * depth + 1 for depth in range(len(right) - 1) for _ in "ab")]
        return Draft(np.array(tokens, np.int32), np.array(parents[: len(tokens)], np.int32))

    for left in range(2, 6):  # at first 8 nodes are asked for
        drafter, events = ScriptedDrafter(guess, branches=True), []
        speculator = Speculator(drafter, tree=16, on_step=events.append)
        ours = model.generate(IDS, custom_generate=speculator, max_new_tokens=left + 1)
        assert ours[0].tolist() == text[: IDS.shape[1] + left + 1]
        assert [event.width for event in events if event.index] == [1 + 2 * (left - 1)]
        ((draft, accepted, _),) = drafter.observed
        assert len(draft) == 2 * (left - 1)
        assert accepted == [*range(1, len(draft), 2)]


def test_drafts_are_chains_where_positions_are_dropped(monkeypatch):
    model = tiny_llama()
    text = model.generate(IDS, max_new_tokens=60)[0].tolist()
    prepare = model.prepare_inputs_for_generation

    def dropped(*args, **kwargs):
        return prepare(*args, **kwargs) | {"position_ids": None}

    monkeypatch.setattr(model, "prepare_inputs_for_generation", dropped)
    speculator = Speculator(bushy(text, 97), tree=17)
    assert run(model, IDS, speculator)[0].tolist() == text
    assert speculator.stats.chains == {"unknown modules that count positions": 1}
    assert run(model, IDS, Speculator(oracle(text)))[0].tolist() == text


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "gemma"])
def test_trees_on_static_caches(name, attention):
    """Accepted nodes are moved together inside the cache's tensors, up to its last position."""
    model = build(name)
    model.set_attn_implementation(attention)
    kwargs = {"cache_implementation": "static", "return_dict_in_generate": True}
    left = torch.cat((torch.zeros_like(IDS[:, :3]), IDS), dim=1)
    for ids in (IDS, left):
        mask = (ids != 0).long()
        plain = model.generate(ids, attention_mask=mask, max_new_tokens=60, **kwargs)
        n = int(cache_of(plain).get_seq_length())
        text = plain.sequences[0, ids.shape[1] - 10 :].tolist()  # padding is not drafted from
        for seed in range(2):
            speculator = Speculator(bushy(text, VOCAB, seed), 17, tree=17)
            ours = run(model, ids, speculator, attention_mask=mask, **kwargs)
            assert torch.equal(plain.sequences, ours.sequences)
            assert not speculator.stats.chains
            assert speculator.stats.accepted > 15
            assert int(cache_of(ours).get_seq_length()) == n
            layers = zip(cache_of(ours).layers, cache_of(plain).layers, strict=True)
            for mine, its in layers:
                torch.testing.assert_close(
                    mine.keys[:, :, :n], its.keys[:, :, :n], rtol=1e-3, atol=1e-4
                )


def test_a_tree_without_branches_runs_as_a_chain(monkeypatch):
    model = tiny_llama()
    text = model.generate(IDS, max_new_tokens=60)[0].tolist()
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
    assert run(model, IDS, speculator)[0].tolist() == text
    branched = [parents for _, parents in seen if parents is not None]
    assert branched
    assert all(parents[-1] == -1 and len(parents) > 1 for parents in branched)
    assert len(branched) < len([nodes for nodes, _ in seen if nodes])
    trees = [draft.parents is not None for draft, _, _ in drafter.observed]
    assert trees.count(True) == len(branched)  # the others are observed as chains
    assert speculator.stats.drafter_faults == 0


def test_after_a_tree_the_cache_is_as_if_the_rejected_tokens_had_never_been_there():
    model = tiny_llama()
    plain = model.generate(IDS, max_new_tokens=60, return_dict_in_generate=True)
    speculator = Speculator(bushy(plain.sequences[0].tolist(), 97), tree=17)
    ours = run(model, IDS, speculator, return_dict_in_generate=True)
    assert torch.equal(plain.sequences, ours.sequences)
    assert speculator.stats.accepted > 15
    theirs = cache_of(plain)
    for mine, layer in zip(cache_of(ours).layers, theirs.layers, strict=True):
        assert mine.keys.shape == layer.keys.shape
        torch.testing.assert_close(mine.keys, layer.keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine.values, layer.values, rtol=1e-4, atol=1e-4)


def test_a_kept_cache_and_a_padded_prompt():
    model = tiny_llama()
    padded = torch.cat((torch.zeros((1, 3), dtype=torch.int64), IDS), 1)
    mask = (torch.arange(13) >= 3).long()[None]
    plain = model.generate(padded, attention_mask=mask, max_new_tokens=60)
    speculator = Speculator(bushy(plain[0].tolist(), 97), tree=12)
    assert torch.equal(plain, run(model, padded, speculator, attention_mask=mask))
    first = run(model, IDS, speculator, return_dict_in_generate=True)
    more = torch.cat((first.sequences, IDS), 1)
    plain = model.generate(more, max_new_tokens=60)
    again = run(model, more, speculator, **cache_argument(cache_of(first)))
    assert torch.equal(plain, again)


OBSTACLES = [
    ("llama", {"output_scores": True, "return_dict_in_generate": True}, 2, "advance together"),
    ("gpt-neo (windows)", {}, 1, "slots"),
    ("bloom (alibi)", {}, 1, "count positions"),
]


@pytest.mark.parametrize(("name", "kwargs", "rows", "reason"), OBSTACLES)
def test_what_cannot_take_trees_has_chains_and_says_why(name, kwargs, rows, reason):
    model = build(name)
    speculator = Speculator("copy+ngram", tree=8)
    ids = IDS.expand(rows, -1)
    plain = model.generate(ids, max_new_tokens=40, **kwargs)
    ours = model.generate(ids, max_new_tokens=40, custom_generate=speculator, **kwargs)
    if kwargs:
        plain, ours = plain.sequences, ours.sequences
    assert torch.equal(plain, ours)
    assert [reason in why for why in speculator.stats.chains] == [True]
    assert list(speculator.stats.chains.values()) == [1]


def test_alibi_that_a_model_makes_from_a_mask_per_token_has_chains():
    from transformers import FalconConfig, FalconForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2}
    config = FalconConfig(num_attention_heads=4, alibi=True, bos_token_id=1, **sizes)
    config.eos_token_id = config.pad_token_id = None
    model = FalconForCausalLM(config).eval()
    plain = model.generate(IDS, max_new_tokens=60)
    speculator = Speculator("copy+ngram", tree=8)
    assert torch.equal(plain, run(model, IDS, speculator))
    assert speculator.stats.chains == {"a model with ALiBi": 1}
