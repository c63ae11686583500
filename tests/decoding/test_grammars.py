"""Grammar processors of other libraries: the text, and every call, are plain ``generate``'s.

Their matchers advance with every call, so that one call too many, too few, or on a token that does
not stand would show at once.
"""

from __future__ import annotations

import copy
import json

import pytest
import torch
from conftest import tiny_llama
from doubles import half_right, liar
from transformers import LogitsProcessor, LogitsProcessorList

import ngramspec
from ngramspec import Speculator
from ngramspec.decoding.forced import forced_by
from ngramspec.hf_model.compat.package import before

INSTALL = "pip install 'ngramspec[grammars]' and pip install --no-deps xgrammar==0.2.8"
xgrammar = pytest.importorskip("xgrammar", reason=INSTALL)
pytest.importorskip("llguidance", reason=INSTALL)
outlines = pytest.importorskip("outlines", reason=INSTALL)

# outlines does not look whether llguidance's matcher has ended
pytestmark = pytest.mark.filterwarnings("ignore:Error in LLMatcher")

TEXT = {"type": "string", "maxLength": 30}
PERSON = {
    "type": "object",
    "properties": {"name": TEXT, "company": TEXT, "since": {"type": "integer", "maximum": 2100}},
    "required": ["name", "company", "since"],
    "additionalProperties": False,
}
SCHEMA = json.dumps({"type": "array", "items": PERSON, "minItems": 2, "maxItems": 2})
REGEX = r"(yes|no), because [a-z ]{10,40}\."
PROMPTS = [
    "Maria Lopez joined Acme in 2011. John Smith joined Acme in 2015. List both people as JSON "
    "with name, company and since.",
    "Give Ann Lee and Bob Lee, who joined Lee Brothers in 1999 and 2003, as JSON.",
]
MAX_NEW = 48


class Libraries:
    """Makes each library's processors for one model's vocabulary, the costly parts once."""

    def __init__(self, model, tokenizer):
        self.model, self.tokenizer = model, copy.copy(tokenizer)  # outlines changes it
        self.made = {}

    def once(self, key, make):
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def xgrammar(self, kind, grammar):
        def compile_grammar():
            info = xgrammar.TokenizerInfo.from_huggingface(
                self.tokenizer, vocab_size=self.model.config.vocab_size
            )
            compiler = xgrammar.GrammarCompiler(info, max_threads=1)
            if kind == "regex":
                return compiler.compile_regex(grammar)
            return compiler.compile_json_schema(grammar, any_whitespace=False)

        compiled = self.once(("xgrammar", kind, grammar), compile_grammar)
        return xgrammar.contrib.hf.LogitsProcessor(compiled)

    def outlines(self, backend, kind, grammar):
        from outlines import backends

        model = self.once(
            "outlines", lambda: outlines.from_transformers(self.model, self.tokenizer)
        )
        get = getattr(backends, f"get_{kind}_logits_processor")
        made = self.once(("outlines", backend, kind, grammar), lambda: get(backend, model, grammar))
        made.reset()
        return made

    def make(self, library, kind, grammar):
        if library == "xgrammar":
            return self.xgrammar(kind, grammar)
        return self.outlines(library.partition(" ")[2], kind, grammar)


# The class of a library's processor decides what is read of its grammar; see ``forced_by``.
LIBRARIES = ["xgrammar", "outlines outlines_core", "outlines llguidance"]


class Counted(LogitsProcessor):
    """Notes what a processor is called with."""

    def __init__(self, inner):
        self.inner = inner
        self.calls = []

    def __call__(self, input_ids, scores):
        self.calls.append(input_ids.tolist())
        return self.inner(input_ids, scores)


@pytest.fixture(autouse=True)
def eager():
    """llguidance compiles its mask's kernel, which takes longer than all of these tests."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture(scope="module")
def random_words(smollm2):
    """A tiny random model over the real vocabulary: wild where the grammar lets it."""
    vocab = smollm2.model.config.vocab_size
    model = tiny_llama(vocab=vocab, initializer_range=0.2, bos_token_id=1, eos_token_id=2)
    model.generation_config.pad_token_id = 0
    return Libraries(model, smollm2.tokenizer)


@pytest.fixture(scope="module")
def real(smollm2):
    return Libraries(smollm2.model, smollm2.tokenizer)


def encode(smollm2, rows):
    """Left-padded chats."""
    tokenizer = copy.copy(smollm2.tokenizer)
    chats = [[{"role": "user", "content": text}] for text in PROMPTS[:rows]]
    tokenizer.padding_side = "left"
    return dict(
        tokenizer.apply_chat_template(
            chats,
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
            padding=rows > 1,
        )
    )


def check(libraries, library, kind, grammar, inputs, drafters, **kwargs):
    """Run plainly and with each drafter; the new text of the first row, and the last statistics."""
    model = libraries.model
    kwargs = {"max_new_tokens": MAX_NEW, "do_sample": False} | kwargs

    def run(generate, **more):
        counted = Counted(libraries.make(library, kind, grammar))
        torch.manual_seed(11)
        listed = LogitsProcessorList([counted])
        return generate(**inputs, logits_processor=listed, **kwargs, **more), counted.calls

    plain, calls = run(model.generate)
    assert len(calls) == plain.shape[1] - inputs["input_ids"].shape[1]
    stats = None
    for drafter in drafters(plain):
        speculator = Speculator(drafter, 6)
        ours, our_calls = run(model.generate, custom_generate=speculator)
        stats = speculator.stats
        assert torch.equal(plain, ours)
        assert our_calls == calls
        assert stats.drafter_faults == 0
        assert stats.drafted > 0
    new = plain[0, inputs["input_ids"].shape[1] :]
    return libraries.tokenizer.decode(new, skip_special_tokens=True), stats


def scripted(vocab):
    """Half right and wrong drafts of one row, and the default drafter's; of more, two others'."""

    def drafters(plain):
        text = plain[0].tolist()
        if len(plain) > 1:
            return "auto", "copy+ngram"
        return half_right(text, vocab), liar(text, vocab), "auto"

    return drafters


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("kind", "grammar", "rows", "more", "start"),
    [
        ("json_schema", SCHEMA, 1, {}, "["),
        ("regex", REGEX, 1, {"do_sample": True}, ("yes, because ", "no, because ")),
        # The text of rows is that of the seed: no row draws for itself.
        ("regex", REGEX, 2, {"do_sample": True}, ("yes, because ", "no, because ")),
        # Without an EOS token generation goes on when the grammar has ended.
        ("regex", "(yes|no)", 1, {"eos_token_id": -1, "max_new_tokens": 16}, ("yes", "no")),
    ],
)
@pytest.mark.parametrize("library", LIBRARIES)
def test_constrained_text_and_calls_are_plain_generate_s(
    smollm2, random_words, library, kind, grammar, rows, more, start
):
    drafters = scripted(random_words.model.config.vocab_size)
    inputs = encode(smollm2, rows)
    text, _ = check(random_words, library, kind, grammar, inputs, drafters, **more)
    assert text.lstrip().startswith(start)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_real_answers_are_plain_generate_s(smollm2, real, library, sample, rows):
    own = {"drafters": lambda plain: ["auto"], "do_sample": sample, "max_new_tokens": 96}
    text, stats = check(real, library, "json_schema", SCHEMA, encode(smollm2, rows), **own)
    answer = json.loads(text)
    assert [sorted(person) for person in answer] == [["company", "name", "since"]] * 2
    if not sample and rows == 1:
        assert stats.tokens_per_call > 1.2  # keys and names are copied


def test_outlines_own_call(smollm2, real):
    """What a user of outlines writes, made speculative from outside."""
    model = outlines.from_transformers(smollm2.model, real.tokenizer)
    prompt = smollm2.tokenizer.apply_chat_template(
        [{"role": "user", "content": PROMPTS[0]}], add_generation_prompt=True, tokenize=False
    )
    kind = outlines.types.Regex(r"\[\"[A-Z][a-z]+ [A-Z][a-z]+\", \"[A-Z][a-z]+ [A-Z][a-z]+\"\]")
    plain = model(prompt, kind, max_new_tokens=32, do_sample=False)
    with ngramspec.enable(smollm2.model) as handle:
        assert model(prompt, kind, max_new_tokens=32, do_sample=False) == plain
    assert handle.stats.drafted > 0
    assert len(json.loads(plain)) == 2


@pytest.mark.every(4)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(
    "library",
    ["xgrammar", "outlines xgrammar", "outlines llguidance", "outlines outlines_core"],
)
def test_what_a_grammar_forces_is_drafted_from_a_copy(
    smollm2, random_words, library, rows, monkeypatch, caplog
):
    """The processor's calls, and so its matchers' states, are plain ``generate``'s."""
    model, inputs = random_words.model, encode(smollm2, rows)
    kind = type(random_words.make(library, "json_schema", SCHEMA))
    calls, own = [], kind.__call__

    def counted(self, input_ids, scores):
        calls.append(input_ids.tolist())
        return own(self, input_ids, scores)

    monkeypatch.setattr(kind, "__call__", counted)

    def run(**more):
        calls.clear()
        listed = LogitsProcessorList([random_words.make(library, "json_schema", SCHEMA)])
        options = {"max_new_tokens": MAX_NEW, "do_sample": False, "logits_processor": listed}
        return model.generate(**inputs, **options, **more), list(calls)

    plain, plain_calls = run()
    speculator = Speculator("none", 6)
    ours, our_calls = run(custom_generate=speculator)
    assert torch.equal(plain, ours)
    assert our_calls == plain_calls
    assert speculator.stats.drafter_faults == 0
    if rows == 1:  # the model spells at random, so hardly ever are two rows forced at once
        assert speculator.stats.sources["forced"].accepted > 0
    assert all("rows advance together" in each for each in caplog.messages)


@pytest.mark.parametrize("library", LIBRARIES)
def test_forced_tokens_are_those_that_must_follow_and_then_the_end(smollm2, random_words, library):
    """A text is put into the processor token by token; after each one the rest is known."""
    if library == "outlines llguidance" and before("5.19"):
        pytest.skip("llguidance reads GGUF tokenizers of transformers 5.16 without their decoder")
    tokenizer = smollm2.tokenizer
    regex = r"Berlin is (nice|a large city)\."
    processor = random_words.make(library, "regex", regex)
    text = tokenizer("Berlin is nice.")["input_ids"]
    source = forced_by([processor], 0, 1)()
    assert source([5], 8) == []  # before the first call
    prompt, found = [1, 5], []
    for end in range(len(text)):
        ids = torch.tensor([[*prompt, *text[:end]]])
        processor(ids, torch.zeros(1, random_words.model.config.vocab_size))
        found.append(source([*prompt, *text[: end + 1]], 8))
        assert source([*prompt, *text[: end + 1]], 8) == found[-1]  # nothing has moved
    assert tokenizer.decode([text[0], *found[0]]).rstrip() == "Berlin is"
    ends = tokenizer.eos_token_id
    assert found[-1] == [ends]
    assert found[-2][-1] == ends
    assert tokenizer.decode(found[-2][:-1]) in (".", "nice.", "ice.")
