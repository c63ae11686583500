"""Text that a user's requests share: the server's recent answers, to draft from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ngramspec.server.auth import ANYONE_NAMESPACE
from ngramspec.stores import SharedStore


class SharedText:
    """A SharedStore for each user, so that users do not displace each other's text.

    ``max_bytes`` is the size of all stores together; a ValueError is raised if it is too little.
    Without ``users``, one store serves all requests.
    """

    def __init__(self, max_bytes: int, users: Iterable[str], tokenizer: Any) -> None:
        names = list(users) or [ANYONE_NAMESPACE]
        each = max_bytes // len(names)
        self._stores = {name: SharedStore(each, tokenizer=tokenizer) for name in names}

    def __getitem__(self, namespace: str) -> Any:
        """The store of the namespace USER or USER/NAME, to be passed as ``stores``."""
        return self._stores[namespace.partition("/")[0]][namespace]
