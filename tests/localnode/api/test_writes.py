"""The local API server over HTTP: updates, patches, subresources, conflicts, deletion, admission."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest

from crrd_localnode.api.admission import AdmissionRequest, Operation
from crrd_localnode.api.errors import ApiError
from crrd_localnode.api.meta import with_managed_fields
from tests.support.local_api import CRRS, JSON_PATCH, MERGE, PODS, STRATEGIC, Api, crr, pod, running


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with running() as api:
        yield api


async def test_patch_that_changes_nothing_keeps_the_version(api: Api) -> None:
    version = (await api.post(CRRS, crr(labels={"a": "b"}))).version
    for kind, patch in ((MERGE, {"metadata": {"labels": {"a": "b"}}}), (MERGE, {}), (JSON_PATCH, [])):
        reply = await api.patch(CRRS + "/r", patch, kind)
        assert (reply.status, reply.version) == (200, version)
    assert str(api.server.store.revision) == version


async def test_the_spec_of_a_request_is_immutable_and_its_containers_order_too(api: Api) -> None:
    made = (await api.post(CRRS, crr())).body
    turned = {"spec": {"containers": made["spec"]["containers"][::-1]}}
    for patch in ({"spec": {"podName": "other"}}, turned, {"spec": {"ttlSecondsAfterFinished": 1}}):
        reply = await api.patch(CRRS + "/r", patch)
        assert (reply.status, reply.body["details"]["causes"][0]["field"]) == (422, "spec")
        assert "cannot be changed after creation" in reply.body["message"]
    assert (await api.patch(CRRS + "/r", {"spec": None})).status == 422
    assert (await api.patch(CRRS + "/r", {"spec": {"podName": "web", "unknown": 1}})).status == 200


async def test_status_and_object_are_written_apart(api: Api) -> None:
    await api.post(CRRS, crr())
    status = {"phase": "Recreating", "containerRecreateStates": [{"name": "app", "phase": "Pending", "isKilled": True}]}
    extra = {"metadata": {"labels": {"a": "b"}}, "spec": {"podName": "other"}}
    reply = await api.patch(CRRS + "/r/status", {**extra, "status": status})
    assert reply.body["status"] == status
    assert "labels" not in reply.body["metadata"]
    assert reply.body["spec"]["podName"] == "web"
    assert reply.body["metadata"]["generation"] == 1
    ignored = await api.patch(CRRS + "/r", {"status": {"phase": "Completed"}, "metadata": {"labels": {"a": "b"}}})
    assert ignored.body["status"] == status
    assert ignored.body["metadata"]["labels"] == {"a": "b"}
    assert (await api.get(CRRS + "/r/status")).body == ignored.body
    gone = await api.patch(CRRS + "/r/status", {"status": None})
    assert "status" not in gone.body


async def test_rules_about_what_was_before_are_held_against_status(api: Api) -> None:
    await api.post(CRRS, crr())
    done = {"phase": "Completed", "containerRecreateStates": [{"name": "app", "phase": "Failed"}]}
    assert (await api.patch(CRRS + "/r/status", {"status": done})).status == 200
    for status in ({"phase": "Recreating"}, {"containerRecreateStates": None}, None):
        reply = await api.patch(CRRS + "/r/status", {"status": status})
        assert reply.status == 422
        assert "cannot be changed after" in reply.body["message"]
    assert (await api.patch(CRRS + "/r/status", {"status": {"message": "late"}})).status == 200
    assert (await api.patch(CRRS + "/r", {"metadata": {"labels": {"a": "b"}}})).status == 200


async def test_status_is_checked_against_the_schema(api: Api) -> None:
    await api.post(CRRS, crr())
    reply = await api.patch(CRRS + "/r/status", {"status": {"completionTime": "soon", "message": 1}})
    assert {cause["field"] for cause in reply.body["details"]["causes"]} == {"status.completionTime", "status.message"}
    fine = {"status": {"completionTime": "2026-01-02T03:04:05Z", "conditions": [{"type": "X", "any": {"thing": 1}}]}}
    assert (await api.patch(CRRS + "/r/status", fine)).body["status"] == fine["status"]


async def test_pod_status_patch_may_change_labels_but_not_the_spec(api: Api) -> None:
    await api.post(PODS, pod())
    patch = {"metadata": {"labels": {"a": "b"}}, "spec": {"nodeName": "x"}, "status": {"phase": "Running"}}
    reply = await api.patch(PODS + "/web/status", patch)
    assert reply.body["metadata"]["labels"] == {"a": "b"}
    assert reply.body["spec"]["nodeName"] == "n1"
    assert reply.body["status"]["phase"] == "Running"


async def test_conditions_of_a_patch(api: Api) -> None:
    made = (await api.post(CRRS, crr())).body
    await api.patch(CRRS + "/r", {"metadata": {"labels": {"a": "b"}}})
    stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"], "labels": {"c": "d"}}}
    reply = await api.patch(CRRS + "/r", stale)
    assert (reply.status, reply.body["reason"]) == (409, "Conflict")
    assert "the object has been modified" in reply.body["message"]
    assert reply.body["details"] == {
        "name": "r", "group": "apps.kruise.io", "kind": "containerrecreaterequests"
    }  # fmt: skip
    replaced = await api.patch(CRRS + "/r", {"metadata": {"uid": "another"}})
    assert (replaced.status, replaced.body["details"]["causes"][0]["field"]) == (422, "metadata.uid")
    same = await api.patch(CRRS + "/r", {"metadata": {"uid": made["metadata"]["uid"]}})
    assert same.status == 200
    renamed = await api.patch(CRRS + "/r", {"metadata": {"name": "s"}})
    assert renamed.status == 400
    assert (await api.patch(CRRS + "/none", {})).status == 404


async def test_conditions_of_a_put(api: Api) -> None:
    made = (await api.post(CRRS, crr())).body
    changed = {**made, "metadata": {**made["metadata"], "labels": {"a": "b"}}}
    assert (await api.put(CRRS + "/r", changed)).status == 200
    assert (await api.put(CRRS + "/r", changed)).status == 409
    without = {**made, "metadata": {"name": "r"}}
    assert (await api.put(CRRS + "/r", without)).body["details"]["causes"][0]["field"] == "metadata.resourceVersion"
    other = {**made, "metadata": {**made["metadata"], "uid": "another"}}
    assert "Precondition failed: UID" in (await api.put(CRRS + "/r", other)).body["message"]
    assert (await api.put(CRRS + "/s", made)).status == 404
    await api.post(PODS, pod())
    free = await api.put(PODS + "/web", pod(labels={"a": "b"}))
    assert (free.status, free.body["metadata"]["labels"]) == (200, {"a": "b"})


async def test_generation_counts_changes_of_the_spec(api: Api) -> None:
    await api.post(PODS, pod())
    labelled = await api.patch(PODS + "/web", {"metadata": {"labels": {"a": "b"}}})
    assert labelled.body["metadata"]["generation"] == 1
    image = {"spec": {"containers": [{"name": "app", "image": "busybox:2"}]}}
    updated = await api.patch(PODS + "/web", image, STRATEGIC)
    assert updated.body["metadata"]["generation"] == 2
    assert updated.body["spec"]["containers"][0]["terminationMessagePath"] == "/dev/termination-log"


async def test_of_a_pod_only_little_can_be_changed(api: Api) -> None:
    await api.post(PODS, pod())
    for patch in (
        {"spec": {"containers": [{"name": "app", "command": ["x"]}]}},
        {"spec": {"containers": [{"name": "new", "image": "x"}]}},
        {"spec": {"nodeName": "n2"}},
    ):
        reply = await api.patch(PODS + "/web", patch, STRATEGIC)
        assert (reply.status, reply.body["details"]["causes"][0]["reason"]) == (422, "FieldValueForbidden")
    more = {"spec": {"activeDeadlineSeconds": 5, "tolerations": [{"key": "a"}]}}
    assert (await api.patch(PODS + "/web", more)).status == 200
    assert (await api.patch(PODS + "/web", {"spec": {"tolerations": []}})).status == 422


async def test_strategic_merge_of_conditions(api: Api) -> None:
    await api.post(PODS, pod())
    for name in ("Ready", "ContainersReady"):
        patch = {"status": {"conditions": [{"type": name, "status": "False"}]}}
        await api.patch(PODS + "/web/status", patch, STRATEGIC)
    patch = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "now"}]}}
    reply = await api.patch(PODS + "/web/status", patch, STRATEGIC)
    assert reply.body["status"]["conditions"] == [
        {"type": "ContainersReady", "status": "False"},
        {"type": "Ready", "status": "True", "reason": "now"},
    ]


async def test_json_patch(api: Api) -> None:
    version = (await api.post(CRRS, crr(labels={"a/b": "c"}))).version
    patch = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        {"op": "replace", "path": "/metadata/labels/a~1b", "value": "d"},
    ]
    assert (await api.patch(CRRS + "/r", patch, JSON_PATCH)).body["metadata"]["labels"] == {"a/b": "d"}
    assert (await api.patch(CRRS + "/r", patch, JSON_PATCH)).status == 422
    assert (await api.patch(CRRS + "/r", [{"op": "remove", "path": "/none"}], JSON_PATCH)).status == 422
    assert (await api.patch(CRRS + "/r", [{"op": "remove", "path": ""}], JSON_PATCH)).status == 422
    assert (await api.patch(CRRS + "/r", {}, JSON_PATCH)).status == 400
    assert (await api.patch(CRRS + "/r", [], MERGE)).status == 400


async def test_a_patch_bound_to_an_object_that_was_made_anew_is_a_conflict(api: Api) -> None:
    """The version is looked at before the uid: only with the present version is another uid a change of the uid."""
    old = (await api.post(CRRS, crr())).body["metadata"]
    await api.delete(CRRS + "/r")
    new = (await api.post(CRRS, crr())).body["metadata"]
    bound = {"uid": old["uid"], "resourceVersion": old["resourceVersion"]}
    reply = await api.patch(CRRS + "/r/status", {"metadata": bound, "status": {"phase": "Pending"}})
    assert (reply.status, reply.body["reason"]) == (409, "Conflict")
    for version in ({}, {"resourceVersion": new["resourceVersion"]}):
        reply = await api.patch(CRRS + "/r", {"metadata": {"uid": old["uid"], **version}})
        assert (reply.status, reply.body["details"]["causes"][0]["field"]) == (422, "metadata.uid")
    await api.post(PODS, pod())
    assert (await api.patch(PODS + "/web/status", {"metadata": {"uid": "other"}})).status == 422
    # A custom resource's status is written whatever uid the patch names: only a version makes it conditional.
    unbound = {"metadata": {"uid": old["uid"]}, "status": {"phase": "Pending"}}
    assert (await api.patch(CRRS + "/r/status", unbound)).body["metadata"]["uid"] == new["uid"]
    put = await api.put(CRRS + "/r", crr(uid=old["uid"], resourceVersion=new["resourceVersion"]))
    assert (put.status, put.body["reason"]) == (409, "Conflict")


async def test_unknown_metadata_is_dropped_with_a_warning(api: Api) -> None:
    made = await api.post(CRRS, crr(annotation={"a": "b"}))
    assert "annotation" not in made.body["metadata"]
    assert made.headers["Warning"] == '299 - "unknown field \\"metadata.annotation\\""'
    changed = await api.patch(CRRS + "/r", {"metadata": {"label": {"a": "b"}}})
    assert (changed.status, changed.version) == (200, made.version)
    assert "metadata.label" in changed.headers["Warning"]
    strict = await api.post(CRRS + "?fieldValidation=Strict", crr("s", annotation={}))
    assert (strict.status, strict.body["reason"]) == (400, "BadRequest")


async def test_a_name_is_free_when_its_object_is_gone(api: Api) -> None:
    await api.post(CRRS, crr(finalizers=["example.com/a"]))
    await api.delete(CRRS + "/r")
    reply = await api.post(CRRS, crr())
    assert (reply.status, reply.body["reason"]) == (409, "AlreadyExists")
    assert reply.body["message"].startswith("object is being deleted: containerrecreaterequests.apps.kruise.io")


async def test_patch_types_that_are_not_taken(api: Api) -> None:
    await api.post(CRRS, crr())
    apply = await api.patch(CRRS + "/r", {}, "application/apply-patch+yaml")
    assert (apply.status, apply.body["reason"]) == (415, "UnsupportedMediaType")
    assert (await api.patch(CRRS + "/r", {}, STRATEGIC)).status == 415


async def test_parallel_patches_all_arrive(api: Api) -> None:
    await api.post(CRRS, crr())
    patches = [api.patch(CRRS + "/r", {"metadata": {"annotations": {f"a{n}": "x"}}}) for n in range(20)]
    assert {reply.status for reply in await asyncio.gather(*patches)} == {200}
    assert len((await api.get(CRRS + "/r")).body["metadata"]["annotations"]) == 20


async def test_dry_run_changes_nothing(api: Api) -> None:
    before = api.server.store.revision
    made = await api.post(CRRS + "?dryRun=All", crr())
    assert (made.status, made.body["metadata"]["name"]) == (201, "r")
    assert api.server.store.revision == before
    version = (await api.post(CRRS, crr())).version
    patched = await api.patch(CRRS + "/r?dryRun=All", {"metadata": {"labels": {"a": "b"}}})
    assert patched.body["metadata"]["labels"] == {"a": "b"}
    assert (await api.delete(CRRS + "/r?dryRun=All")).status == 200
    assert (await api.delete("/api/v1/namespaces/default", {"dryRun": ["All"]})).status == 200
    assert (await api.get(CRRS + "/r")).version == version
    assert (await api.post(CRRS + "?dryRun=Some", crr("s"))).status == 400


async def test_delete_at_once(api: Api) -> None:
    uid = (await api.post(CRRS, crr())).body["metadata"]["uid"]
    reply = await api.delete(CRRS + "/r")
    assert reply.body["status"] == "Success"
    details = {"name": "r", "group": "apps.kruise.io", "kind": "containerrecreaterequests", "uid": uid}
    assert reply.body["details"] == details
    assert (await api.delete(CRRS + "/r")).status == 404
    await api.post("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "c"}})
    core = await api.delete("/api/v1/namespaces/default/configmaps/c")
    assert "group" not in core.body["details"]


async def test_delete_conditions(api: Api) -> None:
    await api.post(CRRS, crr())
    for conditions in ({"uid": "another"}, {"resourceVersion": "1"}):
        assert (await api.delete(CRRS + "/r", {"preconditions": conditions})).status == 409
    bodies: list[Any] = [[], {"gracePeriodSeconds": "soon"}, {"gracePeriodSeconds": True}]
    for body in bodies:
        assert (await api.delete(CRRS + "/r", body)).status == 400
    assert (await api.delete(CRRS + "/r?gracePeriodSeconds=x")).status == 400
    meta = (await api.get(CRRS + "/r")).body["metadata"]
    conditions = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
    assert (await api.delete(CRRS + "/r", {"preconditions": conditions})).status == 200


async def test_finalizers_keep_an_object_until_they_are_gone(api: Api) -> None:
    await api.post(CRRS, crr(finalizers=["example.com/a", "example.com/b"]))
    marked = (await api.delete(CRRS + "/r")).body["metadata"]
    assert (marked["deletionGracePeriodSeconds"], marked["generation"]) == (0, 2)
    again = await api.delete(CRRS + "/r")
    assert again.version == marked["resourceVersion"]
    more = await api.patch(CRRS + "/r", {"metadata": {"finalizers": ["example.com/a", "example.com/c"]}})
    assert (more.status, more.body["details"]["causes"][0]["reason"]) == (422, "FieldValueForbidden")
    undone = await api.patch(CRRS + "/r", {"metadata": {"deletionTimestamp": None}})
    assert undone.body["metadata"]["deletionTimestamp"] == marked["deletionTimestamp"]
    assert (await api.patch(CRRS + "/r", {"metadata": {"finalizers": ["example.com/b"]}})).status == 200
    last = await api.patch(CRRS + "/r", {"metadata": {"finalizers": None}})
    assert last.status == 200
    assert (await api.get(CRRS + "/r")).status == 404


async def test_a_pod_stays_for_its_grace_period_until_kubelet_lets_it_go(api: Api) -> None:
    made = (await api.post(PODS, pod())).body["metadata"]
    marked = (await api.delete(PODS + "/web")).body["metadata"]
    assert (marked["deletionGracePeriodSeconds"], marked["generation"]) == (30, 2)
    began = datetime.fromisoformat(made["creationTimestamp"])
    assert 30 <= (datetime.fromisoformat(marked["deletionTimestamp"]) - began).total_seconds() < 60
    assert (await api.delete(PODS + "/web")).version == marked["resourceVersion"]
    assert (await api.delete(PODS + "/web", {"gracePeriodSeconds": 60})).version == marked["resourceVersion"]
    shorter = (await api.delete(PODS + "/web?gracePeriodSeconds=5")).body["metadata"]
    moved = datetime.fromisoformat(marked["deletionTimestamp"]) - datetime.fromisoformat(shorter["deletionTimestamp"])
    assert moved.total_seconds() == 25
    assert shorter["generation"] == 2
    gone = await api.delete(PODS + "/web", {"gracePeriodSeconds": 0, "preconditions": {"uid": made["uid"]}})
    assert (gone.status, gone.body["kind"]) == (200, "Pod")
    assert (await api.get(PODS + "/web")).status == 404


@pytest.mark.parametrize(
    ("node", "phase", "options", "grace"),
    [("", "Pending", {}, None), ("n1", "Succeeded", {}, None), ("n1", "Failed", {}, None),
     ("n1", "Running", {"gracePeriodSeconds": 0}, None), ("n1", "Running", {"gracePeriodSeconds": 7}, 7),
     ("n1", "Running", {"gracePeriodSeconds": -1}, 1)],
)  # fmt: skip
async def test_grace_of_a_pod(api: Api, node: str, phase: str, options: dict[str, int], grace: int | None) -> None:
    await api.post(PODS, pod(node=node))
    await api.patch(PODS + "/web/status", {"status": {"phase": phase}})
    await api.delete(PODS + "/web", options)
    left = await api.get(PODS + "/web")
    assert left.body.get("metadata", {}).get("deletionGracePeriodSeconds") == grace
    assert left.status == (404 if grace is None else 200)


async def test_a_pod_with_finalizers_needs_both(api: Api) -> None:
    await api.post(PODS, pod(finalizers=["example.com/a"]))
    await api.delete(PODS + "/web")
    await api.patch(PODS + "/web", {"metadata": {"finalizers": None}})
    assert (await api.get(PODS + "/web")).status == 200
    await api.delete(PODS + "/web", {"gracePeriodSeconds": 0})
    assert (await api.get(PODS + "/web")).status == 404


async def test_a_namespace_takes_its_content_with_it(api: Api) -> None:
    await api.post("/api/v1/namespaces", {"metadata": {"name": "team"}})
    content = {"secrets": {"metadata": {"name": "s"}}, "pods": pod()}
    for plural, obj in content.items():
        await api.post(f"/api/v1/namespaces/team/{plural}", obj)
    reply = await api.delete("/api/v1/namespaces/team")
    assert reply.body["status"]["phase"] == "Terminating"
    assert (await api.get("/api/v1/namespaces/team/secrets/s")).status == 404
    late = await api.post("/api/v1/namespaces/team/configmaps", {"metadata": {"name": "late"}})
    assert (late.status, late.body["reason"]) == (403, "Forbidden")
    (cause,) = late.body["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("NamespaceTerminating", "metadata.namespace")
    assert (await api.get("/api/v1/namespaces/team")).status == 200
    await api.delete("/api/v1/namespaces/team/pods/web", {"gracePeriodSeconds": 0})
    assert (await api.get("/api/v1/namespaces/team")).status == 404
    assert (await api.delete("/api/v1/namespaces/kube-public")).status == 200
    assert (await api.get("/api/v1/namespaces/kube-public")).status == 404


async def test_admission_mutates_then_validates(api: Api) -> None:
    seen: list[tuple[Operation, str, bool, str]] = []

    async def label(request: AdmissionRequest) -> dict[str, Any] | None:
        if request.kind.plural == "pods" or request.new is None:
            return None
        labels = {**request.new["metadata"].get("labels", {}), "by": request.user.name.replace(":", "-")}
        return {**request.new, "metadata": {**request.new["metadata"], "labels": labels}, "unknown": 1}

    async def note(request: AdmissionRequest) -> None:
        shown = (request.new or {}).get("metadata", {}).get("labels", {}).get("by", "")
        seen.append((request.operation, request.subresource, request.old is not None, shown))

    api.server.admission.mutating.append(label)
    api.server.admission.validating.append(note)
    assert (await api.post(CRRS, crr())).body["metadata"]["labels"] == {"by": "system-anonymous"}
    await api.patch(CRRS + "/r/status", {"status": {"phase": "Pending"}})
    await api.delete(CRRS + "/r")
    await api.post(PODS, pod(node=""))
    assert seen == [
        (Operation.CREATE, "", False, "system-anonymous"),
        (Operation.UPDATE, "status", True, "system-anonymous"),
        (Operation.DELETE, "", True, ""),
        (Operation.CREATE, "", False, ""),
    ]


async def test_admission_refuses(api: Api) -> None:
    async def refuse(request: AdmissionRequest) -> None:
        raise ApiError(403, f"not this {request.operation.lower()}")

    await api.post(CRRS, crr())
    version = (await api.get(CRRS + "/r")).version
    api.server.admission.validating.append(refuse)
    for reply in (
        await api.post(CRRS, crr("s")),
        await api.patch(CRRS + "/r", {"metadata": {"labels": {"a": "b"}}}),
        await api.delete(CRRS + "/r"),
    ):
        assert (reply.status, reply.body["reason"]) == (403, "Forbidden")
    assert (await api.get(CRRS + "/r")).version == version


async def test_a_change_during_admission_makes_the_patch_start_over(api: Api) -> None:
    await api.post(CRRS, crr())
    rounds = 0

    async def interfere(request: AdmissionRequest) -> None:
        nonlocal rounds
        if request.user.name == "system:anonymous" and rounds < 1:
            rounds += 1
            stored = api.server.store.get(request.kind.key, ("default", "r"))
            assert stored is not None
            meta = {**stored.obj["metadata"], "annotations": {"other": "writer"}}
            api.server.store.put(request.kind.key, stored, {**stored.obj, "metadata": meta})

    api.server.admission.validating.append(interfere)
    reply = await api.patch(CRRS + "/r", {"metadata": {"labels": {"a": "b"}}})
    assert reply.body["metadata"]["labels"] == {"a": "b"}
    assert reply.body["metadata"]["annotations"] == {"other": "writer"}
    rounds = 0
    assert (await api.delete(CRRS + "/r")).status == 200
    await api.post(CRRS, crr())
    rounds = -20
    given_up = await api.patch(CRRS + "/r", {"metadata": {"labels": {"a": "b"}}})
    assert given_up.status == 409
    rounds = -20
    assert (await api.delete(CRRS + "/r")).status == 409


async def test_secrets_and_immutable_data(api: Api) -> None:
    secrets = "/api/v1/namespaces/default/secrets"
    made = await api.post(secrets, {"metadata": {"name": "s"}, "stringData": {"a": "b"}, "immutable": True})
    assert made.body["data"] == {"a": "Yg=="}
    assert made.body["type"] == "Opaque"
    assert "stringData" not in made.body
    assert (await api.patch(secrets + "/s", {"data": {"a": "Yw=="}})).status == 422
    assert (await api.patch(secrets + "/s", {"metadata": {"labels": {"a": "b"}}})).status == 200


async def test_nodes_register_with_their_status_and_roles_have_free_names(api: Api) -> None:
    node = {"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert (await api.post("/api/v1/nodes", node)).body["status"] == node["status"]
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    assert (await api.post(roles, {"metadata": {"name": "system:Node"}})).status == 201
    assert (await api.post(roles, {"metadata": {"name": "a%b"}})).status == 422


@pytest.mark.parametrize(
    ("data", "time"), [({"a": "1"}, "then"), ({"a": "3"}, "now"), ({"a": "1", "c": "4"}, "now"), ({}, "then")]
)
def test_a_change_that_only_removes_keys_keeps_the_time_of_managed_fields(data: dict[str, str], time: str) -> None:
    config: dict[str, Any] = {"apiVersion": "v1", "metadata": {}, "data": {"a": "1", "b": "2"}}
    made = with_managed_fields(config, "then")
    changed = with_managed_fields({**made, "data": data}, "now", made)
    assert changed["metadata"]["managedFields"][0]["time"] == time
