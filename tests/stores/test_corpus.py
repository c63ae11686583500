"""Corpora: look-ups equal the twin's, files are whole or refused, many may read one."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_strategies import CHUNKS, INDICES, int32
from tiny_tokenizers import Letters

from ngramspec.stores import Corpus, fingerprint
from ngramspec.stores.corpus import sortable
from tests.twins.store_corpus import CorpusIndex as Twin

pytest.importorskip("pydivsufsort")
CORPUS_IDS = st.lists(
    st.one_of(
        st.integers(0, 3),
        st.sampled_from([255, 256, 65533, 65534, 65535, 65536, 2**21 - 3, 2**21 - 2]),
        st.integers(0, 70000),
    ),
    min_size=1,
    max_size=12,
    unique=True,
)
SMALL_IDS = st.lists(st.integers(0, 65534), min_size=1, max_size=12, unique=True)
DOCUMENTS = st.builds(
    lambda ids, documents: [[ids[i % len(ids)] for i in each] for each in documents],
    st.one_of(CORPUS_IDS, SMALL_IDS),
    st.lists(CHUNKS, min_size=1, max_size=6),
).filter(any)


def build(folder, documents, name="c.ngc", **options):
    return Corpus.build([int32(each) for each in documents], folder / name, **options)


def assert_equals_twin(corpus, twin, context):
    found = corpus.index.find(int32(context), 32)
    assert found == [place[:2] for place in twin.look(context, 32)]
    for at, _ in found[:1]:
        assert corpus.index.tokens_at(at, 9).tolist() == twin.following(at, 9)


@given(documents=DOCUMENTS, other=st.lists(INDICES, max_size=80), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, derandomize=True)
def test_look_ups_equal_the_twins(tmp_path_factory, documents, other, seed):
    corpus = build(tmp_path_factory.mktemp("corpus"), documents)
    corpus.verify()
    twin = Twin(documents)
    assert len(corpus.index) == len(twin)
    assert len(corpus) == sum(map(len, documents))
    ids = sorted({token for each in documents for token in each})
    strange = [ids[i % len(ids)] for i in other]
    assert_equals_twin(corpus, twin, strange)
    rng = np.random.default_rng(seed)
    for document in documents:
        at = int(rng.integers(0, len(document) + 1))
        context = document[:at]
        assert_equals_twin(corpus, twin, context)
        assert_equals_twin(corpus, twin, [ids[0] + 1, *context[-5:]])
        assert_equals_twin(corpus, twin, [*strange[:2], *context[-7:]])
        assert_equals_twin(corpus, twin, context[-int(rng.integers(1, 65)) :])


def natural(n, vocab, seed=0):
    """Tokens with long repetitions and frequent contexts."""
    rng = np.random.default_rng(seed)
    base = (rng.zipf(1.3, n) % vocab).astype(np.int32)
    copies = [base[i : i + 50] for i in rng.integers(0, n, 40)]
    return [base, *copies, np.full(300, 1, np.int32), np.arange(400, dtype=np.int32) % 2]


@pytest.mark.parametrize("vocab", [50, 60_000, 70_000])
def test_levels_of_keys(tmp_path, vocab):
    documents = natural(20_000, vocab)
    corpus = Corpus.build(documents, tmp_path / "c.ngc")
    corpus.verify()
    assert corpus.info().width == (3 if vocab > 65535 else 2)
    text = np.concatenate([np.concatenate((each, [-1])) for each in documents])
    rng = np.random.default_rng(1)
    for at in rng.integers(70, 20_000, 80):
        for length in (1, 2, 3, 64):
            context = documents[0][at - length : at]
            found = [at for at, n in corpus.index.find(context) if n == length]
            windows = np.lib.stride_tricks.sliding_window_view(text, length + 1)
            rows = windows[(windows[:, :-1] == context).all(1)]
            assert len(found) == min((rows[:, -1] >= 0).sum(), 32)


def after(corpus, context, count=9):
    """What follows the first place of the longest match."""
    found = corpus.index.find(int32(context), 1)
    return corpus.index.tokens_at(found[0][0], count).tolist() if found else []


def test_documents_never_run_into_each_other(tmp_path):
    corpus = build(tmp_path, [[1, 2, 3], [], [4, 5], [2, 3], [3]])
    assert corpus.info().documents == 4
    assert corpus.index.find(int32([2, 3])) == []  # nothing follows at a document's end
    assert [length for _, length in corpus.index.find(int32([3, 4]))] == [1]
    assert after(corpus, [1]) == [2, 3]
    assert len(corpus.index.find(int32([9, 2]))) == 2


def test_a_match_is_at_most_sixty_four_tokens(tmp_path):
    corpus = build(tmp_path, [list(range(200))])
    assert corpus.index.find(int32(range(100))) == [(101, 64)]
    assert after(corpus, range(100), 3) == [100, 101, 102]


def test_bytes_a_token(tmp_path):
    rng = np.random.default_rng(0)
    for vocab, most in ((60_000, 7.3), (200_000, 8.3)):
        for text in (rng.integers(0, vocab, 40_000), np.arange(40_000) % 5 + vocab - 9):
            corpus = Corpus.build([text], tmp_path / "c.ngc")
            assert corpus.info().bytes / len(corpus) < most


@pytest.mark.parametrize(
    ("documents", "error", "says"),
    [
        ([], ValueError, "at least one token"),
        ([np.array([], np.int32)], ValueError, "at least one token"),
        ("text", TypeError, "several texts"),
        (["text"], TypeError, r"documents\[0\] is text: pass tokenizer="),
        ([[1, 2]], TypeError, r"documents\[0\] must be a text or .*, got list"),
        ([np.array([1, 2]), np.array([1.0])], TypeError, r"documents\[1\] .*got float64"),
        ([np.array([[1]])], TypeError, "one-dimensional"),
        ([np.array([3, -1])], ValueError, r"token ids must be in 0..2097150, got -1..3"),
        ([np.array([2**21 - 1])], ValueError, "got 2097151..2097151"),
    ],
)
def test_what_cannot_be_built_says_why(tmp_path, documents, error, says):
    with pytest.raises(error, match=says):
        Corpus.build(documents, tmp_path / "c.ngc")
    assert list(tmp_path.iterdir()) == []


def test_bad_contexts_are_refused(tmp_path):
    corpus = build(tmp_path, [[1, 2, 3]])
    for bad in (None, [1], np.array([1, 2]), np.array([1.0], np.float32)):
        with pytest.raises(TypeError, match="context must be"):
            corpus.index.find(bad)
    with pytest.raises(ValueError, match="got -4 at index 1"):
        corpus.index.find(int32([1, -4]))
    assert corpus.index.find(int32([2**31 - 1, 2])) == [(3, 1)]
    assert corpus.index.find(int32([2, 2**31 - 1])) == []
    with pytest.raises(ValueError, match=r"most must be in 1\.\.32, got 33"):
        corpus.index.find(int32([1]), 33)


def test_texts_and_tokenizers(tmp_path):
    corpus = Corpus.build(["abc abd", "abe"], tmp_path / "c.ngc", tokenizer=Letters())
    assert after(corpus, [0, 1, 2, 8]) == [0, 1, 3]
    info = corpus.info()
    assert (info.vocabulary, info.tokenizer) == (9, fingerprint(Letters()))
    corpus.check_tokenizer(Letters())
    other = Letters("bacdefgh ")
    with pytest.raises(ValueError, match=f"{info.tokenizer}, that of the .* {fingerprint(other)}"):
        corpus.check_tokenizer(other)
    with pytest.raises(TypeError, match="tokenizer must be"):
        corpus.check_tokenizer("gpt2")


def test_a_vocabulary_that_is_too_small(tmp_path):
    corpus = build(tmp_path, [[1, 2, 30]])
    corpus.check_vocabulary(31)
    with pytest.raises(ValueError, match="has token id 30, the vocabulary has 30"):
        corpus.check_vocabulary(30)


def test_a_rebuild_leaves_who_has_the_old_one(tmp_path):
    old = build(tmp_path, [[1, 2, 3]])
    new = build(tmp_path, [[1, 2, 4]])
    assert after(old, [1, 2]) == [3]
    assert after(new, [1, 2]) == [4]
    assert [each.name for each in tmp_path.iterdir()] == ["c.ngc"]


def test_threads_read_one_corpus(tmp_path):
    documents = natural(5_000, 50)
    corpus = Corpus.build(documents, tmp_path / "c.ngc")
    contexts = [documents[0][at - 9 : at] for at in range(9, 500)]
    expected = [corpus.index.find(each) for each in contexts]
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda _: [corpus.index.find(each) for each in contexts], range(4))
    assert list(answers) == [expected] * 4


def test_without_pydivsufsort_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pydivsufsort", None)
    with pytest.raises(ImportError, match=r"pip install pydivsufsort"):
        build(tmp_path, [[1, 2]])


def test_opening_needs_neither_pydivsufsort_nor_torch(tmp_path):
    build(tmp_path, [[1, 2, 3]])
    code = (
        "import sys; from ngramspec.stores import Corpus; Corpus.open(sys.argv[1]);"
        "sys.exit(len({'torch', 'transformers', 'pydivsufsort'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "c.ngc")], check=True)


def test_sorting_takes_one_two_or_three_bytes_a_token():
    for most, each in ((255, 1), (256, 2), (65535, 2), (65536, 3)):
        text = int32([2**31 - 1, *range(5, 5 + most), 2**31 - 1])
        content, width = sortable(text)
        assert (width, len(content)) == (each, each * len(text))
