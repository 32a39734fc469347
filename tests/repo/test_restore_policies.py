"""What the manager may write where crrd-restore-config is bound: the data of ConfigMaps, and objects that keep it."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from crrd.core.config.objects import whole_data, whole_hash
from crrd.core.policy.revisions import Keep
from crrd.core.policy.stored import restore_body, revision_body
from crrd.core.policy.types import Policy
from crrd.manager.policies.rights import Rights
from crrd_localnode.api.patches import merge_patch
from tests.repo.test_image_policies import rules_with_roles
from tests.repo.test_policies import manager
from tests.support.manifests import needs_kubectl, one, rendered
from tests.support.policies import Change, Who, Write, annotated
from tests.support.worlds import BUDGET

pytestmark = needs_kubectl
Json = dict[str, Any]
ROLE = "crrd-restore-config"
POLICY = Policy("shop", "web", "uid", "1", 1, "2026-01-01T00:00:00Z", BUDGET)
GOOD: Json = {"data": {"LOG": "info", "OLD": "x"}, "binaryData": {"B": "AA=="}}


def config_map() -> Json:
    meta = {"name": "cfg", "namespace": "shop", "uid": "u", "resourceVersion": "7", "labels": {"app": "web"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"LOG": "bad", "NEW": "y"}}


def restored(found: Json) -> None:
    """Write the kept data back, as the manager does."""
    found |= merge_patch(found, restore_body(whole_data(found), GOOD, "7"))
    assert whole_data(found) == GOOD
    assert found["metadata"] == config_map()["metadata"]


def field(name: str, value: object) -> Change:
    return lambda found: found.update({name: value})


def meta(name: str, value: object) -> Change:
    return lambda found: found["metadata"].update({name: value})


def renamed(found: Json) -> None:
    found["metadata"]["name"] = "kube-root-ca.crt"


UPDATES: dict[str, tuple[Change, bool]] = {
    "restored": (restored, True),
    "label": (meta("labels", {"app": "other"}), False),
    "no labels": (lambda found: found["metadata"].pop("labels"), False),
    "annotation": (annotated("a"), False),
    "owner": (meta("ownerReferences", [{"kind": "Pod", "name": "none", "uid": "x"}]), False),
    "finalizer": (meta("finalizers", ["a.example/b"]), False),
    "immutable": (field("immutable", True), False),
    "of the platform": (renamed, False),
}


@pytest.mark.parametrize("what", UPDATES)
def test_of_a_config_map_only_the_data_may_change(what: str) -> None:
    change, allowed = UPDATES[what]
    before, after = config_map(), config_map()
    if what == "of the platform":
        renamed(before)
    change(after)
    check(Write(before, after, group="", resource="configmaps"), allowed=allowed)


def kept() -> Json:
    data = whole_data(GOOD)
    made = revision_body(POLICY, Keep("cfg", whole_hash(data), "crrd-cfg-1"), data)
    return {**made, "metadata": {**made["metadata"], "namespace": "shop"}}


REVISIONS: dict[str, tuple[Change, bool, bool]] = {
    "kept": (lambda _: None, True, True),
    "without the label": (lambda found: found["metadata"].pop("labels"), False, False),
    "another label": (lambda found: found["metadata"]["labels"].update(app="web"), False, True),
    "of a StatefulSet": (
        lambda found: found["metadata"]["ownerReferences"][0].update(kind="StatefulSet"),
        False,
        False,
    ),
    "without owner": (meta("ownerReferences", []), False, False),
    "of two": (lambda found: found["metadata"]["ownerReferences"].append({"kind": "Pod", "uid": "x"}), False, True),
    "with finalizer": (meta("finalizers", ["a.example/b"]), False, True),
}
"""A ControllerRevision, and whether it may be created and deleted."""


@pytest.mark.parametrize("what", REVISIONS)
def test_only_what_keeps_data_for_a_policy_may_be_created_and_deleted(what: str) -> None:
    change, create, delete = REVISIONS[what]
    found = kept()
    change(found)
    kind = "controllerrevisions"
    check(Write(None, found, group="apps", resource=kind), allowed=create)
    check(Write(found, deepcopy(found), group="apps", resource=kind, deletes=True), allowed=delete)


def check(write: Write, *, allowed: bool) -> None:
    """Assert whether those may write this who have the role: the manager, and a user. Others are free."""
    rules = rules_with_roles()
    for who in (replace(manager("default"), bound=("crrd-read-config", ROLE)), Who("ann", bound=(ROLE,))):
        assert bool(rules.refused(who, write)) is not allowed, (who, rules.refused(who, write))
    for name in ("ann", "system:serviceaccount:kube-system:statefulset-controller", "system:kube-controller-manager"):
        assert rules.refused(Who(name), write) == ""


def test_the_look_asks_for_all_that_the_role_grants() -> None:
    role = one(rendered("default"), "ClusterRole", ROLE)
    granted = {
        (verb, f"{resource}.{group}".rstrip("."))
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    asked = {(verb, resource) for verbs, resource in map(str.split, Rights.RESTORE.rights) for verb in verbs.split(",")}
    assert asked == granted
