"""The configured object: arguments, statistics, hot swap, faults, interrupts, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from doubles import InterruptedStreamer, half_right, liar, oracle, random_drafter
from plain_text import PROMPT
from threads import PROMPTS, assert_each_is, in_threads

import ngramspec
from ngramspec import SharedStore, Speculator, build_drafter
from ngramspec.draft import EvidenceRequest
from ngramspec.speculator import GAMMA_NAMES

GREEDY = {"max_new_tokens": 30, "do_sample": False}


@pytest.fixture(scope="module")
def text(tiny):
    return tiny.generate(PROMPT, **GREEDY)[0].tolist()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"gamma": 0}, ValueError, r"gamma must be in 1\.\.64, got 0"),
        ({"gamma": 65}, ValueError, r"gamma must be in 1\.\.64, got 65"),
        ({"gamma": 2.5}, TypeError, r"gamma must be an integer, got 2\.5"),
        ({"gamma": True}, TypeError, "gamma must be an integer, got True"),
        ({"gamma": torch.tensor(True)}, TypeError, r"gamma must be an integer, got tensor\(True\)"),
        ({"tree": np.True_}, TypeError, r"tree must be an integer, got np.True_"),
        ({"tree": 0}, ValueError, r"tree must be in 1\.\.4096, got 0"),
        ({"tree": "wide"}, ValueError, "tree must be an integer, 'auto' or None, got 'wide'"),
        ({"tree": True}, TypeError, "tree must be an integer, got True"),
        ({"tree": 8, "gamma": 9}, ValueError, r"gamma must be in 1\.\.8, got 9"),
        ({"gamma": "fast"}, ValueError, "'auto' or 'heuristic', got 'fast'"),
        ({"gamma_max": 0}, ValueError, r"gamma_max must be in 1\.\.4096, got 0"),
        ({"lenience": "1"}, TypeError, "lenience must be a number, got '1'"),
        ({"gamma_max": 5000}, ValueError, "got 5000"),
        ({"drafter": "cpy+ngram"}, ValueError, "'cpy' is no drafter's name"),
        ({"drafter": 3}, TypeError, "drafter must be a string or a Drafter, got int"),
        ({"costs": 5}, TypeError, "costs must be a path or None, got int"),
        ({"unsupported": "ignore"}, ValueError, "unsupported must be 'error', 'plain' or None"),
        ({"on_step": 3}, TypeError, "on_step must be callable or None, got int"),
        *(({name: 5}, TypeError, f"argument '{name}'.* is gamma") for name in GAMMA_NAMES),
        ({"gama": 5}, TypeError, "unexpected keyword argument 'gama'$"),
    ],
)
def test_arguments_are_checked_at_construction(arguments, error, message):
    with pytest.raises(error, match=message):
        Speculator(**arguments)


@pytest.mark.parametrize("kind", [np.int64, np.int16, np.array, torch.tensor])
def test_integers_of_other_types_are_stored_as_int(kind, tmp_path):
    given = {"gamma": 4, "gamma_max": 16, "tree": 8, "width": 16}
    for options in ({"gamma", "tree"}, {"gamma_max"}, {"width"}):
        speculator = Speculator(**{name: kind(given[name]) for name in options})
        speculator.save_pretrained(tmp_path)  # as JSON
        again = Speculator.from_pretrained(tmp_path)
        for name in options:
            assert type(getattr(speculator, name)) is int
            assert getattr(again, name) == given[name]
    assert type(Speculator().options.with_chains_of(kind(4)).gamma) is int  # num_assistant_tokens
    assert type(SharedStore(kind(1 << 13)).max_bytes) is int
    assert Speculator(lenience=np.float32(0.5)).lenience == 0.5
    assert type(EvidenceRequest(top_k=kind(8)).top_k) is int


def test_statistics_add_up_over_runs_until_reset(tiny, text):
    speculator = Speculator(half_right(text, 97), 5)
    for runs in (1, 2):
        tiny.generate(PROMPT, custom_generate=speculator, **GREEDY)
        stats = speculator.stats
        assert stats.runs == runs
        assert stats.emitted == 29 * runs
        assert stats.emitted == stats.accepted + stats.target_calls  # one more per call
        assert stats.accepted <= stats.verified <= stats.drafted
        source = stats.sources["scripted"]
        counts = (source.drafted, source.verified, source.accepted)
        assert counts == (stats.drafted, stats.verified, stats.accepted)
        told = [(len(each), seen, len(ours)) for each, ours, seen in speculator.drafter.observed]
        assert counts == tuple(map(sum, zip(*told, strict=True)))
        assert stats.tokens_per_call == pytest.approx(stats.emitted / stats.target_calls)
        assert stats.alpha == pytest.approx(stats.accepted / stats.verified)
        assert stats.acceptance_rate == pytest.approx(stats.accepted / stats.drafted)
        assert stats.acceptance_rate < stats.alpha
        assert f"{stats.tokens_per_call:.2f} tokens per forward" in str(stats)
    seconds = (stats.prefill_seconds, stats.draft_seconds, stats.forward_seconds)
    assert min(*seconds, stats.other_seconds) > 0
    speculator.reset()
    assert stats == ngramspec.DecodeStats()
    ratios = (stats.acceptance_rate, stats.alpha, stats.tokens_per_call, stats.draft_length)
    assert (*ratios, stats.drafting_share) == (0.0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("ahead", [False, True])
def test_an_interrupted_stream_leaves_the_generator_where_it_was(tiny, ahead, monkeypatch):
    """As many numbers are drawn as tokens were committed, whatever was chosen ahead of them."""
    monkeypatch.setattr("ngramspec.decoding.setup.prefers_one_transfer", lambda device: ahead)
    kwargs = {"do_sample": True, "max_new_tokens": 40}
    torch.manual_seed(0)
    text = tiny.generate(PROMPT, **kwargs)[0].tolist()
    for most in (3, 9):
        torch.manual_seed(0)
        tiny.generate(PROMPT, **kwargs | {"max_new_tokens": most})
        expected = torch.get_rng_state()

        torch.manual_seed(0)
        with pytest.raises(KeyboardInterrupt):
            ngramspec.generate(
                tiny,
                PROMPT,
                streamer=InterruptedStreamer(most + 1),
                speculator=Speculator(oracle(text), 6),
                **kwargs,
            )
        assert torch.equal(expected, torch.get_rng_state())


def test_events_tell_what_every_step_did(tiny, text):
    events = []
    speculator = Speculator(half_right(text, 97), 5, on_step=events.append)
    tiny.generate(PROMPT, custom_generate=speculator, **GREEDY)
    assert [event.index for event in events] == list(range(speculator.stats.target_calls + 1))
    assert [t for event in events for t in event.verdict.emitted] == text[10:]
    assert events[0].drafted == ()
    for event in events[1:]:
        verdict = event.verdict
        assert event.accepted + event.rejected == event.drafted
        assert verdict.emitted[: len(event.accepted)] == event.accepted
        rejected = verdict.verified > len(event.accepted)
        assert (verdict.corrected is not None) == rejected
        assert event.source == ("scripted",) * len(event.drafted)
        assert min(event.draft_seconds, event.forward_seconds, event.other_seconds) > 0


def test_hot_swap_between_steps_changes_no_token(tiny, text):
    others = [random_drafter(97), liar(text, 97), oracle(text)]
    first = half_right(text, 97)

    def swap(event):
        if event.index in (2, 4, 6):
            speculator.drafter = others[event.index // 2 - 1]

    speculator = Speculator(first, 3, on_step=swap)
    out = tiny.generate(PROMPT, custom_generate=speculator, **GREEDY)
    assert out[0].tolist() == text
    for drafter in [first, *others]:
        assert len(drafter.sessions) == drafter.closed == 1
    for drafter in others:  # each began from what was committed
        tokens = drafter.sessions[0].tokens
        assert tokens == text[: len(tokens)]


@pytest.mark.parametrize("where", ["propose", "on_step"])
def test_ctrl_c_leaves_everything_reusable(tiny, text, where):
    drafter = half_right(text, 97)
    guess, calls = drafter.guess, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return guess(*args) if where == "propose" else None

    if where == "propose":
        drafter.guess = interrupted
    speculator = Speculator(drafter, 3, on_step=interrupted if where == "on_step" else None)
    with pytest.raises(KeyboardInterrupt):
        tiny.generate(PROMPT, custom_generate=speculator, **GREEDY)
    assert drafter.closed == len(drafter.sessions) == 1
    assert speculator.stats.runs == 1  # what was done until then is counted
    out = tiny.generate(PROMPT, custom_generate=speculator, **GREEDY)
    assert out[0].tolist() == text


def test_one_speculator_in_several_threads(tiny):
    speculator = Speculator(gamma=4)
    outputs = in_threads(
        lambda prompt: tiny.generate(prompt, custom_generate=speculator, **GREEDY), 5
    )
    assert_each_is([tiny.generate(prompt, **GREEDY) for prompt in PROMPTS], outputs, 5)
    assert speculator.stats.runs == 20
    assert speculator.stats.emitted == 20 * 29


@pytest.mark.parametrize("name", ["drafter", "stores", "gamma_max"])
def test_assignments_of_two_threads_are_both_kept(name, monkeypatch):
    """While options are made, by users' factories too, another thread's assignment waits."""
    speculator, seen = Speculator("copy"), []
    values = {"drafter": "ngram", "stores": [SharedStore()["a"]], "gamma_max": 7}

    def built(*arguments, **settings):
        with ThreadPoolExecutor(1) as other:
            seen.append(other.submit(speculator._assigning.acquire, blocking=False).result())
        speculator.reset()  # uses the other lock
        return build_drafter(*arguments, **settings)

    monkeypatch.setattr("ngramspec.options.build_drafter", built)
    setattr(speculator, name, values[name])
    assert seen == [False]
    with ThreadPoolExecutor(1) as other:
        assert other.submit(speculator._assigning.acquire, blocking=False).result()


def test_the_heuristic_grows_and_shrinks_within_its_bounds():
    from ngramspec.costs.policies import HeuristicGamma

    controller = HeuristicGamma(40)
    seen = []
    for _ in range(5):
        seen.append(controller.plan(False)[0])
        controller.observe(controller.plan(False)[0], controller.plan(False)[0])
    assert seen == [8, 16, 32, 40, 40]
    controller.observe(3, 3)  # a short draft, accepted whole, says nothing about longer ones
    assert controller.plan(False)[0] == 40
    for _ in range(8):
        controller.observe(controller.plan(False)[0], 0)
    assert controller.plan(False)[0] == 6
    small = HeuristicGamma(3)
    assert small.plan(False)[0] == 3
    small.observe(3, 0)
    assert small.plan(False)[0] == 3


def test_no_draft_is_longer_than_gamma_max(tiny, text):
    drafter = oracle(text * 3)
    tiny.generate(PROMPT, custom_generate=Speculator(drafter, gamma_max=11), **GREEDY)
    assert max(gamma for _, gamma in drafter.asked) == 11
