"""What the manager may write beside requests: readiness of pods with its gate, the caBundle of webhooks, its Secret."""

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crrd.core.api import types as model
from crrd.core.api.gate import USER_AGENT
from crrd.core.api.pod import PodMeta
from crrd.core.api.types import ANNOTATION_REFRESH
from crrd.core.lifecycle.steps import AcquireUnready, InitReadiness, PodAction, ReleaseUnready
from crrd.kube.client import KubeClient
from crrd.kube.resources import WEBHOOKS as CONFIGURATIONS
from crrd.kube.resources import Resource
from crrd.manager.certificates import pki
from crrd.manager.certificates.keeper import CaBundlePublisher
from crrd.manager.readiness import change_readiness
from tests.repo.test_policies import ROBOT, ROOT, USER, labelled, manager, node, rules_of
from tests.support.manifests import needs_kubectl, one, rendered
from tests.support.policies import Change, Who, Write, annotated, without

pytestmark = needs_kubectl
Json = dict[str, Any]


def pod() -> Json:
    return {
        "metadata": {"name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "7", "labels": {"app": "web"}},
        "spec": {"nodeName": "worker-1", "readinessGates": [{"conditionType": GATE}]},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": GATE, "status": "True"},
                {"type": "PodScheduled", "status": "True"},
            ],
        },
    }


GATE = model.READINESS_GATE
OURS = {"userAgent": USER_AGENT, "key": "shop/one"}
OURS_TOO = {"userAgent": USER_AGENT, "key": "shop/two"}
OTHERS = {"userAgent": 'Operation "Job"', "key": "web"}


def condition(name: str, status: str, *because: Mapping[str, str]) -> Change:
    """Write a condition, with the list of reasons in its message."""

    def change(found: Json) -> None:
        kept = [each for each in found["status"].get("conditions", []) if each["type"] != name]
        message = {"message": json.dumps(because, separators=(",", ":"))} if because else {}
        found["status"]["conditions"] = [*kept, {"type": name, "status": status, **message}]

    return change


def unready(*because: Mapping[str, str]) -> Change:
    """As the manager makes a pod unready: the gate, and Ready with it."""
    return both(condition(GATE, "False", *because), condition("Ready", "False"))


def both(first: Change, second: Change) -> Change:
    def change(found: Json) -> None:
        first(found)
        second(found)

    return change


def spaced(found: Json) -> None:
    """The pod is kept unready by a program that writes its JSON with spaces."""
    unready(OTHERS)(found)
    found["status"]["conditions"][-2]["message"] = json.dumps([OTHERS], indent=1)


def key_first(found: Json) -> None:
    """Likewise, by a program that writes the fields in the order of the alphabet."""
    unready()(found)
    found["status"]["conditions"][-2]["message"] = json.dumps([OTHERS], sort_keys=True)


def said(message: str) -> Change:
    """The pod is kept unready by somebody who says so in words of their own, or does not say why."""
    return lambda found: (unready()(found), found["status"]["conditions"][-2].update(message=message))


def no_condition(name: str) -> Change:
    def change(found: Json) -> None:
        found["status"]["conditions"] = [each for each in found["status"]["conditions"] if each["type"] != name]

    return change


def twice(found: Json) -> None:
    found["status"]["conditions"].append({"type": GATE, "status": "False"})


def status(**fields: Any) -> Change:
    return lambda found: found["status"].update(fields)


def no_gate(found: Json) -> None:
    found["spec"].pop("readinessGates")


def other_gate(found: Json) -> None:
    found["spec"]["readinessGates"] = [{"conditionType": "a.example/b"}]


def owned(found: Json) -> None:
    found["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "x"}]


def finalized(found: Json) -> None:
    found["metadata"]["finalizers"] = ["a.example/b"]


def unchanged(_: Json) -> None:
    pass


HELD, HELD_BY_OTHERS, HELD_BY_BOTH = unready(OURS), unready(OTHERS), unready(OTHERS, OURS)
POD_STATUS: dict[str, tuple[Change, Change, bool]] = {
    "nothing": (unchanged, unchanged, True),
    "first condition": (no_condition(GATE), condition(GATE, "True"), True),
    "unready": (unchanged, condition(GATE, "False", OURS), True),
    "both": (unchanged, unready(OURS), True),
    "one more reason": (HELD, unready(OURS, OURS_TOO), True),
    "beside another program": (HELD_BY_OTHERS, unready(OTHERS, OURS), True),
    "one reason less": (unready(OURS, OURS_TOO), condition(GATE, "False", OURS_TOO), True),
    "given back": (HELD, condition(GATE, "True"), True),
    "given back to another program": (HELD_BY_BOTH, condition(GATE, "False", OTHERS), True),
    "Unknown is given back": (condition(GATE, "Unknown", OURS), condition(GATE, "True"), True),
    "another program's pod ready": (HELD_BY_OTHERS, condition(GATE, "True"), False),
    "another program's pod ready, too": (HELD_BY_BOTH, condition(GATE, "True"), False),
    "another program's pod ready, with spaces": (spaced, condition(GATE, "True"), False),
    "another program's pod ready, with the key first": (key_first, condition(GATE, "True"), False),
    "beside another program, with the key first": (key_first, unready(OTHERS, OURS), True),
    "another program's reason lost, with the key first": (key_first, condition(GATE, "False", OURS), False),
    "ours, with the key first, given back": (
        said(json.dumps([OURS], sort_keys=True)),
        condition(GATE, "True"),
        True,
    ),
    "somebody's pod ready": (said("maintenance until noon"), condition(GATE, "True"), False),
    "somebody's pod ready, who gave no reason": (said(""), condition(GATE, "True"), False),
    "another program's reason lost": (HELD_BY_BOTH, condition(GATE, "False", OURS), False),
    "another program's reason made ours": (HELD_BY_OTHERS, condition(GATE, "False", OURS), False),
    "ready with reasons": (HELD, condition(GATE, "True", OURS), False),
    "no plain status": (unchanged, condition(GATE, "Unknown"), False),
    "condition taken off": (HELD, no_condition(GATE), False),
    "condition twice": (unchanged, twice, False),
    "Ready": (HELD, condition("Ready", "True"), False),
    "Ready with the gate": (HELD, both(condition(GATE, "True"), condition("Ready", "True")), False),
    "Ready alone": (unchanged, condition("Ready", "False"), False),
    "Ready taken off": (unchanged, both(HELD, no_condition("Ready")), False),
    "without the gate": (no_gate, unready(OURS), False),
    "without the gate, ready": (both(no_gate, HELD), condition(GATE, "True"), False),
    "with another gate": (other_gate, unready(OURS), False),
    "other IP": (unchanged, status(podIP="10.6.6.6"), False),
    # Another first one would say nothing: the API server puts podIP in its place.
    "more IPs": (unchanged, status(podIPs=[{"ip": "10.0.0.1"}, {"ip": "fd00::6"}]), False),
    "other phase": (unchanged, status(phase="Succeeded"), False),
    "no phase": (unchanged, lambda found: found["status"].pop("phase"), False),
    "no status": (unchanged, lambda found: found.pop("status"), False),
    "no conditions": (unchanged, status(conditions=[]), False),
    "other condition": (unchanged, condition("PodScheduled", "False"), False),
    "new condition": (unchanged, condition("Initialized", "False"), False),
    "condition lost": (unchanged, no_condition("PodScheduled"), False),
    "label": (unchanged, labelled, False),
    "annotation": (unchanged, annotated("a", "b"), False),
    "finalizer": (unchanged, finalized, False),
    "owner": (unchanged, owned, False),
}
"""What the pod was -> what the manager makes of it -> whether it may."""


def refused_pod_status(world: str, old: Json, new: Json, who: Who) -> str:
    return rules_of(world).refused(who, Write(old, new, "status", group="", resource="pods"))


def changed_pods(what: str) -> tuple[Json, Json]:
    before, after, _ = POD_STATUS[what]
    old = pod()
    before(old)
    new = copy.deepcopy(old)
    after(new)
    return old, new


@pytest.mark.parametrize("world", ["default", "manager elsewhere"])
@pytest.mark.parametrize("what", POD_STATUS)
def test_the_manager_may_change_the_readiness_of_pods_with_its_gate(world: str, what: str) -> None:
    old, new = changed_pods(what)
    assert bool(refused_pod_status(world, old, new, manager(world))) is not POD_STATUS[what][2]
    for who in (USER, ROOT, ROBOT, node(world), Who("system:node:worker-1", ("system:nodes",))):
        assert refused_pod_status(world, old, new, who) == ""


class OneObject(KubeClient):
    """A client of an API server that has one object, and takes whatever is written to it."""

    def __init__(self, found: Json) -> None:
        self.found, self.written = found, copy.deepcopy(found)

    async def get(self, resource: Resource, namespace: str, name: str) -> Mapping[str, Any]:
        return self.found if name == self.found["metadata"]["name"] else {}

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any], *, subresource: str = ""
    ) -> Mapping[str, Any]:
        part = "status" if subresource else "webhooks"
        self.written[part] = self.written[part] | body[part] if subresource else body[part]
        return self.written


REASONS = st.lists(
    st.one_of(
        st.sampled_from([OURS, OURS_TOO, OTHERS]),
        st.fixed_dictionaries({"userAgent": st.text(max_size=8), "key": st.text(max_size=8)}),
        st.dictionaries(st.sampled_from(["userAgent", "other"]), st.text("ab", max_size=2)),  # dropped: no entry
    ),
    max_size=4,
)


@st.composite
def pods(draw: st.DrawFn) -> Json:
    """A pod with the gate, with or without the condition, written by a program with habits of its own."""
    found = pod()
    no_condition(GATE)(found)
    condition("Ready", draw(st.sampled_from(["True", "False"])))(found)
    if gate := draw(st.sampled_from(["", "True", "False", "Unknown"])):
        separators = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
        message = json.dumps(draw(REASONS), separators=separators, ensure_ascii=draw(st.booleans()))
        found["status"]["conditions"].append({"type": GATE, "status": gate, "message": message})
    return found


WEB = PodMeta("shop", "web", "u")
ACTIONS = [AcquireUnready(WEB, "shop/one"), ReleaseUnready(WEB, "shop/one"), InitReadiness(WEB)]


@settings(max_examples=300, deadline=None)
@given(pods(), st.sampled_from(ACTIONS))
async def test_the_policy_allows_each_change_that_the_manager_decides_on(old: Json, action: PodAction) -> None:
    client = OneObject(old)
    await change_readiness(client, action, lambda: datetime.now(UTC))
    if client.written != old:
        assert refused_pod_status("default", old, client.written, manager("default")) == ""


TOKEN, OTHER_TOKEN = "0123456789abcdef", "fedcba9876543210"
READER = Who("ann", bound=("crrd-read-config",))
EDITOR = Who("eve", bound=("crrd-read-config", "crrd-edit-pods"))


def refreshed(value: str = TOKEN) -> Change:
    return annotated(ANNOTATION_REFRESH, value)


def in_meta(**fields: Any) -> Change:
    return lambda found: found["metadata"].update(fields)


def other_image(found: Json) -> None:
    found["spec"].setdefault("containers", [{}])[0]["image"] = "none.invalid/other"


def refreshed_by_others(found: Json) -> None:
    refreshed()(found)
    annotated("team", "blue")(found)


REFRESHES: dict[str, tuple[Change, Change, bool]] = {
    "nothing": (unchanged, unchanged, True),
    "first annotation": (unchanged, refreshed(), True),
    "beside another": (annotated("team", "blue"), refreshed(), True),
    "another change": (refreshed(), refreshed(OTHER_TOKEN), True),
    "as the API server writes it": (refreshed(), both(refreshed(OTHER_TOKEN), in_meta(resourceVersion="8")), True),
    "with managedFields": (unchanged, both(refreshed(), in_meta(managedFields=[{"manager": "crrd"}])), True),
    "something else under its key": (refreshed("by hand"), refreshed(), True),
    "taken off": (refreshed(), without("annotations", ANNOTATION_REFRESH), False),
    "no token": (unchanged, refreshed(""), False),
    "too short": (unchanged, refreshed(TOKEN[1:]), False),
    "too long": (unchanged, refreshed(TOKEN + "0"), False),
    "other letters": (unchanged, refreshed("ABCDEF0123456789"), False),
    "two lines": (unchanged, refreshed(TOKEN + "\n"), False),
    "another annotation": (unchanged, annotated("team", "blue"), False),
    "another annotation, too": (unchanged, refreshed_by_others, False),
    "another annotation changed": (annotated("team", "blue"), both(refreshed(), annotated("team", "red")), False),
    "another annotation taken off": (annotated("team", "blue"), without("annotations", "team"), False),
    "label": (unchanged, both(refreshed(), labelled), False),
    "labels taken off": (unchanged, both(refreshed(), lambda found: found["metadata"].pop("labels")), False),
    "finalizer": (unchanged, both(refreshed(), finalized), False),
    "finalizer taken off": (finalized, both(refreshed(), in_meta(finalizers=[])), False),
    "owner": (unchanged, both(refreshed(), owned), False),
    "owner taken off": (owned, both(refreshed(), lambda found: found["metadata"].pop("ownerReferences")), False),
    "image": (unchanged, both(refreshed(), other_image), False),
    "toleration": (unchanged, lambda found: found["spec"].update(tolerations=[{"operator": "Exists"}]), False),
}
"""What the pod was -> what is made of it -> whether those may who have the right for this annotation."""


@pytest.mark.parametrize("world", ["default", "manager elsewhere"])
@pytest.mark.parametrize("what", REFRESHES)
def test_the_manager_and_readers_of_configuration_may_change_one_annotation_of_pods(world: str, what: str) -> None:
    before, after, allowed = REFRESHES[what]
    old = pod()
    before(old)
    new = copy.deepcopy(old)
    after(new)
    write = Write(old, new, group="", resource="pods")
    rules = rules_of(world)
    edit = {"apiGroups": [""], "resources": ["pods"], "verbs": ["update", "patch"]}
    editors = {"kind": "ClusterRole", "metadata": {"name": "crrd-edit-pods"}, "rules": [edit]}
    rules.objects = [*rules.objects, *rendered("base"), editors]
    bound = replace(manager(world), bound=("crrd-read-config",))
    for who in (manager(world), bound, READER):
        assert bool(rules.refused(who, write)) is not allowed, who
    for who in (USER, ROOT, ROBOT, EDITOR, node(world), Who("system:node:worker-1", ("system:nodes",))):
        assert rules.refused(who, write) == "", who


def test_no_expression_asks_rbac_too_often() -> None:
    """One check costs 350 000, and kube-apiserver ends an expression at 1 000 000: the write is then denied."""
    for policy in (each for each in rendered("default") if each["kind"] == "ValidatingAdmissionPolicy"):
        spec = policy["spec"]
        for each in (*spec.get("matchConditions", ()), *spec.get("variables", ()), *spec["validations"]):
            assert each["expression"].count(".check(") <= 2, policy["metadata"]["name"]


def webhooks() -> Json:
    found = copy.deepcopy(one(rendered("default"), "MutatingWebhookConfiguration", "crrd"))
    for webhook in found["webhooks"]:
        webhook["clientConfig"]["caBundle"] = "b2xk"
    return found


def each_webhook(**fields: Any) -> Change:
    return lambda found: [webhook.update(fields) for webhook in found["webhooks"]]


def client_config(**fields: Any) -> Change:
    """Of the first webhook alone; None takes a field off."""

    def change(found: Json) -> None:
        merged = found["webhooks"][0]["clientConfig"] | fields
        found["webhooks"][0]["clientConfig"] = {key: value for key, value in merged.items() if value is not None}

    return change


def one_more_webhook(found: Json) -> None:
    found["webhooks"].append({**found["webhooks"][0], "name": "mutate-all.apps.kruise.io"})


EVERYTHING = [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"], "scope": "*"}]
ELSEWHERE = {"namespace": "shop", "name": "web", "path": "/mutate-crr", "port": 443}
WEBHOOKS: dict[str, tuple[Change, bool]] = {
    "nothing": (unchanged, True),
    "caBundle": (client_config(caBundle="bmV3"), True),
    "caBundle taken off": (client_config(caBundle=None), True),
    "url": (client_config(url="https://thief.example/", service=None), False),
    "other service": (client_config(service=ELSEWHERE), False),
    "other path": (client_config(service={**ELSEWHERE, "path": "/"}), False),
    "other service, and caBundle": (client_config(service=ELSEWHERE, caBundle="bmV3"), False),
    "everything": (each_webhook(rules=EVERYTHING), False),
    "no rules": (each_webhook(rules=[]), False),
    "failurePolicy": (each_webhook(failurePolicy="Ignore"), False),
    "timeout": (each_webhook(timeoutSeconds=30), False),
    "namespaceSelector": (each_webhook(namespaceSelector={"matchLabels": {"a": "b"}}), False),
    "objectSelector": (each_webhook(objectSelector={"matchLabels": {"a": "b"}}), False),
    "matchConditions": (each_webhook(matchConditions=[{"name": "never", "expression": "false"}]), False),
    "one more webhook": (one_more_webhook, False),
    "one webhook less": (lambda found: found["webhooks"].pop(), False),
    "other name": (lambda found: found["webhooks"][0].update(name="other.apps.kruise.io"), False),
    "no webhooks": (lambda found: found["webhooks"].clear(), False),
    "label": (labelled, False),
    "annotation": (annotated("a", "b"), False),
    "finalizer": (finalized, False),
    "owner": (owned, False),
}


@pytest.mark.parametrize("world", ["default", "manager elsewhere"])
@pytest.mark.parametrize("what", WEBHOOKS)
def test_the_manager_may_change_the_ca_bundle_of_webhooks_alone(world: str, what: str) -> None:
    change, allowed = WEBHOOKS[what]
    new = webhooks()
    change(new)
    write = Write(webhooks(), new, group=CONFIGURATIONS.group, resource=CONFIGURATIONS.plural)
    rules = rules_of(world)
    assert bool(rules.refused(manager(world), write)) is not allowed
    for who in (USER, ROOT, ROBOT, node(world)):
        assert rules.refused(who, write) == ""


async def test_the_policy_allows_what_the_manager_publishes() -> None:
    client = OneObject(webhooks())
    await CaBundlePublisher(client, ["crrd"]).publish(b"new")
    assert client.written != client.found
    write = Write(client.found, client.written, group=CONFIGURATIONS.group, resource=CONFIGURATIONS.plural)
    assert rules_of("default").refused(manager("default"), write) == ""


def secret() -> Json:
    """As the manager creates it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "crrd-manager-tls"},
        "type": "Opaque",
        "data": dict.fromkeys((pki.CA_CERTIFICATES, pki.CA_KEY, pki.CERTIFICATE, pki.KEY), "eA=="),
    }


def helms(found: Json) -> None:
    """Helm finds the Secrets of a release by labels, whatever their names, and takes the newest."""
    found["metadata"]["labels"] = {"owner": "helm", "name": "crrd", "status": "deployed", "version": "99"}


def data(**values: str) -> Change:
    return lambda found: found["data"].update(values)


SECRET_CREATIONS: dict[str, tuple[Change, bool]] = {
    "nothing": (unchanged, True),
    "other name": (lambda found: found["metadata"].update(name="sh.helm.release.v1.crrd.v99"), False),
    "generated name": (lambda found: found.update(metadata={"generateName": "crrd-manager-tls"}), False),
    "token": (lambda found: found.update(type="kubernetes.io/service-account-token"), False),
    "release": (both(helms, data(release="aGVsbQ==")), False),
    "label": (helms, False),
    "data": (data(release="aGVsbQ=="), False),
    "immutable": (lambda found: found.update(immutable=True), False),
    "annotation": (annotated("kubernetes.io/service-account.name", "default"), False),
    "finalizer": (finalized, False),
    "owner": (owned, False),
}
"""What the manager makes of its new Secret -> whether it may."""
SECRET_UPDATES = {what: SECRET_CREATIONS[what] for what in SECRET_CREATIONS if "name" not in what and what != "token"}
SECRET_UPDATES |= {
    "renewed": (data(**{"tls.crt": "bmV3", "tls.key": "bmV3"}), True),
    "key taken off": (lambda found: found["data"].pop("tls.key"), True),
}


def refused_secret(world: str, old: Json | None, new: Json, who: Who) -> str:
    return rules_of(world).refused(who, Write(old, new, group="", resource="secrets"))


@pytest.mark.parametrize("world", ["default", "manager elsewhere"])
@pytest.mark.parametrize("what", SECRET_CREATIONS)
def test_the_manager_may_create_its_own_secret_alone(world: str, what: str) -> None:
    change, allowed = SECRET_CREATIONS[what]
    new = secret()
    change(new)
    assert bool(refused_secret(world, None, new, manager(world))) is not allowed
    for who in (USER, ROOT, ROBOT, node(world)):
        assert refused_secret(world, None, new, who) == ""


@pytest.mark.parametrize("world", ["default", "manager elsewhere"])
@pytest.mark.parametrize("what", SECRET_UPDATES)
def test_the_manager_may_renew_the_certificates_in_its_secret(world: str, what: str) -> None:
    """What an administrator has added to it stays."""
    change, allowed = SECRET_UPDATES[what]
    old = secret()
    old["metadata"]["labels"] = {"team": "blue"}
    old["data"]["theirs"] = "eA=="
    new = copy.deepcopy(old)
    change(new)
    assert bool(refused_secret(world, old, new, manager(world))) is not allowed
    for who in (USER, ROOT, ROBOT, node(world)):
        assert refused_secret(world, old, new, who) == ""
