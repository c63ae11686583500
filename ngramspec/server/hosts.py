"""The host names under which a server answers, as protection against DNS rebinding.

A page whose name resolves to this machine after it was loaded could read a local server's answers,
because the browser treats both as one origin. The browser sends the page's name as ``Host``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address

ANY_HOST = "*"
HOST_HEADER = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::\d*)?")  # a name or an address, and a port


class AllowedHosts:
    """Decides by a request's ``Host`` whether it is answered.

    Localhost and loopback addresses are always allowed, and additionally ``names``, which are names
    and addresses without ports; any other entry raises a ValueError. An unspecified address
    (``0.0.0.0``) allows every address; ``*`` allows every name.
    """

    def __init__(self, names: Iterable[str]) -> None:
        given = set(names)
        self._any = ANY_HOST in given
        self._hosts: set[str | IPv4Address | IPv6Address] = set()
        for text in given - {ANY_HOST}:
            host = _host_of(text)
            if host is None:
                raise ValueError(
                    f"a host must be a name or an address without a port, got {text!r}"
                )
            self._hosts.add(host)
        self._any_address = any(
            not isinstance(each, str) and each.is_unspecified for each in self._hosts
        )

    def allow(self, header: str) -> bool:
        """Whether a request with this ``Host`` is answered; a missing one is like an empty one."""
        if self._any:
            return True
        found = HOST_HEADER.fullmatch(header)
        host = _host_of(found[1]) if found else None
        if host is None:
            return False
        if isinstance(host, str):
            local = host == "localhost" or host.endswith(".localhost")
        else:
            local = host.is_loopback or self._any_address
        return local or host in self._hosts


def _host_of(text: str) -> str | IPv4Address | IPv6Address | None:
    """A lower-case name or an address; None if the text is neither."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = ip_address(bare)
    except ValueError:
        name = bare.lower().removesuffix(".")
        return name if re.fullmatch(r"[\w-]+(\.[\w-]+)*", name) and bare == text else None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
