"""Drafting what is forced, before what another drafter guesses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from doubles import ScriptedDrafter, draft_of, ids
from tiny_tokenizers import over_bytes, with_fallback
from transformers import LogitsProcessorList
from transformers.generation.logits_process import SuppressTokensLogitsProcessor

from ngramspec import Speculator
from ngramspec.decoding.forced import (
    FORCED_SOURCE,
    ForcedDrafter,
    forced_by,
    spelled,
    spelling_of,
    with_forced,
)
from ngramspec.draft import EMPTY_DRAFT, Draft, EvidenceRequest, Proposal


class Script:
    """Forces what follows a token."""

    def __init__(self, after):
        self.behind = after
        self.asked = []

    def __call__(self, context, most):
        self.asked.append(tuple(context))
        found = self.behind.get(context[-1], []) if context else []
        if isinstance(found, Exception):
            raise found
        return found[:most]


def session(forced, draft=EMPTY_DRAFT, start=(1,)):
    inner = ScriptedDrafter(lambda at, gamma: draft.first(gamma))
    return ForcedDrafter(inner, lambda: forced).start(ids(*start)), inner


def test_what_is_forced_is_drafted_with_a_source_of_its_own():
    found, inner = session(Script({1: [5, 6, 7]}), Draft(ids(5, 9)))
    draft = found.propose(8)
    assert draft.tokens.tolist() == [5, 6, 7]
    assert draft.source.tolist() == [1, 1, 1]
    assert draft.confidence.tolist() == pytest.approx([0.95, 0.95, 0.5])
    found.observe(draft, range(3), 3)
    found.extend(ids(5, 6, 7, 2))
    assert (inner.observed, inner.sessions[0].tokens) == ([], [1, 5, 6, 7, 2])
    assert len(found.propose(8).tokens) == 2  # nothing follows 2: the inner drafter's


def test_evidence_goes_to_the_inner_session_without_the_forced_draft():
    told = []

    class Asking(ScriptedDrafter):
        evidence = EvidenceRequest(top_k=1)

        def start(self, tokens):
            session = super().start(tokens)
            session.observe = lambda *arguments: told.append(arguments)
            return session

    drafter = ForcedDrafter(Asking(lambda at, gamma: draft_of([9])), lambda: Script({1: [5]}))
    assert drafter.evidence == Asking.evidence
    found = drafter.start(ids(1))
    draft, evidence = found.propose(4), object()
    found.observe(draft, [0], 1, evidence)
    found.extend(ids(5, 2))
    draft = found.propose(4)
    found.observe(draft, [], 1, evidence)
    (empty, accepted, _, first), second = told
    assert (len(empty), accepted, first) == (0, (), evidence)
    assert second == (draft, [], 1, evidence)


def test_an_inner_draft_that_agrees_and_goes_on_is_taken():
    found, inner = session(Script({1: [5, 6]}), Draft(ids(5, 6, 7)))
    draft = found.propose(8)
    assert draft.tokens.tolist() == [5, 6, 7]
    found.observe(draft, [0], 2)
    ((drafted, *result),) = inner.observed
    assert (drafted.tokens.tolist(), result) == ([5, 6, 7], [[0], 2])


def test_a_sampled_inner_draft_never_decides_whether_the_forced_one_is_used():
    proposal = Proposal(np.array([0, 2], np.int32), ids(5, 6), np.array([0.5, 0.5], np.float32))
    found, _ = session(Script({1: [5]}), Draft(ids(5), proposal=proposal))
    assert found.propose(8).proposal is None


def test_without_anything_forced_trees_and_costs_are_the_inner_drafter_s():
    inner = ScriptedDrafter(lambda at, gamma: draft_of([gamma]), branches=True)
    found = ForcedDrafter(inner, lambda: Script({})).start(ids(1))
    assert found.propose(4, np.ones(6, np.float32), tree=True).tokens.tolist() == [4]


def test_forced_tokens_end_where_costs_say_so():
    found, _ = session(Script({1: [5, 6, 7]}))
    flat, steep = np.ones(10, np.float32), np.array([0, 1, 1.1, 1.2, 4, 9], np.float32)
    assert found.propose(8, flat).tokens.tolist() == [5, 6, 7]
    assert found.propose(3, steep).tokens.tolist() == [5, 6]


def test_acceptance_is_counted_for_the_last_forced_token_apart():
    found, _ = session(Script({1: [5, 6]}))
    for _ in range(6):
        draft = found.propose(8)
        found.observe(draft, [0], 2)
        found.extend(ids(5, 1))
    within, last = found.propose(8).confidence.tolist()
    assert within == pytest.approx(25 / 26)
    assert last == pytest.approx(1 / 8)


def test_the_context_is_the_last_token_and_what_follows():
    script = Script({})
    found, _ = session(script, start=())
    for new in ([], [3, 4], [], [5, 6]):
        found.extend(ids(*new))
        found.propose(4)
    assert script.asked == [(), (3, 4), (3, 4), (3, 4, 5, 6)]


def test_a_source_that_fails_is_left_out_and_the_drafter_goes_on(caplog):
    script = Script({1: RuntimeError("broken")})
    found, _ = session(script, Draft(ids(3)))
    for _ in range(3):
        assert found.propose(4).tokens.tolist() == [3]
    assert len(script.asked) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "jump-forward decoding is disabled after an error: RuntimeError"
    ]


def test_forced_tokens_are_a_further_source_if_there_is_room_for_one():
    inner = ScriptedDrafter(lambda at, gamma: EMPTY_DRAFT)
    made = with_forced(lambda: Script({}), lambda drafter: drafter, inner)
    assert made.source_names == ("scripted", FORCED_SOURCE)
    inner.source_names = ("inner",) * 128
    assert with_forced(lambda: Script({}), lambda drafter: drafter, inner) is inner


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
    source = forced_by([processor], 0, 1)()
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


class Read:
    """A matcher that counts what it and its copies tell of forced text: characters or tokens."""

    def __init__(self, matcher, told):
        self.matcher, self.told = matcher, told

    def __getattr__(self, name):
        def call(*arguments):
            found = getattr(self.matcher, name)(*arguments)
            if name in ("find_jump_forward_string", "compute_ff_tokens"):
                self.told.append(len(found))
            return Read(found, self.told) if name in ("fork", "deep_copy") else found

        return call


def guided(tokenizer, regex):
    """llguidance's logits processor of outlines."""
    pytest.importorskip("llguidance", reason="pip install 'ngramspec[grammars]'")
    backend = pytest.importorskip("outlines.backends.llguidance")
    from llguidance import LLMatcher
    from llguidance.hf import from_tokenizer

    made = from_tokenizer(tokenizer, len(tokenizer))
    return backend.LLGuidanceLogitsProcessor(LLMatcher.grammar_from_regex(regex), made, "torch")


@pytest.mark.parametrize(
    ("make", "grammar", "matchers"),
    [
        (constrained, 'root ::= ("b" | "cc") "a"{400} ("b" | "c") "dé"{10}', "matchers"),
        pytest.param(guided, "(b|cc)a{400}(b|c)(dé){10}", "ll_matchers", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("width", [1, 2, 3])
def test_forced_text_is_read_once_however_it_is_spelled(make, grammar, matchers, width):
    """In tokens as they are forced, or, with ``width`` below 3, in shorter ones."""
    tokenizer = over_bytes(("a", "a"), ("aa", "a"))
    processor = make(tokenizer, grammar)
    pieces = ["b", *["a" * width] * (400 // width), "a" * (400 % width), "c", *"dé" * 10]
    text = [token for piece in pieces for token in tokenizer.encode(piece)]
    source, told, most = forced_by([processor], 0, 1)(), [], 4
    for end in range(len(text)):
        processor(torch.tensor([[5, *text[:end]]]), torch.zeros(1, len(tokenizer)))
        (matcher,) = getattr(processor, matchers)
        setattr(processor, matchers, [Read(matcher, told)])
        found = source([5, *text[: end + 1]], most)
        setattr(processor, matchers, [matcher])
        new = forced_by([processor], 0, 1)()  # which has read nothing
        whole = new([5, *text[: end + 1]], most)
        assert tokenizer.decode(found)[:4] == tokenizer.decode(whole)[:4]
        if 0 < end < 100:
            assert new([5, *text[: end + 1], *tokenizer.encode("e")], most) == []
    assert found in ([0], [tokenizer.eos_token_id])
    assert 400 // 3 <= sum(told) <= 500
