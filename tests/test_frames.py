"""What models come wrapped in: pipelines, chats, adapters, compilers, device maps."""

from __future__ import annotations

import shutil

import pytest
import torch
from conftest import tiny_llama
from doubles import half_right, oracle
from families import build
from prompts import PASSAGES
from transformers import AutoModelForCausalLM, DynamicCache, pipeline

import ngramspec
from ngramspec import Speculator

PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
GREEDY = {"max_new_tokens": 30, "do_sample": False, "pad_token_id": 0}
VOCAB = 97


def three_ways(model, *args, speculator, **kwargs):
    """The outputs of the hook, of ngramspec.generate and of enabled, for the same arguments."""
    yield model.generate(*args, custom_generate=speculator, **kwargs)
    yield ngramspec.generate(model, *args, speculator=speculator, **kwargs)
    with ngramspec.enabled(model, speculator):
        yield model.generate(*args, **kwargs)
    assert "generate" not in vars(model)


def check_three_ways(model, plain=None, **kwargs):
    """All of them give the text of plain ``generate``, and speculate."""
    kwargs = GREEDY | kwargs
    plain = model.generate(PROMPT, **kwargs) if plain is None else plain
    text = plain[0].tolist()
    for drafter in ("auto", oracle(text), half_right(text, VOCAB)):
        speculator = Speculator(drafter, 6)
        for ours in three_ways(model, PROMPT, speculator=speculator, **kwargs):
            assert torch.equal(plain, ours)
        assert speculator.stats.runs == 3
        assert speculator.stats.accepted > 0 or drafter == "auto"


TEXTS = [
    "One, two, three. One, two, three. One, two,",
    f"{PASSAGES[1]} Repeat the text. {PASSAGES[1][:80]}",
]


@pytest.mark.parametrize("how", ["enabled", "custom_generate"])
@pytest.mark.parametrize("what", ["text", "texts", "batched", "chat"])
def test_text_generation_pipeline(smollm2, how, what):
    pipe = pipeline("text-generation", model=smollm2.model, tokenizer=smollm2.tokenizer)
    kwargs = {"max_new_tokens": 12, "do_sample": False, "return_full_text": False}
    inputs = TEXTS[0] if what == "text" else TEXTS
    if what == "chat":
        inputs = [{"role": "user", "content": TEXTS[1]}]
    if what == "batched":
        kwargs["batch_size"] = 2
    plain = pipe(inputs, **kwargs)
    speculator = Speculator()
    if how == "enabled":
        with ngramspec.enabled(pipe.model, speculator):
            ours = pipe(inputs, **kwargs)
    else:
        ours = pipe(inputs, custom_generate=speculator, **kwargs)
    assert ours == plain
    assert speculator.stats.runs == (2 if what == "texts" else 1)
    assert speculator.stats.accepted > 0


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_function_that_summarizes(name):
    """transformers 5 has no pipeline for encoder-decoder text models: what users write instead."""
    model = build(name)

    def summarize(model, documents):
        ids = torch.tensor(documents)
        out = model.generate(input_ids=ids, attention_mask=(ids != 0).long(), **GREEDY)
        return [row.tolist() for row in out]

    documents = [[7, 8, 9, 10, 11, 7, 8, 9, 12, 13], [14, 15, 16, 14, 15, 17, 18, 0, 0, 0]]
    plain = summarize(model, documents)
    with ngramspec.enabled(model) as speculator:
        assert summarize(model, documents) == plain
        assert summarize(model, documents[:1]) == [plain[0]]
    assert speculator.stats.runs == 2
    assert speculator.stats.drafted > 0


def test_chat_template_into_generate(smollm2):
    chat = [
        {"role": "system", "content": "You repeat what you are told."},
        {"role": "user", "content": f"Repeat: {PASSAGES[4]}"},
    ]
    inputs = smollm2.tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    kwargs = {"max_new_tokens": 32, "do_sample": False}
    plain = smollm2.model.generate(**inputs, **kwargs)
    speculator = Speculator()
    ours = ngramspec.generate(smollm2.model, **inputs, speculator=speculator, **kwargs)
    assert torch.equal(plain, ours)
    assert speculator.stats.tokens_per_call > 1.5


TURNS = [
    f"Repeat this: {PASSAGES[2]}",
    "Now only the sentence about Saturdays.",
    "And once more the whole text.",
]


def converse(smollm2, generate, caches):
    """Three turns over one cache; the token ids behind each turn.

    Args:
        generate: called as ``model.generate``; returns a dict-like output.
        caches: called for the first turn's cache, or None: take what generate makes.
    """
    chat, cache, seen = [], None if caches is None else caches(), []
    for turn in TURNS:
        chat.append({"role": "user", "content": turn})
        inputs = smollm2.tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        if seen:  # exactly the tokens that the cache has read, then the new turn's
            new = smollm2.tokenizer.apply_chat_template(
                chat[-1:], add_generation_prompt=True, return_tensors="pt"
            )["input_ids"]
            inputs = {"input_ids": torch.cat((seen[-1], new), dim=1)}
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        out = generate(
            **inputs,
            past_key_values=cache,
            max_new_tokens=20,
            do_sample=False,
            return_dict_in_generate=True,
        )
        cache = out.past_key_values
        assert cache.get_seq_length() == out.sequences.shape[1] - 1
        seen.append(out.sequences)
        answer = smollm2.tokenizer.decode(out.sequences[0, inputs["input_ids"].shape[1] :])
        chat.append({"role": "assistant", "content": answer})
    return seen


@pytest.mark.parametrize("caches", [None, DynamicCache])
def test_turns_over_a_kept_cache(smollm2, caches):
    model = smollm2.model
    plain = converse(smollm2, model.generate, caches)
    speculator = Speculator()
    ours = converse(
        smollm2, lambda **kw: ngramspec.generate(model, speculator=speculator, **kw), caches
    )
    for mine, theirs in zip(ours, plain, strict=True):
        assert torch.equal(mine, theirs)
    assert speculator.stats.accepted > 10


def with_adapter():
    """A tiny Llama with a LoRA adapter that changes its text, and the text without."""
    peft = pytest.importorskip("peft", reason="pip install 'ngramspec[test]'")
    model = tiny_llama()
    bare = model.generate(PROMPT, **GREEDY)
    torch.manual_seed(4)
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=False
    )
    return peft.get_peft_model(model, config).eval(), bare


def test_adapters():
    model, bare = with_adapter()
    plain = model.generate(PROMPT, **GREEDY)
    assert not torch.equal(plain, bare)
    check_three_ways(model, input_ids=None)
    for ours in three_ways(model, input_ids=PROMPT, speculator=Speculator(gamma=4), **GREEDY):
        assert torch.equal(ours, plain)
    with model.disable_adapter():
        assert torch.equal(ngramspec.generate(model, PROMPT, **GREEDY), bare)
    assert torch.equal(ngramspec.generate(model.merge_and_unload(), PROMPT, **GREEDY), plain)


def test_enabled_on_an_adapter_s_inner_model():
    model, _ = with_adapter()
    plain = model.generate(PROMPT, **GREEDY)
    with ngramspec.enabled(model.get_base_model()) as speculator:
        assert torch.equal(model.generate(PROMPT, **GREEDY), plain)
    assert speculator.stats.runs == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("what", ["model", "forward"])
def test_compiled_models(backend, what):
    check_compiled(backend, what)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="inductor needs a C compiler")
@pytest.mark.parametrize("what", ["model", "forward"])
def test_models_compiled_by_inductor(what):
    check_compiled("inductor", what)


def check_compiled(backend, what):
    torch._dynamo.reset()
    model = tiny_llama()
    plain = model.generate(PROMPT, **GREEDY)
    graphs = []

    if what == "model":
        model = torch.compile(model, backend=backend, dynamic=True)
    else:
        model.forward = torch.compile(model.forward, backend=backend, dynamic=True)
    del graphs
    check_three_ways(model, plain)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with the tiny Llama, and its plain text."""
    folder = tmp_path_factory.mktemp("model")
    model = tiny_llama()
    model.save_pretrained(folder)
    return folder, model.generate(PROMPT, **GREEDY)


OFFLOADED = {
    "model.embed_tokens": "cpu",
    "model.layers.0": "disk",
    "model.layers.1": "cpu",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "disk",
}


@pytest.mark.parametrize("device_map", ["auto", "cpu", {"": "cpu"}, OFFLOADED], ids=str)
def test_device_maps(saved, tmp_path, device_map):
    folder, plain = saved
    model = AutoModelForCausalLM.from_pretrained(
        folder, device_map=device_map, offload_folder=tmp_path, dtype=torch.float32
    )
    if device_map is OFFLOADED:
        assert model.lm_head.weight.device.type == "meta"  # its hook brings it for each forward
    check_three_ways(model, plain)
