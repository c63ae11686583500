"""mlx-lm with ngramspec's drafts: whatever is asked, what it says without. Float32, on a CPU.

Forwards of several positions round differently from those of one. Where the two best tokens lie
within ``NEAR``, texts may differ from there on: such differences are printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from copy import deepcopy
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

if find_spec("mlx_lm") is None:
    pytest.skip("needs mlx-lm: make test-mlx", allow_module_level=True)

import mlx.core as mx
import smollm2_mlx
from engine_prompts import engine_prompts
from garbage_drafter import FaultyDrafter
from mlx.utils import tree_map
from mlx_lm import load
from mlx_lm import stream_generate as plain
from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from ngramspec import Draft, Drafter, DraftSession, SharedStore, Speculator, UnsupportedError
from ngramspec.costs.model import _models
from ngramspec.engines.mlx_lm import stream_generate

pytestmark = pytest.mark.slow

VOCAB, TOKENS, NEAR = 97, 60, 1e-4
PROMPT = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6, 11, 12]
SIZES = {
    **{"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5},
    **{"rope_theta": 1e4, "tie_word_embeddings": False, "max_position_embeddings": 2048},
}
WINDOW = {"sliding_window": 40, "sliding_window_pattern": 2, "query_pre_attn_scalar": 8}
FAMILIES = {
    "llama": {},
    "mistral": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 40},
    "qwen2": {},
    "qwen3": {},
    "phi3": {"num_key_value_heads": 4},
    "gemma3_text": WINDOW,
}


class Words(PreTrainedTokenizerFast):
    """Each id is a word."""

    def __init__(self):
        words = {f"w{at}": at for at in range(VOCAB)}
        super().__init__(tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")))


def build(family, seed=0, **settings):
    mx.random.seed(seed)
    module = import_module(f"mlx_lm.models.{'llama' if family == 'mistral' else family}")
    config = {"model_type": family, **SIZES, **FAMILIES.get(family, {}), **settings}
    model = module.Model(module.ModelArgs.from_dict(config))
    spread = tree_map(lambda each: each + 0.2 * mx.random.normal(each.shape), model.parameters())
    model.update(spread)
    mx.eval(model.parameters())
    return model


@pytest.fixture(scope="module")
def words():
    return Words()


@pytest.fixture(scope="module")
def tiny():
    return build("llama")


class Guess(Drafter):
    """Drafts a known text, with every ``wrong``-th token replaced."""

    estimates = False

    def __init__(self, text, wrong=1000):
        self.text = np.array(text, np.int32)
        self.text[wrong - 1 :: wrong] = 1
        self.starts = []

    def start(self, tokens):
        self.starts.append(tokens.tolist())
        return GuessSession(self.text, len(tokens))


class GuessSession(DraftSession):
    def __init__(self, text, length):
        self.text, self.length = text, length

    def propose(self, gamma, cost=None, *, tree=False):
        return Draft(self.text[self.length : self.length + gamma])

    def extend(self, tokens):
        self.length += len(tokens)


def run(generate, model, words, prompt, tokens=TOKENS, **kwargs):
    """Each response's values, without times."""
    return [
        (each.token, each.text, each.finish_reason, each.prompt_tokens, each.generation_tokens)
        for each in generate(model, words, prompt, max_tokens=tokens, **kwargs)
    ]


def drafters(text, gamma=5):
    """Speculators with right drafts, drafts of which every third token is wrong, and n-grams."""
    known = [Guess(text), Guess(text, 3), "ngram"]
    return [Speculator(each, gamma) for each in known] + [Speculator()]


def same(model, words, prompt=PROMPT, tokens=TOKENS, settings=dict, seed=1):
    """All speculators give mlx-lm's responses, and leave its random state; they are returned.

    ``settings`` makes the arguments of one call.
    """
    mx.random.seed(seed)
    expected = run(plain, model, words, prompt, tokens, **settings())
    state = mx.random.state[0].tolist()
    found = drafters([*prompt, *(token for token, *_ in expected)])
    for speculator in found:
        mx.random.seed(seed)
        kwargs = {"speculator": speculator, **settings()}
        assert run(stream_generate, model, words, prompt, tokens, **kwargs) == expected
        assert mx.random.state[0].tolist() == state
        assert speculator.stats.runs == 1
        assert speculator.stats.drafter_faults == 0
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temp", [0.0, 0.7])
def test_text_of_every_family(family, temp, words):
    model = build(family)
    right, half, *_ = same(model, words, settings=lambda: {"sampler": make_sampler(temp)})
    assert right.stats.accepted > 15
    assert half.stats.accepted > 8
    assert half.stats.alpha < 1 == right.stats.alpha
    if "sliding_window" not in FAMILIES[family]:
        assert right.stats.tokens_per_call > 4


def test_samplers_and_processors_are_called_for_one_token_after_another(tiny, words):
    calls = []

    def note(tokens, logits):
        calls.append((tokens.tolist(), tokens.dtype, logits.shape))
        return logits

    def settings():
        calls.append("begin")
        made = make_logits_processors({3: 0.5}, 1.3, presence_penalty=0.2, frequency_penalty=0.1)
        return {
            "logits_processors": [note, *made],
            "sampler": make_sampler(0.9, top_p=0.9, min_p=0.01, top_k=20),
        }

    same(tiny, words, settings=settings)
    turns = [[]]
    for each in calls[1:]:
        turns.append([]) if each == "begin" else turns[-1].append(each)
    assert len(turns) == 5
    assert all(turn == turns[0] for turn in turns)
    assert len(turns[0]) == TOKENS + 1  # mlx-lm calls them once more
    assert {shape for *_, shape in turns[0]} == {(1, VOCAB)}


def test_no_token_copies_the_text_for_processors(tiny, words, monkeypatch):
    used = []

    class Noted:
        def __getattr__(self, name):
            used.append(name)
            return getattr(mx, name)

    monkeypatch.setattr("ngramspec.engines.mlx_lm.mx", Noted())
    prompt = np.arange(600) % VOCAB
    run(stream_generate, tiny, words, prompt.tolist(), logits_processors=[lambda _, logits: logits])
    assert used.count("concatenate") == 1
    assert used.count("slice_update") == TOKENS + 1


def test_costs_belong_to_one_model_and_go_with_it(words):
    before = set(_models)
    for seed in range(2):
        model = build("llama", seed)
        run(stream_generate, model, words, PROMPT)
        assert set(_models) - before == {id(model)}
        del model


@pytest.mark.parametrize("tokens", [1, 2, 7])
@pytest.mark.parametrize("size", [1, 2, len(PROMPT)])
def test_short_texts_and_settings_of_what_is_not_used(tiny, words, tokens, size):
    unused = {"num_draft_tokens": 2, "kv_group_size": 64, "quantized_kv_start": 0}
    same(tiny, words, PROMPT[:size], tokens, settings=lambda: unused)


def test_the_end_token_ends_the_text(tiny, words):
    told = [token for token, *_ in run(plain, tiny, words, PROMPT)]
    ends = Words()
    ends.eos_token = f"w{told[20]}"
    stopped = run(plain, tiny, ends, PROMPT)
    assert stopped[-1][2] == "stop"
    assert len(stopped) <= 21
    same(tiny, ends, tokens=-1)


def test_progress_is_reported_as_by_mlx_lm(tiny, words):
    reports = []

    def settings():
        reports.append([])
        note = lambda done, total: reports[-1].append((done, total))  # noqa: E731
        return {"prompt_progress_callback": note, "prefill_step_size": 4}

    same(tiny, words, settings=settings)
    assert all(each == reports[0] for each in reports)
    assert len(reports[0]) > 4


def held(cache, length):
    """The keys and values of a prompt cache, which holds ``length`` positions."""
    assert {each.offset for each in cache} == {length}
    return [np.array(part) for each in cache for part in each.keys_and_values()]


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize("temp", [0.0, 0.8])
@pytest.mark.parametrize("stop", [1, 2, 9, 20])
def test_an_abandoned_generation_leaves_the_prompt_and_what_was_yielded(family, temp, stop, words):
    model = build(family)

    def leave(generate, **kwargs):
        mx.random.seed(3)
        cache = make_prompt_cache(model)
        answers = generate(
            model, words, PROMPT, prompt_cache=cache, sampler=make_sampler(temp), **kwargs
        )
        said = [next(answers).token for _ in range(stop)]
        answers.close()
        return said, held(cache, len(PROMPT) + stop), mx.random.state[0].tolist(), cache

    told, kept, state, cache = leave(plain)
    text = [*PROMPT, *(each[0] for each in run(plain, model, words, PROMPT, tokens=TOKENS))]
    if temp:
        mx.random.seed(3)
        sampler = make_sampler(temp)
        text = [*PROMPT, *(each[0] for each in run(plain, model, words, PROMPT, sampler=sampler))]
    for speculator in (Speculator(Guess(text), 7), Speculator(Guess(text, 4), 7)):
        said, found, left, ours = leave(stream_generate, speculator=speculator)
        assert (said, left) == (told, state)
        for one, other in zip(kept, found, strict=True):
            np.testing.assert_allclose(other, one, atol=1e-5)
        more = {"prompt": [3, 4], "tokens": 20}
        told_on = run(plain, model, words, prompt_cache=deepcopy(cache), **more)
        assert run(stream_generate, model, words, prompt_cache=ours, **more) == told_on


@pytest.mark.parametrize("stop", [1, 2, 9, TOKENS])
def test_tokens_of_a_draft_that_is_left_are_counted_and_stored(tiny, words, stop):
    told = [each[0] for each in run(plain, tiny, words, PROMPT)]
    store = SharedStore()
    store["a"].add(np.array(told, np.int32))
    for drafter, stores in ((Guess(PROMPT + told), ()), ("store", [store["a"]])):
        speculator = Speculator(drafter, 7, stores=stores)
        answers = stream_generate(tiny, words, PROMPT, speculator=speculator)
        assert [next(answers).token for _ in range(stop)] == told[:stop]
        answers.close()
        assert speculator.stats.runs + speculator.stats.emitted == stop
    assert store["a"].statistics().tokens == TOKENS + stop


def test_an_interrupt_inside_a_forward_leaves_all_layers_at_the_yielded_tokens(tiny, words):
    text = [*PROMPT, *(each[0] for each in run(plain, tiny, words, PROMPT))]
    layer, calls = tiny.layers[1], 0

    class Interrupted:
        use_sliding = layer.use_sliding

        def __call__(self, *args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == 5:
                raise KeyboardInterrupt
            return layer(*args, **kwargs)

    cache, said = make_prompt_cache(tiny), []
    speculator = Speculator(Guess(text, 4), 5)
    answers = stream_generate(tiny, words, PROMPT, prompt_cache=cache, speculator=speculator)
    tiny.layers[1] = Interrupted()
    try:
        with pytest.raises(KeyboardInterrupt):
            said.extend(each.token for each in answers)
    finally:
        tiny.layers[1] = layer
    held(cache, len(PROMPT) + len(said))
    rest = run(stream_generate, tiny, words, said[-1:], 10, prompt_cache=trimmed(cache))
    assert [each[0] for each in rest] == text[len(PROMPT) + len(said) :][:10]


def trimmed(cache):
    for each in cache:
        each.trim(1)
    return cache


def test_turns_over_one_prompt_cache(tiny, words):
    turns = [PROMPT, [20, 21, 22], [5, 6, 7, 8]]
    known, ours, seen = make_prompt_cache(tiny), make_prompt_cache(tiny), []
    text = [*PROMPT, *(each[0] for each in run(plain, tiny, words, PROMPT, 30))]
    speculator, begins = Speculator(Guess(text), 6), []
    for turn in turns:
        told = run(plain, tiny, words, turn, 30, prompt_cache=known)
        kwargs = {"prompt_cache": ours, "reference_ids": seen, "speculator": speculator}
        assert run(stream_generate, tiny, words, turn, 30, **kwargs) == told
        begins.append([*seen, *turn, told[0][0]])
        seen += [*turn, *(each[0] for each in told)]
        for one, other in zip(held(known, len(seen)), held(ours, len(seen)), strict=True):
            np.testing.assert_allclose(other, one, atol=1e-5)
    assert speculator.drafter.starts == begins
    assert speculator.stats.accepted > 15


def test_a_full_window_ends_the_drafts(words):
    """With a model's own cache and with max_kv_size; gemma's window is tested above."""
    model = build("qwen3")
    right, *_ = same(model, words, settings=lambda: {"max_kv_size": 40})
    assert right.stats.drafted > 10
    assert right.stats.plain_steps > 60 - 40 - 10
    long = [5 + at % 30 for at in range(50)]
    right, *_ = same(build("gemma3_text"), words, long)
    assert right.stats.drafted == 0


REFUSED = [
    ({"draft_model": True}, "draft_model"),
    ({"kv_bits": 8}, "kv_bits"),
    ({"input_embeddings": mx.zeros((2, 32))}, "input_embeddings"),
    ({"prompt_cache": [QuantizedKVCache(), KVCache()]}, "prompt_cache with a QuantizedKVCache"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_what_cannot_be_drafted_for_is_refused_by_name(tiny, words, arguments, message):
    with pytest.raises(UnsupportedError, match=message):
        stream_generate(tiny, words, PROMPT, **arguments)


def test_options_and_models_that_are_refused(tiny, words):
    for options, message in (
        ({"lenience": 0.5}, "lenience"),
        ({"verification": "typical"}, "typical"),
        ({"width": 16}, "width"),
        ({"on_step": print}, "on_step"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            stream_generate(tiny, words, PROMPT, speculator=Speculator(**options))
    recurrent = build(
        "mamba", state_size=4, conv_kernel=4, use_bias=False, use_conv_bias=True, time_step_rank=2
    )
    with pytest.raises(UnsupportedError, match="model with a "):
        stream_generate(recurrent, words, PROMPT)
    for wrong, message in (({"max_tokens": 0}, "max_tokens"), ({"prompt": []}, "prompt")):
        with pytest.raises(ValueError, match=message):
            stream_generate(tiny, words, **{"prompt": PROMPT} | wrong)
    with pytest.raises(TypeError, match="temperature"):
        stream_generate(tiny, words, PROMPT, temperature=1.0)


def test_plain_runs_what_is_refused(words, caplog):
    model, speculator = build("qwen3", head_dim=32), Speculator(unsupported="plain")
    kwargs = {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 0}
    told = run(plain, model, words, PROMPT, 20, **kwargs)
    for _ in range(2):
        assert (
            run(stream_generate, model, words, PROMPT, 20, speculator=speculator, **kwargs) == told
        )
    assert caplog.text.count("decoding without speculation") == 1
    assert speculator.stats.runs == 0


def test_faults_of_a_drafter_cost_its_drafts_only(tiny, words):
    told = run(plain, tiny, words, PROMPT)
    speculator = Speculator(FaultyDrafter())
    assert run(stream_generate, tiny, words, PROMPT, speculator=speculator) == told
    assert speculator.stats.drafter_faults > 0


def test_a_shared_store_keeps_texts_for_later_calls(tiny, words):
    store = SharedStore(write="all")
    speculator = Speculator("store", stores=[store["a"]])
    told = run(plain, tiny, words, PROMPT)
    for _ in range(2):
        assert run(stream_generate, tiny, words, PROMPT, speculator=speculator) == told
        assert store["a"].statistics().tokens >= len(PROMPT) + TOKENS
    assert speculator.stats.accepted > 20


def test_no_torch_is_imported():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from ngramspec.engines.mlx_lm import stream_generate\n"
        "assert 'torch' not in sys.modules or sys.modules['torch'] is None"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """The model and its tokenizer, from MLX_MODELS if it is set, else converted here."""
    known = os.environ.get("MLX_MODELS")
    folder = Path(known) if known else tmp_path_factory.mktemp("models")
    return load(str(smollm2_mlx.write(folder / "smollm2")))


def test_smollm2_says_the_same_with_drafts(smollm2):
    """But for near ties, which are printed."""
    model, tokenizer = smollm2
    speculator, ties = Speculator(gamma=8), 0
    for prompt in engine_prompts(5):
        told = list(plain(model, tokenizer, prompt, 24))
        said = list(stream_generate(model, tokenizer, prompt, 24, speculator=speculator))
        pairs = enumerate(zip(told, said, strict=False))
        at = next((at for at, (one, other) in pairs if one.token != other.token), None)
        if at is None:
            assert [each.text for each in said] == [each.text for each in told]
            assert said[-1].finish_reason == told[-1].finish_reason
            continue
        best = mx.topk(told[at].logprobs, 2).tolist()
        print(f"\n{prompt[:40]!r} token {at}: {told[at].token} or {said[at].token}, {best}")
        assert abs(best[0] - best[1]) < NEAR
        ties += 1
    assert ties <= 1
    assert speculator.stats.accepted > 15
    print(speculator.stats)
