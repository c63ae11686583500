"""Measured costs: what a curve learns, which widths run, and files of them."""

from __future__ import annotations

import gc
import json
import random
import time
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from doubles import oracle

import ngramspec
from ngramspec import Speculator
from ngramspec.bench.forced import forced_model
from ngramspec.cli import main
from ngramspec.draft_length.cost_curve import CostCurve, ForwardKind, assumed_cost, curve_of
from ngramspec.draft_length.cost_file import SavedCosts, described
from ngramspec.draft_length.schedule import CostGamma
from ngramspec.draft_length.step_cost import StepCostTracker

KIND = ForwardKind("cpu", "float32")
FLAT = np.ones(66, np.float32)
IDS = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])


def fed(curve: CostCurve, seconds: dict[int, float], times: int = 9) -> CostCurve:
    for _ in range(times):
        for width, each in seconds.items():
            curve.add(width, each)
    return curve


def test_a_curve_is_as_assumed_until_it_is_measured():
    assumed = assumed_cost("cpu", 64)
    assert CostCurve(assumed).cost() is assumed


def test_measured_widths_count_and_those_between_follow():
    cost = fed(CostCurve(FLAT), {1: 0.02, 5: 0.03, 9: 0.06}).cost()
    assert cost[1] == 1
    assert 1.4 < cost[5] < 1.5  # nine times count 0.9 against what was assumed
    assert 2.6 < cost[9] < 3.0
    assert cost[1] < cost[3] < cost[5] < cost[7] < cost[9]
    assert cost[9] == cost[40] == cost[65]


def test_an_outlier_does_not_move_it_and_a_lasting_change_does():
    curve = fed(CostCurve(FLAT), {1: 0.02, 5: 0.02})
    curve.add(5, 2.0)
    fed(curve, {1: 0.02}, 8)
    assert curve.cost()[5] < 1.05
    fed(curve, {5: 0.04}, 9)
    fed(curve, {1: 0.02}, 8)
    assert curve.cost()[5] > 1.7


def test_what_is_long_past_counts_less():
    curve = fed(CostCurve(FLAT), {1: 0.02, 5: 0.06})
    before = curve.cost()[5]
    fed(curve, {1: 0.02}, 2000)
    assert 1.0 < curve.cost()[5] < 1.4 < before


def test_without_a_plain_step_the_others_say_what_one_would_take():
    cost = fed(CostCurve(assumed_cost("cpu", 64)), {5: 0.02, 9: 0.02}).cost()
    assert cost[1] == 1
    assert cost[5] == pytest.approx(1.15, abs=0.1)


def pace(model=None, tokens=200, **more) -> StepCostTracker:
    return StepCostTracker(model or tiny_llama(), KIND, 65, tokens, **more)


def test_a_draft_is_padded_to_a_width_that_is_measured_to_be_cheaper():
    mine = pace()
    fed(mine.curve, {1: 0.02, 2: 0.05, 3: 0.05, 5: 0.03})
    assert [mine.width(n, 65) for n in (1, 2, 3, 4, 5, 6)] == [1, 5, 5, 5, 5, 6]
    assert mine.width(2, 4) == 2  # there is no room for 5
    envelope = mine.cost()
    assert envelope[2] == envelope[5]
    assert (np.diff(envelope) >= 0).all()
    assert envelope.flags.c_contiguous


def test_a_long_generation_times_plain_steps_first_and_again_when_they_are_stale():
    mine = pace()
    planned = []
    for _ in range(6):
        planned.append(mine.plain())
        mine.took(1 if planned[-1] else 5, 0.02)
    # the first one is not timed, and the second is what the third is compared with
    assert planned == [True, True, True, True, False, False]
    for _ in range(200):
        mine.curve.add(5, 0.02)
    assert mine.plain()
    assert not pace(tokens=20).plain()


def steps(mine, plan, machine=lambda at: 1.0):
    """Run steps of given widths on a machine where five positions cost 1.3 of one."""
    for at, width in enumerate(plan):
        mine.plain()
        mine.took(width, machine(at) * (0.02 if width == 1 else 0.026))
        mine.came(width - 1, 0)


def test_a_machine_that_slows_down_does_not_change_what_widths_cost():
    """Plain steps while it is slow, drafted ones while it is fast, and the other way round."""
    for slow in (2.0, 0.5):
        mine = pace()
        steps(
            mine, [1] * 4 + ([1] * 9 + [5] * 20) * 3, lambda at, slow=slow: slow if at < 40 else 1
        )
        assert mine.curve.cost()[5] == pytest.approx(1.3, abs=0.12)
        again = pace(mine._model)
        steps(again, [5] * 12, lambda at: 3.0)  # another call, on a machine three times as slow
        assert again.curve.cost()[5] == pytest.approx(1.3, abs=0.12)


def test_costs_do_not_drift_while_nothing_is_compared():
    """A first plain step that was slow, then many of another width: they say nothing new."""
    mine = pace()
    steps(mine, [1] * 4 + [5] * 9, lambda at: 1.1 if at == 1 else 1.0)
    before = mine.curve.cost()[5]
    steps(mine, [5] * 120)
    assert mine.curve.cost()[5] == pytest.approx(before, rel=0.03)
    steps(mine, ([1] + [5] * 8) * 12)
    assert mine.curve.cost()[5] == pytest.approx(1.3, abs=0.12)


def test_drafts_in_vain_have_to_promise_more_and_plain_steps_come_between():
    mine = pace()
    steps(mine, [1] * 6)
    assert mine.cost()[1] == 1
    flat = mine.curve.cost()[2]
    assert mine.cost()[2] == pytest.approx(max(flat, 1) * 1.02, rel=1e-3)
    dues = []
    for _ in range(40):
        dues.append(mine.plain())
        width = 1 if dues[-1] else 5
        mine.took(width, 0.02)
        mine.came(width - 1, 0)
    assert sum(dues) == 40 // 9
    before = mine.cost()[9] / mine.curve.cost()[9]
    assert before == pytest.approx(1.2, abs=0.01)
    for _ in range(16 * 12):
        mine.came(0, 0)
    assert mine.cost()[9] / mine.curve.cost()[9] < 1.1  # it is forgotten
    mine.came(4, 1)
    assert mine.cost()[9] / mine.curve.cost()[9] == pytest.approx(1.02, abs=0.01)


def test_no_draft_is_believed_to_make_a_forward_cheaper():
    mine = pace()
    fed(mine.curve, {1: 0.02, 5: 0.01, 9: 0.03})
    assert (mine.cost()[2:] > 1.01).all()


def test_contexts_of_another_length_begin_with_what_is_known():
    mine = pace()
    fed(mine.curve, {1: 0.02, 5: 0.06})
    short = mine.curve
    mine.at(4000)
    assert mine.curve is not short
    assert mine.curve.cost()[5] == short.cost()[5] > 2
    mine.at(100)
    assert mine.curve is short


def test_a_longer_limit_goes_on_from_what_is_known():
    model = tiny_llama()
    short = StepCostTracker(model, KIND, 9, 200)
    fed(short.curve, {1: 0.02, 9: 0.1})
    assert len(short.cost()) == 10
    long = pace(model)
    assert long.curve is short.curve
    assert len(long.cost()) == 66
    assert 4 < long.curve.cost()[9] < long.curve.cost()[40]
    assert len(short.cost()) == 10
    assert short.width(9, 65) == 9


def test_trees_have_costs_of_their_own():
    trees = StepCostTracker(tiny_llama(), replace(KIND, tree=True), 65, 200)
    trees.plain(), trees.plain()
    for width, tree, seconds in [(1, False, 0.02), (9, True, 0.06), (9, False, 0.03)] * 9:
        trees.took(width, seconds, tree)
    assert trees.curve.cost()[9] == pytest.approx(1.5, abs=0.15)
    assert trees.trees.cost()[9] == pytest.approx(3.0, abs=0.3)
    assert trees.cost()[9] > 2.5
    chains = pace()
    assert chains.trees is chains.curve


def test_until_trees_ran_they_cost_what_chains_do():
    trees = StepCostTracker(tiny_llama(), replace(KIND, tree=True), 65, 200)
    trees.plain(), trees.plain()
    for width, seconds in [(1, 0.02), (9, 0.06), (17, 0.05)] * 9:
        trees.took(width, seconds)
    assert trees.trees.cost()[9] == pytest.approx(3.0, abs=0.3)
    trees.took(9, 0.5, True)  # one says little
    assert trees.trees.expected(9) == pytest.approx(3.0, abs=0.3)
    for _ in range(9):
        trees.took(9, 0.03, True)
        trees.took(9, 0.06)
    assert trees.trees.cost()[9] == pytest.approx(1.5, abs=0.15)
    assert trees.trees.cost()[17] == pytest.approx(2.5, abs=0.25)
    assert trees.curve.cost()[9] == pytest.approx(3.0, abs=0.3)


def test_curves_are_kept_for_a_model_and_go_with_it():
    model = tiny_llama()
    first = pace(model)
    assert pace(model).curve is first.curve
    assert pace().curve is not first.curve
    gone = weakref.ref(first.curve)
    del model, first
    gc.collect()
    assert gone() is None


def test_a_generation_measures_and_the_next_one_knows():
    model = tiny_llama()
    text = model.generate(IDS, max_new_tokens=100)
    speculator = Speculator(oracle(text[0].tolist()))
    ours = model.generate(IDS, max_new_tokens=100, custom_generate=speculator)
    assert torch.equal(text, ours)
    curve = curve_of(model, KIND, 9, 65)
    assert curve.count(1) >= 2
    assert sum(map(curve.count, range(2, 66))) > 0
    plain = speculator.stats.plain_steps
    model.generate(IDS, max_new_tokens=100, custom_generate=speculator)
    assert speculator.stats.plain_steps - plain < plain


def test_text_does_not_depend_on_padding():
    model = tiny_llama()
    text = model.generate(IDS, max_new_tokens=100)
    curve = curve_of(model, KIND, 9, 65)
    fed(curve, {1: 0.02} | {n: 0.05 for n in range(2, 60) if n != 24} | {24: 0.021})
    widths = []
    forward = model.forward
    model.forward = lambda *args, **kwargs: (
        widths.append(kwargs["input_ids"].shape[1]) or forward(*args, **kwargs)
    )
    ours = model.generate(IDS, max_new_tokens=100, custom_generate=Speculator("copy+ngram"))
    assert torch.equal(text, ours)
    assert 24 in widths[1:]


def test_a_drafter_that_never_pays_is_asked_rarely_and_soon_again_once_it_does():
    controller = CostGamma(64, lambda: assumed_cost("cpu", 64))
    asked = []
    for _ in range(160):
        gamma, _ = controller.plan(False)
        asked.append(gamma > 0)
        if gamma:
            controller.observe(gamma, 0)
    assert sum(asked[-80:]) == 80 // CostGamma.TRIED_EVERY
    steps = 0
    while sum(asked[-3:]) < 3 and steps < 20:
        gamma, _ = controller.plan(False)
        asked.append(gamma > 0)
        if gamma:
            controller.observe(gamma, gamma)
        steps += 1
    assert steps <= CostGamma.TRIED_EVERY + 3


@pytest.mark.parametrize("drafter", ["auto", "copy+ngram+unigram"])
def test_a_text_that_begins_to_copy_is_drafted_again_within_a_few_steps(drafter):
    model, make = tiny_llama(vocab=997, positions=2048), random.Random(3)
    prompt = [make.randrange(1, 997) for _ in range(120)]
    for waiting in (40, 160, 320):
        text = [make.randrange(1, 997) for _ in range(waiting)] + prompt[20:100]
        steps = []
        speculator = Speculator(drafter, on_step=steps.append)
        ids = torch.tensor([prompt])
        with forced_model(model, 1024) as set_text:
            set_text([*prompt, *text])
            ours = ngramspec.generate(
                model, ids, speculator=speculator, max_new_tokens=len(text), do_sample=False
            )
        assert ours[0].tolist() == [*prompt, *text]
        at, ends = 0, []
        for step in steps:
            at += len(step.verdict.emitted)
            ends.append((at, step))
        vain = [step for at, step in ends if at <= waiting]
        assert sum(len(step.drafted) for step in vain) < waiting  # tried now and then
        copying = [step for at, step in ends if at > waiting]
        first = next(i for i, step in enumerate(copying) if step.accepted)
        assert first <= 6
        assert len(copying) < 30  # of 80 tokens


def test_saved_costs_are_begun_with_and_dropped_when_wrong(tmp_path, caplog):
    model = tiny_llama()
    seconds = {400: {1: 0.01, 9: 0.02, 17: 0.04}, 4000: {1: 0.02, 17: 0.03}}
    path = tmp_path / "costs.json"
    SavedCosts(described(model), seconds).write(path)
    saved = SavedCosts.read(path)
    assert saved.seconds == seconds
    assert saved.curve(512, 65)[[1, 5, 9, 17]].tolist() == pytest.approx([1, 1.5, 2, 4])
    assert saved.curve(3000, 65)[17] == pytest.approx(1.5)
    mine = pace(model, saved=saved)
    assert mine.curve.cost()[17] == pytest.approx(4)
    fed(mine.curve, {1: 0.01, 9: 0.02})  # as saved
    assert mine.curve.cost()[17] == pytest.approx(4)
    assert not caplog.records
    fed(mine.curve, {1: 0.01, 9: 0.011})
    assert mine.curve.cost()[17] < 4
    assert "measuring anew" in caplog.text
    known = mine.curve.cost()[17]
    mine.at(4000)  # the file is wrong in other contexts, too
    assert mine.curve.cost()[17] == known


def test_a_generation_finds_out_that_saved_costs_are_wrong(tmp_path, caplog):
    model = tiny_llama()
    assumed = KIND.assumed(65)
    times = {width: 0.01 * 2.5 * float(assumed[width]) for width in range(2, 66)}
    path = tmp_path / "costs.json"
    SavedCosts(described(model), {400: {1: 0.01} | times}).write(path)
    text = model.generate(IDS, max_new_tokens=300)[0].tolist()
    speculator = Speculator(oracle(text), gamma_max=8, costs=path)
    ours = model.generate(IDS, max_new_tokens=300, custom_generate=speculator)
    assert ours[0].tolist() == text
    assert "measuring anew" in caplog.text
    curve = curve_of(model, KIND, 9, 9)
    assert curve.dropped
    assert curve.cost()[1:10] == pytest.approx(assumed[1:10], rel=0.3)
    plain, batch = IDS.repeat(2, 1), Speculator(costs=path)
    model.generate(plain, max_new_tokens=4, custom_generate=batch)
    assert "of one sequence" in caplog.text


@pytest.mark.measured
def test_what_the_machine_takes_is_what_is_learned():
    model = tiny_llama()
    forward = model.forward

    def slow(*args, **kwargs):
        outputs = forward(*args, **kwargs)
        begin = time.perf_counter()
        wide = kwargs["input_ids"].shape[1] > 1
        while time.perf_counter() - begin < (0.06 if wide else 0.01):
            pass
        return outputs

    text = model.generate(IDS, max_new_tokens=100)[0].tolist()
    model.forward = slow
    speculator = Speculator(oracle(text), gamma_max=8)
    model.generate(IDS, max_new_tokens=100, custom_generate=speculator)
    assert curve_of(model, KIND, 9, 9).cost()[9] > 2


def test_costs_of_something_else_are_not_used(tmp_path, caplog):
    path = tmp_path / "costs.json"
    SavedCosts(described(tiny_llama(vocab=50)), {400: {1: 0.01, 9: 0.5}}).write(path)
    model = tiny_llama()
    speculator = Speculator(costs=path)
    assert Speculator.from_dict(speculator.to_dict()).costs == str(path)
    for _ in range(2):
        model.generate(IDS, max_new_tokens=60, custom_generate=speculator)
    assert caplog.text.count("not using") == 1
    assert "parameters is" in caplog.text


BAD = [
    ("{", "no file of ngramspec calibrate"),
    ("[]", "no file of ngramspec calibrate"),
    ('{"format": "other"}', "format must be"),
    ('{"format": "ngramspec costs 1", "depends": {}, "seconds": {}}', "holds no times"),
    (
        '{"format": "ngramspec costs 1", "depends": {}, "seconds": {"4": {"2": 1}}}',
        "time for width 1",
    ),
    (
        '{"format": "ngramspec costs 1", "depends": {}, "seconds": {"4": {"1": -1}}}',
        "all times > 0",
    ),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_files_that_are_no_costs_are_named(tmp_path, text, message):
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Speculator(costs=path)


def test_calibrate_measures_prints_and_saves(tmp_path, monkeypatch, capsys):
    from ngramspec.bench import models

    model = tiny_llama(positions=2048)
    monkeypatch.setattr(
        models, "load", lambda *args, **kwargs: models.LoadedModel(model, None, "tiny")
    )
    out = tmp_path / "costs.json"
    options = ["--contexts", "20", "--repeats", "1", "--json", str(out)]
    assert main(["calibrate", *options]) == 0
    printed = capsys.readouterr().out
    assert "context 20" in printed
    assert str(out) in printed.replace("\n", "")
    assert set(json.loads(out.read_text())["seconds"]) == {"20"}
    Speculator(costs=out)
    assert main(["calibrate", "--contexts", "0"]) == 2
    assert "--contexts must be >= 1, got 0" in capsys.readouterr().err


def test_forwards_of_a_few_widths_count_at_those():
    mine = pace(sizes=(1, 4, 16, 65))
    mine.plain(), mine.plain()
    for width, seconds in [*[(1, 0.02)] * 5, (2, 0.08), (4, 0.08)]:
        mine.took(width, seconds)
    assert [mine.curve.count(width) for width in (1, 2, 4, 16)] == [4, 0, 2, 0]
    cost = mine.cost()
    assert cost[4] > 1.5
    assert cost[2] == cost[3] == cost[4] > 1
    assert cost[5] == cost[16]
    assert mine.width(3, 65) == 3  # the target pads it
