"""The proxy for a server from HTTPS_PROXY, HTTP_PROXY and NO_PROXY, by the rules of kubectl.

Those are of Go's golang.org/x/net/http/httpproxy: each variable may be in lower case, a name matches its subdomains, a
leading dot only these, addresses may have a prefix length, and each may have a port.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from crrd.lib.errors import ConfigurationError

_PORTS = {"http": 80, "https": 443}


def proxy_for(server: str, environ: Mapping[str, str]) -> str:
    """Return the URL of the proxy, or "" for a direct connection. Raises ConfigurationError for one that is no URL."""
    parts = urlsplit(server)
    found = next(_values(environ, f"{parts.scheme}_proxy"), None)
    if found is None or not _is_proxied(parts.hostname or "", parts.port or _PORTS[parts.scheme], environ):
        return ""
    name, value = found
    url = value if "://" in value else f"http://{value}"
    try:
        proxy = urlsplit(url)
        usable = proxy.scheme in _PORTS and bool(proxy.hostname) and proxy.port != 0
    except ValueError:
        usable = False
    if not (usable and url.isascii() and url.isprintable()):  # the message does not repeat it: it may hold a password
        raise ConfigurationError(f"{name} must be a URL that begins with http:// or https://, or HOST:PORT")
    return f"{proxy.scheme}{url[len(proxy.scheme) :]}"  # in lower case


def _values(environ: Mapping[str, str], name: str) -> Iterator[tuple[str, str]]:
    """Yield a variable and its value, the one in upper case first."""
    return ((each, environ[each]) for each in (name.upper(), name) if environ.get(each))


def _is_proxied(host: str, port: int, environ: Mapping[str, str]) -> bool:
    """Whether NO_PROXY lets the host go through a proxy. This machine itself never does."""
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return False
    _, excluded = next(_values(environ, "no_proxy"), ("", ""))
    return not any(_matches(entry.strip().lower(), host, address, port) for entry in excluded.split(","))


def _matches(entry: str, host: str, address: IPv4Address | IPv6Address | None, port: int) -> bool:
    if entry == "*":
        return True
    if re.search(r"/\d+$", entry):
        with suppress(ValueError):
            return address is not None and address in ip_network(entry, strict=False)
    name, given_port = entry, ""
    if found := re.fullmatch(r"\[(.*)\]:(.*)|([^:]*):([^:]*)", entry):
        name, given_port = found[1] or found[3] or "", found[2] or found[4] or ""
    if not name or given_port not in ("", str(port)):
        return False
    own = _address(name)
    if own is not None:
        return own == address
    with suppress(UnicodeError):
        name = name.encode("idna").decode() if not name.isascii() else name
    name = name[1:] if name.startswith("*.") else name
    return host == name or host.endswith(name if name.startswith(".") else f".{name}")


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Return an IP address, None for a name. One that maps IPv4 to IPv6 is that of IPv4, as in Go."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
