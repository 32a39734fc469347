"""A second sandbox of a pod while kubelet or the runtime is stopped or killed. See test_second_sandbox.py.

Needs the processes of the node: a cluster of `python -m tests.tools.cluster` (CRRD_TEST_CLUSTER), or a folder with
their PID files (CRRD_TEST_PROCESSES, with the tests in the same PID namespace).
"""

import asyncio
import functools
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic

import grpc
import pytest

from cri_stubs import api_pb2 as pb
from tests.soak_cluster.processes import Process, found_in, found_in_cluster
from tests.soak_cluster.record import Part
from tests.support import second_sandbox as second
from tests.support.cluster import PATIENCE, Cluster, Json, container, foreign, pod_ready, restarted
from tests.support.real_nodes import VARIABLE
from tests.support.second_sandbox import APP, INIT, SIDE, SPEC, WHOLE_POD, attempts, counts, member, of, show, words

PROCESSES = "CRRD_TEST_PROCESSES"
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(foreign() is None, reason="needs a real kubelet"),
    pytest.mark.skipif(
        not (os.environ.get(VARIABLE) or os.environ.get(PROCESSES)), reason=f"needs {VARIABLE} or {PROCESSES}"
    ),
]


@functools.cache  # what it has started is a child of this process, and must be awaited by the same object
def process(node_name: str, part: Part) -> Process:
    """Return kubelet or the runtime of a node."""
    own, folder = os.environ.get(VARIABLE), os.environ.get(PROCESSES, "")
    found = found_in_cluster(Path(own), node_name) if own else found_in([Path(folder)])
    return found[part][0]


@asynccontextmanager
async def without(cluster: Cluster, part: Part, number: signal.Signals) -> AsyncIterator[None]:
    """Kill or stop kubelet or the runtime, and let it run again in the end."""
    which = process(cluster.node_name, part)
    await asyncio.to_thread(which.send, number)
    try:
        yield
    finally:
        if number is signal.SIGKILL:
            await asyncio.to_thread(which.start)
        else:
            await asyncio.to_thread(which.send, signal.SIGCONT)


async def runs(cluster: Cluster, app: Json = APP, inits: Sequence[Json] = (INIT, SIDE), **spec: object) -> Json:
    return await cluster.run_pod("web", [app], init_containers=inits, grace=10, **{**SPEC, **spec})


async def settled(cluster: Cluster) -> None:
    """Wait until kubelet has looked at its pods: it starts a new one."""
    await cluster.run_pod("probe", [container("app")])
    await asyncio.sleep(second.WINDOW_SECONDS)


async def result(cluster: Cluster, seen: second.Seen) -> str:
    """Return what was seen after a kill. Each container must run, once, in the only ready sandbox."""
    await settled(cluster)
    now, found = await cluster.pod("web"), words(cluster, seen.before)
    assert counts(now) == {"app": 1}
    states = await second.sandboxes(cluster, now)
    assert pod_ready(now)
    assert list(states.values()).count("ready") == 1, states
    inits, hooks = len(of("init", found)), found.count("app-hook")
    starts = sum(each.startswith("app-start") for each in found)
    return (
        f"ready after {seen.seconds:.1f} s; app started {starts} times, hook {hooks}, init container {inits}, "
        f"counts {counts(now)}, {seen.address}, sandboxes {attempts(states)}"
    )


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=lambda each: each.name)
async def test_kubelet_is_stopped_before(cluster: Cluster, number: signal.Signals) -> None:
    before = await runs(cluster)
    async with without(cluster, Part.KUBELET, number):
        await second.second_sandbox(cluster, before)
        await asyncio.sleep(second.WINDOW_SECONDS)
        assert words(cluster, before) == [*WHOLE_POD[:3]]
        since = monotonic()
    seen = await second.awaited(cluster, before, since)
    await show(cluster, {f"kubelet {number.name} before, runs again after": await result(cluster, seen)})
    assert words(cluster, before) == [*WHOLE_POD]
    assert counts(await cluster.pod("web")) == {"app": 1}


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=lambda each: each.name)
async def test_it_is_removed_before_kubelet_runs_again(cluster: Cluster, number: signal.Signals) -> None:
    before = await runs(cluster)
    async with without(cluster, Part.KUBELET, number):
        made = await second.second_sandbox(cluster, before)
        await second.remove(cluster, made)
    await settled(cluster)
    now = await cluster.pod("web")
    assert words(cluster, before) == [*WHOLE_POD[:3]]
    assert now["status"]["containerStatuses"] == before["status"]["containerStatuses"]
    assert await second.sandboxes(cluster, now) == {0: "ready"}
    await show(cluster, {f"removed before kubelet runs again ({number.name})": "not restarted"})


@pytest.mark.parametrize("moment", ["app-hook", "app-term", "side-end", "init-2"])
@pytest.mark.parametrize("part", [Part.KUBELET, Part.RUNTIME], ids=lambda each: each.name.lower())
async def test_killed_in_between(cluster: Cluster, part: Part, moment: str) -> None:
    before, since = await runs(cluster, member("app", hook_seconds=3)), monotonic()
    await second.second_sandbox(cluster, before)
    await second.written(cluster, before, moment)
    async with without(cluster, part, signal.SIGKILL):
        pass
    seen = await second.awaited(cluster, before, since)
    await show(cluster, {f"{part.name.lower()} killed at {moment}": await result(cluster, seen)})


async def test_it_is_removed_in_the_hook(cluster: Cluster) -> None:
    before, since = await runs(cluster, member("app", hook_seconds=3)), monotonic()
    made = await second.second_sandbox(cluster, before)
    await second.written(cluster, before, "app-hook")
    with suppress(grpc.aio.AioRpcError):
        await second.remove(cluster, made)
    seen = await second.awaited(cluster, before, since)
    await show(cluster, {"removed in the hook": await result(cluster, seen)})


@pytest.mark.parametrize("step", [1, 2])
async def test_another_one_in_the_hook(cluster: Cluster, step: int) -> None:
    """As two clients would do that do not know each other. With a step of 1, it has the attempt of kubelet's next one.

    CRI-O then gives kubelet the sandbox that is there, in the node's network.
    """
    before, since = await runs(cluster, member("app", hook_seconds=3)), monotonic()
    await second.second_sandbox(cluster, before, step=step)
    await second.written(cluster, before, "app-hook")
    made = await second.second_sandbox(cluster, before, step=step)
    seen = await second.awaited(cluster, before, since)
    text = await result(cluster, seen)
    filtered = pb.ListContainersRequest(filter=pb.ContainerFilter(pod_sandbox_id=made))
    inside = (await cluster.cri.ListContainers(filtered, timeout=PATIENCE)).containers
    where = "containers have run IN THE THIRD SANDBOX, " if inside else ""
    await show(cluster, {f"a third sandbox in the hook, attempts in steps of {step}": where + text})
    assert not (inside and step > 1)


@pytest.mark.parametrize("network", ["NODE", "POD"])
@pytest.mark.parametrize("kind", ["pod network", "hostNetwork"])
async def test_only_the_first_sandbox_is_stopped(cluster: Cluster, kind: str, network: str) -> None:
    """As if kubelet was killed between the two. It must not take the second one for a sandbox of its own."""
    before = await runs(cluster, hostNetwork=kind == "hostNetwork")
    (first,) = await cluster.sandboxes(before)
    async with without(cluster, Part.KUBELET, signal.SIGKILL):
        made = await second.second_sandbox(cluster, before, pb.NamespaceMode.Value(network))
        await cluster.cri.StopPodSandbox(pb.StopPodSandboxRequest(pod_sandbox_id=first.id), timeout=PATIENCE)
        assert words(cluster, before)[:3] == [*WHOLE_POD[:3]]
    after = await cluster.wait_pod("web", restarted("app"), "app restarted")
    await settled(cluster)
    found = pb.ContainerFilter(pod_sandbox_id=made)
    inside = (await cluster.cri.ListContainers(pb.ListContainersRequest(filter=found), timeout=PATIENCE)).containers
    inits = len(of("init", words(cluster, after)))
    where = "IN THE SECOND SANDBOX" if inside else "in a sandbox of kubelet"
    case = f"only the first sandbox stopped ({kind}, second sandbox {network})"
    await show(cluster, {case: f"containers run {where}, init container ran {inits} times"})
    alike = (network == "NODE") == (kind == "hostNetwork")
    assert bool(inside) == alike
