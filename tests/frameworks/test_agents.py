"""Agents' models: smolagents' ``llm.model``, LlamaIndex's ``llm._model``, and Haystack's
``generator.pipeline.model`` after ``generator.warm_up()``.
"""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
from frameworks.usual_call import check, tiny

from ngramspec.options import FOLDER
from ngramspec.wrap import wrapped

PROMPTS = ["One, two, three. One, two,", "abcabcabcab"]
SHORT, LONG = 24, 100  # tokens; in LONG a tiny model repeats itself
GREEDY, SAMPLED = {"do_sample": False}, {"do_sample": True, "temperature": 0.7}


def smolagents(folder, tokens, settings, trust=False, **stop):
    module = pytest.importorskip("smolagents", reason="make test-frameworks")
    llm = module.TransformersModel(
        folder, max_new_tokens=tokens, trust_remote_code=trust, **settings
    )

    def asked(prompt):
        return [{"role": "user", "content": [{"type": "text", "text": prompt}]}]

    def generate(prompt):
        return llm.generate(asked(prompt), **stop).content

    def stream(prompt):
        return [each.content for each in llm.generate_stream(asked(prompt), **stop)]

    return llm.model, [generate, stream]


def llama_index(folder, tokens, settings, trust=False, **stop):
    module = pytest.importorskip("llama_index.llms.huggingface", reason="make test-frameworks")
    from llama_index.core.llms import ChatMessage

    llm = module.HuggingFaceLLM(
        model_name=folder,
        tokenizer_name=folder,
        max_new_tokens=tokens,
        generate_kwargs=settings,
        model_kwargs={"trust_remote_code": trust},
        **stop,
    )

    def chat(prompt):
        return llm.chat([ChatMessage(content=prompt)]).message.content

    def stream(prompt):
        """It returns while the thread of ``generate`` still ends."""
        before = threading.enumerate()
        texts = [each.delta for each in llm.stream_complete(prompt)]
        for each in set(threading.enumerate()).difference(before):
            each.join()
        return texts

    return llm._model, [lambda prompt: llm.complete(prompt).text, chat, stream]


def haystack(folder, tokens, settings, trust=False, **stop):
    name = "haystack_integrations.components.generators.transformers"
    generator = pytest.importorskip(name, reason="make test-frameworks").TransformersChatGenerator(
        folder,
        task="text-generation",
        generation_kwargs={"max_new_tokens": tokens, **settings},
        huggingface_pipeline_kwargs={"trust_remote_code": trust},
        **stop,
    )
    generator.warm_up()

    def run(prompt):
        return generator.run(prompt)["replies"][0].text

    def stream(prompt):
        texts = []
        generator.run(prompt, streaming_callback=lambda each: texts.append(each.content))
        return texts

    def run_async(prompt):
        return asyncio.run(generator.run_async(prompt))["replies"][0].text

    return generator.pipeline.model, [run, stream, run_async]


every_framework = pytest.mark.parametrize("framework", [smolagents, llama_index, haystack])


@pytest.fixture
def folder(tmp_path):
    tiny(tmp_path / "model")
    return str(tmp_path / "model")


def answers(call):
    torch.manual_seed(3)
    return [call(prompt) for prompt in PROMPTS]


@every_framework
@pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_calls_and_streams(framework, settings, folder):
    model, calls = framework(folder, SHORT, settings)
    for call in calls:
        check(model, lambda call=call: answers(call))


STOPS = {
    smolagents: lambda text: ({"stop_sequences": ["Observation:", text[10:13]]}, text[:10]),
    llama_index: lambda text: ({"stopping_ids": [ord(text[10]) - 31]}, text[:11]),
    haystack: lambda text: ({"stop_words": [text[10:12]]}, text[:10]),
}


@every_framework
def test_own_stopping_criteria(framework, folder):
    """They see each token once: that of smolagents joins what it sees, and streams are not cut."""
    stop, expected = STOPS[framework](framework(folder, SHORT, GREEDY)[1][0](PROMPTS[0]))
    model, calls = framework(folder, SHORT, GREEDY, **stop)
    for call in calls:
        check(model, lambda call=call: answers(call), repeated=2)
    assert calls[0](PROMPTS[0]) == expected


@every_framework
def test_a_wrapped_folder_passed_with_trust_remote_code(framework, folder, tmp_path):
    """A source tree that was built in place has no version, which the folder would require."""
    out = tmp_path / "wrapped"
    wrapped.wrap(tmp_path / "model", out, {"drafter": "auto", "gamma": 4})
    (out / FOLDER / "requirements.txt").unlink()
    model, calls = framework(str(out), LONG, GREEDY, trust=True)
    assert answers(calls[0]) == answers(framework(folder, LONG, GREEDY)[1][0])
    stats = wrapped.speculator_of(model).stats
    assert stats.runs == len(PROMPTS)
    assert stats.accepted > 0
    assert not stats.limits
