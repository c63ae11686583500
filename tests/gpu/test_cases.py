"""Every path of the decode loop on a pretended GPU, with prompts there or on the CPU."""

from __future__ import annotations

import json
from functools import wraps
from pathlib import Path

import pytest
import torch
from doubles import half_right
from gpu import cases
from gpu.cases import CASES, EQUAL, FOUR, LONG, ONE, SAMPLED, SCORES, Case, measure
from gpu.device import on_gpu, pretended

from ngramspec import Speculator, generate
from ngramspec.hf_model.compat import kernels

OTHER_CALLS = (cases._embedded, cases._joint)  # which begin with other forwards
SHOWN = ("before", "prefill", "step", "copies")


@pytest.fixture(scope="session")
def recorded(request):
    """With --waits FILE, the counts of all cases, which are written there."""
    path, found = request.config.getoption("--waits"), {}
    yield found
    if path is not None:
        Path(path).write_text(json.dumps({"cases": found}), encoding="utf-8")


@pytest.mark.every(6)
@pytest.mark.parametrize("name", CASES)
def test_the_text_is_the_same_as_on_the_cpu_and_steps_wait_once(name, recorded):
    case = CASES[name]
    found = measure(case)
    ours = found["ours"]
    plain = found["plain"]
    assert found["text"] == found["expected"]
    assert ours["step"] <= max(case.waits, plain["step"]), ours["places"]
    if case.call not in OTHER_CALLS:
        assert ours["before"] <= plain["before"] + 2, ours["counts"]
        assert ours["prefill"] <= plain["prefill"] + 2, ours["counts"]
    recorded[name] = {side: {n: found[side][n] for n in SHOWN} for side in ("plain", "ours")}


OTHER_KINDS = ["tree", "sampled, tree", "sampled drafts", "batch, tree", "processors", "3 beams"]
OTHER_KINDS += ["static cache", "experts"]


@pytest.mark.every(5)
@pytest.mark.parametrize("kind", ["mps", "xpu"])
@pytest.mark.parametrize("name", OTHER_KINDS)
def test_gpus_of_apple_and_intel_never_read_the_host_s_memory_later(name, kind):
    """Their copies that do not wait would, see ``devices.sent``."""
    found = measure(CASES[name], kind)
    assert found["text"] == found["expected"]
    assert found["ours"]["copies"] == 0


def test_an_amd_gpu_gets_every_mask(monkeypatch):
    """Its FlashAttention aligns causal masks to the beginning."""
    masks = []
    attend = lambda query, key, value, mask, scale: masks.append(mask)  # noqa: E731
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.backends.cuda, "can_use_flash_attention", lambda _: True)
    monkeypatch.setattr(kernels, "attend", attend)
    found = measure(CASES["greedy, gamma 5"])
    assert found["text"] == found["expected"]
    assert len(masks) > 4
    assert not any(each is None for each in masks)


def test_only_masks_of_chains_that_hide_nothing_else_are_skipped(monkeypatch):
    skipped = []
    for name in ("greedy, gamma 5", "batch", "static cache", "windows"):
        monkeypatch.setattr(kernels, "skips_mask", lambda *_, name=name: skipped.append(name))
        measure(CASES[name])
    assert set(skipped) == {"greedy, gamma 5"}


HOST = {
    "joint steps": Case(call=cases._joint, host=True),
    "enabled": Case(call=cases._enabled, host=True),
    "sampled": Case(args=SAMPLED, host=True),
    "scores": Case(args=SCORES, host=True),
    "rows with trees": Case(rows=FOUR, spec={"tree": 8}, host=True),
    "windows": Case("mistral sliding", LONG, spec={"tree": 12}, host=True),
}


@pytest.mark.every(4)
@pytest.mark.parametrize("name", HOST)
def test_a_prompt_on_the_cpu_gives_the_baselines_text(name):
    found = measure(HOST[name])
    assert found["text"] == found["expected"]
    assert found["ours"]["step"] <= max(found["plain"]["step"], 1)


@pytest.mark.parametrize("rows", [ONE, EQUAL * 4, FOUR], ids=["one row", "8 rows", "padded"])
def test_a_call_waits_at_most_twice_more_before_its_steps(rows):
    case = Case(rows=rows, args={"eos_token_id": [60, 59], "max_new_tokens": 4}, spec={"gamma": 2})
    ours, plain = (measure(case)[side] for side in ("ours", "plain"))
    assert ours["before"] <= plain["before"] + 2
    assert ours["prefill"] <= plain["prefill"] + 2


def test_only_forwards_of_one_position_copy_the_weights_of_experts(monkeypatch):
    ids = torch.tensor([[*ONE[0], 40, 41]])
    asked = {"max_new_tokens": 30, "do_sample": False}
    text = cases.model_on(None, "mixtral (experts)").generate(ids, **asked)[0].tolist()
    speculator = Speculator(half_right(text, 61), 4)
    with pretended() as gpu:
        model, seen = cases.model_on(gpu, "mixtral (experts)"), set()
        inner = model.forward

        @wraps(inner)
        def forward(*args, **kwargs):
            seen.add((kwargs["input_ids"].shape[1] > 1, model.get_experts_implementation()[""]))
            return inner(*args, **kwargs)

        monkeypatch.setattr(model, "forward", forward)
        generate(model, on_gpu(ids), speculator=speculator, **asked)
        assert speculator.stats.drafted > 0
        assert seen == {(True, "grouped_mm"), (False, "batched_mm")}
        assert model.get_experts_implementation()[""] == "grouped_mm"
