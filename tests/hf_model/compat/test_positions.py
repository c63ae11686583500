"""Hooks that give positions to models that count them themselves."""

from __future__ import annotations

import importlib
import inspect
import threading

import pytest
import torch
import transformers
from batches import RowTrees, batch, row_texts
from families import ENCODER_DECODER, VARIED, VOCAB, build
from transformers_names import modules_of_models

import ngramspec
from ngramspec import Speculator
from ngramspec.hf_model.compat.caches import cache_argument
from ngramspec.hf_model.compat.positions import (
    LENGTHS,
    POSITION_EMBEDDINGS,
    counting_modules,
    placed,
)

HOOKED = ("bart decoder", "bart", "marian", "pegasus", "m2m100 (no positions of padding)", "t5")
GREEDY = {"do_sample": False, "max_new_tokens": 40} | VARIED
SIZE, PADDING, LENGTH = 16, 1, 24


def made(name):
    """A module of a listed class."""
    kind = getattr(importlib.import_module(f"transformers.{modules_of_models()[name]}"), name)
    torch.manual_seed(0)
    if name.startswith("PegasusX"):
        return kind(SIZE)
    if name.startswith(
        ("Kosmos", "M2M", "Nllb", "Speech2Text", "TrOCRSin")
    ):  # padding has no position
        return kind(LENGTH + 2, SIZE, PADDING)
    module = kind(LENGTH, SIZE)
    torch.nn.init.normal_(module.weight)
    return module


class Caller(torch.nn.Module):
    """Calls a position embedding as its decoder does."""

    def __init__(self, name):
        super().__init__()
        self.embed_positions = made(name)

    def get_decoder(self):
        return self

    def forward(self, tokens, past):
        name, embed = type(self.embed_positions).__name__, self.embed_positions
        counted = torch.arange(tokens.shape[1]) + past
        if name.startswith("PegasusX"):
            return embed(tokens[..., None].expand(-1, -1, SIZE).float(), past, counted[:, None])
        known = inspect.signature(embed.forward).parameters
        length = next((each for each in LENGTHS if each in known), "")
        if name.startswith("Kosmos"):
            return embed(input_ids=tokens, inputs_embeds=None, **{length: past})
        if name.startswith(("M2M", "Nllb")):
            return embed(tokens, None, past)
        if name.startswith(("Speech2Text", "TrOCR")):
            return embed(tokens, **{length: past})
        if name.startswith(("Bart", "MBart", "PLBart", "BigBird", "Whisper")):
            return embed(tokens, past, position_ids=counted)
        if name.startswith("Mvp"):
            return embed(tokens, past)
        return embed(tuple(tokens.shape), past, position_ids=counted)


def one_by_one(caller, tokens, positions):
    """The embeddings of single tokens, each computed after as many tokens as its position."""
    rows = []
    for own, at in zip(tokens, positions.tolist(), strict=True):
        each = [caller(own[None, [n]], place) for n, place in enumerate(at)]
        rows.append(torch.cat([one.reshape(1, 1, SIZE) for one in each], dim=1))
    return torch.cat(rows)


@pytest.mark.parametrize("name", sorted(POSITION_EMBEDDINGS))
def test_an_embedding_gives_a_tree_what_it_gives_single_tokens(name):
    """Also where the cache has more slots, because of gaps, than the embedding has positions."""
    caller = Caller(name)
    tokens = torch.tensor([[5, 6, PADDING, 7], [8, 9, 5, 6]])
    positions = torch.tensor([[9, 10, 10, 11], [3, 4, 4, 4]])
    expected = one_by_one(caller, tokens, positions)
    past = torch.zeros((2, 3 * LENGTH), dtype=torch.int64)
    with placed(counting_modules(caller), past, positions):
        found = caller(tokens, 3 * LENGTH)
    torch.testing.assert_close(found, expected)
    with placed(counting_modules(caller), past[:1], positions[:1]):  # beams share their positions
        assert torch.equal(caller(tokens, 3 * LENGTH)[0], found[0])
    again = caller(tokens[1:, :1], 3)  # the hooks have no effect
    torch.testing.assert_close(again.reshape(SIZE), expected[1, 0])


@pytest.mark.parametrize("name", ["t5", "longt5", "mt5", "switch"])
def test_a_bias_is_that_of_the_positions(name):
    """A row with a gap in the cache, and a tree; the gap's own position does not matter."""
    kinds = {"t5": "T5", "longt5": "LongT5", "mt5": "MT5", "switch": "SwitchTransformers"}
    sizes = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2}
    config = getattr(transformers, f"{kinds[name]}Config")(num_heads=4, **sizes)
    model = getattr(transformers, f"{kinds[name]}ForConditionalGeneration")(config).eval()
    (attention,) = counting_modules(model)[1]
    whole = attention.compute_bias(12, 12)[0]  # (heads, queries, keys)
    past = torch.tensor([[0, 1, 2, 2, 3, 4], [0, 1, 2, 3, 4, 5]])
    own = torch.tensor([[5, 6, 6], [6, 7, 8]])
    given = []

    def keep(module, args, kwargs):
        given.append(kwargs["position_bias"])

    hidden, mask = torch.randn(2, 3, 32), torch.zeros(2, 1, 3, 11)  # two keys are not used yet
    with placed(counting_modules(model), past, own):
        hook = attention.register_forward_pre_hook(keep, with_kwargs=True)
        cache = transformers.DynamicCache()
        states = torch.randn(2, 4, 8, 8)
        cache.update(states, states, 0)
        attention(hidden, mask=mask, position_bias=None, **cache_argument(cache))
        hook.remove()
    assert given[0].shape == (2, 4, 3, 11)
    for row in range(2):
        keys = torch.cat((past[row], own[row]))
        for at, query in enumerate(own[row].tolist()):
            seen = keys <= query
            own_bias = given[0][row, :, at, :9][:, seen]
            assert torch.equal(own_bias, whole[:, query, keys[seen]])


@pytest.mark.parametrize("name", HOOKED)
def test_other_threads_count_for_themselves(name):
    """A baseline of the same model runs in another thread in the middle of our forward."""
    model, inputs = build(name), batch(3)
    plain = model.generate(**inputs, **GREEDY)
    results = []

    def baseline(*_):
        hook.remove()
        thread = threading.Thread(target=lambda: results.append(model.generate(**inputs, **GREEDY)))
        thread.start()
        thread.join()

    def arm(event):
        nonlocal hook
        if event.index == 4 and event.row == 0:
            hook = model.get_decoder().register_forward_pre_hook(baseline)

    hook = None
    texts = row_texts(inputs, plain, encoded=name in ENCODER_DECODER)
    speculator = Speculator(RowTrees(texts), 17, tree=17, on_step=arm)
    ours = ngramspec.generate(model, **inputs, speculator=speculator, **GREEDY)
    assert torch.equal(plain, ours)
    assert torch.equal(plain, results[0])
