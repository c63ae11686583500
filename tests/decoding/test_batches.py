"""Batches: rows advance each by its own, and every row's text is plain ``generate``'s."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import transformers
from any_model import tiny_chat
from batches import RowOracle, batch, row_texts
from doubles import Puts
from families import CAUSAL, ENCODER_DECODER, SEQ2SEQ, VOCAB, build
from plain_text import same_text
from prompts import PROMPTS
from transformers import DynamicCache, LogitsProcessor

import ngramspec
from ngramspec import Speculator
from ngramspec.costs.steps import StepCosts
from ngramspec.decoding.batch import LockstepBatch
from ngramspec.hf_model.compat.caches import cache_argument, cache_of
from ngramspec.hf_model.ragged import grow_ragged, used_slots
from ngramspec.hf_model.target import Target

GREEDY = {"do_sample": False, "max_new_tokens": 40}


def run(model, inputs, drafter, **kwargs):
    speculator = Speculator(drafter, 6)
    out = ngramspec.generate(model, **inputs, speculator=speculator, **kwargs)
    assert speculator.stats.drafter_faults == 0
    return out, speculator.stats


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("right", [1.0, 0.7, 0.0])
def test_rows_are_plain_generate_s(name, right):
    model, inputs = build(name), batch()
    plain = model.generate(**inputs, **GREEDY)
    texts = row_texts(inputs, plain)
    ours, stats = run(model, inputs, RowOracle(texts, right), **GREEDY)
    assert torch.equal(plain, ours)
    assert stats.alpha == (right if right in (0.0, 1.0) else pytest.approx(right, abs=0.25))


@pytest.mark.parametrize("name", [*CAUSAL, *ENCODER_DECODER])
def test_default_drafts_leave_every_row_s_text(name):
    stats = same_text(build(name), Speculator("auto", 6), None, **batch(), **GREEDY)
    assert stats.drafter_faults == 0
    assert stats.target_calls <= 3 * 39


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


def test_wasted_positions_stay_bounded(monkeypatch):
    model, inputs = build("llama"), batch(3)
    kwargs = GREEDY | {"max_new_tokens": 160}
    plain = model.generate(**inputs, **kwargs)
    texts = row_texts(inputs, plain)
    waste = []
    rollback = Target.rollback

    def watch(self, paths, origins):
        rollback(self, paths, origins)
        mask = self.inputs.kwargs["attention_mask"][:, :-1]
        assert mask.shape[1] == self._slots == self.cache.length()
        waste.append(1 - float(mask.sum(dim=1).max()) / self._slots)

    monkeypatch.setattr(Target, "rollback", watch)
    ours, _ = run(model, inputs, RowOracle(texts, 0.6), **kwargs)
    assert torch.equal(plain, ours)
    assert max(waste) < 0.5  # at first up to MIN_GAP_SLOTS positions
    assert max(waste[-5:]) <= 0.3
    assert sum(now < before - 0.1 for before, now in pairwise(waste)) >= 1


@pytest.mark.parametrize("name", ["llama", "gpt2", "bloom (alibi)", "mistral sliding"])
def test_rows_that_end_before_others_are_padded(name):
    model, inputs = build(name), batch(4, seed=2)
    free = model.generate(**inputs, **GREEDY)
    start = inputs["input_ids"].shape[1]
    ends = [int(free[0, start + 5]), int(free[1, start + 20])]
    kwargs = GREEDY | {"eos_token_id": ends, "pad_token_id": 0}
    plain = model.generate(**inputs, **kwargs)
    texts = row_texts(inputs, free)
    for drafter in ("auto", RowOracle(texts, 1.0), RowOracle(texts, 0.5)):
        assert torch.equal(plain, run(model, inputs, drafter, **kwargs)[0])


class Counting(LogitsProcessor):
    """Unknown to ngramspec; sees the whole batch and forbids what the row before chose last."""

    def __init__(self):
        self.calls = []

    def __call__(self, input_ids, scores):
        self.calls.append(tuple(input_ids.shape))
        scores = scores.clone()
        rows = torch.arange(len(scores))
        scores[rows, input_ids.roll(1, dims=0)[:, -1]] = -float("inf")
        return scores


def test_unknown_processors_see_the_batch_as_in_plain_generate():
    model, inputs = build("llama"), batch()
    one, two = Counting(), Counting()
    plain = model.generate(**inputs, logits_processor=[one], **GREEDY)
    drafter = RowOracle(row_texts(inputs, plain), 0.9)
    ours, stats = run(model, inputs, drafter, logits_processor=[two], **GREEDY)
    assert torch.equal(plain, ours)
    assert one.calls == two.calls
    assert stats.accepted > 0


@pytest.mark.parametrize(
    "extra",
    [
        {"repetition_penalty": 1.3},
        {"no_repeat_ngram_size": 3, "min_new_tokens": 5},
        {"bad_words_ids": [[7], [8, 9]], "suppress_tokens": [11]},
        {"encoder_repetition_penalty": 1.2},
        {"guidance_scale": 1.5},
    ],
    ids=lambda extra: "+".join(extra),
)
def test_processors_by_row_and_in_lock_step(extra):
    model, inputs = build("llama"), batch()
    plain = model.generate(**inputs, **GREEDY, **extra)
    texts = row_texts(inputs, plain)
    for drafter in ("auto", RowOracle(texts, 0.8)):
        assert torch.equal(plain, run(model, inputs, drafter, **GREEDY, **extra)[0])


def test_scores_logits_and_streams_of_a_batch_are_plain_generate_s():
    model, inputs = build("llama"), batch()
    free, start = model.generate(**inputs, **GREEDY), inputs["input_ids"].shape[1]
    eos = [int(free[0, start + 9]), int(free[1, start + 17])]
    kwargs = GREEDY | {"output_scores": True, "output_logits": True, "eos_token_id": eos}
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


def test_custom_criteria_end_each_row_where_plain_generate_ends_it():
    model, inputs = build("llama"), batch()

    def seen_twice(ids, scores, **kwargs):
        return torch.tensor([row[:-1].tolist().count(int(row[-1])) >= 3 for row in ids])

    for extra in ({}, {"eos_token_id": 5}):  # without an EOS criterion ended rows go on
        kwargs = GREEDY | {"stopping_criteria": [seen_twice]} | extra
        plain = model.generate(**inputs, **kwargs)
        assert plain.shape[1] < inputs["input_ids"].shape[1] + 40
        texts = row_texts(inputs, model.generate(**inputs, **GREEDY))
        for drafter in ("auto", RowOracle(texts, 0.9)):
            assert torch.equal(plain, run(model, inputs, drafter, **kwargs)[0])


@pytest.mark.parametrize("extra", [{}, {"eos_token_id": 96, "pad_token_id": 0}], ids=["", "eos"])
def test_stop_strings_end_each_row_where_plain_generate_ends_it(extra, monkeypatch):
    """With an EOS token ended rows are padded, so that rows can advance each by its own."""
    model, tokenizer = tiny_chat()
    inputs = batch()
    free = model.generate(**inputs, **GREEDY)
    start = inputs["input_ids"].shape[1]
    new = free[:, start:]
    strings = [tokenizer.decode(new[0, 9:13]), tokenizer.decode(new[2, 23:26])]
    kwargs = GREEDY | {"stop_strings": strings, "tokenizer": tokenizer} | extra
    plain = model.generate(**inputs, **kwargs)
    assert (0 in plain[0, start:]) == bool(extra)
    lengths, commit = set(), LockstepBatch.commit_token

    def watch(self, tokens):
        commit(self, tokens)
        lengths.add(len(self.rows))

    monkeypatch.setattr(LockstepBatch, "commit_token", watch)
    for drafter in ("auto", RowOracle(row_texts(inputs, free), 0.9)):
        assert torch.equal(plain, run(model, inputs, drafter, **kwargs)[0])
    assert lengths == {1 if extra else 3}


def test_sampling_in_lock_step_is_the_text_of_the_same_seed():
    model, inputs = build("llama"), batch()
    kwargs = {"do_sample": True, "max_new_tokens": 30, "temperature": 0.8}
    kwargs |= {"output_scores": True, "return_dict_in_generate": True}  # so the rows go together
    texts = []
    for custom in (None, Speculator("auto", 6)):
        torch.manual_seed(4)
        texts.append(model.generate(**inputs, **kwargs, custom_generate=custom).sequences)
    assert torch.equal(*texts)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("settings", [{}, {"gamma": 4}, {"tree": 6}], ids=["auto", "4", "tree"])
def test_torch_s_default_device_changes_nothing(rows, settings):
    """It is where other code wants its tensors; "meta" stands for a GPU."""
    model, inputs = build("llama"), batch(rows)
    stop = {"stopping_criteria": [lambda ids, scores: False], "max_time": 3600.0}
    plain = model.generate(**inputs, **GREEDY)
    for more in ({}, stop):
        speculator = Speculator(**settings)
        with torch.device("meta"):
            ours = ngramspec.generate(model, **inputs, speculator=speculator, **GREEDY, **more)
        assert ours.tolist() == plain.tolist()


@pytest.mark.parametrize("rows", [2, 3])
def test_a_returned_cache_goes_on_as_plain_generate_s(rows):
    """Two turns; in the first one rows end at different tokens, and are padded."""
    model, inputs = build("llama"), batch(rows)
    first = model.generate(**inputs, **GREEDY)
    asked = GREEDY | {"return_dict_in_generate": True, "pad_token_id": 0}
    asked["eos_token_id"] = int(first[0, inputs["input_ids"].shape[1] + 7])
    texts = []
    for custom in (None, Speculator(RowOracle(row_texts(inputs, first), 0.7), 6)):
        out = model.generate(**inputs, custom_generate=custom, **asked)
        ids = torch.cat((out.sequences, inputs["input_ids"][:, -4:]), dim=1)
        mask = torch.ones_like(ids)
        mask[:, : inputs["attention_mask"].shape[1]] = inputs["attention_mask"]
        speculator = None if custom is None else Speculator("unigram", 4)
        kept = {"attention_mask": mask, **cache_argument(cache_of(out))}
        new = ids[:, out.sequences.shape[1] - 1 :]  # what the cache does not hold
        again = model.generate(new, custom_generate=speculator, **kept, **GREEDY)
        texts.append((out.sequences.tolist(), again.tolist()))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("pad", [-1, VOCAB])
@pytest.mark.parametrize("name", ["llama", "gpt2", "bloom (alibi)"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_padding_token_needs_no_embedding(name, rows, pad):
    model, inputs = build(name), batch(rows)
    asked = {"pad_token_id": pad, "eos_token_id": VOCAB - 1, "suppress_tokens": [VOCAB - 1]}
    plain = model.generate(**inputs, **GREEDY, **asked)
    drafter = RowOracle(row_texts(inputs, plain), 0.5)
    assert run(model, inputs, drafter, **GREEDY, **asked)[0].tolist() == plain.tolist()


def test_a_forward_wider_than_its_draft_needs_no_padding_token(monkeypatch):
    def wider(pace, positions, room):
        return max(positions, min(positions + 3, room))

    monkeypatch.setattr(StepCosts, "width", wider)
    asked = {"pad_token_id": -1, "eos_token_id": VOCAB - 1, "suppress_tokens": [VOCAB - 1]}
    given = batch(1) | GREEDY | asked
    same_text(build("llama"), lambda text: Speculator(RowOracle([text], 0.5)), None, **given)


@pytest.mark.parametrize(
    ("kind", "config", "settings"),
    [
        ("XGLMForCausalLM", "XGLMConfig", {"d_model": 32, "attention_heads": 4, "ffn_dim": 48}),
        ("MvpForCausalLM", "MvpConfig", {}),
        ("TrOCRForCausalLM", "TrOCRConfig", {"d_model": 32, "decoder_ffn_dim": 48}),
    ],
)
def test_batches_on_a_static_cache_have_masks_for_every_row(kind, config, settings):
    known = {"num_layers": 2, "decoder_layers": 2, "decoder_attention_heads": 4}
    made = getattr(transformers, config)(**(SEQ2SEQ | known | settings | {"is_decoder": True}))
    torch.manual_seed(5)
    model = getattr(transformers, kind)(made).eval()
    model.generation_config.update(eos_token_id=None, forced_eos_token_id=None, pad_token_id=0)
    ids = torch.randint(3, VOCAB, (2, 9), generator=torch.Generator().manual_seed(1))
    asked = GREEDY | {"cache_implementation": "static", "bos_token_id": 1}
    same_text(model, Speculator("unigram", 4), ids, **asked)


def test_a_batch_over_a_cache_of_the_caller_s_leaves_no_gaps_in_it():
    model = build("llama")
    ids = torch.randint(3, VOCAB, (2, 10), generator=torch.Generator().manual_seed(0))
    texts = []
    for custom in (None, Speculator("copy(min_match=1)", 4)):
        cache, now = DynamicCache(config=model.config), ids
        for _ in range(3):
            now = model.generate(now, **cache_argument(cache), custom_generate=custom, **GREEDY)
            now = torch.cat((now, ids[:, :4]), dim=1)
        texts.append((now, cache))
    assert torch.equal(texts[0][0], texts[1][0])
    assert texts[0][1].get_seq_length() == texts[1][1].get_seq_length()


def test_a_batch_of_embeddings():
    model = build("llama")
    ids = torch.randint(3, VOCAB, (2, 10), generator=torch.Generator().manual_seed(0))
    embeds = model.get_input_embeddings()(ids).detach()
    for gamma in ("auto", 5):
        speculator = Speculator("copy(min_match=1)", gamma)
        same_text(model, speculator, None, inputs_embeds=embeds, **GREEDY)


def test_several_sampled_sequences_of_one_prompt():
    model, inputs = build("llama"), batch(1)
    torch.manual_seed(1)
    kwargs = {"do_sample": True, "num_return_sequences": 4, "max_new_tokens": 20}
    ours, stats = run(model, inputs, "auto", **kwargs)
    assert ours.shape == (4, inputs["input_ids"].shape[1] + 20)
    assert len({tuple(row) for row in ours.tolist()}) == 4
    assert stats.emitted == 4 * 19


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
    assert ended.tolist() == [[1, 1, 1, 1, 1], [0, 1, 0, 0, 0]]
    slots = used_slots(torch.tensor([[1, 0, 1, 1], [0, 0, 1, 1]]), 3)
    assert slots.tolist() == [[0, 2, 3], [1, 2, 3]]


def padded(prompts):
    """Encoded prompts as one left-padded batch."""
    longest = max(each["input_ids"].shape[1] for each in prompts)
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, each in enumerate(prompts):
        ids[row, longest - each["input_ids"].shape[1] :] = each["input_ids"][0]
        mask[row, longest - each["input_ids"].shape[1] :] = 1
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 40, 8))
def test_real_model_in_batches_of_eight(smollm2, first):
    """Every row is plain ``generate``'s of the same batch, or parts from it at a near tie."""
    inputs = padded([smollm2.encode(text) for text in PROMPTS[first : first + 8]])
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
