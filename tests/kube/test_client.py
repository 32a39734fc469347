"""Calls to an API server that is sound, slow, broken, or says no."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from crrd import __version__
from crrd.core.api.types import VERSIONS
from crrd.kube.access.config import Access
from crrd.kube.client import Deadlines, KubeClient
from crrd.kube.errors import (
    FutureVersionError,
    MalformedAnswerError,
    NamespaceEndingError,
    ResourceMissingError,
    decode,
    from_answer,
)
from crrd.kube.resources import EVENTS, PODS, REQUESTS, WatchEvent
from crrd.kube.stream import LONGEST_LINE, lines, listed
from crrd.kube.transport import Call, _socket, unavailable
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConflictError, ExpiredError, GoneError
from tests.support.scripted_api import (
    FixedAccess,
    Reply,
    ScriptedApi,
    bookmark,
    event,
    failure,
    hang,
    listing,
    refuse,
    reply,
    scripted_api,
    stream,
    vanish,
)


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    async with scripted_api() as server:
        yield server


@pytest.fixture
async def client(api: ScriptedApi) -> AsyncIterator[KubeClient]:
    async with KubeClient(FixedAccess(api.url, "Bearer t")) as made:
        yield made


def named(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


def name_of(obj: Mapping[str, Any]) -> str:
    name: str = obj["metadata"]["name"]
    return name


async def follow(client: KubeClient, opened: asyncio.Event | None = None) -> None:
    async with client.watch(PODS, "5") as events:
        if opened is not None:
            opened.set()
        async for _ in events:
            pass


def test_paths_of_objects() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("a", "b") == "/api/v1/namespaces/a/pods/b"
    base = "/apis/apps.kruise.io/v1alpha1/namespaces/a/containerrecreaterequests"
    assert REQUESTS.path("a", "b", "status") == f"{base}/b/status"
    assert REQUESTS.path("a", "../x?y\ud800") == f"{base}/..%2Fx%3Fy%3F"


async def test_requests_are_asked_for_in_the_version_that_is_served(api: ScriptedApi, client: KubeClient) -> None:
    unserved = reply(b"404 page not found\n", 404)
    alpha, beta = (f"/apis/apps.kruise.io/{version}/namespaces/a/containerrecreaterequests/r" for version in VERSIONS)
    api.then(unserved, reply(named("r")), reply(named("r")), refuse(404, name="r"), unserved, reply(named("r")))
    assert await client.get(REQUESTS, "a", "r") == named("r")
    await client.merge_patch(REQUESTS, "a", "r", {"status": {}}, subresource="status")
    with pytest.raises(GoneError):  # the object is not there: that says nothing of its kind
        await client.get(REQUESTS, "a", "r")
    await client.get(REQUESTS, "a", "r")  # the version has changed meanwhile
    assert [request.path for request in api.seen] == [alpha, beta, f"{beta}/status", beta, beta, alpha]


async def test_what_is_created_names_the_version_that_is_served(api: ScriptedApi, client: KubeClient) -> None:
    api.then(reply(b"404 page not found\n", 404), reply(named("r")))
    obj = {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest", **named("r")}
    await client.create(REQUESTS, "a", obj)
    assert [json.loads(body) for body in api.bodies] == [obj, obj | {"apiVersion": "apps.kruise.io/v1beta1"}]


async def test_a_kind_that_is_served_in_no_version_is_missing(api: ScriptedApi, client: KubeClient) -> None:
    api.then(*[reply(b"404 page not found\n", 404)] * 3)
    with pytest.raises(ResourceMissingError, match="v1alpha1"):
        await client.get(REQUESTS, "a", "r")
    with pytest.raises(ResourceMissingError):
        await client.get(PODS, "a", "p")
    assert len(api.seen) == 3


async def test_get_says_who_asks(api: ScriptedApi, client: KubeClient) -> None:
    api.then(reply(named("b")))
    assert await client.get(PODS, "a", "b") == named("b")
    (seen,) = api.seen
    assert seen.path == "/api/v1/namespaces/a/pods/b"
    assert seen.headers["User-Agent"] == f"crrd/{__version__}"
    assert seen.headers["Authorization"] == "Bearer t"
    assert seen.headers["Accept"] == "application/json"


async def test_writes(api: ScriptedApi, client: KubeClient) -> None:
    api.then(reply(named("e"), 201), reply(named("r")), reply(named("r")), reply({}), reply({}))
    assert await client.create(EVENTS, "a", named("e")) == named("e")
    await client.merge_patch(REQUESTS, "a", "r", {"status": {}}, subresource="status")
    await client.merge_patch(REQUESTS, "a", "r", {"metadata": {}})
    await client.delete(PODS, "a", "p", uid="u")
    await client.delete(PODS, "a", "p")
    base = "/apis/apps.kruise.io/v1alpha1/namespaces/a/containerrecreaterequests/r"
    assert api.calls() == [
        "POST /api/v1/namespaces/a/events",
        f"PATCH {base}/status",
        f"PATCH {base}",
        "DELETE /api/v1/namespaces/a/pods/p",
        "DELETE /api/v1/namespaces/a/pods/p",
    ]
    assert [request.headers["Content-Type"] for request in api.seen[:2]] == [
        "application/json",
        "application/merge-patch+json",
    ]
    assert [json.loads(body) for body in api.bodies[1:]] == [
        {"status": {}},
        {"metadata": {}},
        {"preconditions": {"uid": "u"}},
        {},
    ]


@pytest.mark.parametrize(
    "body",
    [{}, {"kind": "Status", "metadata": {}}, {"kind": "PodList", "metadata": {}}, {"metadata": {"name": "other"}}],
)
async def test_a_success_that_is_not_about_the_object_is_no_answer(
    api: ScriptedApi, body: Mapping[str, object]
) -> None:
    api.then(reply(body), reply(body), reply(body))
    async with KubeClient(FixedAccess(api.url)) as client:
        with pytest.raises(MalformedAnswerError, match=r": the response is not the object, but \w"):
            await client.get(PODS, "a", "b")
        with pytest.raises(MalformedAnswerError):
            await client.merge_patch(REQUESTS, "a", "b", {})
        with pytest.raises(MalformedAnswerError):
            await client.create(EVENTS, "a", {"metadata": {"name": "b"}})


async def test_calls_are_counted(api: ScriptedApi) -> None:
    calls: list[tuple[str, str, int]] = []

    def count(verb: str, resource: str, code: int, seconds: float) -> None:
        assert seconds >= 0
        calls.append((verb, resource, code))

    api.then(reply(named("b")), refuse(409), vanish(), vanish(), stream())
    async with KubeClient(FixedAccess(api.url), on_call=count) as client:
        await client.get(PODS, "a", "b")
        with pytest.raises(ConflictError):
            await client.merge_patch(REQUESTS, "a", "b", {})
        with pytest.raises(ApiUnavailableError):
            await client.create(EVENTS, "a", {})
        async with client.watch(PODS, "1"):
            pass
    assert calls == [
        ("get", "pods", 200),
        ("patch", "containerrecreaterequests", 409),
        ("create", "events", 0),
        ("create", "events", 0),
        ("watch", "pods", 200),
    ]


@pytest.mark.parametrize(
    ("status", "details", "kind"),
    [
        (400, {}, ApiRefusedError),
        (401, {}, ApiRefusedError),
        (403, {}, ApiRefusedError),
        (404, {"name": "b", "kind": "pods"}, GoneError),
        (404, {}, ResourceMissingError),
        (409, {}, ConflictError),
        (410, {}, ExpiredError),
        (422, {}, ApiRefusedError),
        (429, {}, ApiUnavailableError),
        (500, {}, ApiUnavailableError),
        (503, {}, ApiUnavailableError),
        (504, {}, ApiUnavailableError),
        (504, {"causes": [{"reason": "ResourceVersionTooLarge"}]}, FutureVersionError),
        (403, {"causes": [{"reason": "NamespaceTerminating"}]}, NamespaceEndingError),
        (504, {"causes": ["ResourceVersionTooLarge", {"reason": "Other"}]}, ApiUnavailableError),
        (302, {}, ApiRefusedError),
    ],
)
async def test_refusals_keep_the_servers_sentence(
    api: ScriptedApi, client: KubeClient, status: int, details: dict[str, Any], kind: type[Exception]
) -> None:
    api.then(reply(failure(status, "because it is so", **details), status))
    with pytest.raises((ApiRefusedError, ApiUnavailableError)) as caught:
        await client.get(PODS, "a", "b")
    assert type(caught.value) is kind
    assert str(caught.value) == f"get /api/v1/namespaces/a/pods/b: because it is so ({status})"
    if isinstance(caught.value, ApiRefusedError):
        assert caught.value.status == status


def retry_after(error: Exception) -> float:
    assert isinstance(error, ApiUnavailableError)
    return error.retry_after


def test_what_proxies_and_old_servers_say() -> None:
    missing = from_answer(404, b"404 page not found\n", "", "list /x")
    assert isinstance(missing, ResourceMissingError)
    assert str(missing) == "list /x: 404 page not found (404)"
    assert str(from_answer(502, b"\xff<html>", "", "x")) == "x: \ufffd<html> (502)"
    assert str(from_answer(500, b"[1]", "", "x")) == "x: no reason given (500)"
    assert len(str(from_answer(500, b"y" * 5000, "", "x"))) < 600
    assert retry_after(from_answer(503, b"", "7", "x")) == 7.0
    assert retry_after(from_answer(503, b"", "86400", "x")) == 30.0  # one answer must not silence a daemon for hours
    assert retry_after(from_answer(503, b"", "Wed, 21 Oct 2026 07:28:00 GMT", "x")) == 0.0
    assert retry_after(from_answer(429, json.dumps({"details": {"retryAfterSeconds": 3}}).encode(), "", "x")) == 3.0
    endless = b'{"details": {"retryAfterSeconds": %s}}' % (b"9" * 400)
    assert retry_after(from_answer(429, endless, "", "x")) == 30.0
    assert isinstance(from_answer(500, b"[" * 100_000, "", "x"), ApiUnavailableError)


def test_only_objects_are_answers() -> None:
    assert decode(b'{"a": 1}', "x") == {"a": 1}
    for raw in (b"", b"[]", b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(MalformedAnswerError):
            decode(raw, "x")


@pytest.mark.parametrize(
    "broken", [[vanish(), vanish()], [hang()], [reply(b"<html>")], [stream(b'{"a":', end="breaks")]]
)
async def test_a_server_that_gives_no_sound_answer(api: ScriptedApi, broken: list[Reply]) -> None:
    api.then(*broken)
    async with KubeClient(FixedAccess(api.url), deadlines=Deadlines(call=0.5)) as client:
        with pytest.raises(ApiUnavailableError, match=r"^patch /api/v1/namespaces/a/pods/b: ."):
            await client.merge_patch(PODS, "a", "b", {})
        api.then(reply(named("b")))
        await client.get(PODS, "a", "b")


async def test_a_call_waits_for_others_no_longer_than_it_may_take(api: ScriptedApi) -> None:
    api.then(*[hang()] * 20)
    async with KubeClient(FixedAccess(api.url), deadlines=Deadlines(call=0.2, page=600)) as client:
        others = [asyncio.create_task(client.list_all(PODS, dict)) for _ in range(10)]
        while len(api.seen) < 6:
            await asyncio.sleep(0.01)
        with pytest.raises(ApiUnavailableError, match=r"^get /api/v1/namespaces/a/pods/b: no answer in time"):
            await client.get(PODS, "a", "b")
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        api.script.clear()
        api.then(reply(named("b")))
        await client.get(PODS, "a", "b")  # each place was given back


@pytest.mark.parametrize("reset", [False, True])
async def test_a_write_whose_old_connection_was_cut_is_sent_again(
    api: ScriptedApi, client: KubeClient, *, reset: bool
) -> None:
    api.then(reply(named("b")), vanish(reset=reset), reply(named("b")))
    await client.get(PODS, "a", "b")
    assert await client.merge_patch(PODS, "a", "b", {}) == named("b")
    assert api.calls()[1:] == ["PATCH /api/v1/namespaces/a/pods/b"] * 2


async def test_nobody_listens() -> None:
    async with scripted_api() as api:
        url = api.url
    async with KubeClient(FixedAccess(url)) as client:
        with pytest.raises(ApiUnavailableError) as caught:
            await client.get(PODS, "a", "b")
    host = url.removeprefix("http://")
    assert str(caught.value) == f"get /api/v1/namespaces/a/pods/b: cannot connect to {host}: Connection refused"


KEY = ConnectionKey("api", 443, is_ssl=True, ssl=True, proxy=None, proxy_auth=None, proxy_headers_hash=None)
UNTRUSTED = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate (_ssl.c:1006)")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (aiohttp.ClientConnectorError(KEY, OSError(113, "Connect call failed ('10.0.0.1', 443)")), "No route to host"),
        (aiohttp.ClientConnectorError(KEY, OSError("Multiple exceptions: a, b")), "Multiple exceptions: a, b"),
        (
            aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(-2, "Name or service not known")),
            "Name or service not known",
        ),
        (aiohttp.ClientConnectorCertificateError(KEY, UNTRUSTED), UNTRUSTED.strerror),
        (aiohttp.ClientConnectorSSLError(KEY, ssl.SSLError(1, "wrong version number")), "wrong version number"),
    ],
)
def test_why_there_is_no_connection(error: aiohttp.ClientConnectorError, said: str) -> None:
    call = Call("get", PODS, "/p", aiohttp.ClientTimeout())
    with pytest.raises(ApiUnavailableError) as caught:
        unavailable(call, error)
    assert str(caught.value) == f"get /p: cannot connect to api:443: {said}"


async def test_lists_page_by_page(api: ScriptedApi, client: KubeClient) -> None:
    api.then(listing("5", named("a"), named("b"), token="t1"), listing("5", token="t2"), listing("5", named("c")))
    found = await client.list_all(PODS, name_of, label_selector="a=b", field_selector="c=d")
    assert found.items == ("a", "b", "c")
    assert found.resource_version == "5"
    selectors = {"labelSelector": "a=b", "fieldSelector": "c=d", "limit": str(PODS.page)}
    assert [dict(request.query) for request in api.seen] == [
        selectors,
        {**selectors, "continue": "t1"},
        {**selectors, "continue": "t2"},
    ]


@pytest.mark.parametrize("version", ["0", "17"])
async def test_a_list_of_a_version_is_asked_for_as_a_whole(api: ScriptedApi, client: KubeClient, version: str) -> None:
    api.then(listing("18", named("a"), token="t1"), listing("18", named("b")))
    found = await client.list_all(PODS, name_of, resource_version=version)
    assert found.items == ("a", "b")
    # A server may cut it into pages all the same; the token stands for the version then.
    assert [dict(request.query) for request in api.seen] == [{"resourceVersion": version}, {"continue": "t1"}]


async def test_a_list_that_expires_between_pages_is_begun_anew(api: ScriptedApi, client: KubeClient) -> None:
    api.then(listing("5", named("a"), token="t1"), refuse(410), listing("9", named("b")))
    found = await client.list_all(PODS, name_of, namespace="n", resource_version="0")
    assert found.items == ("b",)
    assert found.resource_version == "9"
    assert dict(api.seen[2].query) == {"limit": str(PODS.page)}
    assert api.seen[2].path == "/api/v1/namespaces/n/pods"


async def test_a_list_that_expires_again_is_given_up(api: ScriptedApi, client: KubeClient) -> None:
    """It is never asked for as a whole, however large it is."""
    api.then(listing("5", named("a"), token="t1"), refuse(410), listing("9", named("b"), token="t2"), refuse(410))
    with pytest.raises(ExpiredError):
        await client.list_all(PODS, name_of)
    assert [request.query.get("limit") for request in api.seen] == [str(PODS.page)] * 4


async def test_a_list_without_version_is_no_list(api: ScriptedApi, client: KubeClient) -> None:
    api.then(reply({"items": [named("a")]}))
    with pytest.raises(MalformedAnswerError):
        await client.list_all(PODS, name_of)


async def test_watch_gives_events_until_the_server_ends_it(api: ScriptedApi, client: KubeClient) -> None:
    raw = event("ADDED", named("a")) + event("DELETED", named("b"))
    api.then(stream(raw[:10], raw[10:60], raw[60:], b"\n", bookmark("8").strip()))
    async with client.watch(PODS, "5", field_selector="x=y") as events:
        found = [found async for found in events]
    assert found == [
        WatchEvent("ADDED", named("a")),
        WatchEvent("DELETED", named("b")),
        WatchEvent("BOOKMARK", {"metadata": {"resourceVersion": "8"}}),
    ]
    query = dict(api.seen[0].query)
    assert 240 <= int(query.pop("timeoutSeconds")) <= 360
    assert query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "5",
        "fieldSelector": "x=y",
    }


async def test_an_event_of_eight_megabytes(api: ScriptedApi, client: KubeClient) -> None:
    big = {"metadata": {"name": "a"}, "data": "x" * 2**23}
    api.then(stream(event("ADDED", big)))
    async with client.watch(PODS, "5") as events:
        assert [found.object async for found in events] == [big]


async def test_a_line_without_end_is_given_up() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 2**20

    with pytest.raises(MalformedAnswerError, match=str(LONGEST_LINE)):
        async for _ in lines(chunks()):
            pass


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refuse(410), ExpiredError),
        (stream(event("ERROR", failure(410))), ExpiredError),
        (stream(event("ERROR", failure(429, retryAfterSeconds=2))), ApiUnavailableError),
        (stream(event("ERROR", {})), ApiUnavailableError),
        (stream(event("ERROR", failure(403))), ApiRefusedError),
        (stream(b"garbage\n"), MalformedAnswerError),
        (stream(bookmark("6")[:20]), MalformedAnswerError),
        (stream(bookmark("6"), end="breaks"), ApiUnavailableError),
        (stream(bookmark("6"), end="silent"), ApiUnavailableError),
        (hang(), ApiUnavailableError),
        (refuse(404), ResourceMissingError),
    ],
)
async def test_watches_that_end_badly(api: ScriptedApi, answer: Any, kind: type[Exception]) -> None:
    api.then(answer)
    async with KubeClient(FixedAccess(api.url), deadlines=Deadlines(stall=0.5)) as client:
        with pytest.raises((ApiRefusedError, ApiUnavailableError)) as caught:
            await follow(client)
    assert type(caught.value) is kind


async def test_a_watch_that_the_server_never_ends_is_ended_here(api: ScriptedApi) -> None:
    async def chatty(request: Any) -> Any:
        return await stream(*[bookmark("6")] * 3, end="silent")(request)

    api.then(chatty)
    deadlines = Deadlines(watch=(0, 0), watch_margin=0.5, stall=60)
    async with KubeClient(FixedAccess(api.url), deadlines=deadlines) as client:
        with pytest.raises(ApiUnavailableError):
            await follow(client)


async def test_a_cancelled_watch_gives_its_connection_back(api: ScriptedApi, client: KubeClient) -> None:
    opened = asyncio.Event()
    for _ in range(20):  # more than there are connections
        opened.clear()
        task = asyncio.create_task(follow(client, opened))
        await opened.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    api.then(reply(named("b")))
    await client.get(PODS, "a", "b")


class Rotating:
    """Credentials of which the server accepts only the renewed ones."""

    description = "a rotating token"

    def __init__(self, server: str, *tokens: str) -> None:
        self._server = server
        self._tokens = list(tokens)

    async def current(self) -> Access:
        return Access(self._server, self._tokens[0])

    async def renew(self, refused: Access) -> Access:
        if len(self._tokens) > 1:
            self._tokens.pop(0)
        return await self.current()


async def test_refused_credentials_are_renewed_once(api: ScriptedApi) -> None:
    async with KubeClient(Rotating(api.url, "one", "two", "three")) as client:
        api.then(refuse(401), reply(named("b")))
        assert await client.get(PODS, "a", "b") == named("b")
        api.then(refuse(401), refuse(401))
        with pytest.raises(ApiRefusedError) as caught:
            await client.get(PODS, "a", "b")
        assert caught.value.status == 401
        api.then(refuse(401))
        with pytest.raises(ApiRefusedError):  # there are no others: it is not asked twice
            await client.get(PODS, "a", "b")
    tokens = [request.headers["Authorization"] for request in api.seen]
    assert tokens == ["one", "two", "two", "three", "three"]


LISTS = [
    {"kind": "List", "metadata": {"resourceVersion": "7", "continue": "x"}, "items": []},
    {
        "metadata": {"resourceVersion": "7"},
        "items": [{"a": [1, {"items": []}]}, {}, {"b": "]},{\u00e9\u2028"}],
        "more": 1,
    },
    {"items": [{"a": 1}], "metadata": {"resourceVersion": "7"}},
    {"metadata": {"annotations": {"items": [1]}, "resourceVersion": "7"}, "items": [{"a": 1}, {"b": 2}]},
    {"metadata": {"resourceVersion": "7"}, "items": None},
    {"metadata": {"resourceVersion": "7"}, "items": [3, None, {"a": 1}]},
    {"kind": "Status"},
]


@pytest.mark.parametrize("shape", LISTS, ids=range(len(LISTS)))
@pytest.mark.parametrize("form", [{"separators": (",", ":")}, {}, {"indent": 1}], ids=["compact", "usual", "indented"])
def test_a_list_read_piece_by_piece_is_the_list_as_a_whole(shape: dict[str, Any], form: dict[str, Any]) -> None:
    meta, objects = listed(json.dumps(shape, **form).encode(), "list x")
    assert dict(meta) == shape.get("metadata", {})
    assert list(objects) == [each if isinstance(each, dict) else {} for each in shape.get("items") or ()]


def test_a_list_that_breaks_off_anywhere_is_malformed() -> None:
    raw = json.dumps(LISTS[1], separators=(",", ":"), ensure_ascii=False).encode()
    for length in range(len(raw)):
        with pytest.raises(MalformedAnswerError):
            list(listed(raw[:length], "list x")[1])
    for odd in (
        b"[]",
        b'{"metadata":{},"items":[{}{}]}',
        b'{"metadata":{},"items":[{}]',
        b'{"metadata":{},"items":[{}]}x',
    ):
        with pytest.raises(MalformedAnswerError):
            list(listed(odd, "list x")[1])


@pytest.mark.parametrize("system", ["Linux", "macOS", "another"])
def test_dead_peers_are_noticed_with_what_the_system_has(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    """macOS calls the option TCP_KEEPALIVE. A system without any has its own times."""
    option = socket.TCP_KEEPIDLE
    if system != "Linux":
        monkeypatch.delattr(socket, "TCP_KEEPIDLE")
    if system == "macOS":
        monkeypatch.setattr(socket, "TCP_KEEPALIVE", option, raising=False)
    with _socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ())) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert (made.getsockopt(socket.IPPROTO_TCP, option) == 30) is (system != "another")
