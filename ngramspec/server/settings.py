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
    """Limits on one request and on all requests together. The defaults are not tuned."""

    body: int = 4 * MIB  # bytes of a request's body
    context: int | None = None  # tokens of prompt and answer; None: the model's positions
    answers: int = 16  # answers (prompts times ``n``) of one request
    active: int = 8  # generations that take turns; others wait
    waiting: int = 64  # generations that wait; further requests are refused
    pool: int = 2048 * MIB  # bytes of all kept key-value caches
    pool_of_key: int = 1024 * MIB  # bytes of the kept key-value caches of one API key
    # Prompt tokens of one forward while several requests take turns; four times this number while
    # there is only one. A cancelled request stops after the current chunk.
    chunk: int = 128
    grammar_seconds: float = 10.0  # time limit for compiling one grammar

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
    """Settings of a server."""

    name: str  # the model's name for clients
    keys: Mapping[str, str] = field(default_factory=dict)  # by user; empty: no key is required
    corpora: Mapping[str, Corpus] = field(default_factory=dict)  # that requests draft from, by name
    shared: SharedText | None = None  # that requests read and add to; None: they share no text
    drafter: str = "auto"  # see ``Speculator``
    limits: Limits = field(default_factory=Limits)
    max_tokens: int = 256  # default limit on an answer's tokens
    allowed_hosts: Collection[str] = ()  # in addition to this machine's; see ``AllowedHosts``
    # "refuse" answers 400, as OpenAI's API does, because a misspelled field would silently change
    # the answer; "warn" names the field in the header X-Ignored-Fields.
    unknown_fields: Literal["refuse", "warn"] = "refuse"
    # Whether requests that name another model are answered by this one, or with 404.
    other_models: Literal["answer", "refuse"] = "answer"

    def __post_init__(self) -> None:
        check_int("max_tokens", self.max_tokens, 1)
        check_choice("unknown_fields", self.unknown_fields, ("refuse", "warn"))
        check_choice("other_models", self.other_models, ("answer", "refuse"))
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
