"""Each kind of the node daemon's calls fails for a minute: they become rare, and all is well soon afterwards."""

import asyncio
from typing import Any, cast

import pytest

from crrd.cri.runtime import NodeRuntime
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS, REQUESTS
from crrd.node.daemon import NodeConfig, NodeDaemon
from crrd.node.records import WRITE_RETRY
from tests.node.test_health import Running, Runtime
from tests.support.refusing_api import CALL_SECONDS, CASES, Fault, RefusingApi
from tests.support.worlds import NODE, POD_UID

pytestmark = pytest.mark.virtual_time

NAMES = ("r1", "r2", "r3")
A_MINUTE = 12  # Most calls of one kind for one object
SECONDS = 10.0  # For the work, once its calls succeed


class ReportingRuntime(Runtime):
    """Also reports the pod to the API server, as kubelet does."""

    def __init__(self, api: RefusingApi) -> None:
        super().__init__()
        self._api = api
        self.report()

    def report(self) -> None:
        (app,) = self.view().containers.values()
        state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}} if app.running else {"terminated": {"exitCode": 137}}
        status = {"name": "app", "containerID": app.container_id, "ready": app.ready, "state": state}
        meta = {"namespace": "default", "name": "web", "uid": POD_UID, "resourceVersion": str(len(self.known))}
        whole = {"phase": "Running", "containerStatuses": [status]}
        spec = {"containers": [{"name": "app"}], "nodeName": NODE}
        self._api.put(PODS, {"metadata": meta, "spec": spec, "status": whole})

    async def _kubelet(self, name: str) -> None:
        await super()._kubelet(name)
        self.report()


@pytest.mark.parametrize(("call", "fault"), [case for case in CASES if case[0] not in ("create", "delete", "lease")])
async def test_calls_that_fail(call: str, fault: Fault) -> None:
    api = RefusingApi()
    daemon = NodeDaemon(NodeConfig(NODE, "", (), "127.0.0.1:0", "console", "error"))
    node, stop = ReportingRuntime(api), asyncio.Event()
    task = asyncio.create_task(daemon.serve(cast("NodeRuntime", node), cast("KubeClient", api), stop))
    world = Running(daemon._health, api, node)
    await world.pass_by(20)
    api.fail(call, fault)
    api.calls.clear()
    for name in NAMES:
        world.request(name)
    await asyncio.sleep(60)
    assert [made for made, number in api.calls.items() if number > A_MINUTE * len(NAMES)] == []
    api.heal()
    await asyncio.sleep(WRITE_RETRY.maximum * (1 + WRITE_RETRY.jitter) + (fault is Fault.HANG) * CALL_SECONDS + SECONDS)
    phases: list[Any] = [api.objects[REQUESTS.plural][name]["status"]["phase"] for name in NAMES]
    stop.set()
    await task
    assert phases == ["Completed"] * len(NAMES)
