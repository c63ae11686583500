"""What models come wrapped in: pipelines, chats, adapters, compilers, device maps."""

from __future__ import annotations

import shutil

import peft
import pytest
import torch
from any_model import tiny_chat
from conftest import tiny_llama
from doubles import half_right, oracle, random_drafter
from families import build
from packaging.version import Version
from plain_text import PROMPT, three_ways
from prompts import PASSAGES
from torch._dynamo.utils import counters
from transformers import AutoModelForCausalLM, Qwen3NextForCausalLM, pipeline
from transformers.integrations.peft import MIN_PEFT_VERSION

import ngramspec
from benchmarks import tiny as tiny_models
from ngramspec import Speculator, UnsupportedError

GREEDY = {"max_new_tokens": 30, "do_sample": False, "pad_token_id": 0}
VOCAB = 97


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


@pytest.mark.parametrize("what", ["text", "texts", "batched", "chat"])
def test_text_generation_pipeline(what):
    model, tokenizer = tiny_chat()
    pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)
    kwargs = {"max_new_tokens": 12, "do_sample": False, "return_full_text": False}
    inputs = TEXTS[0] if what == "text" else TEXTS
    if what == "chat":
        inputs = [{"role": "user", "content": TEXTS[1]}]
    if what == "batched":
        kwargs["batch_size"] = 2
    plain = pipe(inputs, **kwargs)
    hook, with_block = (Speculator(random_drafter(VOCAB), 4) for _ in range(2))
    assert pipe(inputs, custom_generate=hook, **kwargs) == plain
    with ngramspec.enable(pipe.model, with_block):
        assert pipe(inputs, **kwargs) == plain
        torch.manual_seed(5)
        sampled = pipe(TEXTS[0], max_new_tokens=12)  # pipelines may sample by default
    torch.manual_seed(5)
    assert sampled == pipe(TEXTS[0], max_new_tokens=12)
    for speculator, more in ((hook, 0), (with_block, 1)):
        assert speculator.stats.runs == (2 if what == "texts" else 1) + more
        assert speculator.stats.drafted > 0
        assert speculator.stats.drafter_faults == 0


def adapted(kind="Lora", **settings):
    """A tiny Llama with an adapter that changes its text."""
    torch.manual_seed(4)
    config = getattr(peft, f"{kind}Config")(task_type="CAUSAL_LM", **settings)
    return peft.get_peft_model(tiny_llama(), config).eval()


LORA = {"r": 4, "target_modules": ["q_proj", "v_proj", "up_proj"], "init_lora_weights": False}


def test_adapters(tiny):
    model, bare = adapted(**LORA), tiny.generate(PROMPT, **GREEDY)
    plain = model.generate(PROMPT, **GREEDY)
    assert not torch.equal(plain, bare)
    check_three_ways(model)
    with model.disable_adapter():
        assert torch.equal(ngramspec.generate(model, PROMPT, **GREEDY), bare)
    assert torch.equal(ngramspec.generate(model.merge_and_unload(), PROMPT, **GREEDY), plain)


def recurrent():
    return tiny_models.build(Qwen3NextForCausalLM)


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("make", "modules", "asked"),
    [
        (tiny_llama, LORA["target_modules"], {}),
        (tiny_llama, ["q_proj", "v_proj"], {"num_beams": 3}),
        (lambda: build("t5"), ["q", "v"], {"num_beams": 3}),
        (recurrent, ["in_proj_qkvz"], {}),  # its trial has one row
    ],
    ids=["llama", "beams", "encoder", "recurrent"],
)
def test_adapters_of_each_row(make, modules, asked):
    torch.manual_seed(4)
    base = make()
    task = "SEQ_2_SEQ_LM" if base.config.is_encoder_decoder else "CAUSAL_LM"
    lora = peft.LoraConfig(task_type=task, **(LORA | {"target_modules": modules}))
    model = peft.get_peft_model(base, lora).eval()
    names = {"adapter_names": ["__base__", "default"]}
    kwargs = {"input_ids": PROMPT.repeat(2, 1), **names, **GREEDY, **asked}
    plain = model.generate(**kwargs)
    assert not torch.equal(plain[0], plain[1])
    for ours in three_ways(model, speculator=Speculator(gamma=4), **kwargs):
        assert torch.equal(ours, plain)


@pytest.mark.skipif(
    Version(peft.__version__) < Version(MIN_PEFT_VERSION),
    reason=f"model.add_adapter of this transformers needs peft {MIN_PEFT_VERSION}",
)
def test_adapters_that_transformers_put_on():
    model = tiny_llama()
    bare = model.generate(PROMPT, **GREEDY)
    torch.manual_seed(4)
    model.add_adapter(peft.LoraConfig(**LORA))
    assert not torch.equal(model.eval().generate(PROMPT, **GREEDY), bare)
    check_three_ways(model)


def test_enabled_on_an_adapter_s_inner_model():
    model = adapted(**LORA)
    plain = model.generate(PROMPT, **GREEDY)
    with ngramspec.enable(model.get_base_model()) as handle:
        assert torch.equal(model.generate(PROMPT, **GREEDY), plain)
    assert handle.stats.runs == 1


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("PromptTuning", {"num_virtual_tokens": 4}, "PROMPT_TUNING"),
        ("PrefixTuning", {"num_virtual_tokens": 4}, "PREFIX_TUNING"),
        ("Lora", LORA | {"alora_invocation_tokens": [9, 5, 6]}, "alora_invocation_tokens"),
    ],
)
def test_adapters_that_go_by_the_width_are_refused_by_name(kind, settings, message):
    model = adapted(kind, **settings)
    for call in (
        lambda: model.generate(PROMPT, custom_generate=Speculator(), **GREEDY),
        lambda: ngramspec.generate(model, PROMPT, **GREEDY),
    ):
        with pytest.raises(UnsupportedError, match=message):
            call()
    if kind != "PrefixTuning":
        plain = model.generate(PROMPT, **GREEDY)
        speculator = Speculator(unsupported="plain")
        ours = ngramspec.generate(model, PROMPT, speculator=speculator, **GREEDY)
        assert torch.equal(ours, plain)


def test_a_compiled_model():
    check_compiled("eager", "model")


def test_enabled_twice_on_a_compiled_model():
    model = torch.compile(tiny_llama(), backend="eager")
    with ngramspec.enable(model) as outer:
        with ngramspec.enable(model, Speculator("none")) as inner:
            model.generate(PROMPT, **GREEDY)
        model.generate(PROMPT, **GREEDY)
    model.generate(PROMPT, **GREEDY)
    assert (outer.stats.runs, inner.stats.runs) == (1, 1)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="inductor needs a C compiler")
@pytest.mark.parametrize("what", ["model", "forward"])
def test_models_compiled_by_inductor(what):
    check_compiled("inductor", what)


def check_compiled(backend, what):
    """``generate`` of a compiled model calls the model as it was; a compiled forward is called."""
    torch._dynamo.reset()
    model = tiny_llama(num_hidden_layers=1)
    plain = model.generate(PROMPT, **GREEDY)
    before = counters["stats"]["unique_graphs"]
    if what == "model":
        model = torch.compile(model, backend=backend, dynamic=True)
    else:
        model.forward = torch.compile(model.forward, backend=backend, dynamic=True)
    check_three_ways(model, plain)
    graphs = counters["stats"]["unique_graphs"] - before
    assert graphs == 0 if what == "model" else 0 < graphs < 8  # and not one for each width


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model = tiny_llama()
    model.save_pretrained(folder)
    return folder, model.generate(PROMPT, **GREEDY)


OFFLOADED = dict.fromkeys(("model.layers.0", "lm_head"), "disk")
OFFLOADED |= {f"model.{each}": "cpu" for each in ("embed_tokens", "layers.1", "norm", "rotary_emb")}


@pytest.mark.parametrize("device_map", ["auto", OFFLOADED], ids=str)
def test_device_maps(saved, tmp_path, device_map):
    folder, plain = saved
    model = AutoModelForCausalLM.from_pretrained(
        folder, device_map=device_map, offload_folder=tmp_path, dtype=torch.float32
    )
    if device_map is OFFLOADED:
        assert model.lm_head.weight.device.type == "meta"  # its hook brings it for each forward
    check_three_ways(model, plain)
