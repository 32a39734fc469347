"""The local API server over HTTP: discovery, objects, refusals, tables."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from crrd_localnode.api.admission import User
from tests.support.faulty_api import Call
from tests.support.local_api import ALL_CRRS, CRRS, PODS, Api, crr, pod, running, until

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with running() as api:
        yield api


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/livez"])
async def test_health_is_plain_text(api: Api, path: str) -> None:
    reply = await api.get(path)
    assert (reply.status, reply.body) == (200, "ok")


async def test_discovery_names_every_resource_where_it_is_served(api: Api) -> None:
    assert (await api.get("/api")).body["versions"] == ["v1"]
    groups = {group["name"]: group for group in (await api.get("/apis")).body["groups"]}
    assert {"apps.kruise.io", "coordination.k8s.io", "apiextensions.k8s.io"} <= groups.keys()
    assert (await api.get("/apis/apps.kruise.io")).body["preferredVersion"]["version"] == "v1beta1"
    core = {entry["name"]: entry for entry in (await api.get("/api/v1")).body["resources"]}
    assert {"pods", "pods/status", "events", "nodes", "secrets", "configmaps"} <= core.keys()
    (entry, status) = (await api.get("/apis/apps.kruise.io/v1alpha1")).body["resources"]
    assert entry["shortNames"] == ["crr"]
    assert entry["singularName"] == "containerrecreaterequest"
    assert status["name"] == "containerrecreaterequests/status"
    for path in (await api.get("/")).body["paths"]:
        assert (await api.get(path)).status == 200, path
    assert (await api.get("/version")).body["major"] == "1"


@pytest.mark.parametrize(
    "path",
    ["/apis/none.example", "/apis/apps.kruise.io/v9", "/api/v2", "/api/v1/nothings", "/metrics", "/openapi/v3/apis/x",
     "/api/v1/pods/web", "/api/v1/namespaces/default/pods/web/attach", "/api/v1/namespaces/default/pods/web/binding",
     "/api/v1/namespaces/default/nodes/n1",
     "/api/v1/namespaces/default/pods/web/status/more", "/api/v1/namespaces/default/configmaps/x/status"],
)  # fmt: skip
async def test_what_is_not_served_is_404(api: Api, path: str) -> None:
    reply = await api.get(path)
    assert (reply.status, reply.body) == (404, "404 page not found\n")


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/v1/pods"), ("POST", PODS + "/web"), ("PUT", PODS), ("PATCH", PODS), ("OPTIONS", PODS),
     ("DELETE", PODS + "/web/status"), ("DELETE", PODS)],
)  # fmt: skip
async def test_methods_that_make_no_sense_are_405(api: Api, method: str, path: str) -> None:
    assert (await api.call(method, path)).status == 405


async def test_created_object_carries_what_the_server_sets(api: Api) -> None:
    sent = crr(uid="mine", resourceVersion="", creationTimestamp=None, deletionTimestamp="2020-01-01T00:00:00Z")
    reply = await api.post(CRRS, {**sent, "status": {"phase": "Completed"}})
    assert reply.status == 201
    meta = reply.body["metadata"]
    assert (meta["name"], meta["namespace"], meta["generation"]) == ("r", "default", 1)
    assert len(meta["uid"]) == 36
    assert "deletionTimestamp" not in meta
    assert "status" not in reply.body
    assert int(meta["resourceVersion"]) == api.server.store.revision
    assert datetime.fromisoformat(meta["creationTimestamp"]).tzinfo is UTC
    assert (await api.get(CRRS + "/r")).body == reply.body


async def test_generated_names_differ(api: Api) -> None:
    sent = {"metadata": {"generateName": "web."}, "involvedObject": {"kind": "Pod"}}
    replies = [await api.post("/api/v1/namespaces/default/events", sent) for _ in range(3)]
    names = {reply.body["metadata"]["name"] for reply in replies}
    assert len(names) == 3
    assert all(name.startswith("web.") and len(name) == 9 for name in names)


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"metadata": {}}, 422, 'ContainerRecreateRequest.apps.kruise.io "" is invalid: metadata.name: Required value'),
        ({"metadata": {"name": "Upper"}}, 422, "a lowercase RFC 1123 subdomain"),
        ({"metadata": {"name": "r", "namespace": "other"}}, 400, "the namespace of the provided object does not match"),
        ({"metadata": {"name": "r", "resourceVersion": "1"}}, 500, "resourceVersion should not be set"),
        ({"metadata": {"name": "r", "labels": {"a": 1}}}, 400, "the values must be strings"),
        ({"metadata": {"name": "r", "labels": {"a": "x" * 64}}}, 422, "must be no more than 63 bytes"),
        ({"metadata": {"name": "r", "labels": {"a b": ""}}}, 422, "metadata.labels: Invalid value"),
        ({"metadata": {"name": "r", "annotations": {"/": ""}}}, 422, "metadata.annotations: Invalid value"),
        ({"metadata": {"name": "r", "annotations": {"a": "x" * 300_000}}}, 422, "metadata.annotations: Too long"),
        ({"metadata": {"name": "r", "finalizers": ["a b"]}}, 422, "metadata.finalizers: Invalid value"),
        ({"metadata": []}, 422, "metadata.name: Required value"),
        ({"metadata": "x"}, 400, "metadata is not an object"),
        ({"kind": "Pod"}, 400, "the object provided is unrecognized"),
        ({"spec": {"podName": "p", "containers": []}}, 422, "spec.containers in body should have at least 1 items"),
        ({"spec": None}, 422, "spec: Required value"),
    ],
)
async def test_create_refuses(api: Api, change: dict[str, object], status: int, message: str) -> None:
    reply = await api.post(CRRS, {**crr(), **change})
    assert reply.status == status
    assert message in reply.body["message"]
    assert (await api.get(ALL_CRRS)).body["items"] == []


async def test_invalid_names_each_cause(api: Api) -> None:
    sent = crr()
    sent["spec"]["activeDeadlineSeconds"] = 1
    sent["spec"]["strategy"] = {"failurePolicy": "Maybe"}
    reply = await api.post(CRRS, sent)
    details = reply.body["details"]
    assert reply.body["reason"] == "Invalid"
    assert (details["name"], details["group"], details["kind"]) == ("r", "apps.kruise.io", "ContainerRecreateRequest")
    assert {(cause["reason"], cause["field"]) for cause in details["causes"]} == {
        ("FieldValueInvalid", "spec.activeDeadlineSeconds"),
        ("FieldValueNotSupported", "spec.strategy.failurePolicy"),
    }


async def test_bodies_that_are_not_json_objects(api: Api) -> None:
    assert (await api.post(CRRS, b"{")).status == 400
    assert (await api.post(CRRS, b'{"metadata": NaN}')).status == 400
    assert (await api.post(CRRS, b"[]")).status == 400
    assert (await api.post(CRRS, b"a: b", Content_Type="application/yaml")).status == 415
    assert (await api.post(CRRS, b" " * 4_000_000)).status == 413


async def test_unknown_fields_are_dropped_with_a_warning_or_refused(api: Api) -> None:
    sent = {**crr(), "extra": 1}
    sent["spec"]["containers"][0]["preStop"] = {"exec": {"command": ["true"]}}
    reply = await api.post(CRRS, sent)
    assert "extra" not in reply.body
    assert reply.body["spec"]["containers"][0]["preStop"] == {"exec": {"command": ["true"]}}
    assert reply.headers["Warning"] == '299 - "unknown field \\"extra\\""'
    strict = await api.post(CRRS + "?fieldValidation=Strict", {**crr("s"), "extra": 1})
    assert strict.status == 400
    assert 'strict decoding error: unknown field "extra"' in strict.body["message"]


async def test_namespaces_must_exist(api: Api) -> None:
    reply = await api.post(CRRS.replace("default", "nowhere"), crr())
    assert (reply.status, reply.body["message"]) == (404, 'namespaces "nowhere" not found')


async def test_same_name_twice(api: Api) -> None:
    await api.post(CRRS, crr())
    reply = await api.post(CRRS, crr())
    assert (reply.status, reply.body["reason"]) == (409, "AlreadyExists")


async def test_lists_are_sorted_selected_and_in_the_shape_of_their_kind(api: Api) -> None:
    await api.post("/api/v1/namespaces", {"metadata": {"name": "a-first"}})
    await api.post(PODS, pod("z", labels={"app": "web"}))
    await api.post(PODS, pod("b", node="n2"))
    await api.post(PODS.replace("default", "a-first"), pod("c", labels={"app": "web"}))
    reply = await api.get("/api/v1/pods")
    assert [item["metadata"]["name"] for item in reply.body["items"]] == ["c", "b", "z"]
    assert (reply.body["kind"], reply.version) == ("PodList", str(api.server.store.revision))
    assert all("kind" not in item and "apiVersion" not in item for item in reply.body["items"])

    async def names(query: str) -> list[str]:
        body = (await api.get(f"/api/v1/pods?{query}")).body
        return [item["metadata"]["name"] for item in body["items"]]

    assert await names("labelSelector=app%3Dweb") == ["c", "z"]
    assert await names("labelSelector=app%20in%20(web,x),app&fieldSelector=metadata.namespace%3Ddefault") == ["z"]
    assert await names("fieldSelector=spec.nodeName%3Dn2") == ["b"]
    assert await names("fieldSelector=status.phase!%3DPending") == []
    await api.post(CRRS, crr())
    custom = (await api.get(ALL_CRRS)).body["items"]
    assert custom[0]["kind"] == "ContainerRecreateRequest"


async def test_namespace_lists_leave_the_kind_out_too(api: Api) -> None:
    items = (await api.get("/api/v1/namespaces")).body["items"]
    assert [item["metadata"]["name"] for item in items] == ["default", "kube-node-lease", "kube-public", "kube-system"]
    assert all("kind" not in item for item in items)


@pytest.mark.parametrize(
    ("query", "status"),
    [("fieldSelector=status.phase%3Dx", 400), ("fieldSelector=metadata.name", 400), ("labelSelector=a%20b", 400),
     ("labelSelector=a%3D-", 400), ("labelSelector=a%3Ex", 400), ("resourceVersion=x", 400),
     ("resourceVersionMatch=Exact", 422), ("resourceVersion=1&resourceVersionMatch=Sometimes", 422),
     ("resourceVersion=0&resourceVersionMatch=Exact", 422), ("continue=x&resourceVersionMatch=NotOlderThan", 422),
     ("continue=x", 400), ("continue=bm9uZQ==", 400), ("resourceVersion=1000000", 504),
     ("resourceVersion=1000000&resourceVersionMatch=Exact", 504), ("resourceVersion=1000000&limit=1", 504)],
)  # fmt: skip
async def test_lists_that_cannot_be_had(api: Api, query: str, status: int) -> None:
    reply = await api.get(f"{ALL_CRRS}?{query}")
    assert reply.status == status
    if status == 504:
        details = reply.body["details"]
        assert (reply.body["reason"], details["retryAfterSeconds"]) == ("Timeout", 1)
        assert details["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_lists_of_a_version(api: Api) -> None:
    version = (await api.post(CRRS, crr())).version
    for query in (
        "=0",
        f"={version}",
        "=1&resourceVersionMatch=NotOlderThan",
        f"={version}&resourceVersionMatch=Exact",
    ):
        assert (await api.get(f"{ALL_CRRS}?resourceVersion{query}")).version == version


async def named(api: Api, query: str) -> tuple[str, dict[str, Any]]:
    """The names of one list's items as one word, and its metadata."""
    reply = await api.get(f"{CRRS}?{query}")
    assert reply.status == 200, reply.body
    return "".join(item["metadata"]["name"] for item in reply.body["items"]), reply.body["metadata"]


async def test_which_lists_come_in_pages(api: Api) -> None:
    for name in "abc":
        version = (await api.post(CRRS, crr(name))).version
    await api.post(CRRS, crr("d"))
    names, meta = await named(api, "limit=2")
    assert (names, meta["remainingItemCount"]) == ("ab", 2)
    assert (await named(api, "limit=2&resourceVersion="))[0] == "ab"
    # Out of the watch cache a list is whole, and so it cannot be continued.
    for query in ("limit=2&resourceVersion=0", "limit=2&resourceVersion=0&resourceVersionMatch=NotOlderThan"):
        names, whole = await named(api, query)
        assert names == "abcd"
        assert not {"continue", "remainingItemCount"} & whole.keys()
    assert (await named(api, f"limit=2&resourceVersion=0&continue={meta['continue']}"))[0] == "cd"
    # A version with a limit means exactly that version, without one any that is not older.
    names, exact = await named(api, f"limit=2&resourceVersion={version}")
    assert (names, exact["remainingItemCount"], exact["resourceVersion"]) == ("ab", 1, version)
    assert (await named(api, f"continue={exact['continue']}"))[0] == "c"
    assert (await named(api, f"resourceVersion={version}"))[0] == "abcd"
    newer = await named(api, f"limit=3&resourceVersion={version}&resourceVersionMatch=NotOlderThan")
    assert (newer[0], newer[1]["remainingItemCount"]) == ("abc", 1)
    selected = (await named(api, "limit=1&fieldSelector=metadata.name!%3Da"))[1]
    assert "continue" in selected
    assert "remainingItemCount" not in selected
    late = await api.get(f"{CRRS}?resourceVersion={version}&continue={meta['continue']}")
    assert (late.status, late.body["message"]) == (
        400, "specifying resource version is not allowed when using continue"
    )  # fmt: skip


async def test_the_past_can_be_listed_until_it_is_compacted(api: Api) -> None:
    await api.post(CRRS, crr("a"))
    version = (await api.post(CRRS, crr("b"))).version
    await api.patch(CRRS + "/a", {"metadata": {"labels": {"new": "yes"}}})
    await api.delete(CRRS + "/b")
    exact = f"resourceVersion={version}&resourceVersionMatch=Exact"
    assert (await named(api, exact))[0] == "ab"
    assert (await named(api, f"{exact}&labelSelector=new"))[0] == ""
    api.server.compact()
    for query in (exact, f"resourceVersion={version}&limit=1"):
        reply = await api.get(f"{CRRS}?{query}")
        assert (reply.status, reply.body["reason"]) == (410, "Expired")
    assert (await named(api, f"resourceVersion={version}"))[0] == "a"


async def test_pages_show_one_state_and_expire_with_a_compaction(api: Api) -> None:
    for name in "abcde":
        await api.post(CRRS, crr(name))
    first = (await api.get(f"{CRRS}?limit=2")).body
    assert first["metadata"]["remainingItemCount"] == 3
    await api.delete(CRRS + "/c")
    second = (await api.get(f"{CRRS}?limit=2&continue={first['metadata']['continue']}")).body
    assert [item["metadata"]["name"] for item in second["items"]] == ["c", "d"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    await api.post(CRRS, crr("f"))
    api.server.compact()
    late = await api.get(f"{CRRS}?limit=2&continue={second['metadata']['continue']}")
    assert (late.status, late.body["reason"]) == (410, "Expired")
    # What is left can still be had, of another state than what was shown.
    names, meta = await named(api, f"limit=5&continue={late.body['metadata']['continue']}")
    assert (names, meta["resourceVersion"]) == ("ef", str(api.server.store.revision))


async def test_tables_have_the_printer_columns(api: Api) -> None:
    await api.post(CRRS, crr(labels={"crr.apps.kruise.io/node-name": "n1"}))
    await api.call("PATCH", CRRS + "/r/status", {"status": {"phase": "Pending"}},
                   **{"Content-Type": "application/merge-patch+json"})  # fmt: skip
    table = (await api.get(CRRS, Accept=TABLE)).body
    assert table["kind"] == "Table"
    names = ["Name", "PHASE", "POD", "NODE", "ACTION", "AGE"]
    assert [column["name"] for column in table["columnDefinitions"]] == names
    (row,) = table["rows"]
    assert row["cells"][:4] == ["r", "Pending", "web", "n1"]
    assert row["cells"][5].endswith("s")
    assert row["object"]["kind"] == "PartialObjectMetadata"
    one = (await api.get(CRRS + "/r?includeObject=Object", Accept=TABLE)).body
    assert one["rows"][0]["object"]["spec"]["podName"] == "web"
    bare = (await api.get(CRRS + "/r?includeObject=None", Accept=TABLE)).body
    assert "object" not in bare["rows"][0]
    assert (await api.get(CRRS + "?includeObject=Some", Accept=TABLE)).status == 400


async def test_metadata_only(api: Api) -> None:
    await api.post(CRRS, crr())
    accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    one = (await api.get(CRRS + "/r", Accept=accept)).body
    assert one.keys() == {"kind", "apiVersion", "metadata"}
    many = (await api.get(CRRS, Accept=accept.replace("Metadata;", "MetadataList;"))).body
    assert many["items"] == [one]


async def test_accept(api: Api) -> None:
    await api.post(CRRS, crr())
    protobuf = "application/vnd.kubernetes.protobuf"
    assert (await api.get(CRRS, Accept=protobuf)).status == 406
    assert (await api.get(CRRS, Accept=f"{protobuf}, application/json")).body["kind"].endswith("List")
    unknown = "application/json;as=Table;v=v7;g=meta.k8s.io"
    assert (await api.get(CRRS, Accept=unknown)).status == 406
    assert (await api.get(CRRS, Accept=f"{unknown},*/*")).status == 200


async def test_openapi_describes_the_custom_resource(api: Api) -> None:
    index = (await api.get("/openapi/v3")).body["paths"]
    document = (await api.get(index["apis/apps.kruise.io/v1alpha1"]["serverRelativeURL"])).body
    schema = document["components"]["schemas"]["apps.kruise.io.v1alpha1.ContainerRecreateRequest"]
    assert schema["properties"]["spec"]["required"] == ["podName", "containers"]
    assert CRRS.replace("default", "{namespace}") in document["paths"]
    pods = (await api.get(index["api/v1"]["serverRelativeURL"])).body
    assert "/api/v1/nodes" in pods["paths"]


async def test_a_definition_goes_after_its_objects(api: Api) -> None:
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/containerrecreaterequests.apps.kruise.io"
    await api.post(CRRS, crr("free"))
    await api.post(CRRS, crr("held", finalizers=["a.b/c"]))
    marked = (await api.delete(crds)).body["metadata"]
    assert marked["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
    assert marked["deletionTimestamp"]
    await until(lambda: len(api.server.store.objects("apps.kruise.io/containerrecreaterequests")) == 1)
    (left,) = (await api.get(CRRS)).body["items"]
    assert left["metadata"]["name"] == "held"
    assert left["metadata"]["deletionTimestamp"]
    assert (await api.get(crds)).status == 200
    assert (await api.post(CRRS, crr("late"))).body["reason"] == "Forbidden"
    await api.patch(f"{CRRS}/held", {"metadata": {"finalizers": []}})
    kept = ("", "containerrecreaterequests.apps.kruise.io")
    await until(lambda: kept not in api.server.store.objects("apiextensions.k8s.io/customresourcedefinitions"))
    assert (await api.get(CRRS)).status == 404


async def test_tokens_say_who_asks() -> None:
    calls: list[Call] = []
    users = {"secret": User("ada", ("staff",))}
    async with running(tokens=users, log=calls.append) as api:
        assert (await api.get(PODS)).status == 200
        assert (await api.get(PODS, Authorization="Bearer wrong")).status == 401
        assert (await api.get(PODS, Authorization="Bearer secret")).status == 200
    assert [(call.user, call.status) for call in calls] == [
        ("system:anonymous", 200), ("", 401), ("ada", 200)
    ]  # fmt: skip


async def test_calls_are_logged_with_what_they_were() -> None:
    calls: list[Call] = []
    async with running(log=calls.append) as api:
        await api.post(CRRS, crr())
        await api.call("PATCH", CRRS + "/r/status", {}, **{"Content-Type": "application/merge-patch+json"})
        await api.get(CRRS + "/none")
        await api.get("/healthz")
    assert [(c.verb, c.resource, c.subresource, c.namespace, c.name, c.status) for c in calls] == [
        ("create", "containerrecreaterequests", "", "default", "", 201),
        ("patch", "containerrecreaterequests", "status", "default", "r", 200),
        ("get", "containerrecreaterequests", "", "default", "none", 404),
        ("get", "", "", "", "", 200),
    ]
    assert [call.writes for call in calls] == [True, True, False, False]
    assert calls[0].group == "apps.kruise.io"
    assert calls[0].user == "system:anonymous"


async def test_the_clock_dates_objects_and_answers() -> None:
    skewed = datetime.now(UTC) + timedelta(hours=5)
    async with running(clock=lambda: skewed) as api:
        reply = await api.post(CRRS, crr())
        assert reply.body["metadata"]["creationTimestamp"] == skewed.strftime("%Y-%m-%dT%H:%M:%SZ")
        assert parsedate_to_datetime(reply.headers["Date"]) == skewed.replace(microsecond=0)


async def test_custom_resources_come_and_go_with_their_definition(api: Api) -> None:
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    schema = {"type": "object", "properties": {"size": {"type": "integer", "default": 3}}}
    definition = {
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Cluster",
            "names": {"kind": "Thing", "plural": "things"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    made = await api.post(crds, definition)
    assert {c["type"]: c["status"] for c in made.body["status"]["conditions"]}["Established"] == "True"
    thing = await api.post("/apis/example.com/v1/things", {"metadata": {"name": "t"}})
    assert thing.body["size"] == 3
    assert thing.body["metadata"].get("namespace") is None
    assert (await api.delete(f"{crds}/things.example.com")).status == 200
    assert (await api.get("/apis/example.com/v1/things")).status == 404
    await api.post(crds, definition)
    assert (await api.get("/apis/example.com/v1/things")).body["items"] == []


async def test_definitions_that_cannot_be_served(api: Api) -> None:
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    empty = await api.post(crds, {"metadata": {"name": "x"}, "spec": {}})
    assert {cause["field"] for cause in empty.body["details"]["causes"]} == {
        "spec.group", "spec.scope", "spec.versions", "spec.names.kind", "spec.names.plural"
    }  # fmt: skip
    spec = {"group": "g", "scope": "Cluster", "names": {"kind": "X", "plural": "xs"}, "versions": [{"name": "v1"}]}
    wrong = await api.post(crds, {"metadata": {"name": "x"}, "spec": spec})
    assert {cause["field"] for cause in wrong.body["details"]["causes"]} == {
        "metadata.name", "spec.versions[0].schema.openAPIV3Schema"
    }  # fmt: skip
