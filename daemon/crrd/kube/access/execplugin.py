"""Runs the exec plugin of a kubeconfig's user, as client-go's plugin/pkg/client/auth/exec does.

A plugin gets no input, because a daemon has no user to ask. If stderr is a terminal, the plugin's stderr is shown there
at once, because it may say how to log in, and the plugin has as much time as the user needs for that.
"""

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from crrd.core.api.time import parse_time
from crrd.lib.errors import ApiUnavailableError, ConfigurationError
from crrd.lib.jsonfields import Reader, items, mapping, text

_DEADLINE_SECONDS = 60.0  # Where stderr is no terminal
_NEVER_STARTS = {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC}
"""Errors of starting a plugin that is not installed, or is no program."""
_NO_INPUT = (
    "its interactiveMode is Always, but crrd cannot pass input to plugins: log in first, for example with kubectl"
)
_CLUSTER_FIELDS = (
    "server",
    "tls-server-name",
    "insecure-skip-tls-verify",
    "certificate-authority-data",
    "proxy-url",
    "disable-compression",
)
"""Cluster fields passed to a plugin with provideClusterInfo (`Cluster` of client.authentication.k8s.io/v1)."""
_CONFIG_EXTENSION = "client.authentication.k8s.io/exec"  # The cluster's extension for plugins


@dataclass(frozen=True, slots=True)
class Issued:
    """Credentials that a plugin issued: a token, or a certificate with its key (PEM), or both."""

    token: str = field(repr=False)
    certificate: str
    key: str = field(repr=False)
    expiry: float  # Seconds since the epoch; 0 for never


async def run_plugin(plugin: object, cluster: Mapping[str, Any]) -> Issued:
    """Run the plugin of a user's `exec` section.

    Raises:
        ConfigurationError: the section cannot be used, or the plugin cannot be started.
        ApiUnavailableError: the plugin issued no credentials; another run may succeed.
    """
    reader = Reader()
    section = reader.mapping(plugin, "the user's exec")
    command = reader.text(section.get("command"), "the user's exec.command", required=True)
    version = reader.text(section.get("apiVersion"), "the user's exec.apiVersion", required=True)
    arguments = [reader.text(each, "the user's exec.args") for each in items(section.get("args"))]
    variables = {
        reader.text(mapping(each).get("name"), "the user's exec.env", required=True): text(mapping(each).get("value"))
        for each in items(section.get("env"))
    }
    with_cluster = reader.flag(section.get("provideClusterInfo"), "the user's exec.provideClusterInfo")
    if reader.error:
        raise ConfigurationError(reader.error)
    spec: dict[str, Any] = {"interactive": False}
    if with_cluster:
        spec["cluster"] = _cluster_info(cluster)
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
    environment = {**os.environ, **variables, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    try:
        return _issued(await _output([command, *arguments], environment), version)
    except OSError as error:
        hint = " ".join(text(section.get("installHint")).split())
        if error.errno in _NEVER_STARTS:
            message = f"exec: the plugin {command} cannot be started: {error.strerror}"
            raise ConfigurationError(". ".join(filter(None, (message, hint)))) from error
        message = f"exec: the plugin temporarily cannot be started: {error}"
        raise ApiUnavailableError(". ".join(filter(None, (message, hint)))) from error
    except ApiUnavailableError as error:
        if section.get("interactiveMode") != "Always":
            raise
        raise ApiUnavailableError(f"{error} ({_NO_INPUT})") from error


def _cluster_info(cluster: Mapping[str, Any]) -> dict[str, Any]:
    info = {name: cluster[name] for name in _CLUSTER_FIELDS if cluster.get(name)}
    for each in items(cluster.get("extensions")):
        if mapping(each).get("name") == _CONFIG_EXTENSION:
            info["config"] = mapping(each).get("extension")
    return info


class _Plugin(asyncio.SubprocessProtocol):
    """Collects a plugin's output, and copies its stderr to a terminal at once."""

    def __init__(self) -> None:
        self.output = bytearray()
        self.stderr_lines = bytearray()
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()  # Set when it has exited, and its child processes have closed the output, too
        self.terminal = sys.stderr.buffer if sys.stderr is not None and sys.stderr.isatty() else None

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """See SubprocessProtocol."""
        (self.output if fd == 1 else self.stderr_lines).extend(data)
        if fd != 1 and self.terminal is not None:
            with suppress(OSError):  # the terminal is gone
                self.terminal.write(data)
                self.terminal.flush()

    def process_exited(self) -> None:
        """See SubprocessProtocol."""
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """See SubprocessProtocol."""
        self.closed.set()


async def _output(command: list[str], environment: Mapping[str, str]) -> bytes:
    """Run the plugin, and return its stdout. Kills its process group on a timeout. OSError: it cannot be started."""
    loop = asyncio.get_running_loop()
    transport, plugin = await loop.subprocess_exec(
        _Plugin, *command, stdin=subprocess.DEVNULL, start_new_session=True, env=environment
    )
    try:
        async with asyncio.timeout(_DEADLINE_SECONDS if plugin.terminal is None else None):
            await plugin.closed.wait()
    except TimeoutError as error:
        last = "".join(plugin.stderr_lines.decode("utf-8", "replace").strip().splitlines()[-1:])
        message = f"no credentials after {_DEADLINE_SECONDS:.0f}s"
        raise ApiUnavailableError(": ".join(filter(None, (message, last)))) from error
    finally:
        if not plugin.closed.is_set():
            with suppress(ProcessLookupError):
                os.killpg(transport.get_pid(), signal.SIGKILL)
            await plugin.exited.wait()
        transport.close()
    if code := transport.get_returncode():
        reason = " ".join(plugin.stderr_lines.decode("utf-8", "replace").split())
        raise ApiUnavailableError(". ".join(filter(None, (f"exec: process returned {code}", reason))))
    return bytes(plugin.output)


def _issued(output: bytes, version: str) -> Issued:
    """Parse a plugin's output. Errors do not repeat the output, because it may hold a key."""
    try:
        answer = mapping(json.loads(output))
    except ValueError as error:
        raise ApiUnavailableError("exec: the plugin's output is not JSON") from error
    reader = Reader()
    answered = reader.text(answer.get("apiVersion"), "apiVersion", required=True)
    status = reader.mapping(answer.get("status"), "status")
    token, certificate, key, expires = (
        reader.text(status.get(name), f"status.{name}")
        for name in ("token", "clientCertificateData", "clientKeyData", "expirationTimestamp")
    )
    expiry = parse_time(expires) if expires else None
    if not reader.error and answered != version:
        reader.reject("apiVersion", f"must be {version}")
    if not token and not certificate:
        reader.reject("status", "must have a token or clientCertificateData")
    if bool(certificate) != bool(key):
        reader.reject("status", "must have both or none of clientCertificateData and clientKeyData")
    if expires and expiry is None:
        reader.reject("status.expirationTimestamp", "must be a time")
    if reader.error:
        raise ApiUnavailableError(f"exec: the plugin's output cannot be used: {reader.error}")
    return Issued(token, certificate, key, expiry.timestamp() if expiry else 0.0)
