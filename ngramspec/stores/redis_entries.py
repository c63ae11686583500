"""What processes exchange over Redis: the address's options, the keys, and the entries."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import numpy as np

from ngramspec.draft import Int32
from ngramspec.errors import check_int
from ngramspec.stores.base import fingerprint, vocabulary_size

SCHEMES = ("redis", "rediss", "unix")
FORMAT = 1  # of keys and entries
MAX_ENTRY_TOKENS = 4096
MAX_PRODUCER_BYTES = 64  # of a process's identity; a process keeps those of many others
MAX_ENTRIES = 1 << 24
MAX_AGE_SECONDS = 10 * 365 * 86400
OPTIONS = {  # name: default, smallest, largest
    "max_entries": (10_000, 1, MAX_ENTRIES),
    "max_age": (7 * 86400, 1, MAX_AGE_SECONDS),
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


class Keys:
    """The keys of namespaces, equal for processes with equal salts, tokenizers and vocabularies."""

    def __init__(self, salt: str, tokenizer: Any) -> None:
        self.vocabulary = vocabulary_size(tokenizer)
        self._salt = salt.encode()
        self._tokenizer = fingerprint(tokenizer)

    def __getitem__(self, namespace: str) -> bytes:
        name = hmac.new(self._salt, namespace.encode("utf-8", "surrogatepass"), hashlib.sha256)
        return f"ngramspec:{FORMAT}:{name.hexdigest()}:{self._tokenizer}:{self.vocabulary}".encode()


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a stream: a piece of a document, or the deletion of all earlier text."""

    producer: bytes  # random, identifies a process
    number: int  # rises with each of a producer's entries in a namespace
    cleared: EntryId  # the last deletion that the producer knew
    document: int  # the producer's number of the document
    tokens: Int32 | None  # (n,), n at most MAX_ENTRY_TOKENS; None: the namespace was deleted
    end: bool  # whether the document ends here

    def fields(self) -> dict[bytes, bytes]:
        """The fields in Redis."""
        numbers = (self.number, *self.cleared, self.document, int(self.end))
        fields = {b"p": self.producer, b"n": b" ".join(b"%d" % each for each in numbers)}
        if self.tokens is not None:
            fields[b"t"] = self.tokens.astype("<i4").tobytes()
        return fields

    @classmethod
    def read(cls, fields: dict[bytes, bytes], vocabulary: int) -> Entry:
        """The entry with these fields.

        A ValueError or KeyError is raised if they are not those of an entry, or a token id is not
        in the vocabulary.
        """
        number, milliseconds, order, document, end = map(int, fields[b"n"].split(b" "))
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
        cleared = (milliseconds, order)
        return cls(producer, number, cleared, document, tokens, bool(end))


def entry_id(given: bytes) -> EntryId:
    """The number pair of an id such as b"1700000000000-0"."""
    milliseconds, _, order = given.partition(b"-")
    return int(milliseconds), int(order)


def id_bytes(entry: EntryId) -> bytes:
    """The id of a number pair."""
    return b"%d-%d" % entry
