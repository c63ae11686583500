"""Requests draft from stores: the same text in fewer calls, and every way to name a store."""

from __future__ import annotations

import copy
import json
import logging
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from plain_text import text_and_calls
from tiny_tokenizers import Letters

import ngramspec
from ngramspec import Corpus, SharedStore, Speculator, build_drafter
from ngramspec._native import Calibration
from ngramspec.decoding.stores import CallStores
from ngramspec.engines.rows import Rows, RowState
from ngramspec.stores import StoreFileError, open_stores

pytest.importorskip("pydivsufsort")
PROMPT = torch.tensor([[5, 6, 7, 8, 15, 16, 17, 9, 25, 26]])
GREEDY = {"max_new_tokens": 60, "do_sample": False}
SAMPLED = {"max_new_tokens": 60, "do_sample": True, "num_return_sequences": 3}
calls = partial(text_and_calls, PROMPT, **GREEDY)


@pytest.fixture(scope="module")
def text(tiny):
    return tiny.generate(PROMPT, **GREEDY)[0]


@pytest.fixture(scope="module")
def path(text, tmp_path_factory):
    """A corpus that holds what the model will say."""
    path = tmp_path_factory.mktemp("stores") / "said.ngc"
    documents = [np.arange(50, dtype=np.int32), text[5:].numpy()]
    Corpus.build(documents, path)
    return path


def test_the_same_text_in_fewer_calls(tiny, text, path):
    alone, with_store = Speculator(), Speculator(stores=[path])
    said, many = calls(alone, tiny)
    assert said == text.tolist()
    said, few = calls(with_store, tiny)
    assert said == text.tolist()
    assert few < many / 2
    assert with_store.stats.sources["store"].accepted > 10


def test_stores_of_one_call(tiny, path, tmp_path):
    other = Corpus.build([np.array([90, 91, 92], np.int32)], tmp_path / "other.ngc")
    speculator = Speculator(stores=[other])
    many = calls(speculator, tiny)[1]
    few = calls(speculator, tiny, stores=[path])[1]
    assert few < many / 2
    assert calls(speculator, tiny, extra_stores=[Corpus.open(path)])[1] <= few + 2
    assert calls(Speculator(stores=[path]), tiny, stores=[])[1] > few * 2
    assert speculator.stores == (other,)


def test_each_prompt_of_a_batch_can_have_different_stores(tiny):
    prompts = torch.cat((PROMPT, PROMPT.flip(1)))
    for settings, answers in ((GREEDY, 1), (GREEDY | {"num_beams": 2}, 1), (SAMPLED, 3)):
        store = SharedStore(1 << 20)
        own = [[store["first"]], []]
        torch.manual_seed(0)
        plain = tiny.generate(prompts, **settings)
        torch.manual_seed(0)
        ours = ngramspec.generate(tiny, prompts, stores=own, **settings)
        assert ours.tolist() == plain.tolist()
        added = store["first"].statistics().added
        assert added == (0 if "num_beams" in settings else answers * GREEDY["max_new_tokens"])
    for wrong in (1, 3):
        with pytest.raises(ValueError, match=f"an entry for each prompt, 2, got {wrong}"):
            ngramspec.generate(tiny, prompts, stores=[[]] * wrong, **GREEDY)
    usual = Speculator(stores=[store["usual"]])
    ngramspec.generate(tiny, prompts, speculator=usual, stores=[None, []], **GREEDY)
    assert store["usual"].statistics().added == GREEDY["max_new_tokens"]


@pytest.mark.parametrize(("rows", "sampled"), [(1, True), (2, False)])
def test_sampled_text_and_rows(tiny, path, rows, sampled):
    """Sampled rows of one batch have draws of their own as soon as they diverge."""
    prompt, arguments = PROMPT.repeat(rows, 1), GREEDY | {"do_sample": sampled}
    torch.manual_seed(0)
    plain = tiny.generate(prompt, **arguments)
    torch.manual_seed(0)
    ours = ngramspec.generate(tiny, prompt, stores=[path], **arguments)
    assert ours.tolist() == plain.tolist()


def test_a_store_of_a_larger_vocabulary_is_left_out_and_said_once(tiny, tmp_path, caplog):
    large = Corpus.build([np.array([5, 6, 7, 97], np.int32)], tmp_path / "large.ngc")
    speculator = Speculator(stores=[large])
    with caplog.at_level(logging.WARNING, "ngramspec"):
        calls(speculator, tiny)
        calls(speculator, tiny)
    said = [each.message for each in caplog.records if "drafting without a store" in each.message]
    assert len(said) == 1
    assert "has token id 97, the vocabulary has 97" in said[0]
    assert speculator.stats.drafter_faults == 0


def test_a_corpus_that_was_truncated_is_left_out_and_said_once(tiny, path, tmp_path, caplog):
    """Reading pages that are no longer in the file would kill the process."""
    corpus = Corpus.build([np.arange(3000, dtype=np.int32) % 90], tmp_path / "cut.ngc")
    speculator = Speculator(stores=[corpus, path])
    rows = Rows(speculator.drafter, 4, 97, 300)
    corpus.path.write_bytes(b"new")  # as cp does
    for read in (corpus.request, corpus.verify, corpus.recipe):
        with pytest.raises(StoreFileError, match="was truncated from [0-9]+ to 3 bytes while"):
            read()
    with caplog.at_level(logging.WARNING, "ngramspec"):
        for _ in range(2):
            calls(speculator, tiny)
    assert caplog.text.count("drafting without a store") == 1
    assert speculator.stats.sources["store"].accepted > 0
    for key in range(2):
        state = RowState(key, np.arange(100, dtype=np.int32), 6, [5])
        assert rows.step([state])[0].tokens.tolist() == [6, 7, 8, 9]
    assert caplog.text.count("drafting without a store") == 2
    assert speculator.stats.drafter_faults == rows.stats.faults == 0


def test_a_store_of_another_tokenizer_is_refused(tiny, tmp_path):
    store = Corpus.build(["abc"], tmp_path / "c.ngc", tokenizer=Letters("abcd"))
    calls(Speculator(stores=[store]), tiny, tokenizer=Letters("abcd"))
    for where in ({"stores": [store]}, {"extra_stores": [store.path]}):
        with pytest.raises(ValueError, match="was built with another tokenizer"):
            calls(Speculator(), tiny, tokenizer=Letters("bacd"), **where)


def test_a_namespace_reads_a_tokenizer_once():
    letters, read = Letters("abcd"), []
    get_vocab = letters.get_vocab
    store = SharedStore(1 << 20, tokenizer=letters)["n"]
    letters.get_vocab = lambda: read.append(1) or get_vocab()
    for _ in range(3):
        store.check_tokenizer(letters)
    assert read == [1]


@pytest.mark.parametrize("name", ["stores", "extra_stores"])
def test_settings_of_a_new_store_in_each_call_are_refused(tiny, name):
    with pytest.raises(ValueError, match=f"^{name} of a call must be stores, not settings"):
        calls(Speculator(), tiny, **{name: [{"namespace": "n"}]})
    with pytest.raises(ValueError, match=f"^{name} of a call must be stores, not settings"):
        calls(Speculator(), tiny, **{name: [[{"namespace": "n"}]]})


def test_arguments_copies_and_pickles_keep_the_stores(path):
    speculator = Speculator(stores=[Corpus.open(path)], gamma=8)
    kept = speculator.to_dict()
    assert kept["stores"] == [str(path)]
    others = [
        Speculator.from_dict(json.loads(json.dumps(kept))),
        copy.deepcopy(speculator),
        pickle.loads(pickle.dumps(speculator)),
    ]
    for other in others:
        assert [(each.path, len(each)) for each in other.stores] == [(path, 115)]
        assert other.to_dict() == kept
    assert "said.ngc" in repr(speculator)
    assert "stores" not in Speculator().to_dict()
    speculator.drafter = "copy+ngram"
    assert [each.path for each in speculator.stores] == [path]


def test_a_store_that_is_named_twice_is_opened_once(path, tmp_path):
    link = tmp_path / "link.ngc"
    link.symlink_to(path)
    settings = {"namespace": "n"}
    stores = open_stores([path, str(path), link, Corpus.open(path), settings, dict(settings)])
    assert [type(each).__name__ for each in stores] == ["Corpus", "Namespace"]
    other = Corpus.build([np.arange(50, dtype=np.int32)], tmp_path / "other.ngc")
    assert len({other, *open_stores([path, other, other.path])}) == 2
    assert len(open_stores([path, path, {"namespace": "m"}, settings])) == 3


def test_build_drafter(path):
    drafter = build_drafter("auto", stores=[path])
    assert drafter.source_names[4] == "store"
    session = drafter.start(np.arange(10, dtype=np.int32))
    assert session.propose(3).tokens.tolist() == [10, 11, 12]
    assert build_drafter(drafter).stores == drafter.stores
    assert build_drafter("copy+ngram").source_names == ("copy", "resume", "ngram", "unigram")


@pytest.mark.parametrize(
    ("stores", "error", "says"),
    [
        ("a.ngc", TypeError, "stores must be a list of stores, got str"),
        ([3], TypeError, r"stores\[0\] must be a Corpus, the path .*, got int"),
        (["nothing.ngc"], FileNotFoundError, r"stores\[0\]: there is no file: .nothing.ngc"),
        ([__file__], StoreFileError, "is no ngramspec corpus"),
    ],
)
def test_what_is_no_store_is_refused(tiny, stores, error, says):
    with pytest.raises(error, match=says):
        Speculator(stores=stores)
    with pytest.raises(error, match=says):
        calls(Speculator(), tiny, stores=stores)


def test_drafters_that_take_no_stores_say_so(tiny, path):
    with pytest.raises(ValueError, match="takes no stores; 'auto' and other joins"):
        Speculator("copy+ngram", policy="priority", stores=[path])
    with pytest.raises(ValueError, match="drafter none takes no stores"):
        calls(Speculator("none"), tiny, stores=[path])


def test_any_drafter_gets_the_stores_of_the_call(path):
    first, second = build_drafter("auto"), build_drafter("copy")
    row = CallStores(lambda: first, [path], None, print).row(97)
    assert len(row.given_to(first).stores) == 1
    other = row.given_to(second)
    assert other.sources == ("copy",)
    assert len(other.stores) == 1


def test_the_prompt_shows_how_far_a_corpus_is_to_be_believed(tmp_path):
    """A prompt of long pieces of the corpus raises its confidence, one of short pieces does not."""
    rng = np.random.default_rng(5)
    said = rng.permutation(3000).astype(np.int32)
    corpus = Corpus.build([said], tmp_path / "said.ngc")

    def confidence(piece):
        begins = rng.integers(0, 2800, 600 // max(piece, 1)) if piece else []
        prompt = [said[at : at + piece] for at in begins]
        drafter = build_drafter("auto", stores=[corpus])
        draft = drafter.start(np.concatenate((*prompt, said[2900:2903]))).propose(4)
        assert int(draft.tokens[0]) == said[2903]
        return float(draft.confidence[0])

    doubted, new, believed = map(confidence, (3, 0, 12))
    assert doubted < new < believed


def test_without_a_corpus_a_prompt_teaches_nothing():
    drafter = build_drafter("auto")
    drafter.start(np.arange(600, dtype=np.int32) % 50)
    learned = drafter.calibrations.common.to_array()
    assert (learned == Calibration().to_array()).all()
