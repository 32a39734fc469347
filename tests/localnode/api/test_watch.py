"""The local API server over HTTP: watches, bookmarks, expiry, and the faults that tests can ask for."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.support.faulty_api import Call
from tests.support.local_api import ALL_CRRS, CRRS, PODS, Api, crr, pod, running, until

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with running(bookmark_seconds=0.05) as api:
        yield api


async def test_events_come_in_order_with_the_versions_of_their_objects(api: Api) -> None:
    version = (await api.get(ALL_CRRS)).version
    async with api.watch(ALL_CRRS, f"resourceVersion={version}") as watch:
        made = await api.post(CRRS, crr())
        changed = await api.patch(CRRS + "/r/status", {"status": {"phase": "Pending"}})
        await api.delete(CRRS + "/r")
        events = [await watch.event() for _ in range(3)]
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    assert events[0]["object"] == made.body
    assert events[1]["object"] == changed.body
    assert events[2]["object"]["status"] == {"phase": "Pending"}
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions))
    assert versions[-1] == api.server.store.revision


async def test_a_watch_from_a_version_replays_what_was_missed(api: Api) -> None:
    await api.post(CRRS, crr("a"))
    version = (await api.post(CRRS, crr("b"))).version
    await api.post(CRRS, crr("c"))
    await api.delete(CRRS + "/a")
    async with api.watch(CRRS, f"resourceVersion={version}") as watch:
        assert [await watch.seen(), await watch.seen()] == [("ADDED", "c"), ("DELETED", "a")]
        await api.post(CRRS, crr("d"))
        assert await watch.seen() == ("ADDED", "d")


@pytest.mark.parametrize("query", ["", "resourceVersion=0"])
async def test_a_watch_from_nowhere_begins_with_what_there_is(api: Api, query: str) -> None:
    await api.post(CRRS, crr("a"))
    await api.post(CRRS, crr("b"))
    await api.delete(CRRS + "/a")
    async with api.watch(CRRS, query) as watch:
        assert await watch.seen() == ("ADDED", "b")
        await api.post(CRRS, crr("c"))
        assert await watch.seen() == ("ADDED", "c")


async def test_selection_turns_changes_into_coming_and_going(api: Api) -> None:
    selector = "labelSelector=crr.apps.kruise.io/active%3Dtrue"
    active = {"metadata": {"labels": {"crr.apps.kruise.io/active": "true"}}}
    inactive = {"metadata": {"labels": {"crr.apps.kruise.io/active": None}}}
    async with api.watch(ALL_CRRS, f"resourceVersion={api.server.store.revision}&{selector}") as watch:
        await api.post(CRRS, crr("other"))
        await api.post(CRRS, crr())
        began = await api.patch(CRRS + "/r", active)
        assert (await watch.event())["object"] == began.body
        await api.patch(CRRS + "/r/status", {"status": {"phase": "Completed"}})
        assert await watch.seen() == ("MODIFIED", "r")
        ended = await api.patch(CRRS + "/r", inactive)
        gone = await watch.event()
        assert gone["type"] == "DELETED"
        assert gone["object"]["metadata"]["labels"] == active["metadata"]["labels"]
        assert gone["object"]["metadata"]["resourceVersion"] == ended.version
        await api.delete(CRRS + "/r")
        await api.post(CRRS, crr("s", labels=active["metadata"]["labels"]))
        assert await watch.seen() == ("ADDED", "s")


async def test_pods_of_one_node(api: Api) -> None:
    await api.post(PODS, pod("a", node="n1"))
    await api.post(PODS, pod("b", node="n2"))
    async with api.watch("/api/v1/pods", "fieldSelector=spec.nodeName%3Dn2") as watch:
        assert await watch.seen() == ("ADDED", "b")
        await api.delete(PODS + "/a", {"gracePeriodSeconds": 0})
        await api.delete(PODS + "/b", {"gracePeriodSeconds": 0})
        assert [await watch.seen(), await watch.seen()] == [("MODIFIED", "b"), ("DELETED", "b")]


async def test_many_watches_get_the_same(api: Api) -> None:
    async with api.watch(CRRS) as one, api.watch(ALL_CRRS) as two, api.watch(PODS) as three:
        await until(lambda: api.server.open_watches == 3)
        await api.post(CRRS, crr())
        await api.post(PODS, pod())
        assert await one.event() == await two.event()
        assert await three.seen() == ("ADDED", "web")
    await until(lambda: api.server.open_watches == 0)


async def test_bookmarks_tell_the_version_while_nothing_happens(api: Api) -> None:
    async with api.watch(CRRS, "allowWatchBookmarks=true") as watch, api.watch(CRRS) as without:
        await api.post(PODS, pod())
        version = str(api.server.store.revision)
        first = await watch.event()
        while first["object"]["metadata"]["resourceVersion"] != version:
            first = await watch.event()
        second = await watch.event()
        assert first["type"] == second["type"] == "BOOKMARK"
        assert first["object"]["kind"] == "ContainerRecreateRequest"
        await api.post(CRRS, crr())
        assert await without.seen() == ("ADDED", "r")


async def test_a_watch_ends_at_its_timeout_with_a_last_bookmark() -> None:
    async with (
        running(bookmark_seconds=3600) as api,
        api.watch(CRRS, "timeoutSeconds=1&allowWatchBookmarks=1") as watch,
    ):
        assert watch.response.status == 200
        assert (await watch.event())["type"] == "BOOKMARK"
        assert await watch.event() is None


async def test_the_server_bounds_a_watch_itself() -> None:
    async with running(watch_seconds=0.05) as api, api.watch(CRRS) as watch:
        assert await watch.event() is None


async def test_too_old_a_version_is_an_error_event(api: Api) -> None:
    version = (await api.post(CRRS, crr())).version
    await api.delete(CRRS + "/r")
    api.server.compact()
    async with api.watch(CRRS, f"resourceVersion={version}") as watch:
        assert watch.response.status == 200
        event = await watch.event()
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
        assert await watch.event() is None
    now = api.server.store.revision
    async with api.watch(CRRS, f"resourceVersion={now}") as watch:
        await api.post(CRRS, crr())
        assert await watch.seen() == ("ADDED", "r")


async def test_too_old_a_version_as_status() -> None:
    async with running(expired_as_event=False) as api:
        await api.post(CRRS, crr())
        api.server.compact()
        async with api.watch(CRRS, "resourceVersion=1") as watch:
            assert watch.response.status == 410
            assert (await watch.response.json())["reason"] == "Expired"
        assert api.server.open_watches == 0


async def test_a_running_watch_survives_a_compaction(api: Api) -> None:
    async with api.watch(CRRS, f"resourceVersion={api.server.store.revision}") as watch:
        await until(lambda: api.server.open_watches == 1)
        api.server.compact()
        await api.post(CRRS, crr())
        assert await watch.seen() == ("ADDED", "r")


async def test_history_is_bounded() -> None:
    async with running(history=3) as api:
        version = (await api.get(CRRS)).version
        for name in "abcd":
            await api.post(CRRS, crr(name))
        async with api.watch(CRRS, f"resourceVersion={version}") as watch:
            assert (await watch.event())["type"] == "ERROR"
        async with api.watch(CRRS, f"resourceVersion={int(version) + 1}") as watch:
            assert [await watch.seen() for _ in range(3)] == [("ADDED", name) for name in "bcd"]


async def test_a_watch_from_a_version_yet_to_come_is_silent_until_then(api: Api) -> None:
    ahead = api.server.store.revision + 2
    async with api.watch(CRRS, f"resourceVersion={ahead}&allowWatchBookmarks=1") as watch:
        assert watch.response.status == 200
        for name in "abc":
            await api.post(CRRS, crr(name))
        assert await watch.seen() == ("ADDED", "c")


async def test_a_match_means_nothing_to_a_watch(api: Api) -> None:
    async with api.watch(CRRS, "resourceVersion=1&resourceVersionMatch=NotOlderThan") as watch:
        assert watch.response.status == 422


async def test_a_watch_may_begin_with_a_list(api: Api) -> None:
    await api.post(CRRS, crr("a"))
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
    async with api.watch(CRRS, query + "&allowWatchBookmarks=true") as watch, api.watch(CRRS, query) as without:
        assert await watch.seen() == ("ADDED", "a")
        end = await watch.event()
        assert (end["type"], end["object"]["metadata"]["annotations"]) == (
            "BOOKMARK", {"k8s.io/initial-events-end": "true"}
        )  # fmt: skip
        await api.post(CRRS, crr("b"))
        assert [await without.seen(), await without.seen()] == [("ADDED", "a"), ("ADDED", "b")]
    for wrong in ("sendInitialEvents=true", "sendInitialEvents=true&resourceVersionMatch=Exact"):
        async with api.watch(CRRS, wrong) as watch:
            assert watch.response.status == 422
    assert (await api.get(CRRS + "?sendInitialEvents=true")).status == 422


async def test_a_watch_as_tables(api: Api) -> None:
    await api.post(CRRS, crr("a"))
    async with api.watch(CRRS, "allowWatchBookmarks=1", Accept=TABLE) as watch:
        first = (await watch.event())["object"]
        assert first["columnDefinitions"][0]["name"] == "Name"
        assert first["rows"][0]["cells"][0] == "a"
        await api.post(CRRS, crr("b"))
        events = [await watch.event()]
        while events[-1]["type"] != "ADDED":
            events.append(await watch.event())
        assert events[-1]["object"]["columnDefinitions"] == []
        assert events[-1]["object"]["rows"][0]["cells"][0] == "b"
        while events[-1]["type"] != "BOOKMARK":
            events.append(await watch.event())
        assert events[-1]["object"]["kind"] == "Table"


async def test_a_watch_of_metadata_only(api: Api) -> None:
    await api.post(CRRS, crr())
    accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    async with api.watch(CRRS, "", Accept=accept) as watch:
        assert (await watch.event())["object"].keys() == {"kind", "apiVersion", "metadata"}


async def test_dropped_connections_break_watches_and_new_ones_work(api: Api) -> None:
    async with api.watch(CRRS) as watch:
        await until(lambda: api.server.open_watches == 1)
        api.server.drop_connections()
        with pytest.raises(aiohttp.ClientError):
            await watch.event()
    await until(lambda: api.server.open_watches == 0)
    assert (await api.get("/healthz")).status == 200


async def test_watches_can_be_ended_in_good_order(api: Api) -> None:
    async with api.watch(CRRS) as watch:
        await until(lambda: api.server.open_watches == 1)
        api.server.end_watches()
        assert await watch.event() is None


async def test_a_stalled_server_answers_once_it_goes_on(api: Api) -> None:
    async with api.watch(CRRS) as watch:
        await until(lambda: api.server.open_watches == 1)
        api.server.pause()
        writing = asyncio.ensure_future(api.post(CRRS, crr()))
        impatient = aiohttp.ClientTimeout(total=0.05)
        with pytest.raises(TimeoutError):
            await api.session.get(api.server.url + "/healthz", timeout=impatient)
        assert not writing.done()
        api.server.resume()
        assert (await writing).status == 201
        assert await watch.seen() == ("ADDED", "r")


async def test_a_held_cache_shows_the_past_until_it_is_released(api: Api) -> None:
    await api.post(CRRS, crr("old"))
    async with api.watch(CRRS, f"resourceVersion={api.server.store.revision}") as watch:
        await until(lambda: api.server.open_watches == 1)
        api.server.hold_cache()
        version = (await api.post(CRRS, crr("new"))).version
        stale = await api.get(CRRS + "?resourceVersion=0")
        assert [item["metadata"]["name"] for item in stale.body["items"]] == ["old"]
        assert int(stale.version) < int(version)
        for query in ("", f"?resourceVersion={version}"):
            assert len((await api.get(CRRS + query)).body["items"]) == 2
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watch.response.content.readline(), 0.05)
        api.server.release_cache()
        assert await watch.seen() == ("ADDED", "new")
    assert len((await api.get(CRRS + "?resourceVersion=0")).body["items"]) == 2


async def test_requests_fail_as_asked() -> None:
    calls: list[Call] = []
    async with running(log=calls.append) as api:
        api.server.fail_next(2, 429, 7, lambda call: call.verb == "create")
        assert (await api.get(CRRS)).status == 200
        for _ in range(2):
            reply = await api.post(CRRS, crr())
            assert (reply.status, reply.headers["Retry-After"]) == (429, "7")
            assert reply.body["details"]["retryAfterSeconds"] == 7
        assert (await api.post(CRRS, crr())).status == 201
        api.server.fail_next(status=503, match=lambda call: call.writes)
        api.server.fail_next(status=418)
        assert (await api.get(CRRS)).status == 418
        assert (await api.delete(CRRS + "/r")).body["reason"] == "ServiceUnavailable"
        assert (await api.get(CRRS + "/r")).status == 200
    assert [call.status for call in calls] == [200, 429, 429, 201, 418, 503, 200]


async def test_an_answer_gets_lost_after_the_work_was_done(api: Api) -> None:
    api.server.fail_next(status=500, match=lambda call: call.verb == "create", after=True)
    assert (await api.post(CRRS, crr())).status == 500
    assert (await api.get(CRRS + "/r")).status == 200
    api.server.fail_next(status=None, match=lambda call: call.verb == "create", after=True)
    with pytest.raises(aiohttp.ClientError):  # a DELETE would be tried again by the client itself
        await api.post(CRRS, crr("s"))
    assert (await api.get(CRRS + "/s")).status == 200


async def test_a_connection_is_cut_instead_of_answering(api: Api) -> None:
    api.server.fail_next(status=None, match=lambda call: call.writes)
    with pytest.raises(aiohttp.ClientError):
        await api.post(CRRS, crr())
    assert (await api.get(CRRS)).body["items"] == []
    api.server.fail_next(count=5)
    api.server.clear_faults()
    assert (await api.get(CRRS)).status == 200
