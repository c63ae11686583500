"""API keys: authentication, and the namespace of each user's text."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from ngramspec.server.errors import ApiError

ANYONE = ""  # the only user of a server without keys
ANYONE_NAMESPACE = "anyone"


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request: the name of the API key, and the value of the header X-Session.

    Caches and shared text belong to a user. A newer request of a session ends the older ones.
    """

    user: str
    session: str | None = None

    def namespace(self, name: str | None) -> str:
        """The client's namespace of shared text, or the named one inside it."""
        own = self.user or ANYONE_NAMESPACE
        return f"{own}/{name}" if name else own


def authenticate(
    keys: Mapping[str, str], authorization: str | None, x_api_key: str | None = None
) -> str:
    """The user whose key a request has; an ApiError if the key is missing or wrong.

    All keys are compared, each in constant time, so that the duration reveals nothing about a key.
    Without ``keys`` no key is required. X-Api-Key, which llama.cpp's clients send, is used without
    Authorization.
    """
    if not keys:
        return ANYONE
    scheme, given = "bearer", x_api_key or ""
    if authorization is not None:
        scheme, _, given = authorization.partition(" ")
    found = None
    for user, key in keys.items():
        if hmac.compare_digest(key.encode(), given.strip().encode()):
            found = user
    if found is None or scheme.lower() != "bearer":
        raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
    return found
