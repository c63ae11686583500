"""What agents ask: smolagents' ``llm.model``, LlamaIndex's ``llm._model``, and Haystack's
``generator.pipeline.model`` after ``generator.warm_up()``.
"""

from __future__ import annotations

import asyncio

import pytest
import torch
from usual_call import check, tiny

from ngramspec.options import FOLDER
from ngramspec.wrap import wrapped

PROMPTS = ["One, two, three. One, two,", "abcabcabcab"]
SETTINGS = {"greedy": {"do_sample": False}, "sampled": {"do_sample": True, "temperature": 0.7}}
LONG = 100  # tokens in which a tiny model repeats itself

greedy_and_sampled = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)


@pytest.fixture
def folder(tmp_path):
    tiny(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def wrapped_folder(folder, tmp_path):
    """A source tree that was built in place can load it too: it has no version to require."""
    out = tmp_path / "wrapped"
    wrapped.wrap(tmp_path / "model", out, {"drafter": "auto", "gamma": 4})
    (out / FOLDER / "requirements.txt").unlink()
    return str(out)


def seeded(call, *args):
    torch.manual_seed(3)
    return call(*args)


def speculates(model):
    stats = wrapped.speculator_of(model).stats
    return stats.runs == len(PROMPTS) and stats.accepted > 0 and not stats.limits


def smolagent(folder, tokens=24, **settings):
    smolagents = pytest.importorskip("smolagents", reason="make test-frameworks")
    return smolagents.TransformersModel(model_id=folder, max_new_tokens=tokens, **settings)


def asked(prompt):
    return [{"role": "user", "content": [{"type": "text", "text": prompt}]}]


def generated(llm, **call):
    given = [llm.generate(asked(prompt), **call) for prompt in PROMPTS]
    return [(each.content, each.token_usage) for each in given]


def deltas(llm, **call):
    given = [each for prompt in PROMPTS for each in llm.generate_stream(asked(prompt), **call)]
    return [(each.content, each.token_usage) for each in given]


@greedy_and_sampled
@pytest.mark.parametrize("call", [generated, deltas])
def test_smolagents(folder, call, settings):
    llm = smolagent(folder, **settings)
    check(llm.model, lambda: seeded(call, llm))


@pytest.mark.parametrize("call", [generated, deltas])
def test_smolagents_joins_each_token_once_to_the_text_that_its_stop_sequences_may_end(folder, call):
    llm = smolagent(folder)
    stop = ["Observation:", generated(llm)[0][0][10:13]]
    check(llm.model, lambda: call(llm, stop_sequences=stop))
    assert generated(llm, stop_sequences=stop)[0][1].output_tokens == 13


def test_smolagents_with_a_wrapped_folder(folder, wrapped_folder):
    llm = smolagent(wrapped_folder, LONG, trust_remote_code=True)
    assert generated(llm) == generated(smolagent(folder, LONG))
    assert speculates(llm.model)


def llama_index(folder, tokens=24, **settings):
    module = pytest.importorskip("llama_index.llms.huggingface", reason="make test-frameworks")
    names = {"model_name": folder, "tokenizer_name": folder}
    return module.HuggingFaceLLM(**names, max_new_tokens=tokens, **settings)


def completed(llm):
    return [llm.complete(prompt).text for prompt in PROMPTS]


def chatted(llm):
    from llama_index.core.llms import ChatMessage

    return [llm.chat([ChatMessage(content=prompt)]).message.content for prompt in PROMPTS]


def streamed(llm):
    return [[each.delta for each in llm.stream_complete(prompt)] for prompt in PROMPTS]


@greedy_and_sampled
@pytest.mark.parametrize("call", [completed, chatted, streamed])
def test_llama_index(folder, call, settings):
    llm = llama_index(folder, generate_kwargs=settings)
    check(llm._model, lambda: seeded(call, llm))


def test_llama_index_stops_at_its_stopping_ids(folder):
    text = completed(llama_index(folder))[0]
    llm = llama_index(folder, stopping_ids=[ord(text[10]) - 31])
    check(llm._model, lambda: completed(llm))
    assert completed(llm)[0] == text[: text.index(text[10]) + 1]


def test_llama_index_with_a_wrapped_folder(folder, wrapped_folder):
    llm = llama_index(wrapped_folder, LONG, model_kwargs={"trust_remote_code": True})
    assert completed(llm) == completed(llama_index(folder, LONG))
    assert speculates(llm._model)


def haystack(folder, tokens=24, sampling=SETTINGS["greedy"], **settings):
    name = "haystack_integrations.components.generators.transformers"
    module = pytest.importorskip(name, reason="make test-frameworks")
    kwargs = {"max_new_tokens": tokens, **sampling}
    settings |= {"task": "text-generation", "generation_kwargs": kwargs}
    generator = module.TransformersChatGenerator(model=folder, **settings)
    generator.warm_up()
    return generator


def replied(generator, **call):
    given = [generator.run(prompt, **call)["replies"] for prompt in PROMPTS]
    return [each.text for replies in given for each in replies]


def called_back(generator):
    chunks = []
    return replied(generator, streaming_callback=lambda each: chunks.append(each.content)), chunks


def awaited(generator):
    given = [asyncio.run(generator.run_async(prompt))["replies"] for prompt in PROMPTS]
    return [each.text for replies in given for each in replies]


@greedy_and_sampled
@pytest.mark.parametrize("call", [replied, called_back, awaited])
def test_haystack(folder, call, settings):
    generator = haystack(folder, sampling=settings)
    check(generator.pipeline.model, lambda: seeded(call, generator))


def test_haystack_stops_at_its_stop_words(folder):
    text = replied(haystack(folder))[0]
    generator = haystack(folder, stop_words=[text[10:12]])
    check(generator.pipeline.model, lambda: replied(generator))
    assert replied(generator)[0] == text[:10]


def test_haystack_with_a_wrapped_folder(folder, wrapped_folder):
    trusting = {"huggingface_pipeline_kwargs": {"trust_remote_code": True}}
    generator = haystack(wrapped_folder, LONG, **trusting)
    assert replied(generator) == replied(haystack(folder, LONG))
    assert speculates(generator.pipeline.model)
