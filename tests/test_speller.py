"""A trained encoder-decoder: plain ``generate``'s text, in far fewer calls, whatever drafts."""

from __future__ import annotations

import pytest
import speller
import torch

import ngramspec
from ngramspec import Drafter, Speculator, build_drafter

HELD_OUT = speller.sentences(seed=2_000_000, count=50)
# drafter -> tokens per call that it must reach, by policy "value" and by "priority"
FLOORS = {
    "auto": (3.3, 2.3),
    "copy": (2.6, 1.7),
    "ngram": (3.3, 2.3),
    "unigram": (1.0, 1.0),
    "copy+ngram": (3.3, 2.3),
    "none": (1.0, 1.0),
}
GREEDY = {"do_sample": False, "max_new_tokens": 40}


@pytest.fixture(scope="module")
def model():
    return speller.load()


@pytest.fixture(scope="module")
def plain(model):
    """The model's own greedy answer to each held-out sentence."""
    return [model.generate(**inputs([given]), **GREEDY) for given, _ in HELD_OUT]


def inputs(rows):
    """Sentences with padding on the right, as encoders read them."""
    ids = speller.padded(rows)
    return {"input_ids": ids, "attention_mask": (ids != speller.PAD).long()}


def generate(model, given, speculator, **kwargs):
    return ngramspec.generate(model, **inputs(given), speculator=speculator, **(GREEDY | kwargs))


class WithoutEncoder(Drafter):
    """A drafter that is not shown what the encoder read: only the decoder's start and output."""

    def __init__(self, spec, policy):
        self.inner = build_drafter(spec, policy=policy)
        self.source_names, self.estimates = self.inner.source_names, self.inner.estimates

    def start(self, tokens):
        end = tokens.tolist().index(speller.EOS) + 1  # of the encoder's sentence
        return self.inner.start(tokens[end:])


def test_the_model_corrects_spelling(plain):
    assert (
        speller.spell(HELD_OUT[16][0])
        == "rusty monkeys discover genle lanterns beneeath honest wizards"
    )
    assert (
        speller.spell(plain[16][0].tolist())
        == "rusty monkeys discover gentle lanterns beneath honest wizards"
    )
    words = []  # of all sentences, as (read, wanted, said)
    for (given, wanted), out in zip(HELD_OUT, plain, strict=True):
        said = out[0, 1:].tolist() + [speller.PAD] * len(wanted)
        words += zip(given, wanted, said, strict=False)
    right = [read for read, wanted, said in words if wanted == said]
    misspelt = [wanted == said for read, wanted, said in words if read != wanted]
    assert len(right) > 0.9 * len(words)
    assert len(misspelt) > 50
    assert sum(misspelt) > 0.9 * len(misspelt)


@pytest.mark.parametrize(
    ("drafter", "policy"),
    [
        ("auto", "value"),
        *(
            pytest.param(each, policy, marks=pytest.mark.slow)
            for policy in ("value", "priority")
            for each in FLOORS
            if (each, policy) != ("auto", "value") and (policy == "value" or each in [*FLOORS][:2])
        ),
    ],
)
def test_greedy_text_is_plain_generate_s(model, plain, drafter, policy):
    speculator = Speculator(drafter, policy=policy)
    for (given, _), out in zip(HELD_OUT, plain, strict=True):
        assert torch.equal(out, generate(model, [given], speculator))
    assert speculator.stats.tokens_per_call >= FLOORS[drafter][policy == "priority"]


@pytest.mark.parametrize("policy", ["value", "priority"])
def test_copying_from_the_encoder_s_input_is_what_pays(model, plain, policy):
    stats = {}
    for drafter in (build_drafter("copy", policy=policy), WithoutEncoder("copy", policy)):
        speculator = Speculator(drafter)
        for (given, _), out in zip(HELD_OUT, plain, strict=True):
            assert torch.equal(out, generate(model, [given], speculator))
        assert speculator.stats.drafter_faults == 0
        stats[type(drafter)] = speculator.stats
    with_it, without = stats.values()
    assert without.accepted < 0.2 * with_it.accepted
    assert without.tokens_per_call < 1.2 < 1.7 < with_it.tokens_per_call


@pytest.mark.parametrize("drafter", ["auto", "copy"])
def test_a_batch_is_plain_generate_s(model, drafter):
    """Eight sentences of different lengths, padded, advance together."""
    speculator = Speculator(drafter)
    for start in range(0, 48, 8):
        rows = [given for given, _ in HELD_OUT[start : start + 8]]
        out = model.generate(**inputs(rows), **GREEDY)
        assert torch.equal(out, generate(model, rows, speculator))
    assert speculator.stats.tokens_per_call > 1.1


def test_sampled_text_is_that_of_the_seed(model):
    differ = 0
    for seed, (given, _) in enumerate(HELD_OUT[:16]):
        texts = []
        for speculator in (None, Speculator(), Speculator("copy", gamma=7)):
            torch.manual_seed(seed)
            kwargs = GREEDY | {"do_sample": True, "temperature": 1.5, "top_k": 0}
            texts.append(model.generate(**inputs([given]), custom_generate=speculator, **kwargs))
        assert torch.equal(texts[0], texts[1])
        assert torch.equal(texts[0], texts[2])
        differ += not torch.equal(texts[0], model.generate(**inputs([given]), **GREEDY))
    assert differ > 8  # the draws were not those of the greedy text


@pytest.mark.parametrize("rows", [1, 8])
def test_the_encoder_runs_once(model, rows):
    calls = []
    hook = model.get_encoder().register_forward_hook(lambda *_: calls.append(1))
    try:
        speculator = Speculator()
        generate(model, [given for given, _ in HELD_OUT[:rows]], speculator)
    finally:
        hook.remove()
    assert speculator.stats.target_calls > 2
    assert len(calls) == 1
