"""Shared stores of several processes, synchronized over Redis Streams.

A thread publishes the text that this process adds to its namespaces, and adds the text of other
processes to their rings. Look-ups and requests use memory only and never wait for Redis. Each
namespace is a stream; its entries are described in ``redis_entries``.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ngramspec._native.store_ring import BYTES_PER_CODE, StoreRing
from ngramspec.draft import Int32
from ngramspec.stores.conversations import Conversations
from ngramspec.stores.redis_entries import NO_ENTRY, Address, Entry, Keys, entry_id, id_bytes
from ngramspec.stores.redis_feed import Feed
from ngramspec.stores.redis_queue import PublishQueue, Queued
from ngramspec.stores.shared_request import Outlet

logger = logging.getLogger("ngramspec.stores")

INSTALL = "pip install redis"
POLL_MILLISECONDS = 100  # the longest wait for others' text, and so before one's own is published
MAX_PAUSE_SECONDS = 5.0  # between attempts to reach Redis
TIMEOUT_SECONDS = 5.0  # of a command
TRIM_SECONDS = 10.0  # between removals of entries that are too old
MAX_ENTRIES_AT_ONCE = 100  # read from a stream, or published
EXIT_SECONDS = 1.0  # that the interpreter's end waits for text to be published

_living: weakref.WeakSet[RedisSync] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class SyncStatistics:
    """What was exchanged, in tokens."""

    connected: bool  # whether the last attempt reached Redis
    published: int
    received: int  # from other processes, and added
    lost: int  # not sent, because Redis could not be reached for too long


class RedisSync:
    """Synchronizes namespaces with those of other processes. Any number of threads may use it.

    Only processes with equal tokenizers exchange text. For ``address`` see ``Address.parse``.
    """

    def __init__(self, address: str, tokenizer: Any) -> None:
        try:
            import redis
        except ImportError:
            raise ImportError(f"sync needs redis-py: {INSTALL}", name="redis") from None
        if tokenizer is None:
            raise ValueError("sync needs tokenizer=, so that models of other tokenizers are apart")
        self.address = Address.parse(address)
        self._keys = Keys(self.address.salt, tokenizer)
        try:
            self._redis: Any = redis.Redis.from_url(
                self.address.url,
                socket_timeout=TIMEOUT_SECONDS,
                socket_connect_timeout=TIMEOUT_SECONDS,
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"sync: redis-py refuses the address's options: {error}") from None
        self._documents = itertools.count()
        self._trimmed = 0.0
        self._published = self._received = 0
        self._connected = False
        self._warned = False
        self._reported: set[str] = set()  # namespaces that were once in _refused
        self._pause = 0.0
        self._closed = False
        self._begin()
        _living.add(self)

    def _begin(self) -> None:
        """Begin with the state of a new process."""
        self._process = os.getpid()
        self._producer = os.urandom(12)
        self._queue = PublishQueue()
        self._wake = threading.Event()
        self._lock = threading.Lock()  # protects _feeds and _thread
        self._feeds: dict[str, Feed] = {}
        self._refused: set[str] = set()  # namespaces whose key holds another type, see _of
        self._thread: threading.Thread | None = None

    def follow(self, namespace: str, ring: StoreRing, conversations: Conversations) -> None:
        """Add other processes' text of a namespace to its ring, first what the stream has now.

        Both are cleared when another process clears the namespace.
        """
        self._start()
        with self._lock:
            self._feeds[namespace] = Feed(ring, conversations)
        self._wake.set()

    def unfollow(self, namespace: str) -> None:
        """Stop reading a namespace."""
        with self._lock:
            self._feeds.pop(namespace, None)

    def outlet(self, namespace: str) -> Outlet:
        """A new document: a function that publishes more of its tokens, int32 (n,), soon.

        With ``end=True`` it also ends the document.
        """
        return partial(self._put, namespace, next(self._documents))

    def clear(self, namespace: str) -> None:
        """Delete a namespace's text in Redis and in all processes, when Redis can be reached."""
        self._start()
        self._queue.put_clear(namespace)

    def flush(self, timeout: float = EXIT_SECONDS) -> bool:
        """Wait until everything is published, at most ``timeout`` seconds; whether it is."""
        end = time.monotonic() + timeout
        while self._queue and not self._closed and time.monotonic() < end:
            self._wake.set()
            time.sleep(0.005)
        return not self._queue

    def close(self, timeout: float = EXIT_SECONDS) -> None:
        """Publish what is left, for at most ``timeout`` seconds, and end the thread."""
        self.flush(timeout)
        self._closed = True
        self._wake.set()

    def statistics(self) -> SyncStatistics:
        """What was exchanged since this object was made."""
        return SyncStatistics(self._connected, self._published, self._received, self._queue.lost)

    def _put(self, namespace: str, document: int, tokens: Int32, *, end: bool = False) -> None:
        self._start()
        self._queue.put(namespace, document, tokens, end=end)

    def _start(self) -> None:
        """Start the thread, unless this process has it. A fork does not copy threads."""
        if self._process != os.getpid():
            feeds = self._feeds
            self._begin()
            self._feeds = {name: Feed(x.ring, x.conversations) for name, x in feeds.items()}
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    own = weakref.ref(self)
                    self._thread = threading.Thread(target=_run, args=(own,), daemon=True)
                    self._thread.start()

    def _round(self) -> bool:
        """Read and publish once; False ends the thread.

        It reads first, so that text from before a deletion is not published after it.
        """
        closed = self._closed
        try:
            self._read()
            self._publish()
        except Exception as error:  # nothing that happens here may end the thread
            self._lost_connection(error)
        else:
            if self._warned:
                logger.info("sync: reached %s again", self.address.shown())
            self._connected, self._warned, self._pause = True, False, 0.0
        return not closed

    def _lost_connection(self, error: Exception) -> None:
        """Warn once, and wait before the next attempt, each time longer."""
        if not self._warned:
            logger.warning(
                "sync: cannot use Redis at %s; drafts come from this process's own text until it"
                " is back (%s)",
                self.address.shown(),
                type(error).__name__,
            )
        logger.debug("sync: %s", type(error).__name__)  # its message can quote a text
        self._connected, self._warned = False, True
        self._pause = min(max(2 * self._pause, POLL_MILLISECONDS / 1000), MAX_PAUSE_SECONDS)
        if not self._closed:
            self._wake.wait(self._pause)
            self._wake.clear()

    def _publish(self) -> None:
        """Send the queued text."""
        while pieces := self._queue.take(MAX_ENTRIES_AT_ONCE):
            cleared = next((i for i, piece in enumerate(pieces) if piece.tokens is None), None)
            if cleared == 0:
                with self._of(pieces[0].namespace):
                    self._publish_clear(pieces[0])
                self._queue.remove(pieces[:1])
                continue
            pieces = pieces[:cleared]
            feeds = {piece.namespace: self._feeds.get(piece.namespace) for piece in pieces}
            for name, feed in feeds.items():
                own = [each for each in pieces if each.namespace == name]
                if name in self._refused:
                    self._queue.lost += sum(map(len, own))
                elif feed is not None and feed.last is None:
                    return  # its deletions are not known before its tail was read
                elif feed is not None:
                    self._publish_text(name, own)
            self._queue.remove(pieces)

    def _publish_text(self, name: str, pieces: list[Queued]) -> None:
        """Send a namespace's pieces of text."""
        with self._of(name):
            pipeline = self._redis.pipeline(transaction=False)
            for piece in pieces:
                self._add(pipeline, piece)
            pipeline.expire(self._keys[name], self.address.max_age)
            pipeline.execute()
            self._published += sum(map(len, pieces))

    @contextmanager
    def _of(self, name: str) -> Iterator[None]:
        """Commands on one namespace's key. A key that is no stream affects that namespace alone.

        Its text is not exchanged until the next trim, when the key is tried again.
        """
        from redis import ResponseError

        try:
            yield
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            if name not in self._reported:
                self._reported.add(name)
                logger.warning(
                    "sync: the key %s in Redis is no stream, so one namespace is not shared;"
                    " delete the key",
                    self._keys[name].decode(),
                )
            self._refused.add(name)

    def _add(self, client: Any, piece: Queued) -> Any:
        """XADD a piece. It carries the last deletion that this process knows."""
        feed = self._feeds.get(piece.namespace)
        entry = Entry(
            self._producer,
            piece.number,
            NO_ENTRY if feed is None else feed.cleared,
            piece.document,
            piece.tokens,
            piece.end,
        )
        return client.xadd(
            self._keys[piece.namespace],
            entry.fields(),
            maxlen=self.address.max_entries,
            approximate=True,
        )

    def _publish_clear(self, piece: Queued) -> None:
        """Remove a stream's entries, and tell the processes that read it."""
        key = self._keys[piece.namespace]
        self._redis.xtrim(key, maxlen=0, approximate=False)
        at = entry_id(self._add(self._redis, piece))
        self._redis.expire(key, self.address.max_age)
        feed = self._feeds.get(piece.namespace)
        if feed is not None:
            feed.cleared = max(feed.cleared, at)

    def _read(self) -> None:
        """Add what other processes published; wait for it for a moment if there is nothing."""
        with self._lock:
            feeds = dict(self._feeds)
        if not feeds:
            self._wake.wait(POLL_MILLISECONDS / 1000)
            self._wake.clear()
            return
        for name, feed in feeds.items():
            if feed.last is None and name not in self._refused:
                with self._of(name):
                    self._read_tail(name, feed)
        names = {self._keys[name]: name for name in feeds if name not in self._refused}
        if not names:
            self._wake.wait(POLL_MILLISECONDS / 1000)
            self._wake.clear()
        wait, more = None if self._closed else POLL_MILLISECONDS, bool(names)
        while more:
            positions = {key: id_bytes(feeds[name].last or NO_ENTRY) for key, name in names.items()}
            found = self._xread(positions, names, wait)
            for key, entries in found or ():
                self._add_entries(names[key], feeds[names[key]], entries)
            wait = None
            more = any(len(entries) == MAX_ENTRIES_AT_ONCE for _, entries in found or ())
        self._trim(feeds)

    def _xread(
        self, positions: dict[bytes, bytes], names: dict[bytes, str], wait: int | None
    ) -> Any:
        """XREAD of several keys, which fails as a whole if one of them is no stream."""
        from redis import ResponseError

        try:
            return self._redis.xread(positions, MAX_ENTRIES_AT_ONCE, wait)
        except ResponseError:
            for key, name in names.items():
                with self._of(name):
                    self._redis.xlen(key)
            if self._refused.isdisjoint(names.values()):
                raise
            return None

    def _read_tail(self, name: str, feed: Feed) -> None:
        """Add the latest entries of a stream, at most as many as the ring has room for.

        Each entry counts as a border and its tokens, so that entries without tokens are bounded.
        """
        key, room = self._keys[name], feed.ring.sizeof() // BYTES_PER_CODE
        entries: list[tuple[bytes, dict[bytes, bytes]]] = []
        before = b"+"
        while room > 0:
            found = self._redis.xrevrange(key, before, b"-", MAX_ENTRIES_AT_ONCE)
            entries += found
            room -= sum(1 + len(fields.get(b"t", b"")) // 4 for _, fields in found)
            if len(found) < MAX_ENTRIES_AT_ONCE:
                break
            before = b"(" + found[-1][0]
        feed.last = NO_ENTRY
        self._add_entries(name, feed, entries[::-1])

    def _add_entries(self, name: str, feed: Feed, entries: Any) -> None:
        for at, fields in entries:
            feed.last = entry_id(at)
            try:
                entry = Entry.read(fields, self._keys.vocabulary)
            except (KeyError, ValueError) as error:
                kind = type(error).__name__
                logger.debug("sync: an entry that is not one of ours: %s", kind)
                continue
            added = feed.add(feed.last, entry, self._producer)
            if added is None:
                self._queue.discard(name)
            self._received += added or 0

    def _trim(self, feeds: dict[str, Feed]) -> None:
        """Remove entries that are older than ``max_age``, every TRIM_SECONDS."""
        if time.monotonic() < self._trimmed + TRIM_SECONDS:
            return
        self._trimmed = time.monotonic()
        seconds, _ = self._redis.time()
        oldest = b"%d" % ((seconds - self.address.max_age) * 1000)
        self._refused.clear()
        for name in feeds:
            with self._of(name):
                self._redis.xtrim(self._keys[name], minid=oldest, approximate=False)


def _run(sync: weakref.ref[RedisSync]) -> None:
    """The thread: until its object is closed, or no longer used."""
    while True:
        used = sync()
        if used is None or not used._round():
            return
        del used


def _flush_all() -> None:
    for sync in list(_living):
        sync.close()


atexit.register(_flush_all)
