"""What a server is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ngramspec.errors import check_int
from ngramspec.stores import Corpus

LOCAL = ("127.0.0.1", "localhost", "::1")
MIB = 1 << 20


class Shared(Protocol):
    """Stores by namespace, made when they are first named."""

    def __getitem__(self, namespace: str) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request and all of them together may take.

    Attributes:
        body: bytes of a request's body.
        context: tokens of a prompt and its answer; None: as many as the model has positions.
        answers: most answers (prompts times ``n``) of one request.
        active: generations that take turns; others wait.
        waiting: generations that wait; a request for more is refused.
        pool: bytes of all kept key-value caches.
        pool_of_key: bytes of those of one API key.
        chunk: most prompt tokens of one forward while several requests take turns; four times as
            many while there is one. A cancelled request stops after it.
    """

    body: int = 4 * MIB
    context: int | None = None
    answers: int = 16
    active: int = 8
    waiting: int = 64
    pool: int = 2048 * MIB
    pool_of_key: int = 1024 * MIB
    chunk: int = 128

    def __post_init__(self) -> None:
        for name in ("body", "answers", "active", "waiting", "chunk"):
            check_int(name, getattr(self, name), 1)
        for name in ("pool", "pool_of_key"):
            check_int(name, getattr(self, name), 0)
        if self.context is not None:
            check_int("context", self.context, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What a server is started with.

    Attributes:
        name: of the model, as clients name it.
        keys: API keys by the name of their user; empty: no key is asked for.
        corpora: stores that requests draft from, by name.
        shared: ``shared[namespace]`` is a store that requests of this namespace read and add to;
            None: requests share no text.
        drafter: see ``Speculator``.
        limits: of requests.
        max_tokens: of an answer whose request does not say.
    """

    name: str
    keys: Mapping[str, str] = field(default_factory=dict)
    corpora: Mapping[str, Corpus] = field(default_factory=dict)
    shared: Shared | None = None
    drafter: str = "auto"
    limits: Limits = field(default_factory=Limits)
    max_tokens: int = 256

    def __post_init__(self) -> None:
        check_int("max_tokens", self.max_tokens, 1)
        for user, key in self.keys.items():
            if not user or "/" in user:  # a namespace is USER/NAME
                raise ValueError(f"a user must have a name without slashes, got {user!r}")
            if not key or not key.isascii() or key != key.strip():
                raise ValueError(f"the key of {user!r} must be ASCII text without spaces around it")


def check_host(host: str, keys: Mapping[str, str]) -> None:
    """Raise a ValueError if other machines could use the server without a key."""
    if host not in LOCAL and not keys:
        raise ValueError(
            f"--host {host} lets other machines in: give --api-key, or keep --host 127.0.0.1"
        )
