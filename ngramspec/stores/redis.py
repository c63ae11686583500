"""Shared stores of several processes, synchronized over Redis Streams.

A thread publishes the text that this process adds to its namespaces, and adds the text of other
processes to their rings. Look-ups and requests use memory only and never wait for Redis. Each
namespace is a stream; its entries are pieces of documents, and deletions of all earlier text.
"""

from __future__ import annotations

import atexit
import hashlib
import hmac
import itertools
import logging
import os
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import numpy as np

from ngramspec._native import BYTES_PER_CODE, StoreRing, StoreStream
from ngramspec.draft import NO_TOKENS, Int32
from ngramspec.errors import check_int
from ngramspec.stores import Outlet, fingerprint, vocabulary_size
from ngramspec.stores.conversations import Conversations

SCHEMES = ("redis", "rediss", "unix")
FORMAT = 2  # of keys and entries
MAX_ENTRY_TOKENS = 4096
MAX_PRODUCER_BYTES = 64  # of a process's identity; a process keeps those of many others
OPTIONS = {  # name: default, smallest, largest
    "max_entries": (10_000, 1, 1 << 24),
    "max_age": (7 * 86400, 1, 10 * 365 * 86400),
}
EntryId = tuple[int, int]  # milliseconds of the server's clock, and a number
NO_ENTRY: EntryId = (0, 0)


@dataclass(frozen=True, slots=True)
class Address:
    """A Redis server and what its streams may hold."""

    url: str  # for redis-py, with its own options
    salt: str  # hashed with the names of namespaces; processes with other salts share nothing
    max_entries: int  # that a namespace's stream keeps, about
    max_age: int  # seconds that an entry is kept

    @classmethod
    def parse(cls, address: str) -> Address:
        """Read ``redis://[USER:PASSWORD@]HOST[:PORT][/DB][?salt=…&max_entries=…&max_age=…]``.

        The scheme ``rediss`` uses TLS, ``unix`` a socket. Other options are redis-py's. Messages of
        errors do not repeat the address, because it may hold a password.
        """
        if not isinstance(address, str):
            raise TypeError(f"sync must be an address, got {type(address).__name__}")
        parts = urlsplit(address)
        if parts.scheme not in SCHEMES:
            raise ValueError(f"sync must begin with {'://, '.join(SCHEMES)}://")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        limits = {}
        for name, (default, low, high) in OPTIONS.items():
            given = options.pop(name, str(default))
            if not given.isdecimal():
                raise ValueError(f"sync: {name} must be an integer, got {given!r}")
            limits[name] = check_int(f"sync: {name}", int(given[:20]), low, high)
        salt = options.pop("salt", "")
        url = urlunsplit((*parts[:3], urlencode(options), ""))
        return cls(url, salt, **limits)

    def shown(self) -> str:
        """The address without user, password and options, for messages."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class NamespaceKeys:
    """The keys of namespaces, equal for processes with equal salts, tokenizers and vocabularies."""

    def __init__(self, salt: str, tokenizer: Any) -> None:
        self.vocabulary = vocabulary_size(tokenizer)
        self._salt = salt.encode()
        self._tokenizer = fingerprint(tokenizer)

    def __getitem__(self, namespace: str) -> bytes:
        name = hmac.new(self._salt, namespace.encode("utf-8", "surrogatepass"), hashlib.sha256)
        return f"ngramspec:{FORMAT}:{name.hexdigest()}:{self._tokenizer}:{self.vocabulary}".encode()


@dataclass(slots=True, eq=False)
class StreamEntry:
    """An entry of a stream: a piece of a document, or the deletion of all earlier text."""

    producer: bytes  # random, identifies a process
    cleared: EntryId  # the last deletion that the producer knew
    document: int  # the producer's number of the document
    at: int  # tokens of the document before this piece
    tokens: Int32 | None  # (n,), n at most MAX_ENTRY_TOKENS; None: the namespace was deleted
    end: bool  # whether the document ends here
    namespace: str = ""  # where it waits to be published; not part of the fields in Redis

    def __len__(self) -> int:
        return 0 if self.tokens is None else len(self.tokens)

    def fields(self) -> dict[bytes, bytes]:
        """The fields in Redis."""
        numbers = (*self.cleared, self.document, self.at, int(self.end))
        fields = {b"p": self.producer, b"n": b" ".join(b"%d" % each for each in numbers)}
        if self.tokens is not None:
            fields[b"t"] = self.tokens.astype("<i4").tobytes()
        return fields

    @classmethod
    def read(cls, fields: dict[bytes, bytes], vocabulary: int) -> StreamEntry:
        """The entry with these fields."""
        milliseconds, order, document, at, end = map(int, fields[b"n"].split(b" "))
        producer = bytes(fields[b"p"])
        if len(producer) > MAX_PRODUCER_BYTES:
            raise ValueError(f"a producer of {len(producer)} bytes")
        tokens, given = None, fields.get(b"t")
        if given is not None:
            if len(given) > 4 * MAX_ENTRY_TOKENS:
                raise ValueError(f"an entry of {len(given)} bytes")
            tokens = np.frombuffer(given, "<i4").astype(np.int32)
            if tokens.size and not (tokens.min() >= 0 and tokens.max() < vocabulary):
                raise ValueError(f"token ids must be in 0..{vocabulary - 1}")
        return cls(producer, (milliseconds, order), document, at, tokens, bool(end))


def entry_id(given: bytes) -> EntryId:
    """The number pair of an id such as b"1700000000000-0"."""
    milliseconds, _, order = given.partition(b"-")
    return int(milliseconds), int(order)


@dataclass(slots=True, eq=False)
class Outgoing:
    """A document that this process publishes."""

    number: int
    length: int = 0  # tokens so far, those that were lost included
    open: bool = False  # whether it has a piece, and no end after it


MAX_QUEUED = 1 << 20  # tokens and entries, see ``_size``; ends of open documents are put beyond it


class PublishQueue:
    """Entries of each namespace that wait to be published, in order.

    Any number of threads put, one takes. A namespace has at most one deletion that waits, and it is
    first. The time of an operation does not depend on the number of namespaces.
    """

    def __init__(self, producer: bytes = b"") -> None:
        self._producer = producer
        self.lost = 0  # tokens that were dropped because the queue was full
        self.lock = threading.RLock()
        self._waiting: dict[str, deque[StreamEntry]] = {}  # by namespace, none of them empty
        self._taken: list[StreamEntry] = []
        self._size = 0  # of the texts that wait

    def __bool__(self) -> bool:
        return bool(self._waiting or self._taken)

    def put(self, namespace: str, document: Outgoing, tokens: Int32, *, end: bool) -> None:
        """Add tokens, int32 (n,), which are copied; where some are lost, the document ends."""
        with self.lock:
            for at in range(0, len(tokens), MAX_ENTRY_TOKENS):
                piece = np.array(tokens[at : at + MAX_ENTRY_TOKENS], np.int32)
                if self._size + len(piece) < MAX_QUEUED:
                    self._add(namespace, document, piece, end=False)
                else:
                    self.lost += len(piece)
                    self._end(namespace, document)
                document.length += len(piece)
            if end:
                self._end(namespace, document)

    def _end(self, namespace: str, document: Outgoing) -> None:
        if document.open:
            self._add(namespace, document, NO_TOKENS, end=True)

    def _add(self, namespace: str, document: Outgoing, piece: Int32, *, end: bool) -> None:
        """Add a piece, or append it to the last one where that belongs to the same document."""
        document.open = not end
        pieces = self._waiting.setdefault(namespace, deque())
        last = pieces[-1] if pieces else None
        if (
            last is not None
            and last.tokens is not None
            and (last.document, last.end) == (document.number, False)
            and len(last) + len(piece) <= MAX_ENTRY_TOKENS
        ):
            last.tokens = np.concatenate([last.tokens, piece])
            last.end = end
        else:
            where = document.number, document.length
            pieces.append(StreamEntry(self._producer, NO_ENTRY, *where, piece, end, namespace))
            self._size += 1
        self._size += len(piece)

    def put_clear(self, namespace: str) -> None:
        """Add the deletion of a namespace, which replaces all that still waits for it."""
        with self.lock:
            self.discard(namespace)
            deletion = StreamEntry(self._producer, NO_ENTRY, 0, 0, None, True, namespace)
            self._waiting[namespace] = deque([deletion])

    def deletes(self, namespace: str) -> bool:
        """Whether a namespace's deletion waits, so that what is read of it is older."""
        first = [*self._taken[:1], *itertools.islice(self._waiting.get(namespace, ()), 1)]
        return any(each.tokens is None and each.namespace == namespace for each in first)

    def discard(self, namespace: str) -> None:
        """Drop a namespace's text that waits."""
        with self.lock:
            pieces = self._waiting.pop(namespace, deque())
            self._size -= _size(pieces)
            if pieces and pieces[0].tokens is None:
                self._waiting[namespace] = deque([pieces[0]])
            self._taken = [
                each for each in self._taken if each.namespace != namespace or each.tokens is None
            ]

    def take(self, limit: int) -> list[StreamEntry]:
        """The next pieces of one namespace: a deletion, or text. They stay until ``remove``."""
        with self.lock:
            if self._waiting and not self._taken:
                namespace = next(iter(self._waiting))
                pieces = self._waiting.pop(namespace)
                count = 1 if pieces[0].tokens is None else min(limit, len(pieces))
                self._taken = [pieces.popleft() for _ in range(count)]
                self._size -= _size(self._taken)
                if pieces:
                    self._waiting[namespace] = pieces  # last, so that the others are next
            return self._taken

    def remove(self) -> None:
        """Remove the pieces that were taken."""
        with self.lock:
            self._taken = []


def _size(entries: Iterable[StreamEntry]) -> int:
    """The entries of texts, and their tokens."""
    return sum(1 + len(each) for each in entries if each.tokens is not None)


MAX_DOCUMENTS = 1024  # whose next piece is known, ended ones included, per namespace
STALE_MILLISECONDS = 600_000  # that text from before a deletion may take to arrive


class Feed:
    """Adds the entries of a namespace's stream to its ring. One thread."""

    def __init__(self, ring: StoreRing, conversations: Conversations) -> None:
        self.ring, self.conversations = ring, conversations
        self.last: EntryId | None = None  # that was read; None: the stream's tail was not read yet
        self.cleared = NO_ENTRY  # the last deletion of the namespace that is known
        # Each document's text, None after its end, and its length; the latest ones last.
        self._documents: OrderedDict[tuple[bytes, int], tuple[StoreStream | None, int]]
        self._documents = OrderedDict()

    def add(self, at: EntryId, entry: StreamEntry, own: bytes) -> int | None:
        """Add an entry with the id ``at``; ``own`` is the identity of this process.

        Returns how many tokens were added; None: another process deleted the namespace.
        """
        if entry.tokens is None:
            return self._clear(at, entry.producer == own)
        # Text from before a deletion can arrive after it. An entry cannot name a later deletion.
        late = entry.cleared < self.cleared and at[0] < self.cleared[0] + STALE_MILLISECONDS
        if entry.producer == own or entry.cleared >= at or late:
            return 0
        self.cleared = max(self.cleared, entry.cleared)
        return self._append(entry, entry.tokens)

    def deleted(self, at: EntryId) -> None:
        """Note that the namespace was deleted, with the entry ``at``."""
        self.cleared = max(self.cleared, at)
        self._documents.clear()

    def _append(self, entry: StreamEntry, tokens: Int32) -> int:
        """Add a piece that was not added yet; after a missing one, a document begins."""
        name = entry.producer, entry.document
        document, length = self._documents.pop(name, (None, entry.at))
        added = 0
        if entry.at >= length:
            if document is None:
                document = StoreStream(self.ring)
            elif entry.at > length:
                document.finish()
            document.append(tokens)
            document.publish()
            added, length = len(tokens), entry.at + len(tokens)
            if entry.end:
                document.finish()
                document = None
        self._documents[name] = document, length
        if len(self._documents) > MAX_DOCUMENTS:
            self._documents.popitem(last=False)
        return added

    def _clear(self, at: EntryId, own: bool) -> int | None:
        """Delete all text. This process deleted its ring's at once if the deletion is its own."""
        if at <= self.cleared:
            return 0
        self.deleted(at)
        if own:
            return 0
        self.conversations.clear()
        self.ring.clear()
        return None


logger = logging.getLogger("ngramspec.stores")

INSTALL = "pip install redis"
POLL_MILLISECONDS = 100  # the longest wait for others' text, and so before one's own is published
MAX_PAUSE_SECONDS = 5.0  # between attempts to reach Redis
TIMEOUT_SECONDS = 5.0  # of a command
TRIM_SECONDS = 10.0  # between removals of entries that are too old
MAX_ENTRIES_AT_ONCE = 100  # read from a stream, or published
EXIT_SECONDS = 1.0  # that the interpreter's end waits for text to be published

_living: weakref.WeakSet[RedisSync] = weakref.WeakSet()


class RedisSync:
    """Synchronizes namespaces with those of other processes. Any number of threads may use it.

    Only processes with equal tokenizers exchange text. For ``address`` see ``Address.parse``.

    Attributes:
        connected: whether the last attempt reached Redis.
        published: number of tokens that were sent.
        received: number of tokens from other processes that were added.
    """

    def __init__(self, address: str, tokenizer: Any) -> None:
        try:
            import redis
        except ImportError:
            raise ImportError(f"sync needs redis-py: {INSTALL}", name="redis") from None
        if tokenizer is None:
            raise ValueError("sync needs tokenizer=, so that models of other tokenizers are apart")
        self.address = Address.parse(address)
        self._keys = NamespaceKeys(self.address.salt, tokenizer)
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
        self.published = self.received = 0
        self.connected = self._warned = False
        self._pause = 0.0
        self._closed = False
        self._begin()
        _living.add(self)

    def _begin(self) -> None:
        """Begin with the state of a new process, which has one thread."""
        self._producer = os.urandom(12)
        self._queue = PublishQueue(self._producer)
        self._wake = threading.Event()
        self._lock = threading.Lock()  # protects _feeds and _thread
        self._feeds: dict[str, Feed] = {}
        self._thread: threading.Thread | None = None

    def _begin_forked(self) -> None:
        """Begin in a fork, which copies no threads."""
        feeds = self._feeds
        self._begin()
        self._feeds = {name: Feed(x.ring, x.conversations) for name, x in feeds.items()}

    def follow(self, namespace: str, ring: StoreRing, conversations: Conversations) -> None:
        """Add other processes' text of a namespace to its ring, first what the stream has now."""
        self._start()
        with self._lock:
            self._feeds[namespace] = Feed(ring, conversations)
        self._wake.set()

    def unfollow(self, namespace: str) -> None:
        """Stop reading a namespace."""
        with self._lock:
            self._feeds.pop(namespace, None)

    def outlet(self, namespace: str, ring: StoreRing) -> Outlet:
        """A new document: a function that publishes more of its tokens, int32 (n,), soon.

        It publishes nothing after the ring was closed, or if its argument ``unless`` returns True.
        """
        document = Outgoing(next(self._documents))

        def publish(tokens: Int32, *, end: bool = False, unless: Any = None) -> None:
            self._start()
            with self._queue.lock:
                if ring.capacity and not (unless and unless()):
                    self._queue.put(namespace, document, tokens, end=end)

        return publish

    def clear(self, namespace: str, *parts: Any) -> None:
        """Delete a namespace's text, in Redis and the others later; ``parts`` hold what is here."""
        self._start()
        with self._queue.lock:
            self._queue.put_clear(namespace)
            for part in parts:
                part.clear()

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

    @property
    def lost(self) -> int:
        """Number of tokens that were dropped because Redis could not be reached for too long."""
        return self._queue.lost

    def _start(self) -> None:
        """Start the thread, unless this process has it."""
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
            self.connected, self._warned, self._pause = True, False, 0.0
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
        self.connected, self._warned = False, True
        self._pause = min(max(2 * self._pause, POLL_MILLISECONDS / 1000), MAX_PAUSE_SECONDS)
        if not self._closed:
            self._rest(self._pause)

    def _publish(self) -> None:
        """Send the queued text."""
        while pieces := self._queue.take(MAX_ENTRIES_AT_ONCE):
            name, deletion = pieces[0].namespace, pieces[0].tokens is None
            feed = self._feeds.get(name)
            if feed is not None and feed.last is None and not deletion:
                return  # its deletions are not known before its tail was read
            if feed is not None or deletion:
                self._send(name, pieces, feed)
            self._queue.remove()

    def _send(self, name: str, pieces: list[StreamEntry], feed: Feed | None) -> None:
        """XADD pieces, with the last deletion that this process knows; a deletion empties first."""
        key, deletion = self._keys[name], pieces[0].tokens is None
        pipeline = self._redis.pipeline(transaction=False)
        if deletion:
            pipeline.xtrim(key, maxlen=0, approximate=False)
        for piece in pieces:
            piece.cleared = NO_ENTRY if feed is None else feed.cleared
            pipeline.xadd(key, piece.fields(), maxlen=self.address.max_entries, approximate=True)
        pipeline.expire(key, self.address.max_age)
        at = entry_id(pipeline.execute()[-2])
        self.published += sum(map(len, pieces))
        if deletion and feed is not None:
            feed.deleted(at)

    def _read(self) -> None:
        """Add what other processes published; wait for it for a moment if there is nothing."""
        with self._lock:
            feeds = dict(self._feeds)
        if not feeds:
            self._rest(POLL_MILLISECONDS / 1000)
            return
        for name, feed in feeds.items():
            if feed.last is None:
                self._read_tail(name, feed)
        names = {self._keys[name]: name for name in feeds}
        wait, more = None if self._closed else POLL_MILLISECONDS, True
        while more:
            ids = {key: feeds[name].last or NO_ENTRY for key, name in names.items()}
            positions = {key: b"%d-%d" % each for key, each in ids.items()}
            found = self._redis.xread(positions, MAX_ENTRIES_AT_ONCE, wait) or ()
            for key, entries in found:
                self._add_entries(names[key], feeds[names[key]], entries)
            wait, more = None, any(len(entries) == MAX_ENTRIES_AT_ONCE for _, entries in found)
        self._trim(feeds)

    def _rest(self, seconds: float) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

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
                entry = StreamEntry.read(fields, self._keys.vocabulary)
            except (KeyError, ValueError) as error:  # its message can quote a text
                logger.debug("sync: an entry that is not one of ours: %s", type(error).__name__)
                continue
            with self._queue.lock:
                if entry.tokens is not None and self._queue.deletes(name):
                    continue
                added = feed.add(feed.last, entry, self._producer)
                if added is None:
                    self._queue.discard(name)
            self.received += added or 0

    def _trim(self, feeds: dict[str, Feed]) -> None:
        """Remove entries that are older than ``max_age``, every TRIM_SECONDS."""
        if time.monotonic() < self._trimmed + TRIM_SECONDS:
            return
        self._trimmed = time.monotonic()
        seconds, _ = self._redis.time()
        oldest = b"%d" % ((seconds - self.address.max_age) * 1000)
        for name in feeds:
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


def _begin_in_fork() -> None:
    for sync in list(_living):
        sync._begin_forked()


atexit.register(_flush_all)
if hasattr(os, "register_at_fork"):  # POSIX
    os.register_at_fork(after_in_child=_begin_in_fork)
