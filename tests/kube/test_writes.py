"""Status, pins and events, as they arrive at an API server."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from crrd.core.api.pod import ContainerKind, Pod, PodContainer
from crrd.core.api.reasons import EventReason, Reason
from crrd.core.api.types import Pin, RecreateState, Request, RequestPhase, StartTimes, StatePhase, Status
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.lifecycle import steps as lc
from crrd.core.recreate.actions import EmitEvent
from crrd.kube import events as events_module
from crrd.kube.client import KubeClient
from crrd.kube.events import CAPACITY, KubeEventSink
from crrd.kube.reflector import Reflector
from crrd.kube.resources import EVENTS, PODS, REQUESTS
from crrd.kube.writer import RequestWriter
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConflictError, GoneError
from crrd.node.watches import pod_source, request_source
from tests.support.faulty_api import FaultyApiServer
from tests.support.observers import Notes
from tests.support.scripted_api import FixedAccess, ScriptedApi, echo, listing, refuse, scripted_api

REQUEST = {
    "apiVersion": "apps.kruise.io/v1alpha1",
    "kind": "ContainerRecreateRequest",
    "metadata": {
        "name": "r",
        "namespace": "default",
        "labels": {
            "crr.apps.kruise.io/pod-uid": "p-1",
            "crr.apps.kruise.io/node-name": "node-1",
            "crr.apps.kruise.io/active": "true",
        },
    },
    "spec": {"podName": "web-0", "containers": [{"name": "app"}]},
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web-0", "namespace": "default"},
    "spec": {"nodeName": "node-1", "containers": [{"name": "app", "image": "x"}]},
}


@asynccontextmanager
async def local() -> AsyncIterator[tuple[FaultyApiServer, KubeClient]]:
    async with FaultyApiServer() as server, KubeClient(FixedAccess(server.url)) as client:
        yield server, client


async def created(client: KubeClient) -> Request:
    return parse_request(await client.create(REQUESTS, "default", REQUEST))


async def test_a_status_is_written_and_comes_back() -> None:
    async with local() as (_, client):
        request = await created(client)
        writer = RequestWriter(client)
        waits = RecreateState("app", is_killed=True, reason=Reason.NOT_STARTED_AGAIN)
        first = Status(RequestPhase.RECREATING, (waits,), message="stopping", reason=Reason.OTHER_WORK)
        written = await writer.write_status(request, first)
        assert written.status == first
        assert reasons(written) == [Reason.OTHER_WORK, Reason.NOT_STARTED_AGAIN]  # the CRD's schema has them
        assert written.resource_version != request.resource_version
        assert replace(written, status=Status(), resource_version="") == replace(request, resource_version="")
        last = Status(
            RequestPhase.COMPLETED,
            (RecreateState("app", StatePhase.SUCCEEDED, is_killed=True),),
            completion_time="2026-01-02T03:04:05Z",
        )
        written = await writer.write_status(written, last)
        assert written.status == last  # the message of before is gone too
        assert reasons(written) == [Reason.NONE, Reason.NONE]  # and so are its reasons
        assert parse_request(await client.get(REQUESTS, "default", "r")) == written


def reasons(request: Request) -> list[Reason]:
    """Of the request, and of its containers."""
    return [request.status.reason, *(state.reason for state in request.status.states)]


async def test_pins_are_written_and_come_back() -> None:
    async with local() as (_, client):
        spec = {"podName": "web-0", "containers": [{"name": "app"}, {"name": "log"}]}
        request = parse_request(await client.create(REQUESTS, "default", {**REQUEST, "spec": spec}))
        pins = {"app": Pin("containerd://c1", 3)}
        written = await RequestWriter(client).pin(request, pins, {})
        assert written.pinned == pins
        assert written.start_times == {}
        assert written.containers == request.containers
        more = {**pins, "log": Pin("containerd://c2")}
        start_times = {"log": StartTimes(hook="2026-01-02T03:04:05Z")}
        written = await RequestWriter(client).pin(written, more, start_times)
        assert (written.pinned, written.start_times) == (more, start_times)
        start_times = {
            "app": StartTimes(stop="2026-01-02T03:04:06Z"),
            "log": replace(start_times["log"], stop="2026-01-02T03:04:07Z"),
        }
        written = await RequestWriter(client).pin(written, more, start_times)
        assert (written.pinned, written.start_times) == (more, start_times)
        assert parse_request(await client.get(REQUESTS, "default", "r")) == written


async def test_nothing_is_written_on_another_version_or_another_request() -> None:
    async with local() as (_, client):
        writer = RequestWriter(client)
        request = await created(client)
        newer = await writer.write_status(request, Status(RequestPhase.PENDING, message="first"))
        with pytest.raises(ConflictError):
            await writer.write_status(request, Status(RequestPhase.COMPLETED))
        with pytest.raises(ConflictError):
            await writer.pin(request, {}, {})
        assert parse_request(await client.get(REQUESTS, "default", "r")) == newer
        await client.delete(REQUESTS, "default", "r")
        with pytest.raises(GoneError):
            await writer.write_status(newer, Status(RequestPhase.COMPLETED))
        successor = await created(client)
        with pytest.raises((ConflictError, GoneError)):
            await writer.write_status(newer, Status(RequestPhase.COMPLETED))
        # Were the version the same by chance, only a write of the object itself would be held against the uid.
        with pytest.raises(GoneError):
            await writer.pin(replace(successor, uid=newer.uid), {}, {})
        assert parse_request(await client.get(REQUESTS, "default", "r")) == successor


@pytest.mark.parametrize(
    "action", [lc.AddFinalizer(), lc.RemoveFinalizer(), lc.RecordUnready("2026-01-02T03:04:05Z"), lc.RemoveActive()]
)
async def test_the_lifecycle_writes_nothing_on_another_version_or_another_request(action: lc.RequestAction) -> None:
    async with local() as (_, client):
        writer = RequestWriter(client)
        request = await created(client)
        newer = await writer.write_status(request, Status(RequestPhase.PENDING))
        with pytest.raises(ConflictError):
            await writer.carry_out(request, action)
        # Of the same name and version, and not the one that was decided on.
        with pytest.raises(GoneError, match=r"metadata\.uid"):
            await writer.carry_out(replace(newer, uid="u-of-before"), action)
        assert parse_request(await client.get(REQUESTS, "default", "r")) == newer
        await client.delete(REQUESTS, "default", "r")
        with pytest.raises(GoneError):
            await writer.carry_out(newer, action)


async def test_another_request_of_the_name_is_not_deleted() -> None:
    async with local() as (_, client):
        request = await created(client)
        with pytest.raises(ConflictError):
            await RequestWriter(client).carry_out(replace(request, uid="u-of-before"), lc.Delete())
        assert parse_request(await client.get(REQUESTS, "default", "r")) == request


@pytest.mark.parametrize("there", [True, False])
async def test_one_404_does_not_make_a_request_gone(*, there: bool) -> None:
    """An API server that is behind says it, too. The newest list decides; if that fails, nothing is known."""
    async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client:
        request = event().request
        meta = {"namespace": request.namespace, "name": request.name, "uid": request.uid}
        other = {"metadata": {**meta, "uid": "another"}}
        api.then(
            refuse(404, name=request.name),
            listing("9", {"metadata": meta} if there else other),
            refuse(404, name=request.name),
            refuse(403),
        )
        with pytest.raises(ApiUnavailableError if there else GoneError):
            await RequestWriter(client).carry_out(request, lc.AddFinalizer())
        assert api.seen[1].query["fieldSelector"] == f"metadata.name={request.name}"
        with pytest.raises(ApiRefusedError, match="403"):
            await RequestWriter(client).carry_out(request, lc.AddFinalizer())


async def test_what_else_the_server_holds_invalid_is_refused_and_not_gone() -> None:
    async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client:
        request = event().request
        api.then(
            refuse(422, "metadata.finalizers: Invalid value"),
            refuse(422, "metadata.uid: Invalid value: field is immutable"),
        )
        with pytest.raises(ApiRefusedError) as caught:
            await RequestWriter(client).carry_out(request, lc.AddFinalizer())
        assert type(caught.value) is ApiRefusedError
        with pytest.raises(GoneError) as gone:
            await RequestWriter(client).carry_out(request, lc.AddFinalizer())
        assert gone.value.status == 422
        assert json.loads(api.bodies[0])["metadata"]["uid"] == request.uid


def event(**fields: Any) -> EmitEvent:
    request = parse_request({**REQUEST, "metadata": {**REQUEST["metadata"], "uid": "u-1", "resourceVersion": "7"}})  # type: ignore[dict-item]  # a literal of mixed values
    return replace(EmitEvent(request, EventReason.HOOK_FAILED, "hook failed", container="app"), **fields)


class CountingSink(KubeEventSink):
    """Counts the events that are dropped."""

    def __init__(self, client: KubeClient) -> None:
        super().__init__(client, "node-1", on_drop=self._count)
        self.dropped = 0

    def _count(self) -> None:
        self.dropped += 1


@asynccontextmanager
async def scripted_sink() -> AsyncIterator[tuple[ScriptedApi, CountingSink]]:
    async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client:
        sink = CountingSink(client)
        task = asyncio.create_task(run(sink))
        try:
            yield api, sink
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def run(sink: KubeEventSink) -> None:
    await sink.run()


@pytest.mark.virtual_time
async def test_what_is_told_of_goes_before_the_events_about_it() -> None:
    began = asyncio.get_running_loop().time()
    written: list[float] = []

    class Client:
        async def create(self, *_: object) -> None:
            written.append(asyncio.get_running_loop().time() - began)

    sink = KubeEventSink(cast("KubeClient", Client()), "node-1")
    task = asyncio.create_task(run(sink))
    sink.emit(event())
    sink.emit(event())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert written == pytest.approx([0.02, 0.04, 0.06, 0.08])


class SlowClient:
    """Takes so many seconds for an event of a namespace. Fails for the namespace `noisy`."""

    def __init__(self, **seconds: float) -> None:
        self._seconds = seconds
        self.namespaces: list[str] = []  # Of the written events
        self.messages: list[str] = []
        self.under_way = self.most = 0

    async def create(self, _: object, namespace: str, body: Mapping[str, Any]) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(self._seconds[namespace])
            if namespace == "noisy":
                raise ApiUnavailableError("no answer in time")
        finally:
            self.under_way -= 1
        self.namespaces.append(namespace)
        self.messages.append(body["message"])


@asynccontextmanager
async def slow_sink(client: SlowClient) -> AsyncIterator[CountingSink]:
    sink = CountingSink(cast("KubeClient", client))
    task = asyncio.create_task(run(sink))
    yield sink
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def event_in(namespace: str, message: str = "hook failed", **about: str) -> EmitEvent:
    return event(message=message, request=replace(event().request, namespace=namespace, **about))  # type: ignore[arg-type]


@pytest.mark.virtual_time
async def test_events_that_hang_in_one_namespace_delay_no_other() -> None:
    client = SlowClient(noisy=15.0, quiet=0.0)
    async with slow_sink(client) as sink:
        for namespace in [*["noisy"] * 200, "quiet"]:
            sink.emit(event_in(namespace))
        await asyncio.sleep(10)
        assert client.namespaces == ["quiet"] * 2
        assert client.most == 7
        assert sink.dropped == 0
        assert not await sink.flush(1)
        assert await sink.flush(3600)
        assert sink.dropped == 400


@pytest.mark.virtual_time
async def test_events_of_a_slow_namespace_wait_but_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "CAPACITY", 300)
    client = SlowClient(slow=8.0, quiet=0.01)
    async with slow_sink(client) as sink:
        for number in range(200):
            sink.emit(event_in("slow", str(number), pod_name=""))
        await asyncio.sleep(6)
        for number in range(200, 500):
            sink.emit(event_in("slow", str(number), pod_name=""))
            sink.emit(event_in("quiet", pod_name=""))
            await asyncio.sleep(0.05)
        assert client.namespaces.count("quiet") == 300
        assert client.most == 7
        assert await sink.flush(3600)
    late = [int(message) for message in client.messages if message.isdecimal()]
    assert sink.dropped == 500 - len(late)  # the slow namespace's own oldest
    assert sorted(late)[-250:] == [*range(250, 500)]


@pytest.mark.virtual_time
async def test_a_flood_beside_a_slow_namespace_drops_its_own_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "CAPACITY", 100)
    client = SlowClient(slow=8.0, quiet=0.001)
    async with slow_sink(client) as sink:
        for namespace in [*["slow"] * 10, *["quiet"] * 200]:
            sink.emit(event_in(namespace, pod_name=""))
            await asyncio.sleep(0.5 if namespace == "slow" else 0)
        assert await sink.flush(3600)
    assert (client.namespaces.count("slow"), client.namespaces.count("quiet") + sink.dropped) == (10, 200)


async def test_events_reach_the_request_and_its_pod() -> None:
    async with local() as (_, client):
        sink = CountingSink(client)
        task = asyncio.create_task(run(sink))
        sink.emit(event())
        sink.emit(event(reason=EventReason.FAILED, message="x" * 2000, container="", warning=True))
        assert await sink.flush(30)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        found = await client.list_all(EVENTS, dict, namespace="default")
    assert sink.dropped == 0
    by_kind = sorted(found.items, key=lambda item: (item["involvedObject"]["kind"], item["metadata"]["name"]))
    request, failed, pod, pod_failed = by_kind
    assert request["involvedObject"] == {
        "apiVersion": "apps.kruise.io/v1alpha1",
        "kind": "ContainerRecreateRequest",
        "namespace": "default",
        "name": "r",
        "uid": "u-1",
        "resourceVersion": "7",
    }
    assert pod["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "web-0",
        "uid": "p-1",
        "fieldPath": "spec.containers{app}",
    }
    assert "fieldPath" not in pod_failed["involvedObject"]
    assert (request["type"], request["reason"], request["message"], request["count"]) == (
        "Normal",
        "FailedPreStopHook",
        "hook failed",
        1,
    )
    assert (failed["type"], failed["reason"], failed["message"]) == ("Warning", "ContainerRecreateFailed", "x" * 1024)
    assert request["source"] == {"component": "crrd", "host": "node-1"}
    assert request["reportingComponent"] == "crrd"
    assert request["firstTimestamp"] == request["lastTimestamp"]
    prefix, _, stamp = request["metadata"]["name"].rpartition(".")
    assert prefix == "r"
    assert int(stamp, 16) > 0


async def test_a_recreate_that_goes_well_has_two_events_in_all() -> None:
    async with scripted_sink() as (api, sink):
        api.then(*[echo()] * 2)
        sink.emit(event(reason=EventReason.RECREATING))
        sink.emit(event(reason=EventReason.RECREATED))
        assert await sink.flush(30)
        bodies = [json.loads(body) for body in api.bodies]
        assert [(body["reason"], body["involvedObject"]["kind"]) for body in bodies] == [
            ("ContainerRecreating", "ContainerRecreateRequest"),
            ("ContainerRecreated", "Pod"),
        ]


async def test_events_say_only_what_the_request_says() -> None:
    async with scripted_sink() as (api, sink):
        api.then(*[echo()] * 3)
        nameless = replace(event().request, name="", pod_name="")
        sink.emit(event(request=nameless))
        sink.emit(event(request=replace(event().request, namespace="")))
        sink.emit(event(request=replace(event().request, name="n" * 250 + "-.x", pod_uid="")))
        assert await sink.flush(30)
        bodies = [json.loads(body) for body in api.bodies]
        assert [body["involvedObject"]["kind"] for body in bodies] == ["ContainerRecreateRequest", "Pod"]
        assert len(bodies[0]["metadata"]["name"]) <= 253
        assert bodies[0]["metadata"]["name"].startswith("n" * 200)
        assert "uid" not in bodies[1]["involvedObject"]


@pytest.mark.parametrize(
    ("pod", "uid", "field"),
    [
        ({"static_uid": "0f1e"}, "0f1e", "spec.containers{app}"),
        ({"containers": {"app": PodContainer("app", ContainerKind.SIDECAR)}}, "p-1", "spec.initContainers{app}"),
        ({"containers": {"app": PodContainer("app", ContainerKind.INIT)}}, "p-1", "spec.initContainers{app}"),
        ({"containers": {"app": PodContainer("app", ContainerKind.EPHEMERAL)}}, "p-1", "spec.ephemeralContainers{app}"),
    ],
)
async def test_a_pods_events_name_it_as_kubelet_does(pod: dict[str, Any], uid: str, field: str) -> None:
    async with scripted_sink() as (api, sink):
        api.then(echo())
        sink.emit(event(reason=EventReason.RECREATED, pod=Pod("default", "web-0", "p-1", **pod)))
        assert await sink.flush(30)
        involved = json.loads(api.bodies[0])["involvedObject"]
        assert (involved["uid"], involved["fieldPath"]) == (uid, field)


async def test_names_are_unique_and_rise() -> None:
    async with scripted_sink() as (api, sink):
        api.then(*[echo()] * 40)
        for _ in range(20):
            sink.emit(event())
        assert await sink.flush(30)
        names = [json.loads(body)["metadata"]["name"] for body in api.bodies]
        assert len(set(names)) == 40


async def test_an_event_that_cannot_be_written_is_tried_again_and_then_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "_RETRY", replace(events_module._RETRY, initial=0.01))
    async with scripted_sink() as (api, sink):
        with capture_logs() as logs:
            api.then(refuse(500), echo(), *[refuse(503)] * 3)
            sink.emit(event())
            assert await sink.flush(30)
            assert len(api.bodies) == 5
            assert api.bodies[0] == api.bodies[1]
            assert sink.dropped == 1
            api.then(refuse(403), refuse(422))
            sink.emit(event())
            assert await sink.flush(30)
            assert len(api.bodies) == 7
            assert sink.dropped == 3
            api.then(echo(), refuse(403))
            sink.emit(event())
            assert await sink.flush(30)
        assert [(entry["event"], entry["log_level"]) for entry in logs] == [("events dropped", "warning")] * 2


async def test_an_event_that_is_there_already_was_written_and_its_answer_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "_RETRY", replace(events_module._RETRY, initial=0.01))
    async with scripted_sink() as (api, sink):
        with capture_logs() as logs:
            api.then(refuse(504), refuse(409), echo())
            sink.emit(event())
            assert await sink.flush(30)
        assert len(api.bodies) == 3
        assert (sink.dropped, logs) == (0, [])


async def test_the_oldest_are_dropped_when_too_many_wait() -> None:
    with capture_logs() as logs:
        async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client:
            sink = CountingSink(client)
            for number in range(CAPACITY // 2 + 2):
                sink.emit(event(message=f"number {number}"))
            assert sink.dropped == 4
            assert not await sink.flush(0)
            api.then(echo())
            task = asyncio.create_task(run(sink))
            await api.silent.wait()
            for number in range(2):
                sink.emit(event(message=f"late {number}"))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert json.loads(api.bodies[0])["message"] == "number 2"
    assert sink.dropped == 6
    assert [entry["event"] for entry in logs] == ["events dropped"]  # a flood is told of once


async def test_a_flush_with_nothing_to_write_is_over_at_once() -> None:
    async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client:
        assert await KubeEventSink(client, "node-1").flush(30)


async def test_requests_are_followed_through_the_faults_of_a_server() -> None:
    async with local() as (server, client):
        notes = Notes()
        source = request_source(client, "node-1", notes)
        task = asyncio.create_task(follow(source))
        await notes.until("listed")
        request = await created(client)
        await client.create(REQUESTS, "default", {**REQUEST, "metadata": {"name": "elsewhere"}})
        await notes.until("listed", "changed r")
        server.drop_connections()
        await RequestWriter(client).write_status(request, Status(RequestPhase.PENDING))
        await notes.until("listed", "changed r", "changed r")
        server.end_watches()
        await client.merge_patch(
            REQUESTS, "default", "r", {"metadata": {"labels": {"crr.apps.kruise.io/active": None}}}
        )
        await notes.until("listed", "changed r", "changed r", "deleted r")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def follow(source: Reflector[Any]) -> None:
    await source.run()


@pytest.mark.parametrize("as_event", [True, False])
async def test_a_compacted_history_is_listed_again(as_event: bool) -> None:
    async with FaultyApiServer(expired_as_event=as_event) as server, KubeClient(FixedAccess(server.url)) as client:
        notes = Notes()
        task = asyncio.create_task(follow(request_source(client, "node-1", notes)))
        await notes.until("listed")
        server.fail_next(2, 503, match=lambda call: call.verb == "watch")
        server.end_watches()
        await created(client)
        server.compact()
        await notes.until("listed", "listed r")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_pods_of_the_node_are_followed() -> None:
    async with local() as (_, client):
        await client.create(PODS, "default", POD)
        other = {**POD, "metadata": {"name": "other"}, "spec": {"containers": [{"name": "a", "image": "x"}]}}
        await client.create(PODS, "default", other)
        notes = Notes()
        task = asyncio.create_task(follow(pod_source(client, "node-1", notes)))
        await notes.until("listed default/web-0")
        status = {"status": {"podIP": "10.0.0.7"}}
        await client.merge_patch(PODS, "default", "web-0", status, subresource="status")
        await notes.until("listed default/web-0", "changed web-0")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_flood_says_in_the_end_what_it_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "CAPACITY", 4)
    async with scripted_sink() as (api, sink):
        with capture_logs() as logs:
            api.then(*[echo()] * 8)
            for _ in range(5):
                sink.emit(event())
            assert await sink.flush(30)
            sink.emit(event())
            assert await sink.flush(30)
    assert [(entry["event"], entry.get("count")) for entry in logs] == [("events dropped", None), ("events dropped", 6)]
