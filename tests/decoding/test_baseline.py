"""Calls under a transformers that is not tested: checked once, else the baseline."""

from __future__ import annotations

import pytest
import torch
from doubles import oracle
from plain_text import PROMPT, three_ways
from transformers.cache_utils import DynamicLayer

from ngramspec import Speculator, UnsupportedError
from ngramspec.decoding import baseline, setup
from ngramspec.hf_model.compat import caches, package
from ngramspec.stepwise import open_generation

GREEDY = {"do_sample": False, "max_new_tokens": 20}


OLDER, NEWER = "5.9.0", "5.99.0"


@pytest.fixture(params=[OLDER, NEWER])
def unknown(request, monkeypatch):
    """A version that is not tested, and whose check has not run."""
    monkeypatch.setattr("transformers.__version__", request.param)
    monkeypatch.setattr(baseline, "_found", {})
    return request.param


@pytest.fixture(params=["renamed argument", "removed method", "method without effect"])
def broken(request, unknown, monkeypatch):
    if request.param == "renamed argument":  # to one that is not among the names known here
        monkeypatch.setattr(caches, "CACHE_NAMES", ("memory", "memories", "memory_states"))
        caches.cache_names.cache_clear()
    elif request.param == "removed method":
        monkeypatch.delattr(DynamicLayer, "crop")
    else:
        monkeypatch.setattr(DynamicLayer, "crop", lambda self, count: None)
    yield unknown
    caches.cache_names.cache_clear()


def warnings_of(caplog):
    return [each for each in caplog.messages if "decoding without speculation" in each]


@pytest.mark.every(10)
@pytest.mark.parametrize("unsupported", ["plain", "error"])
def test_what_the_check_finds_runs_as_the_baseline(tiny, broken, unsupported, caplog):
    plain = tiny.generate(PROMPT, **GREEDY)
    for _ in range(2):
        speculator = Speculator(oracle(plain[0].tolist()), 4, unsupported=unsupported)
        given = {"speculator": speculator, "reference_ids": [1, 2], **GREEDY}
        assert all(torch.equal(ours, plain) for ours in three_ways(tiny, PROMPT, **given))
        assert not speculator.stats.runs
    (warning,) = warnings_of(caplog)
    if broken == NEWER:
        assert f"transformers {NEWER}" in warning
        assert f"install transformers=={package.NEWEST_TESTED}" in warning
    else:
        assert f"needs transformers>={package.OLDEST_SUPPORTED}, got {OLDER}" in warning


def test_an_open_generation_has_no_baseline(tiny, broken):
    with pytest.raises(UnsupportedError, match=broken):
        open_generation(tiny, PROMPT, **GREEDY)


def test_an_unknown_version_that_passes_is_used(tiny, unknown, caplog):
    plain = tiny.generate(PROMPT, **GREEDY)
    for _ in range(2):
        speculator = Speculator(oracle(plain[0].tolist()), 4)
        assert torch.equal(tiny.generate(PROMPT, custom_generate=speculator, **GREEDY), plain)
        assert speculator.stats.accepted > 0
    assert baseline._found == {unknown: None}
    assert not warnings_of(caplog)
    older = [each for each in caplog.messages if f"transformers {OLDER} is untested" in each]
    assert len(older) == (unknown == OLDER)


@pytest.mark.parametrize(
    "error", [MemoryError("no memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_a_check_without_memory_is_repeated(tiny, unknown, monkeypatch, error):
    plain = tiny.generate(PROMPT, **GREEDY)

    def failing(vocab):
        raise error

    with monkeypatch.context() as short:
        short.setattr(baseline, "small_model", failing)
        given = {"speculator": Speculator(), **GREEDY}
        assert all(torch.equal(ours, plain) for ours in three_ways(tiny, PROMPT, **given))
        assert not given["speculator"].stats.runs
    speculator = Speculator()
    assert torch.equal(tiny.generate(PROMPT, custom_generate=speculator, **GREEDY), plain)
    assert speculator.stats.runs


def test_the_check_changes_no_random_state(tiny, unknown, monkeypatch):
    """It neither seeds nor restores the global generator, which other threads draw from."""
    monkeypatch.setattr(torch.random, "fork_rng", None)
    before = torch.get_rng_state()
    tiny.generate(PROMPT, custom_generate=Speculator(), **GREEDY)
    assert baseline._found == {unknown: None}
    assert torch.equal(torch.get_rng_state(), before)


def test_a_tested_version_is_not_checked(tiny, monkeypatch):
    monkeypatch.setattr(baseline, "_found", {})
    tiny.generate(PROMPT, custom_generate=Speculator(), **GREEDY)
    assert not baseline._found


def test_what_fails_for_one_model_only_runs_as_the_baseline(tiny, unknown, monkeypatch, caplog):
    """The check's model is a Llama; another class may use what has changed."""
    plain = tiny.generate(PROMPT, **GREEDY)
    own = setup.Target

    def changed(model, *args, **kwargs):
        if model is tiny:
            raise AttributeError("'DynamicCache' object has no attribute 'layers'")
        return own(model, *args, **kwargs)

    monkeypatch.setattr(setup, "Target", changed)
    speculator = Speculator()
    for _ in range(2):
        assert torch.equal(tiny.generate(PROMPT, custom_generate=speculator, **GREEDY), plain)
    (warning,) = warnings_of(caplog)
    assert f"transformers {unknown}" in warning
    monkeypatch.setattr("transformers.__version__", package.NEWEST_TESTED)
    with pytest.raises(AttributeError):
        tiny.generate(PROMPT, custom_generate=speculator, **GREEDY)


OLDEST, NEWEST = package.OLDEST_SUPPORTED, package.NEWEST_TESTED


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("pyproject.toml", f'"transformers>={OLDEST}"'),
        ("constraints.txt", f"\ntransformers=={NEWEST}\n"),
        *(("noxfile.py", f'    "{each}": ') for each in (OLDEST, NEWEST)),
    ],
)
def test_oldest_supported_and_newest_tested_are_those_of_the_project(request, file, line):
    assert line in (request.config.rootpath / file).read_text()
