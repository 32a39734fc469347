"""Each loop of the manager, ended or silently hanging, turns /healthz red by its name: the whole in memory."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, cast
from unittest.mock import patch

import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import make_mocked_request

from crrd.core.api.time import parse_time
from crrd.core.api.types import API_VERSION, KIND, LABEL_READINESS_GATE
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.leader import LeaderElection
from crrd.kube.resources import NAMESPACES, PODS, POLICIES, REQUESTS, WEBHOOKS, Resource
from crrd.lib.backoff import REFUSED
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError
from crrd.lib.health import Health
from crrd.lib.heartbeat import PATIENCE_SECONDS, Heartbeat
from crrd.manager import pod_reads
from crrd.manager.certificates.tls import ServingTls
from crrd.manager.daemon import Clients, _serve
from crrd.manager.lifecycle import LOOK_SECONDS
from crrd.manager.metrics import ManagerMetrics
from crrd.manager.webhook.handler import AdmissionHandler
from crrd.manager.webhook.server import REQUEST_KINDS, WebhookServer
from tests.support.admission import new_request, new_review
from tests.support.health_pages import Watched, page
from tests.support.manager import CONFIG
from tests.support.silent_api import SilentApi
from tests.support.webhook import QUICK, Pods, load, new_certificates

pytestmark = pytest.mark.virtual_time


@dataclass
class Managing(Watched):
    """A manager and its world."""

    api: SilentApi
    clock: ServerClock

    def request(self, name: str = "r1", created: str = "2026-01-01T00:00:00Z", phase: str = "") -> None:
        """Somebody created a request long ago, and no daemon has answered."""
        labels = {"crr.apps.kruise.io/node-name": "n1", "crr.apps.kruise.io/active": "true"}
        meta = {
            "namespace": "default",
            "name": name,
            "uid": name,
            "resourceVersion": "1",
            "creationTimestamp": created,
            "labels": labels,
        }
        spec = {"podName": "web", "containers": [{"name": "app"}]}
        head = {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta}
        self.api.put(REQUESTS, {**head, "spec": spec, "status": {"phase": phase}})

    def pod(self) -> None:
        """The request's pod."""
        meta = {"namespace": "default", "name": "web", "uid": "pod-1", "resourceVersion": "1"}
        self.api.put(PODS, {"metadata": meta, "spec": {"containers": [{"name": "app"}]}, "status": {}})

    def policy(self) -> None:
        """A policy whose namespace grants its configuration. No pod has its label."""
        meta = {"namespace": "default", "name": "web", "uid": "policy-1", "resourceVersion": "1", "generation": 1}
        spec = {"selector": {"matchLabels": {"app": "none"}}, "triggers": {"configChange": {}}}
        self.api.put(POLICIES, {"metadata": meta, "spec": spec})


@asynccontextmanager
async def managing(*mute: str) -> AsyncIterator[Managing]:
    """The whole composition; `mute` are calls that are never answered, from the beginning. Pods are read at once."""
    api, health, stop, clock = SilentApi(), Health(), asyncio.Event(), ServerClock()
    api.mute |= set(mute)
    labels = {LABEL_READINESS_GATE: "enabled"}
    api.put(NAMESPACES, {"metadata": {"name": "default", "resourceVersion": "1", "labels": labels}})
    api.put(WEBHOOKS, {"metadata": {"name": "crrd", "resourceVersion": "1"}})
    client = cast("KubeClient", api)
    clients = Clients(client, client, client, client)
    task = asyncio.create_task(
        _serve(
            replace(CONFIG, webhook_configurations=("crrd",)),
            clients,
            clock,
            health=health,
            metrics=ManagerMetrics(),
            stop=stop,
        )
    )
    await asyncio.sleep(0)
    try:
        with patch.object(pod_reads, "PATIENCE_SECONDS", 0.0):
            yield Managing(health, api, clock)
        api.mute.clear()
        stop.set()
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_manager_that_works_stays_green() -> None:
    async with managing() as world:
        world.pod()
        world.request()
        assert await world.pass_by(3600) == (200, {})
        assert world.api.objects["containerrecreaterequests"]["r1"]["status"]["phase"] == "Completed"
        assert (await page(world.health, "/readyz"))[0] == 200


async def test_the_lease_has_the_api_servers_time() -> None:
    """`crrd doctor` compares it with that. The clock of the manager's node may be wrong."""
    async with managing() as world:
        moment = world.clock.monotonic()
        world.clock.observe("Tue, 01 Jan 2030 00:00:00 GMT", moment, moment)
        await world.pass_by(20)
        renewed = parse_time(world.api.objects["leases"]["crrd-manager"]["spec"]["renewTime"])
        assert renewed is not None
        assert 0 <= (world.clock.now() - renewed).total_seconds() < 5


async def found_by_the_code() -> tuple[list[str], list[str]]:
    """Return the manager's tasks that run as long as it leads, and the calls with which it watches."""
    async with managing() as world:
        world.policy()
        await world.pass_by(20)
        runs = asyncio.current_task()
        names = [task.get_name() for task in asyncio.all_tasks() if task is not runs]
        lasting = [name for name in names if not name.startswith("Task-")]
        return sorted(lasting), sorted(world.api.watched)


async def test_each_loop_that_has_ended_is_reported() -> None:
    """Every task with a name is a loop, a controller or a watch."""
    lasting, _ = await found_by_the_code()
    some = {"requests", "watch pods", "policies", "policies controller", "policies-queue", "events"}
    assert some <= set(lasting), "the code is found"
    for name in lasting:
        async with managing() as world:
            world.policy()
            await world.pass_by(20)
            for task in (task for task in asyncio.all_tasks() if task.get_name() == name):
                task.cancel()
            _, failed = await world.pass_by(30)
            assert list(failed.values()) == ["the loop has stopped"], name


@pytest.mark.parametrize("verb", ["list", "open", "watch"])
async def test_each_watch_that_hangs_is_reported(verb: str) -> None:
    _, watched = await found_by_the_code()
    assert {"pods", "namespaces", "containerrecreatepolicies", "configmaps"} <= set(watched), "the code is found"
    for plural in watched:
        async with managing(f"{verb} {plural}") as world:
            world.policy()
            _, failed = await world.pass_by(330)
            assert failed, plural
            # Two loops may watch one kind, and a policy's round lists, too.
            assert all(why.startswith(("hangs: ", "work on default/web ")) for why in failed.values()), failed


async def test_each_right_that_a_watch_lacks_is_reported() -> None:
    """But for configuration, see its policies' status. A single replica still serves admission, so it stays ready."""
    _, watched = await found_by_the_code()
    for plural in set(watched) - {"configmaps", WEBHOOKS.plural}:
        async with managing() as world:
            world.policy()
            world.api.forbidden.add(f"list {plural}")
            await world.pass_by(60)
            status, failed = await page(world.health, "/readyz")
            assert status == 200, plural
            assert any(f"crrd lacks the right to read {plural}" in why for why in failed.values()), plural


async def test_work_on_a_pod_that_hangs() -> None:
    async with managing("get pods") as world:
        await world.pass_by(20)
        world.request()
        assert (await world.red("pod-reads", LOOK_SECONDS + 40)).startswith("work on default/web has not finished for")


async def test_work_on_a_pod_that_goes_on_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write of its many requests fails after as long as a call may take."""
    async with managing() as world:
        patch = world.api.merge_patch

        async def slow(resource: Resource, *args: Any, **options: Any) -> Mapping[str, Any]:
            if resource is REQUESTS:
                await asyncio.sleep(10.0)
                raise ApiUnavailableError("patch: failed calling webhook: context deadline exceeded")
            return await patch(resource, *args, **options)

        monkeypatch.setattr(world.api, "merge_patch", slow)
        for number in range(2 * int(LOOK_SECONDS / 10)):
            world.request(f"r{number}")
        assert await world.pass_by(4 * LOOK_SECONDS) == (200, {})


async def test_a_pod_whose_lookup_is_refused_is_asked_for_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async with managing() as world:
        del world.api.objects["namespaces"]["default"]  # nothing watches its pods
        world.pod()
        await world.pass_by(20)
        world.request(created="", phase="Recreating")
        await world.pass_by(20)
        get, asked = world.api.get, []

        async def refused(resource: Resource, namespace: str, name: str) -> Mapping[str, Any]:
            if resource is not PODS:
                return await get(resource, namespace, name)
            asked.append(name)
            raise ApiRefusedError("get pods: forbidden", status=403)

        monkeypatch.setattr(world.api, "get", refused)
        await world.pass_by(600)
        asked.clear()
        await world.pass_by(10 * REFUSED.maximum)
        assert 8 <= len(asked) <= 10


async def test_a_leader_whose_controllers_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def idle(self: LeaderElection, _: object) -> None:
        self._renewed = asyncio.get_running_loop().time() + 3600
        await asyncio.Event().wait()

    monkeypatch.setattr(LeaderElection, "run", idle)
    async with managing() as world:
        said = "this manager is the leader, but its controllers are not running"
        assert await world.red("leader", 30) == said


async def test_certificates_that_hang() -> None:
    async with managing("get secrets") as world:
        assert (await world.red("certificates", 340)).startswith("hangs: checking the certificate")


async def test_an_election_that_hangs_before_it_leads() -> None:
    async with managing("get leases") as world:
        assert (await world.red("election", 160)).startswith("hangs: reading the lease")


async def test_an_election_that_hangs_while_it_leads() -> None:
    async with managing() as world:
        await world.pass_by(20)
        world.api.mute.add("patch leases")
        assert (await world.red("election", 180)).startswith("hangs: reading the lease")


async def test_events_that_hang() -> None:
    async with managing("create events") as world:
        assert await world.pass_by(600) == (200, {})
        world.request()  # its pod does not exist: it is ended, with an event
        assert (await world.red("events", 160)).startswith("hangs: writing an event")


def reader(raw: bytes) -> StreamReader:
    """The body of a call."""
    loop = asyncio.get_running_loop()
    stream = StreamReader(BaseProtocol(loop), 2**16, loop=loop)
    stream.feed_data(raw)
    stream.feed_eof()
    return stream


async def test_admission_that_hangs() -> None:
    """The answer is not there long after its deadline."""
    health, forever = Health(), asyncio.Event()

    async def deaf() -> None:
        while not forever.is_set():
            with suppress(asyncio.CancelledError):
                await forever.wait()

    pods = Pods(before=deaf)
    server = WebhookServer("127.0.0.1:0", ServingTls(), pods, health, limits=QUICK)
    raw = json.dumps(new_review(new_request())).encode()
    headers = {"Content-Type": "application/json"}
    call = make_mocked_request("POST", "/mutate-crr", headers=headers, payload=reader(raw))
    answering = asyncio.create_task(server._handle(REQUEST_KINDS, AdmissionHandler(pods).review_request, call))
    assert (await Watched(health).red("webhook", 45)).startswith("hangs: a call has been under way for")
    forever.set()
    await answering
    assert await page(health) == (200, {})


async def test_a_listener_that_has_ended() -> None:
    health, tls = Health(), ServingTls()
    load(tls, new_certificates())
    server = WebhookServer("127.0.0.1:0", tls, Pods(), health, limits=QUICK)
    await server.start()
    assert await page(health) == (200, {})
    server.connections.stop_accepting()
    assert await page(health) == (503, {"webhook": "the listener has ended"})
    await server.drain()


async def test_a_webhook_that_does_not_hear_of_its_certificate() -> None:
    health, tls, stop = Health(), ServingTls(), asyncio.Event()
    server = WebhookServer("127.0.0.1:0", tls, Pods(), health, limits=QUICK)
    serving = asyncio.create_task(server.run(stop))
    assert await Watched(health).pass_by(600) == (200, {})
    waiters = cast("Any", tls.loaded)._waiters
    waiter = waiters.popleft()
    load(tls, new_certificates())
    assert (await Watched(health).red("webhook", PATIENCE_SECONDS + 45)).startswith("hangs: waiting for a certificate")
    waiters.append(waiter)
    stop.set()
    await serving


async def test_an_event_that_comes_and_goes_is_not_held_against_a_loop() -> None:
    heartbeat, event = Heartbeat(), asyncio.Event()
    assert heartbeat.check() == ""
    heartbeat.until(event, "waiting")
    for _ in range(3):
        event.set()
        assert heartbeat.check() == ""
        event.clear()
        await asyncio.sleep(PATIENCE_SECONDS + 1)
        assert heartbeat.check() == ""
    event.set()
    assert heartbeat.check() == ""
    await asyncio.sleep(PATIENCE_SECONDS + 1)
    assert heartbeat.check() == "hangs: waiting, 16s longer than expected"
    heartbeat.within(5, "working")
    assert heartbeat.check() == ""
    await asyncio.sleep(7)
    assert heartbeat.check() == "hangs: working, 2s longer than expected"
    heartbeat.rest()
    assert heartbeat.check() == ""
