"""Finds the sockets of the node's container runtimes.

Each candidate is probed, with one of five outcomes: a CRI v1 runtime, missing, no permission, down (temporary, so
discovery waits for it), or not a CRI v1 runtime at all.
"""

import asyncio
import os
import socket
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import structlog

from crrd.cri.client import CriClient
from crrd.lib.backoff import Backoff
from crrd.lib.errors import ConfigurationError, RuntimeCallError, RuntimeUnavailableError
from crrd.lib.plain import one_line

KNOWN_SOCKETS = (  # The runtimes' sockets in common distributions
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/run/k3s/containerd/containerd.sock",  # k3s and rke2
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/dockershim.sock",  # old Bottlerocket: its containerd under another name
)

PROBE_SECONDS = 3.0  # Timeout of one probe; a candidate that times out counts as down
BACKOFF = Backoff(initial=0.5, factor=2.0, maximum=15.0, jitter=0.2)  # Between two probes of a runtime that is down
PATH_BYTES = 107  # Longest path of a unix socket on Linux (sun_path in unix(7), without the final zero byte)

_FRAME_HEADER = 9
_SETTINGS = 4
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0))
"""The first bytes of an HTTP/2 client: the preface and an empty SETTINGS frame (RFC 9113, 3.4). The first frame of the
server must be a SETTINGS frame, too."""

log = structlog.get_logger()


class ProbeOutcome(StrEnum):
    """The outcome of probing a candidate."""

    OK = "a CRI v1 runtime"
    MISSING = "missing"
    PERMISSION = "no permission"
    DOWN = "down"  # Temporary: the socket exists, but the runtime does not answer, or not yet
    NOT_CRI = "not a CRI v1 runtime"


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of probing one endpoint."""

    endpoint: str
    outcome: ProbeOutcome
    reason: str = ""
    runtime: str = ""  # If OK: the runtime's name, the prefix of container IDs
    version: str = ""


def parse(value: str) -> str:
    """Convert a user's value to an endpoint `unix:///path`. Raises ConfigurationError if it is not an absolute path."""
    endpoint = value.strip()
    scheme, separator, rest = endpoint.partition("://")
    path = rest if separator and scheme == "unix" else endpoint.removeprefix("unix:")
    if separator and scheme != "unix":
        raise ConfigurationError(
            f"CRI endpoint {value!r}: only unix sockets are supported, since CRI has no authentication; "
            "give unix:///path/of/the/socket"
        )
    if not path.startswith("/") or "\0" in path:
        raise ConfigurationError(f"CRI endpoint {value!r}: give an absolute path, as in unix:///path/of/the/socket")
    return f"unix://{path}"


def candidates(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the endpoints of the known sockets below `root`, where the node's file system is mounted."""
    return tuple(f"unix://{root / known.lstrip('/')}" for known in KNOWN_SOCKETS)


async def probe(endpoint: str) -> Probe:
    """Probe an endpoint, within PROBE_SECONDS. Every failure is an outcome, not an exception."""
    path = endpoint.removeprefix("unix://")
    try:
        if fault := _unfit(path):
            return Probe(endpoint, ProbeOutcome.NOT_CRI, fault)
        async with asyncio.timeout(PROBE_SECONDS):
            if fault := await _check_http2(path):
                return Probe(endpoint, ProbeOutcome.NOT_CRI, fault)
            return await _ask(endpoint)
    except (FileNotFoundError, NotADirectoryError):
        return Probe(endpoint, ProbeOutcome.MISSING, "socket not found")
    except PermissionError:
        return Probe(endpoint, ProbeOutcome.PERMISSION, _not_allowed(path))
    except TimeoutError:
        reason = f"it accepts connections, but did not answer within {PROBE_SECONDS:g} s"
        return Probe(endpoint, ProbeOutcome.DOWN, reason)
    except OSError as error:
        return Probe(endpoint, ProbeOutcome.DOWN, one_line(error.strerror or str(error)))


async def discover(
    values: Sequence[str] = (),
    root: Path = Path("/"),
    on_down: Callable[[str], None] | None = None,
    *,
    wait_for_socket: bool = False,
) -> tuple[Probe, ...]:
    """Return the node's CRI v1 runtimes, at least one. While a runtime is down, wait, log it and call `on_down`.

    `values` are the user's endpoints; each must be a runtime. Without `values`, take all known sockets below `root`
    that are runtimes. With `wait_for_socket`, wait for missing sockets, too, because a restarting runtime has none.
    Raises ConfigurationError if waiting does not help.
    """
    explicit = bool(values)
    endpoints = tuple(dict.fromkeys(parse(value) for value in values)) or candidates(root)
    delays = BACKOFF.delays()
    while True:
        probes = await asyncio.gather(*(probe(endpoint) for endpoint in _distinct(endpoints)))
        found = tuple(each for each in probes if each.outcome is ProbeOutcome.OK)
        down = [each for each in probes if each.outcome is ProbeOutcome.DOWN]
        broken = [each for each in probes if each.outcome in (ProbeOutcome.PERMISSION, ProbeOutcome.NOT_CRI)]
        missing = [each for each in probes if each.outcome is ProbeOutcome.MISSING]
        if explicit and wait_for_socket:
            down, missing = [*down, *missing], []
        if explicit and (broken or missing):
            raise _explain([*broken, *missing])
        if found and not (explicit and down):
            for each in (*down, *broken):
                log.info("CRI endpoint ignored", endpoint=each.endpoint, outcome=each.outcome, reason=each.reason)
            return found
        if not down and (broken or not wait_for_socket):
            raise _explain(broken) if broken else _nothing(endpoints, root)
        delay = next(delays)
        nothing, retry_in = str(_nothing(endpoints, root)), round(delay, 1)
        troubles = [f"the container runtime at {each.endpoint} is down: {each.reason}" for each in down]
        if on_down is not None:
            on_down("; ".join(troubles) or nothing)
        if not down:
            log.warning("no container runtime found", error=nothing, retry_in=retry_in)
        for each in down:
            log.warning("container runtime down", endpoint=each.endpoint, reason=each.reason, retry_in=retry_in)
        await asyncio.sleep(delay)


def _distinct(endpoints: Sequence[str]) -> list[str]:
    """Drop endpoints that are a second path to the same socket (/var/run is /run)."""
    distinct: dict[object, str] = {}
    for endpoint in endpoints:
        path = endpoint.removeprefix("unix://")
        try:
            found = Path(path).stat()
            distinct.setdefault((os.path.realpath(path), found.st_dev, found.st_ino), endpoint)
        except OSError:
            distinct[endpoint] = endpoint
    return list(distinct.values())


def _unfit(path: str) -> str:
    """Return why no runtime can ever listen at this path, "" if one can. Raises OSError."""
    if not stat.S_ISSOCK(Path(path).stat().st_mode):
        return "it is not a socket"
    if len(os.fsencode(path)) > PATH_BYTES:
        return f"its path is longer than {PATH_BYTES} bytes, the limit for unix sockets"
    return ""


def _not_allowed(path: str) -> str:
    """Return which denied permission prevents the connection: a folder on the path, or the socket itself."""
    user = os.geteuid()
    for folder in reversed(Path(path).parents):
        if not os.access(folder, os.X_OK, effective_ids=True):
            with suppress(OSError):
                return f"user {user} has no access to {folder} (mode {stat.S_IMODE(folder.stat().st_mode):04o})"
            break
    return f"not allowed to connect as user {user}"


async def _check_http2(path: str) -> str:
    """Open HTTP/2 on the socket. Return "" if the server's response is valid, else why this is not gRPC.

    gRPC cannot tell, because its error (UNAVAILABLE) is the same as for a runtime that is down. Raises OSError if no
    process listens, permission is denied, or the server closes the connection without a response.
    """
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, path)
        answer = b""
        # A server that responds and closes at once breaks the pipe, but its response can still be read.
        with suppress(BrokenPipeError, ConnectionResetError):
            await loop.sock_sendall(connection, _GREETING)
        with suppress(ConnectionResetError):
            while len(answer) < _FRAME_HEADER:
                chunk = await loop.sock_recv(connection, _FRAME_HEADER - len(answer))
                if not chunk:
                    break
                answer += chunk
    if not answer:
        raise ConnectionError("it closed the connection without an answer")
    if len(answer) < _FRAME_HEADER or answer[3] != _SETTINGS or any(answer[5:]):
        return "it does not speak gRPC"
    return ""


async def _ask(endpoint: str) -> Probe:
    client = CriClient(endpoint)
    try:
        version = await client.version(PROBE_SECONDS)
    except ConfigurationError:
        reason = "it speaks gRPC, but not CRI v1: it is too old, or its CRI plugin is disabled"
        return Probe(endpoint, ProbeOutcome.NOT_CRI, reason)
    except (RuntimeUnavailableError, RuntimeCallError) as error:
        return Probe(endpoint, ProbeOutcome.DOWN, str(error))
    finally:
        await client.close()
    if not version.runtime_name:
        return Probe(endpoint, ProbeOutcome.NOT_CRI, "it does not report its runtime's name")
    return Probe(endpoint, ProbeOutcome.OK, runtime=version.runtime_name, version=version.runtime_version)


_ADVICE = {
    ProbeOutcome.MISSING: "set the path with --cri-endpoint, and mount it if crrd runs in a container",
    ProbeOutcome.PERMISSION: (
        "run crrd as root, and give it access to the socket's folder (chmod +x). If it has both, a security module "
        "denies it (SELinux, AppArmor): see seLinuxOptions of the pod, and the node's audit log"
    ),
    ProbeOutcome.NOT_CRI: "set --cri-endpoint to the socket of the container runtime that kubelet uses",
}


def _explain(probes: Sequence[Probe]) -> ConfigurationError:
    """Make one error for all these probes, with the advice for the first."""
    found = "; ".join(f"{each.endpoint}: {each.reason}" for each in probes)
    return ConfigurationError(f"no usable container runtime: {found}. To do: {_ADVICE[probes[0].outcome]}")


def _nothing(endpoints: Sequence[str], root: Path) -> ConfigurationError:
    tried = ", ".join(endpoint.removeprefix("unix://") for endpoint in endpoints)
    return ConfigurationError(
        f"no container runtime found below {root}: none of the known sockets exists ({tried}). "
        "To do: set the socket with --cri-endpoint, and mount it if crrd runs in a container"
    )
