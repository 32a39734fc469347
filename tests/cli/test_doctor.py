"""`crrd doctor`, from the API's objects to its lines: a sound installation, and each thing broken on its own."""

import copy
import json
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from crrd.cli.doctor import OF_MANAGER, OF_NODE, OF_USER, Reader, render, render_json
from crrd.core.api.images import ANNOTATION_PATCHED
from crrd.core.api.types import GROUP, KIND, PLURAL, VERSIONS
from crrd.core.doctor.checks import POLICIES_OF_MANAGER, examine
from crrd.core.doctor.findings import Check, Finding, State, Topic
from crrd.core.rollout.run import LABEL_RUN
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.errors import ResourceMissingError
from crrd.kube.resources import POLICIES, Listing, Resource
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, GoneError
from crrd_localnode.api import selectors
from tests.support.command import crrd
from tests.support.faulty_api import FaultyApiServer
from tests.support.manifests import one, rendered

Json = dict[str, Any]
Break = Callable[["Installation"], object]
NODES = ("worker-1", "worker-2")


def rfc3339(seconds: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def ready(status: bool = True) -> Json:
    return {"conditions": [{"type": "Ready", "status": str(status)}]}


def pod(component: str, number: int) -> Json:
    namespace = {"node": "crrd-node", "manager": "crrd-system"}[component]
    labels = {"app.kubernetes.io/name": "crrd", "app.kubernetes.io/component": component}
    return {
        "kind": "Pod",
        "metadata": {"name": f"crrd-{component}-{number}", "namespace": namespace, "labels": labels},
        "spec": {
            "nodeName": f"worker-{number}",
            "serviceAccountName": f"crrd-{component}",
            "containers": [{"name": "crrd", "image": "registry:5000/crrd:0.1.0"}],
        },
        "status": {
            **ready(),
            "phase": "Running",
            "containerStatuses": [{"name": "crrd", "containerID": "containerd://1", "state": {"running": {}}}],
        },
    }


def admitted(body: Json) -> Json:
    """The request as admission completes it."""
    labels = {f"crr.apps.kruise.io/{name}": name for name in ("pod-uid", "node-name")}
    context = {"statusContext": {"containerID": "containerd://1"}}
    spec = {**body["spec"], "containers": [{**each, **context} for each in body["spec"]["containers"]]}
    meta = {**body["metadata"], "labels": {**labels, "crr.apps.kruise.io/active": "true"}}
    return {**body, "metadata": meta, "spec": spec}


def lease(name: str, namespace: str, seconds: float = 0.0) -> Json:
    spec = {"holderIdentity": name, "renewTime": rfc3339(seconds), "leaseDurationSeconds": 15}
    return {"kind": "Lease", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


class Installation:
    """An API server in memory with crrd's manifests applied, on two nodes: what `Reader` asks of a client."""

    def __init__(self, manifests: str = "default") -> None:
        self.objects: list[Json] = copy.deepcopy(rendered(manifests))
        for each in self.objects:
            if each["kind"].endswith("WebhookConfiguration"):
                for hook in each["webhooks"]:
                    hook["clientConfig"]["caBundle"] = "Q0E="
        for number, name in enumerate(NODES, start=1):
            status = {**ready(), "nodeInfo": {"operatingSystem": "linux"}}
            self.objects.append({"kind": "Node", "metadata": {"name": name}, "status": status})
            self.objects += [pod("node", number), pod("manager", number), lease(name, "kube-node-lease")]
        self.objects.append(lease("crrd-manager", "crrd-system"))
        self.version = {"gitVersion": "v1.36.1", "major": "1", "minor": "36"}
        self.unreadable: set[str] = set()
        self.denied: set[tuple[str, str, str]] = set()
        """User ("" for the caller), verb and resource."""
        denied = 'admission webhook "mutate-crr.apps.kruise.io" denied the request: pod not found'
        self.trial: Exception | None = ApiRefusedError(denied, status=422)
        """How a request for a pod that does not exist is refused, None if it is not."""
        self.served, self.ignored = {*VERSIONS}, set[str]()
        self.clock = ServerClock()

    def one(self, kind: str, name: str) -> Json:
        return one(self.objects, kind, name)

    def remove(self, kind: str, name: str = "") -> None:
        self.objects = [
            each for each in self.objects if each["kind"] != kind or name not in ("", each["metadata"]["name"])
        ]

    def hook(self) -> Json:
        found: Json = self.one("MutatingWebhookConfiguration", "crrd")["webhooks"][0]
        return found

    def schema(self) -> Json:
        crd = self.one("CustomResourceDefinition", f"{PLURAL}.apps.kruise.io")
        found: Json = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        return found

    def record(self) -> Json:
        """The fields of a policy's record of an object."""
        crd = self.one("CustomResourceDefinition", POLICIES.full_name)
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        found: Json = schema["properties"]["status"]["properties"]["config"]["items"]["properties"]
        return found

    def request(self, **status: Any) -> None:
        labels = {"crr.apps.kruise.io/active": "true", "crr.apps.kruise.io/node-name": "worker-2"}
        self.objects.append({"kind": KIND, "metadata": {"name": "one", "labels": labels}, "status": status})

    def kruise(self, *, daemon: bool) -> None:
        """Install OpenKruise's manager, and its daemon."""
        hook = {"name": "mcontainerrecreaterequest.kb.io", "rules": self.hook()["rules"], "clientConfig": {}}
        meta = {"name": "kruise-mutating-webhook-configuration"}
        self.objects.append({"kind": "MutatingWebhookConfiguration", "metadata": meta, "webhooks": [hook]})
        if daemon:
            found = {"metadata": {"name": "kruise-daemon"}, "status": {"desiredNumberScheduled": 2}}
            self.objects.append({"kind": "DaemonSet", **found})

    async def list_all(
        self,
        resource: Resource,
        parse: Callable[[Json], Any],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> Listing[Any]:
        self._check(resource)
        selects = selectors.label_selector(label_selector) or (lambda _: True)
        names = field_selector.removeprefix("metadata.name=")
        found = [
            parse(each)
            for each in self._of(resource)
            if namespace in ("", each["metadata"].get("namespace"))
            and selects(each)
            and names in ("", each["metadata"]["name"])
        ]
        return Listing(tuple(found), "1")

    async def get(self, resource: Resource, namespace: str, name: str) -> Json:
        self._check(resource)
        for each in self._of(resource):
            if (each["metadata"].get("namespace", ""), each["metadata"]["name"]) == (namespace, name):
                return each
        raise GoneError(f"{name} not found", status=404)

    async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        if resource.plural == PLURAL:
            assert dry_run
            version = body["apiVersion"].removeprefix(f"{GROUP}/")
            assert version == resource.version
            if version not in self.served:
                raise ResourceMissingError("the server could not find the requested resource", status=404)
            if version in self.ignored:  # by the rules of the webhook
                return body
            if body["spec"]["podName"] != "crrd-doctor-no-such-pod":
                return admitted(body)
            assert namespace == "shop"
            if self.trial is not None:
                raise self.trial
            return body
        self._check(resource)
        attributes, user = body["spec"]["resourceAttributes"], body["spec"].get("user", "")
        what = "/".join(filter(None, (attributes["resource"], attributes["subresource"])))
        return {"status": {"allowed": (user, attributes["verb"], what) not in self.denied}}

    def _check(self, resource: Resource) -> None:
        if resource.plural in self.unreadable:
            raise ApiRefusedError(f"{resource.plural} is forbidden", status=403)

    def _of(self, resource: Resource) -> Iterable[Json]:
        return [each for each in self.objects if _plural(each["kind"]) == resource.plural]

    async def findings(self) -> tuple[Finding, ...]:
        reader = Reader(cast("KubeClient", self))
        return examine(await reader.facts(self.version, "shop", self.clock))


def _plural(kind: str) -> str:
    lower = kind.lower()
    return f"{lower[:-1]}ies" if lower.endswith("y") else f"{lower}s"


def not_ready(api: Installation) -> None:
    found = api.one("Pod", "crrd-node-2")
    waiting = [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    found["status"] = {**ready(status=False), "containerStatuses": waiting}


def stale_lease(api: Installation) -> None:
    api.one("Lease", "crrd-manager")["spec"]["renewTime"] = rfc3339(-60)


def without_crd(api: Installation) -> None:
    api.remove("CustomResourceDefinition", f"{PLURAL}.apps.kruise.io")


def unserved(api: Installation) -> None:
    for version in api.one("CustomResourceDefinition", f"{PLURAL}.apps.kruise.io")["spec"]["versions"]:
        version["served"] = False


def old_daemon(api: Installation) -> None:
    api.one("Pod", "crrd-node-1")["spec"]["containers"][0]["image"] = "crrd:0.0.9"


def two_systems(api: Installation) -> None:
    api.kruise(daemon=True)
    api.remove("MutatingWebhookConfiguration", "kruise-mutating-webhook-configuration")


def clock_ahead(api: Installation) -> None:
    api.one("Lease", "worker-2")["spec"]["renewTime"] = rfc3339(3600)


def clock_behind(api: Installation) -> None:
    api.one("Lease", "worker-1")["spec"]["renewTime"] = rfc3339(-3600)


def server_behind(api: Installation) -> None:
    api.clock.observe("Sun, 01 Mar 2026 12:00:00 GMT", 0.0, 0.0)
    api.remove("Lease")


def node_down(api: Installation) -> None:
    api.one("Node", "worker-2")["status"] = ready(status=False)
    api.one("Pod", "crrd-node-2")["status"] = ready(status=False)


def no_webhooks(api: Installation) -> None:
    api.remove("MutatingWebhookConfiguration")


def no_managers(api: Installation) -> None:
    api.remove("Pod", "crrd-manager-1")
    api.remove("Pod", "crrd-manager-2")


def no_daemons(api: Installation) -> None:
    for name in ("crrd-node-1", "crrd-node-2"):
        api.one("Pod", name)["status"] = {"phase": "Failed", "reason": "Evicted"}


def managers_down(api: Installation) -> None:
    for name in ("crrd-manager-1", "crrd-manager-2"):
        api.one("Pod", name)["status"] = ready(status=False)


SERVICE_ACCOUNT = "system:serviceaccount"
BROKEN: dict[str, tuple[Break, Check, State, str]] = {
    "server": (
        lambda api: api.version.update(gitVersion="v1.29.3", minor="29"),
        *(Check.SERVER, State.WARNING, "v1.29.3 is older than Kubernetes 1.30"),
    ),
    "no CRD": (without_crd, Check.CRD, State.PROBLEM, "ContainerRecreateRequest is not installed"),
    "not served": (unserved, Check.CRD, State.PROBLEM, "the API server serves none of the versions that crrd supports"),
    "pruned": (
        lambda api: api.schema()["status"]["properties"].pop("reason"),
        *(Check.CRD, State.WARNING, "the API server drops fields that the CRD does not have: status.reason"),
    ),
    "pruned object": (
        lambda api: api.schema()["spec"]["properties"].pop("strategy"),
        *(Check.CRD, State.PROBLEM, "does not have: spec.strategy"),
    ),
    "pruned in a list": (
        lambda api: api.schema()["spec"]["properties"]["containers"]["items"]["properties"].pop("statusContext"),
        *(Check.CRD, State.PROBLEM, "does not have: spec.containers[].statusContext"),
    ),
    "no CRD of policies": (
        lambda api: api.remove("CustomResourceDefinition", POLICIES.full_name),
        *(Check.CRD, State.PROBLEM, "ContainerRecreatePolicy is not installed"),
    ),
    "old CRD of policies": (
        lambda api: [api.record().pop(name) for name in ("immutable", "nodes")],
        *(
            *(Check.CRD, State.PROBLEM),
            "the CRD of ContainerRecreatePolicies does not have: status.config[].immutable, status.config[].nodes",
        ),
    ),
    "no webhooks": (
        no_webhooks,
        *(Check.WEBHOOKS, State.PROBLEM, "no webhook admits requests"),
    ),
    "no caBundle": (
        lambda api: api.hook()["clientConfig"].pop("caBundle"),
        *(Check.WEBHOOKS, State.PROBLEM, "no caBundle in mutate-crr.apps.kruise.io"),
    ),
    "ignored": (
        lambda api: api.hook().update(failurePolicy="Ignore"),
        *(Check.WEBHOOKS, State.WARNING, "failurePolicy is Ignore in mutate-crr.apps.kruise.io"),
    ),
    "x509": (
        lambda api: setattr(api, "trial", ApiUnavailableError("failed calling webhook: x509: unknown authority")),
        *(Check.ADMISSION, State.PROBLEM, "a dry-run request failed: failed calling webhook: x509"),
    ),
    "denied by a policy": (
        lambda api: setattr(api, "trial", ApiRefusedError("ValidatingAdmissionPolicy crrd-admission", status=422)),
        *(Check.ADMISSION, State.PROBLEM, "denied, but not by crrd's webhook: ValidatingAdmissionPolicy"),
    ),
    "not admitted": (lambda api: setattr(api, "trial", None), Check.ADMISSION, State.PROBLEM, "was accepted"),
    "not admitted by one version": (
        lambda api: api.ignored.add("v1beta1"),
        *(Check.ADMISSION, State.PROBLEM, "a dry-run request by v1beta1 for a pod that does not exist was accepted"),
    ),
    "no policy": (
        lambda api: api.remove("ValidatingAdmissionPolicy", "crrd-requests"),
        *(Check.POLICIES, State.PROBLEM, "ValidatingAdmissionPolicies not found: crrd-requests"),
    ),
    "policy not bound": (
        lambda api: api.remove("ValidatingAdmissionPolicyBinding", "crrd-manager"),
        *(Check.POLICIES, State.PROBLEM, "not bound with the action Deny: crrd-manager"),
    ),
    "policy audits": (
        lambda api: api.one("ValidatingAdmissionPolicyBinding", "crrd-node")["spec"].update(
            validationActions=["Audit"]
        ),
        *(Check.POLICIES, State.PROBLEM, "not bound with the action Deny: crrd-node"),
    ),
    "no manager": (no_managers, Check.MANAGER, State.PROBLEM, "the manager has no pod"),
    "managers down": (managers_down, Check.MANAGER, State.PROBLEM, "no pod is ready: crrd-system/crrd-manager-1 on"),
    "one manager down": (
        lambda api: api.one("Pod", "crrd-manager-2").update(status=ready(status=False)),
        *(Check.MANAGER, State.WARNING, "not ready: crrd-system/crrd-manager-2 on worker-2"),
    ),
    "stale lease": (stale_lease, Check.MANAGER, State.PROBLEM, "there is no leader"),
    "no lease": (lambda api: api.remove("Lease", "crrd-manager"), Check.MANAGER, State.PROBLEM, "there is no leader"),
    "no daemons": (no_daemons, Check.DAEMONS, State.PROBLEM, "the node daemon has no pod"),
    "daemon down": (
        not_ready,
        *(Check.DAEMONS, State.PROBLEM, "1 not ready: crrd-node/crrd-node-2 on worker-2 (CrashLoopBackOff)"),
    ),
    "node without": (
        lambda api: api.remove("Pod", "crrd-node-1"),
        *(Check.DAEMONS, State.WARNING, "no daemon on worker-1, so requests for pods there fail"),
    ),
    "node down": (node_down, Check.DAEMONS, State.WARNING, "nodes that are not ready: worker-2"),
    "versions": (old_daemon, Check.DAEMONS, State.WARNING, "different versions run: 0.0.9, 0.1.0"),
    "runtime": (
        lambda api: api.request(reason="RuntimeUnavailable"),
        *(Check.RUNTIME, State.PROBLEM, "requests wait for the container runtime on worker-2"),
    ),
    "kubelet": (
        lambda api: api.request(containerRecreateStates=[{"name": "app", "reason": "KubeletNotAnswering"}]),
        *(Check.RUNTIME, State.PROBLEM, "kubelet does not answer /healthz on worker-2"),
    ),
    "node's clock ahead": (clock_ahead, Check.CLOCKS, State.WARNING, "worker-2 (3600s ahead)"),
    "node's clock behind": (clock_behind, Check.CLOCKS, State.WARNING, "worker-1 (3600s behind)"),
    "clock here": (server_behind, Check.CLOCKS, State.WARNING, "s ahead, compared with the API server"),
    "user's rights": (
        lambda api: api.denied.add(("", "create", PLURAL)),
        *(Check.RIGHTS, State.WARNING, f"you do not have the right to: create {PLURAL}.apps.kruise.io"),
    ),
    "daemon's rights": (
        lambda api: api.denied.add((f"{SERVICE_ACCOUNT}:crrd-node:crrd-node", "patch", f"{PLURAL}/status")),
        *(
            Check.ACCOUNTS,
            State.PROBLEM,
            f"crrd-node:crrd-node does not have the right to: patch {PLURAL}.apps.kruise.io/status",
        ),
    ),
    "manager's rights": (
        lambda api: api.denied.add((f"{SERVICE_ACCOUNT}:crrd-system:crrd-manager", "manage", PLURAL)),
        *(
            Check.ACCOUNTS,
            State.PROBLEM,
            f"crrd-system:crrd-manager does not have the right to: manage {PLURAL}.apps.kruise.io",
        ),
    ),
    "two daemons": (two_systems, Check.OPENKRUISE, State.PROBLEM, "kruise-daemon runs beside crrd's daemon (2 pods)"),
    "two admissions": (
        lambda api: api.kruise(daemon=False),
        *(
            Check.OPENKRUISE,
            State.PROBLEM,
            "both crrd's manager and kruise-mutating-webhook-configuration admit requests",
        ),
    ),
}


async def test_a_sound_installation() -> None:
    findings = await Installation().findings()
    assert [(each.check, each.state) for each in findings] == [(check, State.OK) for check in Check]
    lines = render(findings).splitlines()
    assert (
        lines[1] == "ok           CRD               the CRD serves v1alpha1, v1beta1, and has all fields that crrd uses"
    )
    assert lines[5] == "ok           manager           2 ready, and one is the leader"
    assert render_json(findings)["state"] == "ok"


async def test_a_version_that_is_not_served_is_not_tried() -> None:
    api = Installation()
    api.served.remove("v1beta1")
    assert {each.state for each in await api.findings()} == {State.OK}


@pytest.mark.parametrize("what", BROKEN)
async def test_what_is_broken_is_named(what: str) -> None:
    damage, check, state, words = BROKEN[what]
    api = Installation()
    damage(api)
    findings = await api.findings()
    found = [each for each in render_json(findings)["checks"] if each["state"] in ("problem", "warning")]
    (named,) = [each for each in found if each["check"] == check.name.title()]
    assert named["state"] == state
    assert words in named["message"]
    assert named["advice"]
    assert render_json(findings)["state"] == (
        "problem" if State.PROBLEM in {each["state"] for each in found} else state
    )
    assert f"> {named['advice']}" in render(findings)


async def test_pods_that_were_restarted_by_patches_are_counted() -> None:
    api = Installation()
    record = {"version": 1, "containers": [{"name": "app", "before": "app:1", "given": "app@sha256:1"}]}
    for name, image, label in (
        ("web-0", "app@sha256:1", LABEL_RUN),
        ("web-1", "app:1", LABEL_RUN),
        ("old", "x", "app"),
    ):
        found = pod("node", 1)
        found["metadata"] = {"name": name, "namespace": "shop", "labels": {label: "run"}}
        found["metadata"]["annotations"] = {ANNOTATION_PATCHED: json.dumps(record)}
        found["spec"]["containers"] = [{"name": "app", "image": image}]
        found["status"]["containerStatuses"] = [{"name": "app", "imageID": "docker.io/library/app@sha256:1"}]
        api.objects.append(found)
    (images,) = [each for each in await api.findings() if each.check is Check.IMAGES]
    assert (images.state, images.topic) == (State.OK, Topic.OTHER_NAMES)
    assert ": 1, for example shop/web-0;" in images.message


async def test_without_node_daemons_the_manager_patches() -> None:
    api = Installation("overlays/lean")
    (manager,) = api.one("Deployment", "crrd-manager")["spec"]["template"]["spec"]["containers"]
    for number in (1, 2):
        api.remove("Pod", f"crrd-node-{number}")
        api.one("Pod", f"crrd-manager-{number}")["spec"]["containers"] = [manager]
    found = {each.check: each for each in await api.findings()}
    assert (found[Check.DAEMONS].topic, found[Check.RESTARTS].topic) == (Topic.NONE_NEEDED, Topic.BY_MANAGER)
    states = {check: each.state for check, each in found.items()}
    assert states == {check: State.NOT_CHECKED if check is Check.RUNTIME else State.OK for check in Check}


async def test_beside_openkruise() -> None:
    api = Installation()
    api.kruise(daemon=False)
    denied = 'admission webhook "mcontainerrecreaterequest.kb.io" denied the request: pod not found'
    api.trial = ApiRefusedError(denied, status=400)
    no_managers(api)
    api.remove("MutatingWebhookConfiguration", "crrd")
    for name in POLICIES_OF_MANAGER:
        api.remove("ValidatingAdmissionPolicy", name)
    findings = {each.check: each for each in await api.findings()}
    assert {each.state for each in findings.values()} == {State.OK}
    assert findings[Check.WEBHOOKS].topic is Topic.OTHER_WEBHOOKS
    assert findings[Check.MANAGER].topic is Topic.OTHER_MANAGER
    assert findings[Check.OPENKRUISE].topic is Topic.OPENKRUISE_MANAGES


READS = {
    "customresourcedefinitions": {Check.CRD},
    "mutatingwebhookconfigurations": {Check.WEBHOOKS, Check.OPENKRUISE},
    "validatingadmissionpolicies": {Check.POLICIES},
    "pods": {
        *(Check.MANAGER, Check.DAEMONS, Check.RUNTIME, Check.RESTARTS, Check.IMAGES, Check.ACCOUNTS, Check.OPENKRUISE)
    },
    "leases": {Check.CLOCKS},
    "nodes": {Check.RESTARTS, Check.CLOCKS},
    PLURAL: {Check.RUNTIME},
    "selfsubjectaccessreviews": {Check.RIGHTS},
    "subjectaccessreviews": {Check.ACCOUNTS},
    "daemonsets": {Check.OPENKRUISE},
}


@pytest.mark.parametrize("plural", READS)
async def test_what_may_not_be_read_is_not_checked(plural: str) -> None:
    api = Installation()
    api.unreadable.add(plural)
    findings = await api.findings()
    assert {each.check for each in findings if each.state is State.NOT_CHECKED} == READS[plural]
    assert f"{plural} is forbidden" in render(findings)
    assert {each.state for each in findings} == {State.OK, State.NOT_CHECKED}
    assert render_json(findings)["state"] == "ok"


async def test_with_no_rights_at_all() -> None:
    api = Installation()
    api.unreadable.update(READS, {"validatingadmissionpolicybindings"})
    api.version, api.trial = {}, ApiRefusedError("you may not create requests", status=403)
    findings = await api.findings()
    assert {each.state for each in findings if each.check is not Check.SERVER} == {State.NOT_CHECKED}
    assert findings[0].message == "version unknown"
    assert next(each for each in findings if each.check is Check.ACCOUNTS).message == "pods is forbidden"


async def test_without_any_pods_no_account_is_checked() -> None:
    api = Installation()
    api.remove("Pod")
    found = {each.check: each for each in await api.findings()}
    assert found[Check.ACCOUNTS].message == "crrd has no pods"
    assert found[Check.RUNTIME].topic is Topic.NO_READY_DAEMON


GRANTED = [
    *((right, ("crrd-node", "crrd-serve-requests")) for right in OF_NODE),
    *((right, ("crrd-manager", "crrd-manage-requests")) for right in OF_MANAGER),
    *((right, ("crrd-recreate",)) for right in OF_USER),
]


@pytest.mark.parametrize(("right", "roles"), GRANTED)
def test_what_is_asked_for_is_what_the_manifests_grant(right: str, roles: tuple[str, ...]) -> None:
    verbs, kind = right.split()
    name, _, subresource = kind.partition("/")
    plural, _, group = name.partition(".")
    wanted = "/".join(filter(None, (plural, subresource)))
    rules = [rule for role in roles for rule in one(rendered("default"), "ClusterRole", role)["rules"]]
    granted = [rule["verbs"] for rule in rules if group in rule["apiGroups"] and wanted in rule["resources"]]
    assert set(verbs.split(",")) <= {verb for each in granted for verb in each}


async def test_on_a_cluster_without_crrd(tmp_path: Path) -> None:
    async with FaultyApiServer() as api:
        kubeconfig = str(api.kubeconfig(tmp_path / "kubeconfig"))
        code, out, err = await crrd("doctor", "--kubeconfig", kubeconfig)
        assert (code, err) == (1, "")
        assert "problem      webhooks          no webhook admits requests" in out
        assert f"kubectl --kubeconfig {kubeconfig} describe " in out
        code, out, _ = await crrd("doctor", "--kubeconfig", kubeconfig, "-o", "json")
        answer = json.loads(out)
        states = {each["check"]: each["state"] for each in answer["checks"]}
        assert (code, answer["state"], states["Crd"], states["Daemons"]) == (1, "problem", "ok", "problem")
    ended = await crrd("doctor", "--kubeconfig", kubeconfig)
    assert ended.code == 2
    assert ended.last_line.startswith("crrd doctor: cannot reach the API server with ")


def test_the_example_in_the_docs_has_only_sentences_of_today() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    lines = page.partition("$ crrd doctor\n")[2].partition("\n\n")[0].splitlines()
    texts = [text for topic in Topic for text in (topic.sentence, *topic.remedy)]
    known = "|".join(".*".join(map(re.escape, re.split(r"\{[^{}]*\}", text))) for text in texts)
    checks, states = "|".join(Check), "|".join(State)
    shapes = rf"    (?:(?:{states}) +(?:{checks}) +|  +> )(.*?)(?: \.\.\.)?"
    for line in lines:
        found = re.fullmatch(shapes, line)
        assert found is not None, line
        whole = re.fullmatch(known, found[1])
        assert whole or any(text.startswith(found[1]) for text in texts), line
    assert {line[17:].split("  ")[0] for line in lines if line[4] != " "} == set(Check)
