"""The CRI edge against the local runtime: real processes, real signals."""

from pathlib import Path

import pytest

from crrd.core.api.types import Request
from crrd.core.recreate.actions import RunHook
from crrd.core.recreate.observation import Hook, HookKind
from crrd.cri.runtime import connect
from crrd.kubelet.runtime_status import ContainerState
from crrd.lib.errors import RuntimeCallError, RuntimeUnavailableError
from crrd.node.hooks import HookRunner
from crrd_localnode.runtime import ProcessRuntime
from tests.support.faulty_node import RuntimeProcess
from tests.support.local_runtime import connected, content, eventually, gone, until
from tests.support.scripted_cri import labels

POD_UID = "uid-of-web"


async def started(socket: Path, script: str) -> str:
    """A container of kubelet's kind; its ID."""
    async with connected(socket) as client:
        sandbox = await client.sandbox("web")
        container = await client.create(sandbox, script, attempt=2, labels=labels(POD_UID, "app", "web"))
        await client.start(container)
        return container


async def test_a_container_is_found_run_in_and_stopped(tmp_path: Path) -> None:
    runtime = ProcessRuntime(tmp_path / "root", tmp_path / "s")
    await runtime.start()
    try:
        container = await started(
            runtime.socket,
            f"trap 'echo term >> {tmp_path}/said; exit 7' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done",
        )
        node = await connect([str(runtime.socket)])
        (instance,) = await node.instances(POD_UID)
        assert (instance.id, instance.name, instance.restart_count) == (container, "app", 2)
        assert (await node.find(instance.pin)) == instance
        request = Request("shop", "crr", "u", "1", "2026-01-01T00:00:00Z", "web", POD_UID, "node", ())
        hook = Hook(HookKind.EXEC, command=("sh", "-c", f"echo hook >> {tmp_path}/said"))
        hooks = HookRunner(node)
        await until((tmp_path / "up").exists)

        assert (await hooks.run(RunHook(request, instance, hook, 10, 0.0))).error == ""
        await node.stop(instance, 10)
        (exited,) = await node.instances(POD_UID)

        assert (instance.state, exited.state) == (ContainerState.RUNNING, ContainerState.EXITED)
        assert (tmp_path / "said").read_text() == "hook\nterm\n"
        await node.close()
    finally:
        await runtime.stop()


async def test_a_hook_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    runtime = ProcessRuntime(tmp_path / "root", tmp_path / "s")
    await runtime.start()
    try:
        await started(runtime.socket, "exec sleep 1000")
        node = await connect([str(runtime.socket)])
        (instance,) = await node.instances(POD_UID)
        script = f"echo $$ > {tmp_path}/pid; exec sleep 1000"

        with pytest.raises(RuntimeCallError) as caught:
            await node.execute(instance, ("sh", "-c", script), 1)

        assert caught.value.code == "DEADLINE_EXCEEDED"
        await gone(int(await content(tmp_path / "pid")))
        await node.close()
    finally:
        await runtime.stop()


async def test_containers_are_known_again_after_the_runtime_restarted(tmp_path: Path) -> None:
    socket = tmp_path / "s"
    runtime = RuntimeProcess(tmp_path / "root", socket)
    await runtime.start()
    container = await started(socket, "exec sleep 1000")
    node = await connect([str(socket)])
    assert [found.id for found in await node.instances(POD_UID)] == [container]

    await runtime.kill()
    with pytest.raises(RuntimeUnavailableError):
        await node.instances(POD_UID)
    await runtime.start()
    try:

        async def known() -> bool:
            try:
                return [found.id for found in await node.instances(POD_UID)] == [container]
            except RuntimeUnavailableError:
                return False

        await eventually(known)
        await node.close()
    finally:
        await runtime.stop()
