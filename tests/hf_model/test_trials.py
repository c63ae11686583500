"""Trial forwards: on offloaded models, without memory, and while other threads run."""

from __future__ import annotations

import threading

import pytest
import torch
from accelerate import cpu_offload
from conftest import tiny_llama
from layer_states import GREEDY, PROMPT

import ngramspec
from benchmarks import tiny
from ngramspec.hf_model import trials
from ngramspec.hf_model.assistants import AssistantModel
from ngramspec.hf_model.joint import JointForward
from ngramspec.hf_model.pool import why_not_kept
from ngramspec.measure.forwards import forward_seconds, top_tokens
from ngramspec.stepwise import JointSteps


def hybrid():
    """A model with recurrent states that no trial has seen."""
    transformers = pytest.importorskip("transformers")
    return tiny.build(transformers.Qwen3NextForCausalLM)


def test_a_failing_trial_leaves_no_offloaded_weight_loaded():
    model = cpu_offload(hybrid())
    projection = model.model.layers[0].mlp.experts
    projection._old_forward = lambda *_: 1 / 0  # accelerate has loaded its weights then
    assert "failed" in trials.tested_once(model, lambda model: model(PROMPT), {})
    assert {each.device.type for each in model.parameters()} == {"meta"}


def test_offloaded_models_take_inputs_where_they_compute():
    model = cpu_offload(tiny_llama())
    assert JointSteps(model).why_not is None
    assert why_not_kept(model) is None
    assert [*forward_seconds(model, 4, [1, 2], repeats=1)] == [1, 2]
    assert len(top_tokens(model, [5, 6], [7], 2).ids) == 1
    assert AssistantModel(model).forward(torch.tensor([5, 6, 7]), 2).shape[0] == 2


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_joint_steps_are_tried_again_after_a_lack_of_memory(error, monkeypatch):
    model = tiny_llama()

    def short(*_):
        raise error("none left")

    with monkeypatch.context() as without:
        without.setattr(JointForward, "run", short)
        steps = JointSteps(model)
        assert "none left" in steps.why_not
    assert steps.why_not is None
    assert JointSteps(model).why_not is None


def test_what_another_thread_does_to_the_model_during_a_trial_stays():
    model = tiny_llama()
    state = model.model.layers[0].self_attn
    state.kept, handles = torch.ones(2), []

    def test(model):
        thread = threading.Thread(target=lambda: handles.append(ngramspec.enable(model)))
        thread.start()
        thread.join()
        model.model.layers[1].training = True
        state.kept, state.added = torch.zeros(2), torch.zeros(2)

    assert trials.tested_once(model, test, {}) is None
    assert state.kept.tolist() == [1, 1]
    assert not hasattr(state, "added")
    assert model.model.layers[1].training
    before = handles[0].stats.runs
    model.generate(PROMPT, **GREEDY)
    assert handles[0].stats.runs == before + 1
    handles[0].disable()
