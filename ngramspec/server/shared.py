"""Text that requests of one user share: what the server answered lately, to draft from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ngramspec.server.auth import NOBODY
from ngramspec.stores import SharedStore


class SharedText:
    """A SharedStore for each user, so that no user's namespaces take the room of another's.

    Args:
        max_bytes: of all of them together.
        users: by name; none: there is one for anyone.
        tokenizer: of the model.

    Raises:
        ValueError: there is too little memory for each user.
    """

    def __init__(self, max_bytes: int, users: Iterable[str], tokenizer: Any) -> None:
        names = list(users) or [NOBODY]
        each = max_bytes // len(names)
        self._stores = {name: SharedStore(each, tokenizer=tokenizer) for name in names}

    def __getitem__(self, namespace: str) -> Any:
        """The namespace USER or USER/NAME, to be passed as ``stores``."""
        return self._stores[namespace.partition("/")[0]][namespace]
