"""Sessions: which request continues which, what is stored of it, and who is not connected."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import ngramspec
from ngramspec import SharedStore, Speculator
from ngramspec._native import BORDER
from ngramspec.stores import conversations
from ngramspec.stores.conversations import BLOCK, Conversations, TextHash

GREEDY = {"max_new_tokens": 30, "do_sample": False}


@pytest.fixture(autouse=True)
def same_hashes(monkeypatch):
    """In a small table of marks, some salts let one block overwrite another."""
    monkeypatch.setattr(conversations, "salt", lambda: 0x5DEECE66D2B9A1F7)


def text(seed, n):
    return np.random.default_rng(seed).integers(100, 10_000, n).astype(np.int32)


def held(namespace):
    codes = namespace.store.ring(namespace.name).codes(0)[1]
    return [code for code in codes.tolist() if code != BORDER]


def turn(namespace, prompt, answer, session=None):
    """One request; returns it and the codes that it added."""
    request = namespace.request(session=session)
    before = namespace.statistics().added
    request.begin(prompt)
    request.append(answer)
    request.finish()
    request.abort()  # as ``close`` does after ``finish``
    return request, namespace.statistics().added - before


def test_hashes_of_prefixes_do_not_depend_on_the_parts():
    tokens = text(0, 300)
    whole, parts = TextHash(), TextHash()
    hashes = whole.add(tokens)
    for begin, end in pairwise((0, 1, 64, 100, 192, 300)):
        assert (parts.add(tokens[begin:end]) == hashes[begin:end]).all()
    assert (parts.value, parts.length) == (whole.value, 300)
    assert np.concatenate(parts.blocks).tolist() == hashes[BLOCK - 1 :: BLOCK].tolist()
    assert len(set(hashes.tolist())) == 300


def test_only_what_is_new_in_a_turn_is_stored():
    namespace = SharedStore(1 << 20, namespace_bytes=1 << 20, write="all")["a"]
    conversation, added = text(1, 300), []
    for n in range(3):
        answer, news = text(10 + n, 20), text(20 + n, 35)
        added.append(turn(namespace, conversation, answer)[1])
        conversation = np.concatenate((conversation, answer, news))
    assert added == [320, 55, 55]


@pytest.mark.parametrize("news", [0, 9])
def test_an_answer_follows_the_last_one_only_if_no_text_lay_between(news):
    namespace = SharedStore(1 << 20, namespace_bytes=1 << 20)["a"]
    prompt, first, second = text(1, 100), text(2, 5), text(3, 5)
    turn(namespace, prompt, first)
    turn(namespace, np.concatenate((prompt, first, text(4, news))), second)
    between = [] if news else first.tolist()
    assert held(namespace) == [*first.tolist(), *between, *second.tolist()]


def test_a_common_beginning_is_stored_once():
    namespace = SharedStore(1 << 20, namespace_bytes=1 << 20, write="all")["a"]
    system = text(1, 2 * BLOCK + 10)
    turn(namespace, np.concatenate((system, text(2, 50))), text(3, 5))
    _, added = turn(namespace, np.concatenate((system, text(4, 50))), text(5, 5))
    # The tokens after the last whole block, and some before, so that what is new is found.
    assert added == 10 + 16 + 50 + 5


@pytest.mark.parametrize("write", ["outputs", "all", "none"])
def test_a_conversation_does_not_find_its_own_text(write):
    namespace = SharedStore(1 << 20, namespace_bytes=1 << 20, write=write)["a"]
    prompt, answer = text(1, 100), text(2, 50)
    turn(namespace, prompt, answer)
    mine = namespace.request()
    mine.begin(np.concatenate((prompt, answer, text(3, 9))))
    assert mine.index.find(answer[:20]) == []
    for begun in (text(4, 100), prompt):  # the same prompt may have another answer
        other = namespace.request()
        other.begin(begun)
        assert [length for _, length in other.index.find(answer[:20])] == [20] * (write != "none")


def test_parallel_turns_of_one_conversation():
    namespace = SharedStore(1 << 20, namespace_bytes=1 << 20)["a"]
    prompt, answer = text(1, 100), text(2, 50)
    turn(namespace, prompt, answer)
    history = np.concatenate((prompt, answer))
    parts = [np.concatenate((history, text(3 + n, 9))) for n in range(2)]
    requests = [namespace.request() for _ in parts]
    for n, request in enumerate(requests):
        request.begin(parts[n])
        request.append(text(20 + n, 70))
    for request in requests:
        request.finish()
    for n in range(2):  # each is continued, and the other's answer is found
        later = namespace.request()
        later.begin(np.concatenate((parts[n], text(20 + n, 70))))
        assert later.index.find(text(20 + n, 70)[:20]) == []
        assert later.index.find(text(21 - n, 70)[:20])[0][1] == 20
        assert later.index.find(answer[:20]) == []


def test_a_session_connects_what_was_learned_only_within_a_namespace():
    store = SharedStore(1 << 22, namespace_bytes=1 << 20)
    first, _ = turn(store["a"], text(1, 100), text(2, 50), "s")
    same, _ = turn(store["a"], text(3, 100), text(4, 50), "s")
    unnamed, _ = turn(store["a"], text(5, 100), text(6, 50))
    another, _ = turn(store["a"], text(7, 100), text(8, 50), "t")
    elsewhere, _ = turn(store["b"], text(1, 100), text(2, 50), "s")
    assert same.familiar is first.familiar
    assert len({id(each.familiar) for each in (first, unnamed, another, elsewhere)}) == 4
    # A prompt that continues a conversation of another namespace continues none here.
    following = store["b"].request(session="t")
    following.begin(np.concatenate((text(7, 100), text(8, 50), text(9, 5))))
    assert following.familiar is not another.familiar
    assert following.index.find(text(8, 50)[:20]) == []


def test_the_number_of_conversations_is_bounded():
    conversations = Conversations(1 << 20)
    assert 0 < conversations.bytes <= 1 << 16
    store = SharedStore(1 << 20, namespace_bytes=1 << 20)
    for n in range(3 * conversations.max_kept):
        turn(store["a"], text(n, 70), text(n + 1000, 5), f"session {n}")
    kept = store.opened("a")[1]
    assert len(kept._ends) == len(kept._sessions) == kept.max_kept
    assert store.sizeof() <= 1 << 20
    assert Conversations(4096).max_kept == 0
    small = SharedStore(4096)["a"]
    turn(small, text(0, 70), text(1, 5), "s")
    turn(small, text(0, 70), text(1, 5), "s")


def test_a_cleared_or_dropped_namespace_forgets_its_conversations():
    store = SharedStore(1 << 20, namespace_bytes=1 << 20, write="all")
    history = np.concatenate((text(1, 100), text(2, 50)))
    for forget in (store["a"].clear, lambda: store.drop("a"), store.clear):
        turn(store["a"], text(1, 100), text(2, 50), "s")
        forget()
        assert turn(store["a"], history, text(3, 5), "s")[1] == 155
        store["a"].clear()


def test_a_request_that_runs_while_its_namespace_is_cleared_is_not_continued():
    """The text that the next request would not add again was erased."""
    namespace = SharedStore(1 << 20, namespace_bytes=1 << 20, write="all")["a"]
    prompt, answer = text(1, 200), text(2, 50)
    running = namespace.request()
    running.begin(prompt)
    namespace.clear()
    running.append(answer)
    running.finish()
    assert turn(namespace, np.concatenate((prompt, answer)), text(3, 5))[1] == 255


def test_what_was_not_added_is_not_known():
    namespace = SharedStore(1 << 20, namespace_bytes=1 << 20, write="all", live=False)["a"]
    prompt = text(1, 200)
    gone = namespace.request()
    gone.begin(prompt)
    gone.append(text(2, 5))
    gone.abort()
    assert turn(namespace, prompt, text(2, 5))[1] == 205
    assert turn(namespace, prompt, text(3, 5))[1] < 100


def test_generate_has_sessions(tiny):
    store = SharedStore(1 << 20, namespace_bytes=1 << 20, write="all")
    prompt = torch.tensor([[5, 6, 7, 8, 15, 16, 17, 9, 25, 26]])
    speculator = Speculator(stores=[store["a"]])
    config = tiny.generation_config
    for n in range(3):
        expected = tiny.generate(prompt, **GREEDY)
        given = {"session": "s"} if n else {}
        out = ngramspec.generate(
            tiny, prompt, speculator=speculator, reference_ids=[9, 8, 7], **given, **GREEDY
        )
        assert out.tolist() == expected.tolist()
        prompt = torch.cat((out, torch.tensor([[30 + n, 40 + n]])), 1)
    assert store["a"].statistics().added == (3 + 10 + 30) + 2 * (3 + 2 + 30)
    assert list(store.opened("a")[1]._sessions) == ["s"]
    config.ngramspec = {"session": "of the config"}
    try:
        ngramspec.generate(tiny, prompt, speculator=speculator, **GREEDY)
        assert list(store.opened("a")[1]._sessions) == ["s", "of the config"]
    finally:
        del config.ngramspec


@pytest.mark.parametrize("session", [1, "", "x" * 1001])
def test_names_that_are_refused(tiny, session):
    with pytest.raises((TypeError, ValueError), match="session must"):
        ngramspec.generate(tiny, torch.tensor([[5, 6]]), session=session, **GREEDY)
