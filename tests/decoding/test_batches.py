"""Batches: rows advance each by its own, and every row's text is plain ``generate``'s."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from any_model import tiny_chat
from batches import RowOracle, batch, row_texts
from doubles import Puts
from families import VOCAB, build
from plain_text import same_text
from prompts import PROMPTS

import ngramspec
from benchmarks.harness import padded
from ngramspec import Speculator
from ngramspec.costs.steps import StepCosts
from ngramspec.hf_model.compat.package import before
from ngramspec.hf_model.ragged import grow_ragged, used_slots

GREEDY = {"do_sample": False, "max_new_tokens": 40}


def run(model, inputs, drafter, **kwargs):
    speculator = Speculator(drafter, 6)
    out = ngramspec.generate(model, **inputs, speculator=speculator, **kwargs)
    assert speculator.stats.drafter_faults == 0
    return out, speculator.stats


@pytest.mark.parametrize(
    ("name", "changes", "rows", "given"),
    [
        ("llama", {}, 2, {"position_ids": torch.arange(9)[None]}),
        ("llama", {}, 2, {"attention_mask": torch.ones((1, 9), dtype=torch.int64)}),
        pytest.param(  # a loss reads the mask
            *("mixtral (experts)", {"output_router_logits": True}, 2, {}),
            marks=pytest.mark.skipif(before("5.19"), reason="plain decoding fails there"),
        ),
        ("llama", {"is_causal": False}, 1, {}),  # tokens attend to later ones
    ],
)
def test_calls_with_which_drafts_need_care_are_plain_generate_s(name, changes, rows, given):
    model, ids = build(name, **changes), torch.arange(18).reshape(2, 9)[:rows] % 7 + 4
    inputs = {"input_ids": ids} | given
    plain, read = model.generate(**inputs, **GREEDY), {"attention_mask": torch.ones_like(ids)}
    for drafter in ("auto", RowOracle(row_texts({"input_ids": ids} | read, plain), 0.7)):
        assert torch.equal(plain, run(model, inputs, drafter, **GREEDY)[0])


def test_a_time_limit_without_eos_ends_all_rows_at_once(monkeypatch):
    model, inputs, times = build("llama"), batch(), iter(range(10**6))
    plain = model.generate(**inputs, **GREEDY)
    clock = SimpleNamespace(time=lambda: next(times))
    monkeypatch.setattr("transformers.generation.stopping_criteria.time", clock)
    drafter = RowOracle(row_texts(inputs, plain), 0.7)
    ours, _ = run(model, inputs, drafter, **GREEDY, max_time=20)
    assert inputs["input_ids"].shape[1] + 4 < ours.shape[1] < plain.shape[1]
    assert torch.equal(ours, plain[:, : ours.shape[1]])


def test_no_row_waits_for_the_shortest():
    """One row's drafts are always right and another's always wrong: the first ends long before."""
    model, inputs = build("llama"), batch(2)
    plain = model.generate(**inputs, **GREEDY)
    texts = row_texts(inputs, plain)
    drafter = RowOracle(texts, 1.0)
    drafter.texts[tuple(texts[1][:4])] = [(token + 1) % VOCAB for token in texts[1]]
    steps = {0: 0, 1: 0}

    def count(event):
        steps[event.row] += event.index > 0

    speculator = Speculator(drafter, 6, on_step=count)
    ours = ngramspec.generate(model, **inputs, speculator=speculator, **GREEDY)
    assert torch.equal(plain, ours)
    assert steps[0] == 6  # 39 tokens, seven a step
    assert steps[1] == 39
    assert speculator.stats.target_calls == 45
    assert speculator.stats.tokens_per_call == pytest.approx(78 / 45)


def test_scores_logits_and_streams_of_a_batch_are_plain_generate_s():
    model, inputs, asked = build("llama"), batch(), GREEDY | {"repetition_penalty": 1.2}
    free, start = model.generate(**inputs, **asked), inputs["input_ids"].shape[1]
    eos = [int(free[0, start + 9]), int(free[1, start + 17])]
    kwargs = asked | {"output_scores": True, "output_logits": True, "eos_token_id": eos}
    kwargs |= {"return_dict_in_generate": True, "pad_token_id": 0}
    one, two = Puts(), Puts()
    plain = model.generate(**inputs, streamer=one, **kwargs)
    texts = row_texts(inputs, free)  # goes on where rows end
    ours, stats = run(model, inputs, RowOracle(texts, 0.95), streamer=two, **kwargs)
    new = [row.tolist() for row in plain.sequences[:, start:]]
    ends = [min([row.index(each) + 1 for each in eos if each in row] + [40]) for row in new]
    assert min(ends) < max(ends)
    assert stats.emitted == sum(ends) - 3  # without the padding and the prefill's three
    assert torch.equal(plain.sequences, ours.sequences)
    assert (one.puts, one.ended) == (two.puts, two.ended)
    for key in ("scores", "logits"):
        assert len(plain[key]) == len(ours[key])
        for mine, theirs in zip(ours[key], plain[key], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


def test_a_padding_token_without_an_embedding_is_never_read():
    """Plain ``generate`` fails as soon as one row has ended and another has not."""
    model, inputs = build("llama"), batch()
    start = inputs["input_ids"].shape[1]
    eos = int(model.generate(**inputs, **GREEDY)[0, start + 9])
    kwargs = GREEDY | {"eos_token_id": eos, "return_dict_in_generate": True}  # all advance together
    expected = model.generate(**inputs, **kwargs, pad_token_id=0).sequences
    with pytest.raises(IndexError):
        model.generate(**inputs, **kwargs, pad_token_id=VOCAB)
    ended = (expected[:, start:] == eos).cumsum(1) - (expected[:, start:] == eos).long() > 0
    expected[:, start:][ended] = VOCAB
    ours, _ = run(model, inputs, "auto", **kwargs, pad_token_id=VOCAB)
    assert torch.equal(ours.sequences, expected)


@pytest.mark.parametrize("extra", [{}, {"eos_token_id": 96, "pad_token_id": 0}], ids=["", "eos"])
def test_stop_strings_end_each_row_where_plain_generate_ends_it(extra):
    """With an EOS token ended rows are padded; without one they go on until all have ended."""
    model, tokenizer = tiny_chat()
    inputs = batch()
    free = model.generate(**inputs, **GREEDY)
    start = inputs["input_ids"].shape[1]
    new = free[:, start:]
    strings = [tokenizer.decode(new[0, 9:13]), tokenizer.decode(new[2, 23:26])]
    kwargs = GREEDY | {"stop_strings": strings, "tokenizer": tokenizer} | extra
    plain = model.generate(**inputs, **kwargs)
    assert (0 in plain[0, start:]) == bool(extra)
    for drafter in ("auto", RowOracle(row_texts(inputs, free), 0.9)):
        assert torch.equal(plain, run(model, inputs, drafter, **kwargs)[0])


def test_a_forward_wider_than_its_draft_needs_no_padding_token(monkeypatch):
    def wider(pace, positions, room):
        return max(positions, min(positions + 3, room))

    monkeypatch.setattr(StepCosts, "width", wider)
    asked = {"pad_token_id": -1, "eos_token_id": VOCAB - 1, "suppress_tokens": [VOCAB - 1]}
    given = batch(1) | GREEDY | asked
    same_text(build("llama"), lambda text: Speculator(RowOracle([text], 0.5)), None, **given)


def test_positions_and_masks_of_unequal_rows_by_hand():
    """Rows that keep 3 and 1 of a forward of 3; the last column is of the token to come."""
    mask = torch.tensor([[1, 1, 1], [0, 1, 1]])
    positions = torch.tensor([[0, 1, 2], [0, 0, 1]])
    before = grow_ragged("attention_mask", mask, 2, [3, 2], committed=False)
    assert before.tolist() == [[1, 1, 1, 1, 1], [0, 1, 1, 1, 0]]
    after = grow_ragged("attention_mask", mask, 3, [4, 2], committed=True)
    assert after.tolist() == [[1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 0, 1]]
    after = grow_ragged("position_ids", positions, 3, [4, 2], committed=True)
    assert after.tolist() == [[0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 2, 2]]
    ended = grow_ragged("attention_mask", mask, 2, [3, 1], committed=True)
    assert ended.tolist() == [[1, 1, 1, 1, 1], [0, 1, 0, 0, 1]]
    slots = used_slots(torch.tensor([[1, 0, 1, 1], [0, 0, 1, 1]]), 3)
    assert slots.tolist() == [[0, 2, 3], [1, 2, 3]]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 40, 8))
def test_real_model_in_batches_of_eight(smollm2, first):
    """Every row is plain ``generate``'s of the same batch, or parts from it at a near tie."""
    chats = [smollm2.encode(text)["input_ids"][0].tolist() for text in PROMPTS[first : first + 8]]
    inputs = padded(chats)
    start = inputs["input_ids"].shape[1]
    kwargs = {"do_sample": False, "max_new_tokens": 64}
    plain = smollm2.model.generate(
        **inputs, **kwargs, output_logits=True, return_dict_in_generate=True
    )
    ours, _ = run(smollm2.model, inputs, "auto", **kwargs)
    for row in range(8):
        theirs, mine = plain.sequences[row, start:].tolist(), ours[row, start:].tolist()
        parts = [at for at in range(len(theirs)) if theirs[at] != mine[at]]
        if parts:
            best, second = plain.logits[parts[0]][row].topk(2).values.tolist()
            assert best - second < 1e-4, (first + row, parts[0], best - second)
