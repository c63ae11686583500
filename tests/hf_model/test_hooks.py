"""Forward hooks: those of users, which speculation may affect, and ours, which stay registered."""

from __future__ import annotations

import copy
import pickle
import types

import pytest
import torch
from accelerate import cpu_offload
from batches import RowTrees, batch, row_texts
from conftest import tiny_llama
from doubles import oracle
from families import ENCODER_DECODER, VARIED, build
from plain_text import same_text

import ngramspec
from ngramspec import Speculator
from ngramspec.draft import EvidenceRequest
from ngramspec.hf_model.compat.caches import cache_of
from ngramspec.hf_model.compat.hooks import hooked_modules, is_ours

IDS = torch.tensor([[5, 6, 7, 8, 9, 10] * 4])
GREEDY = {"do_sample": False, "max_new_tokens": 16}
MANY = 12  # positions of a forward that a hook takes for a prompt


def compresses_prompts(module, args, kwargs, output):
    """Keep the first 4 and the last 8 keys and values after a forward of many positions."""
    if kwargs["hidden_states"].shape[1] >= MANY:
        layer = cache_of(kwargs).layers[module.layer_idx]
        for name in ("keys", "values"):
            states = getattr(layer, name)
            setattr(layer, name, torch.cat((states[:, :, :4], states[:, :, -8:]), dim=2))


def attentions(model):
    return [layer.self_attn for layer in model.model.layers]


def compressing(replaced):
    """A model whose attentions compress prompts, in a hook or in a replaced ``forward``."""
    model = tiny_llama()
    for module in attentions(model):
        if replaced:
            own = module.forward

            def forward(self, *args, own=own, **kwargs):
                output = own(*args, **kwargs)
                compresses_prompts(self, args, kwargs, output)
                return output

            module.forward = types.MethodType(forward, module)
        else:
            module.register_forward_hook(compresses_prompts, with_kwargs=True)
    return model


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("gamma", [8, "auto"])
@pytest.mark.parametrize("entry", ["generate", "enable"])
def test_a_hook_that_compresses_prompts_sees_the_prompt_alone(replaced, gamma, entry, caplog):
    model = compressing(replaced)
    prompt = IDS[:, :-1]
    call = GREEDY | {"return_dict_in_generate": True}
    plain = model.generate(prompt, **call)
    known = oracle(plain.sequences[0].tolist())
    speculator = Speculator(known, gamma, gamma_max=8)
    for _ in range(2):
        if entry == "generate":
            ours = ngramspec.generate(model, prompt, speculator=speculator, **call)
        else:
            with ngramspec.enable(model, speculator):
                ours = model.generate(prompt, **call)
        assert torch.equal(ours.sequences, plain.sequences)
        lengths = [cache_of(each).get_seq_length() for each in (ours, plain)]
        assert lengths == [MANY + GREEDY["max_new_tokens"] - 1] * 2
    assert speculator.stats.accepted
    warned = [each for each in caplog.messages if "forward hook" in each]
    assert len(warned) == 1
    assert warned[0].startswith("model.layers.0.self_attn has a forward hook or a replaced forward")


def test_a_prefill_draft_is_made_where_no_hook_counts_positions(tiny):
    """Otherwise the test above would hold for any hook."""
    assert same_text(tiny, lambda text: Speculator(oracle(text)), IDS, **GREEDY).prefill_drafted


def test_hooks_of_libraries_and_forwards_that_are_only_wrapped_do_not_count_positions(caplog):
    model = tiny_llama()
    assert not [*hooked_modules(cpu_offload(tiny_llama()))]
    compiled = attentions(model)[0]
    compiled.forward = torch.compile(compiled.forward, backend="eager")
    assert not [*hooked_modules(model)]

    def adapter(module, args):
        return None

    adapter.__module__ = "peft.tuners.lora.model"
    attentions(model)[1].q_proj.register_forward_pre_hook(adapter)
    assert [*hooked_modules(model)] == [("model.layers.1.self_attn.q_proj", True)]
    ngramspec.generate(model, IDS, speculator=Speculator("copy"), **GREEDY)
    assert not [each for each in caplog.messages if "forward hook" in each]
    offloaded = compressing(replaced=True)
    cpu_offload(offloaded)
    assert len([*hooked_modules(offloaded)]) == len(attentions(offloaded))


class HiddenTrees(RowTrees):
    """Requests the states that the model's head reads."""

    evidence = EvidenceRequest(hidden=True)


# What ngramspec changes in their forwards: attention, positions, and the reading of states.
CHANGED = [
    ("mistral sliding", RowTrees, False),
    ("mistral sliding", RowTrees, True),
    ("bart decoder", RowTrees, False),
    ("t5", RowTrees, False),
    ("llama", HiddenTrees, False),
]


@pytest.mark.parametrize(("name", "drafter", "enabled"), CHANGED)
def test_a_copy_made_during_a_forward_is_a_plain_model(name, drafter, enabled):
    """As in another thread that copies, pickles or saves the model meanwhile."""
    model, inputs = build(name), batch(1)
    call = {**inputs, **GREEDY} | VARIED
    plain = model.generate(**call)
    copies, pickles = [], []

    def look(*_):
        hook.remove()
        copies.append(copy.deepcopy(model))
        pickles.append(pickle.dumps(model))

    def arm(event):
        nonlocal hook
        if event.index == 2:
            hook = model.get_output_embeddings().register_forward_pre_hook(look)

    hook = None
    texts = row_texts(inputs, plain, encoded=name in ENCODER_DECODER)
    speculator = Speculator(drafter(texts), 9, tree=9, on_step=arm)
    if enabled:
        with ngramspec.enable(model, speculator):
            ours = model.generate(**call)
    else:
        ours = ngramspec.generate(model, speculator=speculator, **call)
    assert torch.equal(ours, plain)
    assert b"ngramspec" not in pickles[0]
    assert b"ngramspec" not in pickle.dumps(model)  # what stays registered is in no pickle
    for each in (*copies, pickle.loads(pickles[0])):
        assert type(each.config._attn_implementation) is str
        assert torch.equal(each.generate(**call), plain)
        again = Speculator(drafter(texts), 9, tree=9)
        assert torch.equal(ngramspec.generate(each, speculator=again, **call), plain)
        assert again.stats.accepted
    every = [
        hook
        for module in model.modules()
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    ]
    assert all(is_ours(each) for each in every)
    assert len(every) == len({id(each) for each in every})
    assert bool(every) == (name != "mistral sliding")
