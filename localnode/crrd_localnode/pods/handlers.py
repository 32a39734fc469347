"""Running a pod spec's handlers: what probes and lifecycle hooks are made of (exec, httpGet, tcpSocket, sleep).

A handler never raises for what it finds, only for a runtime that cannot be reached: what a failure means is the
caller's business.
"""

import asyncio
from dataclasses import dataclass

import aiohttp

from crrd.lib.errors import RuntimeCallError
from crrd.lib.plain import one_line
from crrd_localnode.pods.kuberuntime import KubeRuntime
from crrd_localnode.pods.spec import Json


@dataclass(frozen=True, slots=True)
class HandlerOutcome:
    """How a handler ended."""

    succeeded: bool
    message: str = ""  # What it said, or why it failed


class Handlers:
    """Runs handlers in containers of one runtime and against addresses of one pod IP."""

    def __init__(self, runtime: KubeRuntime, pod_ip: str) -> None:
        self._runtime = runtime
        self._pod_ip = pod_ip

    async def run(self, handler: Json, spec: Json, container_id: str, seconds: float) -> HandlerOutcome:
        """Run one handler for at most so many seconds.

        Args:
            handler: `exec`, `httpGet`, `tcpSocket` or `sleep`, as in a probe or a lifecycle hook.
            spec: The container's, for the names of its ports.
            container_id: Where to exec.
            seconds: After which it counts as failed.

        Raises:
            RuntimeUnavailableError: the runtime could not be reached.
        """
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
        text = one_line((result.stdout + result.stderr).decode(errors="replace"))
        return HandlerOutcome(result.exit_code == 0, text or f"exit code {result.exit_code}")

    async def _http(self, action: Json, spec: Json) -> HandlerOutcome:
        port = _port(action.get("port"), spec)
        scheme = str(action.get("scheme") or "HTTP").lower()
        host = action.get("host") or self._pod_ip
        path = "/" + str(action.get("path") or "").lstrip("/")
        headers = {"User-Agent": "kube-probe/crrd"}
        headers |= {header["name"]: header.get("value", "") for header in action.get("httpHeaders") or []}
        try:
            async with (
                aiohttp.ClientSession() as session,
                # kubelet does not verify certificates either, and takes a redirect as an answer
                session.get(
                    f"{scheme}://{host}:{port}{path}", headers=headers, ssl=False, allow_redirects=False
                ) as got,
            ):
                return HandlerOutcome(200 <= got.status < 400, f"HTTP status {got.status}")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return HandlerOutcome(succeeded=False, message=one_line(str(error)))

    async def _tcp(self, action: Json, spec: Json) -> HandlerOutcome:
        port = _port(action.get("port"), spec)
        host = action.get("host") or self._pod_ip
        try:
            _, writer = await asyncio.open_connection(host, port)
        except (OSError, TypeError) as error:
            return HandlerOutcome(succeeded=False, message=one_line(str(error)))
        writer.close()
        return HandlerOutcome(succeeded=True)


def _port(given: object, spec: Json) -> int | None:
    """A port's number: given as one, or by the name of one of the container's ports; None for an unknown name."""
    if isinstance(given, int):
        return given
    named = {port.get("name"): int(port["containerPort"]) for port in spec.get("ports") or []}
    return named.get(given) or (int(given) if isinstance(given, str) and given.isdigit() else None)
