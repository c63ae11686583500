"""Windows and chunks: trees and rows that diverge give the baseline's text."""

from __future__ import annotations

import pytest
import torch
from batches import RowOracle, RowTrees, batch, row_texts
from families import build
from fuzz.state import layers_of
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, StaticCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask

import ngramspec
from benchmarks import tiny
from ngramspec import Speculator, UnsupportedError
from ngramspec.hf_model.compat.caches import cache_argument, cache_of
from ngramspec.hf_model.compat.package import before
from ngramspec.hf_model.target import Target

LENGTH = 112  # tokens of prompt and text
WINDOWED = ["mistral sliding", "gemma2 hybrid", "gpt-oss hybrid", "llama4 (chunks)"]
ALIKE = ("gemma3 hybrid", "starcoder2 sliding")  # as the first two
WINDOWED += [pytest.param(name, marks=pytest.mark.slow) for name in ALIKE]


def windowed(name, window):
    """A model whose windows, or chunks, have this size."""
    setting = "attention_chunk_size" if "chunks" in name else "sliding_window"
    model = build(name, **{setting: window})
    torch.manual_seed(1)
    tiny.untie(model)  # a head tied to the embeddings would only repeat
    return model


def plain_of(model, inputs, **kwargs):
    kwargs = {"do_sample": False, "max_length": LENGTH} | kwargs
    return kwargs, model.generate(**inputs, **kwargs)


@pytest.mark.every(4)
@pytest.mark.parametrize("name", WINDOWED)
def test_rows_that_diverge_and_leave(name, monkeypatch):
    """Gaps are closed, rows leave, and layers with windows hold little more than the window."""
    model, inputs = windowed(name, 8), batch(5, seed=2)
    _, free = plain_of(model, inputs, max_length=200)
    start = inputs["input_ids"].shape[1]
    ends = [int(free[row, start + 21 * row + 5]) for row in range(4)]
    kwargs, plain = plain_of(model, inputs, max_length=200, eos_token_id=ends, pad_token_id=0)
    rollback, rows, held, compacted = Target.rollback, set(), [], []

    def watch(self, paths, origins):
        before = self._slots + max(map(len, paths))
        rollback(self, paths, origins)
        rows.add(self.rows)
        held.append(self.cache.held)
        compacted.append(self._slots < before)

    monkeypatch.setattr(Target, "rollback", watch)
    drafter = RowOracle(row_texts(inputs, free), 0.6)
    ours = ngramspec.generate(model, **inputs, speculator=Speculator(drafter, 6), **kwargs)
    assert torch.equal(plain, ours)
    assert len(rows) > 1
    assert any(compacted)
    assert max(held) < 60


@pytest.mark.every(4)
@pytest.mark.parametrize("name", WINDOWED)
def test_a_draft_in_the_prefill(name):
    """The window's layers keep what a rejected draft has to give back."""
    model, inputs = windowed(name, 8), batch(1, seed=3)
    kwargs, plain = plain_of(model, inputs)
    for right in (0.0, 0.7, 1.0):
        events = []
        drafter = RowOracle(row_texts(inputs, plain), right)
        speculator = Speculator(drafter, "auto", on_step=events.append)
        ours = ngramspec.generate(model, **inputs, speculator=speculator, **kwargs)
        assert torch.equal(plain, ours)
    assert events[0].drafted


def test_masks_over_a_cache_that_keeps_all():
    """A cache made without the model's config has no windows; the masks have."""
    model, inputs = windowed("mistral sliding", 8), batch(3)
    kwargs, plain = plain_of(model, inputs, **cache_argument(DynamicCache()))
    speculator = Speculator(RowTrees(row_texts(inputs, plain)), 17, tree=17)
    kwargs |= cache_argument(DynamicCache())
    ours = ngramspec.generate(model, **inputs, speculator=speculator, **kwargs)
    assert torch.equal(plain, ours)


WAYS = {
    "trees": ({"gamma": 17, "tree": 17}, 1, {}),
    "a width": ({"gamma": 7, "width": 8}, 1, {}),
    "rows": ({"gamma": 5}, 3, {}),
    "beams": ({"gamma": 5}, 2, {"num_beams": 2}),
    "chunks": ({"gamma": 5}, 1, {"prefill_chunk_size": 3}),
}


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("name", "window", "given", "way"),
    [
        *(("mistral sliding", 64, 0, way) for way in WAYS),
        *(("gemma2 hybrid", 8, given, way) for given in (0, 160) for way in ("trees", "a width")),
        ("mistral sliding", 8, 15, "trees"),
        ("mistral sliding", 64, 15, "chunks"),
        ("gemma2 hybrid", 8, 160, "beams"),
        ("llama4 (chunks)", 8, 160, "trees"),
        ("llama4 (chunks)", 64, 0, "rows"),
    ],
)
def test_turns_over_a_static_cache(name, window, given, way):
    """A cache that is returned or given is left as the baseline leaves it, kinds and sizes too.

    In the baseline's later turns, a layer's window is no longer than the layer is.
    """
    if name == "llama4 (chunks)" and before("5.20"):
        pytest.skip("plain decoding fails before transformers 5.20")
    if way == "chunks" and before("5.20"):
        pytest.skip("plain decoding reads the prompt again over a given cache")
    settings, rows, options = WAYS[way]
    if not (given or name == "mistral sliding"):  # its layers without windows need the room
        options = options | {"max_cache_len": 160}
    texts, layers, states = [], [], []
    for ours in (False, True):
        model, inputs = windowed(name, window), batch(rows)
        model.set_attn_implementation("eager")
        kwargs = {"do_sample": False, "return_dict_in_generate": True, "max_new_tokens": 20}
        kwargs |= options
        cache = StaticCache(config=model.config, max_cache_len=given) if given else None
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        for turn in range(3):
            own = cache_argument(cache) if cache else {"cache_implementation": "static"}
            if ours:
                drafter = RowTrees(row_texts(inputs, texts[turn]), right=0.8)
                speculator = Speculator(drafter, **settings)
                kwargs["custom_generate"] = speculator
            out = model.generate(ids, attention_mask=mask, **kwargs, **own)
            cache = cache_of(out)
            if ours:
                assert torch.equal(out.sequences, texts[turn])
                assert speculator.stats.accepted > 4 or way == "beams"
                assert layers_of(cache) == layers[turn]
                for mine, theirs in zip(cache.layers, states[turn], strict=True):
                    torch.testing.assert_close(mine.keys, theirs, rtol=1e-3, atol=1e-3)
            else:
                texts.append(out.sequences)
                layers.append(layers_of(cache))
                states.append([each.keys.clone() for each in cache.layers])
            ids = torch.cat((out.sequences, inputs["input_ids"]), dim=1)
            new = ids.shape[1] - mask.shape[1]
            mask = torch.cat((mask, mask.new_ones(rows, new)), dim=1)


@pytest.mark.parametrize(
    ("name", "window", "length"),
    [*(("mistral sliding", 16, length) for length in (15, 16, 17)), ("gemma2 hybrid", 8, LENGTH)],
)
def test_a_fixed_width(name, window, length):
    """A text that fits into the window needs no static cache; a longer one does."""
    model, inputs = windowed(name, window), batch(1)
    model.set_attn_implementation("eager")
    kwargs, plain = plain_of(model, inputs, max_length=length)
    speculator = Speculator(RowOracle(row_texts(inputs, plain), 0.7), 7, width=8)
    if length > window:
        with pytest.raises(UnsupportedError, match="longer than an attention window; use cache_"):
            ngramspec.generate(model, **inputs, speculator=speculator, **kwargs)
        kwargs["cache_implementation"] = "static"
    ours = ngramspec.generate(model, **inputs, speculator=speculator, **kwargs)
    assert torch.equal(plain, ours)


def test_a_static_cache_that_is_longer_than_the_call():
    """generate makes it as long as that of an earlier call; all its layers must be equally long."""
    model, inputs = windowed("gemma2 hybrid", 8), batch(1)
    kwargs, _ = plain_of(model, inputs, cache_implementation="static")
    kwargs["max_length"] = 40
    plain = model.generate(**inputs, **kwargs)
    speculator = Speculator(RowTrees(row_texts(inputs, plain)), 17, tree=17)
    assert torch.equal(plain, ngramspec.generate(model, **inputs, speculator=speculator, **kwargs))


def added(module, query, key, value, attention_mask, **kwargs):
    """sdpa with a mask that is added to the scores, as flex attention would take a tensor."""
    mask = None if attention_mask is None else attention_mask.to(query.dtype)
    return sdpa_attention_forward(module, query, key, value, mask, **kwargs)


def test_rows_of_a_batch_under_an_attention_that_takes_no_mask_of_ours():
    AttentionInterface.register("added", added)
    AttentionMaskInterface.register("added", eager_mask)
    model, inputs = windowed("mistral sliding", 8), batch(3, seed=1)
    model.set_attn_implementation("added")
    kwargs, plain = plain_of(model, inputs)
    speculator = Speculator(RowOracle(row_texts(inputs, plain), right=0.8), 4)
    ours = ngramspec.generate(model, **inputs, speculator=speculator, **kwargs)
    assert torch.equal(plain, ours)
    assert speculator.stats.accepted > 40
