"""Shared stores: what requests say is found by those that name their namespace, and no others."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from native_strategies import int32

import ngramspec
from ngramspec import SharedStore, Speculator, build_drafter
from ngramspec._native.store_ring import BYTES_PER_CODE
from ngramspec.stores.shared import StoreStatistics

PROMPT = torch.tensor([[5, 6, 7, 8, 15, 16, 17, 9, 25, 26]])
GREEDY = {"max_new_tokens": 40, "do_sample": False}


@pytest.fixture
def store():
    return SharedStore(1 << 20)


def held(namespace):
    """All tokens that a namespace holds, its documents split by -1."""
    _, codes = namespace.store.ring(namespace.name).codes(0)
    codes[codes == 2**31 - 1] = -1
    return codes.tolist()


def calls(speculator, model, **options):
    speculator.reset()
    output = ngramspec.generate(model, PROMPT, speculator=speculator, **GREEDY, **options)
    return output[0].tolist(), speculator.stats.target_calls


def test_a_second_request_comes_faster(tiny, store):
    plain = tiny.generate(PROMPT, **GREEDY)[0].tolist()
    speculator = Speculator(stores=[store["a"]])
    said, many = calls(speculator, tiny)
    again, few = calls(speculator, tiny)
    assert said == again == plain
    assert few < many / 2
    found = store["a"].statistics()
    assert found.accepted == speculator.stats.sources["store"].accepted > 10
    assert found.tokens == found.added == 80
    assert 0 < found.hits <= found.look_ups
    other = Speculator(stores=[store["b"]])
    assert calls(other, tiny)[1] >= many - 2
    assert held(store["a"])[:1] + held(store["a"])[1:41] == [-1, *plain[10:]]


@pytest.mark.parametrize("write", ["outputs", "all", "none"])
@pytest.mark.parametrize("live", [True, False])
def test_what_is_written(tiny, write, live):
    store = SharedStore(1 << 20, write=write, live=live)
    text, _ = calls(Speculator(), tiny, stores=[store["a"]])
    expected = {"outputs": [-1, *text[10:]], "all": [-1, *text], "none": []}
    assert held(store["a"]) == expected[write]


class Aborted(Exception):
    """A reader has gone."""


class Leaver:
    """A streamer that leaves after some tokens."""

    def __init__(self, after):
        self.after = after

    def put(self, tokens):
        self.after -= 1
        if self.after == 0:
            raise Aborted

    def end(self):
        pass


@pytest.mark.parametrize(("live", "after", "kept"), [(False, 60, 0), (True, 80, 64), (True, 30, 0)])
def test_an_aborted_request(tiny, live, after, kept):
    store = SharedStore(1 << 20, live=live)
    with pytest.raises(Aborted):
        ngramspec.generate(
            tiny, PROMPT, stores=[store["a"]], streamer=Leaver(after), max_new_tokens=90,
            do_sample=False,
        )  # fmt: skip
    assert store["a"].statistics().tokens == kept


def test_a_batch_shares_row_by_row(tiny, store):
    prompts = torch.tensor([[5, 6, 7, 8], [25, 26, 27, 28]])
    out = ngramspec.generate(tiny, prompts, stores=[store["a"]], **GREEDY)
    expected = sorted([-1, *row[4:]] for row in out.tolist())
    text = held(store["a"])
    middle = text.index(-1, 1)
    assert sorted([text[:middle], text[middle:]]) == expected


def test_sessions_of_drafters_share_too(store):
    drafter = build_drafter("auto", stores=[store["a"]])
    first = drafter.start(int32([1, 2, 3]))
    first.extend(int32([50, 51, 52, 53, 54]))
    first.close()
    second = drafter.start(int32([9, 50, 51]))
    assert second.propose(2).tokens.tolist() == [52, 53]
    second.close()
    assert held(store["a"]) == [-1, 50, 51, 52, 53, 54]


def test_a_request_does_not_find_its_own_text(store):
    request = store["a"].request()
    request.append(int32([1, 2, 3, 4, 5] * 40))
    assert request.index.find(int32([1, 2, 3])) == []
    assert store["a"].index.find(int32([1, 2, 3]))[0][1] == 3


def test_ids_outside_of_the_vocabulary_are_not_read(tiny, store, caplog):
    store["a"].add(int32([5, 6, 70_000, 7]))
    calls(Speculator(), tiny, stores=[store["a"]])
    assert "has token id 70000" in caplog.text
    request = store["a"].request(100)
    place = request.index.find(int32([6, 70_000]))[0][0]
    assert request.index.tokens_at(place - 1, 9).tolist() == []
    assert request.index.tokens_at(1, 9).tolist() == [5, 6]


def test_namespaces_take_the_place_of_those_used_longest_ago():
    store = SharedStore(4 * 8192, namespace_bytes=8192)
    for name in "abcd":
        store[name].add(int32([1, 2, 3]))
    kept = store["a"].request()
    store["b"].add(int32([1]))
    store["c"].statistics()  # is no use of it
    store["e"].add(int32([1, 2]))
    assert sorted(store) == ["a", "b", "d", "e"]
    assert "c" not in store
    store["f"].add(int32([1, 2]))
    store["g"].add(int32([1, 2]))
    assert sorted(store) == ["b", "e", "f", "g"]
    assert len(store) == 4
    kept.append(int32([1, 2, 3]))  # its namespace is gone
    kept.finish()
    assert kept.index.find(int32([1, 2])) == []
    assert store.sizeof() <= store.max_bytes + 4 * 500
    store.check_integrity()
    assert store["a"].statistics() == StoreStatistics()
    assert "a" not in store


def test_the_oldest_text_is_overwritten():
    store = SharedStore(8192, namespace_bytes=8192)
    capacity = 8192 // BYTES_PER_CODE
    for i in range(40):
        store["a"].add(np.arange(20, dtype=np.int32) + 100 * i)
    found = store["a"].statistics()
    assert found.added == 800
    assert capacity - 22 < found.tokens < capacity
    reader = store["a"].index
    assert reader.find(int32([3, 4])) == []
    assert reader.find(int32([3903, 3904]))[0][1] == 2
    store.check_integrity()


def test_clear_and_drop(store):
    for name in "ab":
        store[name].add(int32([1, 2, 3, 4]))
    place = store["a"].index.find(int32([1, 2]))[0][0]
    store["a"].clear()
    assert store["a"].statistics().tokens == 0
    assert store["a"].index.find(int32([1, 2])) == []
    assert store["a"].index.tokens_at(place, 2).tolist() == []
    store["a"].add(int32([7, 8, 9]))
    assert held(store["a"]) == [-1, 7, 8, 9]
    store.clear()
    assert {each.tokens for each in store.statistics().values()} == {0}
    store.drop("b")
    assert list(store) == ["a"]
    with pytest.raises(KeyError, match="there is no namespace 'b'"):
        store.drop("b")


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"max_bytes": 100}, ValueError, "max_bytes must be in 4096..1099511627776, got 100"),
        ({"max_bytes": 1.5}, TypeError, "max_bytes must be an integer"),
        ({"max_bytes": 8192, "namespace_bytes": 8193}, ValueError, "namespace_bytes must be in"),
        ({"write": "some"}, ValueError, "write must be one of 'outputs', 'all', 'none'"),
        ({"live": 1}, TypeError, "live must be True or False, got 1"),
    ],
)
def test_wrong_arguments(arguments, error, says):
    with pytest.raises(error, match=says):
        SharedStore(**arguments)


def test_wrong_names_and_stores(store):
    with pytest.raises(TypeError, match="name must be a string, got int"):
        store[3]
    for name in ("", "x" * 257):
        with pytest.raises(ValueError, match=r"1\.\.256 characters"):
            store[name]
    with pytest.raises(TypeError, match=r"stores\[0\] must be a namespace of a SharedStore"):
        Speculator(stores=[store])
    with pytest.raises(TypeError, match="stores must be a list of stores, got Namespace"):
        Speculator(stores=store["a"])
    with pytest.raises(ValueError, match="token ids must be >= 0, got -1"):
        store["a"].add(int32([1, -1]))
    with pytest.raises(ValueError, match="token ids must be < 2147483647, got one at index 1"):
        store["a"].add(int32([1, 2**31 - 1]))
    assert store["a"].statistics().added == 0


def test_copies_share_and_files_keep_no_store_in_memory(store):
    speculator = Speculator(stores=[store["a"]])
    assert copy.copy(speculator).stores == (store["a"],)
    with pytest.raises(ValueError, match="lies in memory and cannot be kept"):
        speculator.to_dict()
    with pytest.raises(TypeError, match="a SharedStore cannot be pickled; save it to a file"):
        pickle.dumps(speculator)


def test_a_store_from_settings():
    settings = {"namespace": "own", "max_bytes": 1 << 16, "write": "all"}
    speculator = Speculator(stores=[settings])
    assert speculator.to_dict()["stores"] == [settings]
    (namespace,) = speculator.stores
    assert (namespace.name, namespace.store.max_bytes, namespace.store.write) == (
        "own", 1 << 16, "all",
    )  # fmt: skip
    assert Speculator.from_dict(speculator.to_dict()).stores != speculator.stores
    for wrong in ({"max_bytes": 1 << 16}, {"namespace": "a", "size": 3}):
        with pytest.raises(ValueError, match="a shared store's settings must have 'namespace'"):
            Speculator(stores=[wrong])


def test_a_tokenizer_that_is_known_is_checked():
    class Pieces:
        def __init__(self, pieces):
            self.pieces = pieces

        def get_vocab(self):
            return {each: i for i, each in enumerate(self.pieces)}

    store = SharedStore(1 << 20, tokenizer=Pieces("abc"))
    store["a"].check_tokenizer(Pieces("abc"))
    with pytest.raises(ValueError, match="is of another tokenizer: its fingerprint is"):
        store["a"].check_tokenizer(Pieces("acb"))
    SharedStore(1 << 20)["a"].check_tokenizer(Pieces("acb"))
