"""What a caller can send instead of a sound call: it gets a clear answer, and the next one is served as before."""

import asyncio
import io
import json
import ssl
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crrd.manager.webhook import handler, server
from crrd.manager.webhook.review import Review, read_review
from tests.support.admission import JsonObject, new_pod, new_request, new_review
from tests.support.webhook import QUICK, Pods, Served, trusting, webhook

MIB = 2**20
SOUND = new_review(new_request())
PATHS = ("/mutate-crr", "/mutate-pod")


async def still_serves(served: Served) -> None:
    assert (await served.ask("/mutate-crr", SOUND))["allowed"] is True


def without(*path: str) -> JsonObject:
    """The sound review less one field."""
    review: JsonObject = json.loads(json.dumps(SOUND))
    place: Any = review
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return review


def given_(**request: Any) -> JsonObject:
    return new_review(new_request(), **request)


REQUEST_KIND = " or ".join(f"apps.kruise.io/{version} ContainerRecreateRequest" for version in ("v1alpha1", "v1beta1"))
NOT_UNDERSTOOD: list[tuple[bytes | JsonObject, str]] = [
    (b"", "the body must be JSON"),
    (b"{", "the body must be JSON"),
    (b"\xff\xfe", "the body must be JSON"),
    (b"[]", "the body must be a JSON object"),
    (b"null", "the body must be a JSON object"),
    (b'{"request": NaN}', "the body must be JSON"),
    (b'{"request": ' + b"1" * 5000 + b"}", "the body must be JSON"),
    (b'{"a":' * 90_000, "the body is nested too deeply"),
    (b"[" * 90_000, "the body is nested too deeply"),
    (b"[" * 3_000_000, "the body must not contain more than 100000 values"),
    (b'{"request": {"object": {"spec": {"containers": [' + b"{}," * 60_000 + b"{}]}}}}",
     "the body must not contain more than 100000 values"),
    (SOUND | {"apiVersion": "admission.k8s.io/v1beta1"},
     "apiVersion must be admission.k8s.io/v1, not 'admission.k8s.io/v1beta1'"),
    (SOUND | {"kind": "Pod"}, "kind must be AdmissionReview, not 'Pod'"),
    (without("request"), "request.kind.version must be a string that is not empty"),
    (SOUND | {"request": []}, "request must be an object"),
    (without("request", "uid"), "request.uid must be a string that is not empty"),
    (given_(uid=7), "request.uid must be a string"),
    (given_(kind={"version": "v1", "kind": "Secret"}), f"request.kind must be {REQUEST_KIND}, not 'v1 Secret'"),
    (given_(kind="Pod"), "request.kind must be an object"),
    (given_(operation="PATCH"), "request.operation must be CREATE, UPDATE, DELETE or CONNECT, not 'PATCH'"),
    (given_(namespace="../kube-system"), "request.namespace must be a namespace's name, not '../kube-system'"),
    (given_(userInfo={"username": ["root"]}), "request.userInfo.username must be a string"),
    (given_(object=None), "request.object must be the object that is to be written"),
    (given_(object="x"), "request.object must be an object"),
    (given_(operation="UPDATE"), "request.oldObject must be the object before the update"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "sentence"), NOT_UNDERSTOOD)
async def test_what_cannot_be_understood(served: Served, pods: Pods, body: bytes | JsonObject, sentence: str) -> None:
    assert await served.post("/mutate-crr", body) == (400, f"{sentence}\n".encode())
    assert not pods.asked
    await still_serves(served)


async def test_numbers_that_json_cannot_answer_with(served: Served) -> None:
    body = json.dumps(given_(object=new_request(containers=[{"name": "app", "new": 1e308}]))).encode()
    status, answer = await served.post("/mutate-crr", body.replace(b"1e+308", b"1e+999"))
    assert (status, answer) == (400, b"the body must contain only numbers that JSON allows\n")


async def test_nesting_that_can_be_read_but_not_written(served: Served) -> None:
    """Somewhere near the interpreter's limit reading works and comparing or writing does not: never a 5xx."""
    seen = set()
    for depth in range(100, 1100, 50):
        deep = b'{"a":' * depth + b"1" + b"}" * depth
        body = json.dumps(given_(object=new_request(containers=[{"name": "app", "new": "HERE"}]))).encode()
        status, _ = await served.post("/mutate-crr", body.replace(b'"HERE"', deep))
        seen.add(status)
    assert seen == {200, 400}
    await still_serves(served)


@pytest.mark.parametrize("content_type", ["text/plain", "application/yaml", "application/octet-stream"])
async def test_other_content_types(served: Served, content_type: str) -> None:
    assert await served.post("/mutate-crr", SOUND, content_type=content_type) == (
        415,
        b"the content type must be application/json\n",
    )


async def test_a_content_type_with_a_charset(served: Served) -> None:
    assert (await served.post("/mutate-crr", SOUND, content_type="application/json; charset=utf-8"))[0] == 200


async def test_compressed_bodies(served: Served) -> None:
    url = f"https://{served.address}/mutate-crr"
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    async with served.session.post(url, data=b"\x1f\x8b", headers=headers) as response:
        assert (response.status, await response.text()) == (415, "the body must not be compressed\n")


async def test_other_methods_and_paths(served: Served) -> None:
    assert (await served.page("/mutate-crr"))[0] == 405
    assert (await served.post("/nothing", SOUND))[0] == 404


async def in_chunks(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), MIB):
        yield body[start : start + MIB]


@pytest.mark.parametrize("chunked", [False, True])
async def test_three_mebibytes_are_the_most(served: Served, *, chunked: bool) -> None:
    sound = json.dumps(SOUND).encode()
    url = f"https://{served.address}/mutate-crr"
    for size, status in ((3 * MIB, 200), (3 * MIB + 1, 413), (8 * MIB, 413)):
        body = sound + b" " * (size - len(sound))
        data = in_chunks(body) if chunked else io.BytesIO(body)
        async with served.session.post(url, data=data, headers={"Content-Type": "application/json"}) as response:
            assert response.status == status
            if status == 413:
                assert await response.text() == "the body must not be larger than 3145728 bytes\n"
    await still_serves(served)


async def raw(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", served.port, ssl=trusting(served.certificates))


def head(length: int) -> bytes:
    return (
        f"POST /mutate-crr HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


async def test_a_body_that_does_not_arrive(pods: Pods) -> None:
    async with webhook(pods, limits=replace(QUICK, read_seconds=0.2)) as served:
        reader, writer = await raw(served)
        writer.write(head(100) + b"{")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert answer.endswith(b"timed out reading the request body\n")
        writer.close()
        await still_serves(served)


async def test_a_head_that_does_not_arrive(pods: Pods) -> None:
    async with webhook(pods, limits=replace(QUICK, head_seconds=0.2)) as served:
        reader, writer = await raw(served)
        writer.write(b"POST /mutate-crr HT")
        assert await reader.read() == b""
        writer.close()
        await still_serves(served)


async def test_a_handshake_that_does_not_come(pods: Pods) -> None:
    async with webhook(pods, limits=replace(QUICK, handshake_seconds=0.2)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        assert await reader.read() == b""
        writer.close()
        await still_serves(served)


async def test_a_caller_who_leaves_in_the_middle(served: Served) -> None:
    _, writer = await raw(served)
    writer.write(head(100) + b"{")
    await writer.drain()
    writer.close()
    await still_serves(served)


async def test_garbage_instead_of_http(served: Served) -> None:
    reader, writer = await raw(served)
    writer.write(b"\x00\x01\x02 garbage\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.0 400")
    writer.close()
    await still_serves(served)


async def test_bodies_of_all_callers_together_are_bounded(pods: Pods) -> None:
    async with webhook(pods, limits=replace(QUICK, bodies=100)) as served:
        _, slow = await raw(served)
        slow.write(head(100) + b" " * 90)
        await slow.drain()
        sound = json.dumps(SOUND).encode()
        assert await served.post("/mutate-crr", sound) == (503, b"too many calls at once: try again\n")
        slow.close()


async def test_a_call_that_waits_for_its_pod_is_read_once_and_counts(
    pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes count until there is an answer."""
    body = json.dumps(given_(uid="waits")).encode()
    calls, read, looked, go_on = 3, [], asyncio.Event(), asyncio.Event()

    def counted(raw: bytes, kinds: Sequence[str]) -> Review:
        read.append(raw)
        return read_review(raw, kinds)

    async def before() -> None:
        if len(pods.asked) == calls:
            looked.set()
        await go_on.wait()

    monkeypatch.setattr(server, "read_review", counted)
    pods.before = before
    async with webhook(pods, limits=replace(QUICK, bodies=calls * len(body))) as served:
        waiting = [asyncio.create_task(served.post("/mutate-crr", body)) for _ in range(calls)]
        await looked.wait()
        assert await served.post("/mutate-crr", body) == (503, b"too many calls at once: try again\n")
        go_on.set()
        assert [status for status, _ in await asyncio.gather(*waiting)] == [200] * calls
        assert len(read) == calls
        assert (await served.post("/mutate-crr", body))[0] == 200


async def test_what_was_read_and_waits_for_its_pod_is_bounded(
    served: Served, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes many times the room of its bytes. What needs no pod is answered all the same."""
    body = json.dumps(SOUND).encode()
    looked, go_on = asyncio.Event(), asyncio.Event()

    async def before() -> None:
        if len(pods.asked) == 2:
            looked.set()
        await go_on.wait()

    monkeypatch.setattr(handler, "WAITING_BYTES", 2 * len(body))
    pods.before = before
    waiting = [asyncio.create_task(served.post("/mutate-crr", body)) for _ in range(2)]
    await looked.wait()
    status = (await served.ask("/mutate-crr", SOUND))["status"]
    assert (status["code"], status["details"]) == (503, {"retryAfterSeconds": 1})
    assert status["message"] == ("spec.podName cannot be checked now: too many pod lookups at once; try again")
    unchanged = new_review(new_request(), "UPDATE", old=new_request())
    assert (await served.ask("/mutate-crr", unchanged))["allowed"]
    go_on.set()
    assert [status for status, _ in await asyncio.gather(*waiting)] == [200] * 2
    assert (await served.post("/mutate-crr", body))[0] == 200
    assert len(pods.asked) == 3


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_tls_versions_that_are_served(served: Served, version: ssl.TLSVersion) -> None:
    context = trusting(served.certificates)
    context.minimum_version = context.maximum_version = version
    _, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=context)
    assert writer.get_extra_info("ssl_object").version() == version.name.replace("_", ".")
    writer.close()


async def test_older_tls_is_refused(served: Served) -> None:
    context = trusting(served.certificates)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", served.port, ssl=context)


async def test_a_caller_who_trusts_another_authority(served: Served) -> None:
    with pytest.raises(ssl.SSLError):
        await asyncio.open_connection("127.0.0.1", served.port, ssl=ssl.create_default_context())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
FIELDS = ("uid", "kind", "operation", "namespace", "userInfo", "object", "oldObject", "subResource")
POD_KIND = {"group": "", "version": "v1", "kind": "Pod"}


@st.composite
def disturbed_reviews(draw: st.DrawFn) -> JsonObject:
    """A sound review in which some fields are anything."""
    kind = draw(st.sampled_from([SOUND["request"]["kind"], POD_KIND]))
    review = new_review(new_request(), kind=kind)
    for field in draw(st.lists(st.sampled_from(FIELDS), max_size=2)):
        review["request"][field] = draw(json_values)
    for field in draw(st.lists(st.sampled_from(["podName", "containers", "strategy"]), max_size=2)):
        if isinstance(review["request"]["object"], dict):
            spec = review["request"]["object"].get("spec")
            if isinstance(spec, dict):
                spec[field] = draw(json_values)
    return review


bodies: st.SearchStrategy[Any] = st.binary(max_size=64) | (json_values | disturbed_reviews()).map(
    lambda value: json.dumps(value).encode()
)


def test_any_body_gets_an_answer() -> None:
    """One server takes them all: never a 5xx, never a hang, and every answer to a question has its UID."""
    with asyncio.Runner() as runner:
        running = webhook(Pods({("shop", "web-0"): new_pod()}))
        served = runner.run(running.__aenter__())

        @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(st.sampled_from(PATHS), bodies)
        def answered(path: str, body: bytes) -> None:
            status, answer = runner.run(served.post("/mutate-crr", body))
            assert status in (200, 400), answer
            if status == 200:
                response = json.loads(answer)["response"]
                assert response["uid"] == json.loads(body)["request"]["uid"]
                assert response["allowed"] or 400 <= response["status"]["code"] < 500

        check: Callable[[], None] = answered
        check()
        runner.run(running.__aexit__(None, None, None))
