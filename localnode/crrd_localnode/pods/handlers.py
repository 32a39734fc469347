"""Runs the handlers of probes and lifecycle hooks (exec, httpGet, tcpSocket, sleep).

Handlers raise only if the runtime cannot be reached. The caller decides what a failure means.
"""

import asyncio
from dataclasses import dataclass

import aiohttp

from crrd.lib.errors import RuntimeCallError
from crrd.lib.plain import one_line
from crrd_localnode.pods.kuberuntime import KubeRuntime
from crrd_localnode.pods.spec import NODE_IP, Json


@dataclass(frozen=True, slots=True)
class HandlerOutcome:
    """The result of a handler."""

    succeeded: bool
    message: str = ""  # Its output, or the error


class Handlers:
    """Runs handlers in containers of one runtime, and against the node's address."""

    def __init__(self, runtime: KubeRuntime) -> None:
        self._runtime = runtime

    async def run(self, handler: Json, spec: Json, container_id: str, seconds: float) -> HandlerOutcome:
        """Run a probe's or hook's handler for at most `seconds`. `spec` has named ports. RuntimeUnavailableError."""
        try:
            async with asyncio.timeout(seconds):
                if "exec" in handler:
                    return await self._exec(handler["exec"].get("command") or [], container_id, seconds)
                if "httpGet" in handler:
                    return await self._http(handler["httpGet"], spec)
                if "tcpSocket" in handler:
                    return await self._tcp(handler["tcpSocket"], spec)
                if "sleep" in handler:
                    await asyncio.sleep(float(handler["sleep"].get("seconds", 0)))
                    return HandlerOutcome(succeeded=True)
        except TimeoutError:
            return HandlerOutcome(succeeded=False, message=f"no answer within {seconds:g}s")
        return HandlerOutcome(succeeded=False, message=f"a local node does not know the handler {', '.join(handler)}")

    async def _exec(self, command: list[str], container_id: str, seconds: float) -> HandlerOutcome:
        try:
            result = await self._runtime.execute(container_id, command, seconds)
        except RuntimeCallError as error:
            return HandlerOutcome(succeeded=False, message=str(error))
        text = one_line((result.stdout + result.stderr).decode(errors="replace")) or f"exit code {result.exit_code}"
        return HandlerOutcome(result.exit_code == 0, text)

    async def _http(self, action: Json, spec: Json) -> HandlerOutcome:
        port = _port(action.get("port"), spec)
        scheme = str(action.get("scheme") or "HTTP").lower()
        host = action.get("host") or NODE_IP
        path = "/" + str(action.get("path") or "").lstrip("/")
        headers = {"User-Agent": "kube-probe/crrd"}
        headers |= {header["name"]: header.get("value", "") for header in action.get("httpHeaders") or []}
        # Like kubelet, do not verify certificates, and do not follow redirects.
        options: Json = {"headers": headers, "ssl": False, "allow_redirects": False}
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{scheme}://{host}:{port}{path}", **options) as got,
            ):
                return HandlerOutcome(200 <= got.status < 400, f"HTTP status {got.status}")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return HandlerOutcome(succeeded=False, message=one_line(str(error)))

    async def _tcp(self, action: Json, spec: Json) -> HandlerOutcome:
        port = _port(action.get("port"), spec)
        try:
            _, writer = await asyncio.open_connection(action.get("host") or NODE_IP, port)
        except (OSError, TypeError) as error:
            return HandlerOutcome(succeeded=False, message=one_line(str(error)))
        writer.close()
        return HandlerOutcome(succeeded=True)


def _port(given: object, spec: Json) -> int | None:
    """Return a port's number from a number or the name of a container's port. None if the name is unknown."""
    if isinstance(given, int):
        return given
    named = {port.get("name"): int(port["containerPort"]) for port in spec.get("ports") or []}
    return named.get(given) or (int(given) if isinstance(given, str) and given.isdecimal() else None)
