"""API keys: who asks, and which text is theirs."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from ngramspec.server.errors import ApiError

ANYONE = ""  # the user where no keys are asked for
NOBODY = "anyone"  # the name of this user's namespace


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request.

    Attributes:
        user: the name of the API key. Caches and shared text belong to it.
        session: what the client named with X-Session, or None: a newer request of the same session
            ends the older ones.
    """

    user: str
    session: str | None = None

    def namespace(self, name: str | None) -> str:
        """The namespace of this client's shared text, its own unless it names one inside it."""
        own = self.user or NOBODY
        return f"{own}/{name}" if name else own


def authenticate(keys: Mapping[str, str], header: str | None) -> str:
    """The user whose key a request brings.

    All keys are compared, each in constant time, so that the time tells nothing of a key.

    Args:
        keys: by user; empty: nobody needs one.
        header: the request's Authorization, or None.

    Raises:
        ApiError: the key is missing or wrong.
    """
    if not keys:
        return ANYONE
    scheme, _, given = (header or "").partition(" ")
    found = None
    for user, key in keys.items():
        if hmac.compare_digest(key.encode(), given.strip().encode()):
            found = user
    if found is None or scheme.lower() != "bearer":
        raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
    return found
