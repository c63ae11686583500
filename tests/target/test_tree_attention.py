"""Token trees: masks, positions, and the same text as plain generate, down to the cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from doubles import ScriptedDrafter, bushy, oracle
from families import CAUSAL, VOCAB, build
from transformers import DynamicCache

from ngramspec import Draft, Proposal, Speculator, UnsupportedError
from ngramspec.draft import judged_nodes
from ngramspec.drafters.validation import check_draft
from ngramspec.target.model import Target
from ngramspec.target.tree_attention import ancestry, tree_mask

# The tree of Stratos's note, section 2.1: context (a, b), drafts c e, c f, d g, d h, depth first.
A, B, C, E, F, D, G, H = 11, 12, 13, 14, 15, 16, 17, 18
STRATOS = Draft(np.array([C, E, F, D, G, H], np.int32), np.array([-1, 0, 0, -1, 3, 3], np.int32))
IDS = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])


def test_mask_and_positions_of_stratos_tree():
    sees, depths = ancestry(STRATOS.parents)
    assert depths.tolist() == [0, 1, 2, 2, 1, 2, 2]
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
    like = torch.empty(0, dtype=torch.bfloat16)
    past = torch.tensor([[0, 1, 1]])  # a left-padded prompt; the last column is of b itself
    mask = tree_mask(sees, past, 2, like, eager=False)
    assert mask.shape == (1, 1, 7, 9)
    assert mask[0, 0, :, :2].tolist() == [[False, True]] * 7
    added = tree_mask(sees, past, 2, like, eager=True)
    assert added.dtype == torch.bfloat16
    assert torch.equal(added == 0, mask)


# What the target says behind b, then behind c or d, and so on: what becomes of the draft.
OUTCOMES = [
    ([C, E, 40], [0, 1], 2, [C, E, 40]),
    ([C, F, 40], [0, 2], 3, [C, F, 40]),
    ([C, 41], [0], 3, [C, 41]),
    ([D, G, 40], [3, 4], 3, [D, G, 40]),
    ([D, H, 40], [3, 5], 4, [D, H, 40]),
    ([D, 41], [3], 4, [D, 41]),
    ([42], [], 2, [42]),
]


@pytest.mark.parametrize(("says", "accepted", "tested", "emitted"), OUTCOMES)
def test_every_greedy_outcome_of_stratos_tree(says, accepted, tested, emitted):
    from ngramspec.decoding.group import Group
    from ngramspec.verification.rule import Rule
    from ngramspec.verification.sampler import Record, TokenSampler
    from ngramspec.verification.stopping import StopRules

    for seed in (None, 0):  # greedy, and sampled from a distribution that is sure of itself
        choosing = TokenSampler(None, StopRules(()), Rule(seed is not None), None, None, Record())
        group = Group((0,), torch.tensor([[A, B]]), choosing)
        logits = torch.full((1, 7, 50), float("-inf"))
        logits[:, :, 49] = 0.0  # behind what is not on the path
        at = 0
        for depth, token in enumerate(says):
            logits[0, at] = float("-inf")
            logits[0, at, token] = 1.0
            at = accepted[depth] + 1 if depth < len(accepted) else -1
        (verdict,) = group.verify([STRATOS], logits, None)
        assert list(verdict.accepted) == accepted
        assert verdict.tested == tested
        assert list(verdict.emitted) == emitted
        assert group.accepted_positions == [0, *(node + 1 for node in accepted)]
        judged = [node for node, _ in judged_nodes(STRATOS, accepted, tested)]
        assert len(judged) == tested
        assert judged == [node for node, _ in judged_nodes(STRATOS, accepted)]


def run(model, ids, speculator, **kwargs):
    return model.generate(ids, custom_generate=speculator, max_new_tokens=60, **kwargs)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", CAUSAL)
def test_trees_give_plain_text(name, attention):
    model = build(name)
    if attention == "eager" or model._supports_sdpa:
        model.set_attn_implementation(attention)
    plain = model.generate(IDS, max_new_tokens=60)
    for seed in range(2):
        speculator = Speculator(bushy(plain[0].tolist(), VOCAB, seed), 17, tree=17)
        assert torch.equal(plain, run(model, IDS, speculator))
        assert speculator.stats.drafter_faults == 0 or speculator.stats.chains


def test_trees_run_where_they_can():
    for name in ("llama", "gemma", "qwen2", "qwen3", "phi3", "mixtral (experts)", "gpt2"):
        model = build(name)
        plain = model.generate(IDS, max_new_tokens=60)
        speculator = Speculator(bushy(plain[0].tolist(), VOCAB), 17, tree=17)
        run(model, IDS, speculator)
        assert not speculator.stats.chains, name
        assert speculator.stats.tokens_per_call > 1.8
        assert speculator.stats.drafted > speculator.stats.tested > speculator.stats.accepted


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
        ({}, 2, False),
    ],
)
def test_by_themselves_drafts_branch_where_a_cost_says_that_it_pays(settings, rows, branches):
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
    run(build("mistral sliding"), IDS, speculator)
    assert speculator.stats.drafted > 0
    assert not speculator.stats.chains
    model, events = tiny_llama(1, initializer_range=0.2), []
    model.set_attn_implementation("eager")
    run(model, IDS.repeat(1, 4), Speculator(width=8, on_step=events.append))
    assert any(event.drafted for event in events)
    assert all(event.parents is None for event in events)


@pytest.mark.parametrize("tree", [17, "auto"])
def test_windows_that_only_the_masks_know(tree):
    """A cache made without the model's config keeps all; its masks still hide what is far."""
    model = build("mistral sliding")
    ids = IDS.repeat(1, 4)
    plain = model.generate(ids, past_key_values=DynamicCache(), max_new_tokens=60)
    drafter = bushy(plain[0].tolist(), VOCAB)
    drafter.estimates = drafter.branches = True
    speculator = Speculator(drafter, tree=tree)
    assert torch.equal(plain, run(model, ids, speculator, past_key_values=DynamicCache()))
    assert speculator.stats.chains == ({} if tree == "auto" else {"sliding-window attention": 1})
    model.set_attn_implementation("eager")
    with pytest.raises(UnsupportedError, match="sliding-window attention"):
        run(model, ids, Speculator(width=8), past_key_values=DynamicCache())


def test_a_model_that_drops_positions_is_refused_a_tree(monkeypatch):
    model = tiny_llama()
    text = model.generate(IDS, max_new_tokens=60)[0].tolist()
    prepare = model.prepare_inputs_for_generation

    def dropped(*args, **kwargs):
        return prepare(*args, **kwargs) | {"position_ids": None}

    monkeypatch.setattr(model, "prepare_inputs_for_generation", dropped)
    with pytest.raises(UnsupportedError, match="drops the positions"):
        run(model, IDS, Speculator(bushy(text, 97), tree=17))
    assert run(model, IDS, Speculator(oracle(text)))[0].tolist() == text


def test_a_recovered_token_stands_in_place_of_the_first_sibling():
    model = tiny_llama()
    text = model.generate(IDS, max_new_tokens=60)[0].tolist()
    events = []
    drafter = bushy(text, 97, right=0.6)
    run(model, IDS, Speculator(drafter, 12, tree=12, on_step=events.append))
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
        judged_beside = verdict.tested > len(verdict.accepted)
        kinds.add((expected is None, judged_beside))
    assert {(True, True), (False, True)} <= kinds  # a bonus token behind a rejected sibling, too


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
        n = int(plain.past_key_values.get_seq_length())
        text = plain.sequences[0, ids.shape[1] - 10 :].tolist()  # padding is not drafted from
        for seed in range(2):
            speculator = Speculator(bushy(text, VOCAB, seed), 17, tree=17)
            ours = run(model, ids, speculator, attention_mask=mask, **kwargs)
            assert torch.equal(plain.sequences, ours.sequences)
            assert not speculator.stats.chains
            assert speculator.stats.accepted > 15
            assert int(ours.past_key_values.get_seq_length()) == n
            layers = zip(ours.past_key_values.layers, plain.past_key_values.layers, strict=True)
            for mine, its in layers:
                torch.testing.assert_close(
                    mine.keys[:, :, :n], its.keys[:, :, :n], rtol=1e-3, atol=1e-4
                )


def test_a_tree_without_branches_runs_as_a_chain_and_its_drafter_sees_the_tree(monkeypatch):
    model = tiny_llama()
    text = model.generate(IDS, max_new_tokens=60)[0].tolist()
    seen = []
    forward = Target.forward

    def spied(self, block, lengths, parents=None, committed=None):
        seen.append((block.shape[1] - 1, parents))
        return forward(self, block, lengths, parents, committed)

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
    assert drafter.observed
    assert all(draft.parents is not None for draft, _, _ in drafter.observed)
    assert speculator.stats.drafter_faults == 0


def test_after_a_tree_the_cache_is_as_if_the_rejected_tokens_had_never_been_there():
    model = tiny_llama()
    plain = model.generate(IDS, max_new_tokens=60, return_dict_in_generate=True)
    speculator = Speculator(bushy(plain.sequences[0].tolist(), 97), tree=17)
    ours = run(model, IDS, speculator, return_dict_in_generate=True)
    assert torch.equal(plain.sequences, ours.sequences)
    assert speculator.stats.accepted > 15
    theirs = plain.past_key_values
    for mine, layer in zip(ours.past_key_values.layers, theirs.layers, strict=True):
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
    again = run(model, more, speculator, past_key_values=first.past_key_values)
    assert torch.equal(plain, again)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_k": 20}, {"top_p": 0.9}])
def test_sampled_trees_are_plain_sampling_with_the_same_seed(settings, ahead, monkeypatch):
    monkeypatch.setattr("ngramspec.decoding.setup.prefers_one_transfer", lambda device: ahead)
    model = tiny_llama(initializer_range=0.15)
    for seed in range(3):
        torch.manual_seed(seed)
        plain = model.generate(IDS, do_sample=True, max_new_tokens=60, **settings)
        state = torch.get_rng_state()
        for drafter in (bushy(plain[0].tolist(), 97, seed), oracle(plain[0].tolist())):
            for tree in (None, 19):
                if tree is None and drafter.guess(12, 9).parents is not None:
                    continue
                speculator = Speculator(drafter, 12, tree=tree)
                torch.manual_seed(seed)
                ours = run(model, IDS, speculator, do_sample=True, **settings)
                assert torch.equal(plain, ours)
                assert torch.equal(state, torch.get_rng_state())
                assert speculator.stats.accepted > 20
                if ahead:
                    assert speculator.stats.host_syncs == speculator.stats.target_calls


def test_a_generator_of_one_s_own():
    model = tiny_llama(initializer_range=0.15)
    torch.manual_seed(3)
    plain = model.generate(IDS, do_sample=True, max_new_tokens=60)
    generator = torch.Generator().manual_seed(3)
    before = torch.get_rng_state()
    ours = run(model, IDS, Speculator(), do_sample=True, generator=generator)
    assert torch.equal(plain, ours)
    assert torch.equal(before, torch.get_rng_state())


OBSTACLES = [
    ("llama", {}, 2, "batch"),
    ("mistral sliding", {}, 1, "sliding"),
    ("t5", {}, 1, "encoder-decoder"),
    ("bloom (alibi)", {}, 1, "itself"),
]


@pytest.mark.parametrize(("name", "kwargs", "rows", "reason"), OBSTACLES)
def test_what_cannot_take_trees_has_chains_and_says_why(name, kwargs, rows, reason):
    model = build(name)
    speculator = Speculator("copy+ngram", tree=8)
    ids = IDS.expand(rows, -1)
    plain = model.generate(ids, max_new_tokens=40, **kwargs)
    ours = model.generate(ids, max_new_tokens=40, custom_generate=speculator, **kwargs)
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


def test_siblings_are_tried_without_replacement_in_the_loop():
    """A stochastic tree in the real loop: chi-square over the first two tokens."""
    from scipy.stats import chisquare

    model = tiny_llama(vocab=4, initializer_range=0.15, bos_token_id=None, pad_token_id=None)
    ids = torch.tensor([[1, 2, 3, 1, 2]])
    with torch.no_grad():
        first = model(ids).logits[0, -1].softmax(-1)
        pairs = torch.stack([torch.cat((ids[0], torch.tensor([x]))) for x in range(4)])
        second = model(pairs).logits[:, -1].softmax(-1)
        triples = torch.stack(
            [torch.cat((pairs[x], torch.tensor([y]))) for x in range(4) for y in range(4)]
        )
        third = model(triples).logits[:, -1].softmax(-1)
    expected = (first[:, None] * second).flatten()[:, None] * third
    expected = expected.flatten().double().numpy()
    rng = np.random.default_rng(0)
    q = np.array([0.5, 0.2, 0.2, 0.1], np.float32)
    ids4 = np.arange(4, dtype=np.int32)

    def guess(at, gamma):
        pair = rng.choice(4, 2, replace=False, p=q / q.sum())
        below = rng.choice(4, 1, p=q / q.sum())
        tokens = np.array([*pair, *below], np.int32)[:gamma]
        parents = np.array([-1, -1, 0], np.int32)[:gamma]
        n = len(tokens)
        starts = np.arange(0, 4 * n + 1, 4, dtype=np.int32)
        proposal = Proposal(starts, np.tile(ids4, n), np.tile(q, n))
        return Draft(tokens, parents, proposal=proposal)

    speculator = Speculator(ScriptedDrafter(guess, branches=True), tree=3)
    counts = np.zeros(64)
    torch.manual_seed(0)
    for _ in range(1200):
        out = model.generate(ids, do_sample=True, max_new_tokens=3, custom_generate=speculator)
        a, b, c = out[0, 5:].tolist()
        counts[16 * a + 4 * b + c] += 1
    assert speculator.stats.drafter_faults == 0
    assert speculator.stats.accepted > 300
    assert chisquare(counts, 1200 * expected / expected.sum()).pvalue > 1e-7


def test_lenience_and_typical_accept_more_than_the_exact_rule():
    model = tiny_llama(initializer_range=0.15)
    text = model.generate(IDS, max_new_tokens=60)[0].tolist()
    shares = {}
    for sample in (False, True):
        for name, rule in {
            "exact": {},
            "lenient": {"lenience": 0.2},
            "typical": {"verification": "typical", "epsilon": 0.02, "delta": 0.5},
        }.items():
            torch.manual_seed(0)
            speculator = Speculator(bushy(text, 97, right=0.4), tree=12, **rule)
            run(model, IDS, speculator, do_sample=sample)
            shares[sample, name] = speculator.stats.tokens_per_call
    for sample in (False, True):
        assert shares[sample, "lenient"] > shares[sample, "exact"]
        assert shares[sample, "typical"] > shares[sample, "exact"]


@pytest.mark.parametrize("ahead", [False, True])
def test_nan_scores_are_named(ahead, monkeypatch):
    monkeypatch.setattr("ngramspec.decoding.setup.prefers_one_transfer", lambda device: ahead)
    model = tiny_llama()
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    with pytest.raises(RuntimeError, match="no distribution.*position 10"):
        run(model, IDS, Speculator(), do_sample=True)


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
    (tree_of([1], [-1], proposal=proposal_of(([1, 2], [0.5, 0.4]))), "sum to 1 .*0.9"),
    (
        tree_of([1], [-1], proposal=proposal_of(([3, 2], [0.5, 0.5]))),
        "node 0 must hold its token 1",
    ),
    (tree_of([1], [-1], proposal=proposal_of(([1, 99], [0.5, 0.5]))), r"in 0..96, got 99"),
    (tree_of([1, 2], [-1, -1], proposal=proposal_of(([1], [1.0]))), "starts must have 3 entries"),
    (tree_of([1], [-1], source=np.array([2], np.int8)), r"source must lie in 0\.\.1, got 2"),
    (tree_of([1], [-1], source=np.array([-1], np.int8)), r"source must lie in 0\.\.1, got -1"),
    (tree_of([1], [-1], confidence=np.ones(2, np.float32)), "confidence must have 1 entries"),
]


@pytest.mark.parametrize(("draft", "message"), BAD)
def test_trees_and_proposals_that_cannot_be_verified_are_named(draft, message):
    with pytest.raises(ValueError, match=message):
        check_draft(draft, 10, 97, tree=True, tiers=2)


def test_the_head_of_a_tree_is_a_tree():
    share = np.full(6, 1 / 6, np.float32)
    proposal = proposal_of(*((STRATOS.tokens, share) for _ in STRATOS.tokens))
    draft = Draft(STRATOS.tokens, STRATOS.parents, None, proposal)
    for n in range(7):
        head = check_draft(draft.first(n), 6, 97, tree=True)
        assert len(head) == n
        assert head.children()[0] == [node for node in (0, 3) if node < n]
