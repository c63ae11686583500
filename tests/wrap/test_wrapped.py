"""What a model loaded from a wrapped folder does, and its settings."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys

import pytest
import torch
from threads import PROMPTS, assert_each_is, in_threads
from transformers import AutoModelForCausalLM, GenerationConfig, pipeline
from wrapping import GREEDY, PROMPT, SETTINGS, answer, checkout, letters, load, save_tiny, stats_of

import ngramspec
from ngramspec import Speculator, UnsupportedError
from ngramspec.wrap import wrapped
from ngramspec.wrap.folder import wrap


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("saved") / "tiny")


@pytest.fixture(scope="module")
def plain(folder):
    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.fixture(scope="module")
def wrapped_folder(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("wrapped") / "tiny"
    wrap(folder, out, SETTINGS)
    return out


@pytest.fixture
def model(wrapped_folder):
    return load(wrapped_folder)


REQUESTS = {
    "greedy": {},
    "batch": {"input_ids": PROMPT.repeat(2, 1)},
    "sampled": {"do_sample": True, "temperature": 0.8, "top_p": 0.9},
    "sequences": {"do_sample": True, "num_return_sequences": 1, "top_k": 5},
    "penalty": {"repetition_penalty": 1.3, "eos_token_id": [3, 4]},
    "config": {"generation_config": GenerationConfig(max_new_tokens=9, do_sample=False)},
    "static": {"cache_implementation": "static", "disable_compile": True},
    "guidance": {"guidance_scale": 1.5},
    "one token": {"max_new_tokens": 1},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_wrapped_model_speculates_and_says_the_same(plain, model, name):
    assert torch.equal(answer(plain, REQUESTS[name]), answer(model, REQUESTS[name]))
    assert stats_of(model).runs == 1
    assert stats_of(model).drafted > 0 or name == "one token"


def test_without_trust_the_folder_is_a_plain_model(wrapped_folder):
    model = AutoModelForCausalLM.from_pretrained(wrapped_folder)
    assert "generate" not in vars(model)


UNSPECULATED = {
    "sampled beams": {"num_beams": 3, "do_sample": True},
    "no cache": {"use_cache": False},
    "lookup": {"prompt_lookup_num_tokens": 3},
    "early exit": {"assistant_early_exit": 1},
    "lookup by config": {
        "generation_config": GenerationConfig(prompt_lookup_num_tokens=2, max_new_tokens=9)
    },
}


@pytest.mark.parametrize("name", UNSPECULATED)
def test_what_cannot_be_speculated_is_decoded_plainly(plain, model, name, caplog):
    for _ in range(2):
        assert torch.equal(answer(plain, UNSPECULATED[name]), answer(model, UNSPECULATED[name]))
    assert stats_of(model).runs == 0
    logged = [r for r in caplog.records if "decoding without speculation" in r.getMessage()]
    assert len(logged) == 1


@pytest.mark.parametrize(
    "settings",
    [{"dola_layers": "high"}, {"penalty_alpha": 0.6, "top_k": 4}],
    ids=["dola", "contrastive"],
)
def test_ways_to_decode_that_are_elsewhere_are_transformers_business(plain, model, settings):
    messages = []
    for each in (plain, model):
        with pytest.raises(ValueError, match="trust_remote_code") as error:
            answer(each, settings)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    "settings",
    [{"dola_layers": "high"}, {"penalty_alpha": 1.0, "top_k": 4}],
)
def test_other_ways_to_decode_are_refused_by_name(plain, settings):
    (name, value), *_ = settings.items()
    for call in (
        lambda: ngramspec.generate(plain, PROMPT, **GREEDY, **settings),
        lambda: plain.generate(PROMPT, custom_generate=Speculator(), **GREEDY, **settings),
    ):
        with pytest.raises(UnsupportedError, match=f"{name}={value} cannot be combined"):
            call()


class Streamer:
    def __init__(self):
        self.got = []

    def put(self, value):
        self.got.append(value.flatten().tolist())

    def end(self):
        self.got.append("end")


def test_a_streamer_gets_the_prompt_and_every_token(plain, model):
    seen = []
    for each in (plain, model):
        streamer = Streamer()
        each.generate(PROMPT, streamer=streamer, **GREEDY)
        seen.append(streamer.got)
    assert seen[0] == seen[1]
    assert len(seen[1]) == 1 + 24 + 1


def test_a_streamer_that_raises_ends_the_call_and_no_later_one(plain, model):
    class Gone(Streamer):
        def put(self, value):
            super().put(value)
            if len(self.got) == 5:
                raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        model.generate(PROMPT, streamer=Gone(), **GREEDY)
    assert torch.equal(answer(plain, {}), answer(model, {}))


def test_stop_strings_and_positional_arguments(plain, model):
    tokenizer = letters()
    last = tokenizer.decode(answer(plain, {})[0, 14])
    config = GenerationConfig(max_new_tokens=24, do_sample=False, stop_strings=[last])
    plainly = plain.generate(PROMPT, config, tokenizer=tokenizer)
    assert 10 < plainly.shape[1] <= 15
    assert torch.equal(plainly, model.generate(PROMPT, config, tokenizer=tokenizer))
    assert torch.equal(plainly, ngramspec.generate(plain, PROMPT, config, tokenizer=tokenizer))
    assert stats_of(model).runs == 1
    with ngramspec.enabled(model) as own:
        assert torch.equal(plainly, model.generate(PROMPT, config, tokenizer=tokenizer))
    assert (own.stats.runs, stats_of(model).runs) == (1, 1)
    with pytest.raises(TypeError, match="multiple values for argument 'generation_config'"):
        model.generate(PROMPT, config, generation_config=config)
    with pytest.raises(TypeError, match="at most 11 positional arguments"):
        model.generate(PROMPT, *[None] * 11)


def test_return_dict_in_generate(plain, model):
    asked = {"return_dict_in_generate": True, "output_scores": True, "output_hidden_states": True}
    plainly, ours = answer(plain, asked), answer(model, asked)
    assert torch.equal(plainly.sequences, ours.sequences)
    assert len(ours.scores) == len(ours.hidden_states) == 24
    for one, other in zip(plainly.scores, ours.scores, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


def test_a_speculator_of_the_caller_s_own_is_used_in_its_place(plain, model):
    expected = answer(plain, {})
    own = Speculator("copy", 3, unsupported="plain")
    assert torch.equal(ngramspec.generate(model, PROMPT, speculator=own, **GREEDY), expected)
    with ngramspec.enabled(model, own):
        assert torch.equal(model.generate(PROMPT, **GREEDY), expected)
        model.generate(PROMPT, prompt_lookup_num_tokens=2, **GREEDY)
    assert torch.equal(model.generate(PROMPT, custom_generate=own, **GREEDY), expected)
    assert own.stats.runs == 3
    assert stats_of(model).runs == 0
    with pytest.raises(UnsupportedError, match="prompt_lookup_num_tokens=2"):
        ngramspec.generate(model, PROMPT, prompt_lookup_num_tokens=2, **GREEDY)


def test_pipelines(plain, model):
    tokenizer = letters()
    texts = [
        pipeline("text-generation", model=each, tokenizer=tokenizer)("abcabca", **GREEDY)
        for each in (plain, model)
    ]
    assert texts[0] == texts[1]
    assert stats_of(model).runs == 1


def test_a_copied_model_is_a_model_of_its_own(plain, model):
    other = copy.deepcopy(model)
    assert torch.equal(answer(plain, {}), answer(other, {}))
    assert stats_of(other).runs == 1
    assert stats_of(model).runs == 0
    with ngramspec.enabled(model) as own:
        other = copy.deepcopy(model)
        assert torch.equal(answer(plain, {}), answer(other, {}))
    assert stats_of(other).runs == 1
    assert own.stats.runs == stats_of(model).runs == 0


def test_one_speculator_serves_a_model_s_threads(plain, model):
    speculators = set()

    def generate(prompt):
        out = model.generate(prompt, **GREEDY)
        speculators.add(wrapped.speculator_of(model))
        return out

    expected = [plain.generate(prompt, **GREEDY) for prompt in PROMPTS]
    assert_each_is(expected, in_threads(generate, 3), 3)
    assert len(speculators) == 1
    assert stats_of(model).runs == 12


def test_no_request_s_text_is_drafted_in_another(model):
    """Every drafted token stands in the request's own text, which no others have been in."""
    drafted = 0
    for begin in (1, 31, 61):
        prompt = torch.arange(begin, begin + 30).repeat(2)[None]
        own = set(prompt[0].tolist())

        def check(event, own=own):
            nonlocal drafted
            assert set(event.drafted) <= own
            drafted += len(event.drafted)
            own.update(event.verdict.emitted)

        wrapped.speculator_of(model).on_step = check
        model.generate(prompt, **GREEDY)
    assert drafted > 30


def test_a_class_with_a_generate_of_its_own_is_left_to_it(plain, wrapped_folder, caplog):
    class Own(type(plain)):
        def generate(self, *args, **kwargs):
            return "own", args, kwargs

    model = Own.from_pretrained(wrapped_folder, trust_remote_code=True)
    assert model.generate(1, streamer=2) == ("own", (1,), {"streamer": 2})
    assert "Own overrides generate" in caplog.text


# Its settings


def test_the_settings_are_read_when_the_model_first_generates(folder, tmp_path):
    settings = {"drafter": "copy(min_match=3)", "gamma": 5, "gamma_max": 7, "policy": "priority"}
    wrap(folder, tmp_path / "tiny", settings | SETTINGS)
    stored = Speculator(**settings, **SETTINGS).to_dict()
    assert wrapped.speculator_of(load(tmp_path / "tiny")).to_dict() == stored
    path = tmp_path / "tiny/custom_generate/ngramspec.json"
    path.write_text('{"drafter": "ngram", "gamma": 2}')
    edited = wrapped.speculator_of(load(tmp_path / "tiny"))
    assert edited.to_dict() == Speculator("ngram", 2, unsupported="plain").to_dict()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"gamma": 0}', r"ngramspec\.json: gamma must be in 1\.\.64, got 0"),
        ('{"gama": 3}', r"ngramspec\.json: .*'gama'"),
        ("[]", r"ngramspec\.json: must hold an object, got list"),
        ("{", r"ngramspec\.json: Expecting property name"),
    ],
)
def test_settings_that_cannot_be_used_are_named(folder, tmp_path, text, message):
    wrap(folder, tmp_path / "tiny", SETTINGS)
    (tmp_path / "tiny/custom_generate/ngramspec.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "tiny").generate(PROMPT, **GREEDY)


def test_settings_that_are_gone_are_missed_aloud(plain, folder, tmp_path, monkeypatch, caplog):
    wrap(folder, tmp_path / "tiny", SETTINGS)
    monkeypatch.chdir(tmp_path)
    model = load("tiny")
    monkeypatch.chdir("/")
    assert torch.equal(answer(plain, {}), answer(model, {}))
    assert "custom_generate/ngramspec.json is not in /tiny: speculating with defaults" in (
        caplog.text
    )


def test_the_log_can_be_asked_for(wrapped_folder):
    code = (
        "import sys, torch; from transformers import AutoModelForCausalLM as A\n"
        "model = A.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "model.generate(torch.tensor([[5, 6, 5, 6]]), max_new_tokens=9, do_sample=False)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(wrapped_folder)],
        env=os.environ | {"NGRAMSPEC_LOG": "info", "PYTHONPATH": checkout()},
        capture_output=True,
        text=True,
    )
    assert re.search(r"ngramspec: 8 tokens in \d target calls", done.stderr)


def test_a_level_of_the_log_that_is_none_is_refused(model, monkeypatch):
    monkeypatch.setenv("NGRAMSPEC_LOG", "loud")
    with pytest.raises(ValueError, match=r"NGRAMSPEC_LOG must be one of .*INFO.*, got LOUD"):
        model.generate(PROMPT, **GREEDY)
