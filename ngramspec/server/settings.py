"""Settings of a server."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ngramspec.errors import check_choice, check_int
from ngramspec.server.shared import SharedText
from ngramspec.stores import Corpus

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on one request and on all requests together. The defaults are not tuned.

    Attributes:
        body: bytes of a request's body.
        context: tokens of a prompt and its answer; None: the model's number of positions.
        answers: answers (prompts times ``n``) of one request.
        active: generations that take turns; others wait.
        waiting: generations that wait; further requests are refused.
        pool: bytes of all kept key-value caches.
        pool_of_key: bytes of the kept key-value caches of one API key.
        chunk: prompt tokens of one forward while several requests take turns; four times this
            number while there is only one. A cancelled request stops after the current chunk.
        grammar_seconds: time limit for compiling one grammar, in seconds.
    """

    body: int = 4 * MIB
    context: int | None = None
    answers: int = 16
    active: int = 8
    waiting: int = 64
    pool: int = 2048 * MIB
    pool_of_key: int = 1024 * MIB
    chunk: int = 128
    grammar_seconds: float = 10.0

    def __post_init__(self) -> None:
        for name in ("body", "answers", "active", "waiting", "chunk"):
            check_int(name, getattr(self, name), 1)
        for name in ("pool", "pool_of_key"):
            check_int(name, getattr(self, name), 0)
        if not self.grammar_seconds > 0:
            raise ValueError(f"grammar_seconds must be > 0, got {self.grammar_seconds}")
        if self.context is not None:
            check_int("context", self.context, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        name: the model's name for clients.
        keys: API keys by the name of their user; empty: no key is required.
        corpora: corpora that requests draft from, by name.
        shared: the stores that requests read and add to; None: requests share no text.
        drafter: see ``Speculator``.
        max_tokens: default limit on an answer's tokens.
        allowed_hosts: names and addresses that requests may have as their Host, in addition to
            localhost and loopback addresses; see ``AllowedHosts``.
        unknown_fields: "refuse" answers 400, as OpenAI's API does, because a misspelled field would
            silently change the answer; "warn" names the field in the header X-Ignored-Fields.
    """

    name: str
    keys: Mapping[str, str] = field(default_factory=dict)
    corpora: Mapping[str, Corpus] = field(default_factory=dict)
    shared: SharedText | None = None
    drafter: str = "auto"
    limits: Limits = field(default_factory=Limits)
    max_tokens: int = 256
    allowed_hosts: Collection[str] = ()
    unknown_fields: Literal["refuse", "warn"] = "refuse"

    def __post_init__(self) -> None:
        check_int("max_tokens", self.max_tokens, 1)
        check_choice("unknown_fields", self.unknown_fields, ("refuse", "warn"))
        for user, key in self.keys.items():
            if not user or "/" in user:  # namespaces have the form USER/NAME
                raise ValueError(f"a user must have a name without slashes, got {user!r}")
            if not key or not key.isascii() or key != key.strip():
                raise ValueError(f"the key of {user!r} must be ASCII text without spaces around it")


def check_host(host: str, keys: Mapping[str, str]) -> None:
    """Raise ValueError if other machines could use the server without a key."""
    if host not in LOCAL_HOSTS and not keys:
        raise ValueError(
            f"--host {host} lets other machines in: give --api-key, or keep --host 127.0.0.1"
        )
