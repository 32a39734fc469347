"""What the manager may write where crrd-patch-pods is bound: other names of images that run, and the record of it."""

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from crrd.core.api.images import ANNOTATION_PATCHED
from crrd.core.api.types import RecreateState, StatePhase
from crrd.core.rollout.patch.operations import give_back, give_images_back, restart, restart_for
from crrd.core.rollout.run import LABEL_RUN, Options, Run, Target
from crrd.core.rollout.state import read_member
from crrd.lib.jsonpatch import Operation
from crrd.manager.policies.rights import Rights
from crrd_localnode.api.patches import patch_maker
from crrd_localnode.api.resources import POD as POD_KIND
from tests.repo.test_image_policies import FREE, app, controller, in_spec, one_more, rules_with_roles
from tests.repo.test_manager_policies import both, finalized, owned, refreshed, unchanged
from tests.repo.test_policies import labelled, manager
from tests.support.manifests import needs_kubectl, one, rendered
from tests.support.policies import Change, Who, Write, annotated

pytestmark = needs_kubectl
Json = dict[str, Any]
ROLE = "crrd-patch-pods"
AT = "2026-01-01T00:00:00Z"
OWN, OTHER = f"sha256:{'a1' * 32}", f"sha256:{'b2' * 32}"
REPOSITORY = "none.invalid/app"
NAME, PULLED, IMPORTED = f"{REPOSITORY}:1", f"{REPOSITORY}@{OWN}", OWN
RUN = Run("shop", "web-1", Target("pods"), Options(("app", "mesh"), patch=True, policy="uid"), AT)


def pod(image_id: str = PULLED, spelled: str = NAME) -> Json:
    """A pod that runs, as the API server has it."""
    meta: Json = {"name": "web", "namespace": "shop", "uid": "u", "labels": {"app": "web"}}
    meta |= {"creationTimestamp": AT, "ownerReferences": controller("ReplicaSet")}
    mesh = {"name": "mesh", "image": "none.invalid/mesh:1", "restartPolicy": "Always"}
    spec = {
        "containers": [{"name": "app", "image": spelled, "env": [{"name": "A", "value": "1"}]}],
        "initContainers": [{"name": "setup", "image": "none.invalid/setup:1"}, mesh],
        "schedulerName": "nobody",
    }
    ids = {"app": image_id, "mesh": f"none.invalid/mesh@{OTHER}", "setup": f"none.invalid/setup@{OTHER}"}
    running = {"ready": True, "restartCount": 0, "state": {"running": {"startedAt": AT}}, "image": "any"}
    statuses = [{"name": each, "containerID": f"containerd://{each}", "imageID": ids[each], **running} for each in ids]
    status = {"phase": "Running", "containerStatuses": statuses[:1], "initContainerStatuses": statuses[1:]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def patched(found: Json, operations: Sequence[Operation]) -> Json:
    """The pod after a JSON patch, as the local API server carries it out."""
    assert operations
    kind = "application/json-patch+json"
    return dict(patch_maker(POD_KIND, kind, json.dumps(operations).encode())(deepcopy(found)))


def restarts(*names: str, run: Run = RUN) -> Change:
    """Restart containers as a run does."""

    def change(found: Json) -> None:
        operations = restart(read_member(found), run.request("web", found["metadata"]["uid"], names), AT)
        found |= patched(found, operations)

    return change


def requested(*names: str) -> Change:
    """Restart containers for a request, as the manager does."""

    def change(found: Json) -> None:
        found |= patched(found, restart_for(read_member(found), "one", "uid-of-one", names, AT))

    return change


def gives_back_for_request(found: Json) -> None:
    failed = {"app": RecreateState("app", StatePhase.FAILED, "kubelet cannot start it")}
    found |= patched(found, give_images_back(read_member(found), failed))


def started(found: Json) -> None:
    """Kubelet has started the container again."""
    found["status"]["containerStatuses"][0] |= {"containerID": "containerd://app-2", "restartCount": 1}


def gives_back(found: Json) -> None:
    """Kubelet cannot start it, and it gets its image back."""
    waits = {"waiting": {"reason": "ErrImageNeverPull", "message": "not there"}}
    found["status"]["containerStatuses"][0]["state"] = waits
    record = json.loads(found["metadata"]["annotations"][ANNOTATION_PATCHED])
    record["request"] = RUN.request_name(found["metadata"]["uid"])  # a real API server has chosen another UID
    recorded(json.dumps(record, sort_keys=True, separators=(",", ":")))(found)
    member = read_member(found)
    assert member.patched is not None
    operations = give_back(member, datetime(2026, 1, 1, 0, 30, tzinfo=UTC))
    found |= patched(found, operations)


def imported(found: Json) -> None:
    found |= pod(IMPORTED)


def pinned(found: Json) -> None:
    found |= pod(PULLED, PULLED)


def short(found: Json) -> None:
    """An image of the default registry, with another name than the runtime's."""
    found |= pod(f"docker.io/library/app@{OWN}", "app:1")


def spelled(name: str) -> Change:
    return app(image=name)


def recorded(text: str) -> Change:
    return annotated(ANNOTATION_PATCHED, text)


def claims(image: str) -> Change:
    """The record says that the container had another image before."""

    def change(found: Json) -> None:
        restarts("app")(found)
        record = json.loads(found["metadata"]["annotations"][ANNOTATION_PATCHED])
        record["containers"][0]["before"] = image
        recorded(json.dumps(record, separators=(",", ":")))(found)

    return change


def entry(before: str, instance: str = "containerd://app") -> str:
    """The beginning of what a record says of a container that has yet to be started again."""
    return f'{{"before":"{before}","container_id":"{instance}","failure":"","given":"{NAME}",'


UPDATES: dict[str, tuple[Change, Change, bool]] = {
    "nothing": (unchanged, unchanged, True),
    "restart": (unchanged, restarts("app"), True),
    "restart of a sidecar": (unchanged, restarts("mesh"), True),
    "restart of both": (unchanged, both(restarts("app", "mesh"), refreshed()), True),
    "second restart": (both(restarts("app"), started), restarts("app", run=replace(RUN, name="web-2")), True),
    "third restart": (
        both(both(restarts("app"), started), both(restarts("app", run=replace(RUN, name="web-2")), started)),
        restarts("app", run=replace(RUN, name="web-3")),
        True,
    ),
    "restart of an imported image": (imported, restarts("app"), True),
    "second one": (both(imported, both(restarts("app"), started)), restarts("app"), True),
    "restart of an image with its digest alone": (pinned, restarts("app"), True),
    "restart with a short name": (short, restarts("app"), True),
    "restart without labels": (lambda found: found["metadata"].pop("labels"), restarts("app"), True),
    "given back": (restarts("app"), gives_back, True),
    "given back, without a workload": (
        both(lambda found: found["metadata"].pop("ownerReferences"), restarts("app")),
        gives_back,
        True,
    ),
    "restart for a request": (unchanged, requested("app", "mesh"), True),
    "restart for a request after that of a run": (both(restarts("app"), started), requested("app"), True),
    "its next container": (both(requested("app"), started), requested("mesh"), True),
    "given back for a request": (requested("app"), gives_back_for_request, True),
    "another tag": (unchanged, spelled(f"{REPOSITORY}:2"), False),
    "another digest": (unchanged, spelled(f"{REPOSITORY}@{OTHER}"), False),
    "another digest with the right one in its tag": (unchanged, spelled(f"{REPOSITORY}:{OWN[7:]}@{OTHER}"), False),
    "another repository": (unchanged, spelled(f"none.invalid/other@{OWN}"), False),
    "a repository below": (unchanged, spelled(f"{REPOSITORY}/more@{OWN}"), False),
    "a repository with its name": (unchanged, spelled(f"{REPOSITORY}more@{OWN}"), False),
    "a longer name": (unchanged, spelled(f"{REPOSITORY}:1@{OTHER}@{OWN}"), False),
    "a port": (lambda found: found.update(pod(f"registry@{OWN}")), spelled(f"registry:5000/app@{OWN}"), False),
    "the digest of another container": (unchanged, spelled(f"none.invalid/mesh@{OTHER}"), False),
    "the ID of a pulled image": (unchanged, spelled(OWN), False),
    "the ID of another image": (imported, spelled(OTHER), False),
    "some digits of the ID": (imported, spelled(OWN[:30]), False),
    "a name for an imported image": (imported, spelled(f"none.invalid/app@{OWN}"), False),
    "an image that is not known": (lambda found: found.update(pod("")), spelled(f"@{OWN}"), False),
    "no status": (lambda found: found.update(status={}), spelled(f"{REPOSITORY}@{OWN}"), False),
    "image of an init container": (
        unchanged,
        lambda found: found["spec"]["initContainers"][0].update(image=f"none.invalid/setup@{OTHER}"),
        False,
    ),
    "given back what it never had": (restarts("app"), spelled(f"{REPOSITORY}:0"), False),
    "a record of another image": (unchanged, claims("none.invalid/evil:1"), False),
    "an image of a record that is no JSON": (
        recorded('"before":"none.invalid/evil:1"'),
        spelled("none.invalid/evil:1"),
        False,
    ),
    "a record within a record": (unchanged, recorded(f'{{"before":"{entry("none.invalid/evil:1")}'), False),
    "a record of nothing": (unchanged, recorded("{}"), True),
    "a record that shares a quote": (
        unchanged,
        recorded(f'{entry(NAME)}{{"before":"{NAME}"{entry("none.invalid/evil:1")}'),
        False,
    ),
    "a record with another container's image": (unchanged, recorded(entry("none.invalid/mesh:1")), False),
    "a record of another instance": (unchanged, recorded(entry(NAME, instance="containerd://other")), False),
    "an image that only such a record has": (recorded(entry(f"{REPOSITORY}:0")), spelled("none.invalid/evil:1"), False),
    "given back to another container": (
        recorded(entry("none.invalid/setup:1", instance="containerd://setup")),
        spelled("none.invalid/setup:1"),
        False,
    ),
    "given back after its restart": (both(restarts("app"), started), spelled(NAME), False),
    "given back after a change of its owner": (
        both(restarts("app"), spelled(f"{REPOSITORY}:2")),
        spelled(NAME),
        False,
    ),
    "a name that only the record has": (
        recorded(f'{{"used":{{"app":["evil.invalid/app@{OWN}"]}}}}'),
        spelled(f"evil.invalid/app@{OWN}"),
        False,
    ),
    "a short name of the same image": (short, spelled(f"app:1@{OWN}"), True),
    "image of the record's request": (
        recorded(f'{{"request":"none.invalid/evil:1@{OTHER}"}}'),
        spelled(f"none.invalid/evil:1@{OTHER}"),
        False,
    ),
    "label of the run": (unchanged, lambda found: found["metadata"]["labels"].update({LABEL_RUN: "web-1"}), True),
    "label of the run taken off": (restarts("app"), lambda found: found["metadata"]["labels"].pop(LABEL_RUN), False),
    "label": (unchanged, both(restarts("app"), labelled), False),
    "label changed": (unchanged, lambda found: found["metadata"]["labels"].update(app="db"), False),
    "revision": (
        lambda found: found["metadata"]["labels"].update({"controller-revision-hash": "1"}),
        lambda found: found["metadata"]["labels"].update({"controller-revision-hash": "2"}),
        False,
    ),
    "annotation": (unchanged, both(restarts("app"), annotated("team", "red")), False),
    "annotation with its prefix": (unchanged, annotated("crr.apps.kruise.io/requested-by", "ann"), False),
    "annotation taken off": (annotated("team", "red"), lambda found: found["metadata"].pop("annotations"), False),
    "finalizer": (unchanged, both(restarts("app"), finalized), False),
    "owner": (unchanged, both(restarts("app"), owned), False),
    "deadline": (unchanged, both(restarts("app"), in_spec(activeDeadlineSeconds=1)), False),
    "environment": (unchanged, both(restarts("app"), app(env=[{"name": "A", "value": "2"}])), False),
    "command": (unchanged, both(restarts("app"), app(command=["sh"])), False),
    "another container": (unchanged, both(restarts("app"), one_more("containers")), False),
}
"""What a pod was -> what is made of it -> whether those may who have the role."""
REFUSED_BEFORE = ("finalizer", "environment", "command", "another container")
"""Those of UPDATES that a real API server refuses before it asks policies (the pod is being deleted there)."""


def updated(what: str) -> Write:
    before, after, _ = UPDATES[what]
    old = pod()
    before(old)
    new = deepcopy(old)
    after(new)
    return Write(old, new, group="", resource="pods")


@pytest.mark.parametrize("what", UPDATES)
def test_only_names_of_the_same_image_and_their_record_may_be_written(what: str) -> None:
    rules = rules_with_roles()
    for who in (replace(manager("default"), bound=("crrd-read-config", ROLE)), Who("ann", bound=(ROLE,))):
        refused = rules.refused(who, updated(what))
        assert bool(refused) is not UPDATES[what][2], (who, refused)


@pytest.mark.parametrize("what", [what for what, row in UPDATES.items() if row[2] and what != "nothing"])
def test_none_may_be_written_where_the_role_is_not_bound(what: str) -> None:
    assert rules_with_roles().refused(replace(manager("default"), bound=("crrd-read-config",)), updated(what))


@pytest.mark.parametrize("who", FREE, ids=lambda who: str(who.name))
def test_nobody_else_is_limited(who: Who) -> None:
    assert rules_with_roles().refused(who, updated("another tag")) == ""


def test_the_role_has_what_a_policy_checks_before_it_works() -> None:
    role = one(rendered("base"), "ClusterRole", ROLE)
    has = {f"{verb} {kind}" for rule in role["rules"] for verb in rule["verbs"]
           for kind in (".".join(filter(None, (each, *rule["apiGroups"]))) for each in rule["resources"])}  # fmt: skip
    assert {*Rights.PATCH.rights} <= has
