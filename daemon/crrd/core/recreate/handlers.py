"""Reads handlers, in the form of Kubernetes' lifecycle handlers: a command, or an HTTP request.

Nothing here raises for invalid input. An invalid handler becomes an invalid hook with the reason.
"""

from collections.abc import Mapping
from typing import TypeGuard

from crrd.core.recreate.observation import Hook, HookKind


def read_command(command: object, what: str) -> Hook:
    """Return a hook that runs a command, given as a list of strings. `what` names it in errors."""
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        return invalid(f"{what} is not a list of strings")
    return Hook(kind=HookKind.EXEC, command=tuple(command))


def read_http(body: Mapping[str, object], what: str) -> Hook:
    """Return a hook that sends an HTTP request, given as Kubernetes' HTTPGetAction. `what` names it in errors."""
    port, headers = body.get("port"), body.get("httpHeaders") or []
    path, host, scheme = body.get("path") or "/", body.get("host") or "", body.get("scheme") or ""
    if not is_port(port) and (not isinstance(port, str) or not port):
        return invalid(f"{what}.port is neither a port number nor a name")
    if not isinstance(path, str) or not isinstance(host, str) or not isinstance(scheme, str):
        return invalid(f"{what}.path, host or scheme is not a string")
    if scheme.lower() not in ("", "http", "https"):
        return invalid(f"{what}.scheme is neither HTTP nor HTTPS")
    if not isinstance(headers, list) or not all(_is_header(header) for header in headers):
        return invalid(f"{what}.httpHeaders are not a list of names and values")
    return Hook(
        kind=HookKind.HTTP_GET,
        host=host,
        port=port,
        path=path,
        scheme=scheme.lower() or "http",
        headers=tuple((header["name"], header.get("value", "")) for header in headers),
    )


def is_port(value: object) -> TypeGuard[int]:
    """Whether a value is the number of a port."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 65536


def invalid(error: str) -> Hook:
    """Return a hook that cannot run."""
    return Hook(kind=HookKind.INVALID, error=error)


def _is_header(header: object) -> bool:
    if not isinstance(header, dict):
        return False
    name, value = header.get("name"), header.get("value", "")
    return isinstance(name, str) and name != "" and isinstance(value, str)
