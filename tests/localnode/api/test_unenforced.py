"""The local API server says what it stores but does not enforce: it must not look like the real one there."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from crrd_localnode.api.crds import load_crd
from crrd_localnode.api.schema import unenforced_rules
from tests.support.local_api import Api, running
from tests.support.manifests import MANIFESTS

Json = dict[str, Any]
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
NAMESPACED = "/apis/{}/namespaces/default/{}"


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with running() as found:
        yield found


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (f"{REGISTRATION}/validatingadmissionpolicies", "does not enforce ValidatingAdmissionPolicies"),
        (f"{REGISTRATION}/validatingadmissionpolicybindings", "does not enforce ValidatingAdmissionPolicies"),
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles", "does not enforce RBAC"),
        (NAMESPACED.format("networking.k8s.io/v1", "networkpolicies"), "does not enforce NetworkPolicies"),
        (NAMESPACED.format("policy/v1", "poddisruptionbudgets"), "no controller for PodDisruptionBudgets"),
        (NAMESPACED.format("apps/v1", "deployments"), "no controllers for workloads"),
    ],
)
async def test_what_is_only_stored_comes_with_a_warning(api: Api, path: str, words: str) -> None:
    made = await api.post(path, {"metadata": {"name": "x"}})
    assert (made.status, words in made.headers["Warning"]) == (201, True)
    strict = await api.post(f"{path}?fieldValidation=Strict", {"metadata": {"name": "y"}})
    assert strict.status == 201, "a warning is no error"


async def test_every_user_may_do_everything_and_reviews_say_why(api: Api) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    review = {"spec": {"resourceAttributes": {"verb": "create", "resource": "pods", "namespace": "default"}}}
    answer = await api.post(path, review)
    assert (answer.status, answer.body["kind"], answer.body["spec"]) == (201, "SelfSubjectAccessReview", review["spec"])
    assert answer.body["status"]["allowed"] is True
    assert "does not enforce RBAC" in answer.body["status"]["reason"]
    assert (await api.post(path, {"kind": "Pod"})).status == 400
    assert [(await api.get(one)).status for one in (path, f"{path}/x")] == [405, 405], "no review is stored"
    (resource,) = (await api.get("/apis/authorization.k8s.io/v1")).body["resources"]
    assert resource["verbs"] == ["create"]


async def test_match_conditions_are_ignored_with_a_warning(api: Api) -> None:
    (manifest, *_) = yaml.safe_load_all((MANIFESTS / "manager" / "webhooks.yaml").read_text(encoding="utf-8"))
    warned = await api.post(f"{REGISTRATION}/mutatingwebhookconfigurations", manifest)
    (warning,) = warned.headers.getall("Warning")
    assert "ignores the matchConditions of webhook mutate-crr.apps.kruise.io, and always calls it" in warning
    plain = await api.post(f"{REGISTRATION}/mutatingwebhookconfigurations", {"metadata": {"name": "none"}})
    assert "Warning" not in plain.headers


async def test_rules_of_a_crd_are_named(api: Api) -> None:
    crd = load_crd()
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert [rule[:40] for rule in unenforced_rules(schema)] == ["!has(oldSelf.status) || !has(oldSelf.sta"] * 3
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
    changed = await api.patch(path, {"metadata": {"labels": {"a": "b"}}})
    assert len(changed.headers.getall("Warning")) == 3, "both versions have the same"


def test_all_rules_of_policies_are_enforced() -> None:
    (version,) = load_crd("policies-crd.yaml")["spec"]["versions"]
    assert list(unenforced_rules(version["schema"]["openAPIV3Schema"])) == []


@pytest.mark.parametrize(
    ("schema", "unknown"),
    [
        ({"x-kubernetes-validations": [{"rule": "self.a > 1"}]}, 1),
        ({"x-kubernetes-validations": [{"rule": "self == oldSelf"}]}, 0),
        ({"x-kubernetes-validations": [{"rule": "has(self.a) != has(self.b)"}]}, 1),
        ({"properties": {"p": {"x-kubernetes-validations": [{"rule": "has(self.a) != has(self.b)"}]}}}, 0),
        ({"properties": {"p": {"items": {"x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}}}, 1),
        ({"properties": {"p": {"items": {"x-kubernetes-validations": [{"rule": "self.matches(r'a')"}]}}}}, 0),
    ],
)
def test_which_rules_are_enforced(schema: Json, unknown: int) -> None:
    assert len(list(unenforced_rules(schema))) == unknown
