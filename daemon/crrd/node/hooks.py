"""Runs preStop hooks as kubelet does (exec, httpGet and sleep), and reloads.

`crrd.cri.convert` reads a container's hook, and the core decides whether and for how long it may run. This module runs
it and returns its result. A failed hook is a result and not an error, because the stop follows anyway. A reload also
fails if the status of a response is not 2xx.

Source of the rules: Kubernetes' pkg/kubelet/lifecycle/handlers.go and pkg/probe/http.
"""

import asyncio
import ipaddress
import ssl
from urllib.parse import quote

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from crrd import __version__
from crrd.core.recreate.actions import RunHook, RunReload
from crrd.core.recreate.declared import Reload
from crrd.core.recreate.observation import Hook, HookKind, HookResult, Instance
from crrd.lib.errors import RuntimeCallError
from crrd.lib.looptime import loop_time
from crrd.lib.plain import one_line
from crrd.ports import Runtime

HOOK_MARGIN_SECONDS = 3.0  # Extra time for exec hooks, in which the runtime kills the command and reports it
MAX_REDIRECTS = 10
HEAD_BYTES = 80 * 1024
"""Limit for one header line of a response. aiohttp reads at most 128 lines, so all headers have at most 10 MiB, as in
Go's client."""
BODY_BYTES = 10 * 1024
"""Limit for reading a response's body (kubelet's maxRespBodyLength). Some handlers work until the body is read."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NOT_IN_IMAGE = ("not found in $path", "no such file or directory")
"""What runc and crun say of a program that an image does not have, in lower case."""
_PATH_CHARACTERS = "/?:@!$&'()*+,;=-._~%"  # Characters of a path with its query that are not percent-encoded


class HookRunner:
    """Implements `crrd.ports.Hooks`. The container runtime runs exec hooks."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def run(self, action: RunHook) -> HookResult:
        """See `crrd.ports.Hooks`. The runtime's own timeout ends exec hooks, so that the command is killed."""
        started = loop_time()
        margin = HOOK_MARGIN_SECONDS if action.hook.kind is HookKind.EXEC else 0.0
        try:
            async with asyncio.timeout(action.seconds + margin):
                error = await self._run(action)
        except TimeoutError:
            error = _too_slow(action.hook.kind, action.seconds)
        return HookResult(seconds=loop_time() - started, error=error)

    async def reload(self, action: RunReload) -> HookResult:
        """See `crrd.ports.Hooks`."""
        started, reload = loop_time(), action.reload
        margin = HOOK_MARGIN_SECONDS if reload.hook.kind is HookKind.EXEC else 0.0
        try:
            async with asyncio.timeout(reload.seconds + margin):
                error, output = await self._reload(action)
        except TimeoutError:
            error, output = _over(reload), ""
        return HookResult(loop_time() - started, error, output)

    async def _reload(self, action: RunReload) -> tuple[str, str]:
        """Return the error, or "" and the output."""
        reload, instance = action.reload, action.instance
        if reload.hook.kind is HookKind.HTTP_GET:
            return await _http(reload.hook, instance, action.pod_ip, reload.kind, is_reload=True)
        error, output = await self._exec(instance, reload.hook.command, reload.seconds, _over(reload))
        if reload.signal and _is_missing(error):  # a shell has its own kill
            shell = ("sh", "-c", " ".join(reload.hook.command))
            error, output = await self._exec(instance, shell, reload.seconds, _over(reload))
            if _is_missing(error):
                error = f"no signal can be sent, because the image has neither the program kill nor sh: {error}"
        return error, output

    async def _run(self, action: RunHook) -> str:
        hook = action.hook
        match hook.kind:
            case HookKind.EXEC:
                late = _too_slow("exec", action.seconds)
                return (await self._exec(action.instance, hook.command, action.seconds, late))[0]
            case HookKind.HTTP_GET:
                return (await _http(hook, action.instance, action.pod_ip, "httpGet"))[0]
            case HookKind.SLEEP:
                await asyncio.sleep(hook.seconds)
                return ""
            case HookKind.TCP_SOCKET:
                return "tcpSocket is not supported as a preStop hook"
            case HookKind.INVALID:
                return hook.error

    async def _exec(self, instance: Instance, command: tuple[str, ...], seconds: float, late: str) -> tuple[str, str]:
        """Return the error, or "" and the output. `late`: the error if it has not ended in time."""
        try:
            result = await self._runtime.execute(instance, command, seconds)
        except RuntimeCallError as error:
            if error.code == "DEADLINE_EXCEEDED":
                return late, ""
            if error.code == "RESOURCE_EXHAUSTED":
                return f"exec ran, but its result is unknown, because its output was too large ({error})", ""
            return f"exec could not be run: {error}", ""
        output = one_line((result.stderr + b" " + result.stdout).decode(errors="replace"))
        if result.exit_code == 0:
            return "", output
        if result.exit_code == -1:  # CRI-O's result for a cancelled command; no process ends with that code
            return late, ""
        return f"exec ended with exit code {result.exit_code}" + (f": {output}" if output else ""), ""


def _over(reload: Reload) -> str:
    return f"{reload.kind} was cancelled, because it had not finished within {reload.seconds}s"


def _is_missing(error: str) -> bool:
    """Whether a command has not run, because the image does not have its program."""
    return any(each in error.lower() for each in _NOT_IN_IMAGE)


def _too_slow(kind: str, seconds: float) -> str:
    return f"{kind} was cancelled, because it had not finished when the grace period ended ({round(seconds, 1):g}s)"


async def _http(hook: Hook, instance: Instance, pod_ip: str, kind: str, *, is_reload: bool = False) -> tuple[str, str]:
    """Send one request to the pod's IP, or to the hook's host. Return the error, or "" and the response's body.

    For a hook, any HTTP status is a success, because kubelet's lifecycle handler checks transport errors only. A reload
    needs a 2xx. https certificates are not verified. If the server does not speak TLS, http is tried, without the
    Authorization header.
    """
    host, method = hook.host or pod_ip, "POST" if kind == "httpPost" else "GET"
    if not host:
        return f"{kind} could not be sent: the pod's IP is not known", ""
    port = _port(hook, instance)
    if port is None:
        return f"{kind} could not be sent: {hook.port!r} is neither a port number nor the name of one of the ports", ""
    try:
        url = _url(hook.scheme, host, port, hook.path)
        headers = _headers(hook)
        try:
            status, body = await _send(method, url, headers)
        except aiohttp.ClientConnectorSSLError as error:
            if not _speaks_no_tls(error):
                raise
            headers.popall("Authorization", None)
            status, body = await _send(method, url.with_scheme("http").with_port(port), headers)
    except aiohttp.ClientResponseError as error:  # its status is not the server's
        return one_line(f"{kind} {hook.scheme}://{host}:{port}: the response is not HTTP: {error.message}"), ""
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return one_line(f"{kind} {hook.scheme}://{host}:{port} failed: {str(error) or type(error).__name__}"), ""
    output = one_line(body.decode(errors="replace"))
    if is_reload and not 200 <= status < 300:
        return one_line(f"{kind} {hook.scheme}://{host}:{port}: HTTP status {status}: {output}".removesuffix(": ")), ""
    return "", output


def _port(hook: Hook, instance: Instance) -> int | None:
    """Resolve the port like kubelet's ResolveContainerPort: a number, a port's name, or a number as text."""
    if isinstance(hook.port, int):
        number = hook.port
    else:
        named = dict(reversed(instance.ports)).get(hook.port)
        number = named or (int(hook.port) if hook.port.isascii() and hook.port.isdigit() and len(hook.port) < 6 else 0)
    return number if 0 < number < 65536 else None


def _url(scheme: str, host: str, port: int, path: str) -> URL:
    """Build the URL: keep the path's query, drop its fragment, put IPv6 addresses in brackets. ValueError: no host."""
    bare = host.removeprefix("[").removesuffix("]")
    try:
        address = ipaddress.ip_address(bare)
        host = f"[{bare}]" if address.version == 6 else bare
    except ValueError:
        if any(character in host for character in "/?#@:[]\\ "):
            raise ValueError(f"{host!r} is not a host name") from None
    target = quote(path.partition("#")[0], safe=_PATH_CHARACTERS, errors="replace")
    return URL(f"{scheme}://{host}:{port}/{target.removeprefix('/')}", encoded=True)


def _headers(hook: Hook) -> CIMultiDict[str]:
    """Return the hook's headers and kubelet's defaults: User-Agent, and Accept unless the hook sets it to ""."""
    spelling: dict[str, str] = {}
    headers: CIMultiDict[str] = CIMultiDict()
    for name, value in hook.headers:
        # aiohttp sends both headers of one name only if their spelling is the same
        headers.add(spelling.setdefault(name.lower(), name), value)
    for name in ("Content-Length", "Transfer-Encoding"):  # Go's client does not send these with a GET either
        headers.popall(name, None)
    headers.setdefault("User-Agent", f"crrd/{__version__}")
    headers.setdefault("Accept", "*/*")
    if not headers["Accept"]:
        del headers["Accept"]
    return headers


async def _send(method: str, url: URL, headers: CIMultiDict[str]) -> tuple[int, bytes]:
    """Return the status of a response, and the start of its body.

    Redirects of a GET are followed like Go's client with kubelet's check: on the same host, at most 10.

    The session lives only for this hook, so no connection, cookie or file descriptor is kept.
    """
    host = url.host
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=False, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        skip_auto_headers=("Accept", "User-Agent"),
        auto_decompress=False,
        max_line_size=HEAD_BYTES,
        max_field_size=HEAD_BYTES,
    ) as session:
        for _ in range(MAX_REDIRECTS):
            async with session.request(method, url, headers=headers, allow_redirects=False) as response:
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or not location or method != "GET":
                    return response.status, await _read_some(response)
            target = url.join(URL(location))
            if target.host != host or target.scheme not in ("http", "https"):
                return response.status, b""  # kubelet takes the redirect itself as the response
            if URL(location).absolute:
                headers.popall("Host", None)
            url = target
    raise ValueError(f"stopped after {MAX_REDIRECTS} redirects")


async def _read_some(response: aiohttp.ClientResponse) -> bytes:
    """Read the body until its end or BODY_BYTES. A body that breaks off is no failure: the response has arrived."""
    found, left = b"", BODY_BYTES
    try:
        while left > 0 and (chunk := await response.content.read(left)):
            left -= len(chunk)
            found += chunk
    except aiohttp.ClientError:
        pass
    return found


def _speaks_no_tls(error: aiohttp.ClientConnectorSSLError) -> bool:
    """Whether the response to a TLS hello was not TLS."""
    reason = error.os_error.reason if isinstance(error.os_error, ssl.SSLError) else ""
    return reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
