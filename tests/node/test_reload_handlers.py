"""How a container is made to reload: commands, signals and HTTP requests, with real servers on loopback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
from aiohttp import web

from crrd.core.recreate.actions import RunReload
from crrd.core.recreate.declared import read_reload
from crrd.core.recreate.observation import ExecResult, HookResult
from crrd.lib.errors import RuntimeCallError, RuntimeUnavailableError
from crrd.node.hooks import HookRunner
from tests.node.test_hooks import INSTANCE, REQUEST, ExecRuntime, unexpected

NOT_FOUND = 'OCI runtime exec failed: exec: "kill": executable file not found in $PATH: unknown'


def action(declaration: str, pod_ip: str = "127.0.0.1") -> RunReload:
    return RunReload(REQUEST, INSTANCE, read_reload(declaration), pod_ip)


async def answer(result: ExecResult | Exception) -> ExecResult:
    if isinstance(result, Exception):
        raise result
    return result


async def run(declaration: str, *results: ExecResult | Exception) -> tuple[HookResult, list[tuple[str, ...]]]:
    """Run a reload in a runtime that gives these results. Return its result, and the commands."""
    left = list(results)
    runtime = ExecRuntime(lambda _: answer(left.pop(0)))
    found = await HookRunner(runtime).reload(action(declaration))
    return found, [command for _, command, _ in runtime.commands]


async def test_a_command_runs_once_and_its_output_is_reported() -> None:
    found, commands = await run('{"exec": ["nginx", "-s", "reload"]}', ExecResult(0, b"fine\n", b"signal sent\n"))
    assert (found.error, found.output) == ("", "signal sent fine")
    assert commands == [("nginx", "-s", "reload")]


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (ExecResult(1, b"", b"unknown directive"), "exec ended with exit code 1: unknown directive"),
        (ExecResult(-1, b"", b""), "exec was cancelled, because it had not finished within 5s"),
        (
            RuntimeCallError("late", code="DEADLINE_EXCEEDED"),
            "exec was cancelled, because it had not finished within 5s",
        ),
        (RuntimeCallError("no such container", code="NOT_FOUND"), "exec could not be run: no such container"),
    ],
)
async def test_a_command_that_fails_says_why(result: ExecResult | Exception, error: str) -> None:
    found, commands = await run('{"exec": ["a"], "timeoutSeconds": 5}', result)
    assert (found.error, found.output) == (error, "")
    assert len(commands) == 1


@pytest.mark.virtual_time
async def test_a_command_that_not_even_the_runtime_ends() -> None:
    async def hang(_: float) -> ExecResult:
        await asyncio.Event().wait()
        raise AssertionError

    found = await HookRunner(ExecRuntime(hang)).reload(action('{"exec": ["a"], "timeoutSeconds": 5}'))
    assert found == HookResult(8.0, "exec was cancelled, because it had not finished within 5s")


async def test_a_runtime_that_goes_away_is_an_error_of_its_own() -> None:
    with pytest.raises(RuntimeUnavailableError):
        await run('{"exec": ["a"]}', RuntimeUnavailableError("away"))


async def test_a_signal_is_sent_by_the_images_kill() -> None:
    found, commands = await run('{"signal": "HUP"}', ExecResult(0, b"", b""))
    assert (found.error, commands) == ("", [("kill", "-HUP", "1")])


@pytest.mark.parametrize(
    "missing",
    [
        RuntimeCallError(NOT_FOUND, code="UNKNOWN"),
        ExecResult(255, b"", b"executable file `kill` not found in $PATH: No such file or directory"),
    ],
)
async def test_without_kill_a_shell_sends_it(missing: ExecResult | Exception) -> None:
    found, commands = await run('{"signal": "USR1"}', missing, ExecResult(0, b"", b""))
    assert (found.error, commands) == ("", [("kill", "-USR1", "1"), ("sh", "-c", "kill -USR1 1")])


async def test_without_both_no_signal_can_be_sent() -> None:
    missing = RuntimeCallError(NOT_FOUND, code="UNKNOWN")
    found, commands = await run('{"signal": "HUP"}', missing, missing)
    assert found.error.startswith("no signal can be sent, because the image has neither the program kill nor sh: ")
    assert len(commands) == 2


async def test_a_signal_that_is_refused_is_not_sent_again() -> None:
    found, commands = await run('{"signal": "HUP"}', ExecResult(1, b"", b"kill: 1: Operation not permitted"))
    assert found.error == "exec ended with exit code 1: kill: 1: Operation not permitted"
    assert len(commands) == 1


async def test_a_command_that_is_missing_is_not_tried_in_a_shell() -> None:
    found, commands = await run('{"exec": ["kill"]}', RuntimeCallError(NOT_FOUND, code="UNKNOWN"))
    assert found.error.startswith("exec could not be run")
    assert len(commands) == 1


Handler = Callable[[web.Request], Awaitable[web.Response]]
Start = Callable[[Handler], Awaitable[int]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    runners: list[web.AppRunner] = []

    async def serve(handler: Handler) -> int:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runners.append(web.AppRunner(app))
        await runners[0].setup()
        await web.TCPSite(runners[0], "127.0.0.1", 0).start()
        return int(runners[0].addresses[0][1])

    yield serve
    for each in runners:
        await each.cleanup()


async def over_http(declaration: str, pod_ip: str = "127.0.0.1") -> HookResult:
    return await HookRunner(ExecRuntime(unexpected)).reload(action(declaration, pod_ip))


@pytest.mark.parametrize(("kind", "method"), [("httpGet", "GET"), ("httpPost", "POST")])
async def test_an_http_request_needs_a_2xx(start: Start, kind: str, method: str) -> None:
    asked: list[tuple[str, str]] = []
    statuses = [200, 204, 300, 404, 500]

    async def handle(request: web.Request) -> web.Response:
        asked.append((request.method, request.path_qs))
        return web.Response(status=statuses[len(asked) - 1], text=None if len(asked) == 2 else "said so")

    port = await start(handle)
    declaration = f'{{"{kind}": {{"path": "/-/reload?now=1", "port": {port}}}}}'
    found = [await over_http(declaration) for _ in statuses]
    assert [each.error for each in found] == [
        "",
        "",
        f"{kind} http://127.0.0.1:{port}: HTTP status 300: said so",
        f"{kind} http://127.0.0.1:{port}: HTTP status 404: said so",
        f"{kind} http://127.0.0.1:{port}: HTTP status 500: said so",
    ]
    assert [each.output for each in found] == ["said so", "", "", "", ""]
    assert asked == [(method, "/-/reload?now=1")] * 5


async def test_a_redirect_of_a_post_is_not_followed(start: Start) -> None:
    asked: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=302, headers={"Location": "/elsewhere"})

    port = await start(handle)
    found = await over_http(f'{{"httpPost": {{"port": {port}}}}}')
    assert found.error == f"httpPost http://127.0.0.1:{port}: HTTP status 302"
    assert asked == ["/"]


async def test_an_http_request_gets_no_more_than_its_time(start: Start) -> None:
    """Only a runtime needs some more, to end a command."""

    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    declared = action(f'{{"httpPost": {{"port": {await start(hang)}}}}}')
    hasty = replace(declared, reload=replace(declared.reload, seconds=0))
    found = await HookRunner(ExecRuntime(unexpected)).reload(hasty)
    assert found.error.startswith("httpPost was cancelled")
    assert found.seconds < 1


async def test_an_http_request_that_cannot_be_sent_is_an_error(unused_tcp_port: int) -> None:
    refused = await over_http(f'{{"httpPost": {{"port": {unused_tcp_port}}}}}')
    assert refused.error.startswith(f"httpPost http://127.0.0.1:{unused_tcp_port} failed: ")
    unknown = await over_http('{"httpGet": {"port": 80}}', pod_ip="")
    assert unknown.error == "httpGet could not be sent: the pod's IP is not known"
