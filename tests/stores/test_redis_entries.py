"""Addresses, keys and entries of stores that processes share."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_tokenizers import Letters

from ngramspec._native import BORDER, StoreRing
from ngramspec.stores import redis as redis_sync
from ngramspec.stores.conversations import Conversations
from ngramspec.stores.redis import (
    MAX_ENTRY_TOKENS,
    MAX_PRODUCER_BYTES,
    MAX_QUEUED,
    NO_ENTRY,
    STALE_MILLISECONDS,
    Address,
    Feed,
    NamespaceKeys,
    Outgoing,
    PublishQueue,
    RedisSync,
    StreamEntry,
)


def entry(tokens=(1, 2, 3), *, producer=b"other", document=0, at=0, cleared=NO_ENTRY, end=True):
    ids = None if tokens is None else np.array(tokens, np.int32)
    return StreamEntry(producer, cleared, document, at, ids, end)


def test_an_address_has_our_options_and_those_of_redis():
    given = "rediss://u:secret@host:7/2?salt=a%26b&max_age=60&ssl_cert_reqs=none"
    address = Address.parse(given)
    assert address == Address("rediss://u:secret@host:7/2?ssl_cert_reqs=none", "a&b", 10_000, 60)
    assert address.shown() == "rediss://host:7/2"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (7, TypeError, "sync must be an address, got int"),
        ("http://:secret@host", ValueError, "sync must begin with redis://"),
        ("redis://:secret@host?max_age=0", ValueError, "sync: max_age must be in 1..315360000"),
        ("redis://:secret@host?max_entries=x", ValueError, "max_entries must be an integer"),
    ],
)
def test_addresses_that_are_refused(given, error, message):
    with pytest.raises(error, match=message) as caught:
        Address.parse(given)
    assert "secret" not in str(caught.value)


def test_keys_differ_by_salt_tokenizer_and_vocabulary():
    keys = [
        NamespaceKeys(salt, Letters(letters))[name]
        for salt in ("", "s")
        for letters in ("abc", "bac", "abcd")
        for name in ("a", "b", "\ud800")
    ]
    assert len(set(keys)) == len(keys) == 18
    assert NamespaceKeys("s", Letters())["a"] == NamespaceKeys("s", Letters())["a"]
    assert b"team" not in NamespaceKeys("s", Letters())["team"]


def test_an_entry_is_read_as_it_was_written():
    for given in (entry(), entry((), end=False), entry(tokens=None), entry(cleared=(5, 6), at=7)):
        again = StreamEntry.read(given.fields(), 4)
        for name in ("producer", "cleared", "document", "at", "end"):
            assert getattr(again, name) == getattr(given, name)
        assert (again.tokens is None) == (given.tokens is None)
        if given.tokens is not None:
            assert again.tokens.tolist() == given.tokens.tolist()
            assert again.tokens.dtype == np.int32


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {b"p": b"x", b"n": b"1 2 3 1", b"t": b""},
        {b"p": b"x", b"n": b"1 2 3 4 x", b"t": b""},
        {b"n": b"0 0 0 0 1", b"t": b""},
        {b"p": b"x", b"n": b"0 0 0 0 1", b"t": b"123"},
        {b"p": bytes(MAX_PRODUCER_BYTES + 1), b"n": b"0 0 0 0 1", b"t": b""},
        {b"p": b"x", b"n": b"0 0 0 0 1", b"t": np.array([-1], "<i4").tobytes()},
        {b"p": b"x", b"n": b"0 0 0 0 1", b"t": np.array([4], "<i4").tobytes()},
        {b"p": b"x", b"n": b"0 0 0 0 1", b"t": bytes(4 * MAX_ENTRY_TOKENS + 4)},
    ],
)
def test_fields_that_are_no_entry(fields):
    with pytest.raises((KeyError, ValueError)):
        StreamEntry.read(fields, 4)


def tokens_of(ring):
    return [token for document in documents_of(ring) for token in document]


def documents_of(ring):
    codes = ring.codes(0)[1]
    return [each[1:].tolist() for each in np.split(codes, np.flatnonzero(codes == BORDER))[1:]]


@pytest.mark.parametrize(
    ("pieces", "documents"),
    [
        ([(1, 4), (7, 10)], [[1, 2, 3], [7, 8, 9]]),
        ([(4, 7), (7, 10)], [[4, 5, 6, 7, 8, 9]]),  # the first one is lost
        ([(1, 4), (4, 7), (1, 4), (4, 7), (7, 10)], [[1, 2, 3, 4, 5, 6, 7, 8, 9]]),  # sent twice
        ([(1, 4), (4, 10), (1, 4), (4, 10)], [[1, 2, 3, 4, 5, 6, 7, 8, 9]]),  # after its end
    ],
)
def test_a_feed_joins_only_pieces_that_follow_each_other(pieces, documents):
    feed = Feed(StoreRing(256), Conversations(4096))
    added = 0
    for number, (first, after) in enumerate(pieces, 1):
        piece = entry(range(first, after), at=first - 1, end=after == 10)
        added += feed.add((number, 0), piece, b"own")
    assert documents_of(feed.ring) == documents
    assert added == sum(map(len, documents))


def test_a_feed_skips_own_entries():
    feed = Feed(StoreRing(256), Conversations(4096))
    assert feed.add((1, 0), entry((1, 2), end=False), b"own") == 2
    assert feed.add((3, 0), entry((5,), producer=b"own"), b"own") == 0
    assert feed.add((4, 0), entry((3,), at=2), b"own") == 1
    assert documents_of(feed.ring) == [[1, 2, 3]]


def test_a_deletion_covers_text_that_was_published_before_it_was_known():
    now = 10**12
    feed = Feed(StoreRing(256), Conversations(4096))
    feed.add((now, 0), entry((1, 2)), b"own")
    assert feed.add((now + 1, 0), entry(None), b"own") is None
    assert tokens_of(feed.ring) == []
    assert feed.add((now + 2, 0), entry((3,), producer=b"late"), b"own") == 0
    known = (now + 1, 0)
    assert feed.add((now + 3, 0), entry((4,), producer=b"late", cleared=known), b"own") == 1
    long_after = now + 1 + STALE_MILLISECONDS
    assert feed.add((long_after, 0), entry((5,), producer=b"new"), b"own") == 1
    assert tokens_of(feed.ring) == [4, 5]


def test_a_process_s_own_deletion_leaves_what_it_added_since():
    feed = Feed(StoreRing(256), Conversations(4096))
    feed.add((1, 0), entry((1, 2)), b"own")
    assert feed.add((2, 0), entry(None, producer=b"own"), b"own") == 0
    assert tokens_of(feed.ring) == [1, 2]
    assert feed.cleared == (2, 0)


def test_text_of_others_is_added_after_a_process_s_own_deletion():
    feed = Feed(StoreRing(256), Conversations(4096))
    feed.add((1, 0), entry((1, 2), end=False), b"own")
    feed.ring.clear()
    feed.deleted((2, 0))
    assert feed.add((3, 0), entry((3,), cleared=(2, 0)), b"own") == 1
    assert tokens_of(feed.ring) == [3]


def test_what_is_read_before_an_own_deletion_is_sent_is_not_added(monkeypatch):
    """Another process's deletion still covers what waits for being sent."""
    pytest.importorskip("redis")
    sync = RedisSync("redis://localhost", Letters())
    feed = Feed(StoreRing(256), Conversations(4096))
    monkeypatch.setattr(sync, "_start", lambda: None)
    sync.clear("a")
    sync._add_entries("a", feed, [(b"5-0", entry((1, 2)).fields())])
    (sent,) = sync._queue.take(9)
    sync._queue.put("a", Outgoing(0), np.array([7], np.int32), end=True)
    sync._add_entries("a", feed, [(b"6-0", entry((1, 2)).fields())])
    assert (feed.last, tokens_of(feed.ring)) == ((6, 0), [])
    sync._add_entries("a", feed, [(b"7-0", entry(None).fields())])
    assert sync._queue.take(9) == [sent]
    sync._queue.remove()
    assert not sync._queue
    sync._add_entries("a", feed, [(b"8-0", entry((1, 2), cleared=(7, 0)).fields())])
    assert tokens_of(feed.ring) == [1, 2]
    feed.ring.close()  # its namespace was evicted
    sync.outlet("a", feed.ring)(np.array([7], np.int32))
    assert not sync._queue


def test_a_queue_joins_pieces_of_a_document_and_keeps_them_until_they_are_sent():
    queue = PublishQueue()
    first = Outgoing(1)
    queue.put("a", first, np.array([1, 2], np.int32), end=False)
    queue.put("a", first, np.array([3], np.int32), end=True)
    queue.put("a", Outgoing(2), np.arange(MAX_ENTRY_TOKENS + 1, dtype=np.int32), end=True)
    for document in (first, Outgoing(3)):  # one has ended, one has no text
        queue.put("a", document, np.zeros(0, np.int32), end=True)
    taken = queue.take(2)
    assert [(each.document, len(each), each.end) for each in taken] == [
        (1, 3, True),
        (2, MAX_ENTRY_TOKENS, False),
    ]
    assert queue.take(2) == taken  # they were not sent
    queue.remove()
    (left,) = queue.take(9)
    assert (left.document, len(left), left.end) == (2, 1, True)
    queue.remove()
    assert not queue


def test_a_full_queue_loses_new_text_but_no_deletion():
    queue = PublishQueue()
    queue.put("a", Outgoing(0), np.array([7], np.int32), end=True)
    queue.put_clear("a")
    for i in range(MAX_QUEUED // 1000 + 2):
        queue.put("b", Outgoing(i), np.zeros(999, np.int32), end=True)
    for i in range(1000):
        queue.put("b", Outgoing(i), np.zeros(1, np.int32), end=True)
    queue.put_clear("c")
    assert [each.tokens for each in queue.take(10**6)] == [None]
    queue.remove()
    taken = queue.take(10**6)
    held = MAX_QUEUED // 1000
    assert [each.document for each in taken[:held]] == list(range(held))
    assert len(taken) + sum(map(len, taken)) == MAX_QUEUED
    assert sum(map(len, taken)) + queue.lost == 999 * (held + 2) + 1000
    queue.put_clear("a")
    queue.discard("b")
    assert [each.namespace for each in queue.take(10**6)] == ["c"]


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize(
    ("lost", "documents"), [({1}, [[1, 2], [5, 6]]), ({2}, [[1, 2, 3, 4]]), ({1, 2}, [[1, 2]])]
)
def test_a_document_ends_where_a_full_queue_loses_its_text(monkeypatch, sent, lost, documents):
    queue, document = PublishQueue(b"other"), Outgoing(0)
    feed = Feed(StoreRing(256), Conversations(4096))
    for number, first in enumerate((1, 3, 5)):
        monkeypatch.setattr(redis_sync, "MAX_QUEUED", 0 if number in lost else MAX_QUEUED)
        queue.put("a", document, np.arange(first, first + 2, dtype=np.int32), end=number == 2)
        for piece in queue.take(9) if sent or number == 2 else ():
            feed.add((1, 0), piece, b"own")
        if sent:
            queue.remove()
    assert documents_of(feed.ring) == documents
    assert queue.lost == 2 * len(lost)
    assert [stream for stream, _ in feed._documents.values()] == [None]  # it ended


def test_a_queue_holds_one_deletion_of_a_namespace():
    queue = PublishQueue()
    for _ in range(3):
        queue.put("a", Outgoing(0), np.array([7], np.int32), end=True)
        queue.put_clear("a")
    queue.put("a", Outgoing(1), np.array([8], np.int32), end=True)
    assert [each.tokens for each in queue.take(9)] == [None]
    queue.remove()
    assert [each.document for each in queue.take(9)] == [1]


def test_a_deletion_looks_at_no_other_namespace_that_waits():
    """A queue of deletions while the server is away grows without comparing them."""

    class Name(str):
        __slots__ = ()
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other):
            Name.compared += 1
            return str.__eq__(self, other)

    queue = PublishQueue()
    for index in range(300):
        queue.put_clear(Name(index))
    assert Name.compared < 1000


def test_a_namespace_that_always_has_text_does_not_hold_up_the_others():
    queue = PublishQueue()
    for index in range(5):
        queue.put("busy", Outgoing(index), np.array([7], np.int32), end=True)
    queue.put("quiet", Outgoing(9), np.array([8], np.int32), end=True)
    queue.take(3)
    queue.remove()
    assert [each.namespace for each in queue.take(3)] == ["quiet"]


def test_an_entry_cannot_name_a_deletion_after_itself():
    """Else it would hide all later text, and the deletions that really come."""
    feed, now = Feed(StoreRing(256), Conversations(4096)), 10**12
    assert feed.add((now, 0), entry((9,), cleared=(2 * now, 0)), b"own") == 0
    assert feed.add((now + 1, 0), entry((1, 2)), b"own") == 2
    assert feed.add((now + 2, 0), entry(None), b"own") is None
    assert tokens_of(feed.ring) == []


class EmptyEntries:
    """A stream of millions of entries without tokens."""

    def __init__(self):
        self.read = 0

    def xrevrange(self, key, before, after, count):
        self.read += count
        assert self.read < 10_000, "it reads the whole stream"
        return [(b"1-0", {b"p": b"x", b"n": b"0 0 0 0 0", b"t": b""})] * count


def test_the_tail_of_a_stream_is_bounded_whatever_its_entries_hold(monkeypatch):
    pytest.importorskip("redis")
    sync = RedisSync("redis://localhost", Letters())
    monkeypatch.setattr(sync, "_redis", EmptyEntries())
    ring = StoreRing(256)
    feed = Feed(ring, Conversations(4096))
    sync._read_tail("a", feed)
    assert feed.last == (1, 0)
