"""Models that are made to say a given text, however they are decoded."""

from __future__ import annotations

import pytest
import torch
from forced_text import IDS, TEXT

from ngramspec import generate
from ngramspec.hf_model.compat.caches import cache_argument, cache_of
from ngramspec.measure.calls import Configuration, ModelCaller
from ngramspec.measure.forwards import forced_model

WAYS = {
    "plain": {},
    "lookup": {"prompt_lookup_num_tokens": 4},
    "static": {"cache_implementation": "static"},
}


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_forced_model_says_the_text_however_it_is_decoded(tiny, way, ours):
    if ours and way == "lookup":
        return
    kind = type(tiny)
    call = (lambda **them: generate(tiny, **them)) if ours else tiny.generate
    inputs = {"input_ids": torch.tensor([IDS]), "do_sample": False, "max_new_tokens": len(TEXT)}
    with forced_model(tiny, 256) as set_text:
        for text in (TEXT, TEXT[::-1]):
            set_text([*IDS, *text])
            assert call(**inputs, **WAYS[way])[0, len(IDS) :].tolist() == list(text)
    assert type(tiny) is kind
    assert "_forced_targets" not in dict(tiny.named_buffers())
    assert call(**inputs)[0, len(IDS) :].tolist() != list(TEXT)


def test_a_forced_model_that_is_given_no_positions_counts_them_on_from_its_cache(tiny):
    with forced_model(tiny, 256) as set_text, torch.no_grad():
        set_text([*IDS, *TEXT])
        first = tiny(input_ids=torch.tensor([IDS]), use_cache=True)
        nexts = [first.logits[0, -1].argmax()]
        for token in TEXT[:3]:
            ids = torch.tensor([[token]])
            out = tiny(input_ids=ids, use_cache=True, **cache_argument(cache_of(first)))
            nexts.append(out.logits[0, -1].argmax())
    assert [int(each) for each in nexts] == list(TEXT[:4])


@pytest.mark.parametrize(
    ("speculator", "cache"),
    [({"tree": 16}, {}), ({"tree": 16}, "static"), ({"width": 8}, "static")],
)
def test_a_forced_model_is_decoded_as_its_class_is(tiny, speculator, cache):
    way = Configuration("ours", {"cache_implementation": cache} if cache else {}, speculator)
    with forced_model(tiny, 256) as set_text:
        set_text([*IDS, *TEXT])
        outcome = ModelCaller(tiny).call(way, IDS, len(TEXT))
    assert outcome.tokens == list(TEXT)
    assert outcome.stats.limits == {}
    assert max(outcome.widths) > 4


def test_a_forced_model_goes_by_position_not_by_order(tiny):
    with forced_model(tiny, 64) as set_text, torch.no_grad():
        set_text(list(range(10, 40)))
        tree = torch.tensor([[0, 1, 1, 2]])  # two siblings
        logits = tiny(input_ids=torch.zeros_like(tree), position_ids=tree).logits
        assert logits.argmax(-1).tolist() == [[11, 12, 12, 13]]
        with pytest.raises(ValueError, match=r"2\.\.64 tokens, got 65"):
            set_text(range(65))
