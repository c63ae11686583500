"""Settings of a server, its clients, and the text that their requests share."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ngramspec.drafters.registry import build_drafter
from ngramspec.errors import check_choice, check_int
from ngramspec.stores import Corpus, SharedStore
from ngramspec.stores.redis import RedisSync

ANYONE = ""  # the only user of a server without keys
ANYONE_NAMESPACE = "anyone"
MAX_USER = 55  # characters: a namespace USER/NAME has at most 256, 200 of them in NAME
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request, and when: the name of the API key, and the header X-Session."""

    user: str
    session: str | None = None
    arrived: float = field(default_factory=time.perf_counter, compare=False)

    def namespace(self, name: str | None) -> str:
        """The client's namespace of shared text, or the named one inside it."""
        own = self.user or ANYONE_NAMESPACE
        return f"{own}/{name}" if name else own


class SharedText:
    """A SharedStore for each user, so that users do not displace each other's text."""

    def __init__(
        self, max_bytes: int, users: Iterable[str], tokenizer: Any, sync: str | None = None
    ) -> None:
        names = list(users) or [ANYONE_NAMESPACE]
        each = max_bytes // len(names)
        shared = None if sync is None else RedisSync(sync, tokenizer)
        self._stores = {name: SharedStore(each, tokenizer=tokenizer, sync=shared) for name in names}

    def __getitem__(self, namespace: str) -> Any:
        """The store of the namespace USER or USER/NAME, to be passed as ``stores``."""
        return self._stores[namespace.partition("/")[0]][namespace]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on one request and on all requests together."""

    body: int = 4 * MIB  # bytes of a request's body
    context: int | None = None  # tokens of prompt and answer; None: the model's positions
    answers: int = 16  # answers (prompts times ``n``) of one request
    active: int = 8  # generations that take turns; of each key, one completion and one chat more
    waiting: int = 64  # generations of one key that wait; its further requests are refused
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
        build_drafter(self.drafter).with_stores(list(self.corpora.values()))  # may refuse them
        for user, key in self.keys.items():
            if not 1 <= len(user) <= MAX_USER or "/" in user:
                raise ValueError(
                    f"a user must have a name of 1..{MAX_USER} characters without slashes, got"
                    f" {user!r}"
                )
            if not key or not key.isascii() or key != key.strip():
                raise ValueError(f"the key of {user!r} must be ASCII text without spaces around it")
