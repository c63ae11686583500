"""What grammars leave no choice of: read without calling the processor, and drafted."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_llama
from tiny_tokenizers import over_bytes, with_fallback
from transformers import LogitsProcessorList
from transformers.generation.logits_process import SuppressTokensLogitsProcessor

from ngramspec import Speculator
from ngramspec.decoding.forced import forced_by, spelled, spelling_of


def test_processors_without_a_grammar_force_nothing():
    assert forced_by(None, 0, 1) is None
    assert forced_by([SuppressTokensLogitsProcessor([1, 2])], 0, 1) is None


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
    source = forced_by([processor], 0, 1)
    text = [each for each in tokenizer.encode("abd日本ech") if tokenizer.decode([each])]
    assert tokenizer.decode(text) == "abd日本ech"
    counts = []
    for end in range(len(text)):
        processor(torch.tensor([[5, *text[:end]]]), torch.zeros(1, len(tokenizer)))
        forced = source([5, *text[: end + 1]], 8)
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
