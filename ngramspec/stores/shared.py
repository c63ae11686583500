"""A shared store: text of earlier requests, in memory, for the drafts of later ones; its file.

The indexes are rebuilt when a file is loaded. It has two sections:

    text    the codes of all namespaces: token ids, and a border before each document
    names   a line of JSON for each namespace, least recently used first: its name, its number of
            codes, and the counts of its statistics

A file does not decide how much memory is allocated: the sizes of sections are checked before they
are read, and their content before it is used.
"""

from __future__ import annotations

import io
import json
import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from ngramspec._native import (
    BORDER,
    BYTES_PER_CODE,
    LEAST_CODES,
    WRITTEN_AGAIN,
    StoreRing,
    StoreStream,
)
from ngramspec.draft import NO_TOKENS, Int32
from ngramspec.errors import check_bool, check_choice, check_int
from ngramspec.files import open_regular
from ngramspec.stores import NotCopied, Outlet, Source, fingerprint
from ngramspec.stores.conversations import NO_CONVERSATIONS, Begun, Conversations, TextHash
from ngramspec.stores.files import (
    FileKind,
    StoreFileError,
    check_checksums,
    read_header,
    read_section,
    write_file,
)

if TYPE_CHECKING:
    from ngramspec.stores.redis import RedisSync

logger = logging.getLogger("ngramspec")

KIND = FileKind(
    magic=b"\x89NGS\r\n\x1a\n",
    name="ngramspec shared store",
    version=2,
    fields="QII32s",
    sections=("text", "names"),
)
COUNTS_PER_ENTRY = 4  # tokens ever, look-ups, hits, accepted tokens
MAX_COUNT = 1 << 62
MAX_NAME_LENGTH = 256  # characters of a namespace's name
MIN_NAMESPACE_BYTES = 4096  # memory of a namespace
MAX_NAMESPACE_BYTES = BYTES_PER_CODE << 31  # places have 32 bits
MAX_LINE_BYTES = 4096  # a name of 256 characters, each escaped as two of \\uxxxx, and five numbers
MEMORY_PER_FILE_BYTE = BYTES_PER_CODE // 4  # memory of a code for each byte of it in the file


class SharedRequest(Source):
    """Reads a namespace's text and adds a request's own. One thread at a time.

    It does not find its own text, nor the text that earlier requests of the same conversation
    added, because both are in the sequence itself. ``write`` and ``live`` are those of SharedStore.
    """

    def __init__(
        self,
        stream: StoreStream,
        write: str,
        live: bool,
        outlet: Outlet | None = None,  # gets the text that is added, for other processes
        conversations: Conversations = NO_CONVERSATIONS,
        session: str | None = None,
    ) -> None:
        self.index = stream
        self._write, self._live, self._outlet = write, live, outlet
        self._conversations, self._session = conversations, session
        self._begun: Begun | None = None
        self._ended = False
        self._text = TextHash()
        self._new: list[Int32] = []  # committed tokens that are not hashed yet
        self._kept: list[Int32] = []

    def begin(self, prompt: Int32, reference: Int32 = NO_TOKENS) -> None:
        """Record the prompt, of which only what is new is added, and the reference before it."""
        self._ended = False  # an engine's row begins again with each turn
        self.index.begin(prompt)
        self._begun, self._text = self._conversations.begin(prompt, self._session)
        self.familiar, known = self._begun.familiar, self._begun.known
        if self._begun.earlier is not None:
            self.index.follow(self._begun.earlier.stream)
        else:
            known = max(known - WRITTEN_AGAIN, 0)  # so that they find what is new
        if self._write != "all" and known < len(prompt):
            self.index.end()  # what is added next does not follow the last text that was added
        if self._write == "all":
            self._add(reference)
            self._add(prompt[known:])
            if self._live:
                self._conversations.mark(self._begun, self._text)

    def append(self, tokens: Int32) -> None:
        """Record committed tokens, int32 (n,)."""
        if self._begun is not None:
            self._new.append(tokens)
        if self._write != "none":
            self._add(tokens)

    def _add(self, tokens: Int32) -> None:
        if self.index.cleared():
            self.index.end()
            self._kept = []
        if self._live:
            self._put(tokens)
        else:
            self._kept.append(np.array(tokens, np.int32))

    def _put(self, tokens: Int32) -> None:
        self.index.append(tokens)
        if self._outlet is not None:
            self._outlet(tokens, unless=self.index.cleared)

    def pause(self) -> None:
        """Publish all text if it may be added before the end; the request may have ended."""
        if self._live:
            self.index.publish()
            self._keep()

    def _keep(self) -> None:
        """Keep the conversation with all text so far."""
        if self._begun is None:
            return
        self._text.add(np.concatenate([NO_TOKENS, *self._new]))
        self._new = []
        if self._write == "all":
            self._conversations.mark(self._begun, self._text)
        self._begun = self._conversations.end(self._begun, self._text, self.index)

    def finish(self) -> None:
        """End the request normally: all text is added."""
        if self._ended:
            return
        self._ended = True
        kept, self._kept = self._kept, []
        for tokens in () if self.index.cleared() else kept:
            self._put(tokens)
        if self._outlet is not None:
            self._outlet(NO_TOKENS, end=True)
        if self._begun is None:
            self.index.finish()
        else:
            self.index.close()  # the next turn follows
        self._keep()

    def abort(self) -> None:
        """End a failed or aborted request: text that is not added yet is discarded."""
        if self._ended:
            return
        self._kept = []
        self.index.end()
        if self._outlet is not None:
            self._outlet(NO_TOKENS, end=True)


MAX_ANSWERS_READ = 8  # bounds the memory and look-ups of a call with many answers
MAX_ANSWER_TOKENS = 1 << 13  # of an answer that the others find: the latest ones


@dataclass(frozen=True, slots=True, eq=False)
class SiblingAnswer(Source):
    """One of several answers to a prompt, to be passed in ``extra_stores``. Thread-safe."""

    own: StoreRing  # its text
    others: Sequence[StoreRing]  # the texts that it is drafted from

    def written(self) -> SharedRequest:
        """Where the answer's text is added."""
        return SharedRequest(StoreStream(self.own), "outputs", True)

    def read(self, limit: int) -> list[SharedRequest]:
        """What the answer is drafted from; ``limit`` is the bound of the token ids."""
        return [SharedRequest(StoreStream(ring, limit), "none", True) for ring in self.others]


def sibling_answers(count: int, tokens: int) -> list[SiblingAnswer]:
    """``count`` answers of at most ``tokens`` tokens, at most 29 bytes for each token."""
    capacity = min(max(tokens, LEAST_CODES), MAX_ANSWER_TOKENS) + 1  # and its border
    rings = [StoreRing(capacity) for _ in range(count)]
    return [
        SiblingAnswer(ring, (rings[index + 1 :] + rings[:index])[:MAX_ANSWERS_READ])
        for index, ring in enumerate(rings)
    ]


DEFAULT_BYTES = 64 << 20
MAX_BYTES = 1 << 40
DEFAULT_NAMESPACES = 8  # number of namespaces of the default size that fit
WRITES = ("outputs", "all", "none")


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """The size and usefulness of a namespace."""

    tokens: int = 0  # tokens that can be found now
    added: int = 0  # tokens added in total
    look_ups: int = 0  # look-ups for drafts
    hits: int = 0  # look-ups that found a place
    accepted: int = 0  # drafted tokens from this namespace that the target accepted
    bytes: int = 0  # memory in bytes

    @classmethod
    def of(cls, ring: StoreRing) -> StoreStatistics:
        """Those of a namespace's text."""
        return cls(*ring.counts(), bytes=ring.sizeof())


class SharedStore(NotCopied):
    """Text of requests, in memory, for later requests that name the same namespace.

    Nothing is shared by default: a request reads and writes only the namespaces that it names.
    A namespace allocates all of its memory when it is first used, and then overwrites its oldest
    text. When a new one does not fit, the least recently used one is dropped. Any number of threads
    may use a store. Drafts from it change how fast a text is generated, never the text. However,
    request times reveal something about earlier text in the same namespace.

    Args:
        max_bytes: limit for the text of all namespaces together, 4096..2**40. Each namespace has up
            to 512 bytes in addition, of which ``sizeof`` counts about 200, and its name.
        namespace_bytes: size of each namespace's text, 4096..max_bytes and at most 58 * 2**30, at
            29 bytes per token; None: an eighth of max_bytes.
        write: what requests add: "outputs"; "all": outputs and prompts; "none": nothing, only
            ``Namespace.add`` adds text.
        live: whether requests add text while they run, 64 tokens at a time. Otherwise they add it
            when they end, and a request that fails or is aborted adds nothing.
        tokenizer: its fingerprint is stored; None: not known, and not checked.
        sync: address of a Redis server over which processes share their namespaces, for example
            "rediss://user:password@host:6379/0?salt=fleet"; see ``redis.Address``. Text
            then leaves the process. It needs ``tokenizer``. None: text stays in this process.

    Example:
        >>> import numpy as np
        >>> store = SharedStore()
        >>> store["team-a"].add(np.array([5, 6, 7, 8], np.int32))
        >>> store["team-a"].statistics().tokens
        4
    """

    def __init__(
        self,
        max_bytes: int = DEFAULT_BYTES,
        *,
        namespace_bytes: int | None = None,
        write: str = "outputs",
        live: bool = True,
        tokenizer: Any = None,
        sync: str | RedisSync | None = None,
    ) -> None:
        self.max_bytes = check_int("max_bytes", max_bytes, MIN_NAMESPACE_BYTES, MAX_BYTES)
        most = min(self.max_bytes, MAX_NAMESPACE_BYTES)
        if namespace_bytes is None:
            namespace_bytes = min(max(max_bytes // DEFAULT_NAMESPACES, MIN_NAMESPACE_BYTES), most)
        self.namespace_bytes = check_int(
            "namespace_bytes", namespace_bytes, MIN_NAMESPACE_BYTES, most
        )
        check_choice("write", write, WRITES)
        self.write = write
        self.live = check_bool("live", live)
        self.tokenizer = "" if tokenizer is None else fingerprint(tokenizer)
        self.sync: RedisSync | None = None
        if sync is not None:
            from ngramspec.stores.redis import RedisSync

            self.sync = sync if isinstance(sync, RedisSync) else RedisSync(sync, tokenizer)
        self._lock = threading.Lock()  # protects _namespaces
        # Each namespace's text and conversations, the least recently used first.
        self._namespaces: OrderedDict[str, tuple[StoreRing, Conversations]] = OrderedDict()

    def __getitem__(self, name: str) -> Namespace:
        """A namespace, to be passed in ``stores=``; memory is allocated when it is first used."""
        return Namespace(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self._namespaces

    def __iter__(self) -> Iterator[str]:
        """Names of the namespaces that have memory, least recently used first."""
        return iter(self.rings())

    def __len__(self) -> int:
        """Number of namespaces that have memory."""
        return len(self._namespaces)

    def ring(self, name: str) -> StoreRing:
        """The text of a namespace, allocated if necessary; marks it as most recently used."""
        return self.opened(name)[0]

    def opened(self, name: str) -> tuple[StoreRing, Conversations]:
        """The text of a namespace, as ``ring``, and its conversations."""
        with self._lock:
            if name not in self._namespaces:
                self._make(name)
            self._namespaces.move_to_end(name)
            return self._namespaces[name]

    def _make(self, name: str) -> None:
        """Allocate a namespace and drop the least recently used ones. Under the lock."""
        while (len(self._namespaces) + 1) * self.namespace_bytes > self.max_bytes:
            self._free(next(iter(self._namespaces)))
        conversations = Conversations(self.namespace_bytes)
        if not conversations.max_kept:
            conversations = NO_CONVERSATIONS
        ring = StoreRing((self.namespace_bytes - conversations.bytes) // BYTES_PER_CODE)
        self._namespaces[name] = ring, conversations
        if self.sync is not None:
            self.sync.follow(name, ring, conversations)

    def _free(self, name: str) -> None:
        """Free a namespace's memory, if it has any. Under the lock."""
        if self.sync is not None:
            self.sync.unfollow(name)
        if name in self._namespaces:
            self._namespaces.pop(name)[0].close()

    def drop(self, name: str) -> None:
        """Free a namespace's memory; requests that still use it find nothing.

        With ``sync``, its text is deleted in Redis and in the other processes, too. A KeyError is
        raised if there is no namespace of that name.
        """
        with self._lock:
            if name not in self._namespaces and self.sync is None:
                raise KeyError(f"there is no namespace {name!r}")
            self._free(name)
            if self.sync is not None:
                self.sync.clear(name)

    def clear(self) -> None:
        """Remove the text of all namespaces and erase it from memory; see ``drop`` for ``sync``."""
        for name in self.rings():
            self[name].clear()

    def rings(self) -> dict[str, StoreRing]:
        """The texts of all namespaces, least recently used first."""
        with self._lock:
            return {name: ring for name, (ring, _) in self._namespaces.items()}

    def statistics(self) -> dict[str, StoreStatistics]:
        """The statistics of each namespace that has memory."""
        return {name: StoreStatistics.of(ring) for name, ring in self.rings().items()}

    def save(self, path: str | PathLike[str]) -> None:
        """Write all namespaces to a file, replacing any existing one.

        A crash at any moment leaves the old file or the new one. Requests may run meanwhile.

        Raises:
            OSError: the file cannot be written.
            ImportError: xxhash is not installed.
        """
        known = bytes.fromhex(self.tokenizer) if self.tokenizer else bytes(32)
        fields = (self.namespace_bytes, WRITES.index(self.write), int(self.live), known)
        names: list[bytes] = []
        text: list[Int32] = []
        for name, ring in self.rings().items():
            pieces = list(pieces_of(ring))  # each takes the lock for a bounded number of codes
            entry = [name, sum(map(len, pieces)), *ring.counts()[1:]]
            names.append(json.dumps(entry).encode() + b"\n")
            text += [piece.astype("<i4", copy=False) for piece in pieces]
        write_file(Path(path), KIND, fields, [text, names])

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        max_bytes: int = DEFAULT_BYTES,
        *,
        namespace_bytes: int | None = None,
    ) -> SharedStore:
        """Load a store that ``save`` wrote, with the settings that it had.

        Args:
            path: the file.
            max_bytes: limit for all namespaces together; the file does not decide this. Text that
                does not fit is left out, the oldest first, which is logged. A file with more than
                ``max_bytes`` bytes of text or of names is refused.
            namespace_bytes: size of each namespace; None: as saved, but at most max_bytes.

        Raises:
            OSError: the file cannot be read, or is not a regular file.
            StoreFileError: it is not a shared store, is broken, or is too large; the message says
                which.
            ImportError: xxhash is not installed.
        """
        max_bytes = check_int("max_bytes", max_bytes, MIN_NAMESPACE_BYTES, MAX_BYTES)
        saved = SavedStore(path, max_bytes)
        if namespace_bytes is None:
            namespace_bytes = max(min(saved.namespace_bytes, max_bytes), MIN_NAMESPACE_BYTES)
        live, write = bool(saved.live), WRITES[saved.write]
        store = cls(max_bytes, namespace_bytes=namespace_bytes, write=write, live=live)
        store.tokenizer = saved.tokenizer
        saved.restore(store.ring, max_bytes // namespace_bytes)
        return store

    def sizeof(self) -> int:
        """Bytes allocated."""
        return sum(ring.sizeof() for ring in self.rings().values())

    def check_integrity(self) -> None:
        """Raise an AssertionError if an invariant is broken. No request may run meanwhile."""
        rings = self.rings()
        for ring in rings.values():
            ring.check_integrity()
        assert len(rings) * self.namespace_bytes <= self.max_bytes, "too many namespaces"

    def __repr__(self) -> str:
        return f"SharedStore(max_bytes={self.max_bytes}, {len(self)} namespaces)"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a SharedStore cannot be pickled; save it to a file")


class Namespace(Source):
    """One namespace of a SharedStore. Only requests that name it read or write it.

    ``settings`` are those from which its store was also made; None: the store existed before.
    """

    def __init__(self, store: SharedStore, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a namespace's name must be a string, got {type(name).__name__}")
        if not 1 <= len(name) <= MAX_NAME_LENGTH:
            raise ValueError(f"a namespace's name must have 1..{MAX_NAME_LENGTH} characters")
        self.store, self.name = store, name
        self.settings: dict[str, Any] | None = None

    def request(self, limit: int = 0, session: str | None = None) -> SharedRequest:
        """The access of one request, which reads, and writes according to the store's settings."""
        store = self.store
        ring, conversations = store.opened(self.name)
        stream = StoreStream(ring, limit)
        return SharedRequest(
            stream, store.write, store.live, self._outlet(ring), conversations, session
        )

    def _outlet(self, ring: StoreRing) -> Outlet | None:
        return None if self.store.sync is None else self.store.sync.outlet(self.name, ring)

    def description(self) -> dict[str, Any]:
        """The settings from which its store was made; a ValueError if it exists only in memory."""
        if self.settings is None:
            raise ValueError(
                f"{self!r} lies in memory and cannot be kept; leave it out of stores=, and pass it"
                " to the calls as extra_stores="
            )
        if urlsplit(self.settings.get("sync", "")).password is not None:
            raise ValueError(
                "sync has a password, which is not written to a file; leave it out of stores="
            )
        return self.settings

    @property
    def index(self) -> StoreStream:
        """Look-ups for one sequence, without adding text."""
        return StoreStream(self.store.ring(self.name))

    def add(self, tokens: Int32) -> None:
        """Add a document, int32 (n,), regardless of the store's ``write`` setting.

        Raises:
            TypeError, ValueError: not token ids; nothing was added.
        """
        ring = self.store.ring(self.name)
        document = SharedRequest(StoreStream(ring), "outputs", True, self._outlet(ring))
        document.append(tokens)
        document.finish()

    def clear(self) -> None:
        """Remove the text and erase it from memory; see ``SharedStore.drop`` for ``sync``."""
        known = self.store.opened(self.name)[::-1] if self.name in self.store else ()
        if self.store.sync is not None:
            self.store.sync.clear(self.name, *known)
            return
        for part in known:
            part.clear()

    def statistics(self) -> StoreStatistics:
        """The size and usefulness of the namespace."""
        ring = self.store.rings().get(self.name)
        return StoreStatistics() if ring is None else StoreStatistics.of(ring)

    @property
    def tokenizer(self) -> str:
        """The store's."""
        return self.store.tokenizer

    def largest_id(self) -> int:
        """The largest token id that it ever held."""
        ring = self.store.rings().get(self.name)
        return -1 if ring is None else ring.largest_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Namespace) and (self.store, self.name) == (other.store, other.name)

    def __hash__(self) -> int:
        return hash((id(self.store), self.name))

    def __repr__(self) -> str:
        return f"SharedStore()[{self.name!r}]"


def made_namespace(settings: Mapping[str, Any], tokenizer: Any = None) -> Namespace:
    """A namespace of a new store, from SharedStore's arguments and ``namespace``, its name.

    With ``path``, the store is loaded from a file of ``SharedStore.save``, which is not written
    again. Only a store with ``sync`` needs the model's tokenizer.
    """
    known: tuple[str, ...] = ("namespace", "max_bytes", "namespace_bytes")
    known = (*known, "path") if "path" in settings else (*known, "write", "live", "sync")
    if settings.keys() - set(known) or "namespace" not in settings:
        raise ValueError(
            f"a shared store's settings must have 'namespace', and may have {', '.join(known[1:])};"
            f" got {', '.join(map(repr, settings))}"
        )
    rest = {name: value for name, value in settings.items() if name != "namespace"}
    if "path" in rest:
        if not isinstance(rest["path"], str):
            raise TypeError(f"path must be a string, got {rest['path']!r}")
        store = SharedStore.load(**rest)
    else:
        store = SharedStore(**rest, tokenizer=tokenizer if "sync" in rest else None)
    namespace = store[settings["namespace"]]
    namespace.settings = dict(settings)
    return namespace


@dataclass(frozen=True, slots=True)
class SavedEntry:
    """A namespace in a file: its name, the number of its codes, and its counts."""

    name: str
    codes: int
    counts: tuple[int, ...]


def pieces_of(ring: StoreRing) -> Iterator[Int32]:
    """The codes that a namespace has now, in pieces, without those that are overwritten meanwhile.

    Codes that are added meanwhile are not copied, so the number of pieces is bounded.
    """
    at, end = 0, ring.written
    while at < end:
        begin, codes = ring.codes(at)
        if 0 < at < begin < end:  # the codes in between were overwritten meanwhile
            yield np.array([BORDER], np.int32)
        codes = codes[: max(end - begin, 0)]
        if not len(codes):
            return
        yield codes
        at = begin + len(codes)


class SavedStore:
    """The content of a shared store's file, read and checked, except the names and codes.

    Sections of more than ``max_bytes`` bytes are refused before they are read. A file has a
    ``MEMORY_PER_FILE_BYTE``-th of the bytes in memory.
    """

    def __init__(self, path: str | PathLike[str], max_bytes: int) -> None:
        self._path, self._max_bytes = Path(path), max_bytes
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            fields, sections = read_header(self._path, KIND, file.read(KIND.header_size), size)
            self.namespace_bytes, self.write, self.live, known = fields  # see SharedStore.save
            self.tokenizer = known.hex() if any(known) else ""
            if self.namespace_bytes < 1 or self.write > 2 or self.live > 1:
                settings = ", ".join(map(str, fields[:3]))
                raise StoreFileError(f"{path} has broken settings: {settings}")
            for name, section in zip(KIND.sections, sections, strict=True):
                if section.size > max_bytes:
                    raise StoreFileError(
                        f"{path}: section {name} must have at most max_bytes={max_bytes} bytes,"
                        f" got {section.size}; pass a larger max_bytes"
                    )
            text, self._names = (read_section(file, section) for section in sections)
        if len(text) % 4:
            raise StoreFileError(f"{path}: section text has {len(text)} bytes, no multiple of 4")
        check_checksums(self._path, KIND, sections, (text, self._names))
        self._codes = np.frombuffer(text, "<i4").astype(np.int32, copy=False)

    def restore(self, ring_of: Callable[[str], StoreRing], limit: int) -> None:
        """Add the most recently used namespaces, at most ``limit``, to a store.

        Text that does not fit is left out, the oldest first, which is logged.
        """
        if self._codes.min(initial=0) < 0:
            raise StoreFileError(f"{self._path}: section text is broken: a negative token id")
        left_out = int(np.count_nonzero(self._codes != BORDER))
        entries = self._last_entries(limit)
        end = len(self._codes) - sum(entry.codes for entry in entries)
        for entry in entries:
            begin, end = end, end + entry.codes
            ring = ring_of(entry.name)
            stream = StoreStream(ring)
            stream.append_documents(self._codes[begin:end])
            stream.finish()
            ring.count_on(entry.counts)
            left_out -= StoreStatistics.of(ring).tokens
        if left_out:
            logger.warning(
                "%s: the oldest text does not fit into the store; tokens left out: %d",
                self._path,
                left_out,
            )

    def _last_entries(self, limit: int) -> Sequence[SavedEntry]:
        """The last entries, at most ``limit``."""
        entries: deque[SavedEntry] = deque(maxlen=limit)
        max_known = MEMORY_PER_FILE_BYTE * self._max_bytes // MIN_NAMESPACE_BYTES
        codes, lines = 0, io.BytesIO(self._names)
        try:
            for count, line in enumerate(iter(partial(lines.readline, MAX_LINE_BYTES), b""), 1):
                if count > max_known:
                    raise StoreFileError(
                        f"{self._path} must have at most {max_known} namespaces with max_bytes="
                        f"{self._max_bytes}, got more; pass a larger max_bytes"
                    )
                if not line.endswith(b"\n"):
                    raise ValueError(f"a line must have at most {MAX_LINE_BYTES} bytes, and an end")
                entries.append(_checked_entry(json.loads(line)))
                codes += entries[-1].codes
            if len({entry.name for entry in entries}) < len(entries):
                raise ValueError("it has a name twice")
            if codes != len(self._codes):
                raise ValueError(f"it has {codes} codes, section text has {len(self._codes)}")
        except StoreFileError:
            raise
        except (ValueError, RecursionError) as error:
            raise StoreFileError(f"{self._path}: section names is broken: {error}") from error
        return entries


def _checked_entry(element: Any) -> SavedEntry:
    """A namespace from its element of the section names; a ValueError if it is none."""
    if not isinstance(element, list) or len(element) != 2 + COUNTS_PER_ENTRY:
        raise ValueError("an element is no namespace")
    name, *numbers = element
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_LENGTH:
        raise ValueError(f"a name must be a string of 1..{MAX_NAME_LENGTH} characters")
    if not all(type(each) is int and 0 <= each < MAX_COUNT for each in numbers):
        raise ValueError(f"counts must be integers in 0..{MAX_COUNT - 1}")
    return SavedEntry(name, numbers[0], tuple(numbers[1:]))
