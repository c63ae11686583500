"""Compiled forwards on the pretended GPU: how many widths, and when they are compiled."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from gpu import cases
from gpu.compiler import compiling
from gpu.device import on_gpu, pretended

import ngramspec
from ngramspec import Speculator
from ngramspec.hf_model import compiled
from ngramspec.hf_model.compat.package import before

DOCS = Path(__file__).parents[2] / "docs"
NEW, SHORT = 200, 40
STATIC = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0} | {
    "cache_implementation": "static",
    "max_new_tokens": NEW,
}
PROMPTS = [torch.tensor([row]) for row in (cases.TEXT, cases.OTHER, cases.TEXT * 2)]


@pytest.fixture
def gpu(request):
    with pretended(getattr(request, "param", "cuda")) as gpu:
        yield gpu


@pytest.fixture
def compiler(gpu):
    with compiling(cases.model_on(gpu, "llama")) as compiler:
        yield compiler


def plain(prompt, **kwargs):
    on_cpu = STATIC | {"cache_implementation": None} | kwargs
    return cases.model_on(None, "llama").generate(prompt, **on_cpu)


SLOW = pytest.param(False, marks=pytest.mark.slow)


@pytest.mark.parametrize("compiles", [True, SLOW], ids=["compiled", "uncompiled"])
def test_static_calls_use_at_most_four_widths_for_chains_and_trees(compiler, gpu, compiles):
    widths, waits = set(), []
    speculator = Speculator(on_step=lambda event: widths.add(event.width if event.index else 1))
    settings = STATIC | {"speculator": speculator, "disable_compile": not compiles}
    for prompt in (*PROMPTS[:2], PROMPTS[0]):
        text, before = plain(prompt), compiler.count
        known = cases.noisy(text.tolist(), cases.Case())
        with gpu.watch(compiler.model) as seen:
            out = ngramspec.generate(
                compiler.model, on_gpu(prompt), reference_ids=known, **settings
            )
        assert out.tolist() == text.tolist()
        if compiler.count == before:
            waits += [each.count() for each in seen.parts()[2:-1]]
    assert {1} < widths
    assert len(widths) <= compiled.MAX_WIDTHS
    assert set(compiler.widths) == (widths if compiles else set())
    assert max(waits) == 1
    assert speculator.stats.accepted > 300
    assert speculator.stats.target_calls > 50


def test_nothing_is_compiled_between_two_tokens(compiler, caplog):
    speculator, before = Speculator(), 0
    for prompt in PROMPTS:
        kwargs = STATIC | {"max_new_tokens": SHORT, "streamer": compiler}
        ngramspec.generate(compiler.model, on_gpu(prompt), speculator=speculator, **kwargs)
        events = compiler.events[before:]
        assert events.count("token") == SHORT + 1  # with the prompt
        first, last = events.index("token") + 1, events.index("end")
        inside = [each for each in events[first:last] if each != "token"]
        assert inside == events[first : first + len(inside)]  # before the first generated token
        assert bool(inside) is (prompt is PROMPTS[0])
        before = len(compiler.events)
    assert len({each for each in compiler.events if isinstance(each, int)}) == compiled.MAX_WIDTHS
    assert caplog.text.count("compiling forwards of 1 and ") == 1


@pytest.mark.parametrize(("gpu", "compiles"), [("xpu", True), ("mps", False)], indirect=["gpu"])
def test_intel_s_forwards_are_compiled_and_apple_s_are_not_as_in_generate(gpu, compiler, compiles):
    kwargs = STATIC | {"max_new_tokens": SHORT}
    out = ngramspec.generate(compiler.model, on_gpu(PROMPTS[0]), **kwargs)
    assert out.tolist() == plain(PROMPTS[0], max_new_tokens=SHORT).tolist()
    assert bool(compiler.count) is compiles


def test_enabled_warm_up_compiles_what_later_calls_use(compiler):
    with ngramspec.enable(compiler.model) as handle:
        widths = handle.warm_up(on_gpu(PROMPTS[2]), **STATIC)
        assert len(widths) == compiled.MAX_WIDTHS
        count = compiler.count
        assert count == 2 * len(widths)
        for prompt in PROMPTS:
            out = compiler.model.generate(on_gpu(prompt), **STATIC | {"max_new_tokens": SHORT})
            assert out.tolist() == plain(prompt, max_new_tokens=SHORT).tolist()
        assert compiler.count == count
        assert handle.warm_up(on_gpu(PROMPTS[0]), **STATIC | {"cache_implementation": None}) == ()
        assert handle.stats.runs == len(PROMPTS)


@pytest.mark.parametrize("first", [True, False], ids=["after the prefill", "after the end"])
def test_an_error_while_compiling_leaves_the_cache_and_an_answer_that_has_ended(
    compiler, monkeypatch, caplog, first
):
    inner, failed = compiler.run, []

    def failing(**inputs):
        width = inputs["input_ids"].shape[1]
        if not failed and (width in (1, 65)) is first:
            failed.append(width)
            raise MemoryError("a graph")
        return inner(**inputs)

    monkeypatch.setattr(compiler, "run", failing)
    kwargs = STATIC | {"max_new_tokens": SHORT}
    if first:
        with pytest.raises(MemoryError):
            ngramspec.generate(compiler.model, on_gpu(PROMPTS[0]), **kwargs)
    else:
        out = ngramspec.generate(compiler.model, on_gpu(PROMPTS[0]), **kwargs)
        assert out.tolist() == plain(PROMPTS[0], max_new_tokens=SHORT).tolist()
        assert "further forwards could not be compiled: MemoryError('a graph')" in caplog.text
    assert failed
    out = ngramspec.generate(compiler.model, on_gpu(PROMPTS[1]), **kwargs)
    assert out.tolist() == plain(PROMPTS[1], max_new_tokens=SHORT).tolist()


@pytest.mark.skipif(before("5.20"), reason="plain decoding with chunks fails in transformers 5.19")
def test_the_page_says_what_each_combination_does():
    page = runpy.run_path(str(DOCS / "combinations.py"))["page"]()
    assert page == (DOCS / "guide" / "gpu.md").read_text(encoding="utf-8"), "run it"
