"""Joint steps: every generation gets its own text, cache and errors, as if it were alone."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from conftest import tiny_llama
from doubles import Failing, bushy, half_right, random_drafter
from families import CAUSAL, SIZES, VOCAB, build
from layer_states import assert_same_cache
from transformers import DynamicCache

from ngramspec import Draft, Speculator, UnsupportedError
from ngramspec.costs.model import CostModel
from ngramspec.costs.processors import AMX, initial_costs
from ngramspec.costs.steps import StepCosts
from ngramspec.decoding.joint import _learn
from ngramspec.hf_model.compat.caches import cache_argument, cache_of
from ngramspec.hf_model.pool import Lease, cache_maker
from ngramspec.stepwise import JointSteps, open_generation

TEXT = [1, 5, 9, 5, 9, 5, 9, 7, 3, 3, 4, 5, 9, 6]
PROMPTS = [torch.tensor([TEXT[:n]]) for n in (8, 3, 14, 11)]
GREEDY = {"do_sample": False, "max_new_tokens": 30}
ALONE = {  # the families whose steps cannot be joined with any attention
    "gpt-neo (windows)",
    "bloom (alibi)",
    "bart decoder",  # counts its positions itself
}


def run_together(model, runs, steps=None, turns=10**6):
    """Step all until they have finished: the sizes of the joint steps."""
    steps, sizes = steps or JointSteps(model), []
    while turns and (going := [run for run in runs if not run.finished]):
        added = steps.step(going)
        for run, tokens in zip(going, added, strict=True):
            assert tokens
            assert run.tokens[-len(tokens) :] == tokens
        sizes.append(len(going))
        turns -= 1
    return sizes


def opened(model, prompts, drafters, **settings):
    runs = []
    for prompt, drafter in zip(prompts, drafters, strict=True):
        speculator = Speculator(*drafter) if isinstance(drafter, tuple) else Speculator(drafter)
        runs.append(open_generation(model, prompt, speculator=speculator, **settings))
        runs[-1].step()
    return runs


def texts(model, prompts, **settings):
    return [model.generate(each, **settings)[0].tolist() for each in prompts]


@pytest.mark.every(6, 1)
@pytest.mark.parametrize("name", CAUSAL)
def test_every_model_that_can_gives_plain_text(name):
    model = build(name)
    plain = texts(model, PROMPTS[:3], **GREEDY)
    drafters = [(half_right(text, VOCAB), 5) for text in plain]
    runs = opened(model, PROMPTS[:3], drafters, **GREEDY)
    alone = name in ALONE or model.config._attn_implementation == "eager"
    assert (runs[0].why_alone is None) == (not alone)
    if not alone:
        assert len(run_together(model, runs)) < 29
        assert [run.tokens for run in runs] == [t[-30:] for t in plain]
        assert all(run.stats.accepted > 0 for run in runs)
    for run in runs:
        run.close()


@pytest.mark.parametrize("tree", [None, 9])
def test_texts_and_caches_are_those_of_each_alone(tiny, tree):
    plain = texts(tiny, PROMPTS, **GREEDY)
    caches = [DynamicCache(config=tiny.config) for _ in PROMPTS]
    runs = []
    for prompt, text, cache in zip(PROMPTS, plain, caches, strict=True):
        drafter = bushy(text, 97) if tree else half_right(text, 97)
        speculator = Speculator(drafter, 6, tree=tree)
        runs.append(
            open_generation(tiny, prompt, speculator=speculator, **cache_argument(cache), **GREEDY)
        )
        runs[-1].step()
    run_together(tiny, runs, turns=6)
    for run, prompt, text, cache in zip(runs, PROMPTS, plain, caches, strict=True):
        committed = [*prompt[0].tolist(), *run.tokens]
        assert committed == text[: len(committed)]
        run.close()
        fresh = DynamicCache(config=tiny.config)
        tiny(torch.tensor([committed[:-1]]), **cache_argument(fresh))
        assert_same_cache(cache, fresh)


def test_generations_come_and_go(tiny):
    plain = texts(tiny, PROMPTS, **GREEDY)
    speculator, steps = Speculator(), JointSteps(tiny)
    waiting = [open_generation(tiny, p, speculator=speculator, **GREEDY) for p in PROMPTS]
    running, sizes, found = [], set(), []
    while waiting or running:
        if waiting:
            running.append(waiting.pop(0))
            running[-1].step()
        sizes.add(len(running))
        steps.step(running)
        ended = [run for run in running if run.finished]
        running = [run for run in running if not run.finished]
        for run in ended:
            found.append(run.tokens)
            run.close()
    assert found == [text[-30:] for text in plain]
    assert max(sizes) == 4
    assert speculator.stats.runs == 4


def test_steps_alone_between_joint_ones_leave_the_shared_memory(tiny):
    plain = texts(tiny, PROMPTS, **GREEDY)
    drafters = [(half_right(text, 97), 5) for text in plain]
    runs, steps = opened(tiny, PROMPTS, drafters, **GREEDY), JointSteps(tiny)
    while going := [run for run in runs if not run.finished]:
        steps.step(going)
        for run in going[::2]:
            run.step()
    assert [run.tokens for run in runs] == [text[-30:] for text in plain]


def test_a_cache_that_is_kept_leaves_its_row_to_the_next(tiny):
    make, caches, steps = cache_maker(tiny), [], JointSteps(tiny)

    def begun(prompt):
        caches.append(make())
        run = open_generation(tiny, prompt, **cache_argument(caches[-1]), **GREEDY)
        run.step()
        return run

    one, two = map(begun, PROMPTS[:2])
    for _ in range(3):
        steps.step([one, two])
    held = Lease("a", caches[0]).bytes
    rows = [each.layers[0].keys.untyped_storage().nbytes() for each in caches]
    assert rows[0] == rows[1]  # the same memory
    assert held == 2 * len(caches[0].layers) * rows[0] / 2
    text = [*PROMPTS[0][0].tolist(), *one.tokens]
    one.close()
    run_together(tiny, [two, begun(PROMPTS[2])], steps, turns=4)
    fresh = DynamicCache(config=tiny.config)
    tiny(torch.tensor([text[:-1]]), **cache_argument(fresh))
    assert_same_cache(caches[0], fresh)


def test_a_lack_of_memory_for_rows_leaves_paused_generations_whole(tiny, monkeypatch):
    plain = texts(tiny, PROMPTS, **GREEDY)
    runs = opened(tiny, [*PROMPTS, PROMPTS[0]], ["none"] * 5, **GREEDY)
    steps = JointSteps(tiny)
    steps.step(runs[:3])
    runs[0].close()  # so that the others change their rows
    made, new_zeros = [], torch.Tensor.new_zeros

    def short(self, shape, **kwargs):
        made.append(shape)
        if len(made) == 3:  # of the second layer
            raise torch.OutOfMemoryError("out of memory")
        return new_zeros(self, shape, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "new_zeros", short)
        errors = steps.step(runs[3:])
    assert all(isinstance(each, torch.OutOfMemoryError) for each in errors)
    run_together(tiny, runs[1:3], steps)
    assert [run.tokens for run in runs[1:3]] == [text[-30:] for text in plain[1:3]]


def test_sampled_texts_are_those_of_their_generators(tiny):
    settings = {"do_sample": True, "temperature": 1.2, "max_new_tokens": 30, "top_k": 30}

    def generators():
        return [torch.Generator().manual_seed(seed) for seed in range(4)]

    alone = []
    for prompt, generator in zip(PROMPTS, generators(), strict=True):
        speculator = Speculator(random_drafter(97), 4)
        run = open_generation(tiny, prompt, speculator=speculator, generator=generator, **settings)
        while not run.finished:
            run.step()
        alone.append(run.tokens)
    runs = []
    for prompt, generator in zip(PROMPTS, generators(), strict=True):
        speculator = Speculator(random_drafter(97), 4)
        runs.append(
            open_generation(tiny, prompt, speculator=speculator, generator=generator, **settings)
        )
        runs[-1].step()
    run_together(tiny, runs)
    assert [run.tokens for run in runs] == alone


def with_criterion(tiny, error):
    runs = opened(tiny, PROMPTS[:2], ["none"] * 2, **GREEDY)
    criterion = Failing(error)
    runs.append(open_generation(tiny, PROMPTS[2], stopping_criteria=[criterion], **GREEDY))
    runs[-1].step()
    return runs


def test_an_error_closes_its_own_generation(tiny):
    plain = texts(tiny, PROMPTS[:2], **GREEDY)
    runs, steps = with_criterion(tiny, RuntimeError("no more")), JointSteps(tiny)
    errors = []
    while going := [run for run in runs if not run.finished]:
        errors += [each for each in steps.step(going) if isinstance(each, Exception)]
    assert [str(error) for error in errors] == ["no more"]
    assert [run.tokens for run in runs[:2]] == [t[-30:] for t in plain]
    assert len(runs[2].tokens) < 10


def test_an_interruption_closes_all(tiny):
    runs, steps = with_criterion(tiny, KeyboardInterrupt()), JointSteps(tiny)
    with pytest.raises(KeyboardInterrupt):
        run_together(tiny, runs, steps)
    assert all(run.finished for run in runs)
    for run in runs:
        assert run.cache.get_seq_length() == run.length - 1


def test_an_error_of_the_forward_closes_all_and_leaves_caches_cut(tiny):
    runs = opened(tiny, PROMPTS, ["auto"] * 4, **GREEDY)
    steps = JointSteps(tiny)
    run_together(tiny, runs, steps, turns=2)
    tokens = [run.tokens for run in runs]

    def fail(module, args):
        raise RuntimeError("out of memory")

    hook = tiny.model.layers[1].mlp.register_forward_pre_hook(fail)
    try:
        added = steps.step(runs)
    finally:
        hook.remove()
    assert [str(each) for each in added] == ["out of memory"] * 4
    assert [run.tokens for run in runs] == tokens
    for run in runs:
        assert run.finished
        assert run.cache.get_seq_length() == run.length - 1


def test_what_steps_alone_says_why():
    model = tiny_llama()
    run = open_generation(model, PROMPTS[0], **GREEDY)
    assert "prefill" in run.why_alone
    run.step()
    assert run.why_alone is None
    run.close()
    assert "end" in run.why_alone
    fixed = opened(model, PROMPTS[:1], ["none"], cache_implementation="static", **GREEDY)[0]
    assert "static" in fixed.why_alone
    hook = model.register_forward_hook(lambda *_: None)
    assert "hooks" in opened(model, PROMPTS[:1], ["none"], **GREEDY)[0].why_alone
    hook.remove()
    model.set_attn_implementation("eager")
    assert "eager" in opened(model, PROMPTS[:1], ["none"], **GREEDY)[0].why_alone


def mix_positions(model):
    """Have the model's last layer add what the position before it has."""
    mlp = model.model.layers[-1].mlp
    own = mlp.forward
    mlp.forward = lambda states: own(states + states.roll(1, dims=1))


def attend_to_copies(model):
    """Have the second layer attend to copies of what the cache holds."""
    attention = model.model.layers[1].self_attn
    own = attention.forward

    def forward(*args, **kwargs):
        cache = cache_of(kwargs)
        update = cache.update
        cache.update = lambda *given, **more: tuple(map(torch.clone, update(*given, **more)))
        try:
            return own(*args, **kwargs)
        finally:
            del cache.update

    attention.forward = forward


@pytest.mark.parametrize(
    ("change", "reason"),
    [(mix_positions, "other logits"), (attend_to_copies, "attend to its cache")],
)
def test_a_model_that_cannot_is_found_out(change, reason):
    model = tiny_llama(seed=3)
    assert JointSteps(model).why_not is None
    model = tiny_llama(seed=3)
    change(model)
    steps = JointSteps(model)
    assert reason in steps.why_not
    runs = opened(model, PROMPTS[:1], ["none"], **GREEDY)
    with pytest.raises(UnsupportedError, match=reason):
        steps.step(runs)
    assert not runs[0].finished
    runs[0].close()


def test_a_model_whose_states_were_asked_for_once_goes_on_joining():
    """transformers leaves its hooks for them on the modules."""
    model = tiny_llama(seed=3)
    plain = texts(model, PROMPTS[:2], **GREEDY)
    model(PROMPTS[0], output_hidden_states=True)
    assert any(each._forward_hooks for each in model.modules())
    runs = opened(model, PROMPTS[:2], ["auto"] * 2, **GREEDY)
    run_together(model, runs)
    assert [run.tokens for run in runs] == [t[-30:] for t in plain]
    asked = {"return_dict_in_generate": True, "output_hidden_states": True}
    asking = opened(model, PROMPTS[:1], ["none"], **asked, **GREEDY)[0]
    assert "hidden states asked for" in asking.why_alone


def test_only_what_can_be_joined_is_taken(tiny):
    steps = JointSteps(tiny)
    with pytest.raises(ValueError, match="generations must not be empty"):
        steps.step([])
    good = opened(tiny, PROMPTS[:1], ["none"], **GREEDY)[0]
    with pytest.raises(ValueError, match="one of them twice"):
        steps.step([good, good])
    fresh = open_generation(tiny, PROMPTS[1], **GREEDY)
    with pytest.raises(UnsupportedError, match=r"generations\[1\].*prefill"):
        steps.step([good, fresh])
    other = opened(tiny_llama(seed=5), PROMPTS[:1], ["none"], **GREEDY)[0]
    with pytest.raises(ValueError, match=r"generations\[1\] belongs to another model"):
        steps.step([good, other])
    assert not good.finished
    assert len(good.tokens) == 1


def test_a_fixed_gamma_beside_one_by_cost_keeps_its_drafts(tiny):
    """And neither learns the joint forward's time as its own."""
    plain = texts(tiny, PROMPTS[:2], **GREEDY)
    fixed = (half_right(plain[0], 97), 5)
    runs = opened(tiny, PROMPTS[:2], [fixed, "auto"], **GREEDY)
    costs = runs[1].step_costs
    alone = costs.plain_seconds
    run_together(tiny, runs)
    assert [run.tokens for run in runs] == [t[-30:] for t in plain]
    assert runs[0].step_costs is None
    assert runs[0].stats.drafted >= 4 * (runs[0].stats.target_calls - 2)
    assert costs.plain_seconds == alone
    assert any(rows == 2 for rows, _ in costs.model.counts)  # those of joint steps


def test_generations_of_different_draft_limits_share_steps(tiny):
    plain = texts(tiny, PROMPTS[:2], **GREEDY)
    runs = [
        open_generation(tiny, each, speculator=Speculator(gamma_max=limit), **GREEDY)
        for each, limit in zip(PROMPTS, (8, 256), strict=False)
    ]
    for run in runs:
        run.step()
    run_together(tiny, runs)
    assert [run.tokens for run in runs] == [t[-30:] for t in plain]
    assert [run.stats.drafter_faults for run in runs] == [0, 0]


def test_a_joint_forward_wider_than_the_costs_teaches_nothing():
    tracker = StepCosts(CostModel(initial_costs(AMX, "float32")), 16, rows=2, packed=True)
    tracker.plain()
    for drafted, known in ((16, []), (15, [(2, 17)])):
        drafts = [Draft(np.zeros(n, np.int32)) for n in (8, drafted - 8)]
        turns = [SimpleNamespace(draft=draft, added=[1]) for draft in drafts]
        for _ in range(3):
            _learn(tracker, turns, 1.0)
            tracker.plain()
        assert [*tracker.model.counts] == known


def test_costs_are_of_all_drafted_tokens():
    """Four generations of one position each, and 4 drafted: 8 positions beside 4."""
    model = CostModel(initial_costs(AMX, "float32"))
    alone, joint = StepCosts(model, 16), StepCosts(model, 16, rows=4, packed=True)
    np.testing.assert_allclose(joint.times()[1:9], alone.times()[4:12] / alone.times()[4], 1e-5)
    assert joint.plain()
    part = joint.part()
    assert part.due
    np.testing.assert_allclose(
        part.required[1:], 1 + 4 * (joint.required_tokens()[1:] - 1), rtol=1e-4
    )
    assert model.steps == 0


@pytest.mark.skipif(not hasattr(transformers, "DoryForCausalLM"), reason="new in 5.24")
@pytest.mark.parametrize("window", [12, 64])
def test_a_model_whose_layers_run_in_loops_gives_plain_text(window):
    """Its cache has a layer for each loop, its masks one for each layer."""
    torch.manual_seed(3)
    kinds = ["sliding_attention", "full_attention"] * 2
    sizes = {"n_input_layers": 1, "n_output_layers": 1, "n_recurrent_loops": 3}
    settings = SIZES | sizes | {"num_hidden_layers": 4, "layer_types": kinds}
    config = transformers.DoryConfig(**settings, sliding_window=window)
    model = transformers.DoryForCausalLM(config).eval()
    plain = texts(model, PROMPTS[:3], **GREEDY)
    runs = opened(model, PROMPTS[:3], [(half_right(text, VOCAB), 5) for text in plain], **GREEDY)
    assert runs[0].why_alone is None
    run_together(model, runs)
    assert [run.tokens for run in runs] == [t[-30:] for t in plain]
