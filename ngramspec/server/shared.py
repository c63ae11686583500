"""Text that a user's requests share: the server's recent answers, to draft from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ngramspec.server.auth import ANYONE_NAMESPACE
from ngramspec.stores import SharedStore
from ngramspec.stores.redis_sync import RedisSync


class SharedText:
    """A SharedStore for each user, so that users do not displace each other's text.

    ``max_bytes`` is the size of all stores together. Without ``users``, one store serves all
    requests. ``sync`` is the address of a Redis server, see SharedStore.

    Raises:
        ValueError: there is too little memory for each user, or ``sync`` is not an address.
        ImportError: ``sync`` is given, and redis-py is not installed.
    """

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
