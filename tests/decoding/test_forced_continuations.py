"""What constraints leave no choice of: read without calling the processor, and drafted."""

from __future__ import annotations

import random

import pytest
import torch
from conftest import tiny_llama
from tiny_tokenizers import over_bytes, with_fallback
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    NoBadWordsLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from ngramspec import Speculator
from ngramspec.decoding.forced import banned_by, forced_by, spelled, spelling_of

VOCAB = 5
INF = float("-inf")


def allowed(processors, context):
    """The ids that the processors leave, by calling them."""
    scores = LogitsProcessorList(processors)(torch.tensor([context]), torch.zeros(1, VOCAB))
    return [token for token in range(VOCAB) if scores[0, token] > INF]


@pytest.mark.parametrize("seed", range(40))
def test_banned_ids_are_those_that_the_processors_ban(seed):
    rng = random.Random(seed)
    bias = {(token,): INF for token in range(VOCAB) if rng.random() < 0.5}
    for _ in range(8):
        bias[tuple(rng.randrange(VOCAB) for _ in range(rng.randint(2, 3)))] = INF
    bias[(rng.randrange(VOCAB), 1, 1, 2)] = -3.0  # no ban
    processors = [
        SuppressTokensLogitsProcessor([rng.randrange(VOCAB)]),
        SequenceBiasLogitsProcessor(bias),
        NoBadWordsLogitsProcessor([[rng.randrange(VOCAB), rng.randrange(VOCAB)]]),
    ]
    found = banned_by(processors, VOCAB)
    checked = 0
    for _ in range(60):
        context = [rng.randrange(VOCAB) for _ in range(4)]
        left = allowed(processors, context)
        if len(left) == 1:
            assert found is not None
            assert found.after(context[-found.reach :], 1) == left
            checked += 1
        elif found is not None:
            assert found.after(context[-found.reach :], 1) == []
    assert checked or seed


def test_forced_tokens_force_further_ones():
    only = {0: 3, 3: 1, 1: 4}
    bias = {
        (before, token): INF
        for before, after in only.items()
        for token in range(VOCAB)
        if token != after
    }
    found = banned_by([SequenceBiasLogitsProcessor(bias)], VOCAB)
    assert found.after([0], 8) == [3, 1, 4]
    assert found.after([0], 2) == [3, 1]
    assert found.after([2], 8) == []


def test_processors_that_leave_a_choice_cost_nothing():
    assert forced_by(None, 0, 1, VOCAB) is None
    assert forced_by([SuppressTokensLogitsProcessor([1, 2])], 0, 1, VOCAB) is None

    class Own(SuppressTokensLogitsProcessor):  # may do anything
        pass

    assert forced_by([Own([0, 1, 2, 3])], 0, 1, VOCAB) is None


def test_a_text_is_spelled_in_the_longest_tokens():
    spelling = {b"n": 1, b"na": 2, b"name": 3, b'"': 4, b'":': 5, b" ": 6}
    assert spelled(b'name": "', spelling, 9) == [3, 5, 6, 4]
    assert spelled(b'name": "', spelling, 2) == [3, 5]
    assert spelled(b"nab", spelling, 9) == [2]
    assert spelled(b"", spelling, 9) == []


def test_byte_fallback_spells_only_what_has_no_other_token():
    vocabulary = [b"\n", *(bytes((each,)) for each in range(256)), b"a", b"b", b"a"]
    spelling = spelling_of(vocabulary)
    assert spelled(b"a\nb\xc3", spelling, 9) == [257, 0, 258, 1 + 0xC3]


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_biases_that_force_a_cycle_are_drafted_and_the_text_is_plain_s(sample):
    """Behind 1 to 7 the next one is forced; behind 8 all is open but 0."""
    model = tiny_llama(vocab=16, initializer_range=0.3)
    model.generation_config.eos_token_id = None
    bias = [
        [[before, token], INF]
        for before in range(1, 8)
        for token in range(1, 16)
        if token != before + 1
    ]
    inputs = {"input_ids": torch.tensor([[9, 12, 1]])}
    options = {
        "max_new_tokens": 40,
        "do_sample": sample,
        "sequence_bias": bias,
        "suppress_tokens": [0],
    }
    torch.manual_seed(3)
    plain = model.generate(**inputs, **options)
    speculator = Speculator("ngram", 6, tree=None)
    torch.manual_seed(3)
    ours = model.generate(**inputs, **options, custom_generate=speculator)
    assert torch.equal(plain, ours)
    assert plain[0, 3:10].tolist() == [2, 3, 4, 5, 6, 7, 8]
    share = speculator.stats.sources["forced"]
    assert share.accepted == share.verified >= 6


def constrained(tokenizer, grammar):
    """xgrammar's logits processor of a grammar in EBNF."""
    xgrammar = pytest.importorskip("xgrammar", reason="pip install 'ngramspec[grammars]'")
    from xgrammar.contrib.hf import LogitsProcessor

    info = xgrammar.TokenizerInfo.from_huggingface(
        tokenizer, vocab_size=len(tokenizer), stop_token_ids=[0]
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    return LogitsProcessor(compiler.compile_grammar(grammar))


@pytest.mark.parametrize("make", [over_bytes, with_fallback])
def test_whole_characters_are_forced_where_a_part_of_another_one_is(make):
    """本 and 木 differ in their last bytes only."""
    tokenizer = make()
    processor = constrained(tokenizer, 'root ::= "ab" ("d日本e" | "d日木e") "ch"')
    source = forced_by([processor], 0, 1, len(tokenizer))
    text = [each for each in tokenizer.encode("abd日本ech") if tokenizer.decode([each])]
    assert tokenizer.decode(text) == "abd日本ech"
    counts = []
    for end in range(len(text)):
        processor(torch.tensor([[5, *text[:end]]]), torch.zeros(1, len(tokenizer)))
        forced = source.after([5, *text[: end + 1]], 8)
        assert forced == [*text, 0][end + 1 : end + 1 + len(forced)]  # 0 is the end
        counts.append(len(forced))
    # After a and b come d and the bytes of 日, then those of 本; the last one is a choice.
    assert counts == [5, 4, 3, 2, 1, 0, 1, 0, 4, 3, 2, 1]


@pytest.mark.parametrize("make", [over_bytes, with_fallback])
def test_forced_text_of_parts_of_characters_is_accepted_and_logs_nothing(make, caplog):
    tokenizer = make()
    model = tiny_llama(vocab=len(tokenizer))
    model.generation_config.eos_token_id = None
    prompt = torch.tensor([tokenizer.encode("be")])

    def run(**more):
        grammar = 'root ::= (("日本語abc" | "日木語abc" | "日本誌dea") "éé—")+'
        listed = LogitsProcessorList([constrained(tokenizer, grammar)])
        options = {"max_new_tokens": 60, "do_sample": False, "logits_processor": listed}
        return model.generate(prompt, **options, **more)

    speculator = Speculator("none", 8)
    assert torch.equal(run(custom_generate=speculator), run())
    assert speculator.stats.sources["forced"].accepted > 20
    assert not [each for each in caplog.records if each.name.startswith("ngramspec")]
