"""Shared stores: what requests say is found by those that name their namespace, and no others."""

from __future__ import annotations

import copy
import pickle
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Semaphore

import numpy as np
import pytest
import torch
from doubles import InterruptedStreamer
from native_strategies import int32
from plain_text import text_and_calls
from tiny_tokenizers import Letters

import ngramspec
from ngramspec import SharedStore, Speculator, build_drafter
from ngramspec.decoding.stores import CallStores
from ngramspec.stepwise import open_generation
from ngramspec.stores import shared
from ngramspec.stores.shared import MAX_ANSWERS_READ, SharedRequest, StoreStatistics

PROMPT = torch.tensor([[5, 6, 7, 8, 15, 16, 17, 9, 25, 26]])
GREEDY = {"max_new_tokens": 40, "do_sample": False}
calls = partial(text_and_calls, PROMPT, **GREEDY)


@pytest.fixture
def store():
    return SharedStore(1 << 20)


def held(namespace):
    """All tokens that a namespace holds, its documents split by -1."""
    _, codes = namespace.store.ring(namespace.name).codes(0)
    codes[codes == 2**31 - 1] = -1
    return codes.tolist()


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


@pytest.mark.parametrize(("live", "after", "kept"), [(False, 60, 0), (True, 80, 64), (True, 30, 0)])
def test_an_aborted_request(tiny, live, after, kept):
    store = SharedStore(1 << 20, live=live)
    streamer, length = InterruptedStreamer(after), GREEDY | {"max_new_tokens": 90}
    with pytest.raises(KeyboardInterrupt):
        ngramspec.generate(tiny, PROMPT, stores=[store["a"]], streamer=streamer, **length)
    assert store["a"].statistics().tokens == kept


def test_a_batch_shares_row_by_row(tiny, store):
    prompts = torch.tensor([[5, 6, 7, 8], [25, 26, 27, 28]])
    out = ngramspec.generate(tiny, prompts, stores=[store["a"]], **GREEDY)
    expected = sorted([-1, *row[4:]] for row in out.tolist())
    text = held(store["a"])
    middle = text.index(-1, 1)
    assert sorted([text[:middle], text[middle:]]) == expected


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


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("said", [5, 64, 100])
def test_what_a_request_said_before_a_clear_is_not_added_after_it(live, said):
    """Neither the tokens that wait nor those that are written again after other text."""
    sent = []
    store = SharedStore(1 << 16, namespace_bytes=1 << 16, live=live)
    namespace = store["a"]

    def outlet(tokens, end=False, unless=bool):
        sent.extend([] if unless() else tokens.tolist())

    request = SharedRequest(namespace.index, "outputs", live, outlet)
    request.append(int32(range(said)))
    namespace.clear()
    del sent[:]
    request.append(int32([501, 502, 503]))
    request.pause()
    namespace.add(int32([7, 8, 9]))
    request.append(int32([504]))
    request.finish()
    assert set(held(namespace)) == {-1, 7, 8, 9, 501, 502, 503, 504}
    assert sent == [501, 502, 503, 504]
    store.check_integrity()


@pytest.mark.parametrize("live", [True, False])
def test_a_request_that_ends_after_a_clear_adds_nothing(live):
    namespace = SharedStore(1 << 16, namespace_bytes=1 << 16, live=live)["a"]
    ended, followed = namespace.request(), namespace.request()
    followed.index.append(int32(range(30)))
    followed.index.close()
    ended.append(int32(range(20)))
    namespace.clear()
    ended.finish()
    ended.index.follow(followed.index)  # which was found before the clear
    ended.index.append(int32([501]))
    ended.index.publish()
    assert held(namespace) == []


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"max_bytes": 100}, ValueError, "max_bytes must be in 4096..1099511627776, got 100"),
        ({"max_bytes": 1.5}, TypeError, "max_bytes must be an integer"),
        ({"max_bytes": 8192, "namespace_bytes": 8193}, ValueError, "namespace_bytes must be in"),
        ({"max_bytes": 1 << 40, "namespace_bytes": 1 << 36}, ValueError, "in 4096..62277025792"),
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
    described = namespace.name, namespace.store.max_bytes, namespace.store.write
    assert described == ("own", 1 << 16, "all")
    assert Speculator.from_dict(speculator.to_dict()).stores != speculator.stores
    path, needs = {"path": "x.ngs"}, "settings must have 'namespace', and may have "
    for wrong, more in (
        ({"max_bytes": 1 << 16}, "max_bytes, namespace_bytes, write, live"),
        ({"namespace": "a", "size": 3}, "max_bytes, namespace_bytes, write, live"),
        (path, "max_bytes, namespace_bytes, path"),
        (path | {"namespace": "a", "write": "all"}, "max_bytes, namespace_bytes, path; got"),
    ):
        with pytest.raises(ValueError, match=needs + more):
            Speculator(stores=[wrong])


def test_a_tokenizer_that_is_known_is_checked():
    store = SharedStore(1 << 20, tokenizer=Letters("abc"))
    store["a"].check_tokenizer(Letters("abc"))
    with pytest.raises(ValueError, match="was built with another tokenizer: its fingerprint is"):
        store["a"].check_tokenizer(Letters("acb"))
    SharedStore(1 << 20)["a"].check_tokenizer(Letters("acb"))


@pytest.mark.parametrize("ended", ["by a rule", "well", "early"])
def test_a_generation_that_its_caller_advances(tiny, ended):
    store = SharedStore(1 << 20, live=False)
    speculator = Speculator(stores=[store["a"]])
    with open_generation(
        tiny, PROMPT, speculator=speculator, max_new_tokens=30, do_sample=False
    ) as running:
        while not running.finished and (ended == "by a rule" or len(running.tokens) < 10):
            running.step()
        said = running.tokens
        if ended == "well":
            running.finish()
    _, codes = store.ring("a").codes(0)
    assert codes[1:].tolist() == ([] if ended == "early" else said)


def test_beams_read_and_add_nothing(tiny):
    store = SharedStore(1 << 20)
    options = {"num_beams": 3, "max_new_tokens": 20, "do_sample": False}
    plain = tiny.generate(PROMPT, **options)
    store["a"].add(plain[0].to(torch.int32).numpy())
    before = store["a"].statistics()
    always = Speculator(gamma=4)  # else drafts may not pay, and no session looks anything up
    out = ngramspec.generate(tiny, PROMPT, speculator=always, stores=[store["a"]], **options)
    assert out.tolist() == plain.tolist()
    assert store["a"].statistics().added == before.added
    assert store["a"].statistics().look_ups > 0


RUN = 1000  # each document counts up inside one thousand


def requests(store, seed, operations, ended):
    """Add documents that count up, look for their contexts and read on; what was done, counted."""
    rng = np.random.default_rng(seed)
    done = Counter()
    while done.total() < operations:
        request = store[str(rng.integers(0, 2))].request()
        first = RUN * int(rng.integers(0, 50))
        for at in range(first, first + int(rng.integers(1, 300)), 8):
            request.append(np.arange(at, at + 8, dtype=np.int32))
            done["append"] += 1
            n = int(rng.integers(1, 12))
            begin = RUN * int(rng.integers(0, 50)) + int(rng.integers(0, 200))
            places = request.index.find(np.arange(begin, begin + n, dtype=np.int32), 4)
            done["find"] += 1
            for place, length in places:
                assert 1 <= length <= n
                read = request.index.tokens_at(place, 20)
                done["read"] += 1
                assert read.tolist() == list(range(begin + n, begin + n + len(read)))
        if rng.random() < 0.9:
            request.finish()
        else:
            request.abort()
        ended.release()
    return done


def test_threads_generate_and_one_clears():
    """Many threads generate while another one clears, drops and reads the store."""
    store, ended = SharedStore(1 << 17, namespace_bytes=1 << 15), Semaphore(0)
    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(requests, store, seed, 5000, ended) for seed in range(4)]
        for turn in range(80):  # each worker has at least 20 requests
            while not ended.acquire(timeout=1):
                assert not any(worker.done() and worker.exception() for worker in workers)
            store["0"].clear() if turn % 3 else store.clear()
            if turn % 5 == 0 and "1" in store:
                store.drop("1")
            for ring in store.rings().values():
                ring.codes(0)
    for worker in workers:
        worker.result()
    assert requests(store, 4, 5000, ended)["read"] > 50
    store.check_integrity()
    assert store.sizeof() <= store.max_bytes + 4096


def test_sessions_of_many_threads_draft_only_what_follows():
    store = SharedStore(1 << 18)
    store["a"].add(np.arange(500, dtype=np.int32))
    drafter = build_drafter("auto", stores=[store["a"]])

    def serve(seed):
        rng, drafted = np.random.default_rng(seed), 0
        for _ in range(40):
            at = int(rng.integers(0, 300))
            session = drafter.start(np.arange(at, at + 8, dtype=np.int32))
            for begin in range(at + 8, at + 60, 4):
                draft = session.propose(8)
                said = draft.source == drafter.source_names.index("store")
                known = len(draft) if said.all() else int(said.argmin())
                drafted += known
                assert draft.tokens[:known].tolist() == list(range(begin, begin + known))
                session.extend(np.arange(begin, begin + 4, dtype=np.int32))
            session.close()
        return drafted

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(serve, range(4))) > 1000
    store.check_integrity()
    assert store["a"].statistics().added == 500 + 4 * 40 * 52


def test_namespaces_are_made_once_by_many_threads(store, monkeypatch):
    make = shared.StoreRing
    monkeypatch.setattr(shared, "StoreRing", lambda size: time.sleep(0.05) or make(size))
    with ThreadPoolExecutor(8) as pool:
        rings = list(pool.map(store.ring, "a" * 8))
    assert len(set(map(id, rings))) == 1


def rows_of(prompts, tokens=1000):
    call = CallStores(lambda: build_drafter("copy+ngram"), None, None, print)
    call.join_equal([*map(int32, prompts)], tokens)
    rows = [call.row(100_000, index) for index in range(len(prompts))]
    for row, prompt in zip(rows, prompts, strict=True):
        row.begin(int32(prompt))
    return rows


def drafted(row, tokens, gamma=6):
    session = row.given_to(build_drafter("copy+ngram")).start(int32(tokens))
    return session.propose(gamma).tokens.tolist()


def test_an_answer_is_drafted_from_the_others_at_once():
    first, second, third = rows_of([[1, 2]] * 3)
    first.append(int32(range(100, 110)))
    assert drafted(second, [1, 2, 100, 101]) == [102, 103, 104, 105, 106, 107]
    second.append(int32([200, 201, 202]))
    assert drafted(third, [1, 2, 200]) == [201, 202]
    assert drafted(second, [1, 2, 200]) == []  # its own text is in the sequence itself


def test_rows_with_other_prompts_and_other_calls_see_nothing():
    rows = rows_of([[1, 2], [1, 3], [1, 2]])
    rows[0].append(int32(range(100, 110)))
    assert drafted(rows[1], [1, 3, 100, 101]) == []
    assert drafted(rows[2], [1, 2, 100, 101], 2) == [102, 103]
    _, other = rows_of([[1, 2]] * 2)
    assert drafted(other, [1, 2, 100, 101]) == []


def test_the_number_of_texts_and_their_length_are_bounded():
    rows = rows_of([[1, 2]] * (MAX_ANSWERS_READ + 3), tokens=50)
    rows[0].append(int32(range(100, 300)))
    assert drafted(rows[-1], [1, 290, 291], 3) == [292, 293, 294]
    assert drafted(rows[-1], [1, 110, 111], 3) == []
    assert len(rows[0].given_to(build_drafter("copy+ngram")).stores) == MAX_ANSWERS_READ
    assert drafted(rows[1], [1, 290, 291], 3) == []  # too many are nearer


@pytest.mark.parametrize("spec", ["ngram(order=3)", "none"])
def test_drafters_that_take_no_stores(spec):
    call = CallStores(lambda: build_drafter(spec, policy="priority"), None, None, print)
    call.join_equal([int32([1])] * 2, 10)
    row = call.row(100)
    assert row.given_to(call.current()) is not None
    row.append(int32([1, 2, 3]))


@pytest.mark.parametrize("greedy", [True, False])
def test_sampled_rows_of_a_batch_are_joined(tiny, greedy, monkeypatch):
    """Greedy rows with equal prompts have equal texts, so they would learn nothing."""
    join, joined = CallStores.join_equal, []

    def counted(stores, prompts, tokens):
        joined.append(len(prompts))
        join(stores, prompts, tokens)

    monkeypatch.setattr(CallStores, "join_equal", counted)
    prompts = torch.tensor([[5, 6, 7, 8, 15, 16]] * (4 if greedy else 1))
    options = {"max_new_tokens": 60, "do_sample": not greedy}
    options |= {} if greedy else {"num_return_sequences": 4, "temperature": 0.3}
    torch.manual_seed(0)
    speculator = Speculator(gamma=4)
    out = ngramspec.generate(tiny, prompts, speculator=speculator, **options)
    if greedy:
        assert out.tolist() == tiny.generate(prompts, **options).tolist()
    assert out.shape == (4, 66)
    assert joined == ([] if greedy else [4])
    assert speculator.stats.drafter_faults == 0
