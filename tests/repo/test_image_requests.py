"""Who may write requests with an image: those who may give pods that image anyway, by the roles that they have."""

import copy
import re
from dataclasses import replace
from typing import Any

import pytest

from crrd.core.api import types as model
from crrd.core.rollout.run import ANNOTATION_RUN, LABEL_RUN
from crrd.core.rollout.run_limits import ANNOTATION_LIMITS
from tests.repo.test_image_policies import APP, KRUISE_ADMIN, pod
from tests.repo.test_policies import BY, FOR_IMAGE, ROOT, WORLDS, manager, rules_of, with_label
from tests.support.manifests import needs_kubectl, rendered
from tests.support.policies import Change, Rules, Who, Write, annotated

pytestmark = needs_kubectl
Json = dict[str, Any]
POD_RIGHTS = ("create", "delete", "deletecollection", "patch", "update")
EDITOR = {
    "kind": "ClusterRole",
    "metadata": {"name": "pods-of-edit"},
    "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": list(POD_RIGHTS)}],
}
"""What Kubernetes' own role edit grants for pods."""
OWN_ROLES = (KRUISE_ADMIN, EDITOR)
"""The roles of USERS that crrd does not have."""
RESTARTS, FILES, IMAGES = "crrd-recreate", "crrd-read-config", "crrd-update-images"
USERS: dict[str, tuple[tuple[str, ...], bool]] = {
    "restarts": ((RESTARTS,), False),
    "restarts-and-files": ((RESTARTS, FILES), False),
    "restarts-and-all-that-is-read": ((RESTARTS, FILES, "crrd-read-secrets", "crrd-view", "crrd-edit"), False),
    "all-of-kruise": (("all-of-kruise",), False),
    "all-of-kruise-and-files": (("all-of-kruise", FILES), False),
    "all-of-kruise-and-the-managers-role": (("all-of-kruise", IMAGES), True),
    "images": ((RESTARTS, "crrd-recreate-image"), True),
    "images-and-files": ((RESTARTS, "crrd-recreate-image", FILES), True),
    "images-of-templates": ((RESTARTS, "crrd-recreate-from-template"), True),
    "the-managers-role": ((RESTARTS, IMAGES), True),
    "edit": (("pods-of-edit", "crrd-edit"), True),
}
"""A user -> the ClusterRoles that are bound in the namespace, and whether the user may write requests with an image."""
WRITES: dict[str, Change | None] = {
    "create": None,
    "limits": annotated(ANNOTATION_LIMITS),
    "own annotation": annotated("team"),
}
"""What is written -> the change of a request that is there."""


def rules_with_roles(world: str = "default") -> Rules:
    rules = rules_of(world)
    rules.objects = [*rules.objects, *OWN_ROLES]
    return rules


def write_of(what: str, who: Who) -> Write:
    new, change = copy.deepcopy(FOR_IMAGE), WRITES[what]
    if change is not None:
        change(new)
        return Write(FOR_IMAGE, new)
    annotated(BY, who.name)(new)
    return Write(None, new)


def is_allowed(what: str, by_roles: bool) -> bool:
    return by_roles or what == "own annotation"


@pytest.mark.parametrize("world", [each for each in WORLDS if "beside" not in each])
@pytest.mark.parametrize("what", WRITES)
@pytest.mark.parametrize("name", USERS)
def test_who_may_write_requests_with_an_image(world: str, what: str, name: str) -> None:
    roles, by_roles = USERS[name]
    who = Who(name, bound=roles)
    refused = rules_with_roles(world).refused(who, write_of(what, who))
    assert (not refused) is is_allowed(what, by_roles), refused
    if refused:
        assert refused.startswith("only users who may update pods, or have the ClusterRole crrd-update-images, may")


@pytest.mark.parametrize("what", WRITES)
@pytest.mark.parametrize(("role", "by_role"), [(FILES, False), (IMAGES, True)])
def test_the_manager_needs_the_role_for_images(what: str, role: str, *, by_role: bool) -> None:
    who = replace(manager("default"), bound=(role,))
    refused = rules_with_roles().refused(who, write_of(what, who))
    assert (not refused) is is_allowed(what, by_role), refused


@pytest.mark.parametrize("name", USERS)
def test_nobody_gets_more_by_requests_than_by_pods(name: str) -> None:
    """Who may write such a request may give the pod that image without one."""
    rules, (roles, by_roles) = rules_with_roles(), USERS[name]
    who, new = Who(name, bound=roles), pod()
    APP(new)
    may_patch = any(rules.grants(who, verb, "", "pods", namespaced=True) for verb in ("patch", "update"))
    direct = may_patch and not rules.refused(who, Write(pod(), new, group="", resource="pods"))
    assert direct is by_roles


def test_an_administrator_may_write_them() -> None:
    for what in WRITES:
        assert rules_with_roles().refused(ROOT, write_of(what, ROOT)) == ""


@pytest.mark.parametrize("change", [annotated(ANNOTATION_RUN), with_label(LABEL_RUN, "other")])
@pytest.mark.parametrize("has_image", [True, False])
def test_nobody_changes_what_a_run_does(change: Change, *, has_image: bool) -> None:
    """So the user of requested-by has written it."""
    old = copy.deepcopy(FOR_IMAGE)
    if not has_image:
        del old["spec"]["containers"][0]["image"]
    new = copy.deepcopy(old)
    change(new)
    for who in (ROOT, manager("default"), *(Who(name, bound=roles) for name, (roles, _) in USERS.items())):
        refused = rules_with_roles().refused(who, Write(old, new))
        assert refused == "the label run and the annotation run-options cannot be changed after creation"


def test_a_request_without_an_image_needs_no_right_on_pods() -> None:
    old = copy.deepcopy(FOR_IMAGE)
    del old["spec"]["containers"][0]["image"]
    new = copy.deepcopy(old)
    annotated(ANNOTATION_LIMITS)(new)
    assert rules_with_roles().refused(Who("ann", bound=(RESTARTS,)), Write(old, new)) == ""


def test_no_expression_asks_rbac_more_often_than_kubernetes_lets_it() -> None:
    """Each time costs 350 000 of the million units that one expression may cost. A variable counts for itself."""
    asked = [
        (policy["metadata"]["name"], each["expression"])
        for policy in rendered("default")
        if policy["kind"] == "ValidatingAdmissionPolicy"
        for part in ("matchConditions", "variables", "validations")
        for each in policy["spec"].get(part, ())
    ]
    dear = [(name, text) for name, text in asked if len(re.findall(r"\.check\(", text)) > 2]
    assert dear == []
    assert any(".check(" in text for _, text in asked)
    assert model.PLURAL in str(asked)
