"""Watching requests and pods through everything that an API server and a network do."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from crrd.core.api.pod import Pod
from crrd.core.api.types import Request
from crrd.core.api.v1alpha1 import parse_request
from crrd.kube.client import Deadlines, KubeClient
from crrd.kube.reflector import Reflector
from crrd.kube.resources import PODS, REQUESTS
from crrd.lib.errors import ApiUnavailableError, ConfigurationError
from crrd.node import watches
from crrd.node.metrics import WATCH_REASONS
from crrd.node.pods import Pods
from crrd.node.watches import PodWatches, pod_source, request_source
from tests.support.observers import Notes
from tests.support.scripted_api import (
    FixedAccess,
    Reply,
    ScriptedApi,
    bookmark,
    event,
    failure,
    listing,
    refuse,
    reply,
    scripted_api,
    stream,
    vanish,
)
from tests.support.silent_api import SilentApi


def obj(name: str, version: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "n", "name": name, "uid": f"u-{name}", "resourceVersion": version}}


class Story:
    """A source that runs against a scripted API server."""

    def __init__(self, api: ScriptedApi, source: Reflector[Any], notes: Notes, task: asyncio.Task[None]):
        self.api = api
        self.source = source
        self.notes = notes
        self.task = task


@asynccontextmanager
async def story(
    *script: Reply, make: Callable[..., Reflector[Any]] = request_source, stall: float = 60
) -> AsyncIterator[Story]:
    async with scripted_api() as api:
        api.then(*script)
        notes = Notes()
        async with KubeClient(FixedAccess(api.url), deadlines=Deadlines(stall=stall)) as client:
            source = make(client, "node-1", notes)
            task = asyncio.create_task(run(source))
            try:
                yield Story(api, source, notes, task)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def run(source: Reflector[Any]) -> None:
    await source.run()


async def test_requests_are_listed_and_watched() -> None:
    script = (
        listing("5", obj("a", "3"), obj("b", "4")),
        stream(
            event("ADDED", obj("c", "6")),
            event("MODIFIED", obj("a", "7")),
            event("DELETED", obj("b", "8")),
            event("SOMETHING", {"odd": 1}),
            end="silent",
        ),
    )
    async with story(*script) as here:
        before = here.source.last_activity
        assert before is None
        await here.notes.until("listed a b", "changed c", "changed a", "deleted b")
        assert here.source.listed
        assert here.source.last_error == ""
        assert here.source.last_list_time is not None
        assert here.source.last_activity is not None
        assert here.source.last_activity >= here.source.last_list_time
        assert here.api.calls() == ["list", "watch 5"]
        path = "/apis/apps.kruise.io/v1alpha1/containerrecreaterequests"
        selector = "crr.apps.kruise.io/node-name=node-1,crr.apps.kruise.io/active in (true,image,pod,reload)"
        assert {(request.path, request.query["labelSelector"]) for request in here.api.seen} == {(path, selector)}
    assert not here.source.listed


async def test_a_watch_from_a_version_that_the_server_has_not_reached_ends_with_a_list() -> None:
    """After etcd was restored without a higher revision, API servers accept such a watch, and send nothing on it."""
    script = (listing("500", obj("a", "499")), stream(end="silent"), listing("101", obj("b", "101")))
    async with story(*script, stall=1.2) as here:
        await here.notes.until("listed a", "listed b")
        assert here.api.calls()[:3] == ["list", "watch 500", "list"]


async def test_a_watch_that_has_delivered_something_goes_on_from_there() -> None:
    script = (listing("5"), stream(bookmark("9"), end="silent"))
    async with story(*script, stall=1.2) as here:
        await here.api.silent.wait()
        assert here.api.calls() == ["list", "watch 5", "watch 9"]


async def test_an_open_watch_alone_is_no_activity() -> None:
    """CrrdDaemonNotWatching is about events and bookmarks."""
    seen: list[tuple[float | None, float | None]] = []

    def make(client: KubeClient, node_name: str, notes: Notes) -> Reflector[Request]:
        def ended(*_: str) -> None:
            seen.append((source.last_activity, source.last_list_time))

        source = request_source(client, node_name, notes, ended)
        return source

    async with story(listing("5", obj("a", "3")), stream(), listing("6", obj("b", "6")), make=make) as here:
        await here.notes.until("listed a")
        await here.api.silent.wait()
    assert seen[0][0] == seen[0][1]


async def test_pods_are_listed_from_the_cache_and_watched() -> None:
    script = (
        listing("5", obj("a", "3")),
        stream(event("MODIFIED", obj("a", "6")), event("DELETED", obj("a", "7")), end="silent"),
    )
    async with story(*script, make=pod_source) as here:
        await here.notes.until("listed n/a", "changed a", "deleted a")
        assert here.api.seen[0].query["resourceVersion"] == "0"
        assert {(request.path, request.query["fieldSelector"]) for request in here.api.seen} == {
            ("/api/v1/pods", "spec.nodeName=node-1")
        }


@pytest.mark.virtual_time
async def test_a_pods_watch_follows_its_list_soon() -> None:
    api, notes = SilentApi(), Notes()
    task = asyncio.create_task(run(pod_source(cast("KubeClient", api), "node-1", notes)))
    await asyncio.sleep(0.1)
    api.put(PODS, {**obj("a", "6"), "spec": {"nodeName": "node-1"}})  # told where a watch is open
    await asyncio.sleep(10)
    assert notes.received == ["listed", "changed a"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_source_may_be_run_again() -> None:
    async with story(listing("5")) as here:
        await here.api.silent.wait()
        here.task.cancel()
        await asyncio.gather(here.task, return_exceptions=True)
        here.api.then(listing("9", obj("a", "8")))
        here.api.silent.clear()
        here.task = asyncio.create_task(run(here.source))
        await here.api.silent.wait()
        assert here.notes.received == ["listed", "listed a"]
        assert here.source.listed


async def test_a_watch_that_ends_goes_on_from_where_it_was() -> None:
    script = (
        listing("5"),
        stream(event("ADDED", obj("a", "6"))),
        stream(bookmark("9")),
        stream(),
        stream(event("ADDED", obj("b", "10")), end="breaks"),
        vanish(),
    )
    async with story(*script) as here:
        await here.api.silent.wait()
        assert here.notes.received == ["listed", "changed a", "changed b"]
        assert here.api.calls() == ["list", "watch 5", "watch 6", "watch 9", "watch 9", "watch 10", "watch 10"]


@pytest.mark.parametrize(
    "expired",
    [refuse(410), stream(event("ERROR", failure(410))), stream(bookmark("6"), event("ERROR", failure(410)))],
)
async def test_an_expired_version_is_listed_again(expired: Reply) -> None:
    async with story(listing("5", obj("a", "3")), stream(), expired, listing("9", obj("b", "8"))) as here:
        await here.api.silent.wait()
        assert here.notes.received == ["listed a", "listed b"]
        assert here.api.calls() == ["list", "watch 5", "watch 5", "list", "watch 9"]


@pytest.mark.parametrize("reason", ["Expired", "Gone"])
async def test_an_expired_version_may_be_told_by_its_reason_alone(reason: str) -> None:
    status = {"kind": "Status", "status": "Failure", "reason": reason, "message": "too old resource version: 5 (9)"}
    async with story(listing("5"), stream(event("ERROR", status)), listing("9")) as here:
        await here.api.silent.wait()
        assert here.api.calls() == ["list", "watch 5", "list", "watch 9"]


@pytest.mark.parametrize("end", ["well", "breaks"])
async def test_a_watch_that_always_ends_at_once_is_followed_by_lists(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crrd.kube.reflector._SHORT_SECONDS", 0.2)
    async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client:
        notes = Notes()
        source = request_source(client, "node-1", notes)
        api.then(listing("5"), *[stream(end=end)] * 3, listing("6", obj("a", "6")), stream(end=end))
        delays = [await source._connect_once() for _ in range(4)]
        assert api.calls() == ["list", *["watch 5"] * 3, "list", "watch 6"]
        assert notes.received == ["listed", "listed a"]
        assert source.last_error == "the API server ends each watch of containerrecreaterequests at once"
        for version in range(7, 12):
            api.then(listing(str(version)), stream(end=end))
            delays.append(await source._connect_once())
        assert delays[-1] >= 8
        assert source.last_error
        api.then(listing("20"), stream(bookmark("21")))
        await source._connect_once()
        assert source.last_error == ""
        api.then(*[stream(end=end)] * 3, listing("22"))
        for _ in range(3):
            await source._connect_once()
        assert source.last_error
        connecting = asyncio.create_task(source._connect_once())
        await api.silent.wait()
        assert source.last_error
        while source.last_error:
            await asyncio.sleep(0.01)
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)


@pytest.mark.parametrize("odd", [stream(b"garbage\n"), stream(b'{"type": "ADD'), refuse(400), refuse(403)])
async def test_what_cannot_be_gone_on_from_is_listed_again(odd: Reply) -> None:
    async with story(listing("5"), stream(), odd, listing("9")) as here:
        await here.api.silent.wait()
        assert here.api.calls() == ["list", "watch 5", "watch 5", "list", "watch 9"]


def lists(api: ScriptedApi) -> list[dict[str, str]]:
    """Version and limit of every list that was asked for."""
    asked = (dict(request.query) for request in api.seen if "watch" not in request.query)
    return [{key: query[key] for key in ("resourceVersion", "limit") if key in query} for query in asked]


NEWEST_PODS = {"limit": str(PODS.page)}
NEWEST_REQUESTS = {"limit": str(REQUESTS.page)}
TOO_LARGE: dict[str, Any] = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}


async def test_pods_listed_again_are_not_older_than_what_was_seen() -> None:
    """Another API server's cache may lag behind: time would go back."""
    script = (listing("5"), stream(event("MODIFIED", obj("a", "6")), bookmark("9"), end="silent"))
    async with story(*script, make=pod_source) as here:
        await here.notes.until("listed", "changed a")
        while here.source._version != "9":
            await asyncio.sleep(0)
        for version in ("12", "14"):
            here.task.cancel()
            await asyncio.gather(here.task, return_exceptions=True)
            here.api.then(listing(version))
            here.api.silent.clear()
            here.task = asyncio.create_task(run(here.source))
            await here.api.silent.wait()
        assert lists(here.api) == [{"resourceVersion": "0"}, {"resourceVersion": "9"}, {"resourceVersion": "12"}]


@pytest.mark.parametrize(
    "trouble",
    [(refuse(500),), (refuse(429),), (refuse(504),), (vanish(), vanish())],  # a cut connection is tried anew
)
async def test_trouble_with_a_list_does_not_make_it_older(trouble: tuple[Reply, ...]) -> None:
    async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client:
        source = pod_source(client, "node-1", Notes())
        api.then(listing("5"), stream(bookmark("9"), end="breaks"))
        await source._connect_once()
        source._version = ""  # as a run that begins has it
        api.then(*trouble, listing("12"), stream())
        await source._connect_once()
        await source._connect_once()
        assert lists(api) == [{"resourceVersion": "0"}, *[{"resourceVersion": "9"}] * (len(trouble) + 1)]
        assert api.calls()[-1] == "watch 12"


@pytest.mark.parametrize(
    "gone",
    [
        refuse(410),
        stream(event("ERROR", failure(410))),
        refuse(504, **TOO_LARGE),
        stream(event("ERROR", failure(504, **TOO_LARGE))),
        refuse(400),
        reply(b"hello"),
    ],
)
async def test_a_version_that_the_server_has_not_makes_it_list_the_newest(gone: Reply) -> None:
    script = (listing("5"), stream(bookmark("9")), gone, listing("3"))
    async with story(*script, make=pod_source) as here:
        await here.api.silent.wait()
        assert here.api.calls() == ["list", "watch 5", "watch 9", "list", "watch 3"]
        assert lists(here.api) == [{"resourceVersion": "0"}, NEWEST_PODS]


async def test_a_list_from_the_future_is_asked_for_as_of_now() -> None:
    """The server was restored from a backup: it will not reach for long what was seen before."""
    async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client:
        source = pod_source(client, "node-1", Notes())
        api.then(listing("500"), stream())
        await source._connect_once()
        source._version = ""  # as a run that begins has it
        api.then(refuse(504, **TOO_LARGE), listing("7"), stream())
        await source._connect_once()
        await source._connect_once()
        assert lists(api) == [{"resourceVersion": "0"}, {"resourceVersion": "500"}, NEWEST_PODS]
        assert api.calls()[-1] == "watch 7"


async def test_requests_are_listed_as_they_are_now() -> None:
    script = (listing("5"), stream(bookmark("9")), refuse(410), listing("12"))
    async with story(*script) as here:
        await here.api.silent.wait()
        assert lists(here.api) == [NEWEST_REQUESTS, NEWEST_REQUESTS]


async def test_a_silent_connection_is_noticed() -> None:
    async with story(listing("5"), stream(bookmark("6"), end="silent"), stall=0.5) as here:
        await here.api.silent.wait()
        assert here.api.calls()[:3] == ["list", "watch 5", "watch 6"]


@pytest.mark.parametrize(
    ("reason", "ends"),
    [
        ("ended", stream()),
        ("expired", refuse(410)),
        ("expired", stream(event("ERROR", failure(410)))),
        ("silent", stream(bookmark("6"), end="silent")),
        ("refused", refuse(403)),
        ("error", stream(bookmark("6"), end="breaks")),
        ("error", refuse(503)),
    ],
)
async def test_it_is_told_why_a_watch_ended(reason: str, ends: Reply) -> None:
    received: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def make(client: KubeClient, node_name: str, notes: Notes) -> Reflector[Pod]:
        return pod_source(client, node_name, notes, on_restart=lambda *what: received.put_nowait(what))

    async with story(listing("5"), ends, make=make, stall=0.5):
        assert await received.get() == ("pods", reason)
        assert reason in WATCH_REASONS


async def test_an_api_server_that_comes_late() -> None:
    sound = (listing("5", obj("a", "3")), stream(event("ADDED", obj("b", "6")), end="silent"))
    with capture_logs() as logs:
        async with story(refuse(502), refuse(500), refuse(429), reply(b"hello"), *sound) as here:
            await here.notes.until("listed a", "changed b")
            assert here.api.calls() == ["list"] * 5 + ["watch 5"]
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [
        ("API server unavailable", "warning"),
        ("API server unavailable", "debug"),
        ("API server unavailable", "debug"),
        ("API server unavailable", "debug"),
        ("API server available", "info"),
    ]


@pytest.mark.parametrize(
    ("refusals", "sentence"),
    [
        ((refuse(401),), "the API server does not accept a fixed token: give crrd valid credentials"),
        (
            (refuse(403, "User x cannot list"),),
            "crrd lacks the right to read containerrecreaterequests: apply its RBAC role with `kubectl apply -f ",
        ),
        (
            (reply(b"404 page not found\n", 404),) * 2,  # one for each version
            ("the API server has no containerrecreaterequests: install the CRD with `kubectl apply -f install.yaml`"),
        ),
    ],
)
@pytest.mark.parametrize("before", [(), (listing("5"),)])
async def test_what_only_an_administrator_can_heal_ends_a_start(
    before: tuple[Reply, ...], refusals: tuple[Reply, ...], sentence: str
) -> None:
    async with story(*before, *refusals) as here:
        with pytest.raises(ConfigurationError) as caught:
            await here.task
        assert str(caught.value).startswith(sentence)
        assert here.api.calls() == [*["list"][: len(before)], *[["list", "watch 5"][len(before)]] * len(refusals)]


async def test_the_same_is_retried_once_all_was_well() -> None:
    script = (listing("5"), stream(), refuse(403), reply(b"404 page not found", 404), refuse(401), listing("7"))
    async with story(*script) as here:
        await here.api.silent.wait()
        assert here.api.calls() == ["list", "watch 5", "watch 5", "list", "list", "list", "watch 7"]


async def test_pods_are_retried_always() -> None:
    async with story(refuse(403), refuse(404), listing("5"), make=pod_source) as here:
        await here.api.silent.wait()
        assert here.notes.received == ["listed"]


async def test_the_server_is_given_the_time_that_it_asks_for() -> None:
    async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client:
        source = request_source(client, "node-1", Notes())
        api.then(refuse(429, headers={"Retry-After": "7"}))
        assert await source._connect_once() >= 7
        api.then(refuse(503, headers={"Retry-After": "999999"}))
        assert await source._connect_once() == 30
        api.then(refuse(429, retryAfterSeconds=3600))
        assert await source._connect_once() == 30
        api.then(refuse(500))
        assert await source._connect_once() < 7


async def test_delays_grow_while_nobody_answers_and_shrink_once_somebody_does() -> None:
    async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client:
        source = request_source(client, "node-1", Notes())
        api.then(*[refuse(500)] * 12)
        delays = [await source._connect_once() for _ in range(12)]
        assert 0.25 <= delays[0] < 0.5
        assert all(8 <= delay < 12 for delay in delays[-3:])
        api.then(listing("5"), stream(), refuse(410), listing("6"), refuse(410))
        assert await source._connect_once() < 2
        assert await source._connect_once() == 0  # an expired version costs no time ...
        assert await source._connect_once() > 0  # ... but a list that expires at once does


async def test_delays_grow_while_somebody_else_answers_a_watch() -> None:
    async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client:
        source = request_source(client, "node-1", Notes())
        api.then(*[listing("5"), stream(b"<html>\n")] * 8)
        delays = [await source._connect_once() for _ in range(8)]
        assert 0.25 <= delays[0] < 0.5
        assert delays[-1] >= 8


async def test_a_connection_that_lived_long_is_followed_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client:
        source = request_source(client, "node-1", Notes())
        api.then(refuse(500), refuse(500), listing("5"), stream(bookmark("6")))
        monkeypatch.setattr("crrd.kube.reflector._STEADY_SECONDS", 3600.0)
        await source._connect_once()
        await source._connect_once()
        assert await source._connect_once() > 0  # it ended well, but soon: not a loop without pause
        monkeypatch.setattr("crrd.kube.reflector._STEADY_SECONDS", 0.0)
        api.then(stream(bookmark("7")), stream(bookmark("8"), end="breaks"))
        assert await source._connect_once() == 0
        assert 0.25 <= await source._connect_once() < 0.5  # the first failure in a row, whatever was before
        assert api.calls()[-2:] == ["watch 6", "watch 7"]


@pytest.mark.parametrize(
    ("ends", "version"),
    [(refuse(410), "1000000009"), (refuse(504, causes=[{"reason": "ResourceVersionTooLarge"}]), "7")],
)
async def test_requests_of_a_restored_api_server_count(ends: Reply, version: str) -> None:
    """etcd was restored from a backup: objects are older than they were, and some that had gone are back."""
    async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client:
        known = Pods(lambda _: None, asyncio.get_running_loop().time)
        source = request_source(client, "node-1", known)
        api.then(listing("5", raw("a", "4"), raw("b", "5")))
        api.then(
            stream(event("MODIFIED", raw("a", "8")), event("DELETED", raw("b", "9")), event("ADDED", raw("c", "10")))
        )
        api.then(ends, listing(version, raw("a", "4"), raw("b", "5")))
        task = asyncio.create_task(run(source))
        await api.silent.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        found = {each.request.uid: each.request.resource_version for pod in known for each in pod.live.values()}
        assert found == {"r-a": "4", "r-b": "5"}


async def run_forever(source: Reflector[Request]) -> None:
    await source.run()


def live(pod: str, version: str) -> Request:
    """A request for a pod."""
    return parse_request(raw(pod, version))


def raw(pod: str, version: str) -> dict[str, Any]:
    labels = {"crr.apps.kruise.io/active": "true"}
    meta = {"namespace": "n", "name": f"for-{pod}", "uid": f"r-{pod}", "resourceVersion": version, "labels": labels}
    return {"metadata": meta, "spec": {"podName": pod, "containers": [{"name": "app"}]}}


@dataclass
class Watched:
    """PodWatches that run against a scripted API server."""

    api: ScriptedApi
    cache: Pods
    watches: PodWatches
    task: asyncio.Task[None]

    async def asked(self, *calls: tuple[str, str]) -> None:
        """Wait until exactly these pods (by field selector) were asked for, and watched or listed."""
        while len(self.api.seen) < len(calls):
            await asyncio.sleep(0.001)
        found = [(call.path, call.query["fieldSelector"]) for call in self.api.seen]
        assert found == list(calls)


@asynccontextmanager
async def watching(*script: Reply) -> AsyncIterator[Watched]:
    async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client:
        api.then(*script)
        cache = Pods(lambda _: None, asyncio.get_running_loop().time)
        made = PodWatches(client, "node-1", cache)

        async def run() -> None:
            await made.run()

        task = asyncio.create_task(run())
        try:
            yield Watched(api, cache, made, task)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def one(name: str) -> tuple[str, str]:
    return ("/api/v1/namespaces/n/pods", f"metadata.name={name},spec.nodeName=node-1")


ALL = ("/api/v1/pods", "spec.nodeName=node-1")


async def test_only_the_pod_of_a_request_is_watched_and_only_while_it_is_live() -> None:
    async with watching(listing("5", obj("a", "3"))) as here:
        assert here.cache.known_since("n/a") is None
        here.cache.requests.put(live("a", "1"))
        await here.cache.wait_until_known("n/a")
        await here.asked(one("a"), one("a"))
        known = here.cache.peek("n/a").state.pod
        assert known is not None
        assert here.cache.known_since("n/b") is None
        await here.api.silent.wait()
        here.cache.requests.delete(live("a", "2"))
        while here.cache.known_since("n/a") is not None:
            await asyncio.sleep(0.001)
        assert here.cache.peek("n/a").state.pod is None
        assert here.watches.last_list_time is not None
        assert here.watches.last_activity is not None
        assert here.watches.check() == here.watches.last_error == ""


async def test_a_pod_that_nobody_tells_of_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "FIND_SECONDS", 0.1)
    async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client:
        with pytest.raises(ApiUnavailableError, match="timed out reading pod n/a"):
            await watches.find_pod(client, "n", "a")


async def test_a_pod_is_asked_for_by_its_name_and_as_it_is_now() -> None:
    async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client:
        api.then(listing("5", obj("b", "3"), obj("a", "4")), listing("6"))
        found = await watches.find_pod(client, "n", "a")
        assert found is not None
        assert found.key == "n/a"
        assert await watches.find_pod(client, "n", "a") is None
        assert {(call.path, call.query["fieldSelector"]) for call in api.seen} == {
            ("/api/v1/namespaces/n/pods", "metadata.name=a")
        }
        assert lists(api) == [NEWEST_PODS] * 2


async def test_a_pod_that_is_not_there_is_known_not_to_be() -> None:
    async with watching(listing("5"), stream(event("ADDED", obj("a", "6")), end="silent")) as here:
        here.cache.requests.put(live("a", "1"))
        await here.cache.wait_until_known("n/a")
        while here.cache.peek("n/a").state.pod is None:
            await asyncio.sleep(0.001)


async def test_a_pod_watched_again_is_not_older_than_what_was_seen() -> None:
    script = (listing("5", obj("a", "3")), stream(bookmark("9"), end="silent"))
    async with watching(*script) as here:
        here.cache.requests.put(live("a", "1"))
        while not (here.cache.known_since("n/a") and _versions(here) == {"9"}):
            await asyncio.sleep(0.001)
        here.cache.requests.delete(live("a", "2"))
        here.api.then(listing("12"))
        here.cache.requests.put(live("b", "3"))
        await here.cache.wait_until_known("n/b")
        assert lists(here.api) == [{"resourceVersion": "0"}, {"resourceVersion": "9"}]


async def test_of_several_watches_the_newest_counts() -> None:
    async with watching(listing("9", obj("a", "3"))) as here:
        here.cache.requests.put(live("a", "1"))
        await here.api.silent.wait()
        listed, heard = here.watches.last_list_time, here.watches.last_activity
        assert listed is not None
        assert heard is not None
        here.api.then(listing("7", obj("b", "4")))
        here.cache.requests.put(live("b", "2"))
        await here.cache.wait_until_known("n/b")
        newer = here.watches.last_list_time
        assert newer is not None
        assert newer > listed
        assert (here.watches.last_activity or 0.0) > heard
        for pod, version in (("a", "5"), ("b", "6")):  # the one that had the older version ends last
            here.cache.requests.delete(live(pod, version))
            while here.cache.known_since(f"n/{pod}") is not None:
                await asyncio.sleep(0.001)
        assert here.watches.last_list_time == newer
        here.api.then(listing("12"))
        here.cache.requests.put(live("c", "7"))
        await here.cache.wait_until_known("n/c")
        assert lists(here.api)[-1] == {"resourceVersion": "9"}


def _versions(here: Watched) -> set[str]:
    return {running.reflector.list_version for running in here.watches._running.values()}


@pytest.mark.parametrize("lost", [refuse(400), refuse(410)])
async def test_where_a_version_was_lost_the_newest_is_asked_for(lost: Reply) -> None:
    script = (listing("5", obj("a", "3")), lost)
    async with watching(*script) as here:
        here.cache.requests.put(live("a", "1"))
        await here.asked(one("a"), one("a"), one("a"))
        assert _versions(here) == {""}
        here.cache.requests.delete(live("a", "2"))
        here.api.then(listing("7"))
        here.cache.requests.put(live("b", "3"))
        await here.cache.wait_until_known("n/b")
        assert lists(here.api)[-1] == NEWEST_PODS
        here.cache.requests.delete(live("b", "4"))
        here.api.then(listing("9"))
        here.cache.requests.put(live("c", "5"))
        await here.cache.wait_until_known("n/c")
        assert lists(here.api)[-1] == {"resourceVersion": "7"}, "from there on it is known again"


@pytest.mark.virtual_time
async def test_a_loop_that_does_not_hear_of_a_request_is_told_while_it_runs() -> None:
    cache = Pods(lambda _: None, asyncio.get_running_loop().time)
    made = PodWatches(cast("KubeClient", None), "node-1", cache)

    async def run() -> None:
        await made.run()

    async def received() -> str:
        made.check()
        await asyncio.sleep(60)
        return made.check()

    task = asyncio.create_task(run())
    assert await received() == ""
    cast("Any", cache.live_changed)._waiters.clear()
    cache.live_changed.set()
    assert (await received()).startswith("hangs: waiting for another request")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await received() == ""


async def test_more_than_eight_pods_have_one_watch() -> None:
    async with watching() as here:
        for number in range(9):
            here.api.silent.clear()
            here.api.then(listing("5"))
            here.cache.requests.put(live(f"p{number}", "1"))
            await here.api.silent.wait()
        asked = [(call.path, call.query["fieldSelector"]) for call in here.api.seen if "watch" not in call.query]
        assert asked == [*(one(f"p{number}") for number in range(8)), ALL]


async def test_many_pods_have_one_watch_until_no_request_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "SINGLE_WATCHES", 1)
    async with watching(listing("5", obj("a", "3"))) as here:
        here.cache.requests.put(live("a", "1"))
        await here.api.silent.wait()
        here.api.silent.clear()
        here.api.then(listing("6", obj("a", "3"), obj("b", "4"), obj("c", "4")))
        here.cache.requests.put(live("b", "2"))
        while len(here.watches.keys) != 1 or here.cache.known_since("n/b") is None:
            assert here.cache.peek("n/a").state.pod  # all the while
            await asyncio.sleep(0)
        assert here.cache.known_since("n/c") == here.cache.known_since("n/b")
        here.cache.requests.delete(live("b", "9"))
        await here.api.silent.wait()
        await here.asked(one("a"), one("a"), ALL, ALL)
        assert lists(here.api)[-1] == {"resourceVersion": "5"}
        assert here.cache.peek("n/c").state.pod
