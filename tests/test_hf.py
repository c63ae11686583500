"""The transformers boundary: what plain generate does, the speculative one does."""

from __future__ import annotations

import queue
import threading

import pytest
import torch
from conftest import tiny_llama
from doubles import half_right, oracle
from transformers import GenerationConfig, LogitsProcessor, TextIteratorStreamer, TextStreamer
from transformers.generation import StoppingCriteria

import ngramspec
from ngramspec import Speculator, UnsupportedError
from ngramspec.target.support import check_request

PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])


def three_ways(model, *args, speculator, **kwargs):
    """The outputs of the hook, of ngramspec.generate and of enabled, for the same arguments."""
    yield model.generate(*args, custom_generate=speculator, **kwargs)
    yield ngramspec.generate(model, *args, speculator=speculator, **kwargs)
    with ngramspec.enabled(model, speculator):
        yield model.generate(*args, **kwargs)


PROCESSING = [
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 3},
    {"bad_words_ids": [[6], [7, 8]]},
    {"min_new_tokens": 12, "eos_token_id": list(range(50))},
    {"suppress_tokens": [1, 2, 3, 4, 5]},
    {"forced_eos_token_id": 3},
    {"exponential_decay_length_penalty": (5, 1.5), "eos_token_id": 9},
    {"sequence_bias": [[[6, 7], 5.0], [[8], -5.0]]},
    {"renormalize_logits": True, "repetition_penalty": 0.8},
    {"eos_token_id": [3, 4, 5, 6]},
]


@pytest.mark.parametrize("settings", PROCESSING)
def test_processing_acts_as_in_plain_generate(tiny, settings):
    kwargs = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0} | settings
    plain = tiny.generate(PROMPT, **kwargs)
    drafters = ["auto", oracle(plain[0].tolist()), half_right(plain[0].tolist(), 97)]
    for drafter in drafters:
        for ours in three_ways(tiny, PROMPT, speculator=Speculator(drafter, 6), **kwargs):
            assert torch.equal(plain, ours)


class Recorder(LogitsProcessor):
    """Remembers every sequence it is called with, and changes scores by how often it ran."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores):
        self.seen.append(input_ids[0].tolist())
        scores[:, len(self.seen) % scores.shape[1]] += 3.0
        return scores


class StopAt(StoppingCriteria):
    """Remembers every sequence it is called with, and stops at the n-th."""

    def __init__(self, n):
        self.seen, self.n = [], n

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(input_ids[0].tolist())
        return torch.tensor([len(self.seen) == self.n])


def test_processors_and_criteria_see_only_committed_tokens_in_order(tiny):
    calls = []
    text = None
    for custom in (None, "oracle", "half"):
        processor, criterion = Recorder(), StopAt(23)
        if custom == "oracle":
            custom = Speculator(oracle(text[0].tolist()), 6)
        elif custom == "half":
            custom = Speculator(half_right(text[0].tolist(), 97), 6)
        kwargs = {"max_new_tokens": 40, "do_sample": False, "custom_generate": custom}
        out = tiny.generate(
            PROMPT, logits_processor=[processor], stopping_criteria=[criterion], **kwargs
        )
        text = out if text is None else text
        assert torch.equal(text, out)
        calls.append((processor.seen, criterion.seen))
    assert text.shape[1] == 10 + 23
    assert calls[0] == calls[1] == calls[2]


def test_criteria_get_the_scores_when_they_are_kept(tiny):
    seen = []
    for custom in (None, Speculator(gamma=4)):
        lengths = []

        def criterion(ids, scores, lengths=lengths, **kwargs):
            lengths.append((ids.shape[1], len(scores), float(scores[-1].max())))
            return torch.tensor([False])

        tiny.generate(
            PROMPT,
            max_new_tokens=12,
            do_sample=False,
            stopping_criteria=[criterion],
            return_dict_in_generate=True,
            output_scores=True,
            custom_generate=custom,
        )
        seen.append(lengths)
    assert [each[:2] for each in seen[0]] == [each[:2] for each in seen[1]]
    assert [each[2] for each in seen[0]] == pytest.approx([each[2] for each in seen[1]], abs=1e-4)


@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.2}, {"do_sample": True}])
def test_return_dict_with_scores_and_logits(tiny, settings):
    kwargs = {
        "max_new_tokens": 25,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
    } | settings
    torch.manual_seed(3)
    plain = tiny.generate(PROMPT, **kwargs)
    torch.manual_seed(3)
    ours = tiny.generate(PROMPT, custom_generate=Speculator(gamma=5), **kwargs)
    assert type(ours) is type(plain)
    assert torch.equal(plain.sequences, ours.sequences)
    for name in ("scores", "logits"):
        theirs, mine = getattr(plain, name), getattr(ours, name)
        assert isinstance(mine, tuple)
        assert len(mine) == len(theirs) == 25
        for a, b in zip(mine, theirs, strict=True):
            assert a.shape == b.shape
            assert a.dtype == b.dtype == torch.float32
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert ours.attentions is None
    assert ours.hidden_states is None
    kwargs |= {"output_scores": False, "output_logits": False}
    assert tiny.generate(PROMPT, custom_generate=Speculator(), **kwargs).scores is None


class Puts:
    """A streamer that keeps what it is given."""

    def __init__(self):
        self.puts, self.ended = [], 0

    def put(self, tokens):
        self.puts.append((tuple(tokens.shape), tokens.dtype, tokens.tolist()))

    def end(self):
        self.ended += 1


def test_streamers_get_one_put_per_token_in_plain_shape(tiny):
    plain = Puts()
    tiny.generate(PROMPT, max_new_tokens=25, do_sample=False, streamer=plain)
    kwargs = {"max_new_tokens": 25, "do_sample": False}
    ours, patched = Puts(), Puts()
    ngramspec.generate(tiny, PROMPT, speculator=Speculator(gamma=5), streamer=ours, **kwargs)
    with ngramspec.enabled(tiny, Speculator(gamma=5)):
        tiny.generate(PROMPT, streamer=patched, **kwargs)
    assert plain.puts == ours.puts == patched.puts
    assert plain.ended == ours.ended == patched.ended == 1


def test_the_raw_hook_drops_the_streamer_inside_transformers(tiny):
    """Documented in Speculator.__call__; when this fails, the documentation can be lightened."""
    dropped = Puts()
    kwargs = {"max_new_tokens": 5, "do_sample": False, "streamer": dropped}
    tiny.generate(PROMPT, custom_generate=Speculator(), **kwargs)
    assert len(dropped.puts) == 1  # only the prompt
    assert dropped.ended == 0


def test_text_streamers(smollm2, prompts, capsys):
    kwargs = {**prompts[0], "max_new_tokens": 16, "do_sample": False}
    smollm2.model.generate(**kwargs, streamer=TextStreamer(smollm2.tokenizer, skip_prompt=True))
    plain = capsys.readouterr().out
    streamer = TextStreamer(smollm2.tokenizer, skip_prompt=True)
    ngramspec.generate(smollm2.model, **kwargs, streamer=streamer)
    assert capsys.readouterr().out == plain
    pieces: list[str] = []
    streamer = TextIteratorStreamer(smollm2.tokenizer, skip_prompt=True, timeout=60)
    thread = threading.Thread(
        target=ngramspec.generate, args=(smollm2.model,), kwargs={**kwargs, "streamer": streamer}
    )
    thread.start()
    pieces.extend(streamer)
    thread.join()
    assert "".join(pieces).strip() == plain.strip()


def test_a_streamer_that_cancels_by_raising(tiny):
    class Cancel(Puts):
        def put(self, tokens):
            super().put(tokens)
            if len(self.puts) == 8:
                raise queue.Full

    speculator = Speculator(gamma=5)
    streamer = Cancel()
    with pytest.raises(queue.Full):
        ngramspec.generate(
            tiny,
            PROMPT,
            speculator=speculator,
            streamer=streamer,
            max_new_tokens=25,
            do_sample=False,
        )
    assert len(streamer.puts) == 8
    again = ngramspec.generate(
        tiny, PROMPT, speculator=speculator, max_new_tokens=25, do_sample=False
    )
    assert torch.equal(again, tiny.generate(PROMPT, max_new_tokens=25, do_sample=False))


@pytest.mark.parametrize("where", ["argument", "config", "model"])
def test_stop_strings(smollm2, prompts, where):
    model, tokenizer = smollm2.model, smollm2.tokenizer
    inputs = prompts[0]
    kwargs = {**inputs, "do_sample": False, "tokenizer": tokenizer}
    free = model.generate(**inputs, max_new_tokens=24, do_sample=False)
    words = tokenizer.decode(free[0, inputs["input_ids"].shape[1] :])
    string = words[10:15]
    if where == "argument":
        kwargs |= {"stop_strings": [string], "max_new_tokens": 24}
    elif where == "config":
        kwargs["generation_config"] = GenerationConfig(stop_strings=string, max_new_tokens=24)
    else:
        model.generation_config.stop_strings = [string]
        kwargs |= {"max_new_tokens": 24}
    try:
        plain = model.generate(**kwargs)
        assert plain.shape[1] < free.shape[1]
        for drafter in ("auto", oracle(free[0].tolist())):
            speculator = Speculator(drafter, 8)
            assert torch.equal(plain, ngramspec.generate(model, **kwargs, speculator=speculator))
            with ngramspec.enabled(model, speculator):
                assert torch.equal(plain, model.generate(**kwargs))
        if where == "config":
            assert kwargs["generation_config"].stop_strings == string  # the user's own is untouched
    finally:
        model.generation_config.stop_strings = None


def test_stop_strings_without_a_tokenizer_are_transformers_own_error(tiny):
    with pytest.raises(ValueError, match="tokenizer"):
        ngramspec.generate(tiny, PROMPT, stop_strings=["x"], max_new_tokens=4)


def test_generation_config_objects_and_the_model_s_own(tiny):
    config = GenerationConfig(max_new_tokens=17, do_sample=False, repetition_penalty=1.1)
    plain = tiny.generate(PROMPT, generation_config=config)
    for ours in three_ways(tiny, PROMPT, speculator=Speculator(gamma=4), generation_config=config):
        assert torch.equal(plain, ours)


def test_max_time_ends_the_text(tiny):
    for ours in three_ways(
        tiny, PROMPT, speculator=Speculator(), max_time=0.0, max_new_tokens=50, do_sample=False
    ):
        assert ours.shape[1] == 11  # one token, then the time is up


REFUSED = [
    ({"num_beams": 2}, "num_beams=2"),
    ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3"),
    ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha=0.6"),
    ({"use_cache": False}, "use_cache=False"),
]


@pytest.mark.parametrize(("kwargs", "message"), REFUSED)
def test_what_cannot_be_speculated_is_refused_by_name(tiny, kwargs, message):
    kwargs = {"max_new_tokens": 4, "do_sample": False} | kwargs
    for call in (
        lambda: tiny.generate(PROMPT, custom_generate=Speculator(), **kwargs),
        lambda: ngramspec.generate(tiny, PROMPT, **kwargs),
    ):
        with pytest.raises(UnsupportedError, match=message):
            call()


PLAIN = [each[0] for each in REFUSED if "penalty_alpha" not in each[0]]


@pytest.mark.parametrize("kwargs", PLAIN)
def test_unsupported_plain_hands_over_to_generate(tiny, kwargs, caplog):
    kwargs = {"max_new_tokens": 6, "do_sample": False} | kwargs
    torch.manual_seed(0)
    plain = tiny.generate(PROMPT, **kwargs)
    speculator = Speculator(unsupported="plain")
    for _ in range(2):
        torch.manual_seed(0)
        ours = ngramspec.generate(tiny, PROMPT, speculator=speculator, **kwargs)
        for name in ("sequences",) if hasattr(plain, "sequences") else ():
            assert torch.equal(getattr(plain, name), getattr(ours, name))
        if not hasattr(plain, "sequences"):
            assert torch.equal(plain, ours)
    logged = [r for r in caplog.records if "without speculation" in r.getMessage()]
    assert len(logged) == 1
    assert speculator.stats.runs == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("constraints", [1]),
        ("force_words_ids", [[5]]),
        ("num_beam_groups", 2),
        ("dola_layers", "low"),
    ],
)
def test_what_the_hub_would_decode_is_refused_on_the_hook_too(tiny, name, value):
    config = GenerationConfig(max_new_tokens=4, do_sample=False)
    setattr(config, name, value)
    with pytest.raises(UnsupportedError, match=name):
        check_request(config)
    setattr(config, name, 1 if name == "num_beam_groups" else None)
    check_request(config)


def test_what_is_switched_off_is_no_obstacle(tiny):
    kwargs = {"max_new_tokens": 4, "do_sample": False}
    plain = tiny.generate(PROMPT, **kwargs)
    config = GenerationConfig(penalty_alpha=0.0, **kwargs)
    ours = tiny.generate(PROMPT, generation_config=config, custom_generate=Speculator())
    assert torch.equal(plain, ours)


def test_what_plain_decoding_cannot_take_is_refused_and_ends_the_stream(tiny):
    puts = Puts()
    speculator = Speculator(unsupported="plain")
    beams = {"max_new_tokens": 4, "do_sample": False, "num_beams": 2, "speculator": speculator}
    with pytest.raises(UnsupportedError, match=r"streamer .*num_beams=2"):
        ngramspec.generate(tiny, PROMPT, streamer=puts, **beams)
    assert puts.ended == 1
    generator = torch.Generator()
    for extra in ({}, {"token_healing": True}):
        with pytest.raises(UnsupportedError, match="generator"):
            ngramspec.generate(tiny, PROMPT, generator=generator, **beams | extra)
    other = {"assistant_model": tiny_llama(seed=1), "reference_ids": [1, 2]}
    ours = ngramspec.generate(tiny, PROMPT, **beams | {"num_beams": 1} | other)
    assert torch.equal(ours, tiny.generate(PROMPT, max_new_tokens=4, do_sample=False))


def test_unsupported_plain_streams_too(tiny):
    ids = PROMPT.repeat(1, 1)
    plain, ours = Puts(), Puts()
    kwargs = {"max_new_tokens": 6, "do_sample": False, "use_cache": False}
    tiny.generate(ids, streamer=plain, **kwargs)
    ngramspec.generate(
        tiny, ids, streamer=ours, speculator=Speculator(unsupported="plain"), **kwargs
    )
    assert plain.puts == ours.puts
    assert ours.ended == 1


def test_assistant_and_healing_beside_a_speculator(tiny):
    other = tiny_llama(seed=1)
    kwargs = {"max_new_tokens": 6, "do_sample": False}
    for extra in ({"assistant_model": other}, {"token_healing": True}):
        name = next(iter(extra))
        with pytest.raises(UnsupportedError, match=name):
            ngramspec.generate(tiny, PROMPT, **kwargs, **extra)
        with ngramspec.enabled(tiny), pytest.raises(UnsupportedError, match=name):
            tiny.generate(PROMPT, **kwargs, **extra)
    plain = tiny.generate(PROMPT, **kwargs, assistant_model=other)
    speculator = Speculator(unsupported="plain")
    ours = ngramspec.generate(tiny, PROMPT, speculator=speculator, **kwargs, assistant_model=other)
    assert torch.equal(plain, ours)
    assert torch.equal(
        ngramspec.generate(tiny, PROMPT, **kwargs, assistant_model=None, synced_gpus=False),
        tiny.generate(PROMPT, **kwargs),
    )


def test_recurrent_models_are_refused_by_name():
    from transformers import MambaConfig, MambaForCausalLM

    mamba = MambaForCausalLM(MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1))
    with pytest.raises(UnsupportedError, match="recurrent|cache"):
        ngramspec.generate(mamba, PROMPT, max_new_tokens=4)


def test_bad_prompts_name_the_argument_the_bound_and_the_value(tiny):
    for ids, message in [
        (torch.tensor([[3, -1, 4]]), r"input_ids must lie in 0\.\.96, got -1"),
        (torch.tensor([[3, 97, 4]]), r"input_ids must lie in 0\.\.96, got 97"),
        (torch.empty((1, 0), dtype=torch.long), r"at least one token, got shape \(1, 0\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            ngramspec.generate(tiny, ids, max_new_tokens=4)


def test_nan_logits_end_as_in_plain_generate(tiny):
    """Greedy: argmax takes the NaN's place, as plain does; sampling: torch's own error."""

    def poison(ids, scores):
        return scores.fill_(float("nan")) if ids.shape[1] == 14 else scores

    kwargs = {"max_new_tokens": 10, "logits_processor": [poison]}
    plain = tiny.generate(PROMPT, do_sample=False, **kwargs)
    ours = ngramspec.generate(tiny, PROMPT, do_sample=False, **kwargs)
    assert torch.equal(plain, ours)
    with pytest.raises(RuntimeError):
        tiny.generate(PROMPT, do_sample=True, **kwargs)
    with pytest.raises(RuntimeError):
        ngramspec.generate(tiny, PROMPT, do_sample=True, **kwargs)


def test_enabled_puts_back_what_was_there(tiny):
    before = tiny.generate
    with pytest.raises(KeyError), ngramspec.enabled(tiny) as outer:  # noqa: PT012
        first = tiny.generate
        with ngramspec.enabled(tiny, Speculator("none")) as inner:
            tiny.generate(PROMPT, max_new_tokens=3, do_sample=False)
            assert (outer.stats.runs, inner.stats.runs) == (0, 1)
        assert tiny.generate == first
        raise KeyError
    assert tiny.generate == before
    assert "generate" not in vars(tiny)


def test_enabled_leaves_a_call_with_its_own_custom_generate_alone(tiny):
    mine = Speculator("none")
    with ngramspec.enabled(tiny) as speculator:
        tiny.generate(PROMPT, max_new_tokens=3, do_sample=False, custom_generate=mine)
    assert (speculator.stats.runs, mine.stats.runs) == (0, 1)
    with pytest.raises(ValueError, match="custom_generate"):
        ngramspec.generate(tiny, PROMPT, custom_generate=mine)
    with pytest.raises(TypeError, match="speculator must be a Speculator"):
        ngramspec.generate(tiny, PROMPT, speculator="auto")


def test_pipeline_under_enabled(smollm2):
    from transformers import pipeline

    pipe = pipeline("text-generation", model=smollm2.model, tokenizer=smollm2.tokenizer)
    text = "One, two, three. One, two, three. One, two,"
    kwargs = {"max_new_tokens": 12, "do_sample": False, "return_full_text": False}
    plain = pipe(text, **kwargs)
    with ngramspec.enabled(pipe.model) as speculator:
        ours = pipe(text, **kwargs)
        torch.manual_seed(5)
        sampled = pipe(text, max_new_tokens=12)  # pipelines may sample by default
    torch.manual_seed(5)
    assert sampled == pipe(text, max_new_tokens=12)
    assert ours == plain
    assert speculator.stats.runs == 2
    assert speculator.stats.accepted + speculator.stats.prefill_accepted > 0


@pytest.mark.parametrize("settings", [{"gamma": 5}, {"tree": 8}])
def test_a_hook_that_changes_every_position_acts_as_in_plain_generate(settings):
    """One that changes the last position of a forward does not: there are several to check."""
    model = tiny_llama()
    before = model.generate(PROMPT, max_new_tokens=40, do_sample=False)
    steering = torch.linspace(-1, 1, 32)
    model.model.layers[0].register_forward_hook(lambda module, args, output: output + steering)
    plain = model.generate(PROMPT, max_new_tokens=40, do_sample=False)
    assert not torch.equal(before, plain)
    for drafter in ("auto", half_right(plain[0].tolist(), 97)):
        speculator = Speculator(drafter, **settings)
        for ours in three_ways(
            model, PROMPT, speculator=speculator, max_new_tokens=40, do_sample=False
        ):
            assert torch.equal(plain, ours)
        assert speculator.stats.drafted > 0


def test_no_prompt_at_all_starts_from_bos(tiny):
    plain = tiny.generate(max_new_tokens=12, do_sample=False)
    assert torch.equal(plain, ngramspec.generate(tiny, max_new_tokens=12, do_sample=False))
