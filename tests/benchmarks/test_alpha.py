"""Alpha by exact sums: against the definition, against decoding itself, and in limits."""

from __future__ import annotations

import json

import numpy as np
import pytest
import speller
import torch
from conftest import tiny_llama
from forced_text import tiny_loaded

from benchmarks.__main__ import main
from benchmarks.alpha import (
    ALL,
    CountDrafter,
    CountModel,
    Plan,
    Played,
    mean_and_error,
    measure,
    play,
    summarize,
    target_text,
)
from benchmarks.texts import TYPES, content_prompts
from ngramspec import Speculator, build_drafter, generate
from ngramspec.theory.acceptance import acceptance
from ngramspec.theory.walltime import expected_tokens

VOCAB = 23
IDS = list(range(1, 20))


@pytest.fixture(scope="module")
def model():
    return tiny_llama(vocab=VOCAB)


@pytest.fixture(scope="module")
def generated(model):
    return target_text(model, IDS, new=60, temperature=1.0, seed=3)


@pytest.fixture(scope="module")
def greedy(model):
    return target_text(model, IDS, new=60, temperature=0.0)


def _dense(ids, probs):
    q = np.zeros(VOCAB)
    q[ids] = probs
    return q


@pytest.mark.parametrize("order", [1, 2])
def test_the_sums_are_those_of_the_definition(generated, order):
    counts = CountModel([generated.output.tolist()], order)
    played = play(CountDrafter(counts, "x"), generated, 1, leniences=(1.0, 0.3))
    at = range(1, len(generated.output))
    assert played.positions == len(played.chances) == len(at)
    for t, chances in zip(at, played.chances, strict=True):
        q = _dense(*counts.following(int(generated.output[t - 1])))
        p = generated.probs[t].astype(float)
        p /= p.sum()
        for lenience, chance in zip((1.0, 0.3), chances, strict=True):
            assert chance == pytest.approx(float(acceptance(p, q, lenience)), abs=1e-5)


def test_the_texts_distribution_has_the_processors_in_it(model):
    generated = target_text(model, IDS, new=20, temperature=0.7, sampling={"top_k": 5})
    assert (np.count_nonzero(generated.probs, axis=1) == 5).all()
    assert np.allclose(generated.probs.sum(axis=1), 1, atol=1e-5)
    assert (generated.probs[np.arange(len(generated.output)), generated.output] > 0).all()


def test_greedy_acceptance_is_0_or_1_and_lenience_only_helps(greedy):
    drafter = build_drafter("ngram(order=2)", policy="priority")
    played = play(drafter, greedy, 4, leniences=(1.0, 0.5, 0.1))
    chances = np.array(played.chances)
    assert set(chances.ravel().tolist()) <= {0.0, 1.0}
    assert (np.diff(chances, axis=1) >= 0).all()
    assert chances[:, 0].tolist() == played.match


def test_depths_are_judged_while_the_text_agrees(greedy):
    played = play(build_drafter("copy", policy="priority"), greedy, 4)
    for before, depth in zip(played.depth, played.depth[1:], strict=False):
        assert depth in (0, before + 1)
    found = summarize([played])
    assert sum(verified for _, _, verified in found.by_depth) == found.verified


def test_the_exact_sum_is_what_decoding_observes(model):
    prompts = [("a", IDS[n:] + IDS[:n]) for n in range(12)]
    train = [ids for _, ids in prompts]
    plan = Plan(prompts, train, new=60, gamma=1, leniences=(1.0, 0.3))
    (row,) = measure(model, plan, 1.0, ["trained-bigram"])
    assert row.group == ALL
    for k, seen in enumerate(row.observed):
        spread = np.sqrt(0.25 / seen.verified) + row.alpha.error[k]
        assert abs(seen.alpha - row.alpha.alpha[k]) < 5 * spread
    assert row.observed[1].alpha > row.observed[0].alpha


def test_match_is_what_exact_match_observes(model):
    prompts = [torch.tensor([IDS[n:] + IDS[:n]]) for n in range(8)]
    spec, verified, accepted, played = "ngram(order=2,sample=true)", 0, 0, []
    for number, ids in enumerate(prompts):
        speculator = Speculator(spec, 1, tree=None, policy="priority", verification="match")
        torch.manual_seed(number)
        generate(
            model,
            input_ids=ids,
            max_new_tokens=100,
            do_sample=True,
            top_k=0,
            speculator=speculator,
        )
        verified, accepted = (
            verified + speculator.stats.verified,
            accepted + speculator.stats.accepted,
        )
        text = target_text(model, ids[0].tolist(), new=100, temperature=1.0, seed=50 + number)
        played.append(play(build_drafter(spec, policy="priority"), text, 1))
    found = summarize(played)
    assert abs(accepted / verified - found.match) < 5 * np.sqrt(0.25 / verified)
    assert found.match < found.alpha[0] - 0.05


def test_a_standard_error_is_that_of_whole_texts():
    texts = [np.full(10, value) for value in (0.0, 1.0, 0.0, 1.0)]
    mean, error = mean_and_error(texts)
    assert mean == 0.5
    assert error == pytest.approx(0.25, abs=0.02)  # sqrt(0.25 / 4 texts), not of 40 positions
    assert mean_and_error([np.ones(0)]) == (0.0, 0.0)
    assert summarize([Played()]).alpha == (0.0,)


def test_count_models_fall_back_and_need_a_text():
    model = CountModel([[5, 6, 5, 7]], 2)
    ids, probs = model.following(5)
    assert (ids.tolist(), probs.tolist()) == ([6, 7], [0.5, 0.5])
    assert model.following(99)[0].tolist() == [5, 6, 7]
    with pytest.raises(ValueError, match="needs a text"):
        CountModel([], 1)


def test_content_types_each_have_their_prompts(monkeypatch):
    found = content_prompts(2)
    assert [prompt.group for prompt in found] == [kind for kind in TYPES for _ in range(2)]
    assert len({prompt.text for prompt in found}) == len(found)
    monkeypatch.setattr("benchmarks.texts.library", lambda: ["x = 1", "syntax error"])
    with pytest.raises(ValueError, match="has 0 prompts of each type, 2 are needed"):
        content_prompts(2)


COPY, BIGRAM = "copy(min_match=1)", "trained-bigram"


def spelled(temperature, count=12):
    texts = [given for given, _ in speller.sentences(7, 2 * count)]
    prompts = [("sentences", ids) for ids in texts[:count]]
    plan = Plan(prompts, texts[count:], new=24, gamma=4)
    names = [COPY, "trained-unigram", BIGRAM]
    return {row.drafter: row for row in measure(speller.load(), plan, temperature, names)}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_copying_the_input_beats_counts_of_the_output(temperature):
    found = spelled(temperature)
    alphas = {name: row.alpha.alpha[0] * row.alpha.drafted for name, row in found.items()}
    assert alphas[COPY] > 5 * max(alphas[BIGRAM], alphas["trained-unigram"])
    copied = found[COPY]
    assert copied.observed[0].tokens_per_call > 1.5
    assert copied.observed[0].tokens_per_call > found[BIGRAM].observed[0].tokens_per_call
    most = expected_tokens(max(each for each, _, _ in copied.alpha.by_depth), 4)
    assert copied.observed[0].tokens_per_call < most


FEW = ["--count", "2", "--train", "2", "--tokens", "9"]


@pytest.fixture
def loaded(monkeypatch):
    loaded = tiny_loaded()
    monkeypatch.setattr("ngramspec.measure.models.load", lambda *args, **kwargs: loaded)
    return loaded


def test_alpha_prints_and_writes(loaded, tmp_path, capsys):
    out = tmp_path / "o.json"
    command = ["alpha", *FEW, "--lenience", "0.3", "--top-k", "9"]
    command += ["--drafter", "trained-bigram", "--drafter", "copy"]
    assert main([*command, "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    for word in ("by position in the draft", "under lenience", "trained-bigram", "0.3"):
        assert word in printed
    written = json.loads(out.read_text())
    rows = [row for row in written["rows"] if row["group"] == "all"]
    assert [(row["drafter"], row["temperature"]) for row in rows] == [
        (name, temperature) for temperature in (0, 1) for name in ("trained-bigram", "copy")
    ]
    assert written["settings"]["top_k"] == 9
