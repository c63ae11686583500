"""What rules speculation out, and that the remedy which the error names works."""

from __future__ import annotations

import ast
import copy
import re

import peft
import pytest
import torch
from any_model import tiny_chat
from conftest import tiny_llama
from doubles import Puts
from families import build
from fuzz.remote import OwnSample
from transformers import GenerationConfig, LlamaForCausalLM, MusicgenMelodyForCausalLM

import ngramspec
from benchmarks import tiny as small_models
from ngramspec import Speculator, UnsupportedError
from ngramspec.hf_model.facts import OFF_VALUES
from ngramspec.stepwise import open_generation

PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
GREEDY = {"max_new_tokens": 8, "do_sample": False}
SETTINGS = {
    "beam groups": {"num_beams": 4, "num_beam_groups": 2},
    "lookup": {"prompt_lookup_num_tokens": 3},
    "constraints": {"constraints": [1]},
    "dola": {"dola_layers": "low"},
    "forced words": {"force_words_ids": [[5]]},
    "contrastive": {"penalty_alpha": 0.6, "top_k": 4},
    "healing": {"token_healing": True},
    "paged": {"cache_implementation": "paged"},
    "no cache": {"use_cache": False},
    "early exit": {"assistant_early_exit": 1},
}
BY_HOOK = SETTINGS.keys() - {"healing", "paged"}  # which transformers sees to before it


def configured(settings):
    """A model whose checkpoint had these settings in its own generation config."""
    model = tiny_llama()
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    return model


def remedy(error):
    """The arguments that an error says to pass."""
    passed = re.search(r"; pass (.*)", str(error)).group(1)
    found = re.findall(r"(\w+)=(\S+?)(?:,|$)", passed)
    return {name: ast.literal_eval(value) for name, value in found}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("where", ["checkpoint", "config"])
def test_the_remedy_overrides_what_a_config_says(name, where):
    settings, given = SETTINGS[name], {}
    model = configured(settings if where == "checkpoint" else {})
    if where == "config":
        given["generation_config"] = copy.deepcopy(model.generation_config)
        for each, value in settings.items():
            setattr(given["generation_config"], each, value)

    def by_hook(**kwargs):
        return model.generate(PROMPT, custom_generate=Speculator(), **given, **GREEDY, **kwargs)

    def ours(**kwargs):
        return ngramspec.generate(model, PROMPT, **given, **GREEDY, **kwargs)

    for call in (by_hook, ours) if name in BY_HOOK else (ours,):
        passed = {}
        for _ in range(len(settings)):  # what is found in two places is refused one by one
            with pytest.raises(UnsupportedError) as error:
                call(**passed)
            passed |= remedy(error.value)
            if passed.keys() >= settings.keys() & {*OFF_VALUES, "use_cache"}:
                break
        assert torch.equal(call(**passed), model.generate(PROMPT, **given, **GREEDY, **passed))


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral sliding", "t5"])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_cache_that_is_neither_asked_for_nor_refused_is_used(family, rows):
    """As with use_cache=True; plain generate reads all anew on top of the cache that it made."""
    model, prompt, seen = build(family), PROMPT.repeat(rows, 1), []
    expected = model.generate(prompt, use_cache=True, **GREEDY)
    model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["use_cache"]), with_kwargs=True
    )
    for speculator in (Speculator(), Speculator(gamma=4)):
        ours = ngramspec.generate(model, prompt, use_cache=None, speculator=speculator, **GREEDY)
        assert torch.equal(ours, expected)
        assert speculator.stats.runs == 1
    assert set(seen) == {True}  # under None images would be read again in every forward


# Methods of a model's own


class OwnEnd(LlamaForCausalLM):
    """Stops by itself after three tokens."""

    left = 3

    def _has_unfinished_sequences(self, *args, **kwargs):
        self.left -= 1
        return self.left >= 0 and super()._has_unfinished_sequences(*args, **kwargs)


@pytest.mark.parametrize("kind", [OwnSample, OwnEnd])
def test_a_loop_of_the_model_s_own_is_not_left_out(tiny, kind, caplog):
    method = "_sample" if kind is OwnSample else "_has_unfinished_sequences"
    model = kind(tiny.config).eval()
    expected = model.generate(PROMPT, **GREEDY)
    assert expected.shape[1] == (19 if kind is OwnSample else 13)
    for call in (
        lambda: ngramspec.generate(model, PROMPT, **GREEDY),
        lambda: model.generate(PROMPT, custom_generate=Speculator(), **GREEDY),
    ):
        with pytest.raises(UnsupportedError, match=f"{kind.__name__} overrides {method}"):
            call()
    model.left = 3
    ours = ngramspec.generate(model, PROMPT, speculator=Speculator(unsupported="plain"), **GREEDY)
    assert torch.equal(ours, expected)
    assert f"overrides {method}" in caplog.text


class OwnGenerate(LlamaForCausalLM):
    """Has other names than transformers', one of them positional only."""

    def generate(self, input_ids, shift=0, most=5, /, config=None, streamer=None, **kwargs):
        config = config or GenerationConfig(do_sample=False)
        return shift + super().generate(
            input_ids, config, streamer=streamer, max_new_tokens=most, **kwargs
        )


@pytest.mark.parametrize("how", ["generate", "enabled"])
def test_positional_arguments_have_the_names_of_the_model_s_own_generate(tiny, how):
    model = OwnGenerate(tiny.config).eval()
    speculator = Speculator(unsupported="error")
    streamers = [Puts(), Puts()]

    def call(*args, **kwargs):
        if how == "generate":
            return ngramspec.generate(model, *args, speculator=speculator, **kwargs)
        with ngramspec.enable(model, speculator):
            return model.generate(*args, **kwargs)

    config = GenerationConfig(do_sample=False, repetition_penalty=1.3)
    for args in ((), (2,), (2, 9), (2, 9, config)):
        assert torch.equal(call(PROMPT, *args), model.generate(PROMPT, *args))
    expected = model.generate(PROMPT, 2, 9, config, streamers[0])
    assert torch.equal(call(PROMPT, 2, 9, config, streamers[1]), expected)
    assert streamers[0].puts == streamers[1].puts
    assert streamers[0].ended == streamers[1].ended == 1
    assert speculator.stats.runs == 5
    refused = GenerationConfig(num_beam_groups=2)
    with pytest.raises(UnsupportedError, match="num_beam_groups=2"):
        call(PROMPT, 2, 9, refused, streamers[1])
    assert streamers[1].ended == 2
    with pytest.raises(TypeError, match="multiple values for argument 'config'"):
        call(PROMPT, 2, 9, config, config=config, streamer=streamers[1])
    assert streamers[1].ended == 3
    with pytest.raises(TypeError, match="at most 5 positional arguments"):
        call(PROMPT, 1, 2, 3, 4, 5)


def test_positional_arguments_under_an_adapter(tiny):
    """Its generate takes any and hands them to that of the model which it was put on."""
    model = OwnGenerate(tiny.config).eval()
    settings = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"])
    model = peft.get_peft_model(model, settings).eval()
    config = GenerationConfig(do_sample=False, repetition_penalty=1.3)
    speculator = Speculator()
    ours = ngramspec.generate(model, PROMPT, 2, 9, config, speculator=speculator)
    assert torch.equal(ours, model.generate(PROMPT, 2, 9, config))
    assert speculator.stats.runs == 1
    with pytest.raises(UnsupportedError, match="num_beam_groups=2"):
        ngramspec.generate(model, PROMPT, 2, 9, GenerationConfig(num_beam_groups=2))


class Narrow(LlamaForCausalLM):
    def generate(self, input_ids, max_new_tokens=4):
        return super().generate(input_ids, max_new_tokens=max_new_tokens, do_sample=False)


class Deaf(LlamaForCausalLM):
    def generate(self, input_ids, **kwargs):
        return super().generate(input_ids, max_new_tokens=4, do_sample=False)


class Strict(LlamaForCausalLM):
    """Validates its arguments, as MusicGen does."""

    error, seen = ValueError, ()

    def generate(self, inputs, **kwargs):
        if "custom_generate" in kwargs:
            raise self.error("not used by the model: ['custom_generate']")
        self.seen = kwargs
        return super().generate(inputs, **kwargs)


def musicgen():
    config = small_models.small(MusicgenMelodyForCausalLM.config_class, num_codebooks=2)
    model = MusicgenMelodyForCausalLM(config).eval()
    tokens = dict.fromkeys(("bos_token_id", "pad_token_id", "decoder_start_token_id"), 60)
    model.generation_config.update(**tokens, eos_token_id=None, guidance_scale=3.0)
    return model


@pytest.mark.parametrize("error", [ValueError, TypeError, None])
@pytest.mark.filterwarnings("ignore:.*max_length:UserWarning")
def test_a_generate_that_refuses_custom_generate_runs_with_the_original_arguments(error, caplog):
    tokenizer = tiny_chat()[1]
    given = {"max_new_tokens": 6, "do_sample": False}
    if error is None:
        model, ids = musicgen(), torch.tensor([[60], [60]])
    else:
        model, ids = Strict(tiny_chat()[0].config).eval(), PROMPT
        model.error = error
        given |= {"stop_strings": ["zzz"], "tokenizer": tokenizer, "synced_gpus": False}
    expected = model.generate(ids, **given)
    with ngramspec.enable(model) as handle:
        for _ in range(2):
            assert torch.equal(model.generate(ids, **given), expected)
    assert error is None or model.seen == given
    assert handle.stats.runs == 0
    name = type(model).__name__
    assert caplog.text.count(f"the generate of {name} takes no custom_generate") == 1
    for call in (ngramspec.generate, open_generation):
        with pytest.raises(UnsupportedError, match=f"{name} takes no custom_generate"):
            call(model, ids, **given)


def test_a_generate_that_takes_no_speculator_is_named(tiny, caplog):
    model = Narrow(tiny.config).eval()
    expected = model.generate(PROMPT)
    with pytest.raises(UnsupportedError, match=r"generate of Narrow takes no custom_generate"):
        ngramspec.generate(model, PROMPT, max_new_tokens=4)
    with (
        ngramspec.enable(model, Speculator(unsupported="error")),
        pytest.raises(UnsupportedError, match=r"Narrow .* Speculator\(unsupported='plain'\)"),
    ):
        model.generate(PROMPT, 4)
    with ngramspec.enable(model):
        assert torch.equal(model.generate(PROMPT, 4), expected)
    assert "generate of Narrow takes no custom_generate" in caplog.text


def test_a_generate_that_does_not_call_the_speculator_is_named(tiny, caplog):
    model = Deaf(tiny.config).eval()
    speculator = Speculator()
    for _ in range(2):
        ours = ngramspec.generate(model, PROMPT, speculator=speculator)
        assert torch.equal(ours, model.generate(PROMPT))
    assert sum("generate of Deaf did not" in each.getMessage() for each in caplog.records) == 1
    ngramspec.generate(tiny, PROMPT, speculator=speculator, **GREEDY)
    assert "of Llama" not in caplog.text


# Training mode


def warnings_of(model, caplog, calls=1):
    """How often it is said that dropout changes the text."""
    caplog.clear()
    speculator = Speculator()
    for _ in range(calls):
        ngramspec.generate(model, PROMPT, speculator=speculator, **GREEDY)
        model.generate(PROMPT, custom_generate=speculator, **GREEDY)
    return sum("model.eval()" in record.getMessage() for record in caplog.records)


def test_dropout_is_warned_of_once_a_speculator(caplog):
    model = build("gpt2")
    assert warnings_of(model, caplog) == 0
    model.train()
    assert warnings_of(model, caplog, calls=2) == 1
    assert warnings_of(model, caplog) == 1
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    assert warnings_of(model, caplog) == 0


def test_dropout_by_function_and_in_adapters_counts_too(caplog):
    model = tiny_llama(attention_dropout=0.1)
    assert warnings_of(model, caplog) == 0
    assert warnings_of(model.train(), caplog) == 1
    model = tiny_llama()
    assert warnings_of(model.train(), caplog) == 0  # the model has none
    model.eval().lm_head = torch.nn.Sequential(model.lm_head, torch.nn.Dropout(0.1))
    assert warnings_of(model, caplog) == 1  # put on afterwards, and in training mode
    assert warnings_of(model.eval(), caplog) == 0


# int32


def test_int32_prompts_of_decoders():
    model = build("t5")
    kwargs = {"decoder_input_ids": torch.tensor([[0, 5, 6]], dtype=torch.int32)} | GREEDY
    plain = model.generate(PROMPT, **kwargs)
    ours = ngramspec.generate(model, PROMPT, **kwargs)
    assert (plain.dtype, plain.tolist()) == (ours.dtype, ours.tolist())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
def test_dtypes_that_no_embedding_takes_raise_as_in_plain_generate(tiny, dtype):
    for call in (tiny.generate, lambda *args, **kwargs: ngramspec.generate(tiny, *args, **kwargs)):
        with pytest.raises(RuntimeError, match="scalar types: Long, Int"):
            call(PROMPT.to(dtype), **GREEDY)


# What transformers decodes instead


PLAIN = [{"num_beams": 2, "do_sample": True}]
PLAIN += [SETTINGS[name] for name in ("lookup", "no cache", "early exit")]


@pytest.mark.parametrize("kwargs", PLAIN)
def test_unsupported_plain_hands_over_to_generate(tiny, kwargs, caplog):
    kwargs = GREEDY | kwargs
    torch.manual_seed(0)
    plain = tiny.generate(PROMPT, **kwargs)
    speculator = Speculator(unsupported="plain")
    for _ in range(2):
        torch.manual_seed(0)
        ours = ngramspec.generate(tiny, PROMPT, speculator=speculator, **kwargs)
        assert torch.equal(plain, ours)
    assert sum("without speculation" in each.getMessage() for each in caplog.records) == 1
    assert speculator.stats.runs == 0


def test_unsupported_calls_run_as_the_baseline_while_enabled(tiny, caplog):
    kwargs = {"max_new_tokens": 6, "do_sample": False, "use_cache": False}
    expected = tiny.generate(PROMPT, **kwargs)
    with ngramspec.enable(tiny) as handle:
        for _ in range(2):
            assert torch.equal(tiny.generate(PROMPT, **kwargs), expected)
    assert handle.stats.runs == 0
    assert sum("use_cache=False" in record.getMessage() for record in caplog.records) == 1
    with pytest.raises(UnsupportedError, match="use_cache=False"):
        tiny.generate(PROMPT, custom_generate=Speculator(), **kwargs)
    error = Speculator(unsupported="error")
    with ngramspec.enable(tiny, error), pytest.raises(UnsupportedError, match="use_cache=False"):
        tiny.generate(PROMPT, **kwargs)


@pytest.mark.parametrize(
    "setting",
    [{"num_assistant_tokens_schedule": "heuristic"}, {"assistant_confidence_threshold": 0.7}],
)
def test_settings_of_assistants_are_refused_unless_they_are_the_model_s_own(setting):
    model, (name,) = tiny_llama(), setting
    with pytest.raises(UnsupportedError, match=rf"{name}=.* Speculator\(gamma="):
        ngramspec.generate(model, PROMPT, **GREEDY, **setting)
    config = GenerationConfig(**GREEDY, **setting)
    with pytest.raises(UnsupportedError, match=name):
        model.generate(PROMPT, generation_config=config, custom_generate=Speculator())
    model.generation_config.update(**setting)
    expected = model.generate(PROMPT, **GREEDY)
    assert torch.equal(ngramspec.generate(model, PROMPT, **GREEDY), expected)


def test_what_plain_decoding_cannot_take_is_refused_and_ends_the_stream(tiny):
    puts = Puts()
    speculator = Speculator(unsupported="plain")
    beams = {"max_new_tokens": 4, "do_sample": False, "num_beams": 2, "speculator": speculator}
    with pytest.raises(UnsupportedError, match=r"streamer .*num_beams=2"):
        ngramspec.generate(tiny, PROMPT, streamer=puts, **beams)
    assert puts.ended == 1
    generator = torch.Generator()
    for extra in ({"do_sample": True}, {"token_healing": True}):
        with pytest.raises(UnsupportedError, match="generator"):
            ngramspec.generate(tiny, PROMPT, generator=generator, **beams | extra)
    other = {"assistant_model": tiny_llama(seed=1), "reference_ids": [1, 2]}
    ours = ngramspec.generate(tiny, PROMPT, **beams | {"num_beams": 1} | other)
    assert torch.equal(ours, tiny.generate(PROMPT, max_new_tokens=4, do_sample=False))


def test_two_heads_and_healing_beside_a_speculator(tiny):
    other = tiny_llama(seed=1)
    kwargs = {"max_new_tokens": 6, "do_sample": False}
    two = {"assistant_model": other, "use_mtp": True}
    for extra in (two, {"token_healing": True}):
        name = next(iter(extra))
        with pytest.raises(UnsupportedError, match=name):
            ngramspec.generate(tiny, PROMPT, **kwargs, **extra)
        speculator = Speculator(unsupported="error")
        with ngramspec.enable(tiny, speculator), pytest.raises(UnsupportedError, match=name):
            tiny.generate(PROMPT, **kwargs, **extra)
    plain = tiny.generate(PROMPT, **kwargs, assistant_model=other)
    speculator = Speculator(unsupported="plain")
    ours = ngramspec.generate(tiny, PROMPT, speculator=speculator, **kwargs, assistant_model=other)
    assert torch.equal(plain, ours)
    assert torch.equal(
        ngramspec.generate(tiny, PROMPT, **kwargs, assistant_model=None, synced_gpus=False),
        tiny.generate(PROMPT, **kwargs),
    )


def test_bad_prompts_name_the_argument_the_bound_and_the_value(tiny):
    for ids, message in [
        (torch.tensor([[3, -1, 4]]), r"input_ids must lie in 0\.\.96, got -1"),
        (torch.tensor([[3, 97, 4]]), r"input_ids must lie in 0\.\.96, got 97"),
        (torch.empty((1, 0), dtype=torch.long), r"at least one token, got shape \(1, 0\)"),
        (PROMPT[:0], r"input_ids must hold at least one row, got shape \(0, \d+\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            ngramspec.generate(tiny, ids, max_new_tokens=4)
    with pytest.raises(ValueError, match=r"inputs_embeds must hold at least one row, got shape"):
        ngramspec.generate(tiny, inputs_embeds=torch.zeros(0, 5, 32), max_new_tokens=4)


def test_embeddings_in_chunks_are_refused_because_every_chunk_would_read_them_all(tiny):
    embeddings = tiny.get_input_embeddings()(PROMPT).detach()
    given = {"inputs_embeds": embeddings, "max_new_tokens": 4, "do_sample": False}
    with pytest.raises(UnsupportedError, match="remove prefill_chunk_size"):
        ngramspec.generate(tiny, PROMPT, prefill_chunk_size=4, **given)
    ours = ngramspec.generate(tiny, PROMPT, **given)
    assert ours.tolist() == tiny.generate(PROMPT, **given).tolist()
