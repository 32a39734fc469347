"""Each kind of the manager's calls fails for a minute: they become rare, and all is well within seconds afterwards."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from crrd.core.api.time import rfc3339
from crrd.core.api.types import API_VERSION, KIND, LABEL_READINESS_GATE, READINESS_GATE
from crrd.kube.client import KubeClient
from crrd.kube.resources import CONFIG_MAPS, LEASES, NAMESPACES, PODS, POLICIES, REQUESTS, WEBHOOKS
from crrd.lib.backoff import FAILED, REFUSED
from crrd.lib.health import Health
from crrd.manager.daemon import Clients, _serve
from crrd.manager.metrics import ManagerMetrics
from tests.support.health_pages import page
from tests.support.manager import CONFIG
from tests.support.refusing_api import CALL_SECONDS, CASES, Fault, RefusingApi
from tests.support.virtual_time import LoopClock

pytestmark = pytest.mark.virtual_time

NUMBER = 2  # Objects of each kind of work
A_MINUTE = 12  # Most calls of one kind for one object
LEASE_MINUTE = 60  # A leader writes its lease every two seconds, and reads it after a conflict
SECONDS = 5.0  # For the work, once its calls succeed


class Teams:
    """Pods, requests and policies that need every kind of call."""

    def __init__(self, api: RefusingApi, clock: LoopClock) -> None:
        self.api, self.clock = api, clock

    def labelled(self, *names: str) -> None:
        """Namespaces whose pods are watched."""
        for name in names:
            meta = {"name": name, "uid": name, "resourceVersion": "1", "labels": {LABEL_READINESS_GATE: "enabled"}}
            self.api.put(NAMESPACES, {"metadata": meta})

    def pod(self, team: str, name: str) -> None:
        """A ready pod that uses a ConfigMap."""
        meta = {"namespace": team, "name": name, "uid": f"pod-{name}", "resourceVersion": "1", "labels": {"app": name}}
        uses = [{"configMapRef": {"name": f"cfg-{name}"}}]
        gates = [{"conditionType": READINESS_GATE}]
        spec = {"containers": [{"name": "app", "envFrom": uses}], "readinessGates": gates, "nodeName": "n1"}
        running = {"state": {"running": {"startedAt": "2025-01-01T00:00:00Z"}}, "ready": True, "started": True}
        status = {"name": "app", "containerID": f"containerd://{name}", "restartCount": 0, **running}
        ready = [{"type": each, "status": "True"} for each in ("Ready", READINESS_GATE)]
        whole = {"phase": "Running", "conditions": ready, "containerStatuses": [status]}
        self.api.put(
            PODS, {"metadata": {**meta, "creationTimestamp": "2025-01-01T00:00:00Z"}, "spec": spec, "status": whole}
        )

    def request(self, team: str, name: str, phase: str, **spec: Any) -> None:
        """A request for the pod of its name."""
        labels = {f"crr.apps.kruise.io/{key}": value for key, value in (("node-name", "n1"), ("active", "true"))}
        now = rfc3339(self.clock.now())
        meta = {"namespace": team, "name": name, "uid": name, "resourceVersion": "1", "creationTimestamp": now}
        spec = {
            "podName": name,
            "containers": [{"name": "app"}],
            "strategy": {"unreadyGracePeriodSeconds": 600},
            **spec,
        }
        head = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {**meta, "labels": labels}}
        self.api.put(REQUESTS, {**head, "spec": spec, "status": {"phase": phase}})

    def policy(self, team: str, name: str) -> None:
        """A policy for the pod of this name, which is older than it allows."""
        meta = {"namespace": team, "name": name, "uid": name, "resourceVersion": "1", "generation": 1}
        triggers = {"configChange": {"settle": "3s"}, "maxAge": "48h"}
        self.api.put(
            POLICIES, {"metadata": meta, "spec": {"selector": {"matchLabels": {"app": name}}, "triggers": triggers}}
        )
        self.api.put(
            CONFIG_MAPS, {"metadata": {"namespace": team, "name": f"cfg-{name}", "uid": name, "resourceVersion": "1"}}
        )

    def work(self) -> None:
        """Every kind of work, for several objects each."""
        for number in range(NUMBER):
            for name in (f"unready-{number}", f"old-{number}"):
                self.pod("gated", name)
            self.request("gated", f"unready-{number}", "Recreating")
            self.request("gated", f"done-{number}", "Completed", ttlSecondsAfterFinished=1)
            self.request("plain", f"gone-{number}", "Recreating")
            self.policy("gated", f"old-{number}")

    def missing(self) -> list[str]:
        """What has not been done."""
        found = []
        requests = self.api.objects[REQUESTS.plural]
        for number in range(NUMBER):
            unready, gone, old = (f"{each}-{number}" for each in ("unready", "gone", "old"))
            marked = "crr.apps.kruise.io/unready-acquired" in requests[unready]["metadata"].get("annotations", {})
            statuses = {
                each["type"]: each["status"] for each in self.api.objects["pods"][unready]["status"]["conditions"]
            }
            found += [unready] if not marked or statuses[READINESS_GATE] != "False" else []
            found += [f"done-{number}"] if f"done-{number}" in requests else []
            found += [gone] if requests[gone]["status"]["phase"] != "Completed" else []
            found += [] if any(each["spec"]["podName"] == old for each in requests.values()) else [old]
            found += [] if self.api.objects[POLICIES.plural][old].get("status") else [f"policy {old}"]
        return found


@asynccontextmanager
async def teams() -> AsyncIterator[Teams]:
    """The whole manager, which leads and has nothing to do."""
    api, health, stop, clock = RefusingApi(), Health(), asyncio.Event(), LoopClock()
    client = cast("KubeClient", api)
    world = Teams(api, clock)
    world.labelled("gated")
    api.put(WEBHOOKS, {"metadata": {"name": "crrd", "resourceVersion": "1"}, "webhooks": [{"clientConfig": {}}]})
    config = replace(CONFIG, webhook_configurations=("crrd",))
    serving = _serve(config, Clients(*[client] * 4), clock, health=health, metrics=ManagerMetrics(), stop=stop)
    task = asyncio.create_task(serving)
    await asyncio.sleep(20)
    try:
        assert (await page(health, "/readyz"))[0] == 200
        yield world
        stop.set()
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(("call", "fault"), CASES)
async def test_calls_that_fail(call: str, fault: Fault) -> None:
    async with teams() as world:
        api = world.api
        api.fail(call, fault)
        api.calls.clear()
        world.work()
        await asyncio.sleep(60)
        for made, number in api.calls.items():
            most = LEASE_MINUTE if made.endswith(LEASES.plural) else A_MINUTE * 3 * NUMBER
            assert number <= most, made
        api.heal()
        backoff = REFUSED if fault is Fault.FORBIDDEN else FAILED
        under_way = CALL_SECONDS if fault is Fault.HANG else 0.0
        await asyncio.sleep(backoff.maximum * (1 + backoff.jitter) + under_way + SECONDS)
        final = ["old"] if (call, fault) == ("create", Fault.FORBIDDEN) else []  # a request that admission denies
        assert [each for each in world.missing() if each.partition("-")[0] not in final] == []
