"""llama-cpp-python itself with ngramspec's drafts: whatever is asked, what it says without.

SmolLM2 in float32, its cache too, on one thread. Where two tokens are as good within ``NEAR``,
kernels for one position and for several may choose differently: such differences are printed.
"""

from __future__ import annotations

import os
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

if find_spec("llama_cpp") is None:
    pytest.skip("needs llama-cpp-python: make test-llama", allow_module_level=True)

import smollm2_gguf
from engine_prompts import KINDS, engine_prompts
from garbage_drafter import FaultyDrafter
from llama_cpp import Llama, LlamaGrammar, LlamaRAMCache
from llama_cpp import llama_speculative as speculative
from llama_cpp.server.model import LlamaProxy
from llama_cpp.server.settings import ModelSettings

from ngramspec.engines.llama_cpp import NgramspecDraft
from ngramspec.engines.rows import Rows

pytestmark = pytest.mark.slow

PROMPTS = engine_prompts(15)
TOKENS, CONTEXT = 40, 1024
NEAR = 1e-3  # of logits
FLOAT32, FLOAT16 = 0, 1  # of the cache, as ggml counts types


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the GGUF files: LLAMA_MODELS if it is set, else converted here."""
    known = os.environ.get("LLAMA_MODELS")
    return Path(known) if known else tmp_path_factory.mktemp("models")


@contextmanager
def open_model(folder, kind="f32", **kwargs):
    cache = FLOAT32 if kind == "f32" else FLOAT16
    settings = {
        "n_ctx": CONTEXT,
        "logits_all": True,
        "n_threads": 1,
        "n_threads_batch": 1,
        "type_k": cache,
        "type_v": cache,
        "seed": 7,
    }
    path = str(smollm2_gguf.write(folder, kind))
    with closing(Llama(path, verbose=False, **settings | kwargs)) as model:
        yield model


@pytest.fixture(scope="module")
def plain(folder):
    with open_model(folder) as model:
        yield model


@pytest.fixture(scope="module")
def drafting(folder):
    with open_model(folder) as model:
        yield model


@pytest.fixture
def ours(drafting):
    """It with a drafter that drafts all it can."""
    drafting.reset()
    drafting.set_cache(None)
    drafting.draft_model = draft = NgramspecDraft(10, n_ctx=CONTEXT, options={"costs": "none"})
    yield drafting
    assert draft.rows.stats.faults == 0


def say(model, prompt, tokens=TOKENS, **kwargs):
    """Ids that are generated after a prompt, greedily unless told otherwise."""
    ids = model.tokenize(prompt.encode(), special=True) if isinstance(prompt, str) else prompt
    said = []
    for token in model.generate(ids, **{"temp": 0.0} | kwargs):
        said.append(token)
        if len(said) == tokens or token == model.token_eos():
            return said
    return said


def difference(plain, prompt, one, other):
    """None if the texts are the same, or part where two tokens are as good; else what differs.

    Args:
        plain: which said ``one`` after the prompt just now, and has its logits.
    """
    ids = plain.tokenize(prompt.encode(), special=True) if isinstance(prompt, str) else prompt
    at = next((at for at, both in enumerate(zip(one, other, strict=False)) if len({*both}) > 1), -1)
    if at < 0:
        return None if len(one) == len(other) else f"{len(one)} and {len(other)} tokens"
    logits = plain.scores[len(ids) - 1 + at]
    lead = float(logits[one[at]] - logits[other[at]])
    what = f"token {at}: {one[at]} and {other[at]}, lead {lead:.6f}"
    print("\nas good:" if lead < NEAR else "\ndifferent:", what)
    return None if 0 <= lead < NEAR else what


def check(plain, ours, prompts, ties=1, **kwargs):
    """Both say the same after every prompt, but for ``ties``."""
    exact = 0
    for prompt in prompts:
        one = say(plain, prompt, **kwargs)
        other = say(ours, prompt, **kwargs)
        assert difference(plain, prompt, one, other) is None
        exact += one == other
    assert exact >= len(prompts) - ties


def long_prompts(model, count):
    """Texts of 550 to 900 tokens: lists that go on, each with other numbers."""
    for at in range(count):
        lines = (f"{n}. item {n * (at + 3) % 97} costs {n * 7 % 31} dollars\n" for n in range(70))
        ids = model.tokenize("".join(lines).encode())
        yield ids[: 550 + 50 * at]


def test_prompts_one_after_another_are_answered_as_without_drafts(plain, ours):
    check(plain, ours, PROMPTS)
    assert len(PROMPTS) - 2 <= ours.draft_model.rows.stats.opened <= len(PROMPTS)
    assert ours.draft_model.rows.stats.accepted > 100


def test_learned_costs_change_no_text(plain, ours):
    ours.draft_model = NgramspecDraft(10, n_ctx=CONTEXT)
    check(plain, ours, PROMPTS[::2])
    assert ours.draft_model.rows.stats.accepted > 20


def test_prompts_longer_than_a_batch(folder):
    """Those that ended in "could not broadcast"."""
    with open_model(folder, n_batch=64) as plain, open_model(folder, n_batch=64) as ours:
        ours.draft_model = NgramspecDraft(10, n_ctx=CONTEXT, options={"costs": "none"})
        check(plain, ours, [*long_prompts(plain, 6)])
        assert ours.draft_model.rows.stats.accepted > 60


def test_without_logits_all_a_prompt_longer_than_a_batch_fails_whatever_is_drafted(folder):
    class Nothing(speculative.LlamaDraftModel):
        def __call__(self, input_ids, /, **kwargs):
            return np.empty(0, np.intc)

    for draft in (Nothing(), NgramspecDraft(10, n_ctx=CONTEXT)):
        with open_model(folder, logits_all=False, n_batch=64, draft_model=draft) as model:
            with pytest.raises(ValueError, match="could not broadcast"):
                say(model, list(range(100, 200)))
            model.reset()
            assert len(say(model, list(range(100, 140)), 8)) == 8


def test_streams_stops_and_usage(plain, ours):
    for prompt in PROMPTS[:6]:
        settings = {"max_tokens": TOKENS, "temperature": 0.0, "seed": 1}
        one = plain.create_completion(prompt, **settings)
        other = ours.create_completion(prompt, **settings)
        assert other["choices"] == one["choices"]
        assert other["usage"] == one["usage"]
        parts = list(ours.create_completion(prompt, stream=True, **settings))
        assert "".join(part["choices"][0]["text"] for part in parts) == one["choices"][0]["text"]
        assert parts[-1]["choices"][0]["finish_reason"] == one["choices"][0]["finish_reason"]
        stopped = ours.create_completion(prompt, stop=["\n"], **settings)
        assert (
            stopped["choices"]
            == plain.create_completion(prompt, stop=["\n"], **settings)["choices"]
        )
    assert ours.draft_model.rows.stats.accepted > 60


def test_chat_in_several_turns(plain, ours):
    chats = {plain: [], ours: []}
    questions = ("List three colours.", "List them again.", "And once more, please.")
    for question in questions:
        for model, chat in chats.items():
            chat.append({"role": "user", "content": question})
            settings = {"messages": chat, "max_tokens": TOKENS, "temperature": 0.0}
            if model is ours:
                parts = [
                    part["choices"][0]["delta"].get("content", "")
                    for part in model.create_chat_completion(stream=True, **settings)
                ]
                text = "".join(parts)
            else:
                text = model.create_chat_completion(**settings)["choices"][0]["message"]["content"]
            chat.append({"role": "assistant", "content": text})
    assert chats[ours] == chats[plain]
    assert ours.draft_model.rows.stats.accepted > 10


def test_penalties_and_a_grammar(plain, ours):
    check(plain, ours, PROMPTS[:5], repeat_penalty=1.2, presence_penalty=0.3)
    grammar = LlamaGrammar.from_string('root ::= "[" ([0-9]+ ", ")* [0-9]+ "]"', verbose=False)
    check(plain, ours, PROMPTS[:5], grammar=grammar)


def test_samples_of_a_seed_are_the_same_text(plain, ours):
    for seed in range(4):
        prompt = PROMPTS[seed]
        plain.set_seed(seed)
        ours.set_seed(seed)
        assert say(ours, prompt, temp=0.8) == say(plain, prompt, temp=0.8)
    assert ours.draft_model.rows.stats.accepted > 0


def test_resets_caches_and_abandoned_generations(plain, ours):
    told = [say(plain, prompt) for prompt in PROMPTS[:3]]
    ours.set_cache(LlamaRAMCache())
    for _ in range(2):  # the second time from the cache
        for prompt, ids in zip(PROMPTS[:3], told, strict=True):
            out = ours.create_completion(prompt, max_tokens=TOKENS, temperature=0.0)
            assert out["choices"][0]["text"] == ours.detokenize(ids).decode()
    ours.set_cache(None)
    for prompt, ids in zip(PROMPTS[:3], told, strict=True):
        assert say(ours, prompt, 5) == ids[:5]  # and is left there
        ours.reset()
        assert say(ours, prompt) == ids
        assert say(ours, prompt) == ids  # the prompt is in the cache of keys and values


def test_somebody_types(plain, ours):
    text = KINDS[0].format(3) + KINDS[0].format(4)
    check(plain, ours, [text[:end] for end in range(60, len(text), 4)], tokens=8)


def test_the_context_is_filled_to_its_end(folder):
    """Of 256 tokens: llama.cpp rounds a context up to that, and the buffers are not."""
    with open_model(folder, n_ctx=256) as plain, open_model(folder, n_ctx=256) as ours:
        ours.draft_model = NgramspecDraft(10, n_ctx=256, options={"costs": "none"})
        for prompt in (PROMPTS[3] * 6, PROMPTS[8] * 7):
            settings = {"max_tokens": None, "temperature": 0.0}
            one, other = (each.create_completion(prompt, **settings) for each in (plain, ours))
            assert other["choices"] == one["choices"]
            assert other["usage"] == one["usage"]
            assert one["usage"]["total_tokens"] == 256
        assert ours.draft_model.rows.stats.accepted > 30


def test_the_server_takes_it_in_place_of_its_own(folder, plain, monkeypatch):
    """As the page says."""
    ours = lambda num_pred_tokens: NgramspecDraft(num_pred_tokens, n_ctx=CONTEXT)  # noqa: E731
    monkeypatch.setattr(speculative, "LlamaPromptLookupDecoding", ours)
    settings = ModelSettings(
        model=str(smollm2_gguf.write(folder, "f32")),
        draft_model="prompt-lookup-decoding",
        n_ctx=CONTEXT,
        type_k=FLOAT32,
        type_v=FLOAT32,
        n_threads=1,
        n_threads_batch=1,
        verbose=False,
    )
    with closing(LlamaProxy.load_llama_from_model_settings(settings)) as model:
        check(plain, model, PROMPTS[:3])
        assert type(model.draft_model) is NgramspecDraft
        assert model.draft_model.rows.stats.calls > 20


def test_faults_of_a_drafter_cost_its_drafts_only(plain, drafting):
    drafting.draft_model = draft = NgramspecDraft(10, n_ctx=CONTEXT)
    draft.rows = Rows(FaultyDrafter(), 10, drafting.n_vocab(), CONTEXT)
    check(plain, drafting, PROMPTS[:5])
    assert draft.rows.stats.faults > 5
    assert draft.rows.stats.drafted > 20


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_other_types_of_weights(folder, kind):
    """Kernels for one position and several round differently there: most texts are the same."""
    with open_model(folder, kind) as plain, open_model(folder, kind) as ours:
        ours.draft_model = NgramspecDraft(10, n_ctx=CONTEXT, options={"costs": "none"})
        said = [(say(plain, prompt), say(ours, prompt)) for prompt in PROMPTS]
        assert sum(one == other for one, other in said) >= len(PROMPTS) // 2
        assert ours.draft_model.rows.stats.accepted > 60
