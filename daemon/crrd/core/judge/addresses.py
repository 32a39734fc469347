"""Addresses of metrics servers, and which of them the manager may ask.

One strict grammar reads what users write, what the manager's allow-list has, and what the client sends to. What it does
not know is refused, so that no other parser (of the client, a proxy, the resolver) can take it for another address.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from crrd.lib.jsonfields import shown

HOST = re.compile(
    r"(?=.{1,253}\Z)(\*\.)?([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\.)*"
    r"(?!([0-9]+|0x[0-9a-f]*)\Z)[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
    re.ASCII | re.IGNORECASE,
)
"""RFC 1123, in either case; `*.` stands for one label (RFC 6125), or for many in an allow-list.

Resolvers take a last label that is a number for a part of an address, also in old forms such as 0x7f000001.
"""
_URL = re.compile(
    r"(https?)://(\[[0-9a-f:.]+\]|[^][/:]+)(?::([1-9][0-9]{0,4}))?((?:/[-\w.~:@+=,]+)*)/?", re.ASCII | re.IGNORECASE
)
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server, or an entry of the allow-list."""

    scheme: str
    host: str  # In lower case, IPv6 without brackets; `*.domain` in the allow-list stands for all names below it
    port: int
    path: str  # "" or /prefix, without a slash at the end

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"

    def covers(self, other: "Address") -> bool:
        """Whether this entry of the allow-list allows the address."""
        below = self.host.startswith("*.") and other.host.endswith(self.host[1:])
        inside = other.path == self.path or other.path.startswith(f"{self.path}/")
        return (self.scheme, self.port) == (other.scheme, other.port) and (below or other.host == self.host) and inside


def read_address(given: str, *, wildcard: bool = False) -> Address:
    """Parse an address; `wildcard`: an entry of the allow-list. The ValueError completes the sentence "... must be"."""
    found = _URL.fullmatch(given) if given.isascii() else None  # some other letters are ASCII in lower case
    host = found and _host(found[2].lower(), wildcard=wildcard)
    port = int(found[3] or _PORTS[found[1].lower()]) if found else 0
    if not found or not host or port > 65535 or {".", ".."} & {*found[4].split("/")}:
        others = " (or *.DOMAIN)" if wildcard else ""
        raise ValueError(
            f"an address like https://prometheus.example:9090/prefix: http or https, a DNS name in ASCII{others} "
            "without a dot at its end or an IP address, no credentials, query, fragment or %, no . or .. in the path"
        )
    return Address(found[1].lower(), host, port, found[4])


def _host(given: str, *, wildcard: bool) -> str:
    """Return the name or the IP address in its usual form, "" if it is neither."""
    if HOST.fullmatch(given):
        return given if wildcard or given[0] != "*" else ""
    try:
        return str(IPv6Address(given[1:-1]) if given[0] == "[" else IPv4Address(given))
    except ValueError:
        return ""


def allowed(address: str, allow: Sequence[str]) -> str:
    """Return "" if an entry of the allow-list covers the address, else why the manager does not ask it.

    An entry is `scheme://host[:port][/prefix]`, the host also `*.domain`. An empty list allows nothing.
    """
    try:
        asked = read_address(address)
    except ValueError as error:
        return f"the address {shown(address)} must be {error}"
    if any(read_address(each, wildcard=True).covers(asked) for each in allow):
        return ""
    return f"the manager may not ask {asked}: an administrator can allow it with the manager's flag --judge-address"
