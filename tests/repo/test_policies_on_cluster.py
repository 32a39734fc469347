"""The policy tables (test_policies, test_manager_policies), asked of the API server that CRRD_TEST_KUBECONFIG names.

Installs the CRD, the roles and the policies there, writes as other users (by impersonation, dry runs only), and takes
all but the CRD away again. Not for a cluster that runs crrd's manager: its admission fills in what is written here.
"""

import copy
import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from crrd.core.api import types as model
from tests.repo import test_image_policies as images
from tests.repo import test_image_requests as image_requests
from tests.repo import test_patch_policies as patches
from tests.repo.test_hints import HINTS, policy
from tests.repo.test_manager_policies import (
    POD_STATUS,
    REFRESHES,
    SECRET_CREATIONS,
    SECRET_UPDATES,
    WEBHOOKS,
    changed_pods,
    client_config,
    secret,
    webhooks,
)
from tests.repo.test_policies import MOVES, PATCHER, USER, WORLDS, WRITES, allowed, everybody, manager, objects_of
from tests.repo.test_policies import request as one
from tests.support.manifests import needs_kubectl, rendered
from tests.support.policies import MASTERS, Change, Who

KUBECONFIG = os.environ.get("CRRD_TEST_KUBECONFIG", "")
pytestmark = [
    needs_kubectl,
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not KUBECONFIG, reason="CRRD_TEST_KUBECONFIG names no cluster: policies are evaluated, not asked"
    ),
]
Json = dict[str, Any]
INSTALLED = ("CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy")
CONFIGURATIONS = "mutatingwebhookconfigurations"
WITH_MANAGER = ["default", "manager elsewhere"]
"""Those of WORLDS in which the manager is crrd's."""
UNSCHEDULED = {"schedulerName": "nobody", "containers": [{"name": "app", "image": "none.invalid/none"}]}
"""The spec of a pod that no scheduler and no kubelet handles, so only the test writes its status."""
PATIENCE = 60.0
"""Seconds in which an API server takes up a policy."""


@dataclass
class Server:
    """kubectl on that cluster, in a namespace of the tests' own."""

    folder: Path
    namespace: str
    world: str
    """What was rendered: one of WORLDS."""

    def kubectl(self, *words: str, given: str = "", who: Who | None = None) -> tuple[int, str]:
        command = ["kubectl", f"--kubeconfig={self._kubeconfig(who)}", *words]
        result = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=60)
        return result.returncode, result.stdout + result.stderr

    def done(self, *words: str, given: str = "") -> str:
        code, output = self.kubectl(*words, given=given)
        assert code == 0, output
        return output

    def _kubeconfig(self, who: Who | None) -> str:
        """The given file; with the fields that have the user impersonated, a copy of it."""
        if who is None:
            return KUBECONFIG
        file = self.folder / "-".join((who.name, *who.groups, who.node)).replace(":", "_")
        if not file.exists():
            config = json.loads(self.done("config", "view", "--raw", "--flatten", "--minify", "-o", "json"))
            info = who.info()
            config["users"][0]["user"] |= {
                "as": info["username"],
                "as-groups": [*info["groups"], "crrd-test"],
                "as-user-extra": info.get("extra", {}),
            }
            file.write_text(json.dumps(config), encoding="utf-8")
        return str(file)

    def path(self, kind: str, name: str = "", subresource: str = "") -> str:
        if kind.endswith("webhookconfigurations"):
            parts: tuple[str, ...] = ("/apis/admissionregistration.k8s.io/v1", kind, name)
        else:
            roots = {model.PLURAL: f"/apis/{model.API_VERSION}", "replicasets": "/apis/apps/v1"}
            root = roots.get(kind, "/api/v1")
            parts = (root, "namespaces", self.namespace, kind, name, subresource)
        return "/".join(part for part in parts if part)

    def put(self, kind: str, body: Json, subresource: str = "", who: Who | None = None) -> tuple[int, str]:
        """Replace the object by that name with what `body` says; as somebody else only to see what would become of it.

        Returns kubectl's exit code and what it said.
        """
        name = body["metadata"]["name"]
        live = json.loads(self.done("get", "--raw", self.path(kind, name)))
        kept = {key: live["metadata"][key] for key in ("uid", "resourceVersion")}
        whole = {**body, "metadata": {**self.placed(body)["metadata"], **kept}}
        if (kind, subresource) == ("pods", "") and who is not None:  # who may update pods is left alone
            parts = [{"op": "replace", "path": f"/{part}", "value": whole[part]} for part in ("metadata", "spec")]
            words = ("-n", self.namespace, "--type=json", "--dry-run=server", "-p", json.dumps(parts))
            return self.kubectl("patch", kind, name, *words, who=who)
        dry = "" if who is None else "?dryRun=All"
        return self.kubectl("replace", "--raw", self.path(kind, name, subresource) + dry, "-f", "-",
                            given=json.dumps(whole), who=who)  # fmt: skip

    def placed(self, body: Json) -> Json:
        """The object in the tests' namespace, where it is in one."""
        own = {} if body["kind"].endswith("WebhookConfiguration") else {"namespace": self.namespace}
        return {**body, "metadata": {**body["metadata"], **own}}

    def refuses_in_time(self, kind: str, body: Json, subresource: str = "") -> None:
        """Wait until the manager may not write this: until then its policy is not in effect yet."""
        ends = time.monotonic() + PATIENCE
        while self.put(kind, body, subresource, manager(self.world))[0] == 0:
            assert time.monotonic() < ends, "the policy does not take effect"
            time.sleep(0.5)

    def remove(self, kind: str, name: str) -> None:
        """Delete an object if it is there, whatever finalizers it has."""
        self.kubectl("delete", "--raw", self.path(kind, name) + "?gracePeriodSeconds=0")
        self.kubectl("patch", kind, "-n", self.namespace, name, "--type=merge",
                     "-p", '{"metadata":{"finalizers":null}}')  # fmt: skip

    def settle(self, kind: str, body: Json) -> None:
        """Make the stored object what `body` says, whatever it was."""
        self.remove(kind, body["metadata"]["name"])
        new, who = self.placed(body), None
        if kind == model.PLURAL:  # a new request has nothing of what comes later, and the name of who creates it
            who = Who(USER.name, (MASTERS,))
            asked = {model.ANNOTATION_REQUESTED_BY: USER.name}
            new["metadata"] |= {"annotations": asked, "labels": one()["metadata"]["labels"] | new["metadata"]["labels"]}
        code, output = self.kubectl("create", "--raw", self.path(kind), "-f", "-", given=json.dumps(new), who=who)
        assert code == 0, output
        for part in ("", "status") if kind == model.PLURAL else ("status",):
            code, output = self.put(kind, body, part)
            assert code == 0, output


@pytest.fixture(scope="module", params=WORLDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("users"), f"crrd-test-{secrets.token_hex(3)}", request.param)
    if found.kubectl("get", "mutatingwebhookconfiguration", "crrd")[0] == 0:
        pytest.skip("the cluster runs crrd's admission, which fills in what the tables leave out")
    kinds = (*INSTALLED, "ValidatingAdmissionPolicyBinding")
    ours = [each for each in (*rendered("base"), *objects_of(found.world)) if each["kind"] in kinds]
    resources = [model.PLURAL, f"{model.PLURAL}/status", "pods/status", "secrets", CONFIGURATIONS]
    rights = {"apiGroups": ["", model.GROUP, "admissionregistration.k8s.io"], "resources": resources}
    role = {"kind": "ClusterRole", "rules": [{**rights, "verbs": ["create", "update"]}]}
    binding = {
        "kind": "ClusterRoleBinding",
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": found.namespace},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "crrd-test"}],
    }
    patcher = {
        "kind": "RoleBinding",
        "metadata": {"name": found.namespace, "namespace": found.namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": PATCHER.bound[0]},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": PATCHER.name}],
    }
    common = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": found.namespace}}
    plain = [common | role, common | binding, common | patcher]
    removable = yaml.safe_dump_all([each for each in ours if each["kind"] != INSTALLED[0]] + plain)
    found.done("create", "namespace", found.namespace)
    try:
        found.done("apply", "--server-side", "--force-conflicts", "-f", "-", given=yaml.safe_dump_all(ours + plain))
        found.done("wait", "--for=condition=Established", "crd", f"{model.PLURAL}.{model.GROUP}", "--timeout=60s")
        found.settle(model.PLURAL, one())
        ends = time.monotonic() + PATIENCE
        while found.kubectl("get", "serviceaccount", "default", "-n", found.namespace)[0]:
            assert time.monotonic() < ends, "the namespace gets no ServiceAccount"
            time.sleep(0.5)
        who, completed = everybody(found.world), {**one(), "status": {"phase": "Completed"}}
        for stranger in (who["user"], who["other node"]):  # one policy after the other
            while found.put(model.PLURAL, completed, "status", stranger)[0] == 0:
                assert time.monotonic() < ends, "the policies do not take effect"
                time.sleep(0.5)
        yield found
    finally:
        found.remove(model.PLURAL, one()["metadata"]["name"])
        found.kubectl("delete", "-f", "-", "--ignore-not-found", given=removable)
        found.kubectl("delete", "namespace", found.namespace, "--wait=false")


@pytest.mark.parametrize("what", [what for what in WRITES if what != "other spec"])
def test_who_may_write_what_of_a_request(server: Server, what: str) -> None:
    write, _ = WRITES[what]
    may = set()
    if write.old is not None:
        server.settle(model.PLURAL, write.old)
    for name, who in everybody(server.world).items():
        if write.old is not None:
            code, output = server.put(model.PLURAL, write.new, write.subresource, who)
        else:
            body = copy.deepcopy(write.new)
            body["metadata"] |= {"name": "new", "namespace": server.namespace}
            path = server.path(model.PLURAL) + "?dryRun=All"
            code, output = server.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(body), who=who)
        assert code == 0 or "ValidatingAdmissionPolicy" in output, output
        if code == 0:
            may.add(name)
    assert may == allowed(server.world, what)


@pytest.fixture
def with_users(server: Server) -> Iterator[Server]:
    """The users of the table have their roles in the tests' namespace, as RBAC itself says."""
    made = [{**each, "apiVersion": "rbac.authorization.k8s.io/v1"} for each in image_requests.OWN_ROLES]
    server.done("apply", "--server-side", "-f", "-", given=yaml.safe_dump_all(made))
    rules, ends, names = image_requests.rules_with_roles(server.world), time.monotonic() + PATIENCE, []
    try:
        for name, (roles, _) in image_requests.USERS.items():
            for role in roles:
                names.append(f"{name}-{role}")
                binding = ("rolebinding", names[-1], "-n", server.namespace)
                server.done("create", *binding, f"--clusterrole={role}", f"--user={name}")
        for name, (roles, _) in image_requests.USERS.items():
            who = Who(name, bound=roles)
            for verb, group in (("patch", ""), ("update", ""), ("update-images", "crr.apps.kruise.io")):
                has = rules.grants(who, verb, group, "pods", namespaced=True)
                question = ("can-i", verb, f"pods.{group}".rstrip("."), "-n", server.namespace)
                while has is not (server.kubectl("auth", *question, who=who)[0] == 0):
                    assert time.monotonic() < ends, f"{name}: {verb} pods {group}"
                    time.sleep(0.5)
        yield server
    finally:
        server.kubectl("delete", "rolebinding", "-n", server.namespace, *names)
        server.kubectl("delete", "-f", "-", "--ignore-not-found", given=yaml.safe_dump_all(made))


@pytest.mark.parametrize("server", WITH_MANAGER[:1], indirect=True)
@pytest.mark.parametrize("what", image_requests.WRITES)
def test_who_may_write_requests_with_an_image(with_users: Server, what: str) -> None:
    server, may = with_users, set()
    server.settle(model.PLURAL, image_requests.write_of("own annotation", USER).old or {})
    for name, (roles, _) in image_requests.USERS.items():
        who = Who(name, bound=roles)
        write = image_requests.write_of(what, who)
        if write.old is not None:
            code, output = server.put(model.PLURAL, write.new, who=who)
        else:
            body = {**write.new, "metadata": {**write.new["metadata"], "name": "new", "namespace": server.namespace}}
            path = server.path(model.PLURAL) + "?dryRun=All"
            code, output = server.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(body), who=who)
        assert code == 0 or "only users who may update pods, or have the ClusterRole" in output, output
        may |= {name} if code == 0 else set()
    table = image_requests.USERS.items()
    assert may == {name for name, (_, by_roles) in table if image_requests.is_allowed(what, by_roles)}


@pytest.mark.parametrize("server", WITH_MANAGER, indirect=True)
# A status without these two fields is completed, and owners are left alone, before policies are asked.
@pytest.mark.parametrize("what", [what for what in POD_STATUS if what not in ("no status", "no phase", "owner")])
def test_the_manager_may_change_the_readiness_of_pods_with_its_gate(server: Server, what: str) -> None:
    old, new = changed_pods(what)
    spec: Json = copy.deepcopy(UNSCHEDULED)
    if gates := old["spec"].get("readinessGates"):
        spec["readinessGates"] = gates
    meta = {key: value for key, value in old["metadata"].items() if key in ("name", "labels")}
    server.settle("pods", {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": old["status"]})
    live = json.loads(server.done("get", "--raw", server.path("pods", "web")))
    meta = {**live["metadata"], **{key: new["metadata"][key] for key in new["metadata"] if key not in old["metadata"]}}
    meta["labels"] = new["metadata"]["labels"]
    body = {**live, "metadata": meta, "status": {**live["status"], **new["status"]}}
    server.refuses_in_time("pods", {**live, "status": {**live["status"], "phase": "Failed"}}, "status")
    code, output = server.put("pods", body, "status", manager(server.world))
    assert code == 0 or "ValidatingAdmissionPolicy" in output, output
    assert (code == 0) is POD_STATUS[what][2], output


@pytest.mark.parametrize("server", WITH_MANAGER, indirect=True)
# The API server writes these fields itself, the garbage collector deletes what has no owner, and a toleration stays.
@pytest.mark.parametrize(
    "what",
    [what for what in REFRESHES if not {"managedFields", "server", "owner", "toleration"} & {*what.split()}],
)
def test_the_manager_may_change_one_annotation_of_pods(reader: Server, what: str) -> None:
    server = reader
    before, after, allowed = REFRESHES[what]
    plain: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "labels": {"app": "web"}}}
    old = {**plain, "spec": copy.deepcopy(UNSCHEDULED), "status": {}}
    before(old)
    server.settle("pods", old)
    new = json.loads(server.done("get", "--raw", server.path("pods", "web")))
    server.refuses_in_time("pods", {**new, "metadata": {**new["metadata"], "annotations": {"team": "red"}}})
    after(new)
    code, output = server.put("pods", new, who=manager(server.world))
    assert code == 0 or "ValidatingAdmissionPolicy" in output, output
    assert (code == 0) is allowed, output


@contextmanager
def having(server: Server, role: str) -> Iterator[Server]:
    """The manager has this role in the tests' namespace, and no other right on pods there."""
    _, namespace, name = manager(server.world).name.rsplit(":", 2)
    where, ends = ("rolebinding", role, "-n", server.namespace), time.monotonic() + PATIENCE
    server.done("create", *where, f"--clusterrole={role}", f"--serviceaccount={namespace}:{name}")
    try:
        while server.kubectl("auth", "can-i", "patch", "pods", "-n", server.namespace, who=manager(server.world))[0]:
            assert time.monotonic() < ends, "the role does not take effect"
            time.sleep(0.5)
        yield server
    finally:
        server.done("delete", *where)


@pytest.fixture
def bound(server: Server) -> Iterator[Server]:
    with having(server, images.ROLE):
        yield server


@pytest.fixture
def reader(server: Server) -> Iterator[Server]:
    with having(server, "crrd-read-config"):
        yield server


def asked(server: Server, allowed: bool, *words: str, given: Json | None = None) -> None:
    """Assert whether the manager may do this, as a dry run. Not allowed is what a policy refuses."""
    text, ends = json.dumps(given) if given is not None else "", time.monotonic() + PATIENCE
    code, output = server.kubectl(*words, given=text, who=manager(server.world))
    while time.monotonic() < ends and (" cannot " in output or (code == 0 and not allowed) or "modified" in output):
        time.sleep(0.5)  # role and policy may not be in effect yet, and the garbage collector deletes at the same time
        code, output = server.kubectl(*words, given=text, who=manager(server.world))
    assert code == 0 or "ValidatingAdmissionPolicy" in output, output
    assert (code == 0) is allowed, output


def held(server: Server, kind: str, body: Json) -> Json:
    """Create an object that stays although its owner does not exist, and return it as the API server has it."""
    body["metadata"]["finalizers"] = ["crrd.dev/test"]
    server.remove(kind, body["metadata"]["name"])
    new, ends = json.dumps(server.placed(body)), time.monotonic() + PATIENCE
    while server.kubectl("create", "--raw", server.path(kind), "-f", "-", given=new)[0]:
        assert time.monotonic() < ends, "the object before it does not go"
        time.sleep(0.5)
    return dict(json.loads(server.done("get", "--raw", server.path(kind, body["metadata"]["name"]))))


def patch_of(old: Json, new: Json) -> str:
    """A JSON patch of all but the status, as a merge of what differs."""
    return json.dumps([{"op": "replace", "path": f"/{part}", "value": new[part]} for part in ("metadata", "spec")
                       if new[part] != old[part]])  # fmt: skip


@pytest.mark.parametrize("server", WITH_MANAGER[:1], indirect=True)
@pytest.mark.parametrize(
    ("kind", "table", "what"),
    [("pods", images.UPDATES, what) for what in images.UPDATES if what not in images.REFUSED_BEFORE]
    + [("replicasets", images.SETS, what) for what in images.SETS if what != "finalizer"],
)
def test_the_manager_may_change_images_where_that_is_bound(
    bound: Server, kind: str, table: Mapping[str, tuple[Change, Change, bool]], what: str
) -> None:
    before, after, allowed = table[what]
    body = images.changed(images.pod if kind == "pods" else images.replica_set, before)
    old = held(bound, kind, body)
    new = copy.deepcopy(old)
    new["metadata"].pop("resourceVersion")
    new["metadata"].pop("managedFields", None)
    after(new)
    words = ("patch", kind, "web", "-n", bound.namespace, "--type=json", "--dry-run=server", "-p", patch_of(old, new))
    asked(bound, allowed, *words)
    bound.remove(kind, "web")


@pytest.fixture
def patcher(server: Server) -> Iterator[Server]:
    with having(server, patches.ROLE):
        yield server


@pytest.mark.parametrize("server", WITH_MANAGER[:1], indirect=True)
@pytest.mark.parametrize("what", [what for what in patches.UPDATES if what not in patches.REFUSED_BEFORE])
def test_the_manager_may_give_images_other_names_where_that_is_bound(patcher: Server, what: str) -> None:
    before, after, allowed = patches.UPDATES[what]
    body = images.changed(patches.pod, before)
    held(patcher, "pods", body)
    ends = time.monotonic() + PATIENCE
    while patcher.put("pods", body, "status")[0]:  # the garbage collector writes at the same time
        assert time.monotonic() < ends, "the pod gets no status"
    old = json.loads(patcher.done("get", "--raw", patcher.path("pods", "web")))
    new = copy.deepcopy(old)
    new["metadata"].pop("resourceVersion")
    new["metadata"].pop("managedFields", None)
    after(new)
    words = (
        "patch",
        "pods",
        "web",
        "-n",
        patcher.namespace,
        "--type=json",
        "--dry-run=server",
        "-p",
        patch_of(old, new),
    )
    asked(patcher, allowed, *words)
    patcher.remove("pods", "web")


@pytest.mark.parametrize("server", WITH_MANAGER[:1], indirect=True)
@pytest.mark.parametrize("what", [what for what in images.PULLS if what not in images.INVALID_PULLS])
def test_the_manager_may_create_pull_pods_alone(bound: Server, what: str) -> None:
    change, allowed = images.PULLS[what]
    words = ("create", "--raw", bound.path("pods") + "?dryRun=All", "-f", "-")
    asked(bound, allowed, *words, given=bound.placed(images.changed(images.pull, change)))


@pytest.mark.parametrize("server", WITH_MANAGER[:1], indirect=True)
@pytest.mark.parametrize("marked", [True, False])
def test_the_manager_may_delete_pull_pods_alone(bound: Server, *, marked: bool) -> None:
    old = held(bound, "pods", images.pull() if marked else images.pod())
    path = bound.path("pods", old["metadata"]["name"])
    asked(bound, marked, "delete", "--raw", f"{path}?dryRun=All")
    bound.remove("pods", old["metadata"]["name"])


@pytest.mark.parametrize("server", WITH_MANAGER[:1], indirect=True)
@pytest.mark.parametrize("what", [what for what in images.DELETED_SETS if what != "with pods"])  # no test writes those
def test_the_manager_may_delete_replicasets_without_pods_alone(bound: Server, what: str) -> None:
    change, allowed = images.DELETED_SETS[what]
    held(bound, "replicasets", images.changed(images.replica_set, change))
    asked(bound, allowed, "delete", "--raw", bound.path("replicasets", "web") + "?dryRun=All")
    bound.remove("replicasets", "web")


@pytest.mark.parametrize("server", WITH_MANAGER, indirect=True)
@pytest.mark.parametrize("what", WEBHOOKS)
def test_the_manager_may_change_the_ca_bundle_of_webhooks_alone(server: Server, what: str) -> None:
    change, allowed = WEBHOOKS[what]
    body, plural = webhooks(), CONFIGURATIONS
    body["metadata"] = {"name": server.namespace, "labels": {"app": "test"}}
    for webhook in body["webhooks"]:
        webhook["objectSelector"] = {"matchLabels": {"crrd-test": "none"}}  # it is asked about nothing
    path = server.path(plural, server.namespace)
    try:
        server.done("create", "--raw", server.path(plural), "-f", "-", given=json.dumps(body))
        new = json.loads(server.done("get", "--raw", path))
        elsewhere = copy.deepcopy(new)
        client_config(url="https://thief.example/", service=None)(elsewhere)
        server.refuses_in_time(plural, elsewhere)
        change(new)
        code, output = server.put(plural, new, who=manager(server.world))
    finally:
        server.done("delete", "--raw", path)
    assert code == 0 or "ValidatingAdmissionPolicy" in output, output
    assert (code == 0) is allowed, output


@pytest.mark.parametrize("server", WITH_MANAGER, indirect=True)
@pytest.mark.parametrize(
    ("table", "what"),
    # A token of no ServiceAccount is looked at before policies are asked.
    [(SECRET_CREATIONS, what) for what in SECRET_CREATIONS if what != "token"]
    + [(SECRET_UPDATES, what) for what in SECRET_UPDATES],
)
def test_the_manager_may_write_its_own_secret_alone(
    server: Server, table: Mapping[str, tuple[Change, bool]], what: str
) -> None:
    change, allowed = table[what]
    body, path, who = server.placed(secret()), server.path("secrets"), manager(server.world)
    server.remove("secrets", body["metadata"]["name"])
    server.done("create", "--raw", path, "-f", "-", given=json.dumps(body))
    server.refuses_in_time("secrets", {**body, "data": {**body["data"], "theirs": "eA=="}})
    change(body)
    if table is SECRET_UPDATES:
        code, output = server.put("secrets", body, who=who)
    else:
        server.remove("secrets", secret()["metadata"]["name"])
        body["metadata"]["namespace"] = server.namespace
        words, given = ("create", "--raw", f"{path}?dryRun=All", "-f", "-"), json.dumps(body)
        code, output = server.kubectl(*words, given=given, who=who)
    assert code == 0 or "ValidatingAdmissionPolicy" in output, output
    assert (code == 0) is allowed, output


@pytest.mark.parametrize("server", ["default"], indirect=True)
@pytest.mark.parametrize("move", MOVES)
def test_what_has_ended_stays_ended(server: Server, move: str) -> None:
    old, new, message = MOVES[move]
    server.settle(model.PLURAL, old)
    code, output = server.put(model.PLURAL, {key: value for key, value in new.items() if value is not None}, "status",
                              everybody("default")["root"])  # fmt: skip
    assert (code == 0) is not bool(message), output
    assert message in output


@pytest.mark.parametrize("server", WITH_MANAGER[:1], indirect=True)
@pytest.mark.parametrize(("spec", "warning"), HINTS, ids=str)
def test_kubectl_shows_what_a_policy_shows_at_once(server: Server, spec: Json, warning: str) -> None:
    given = json.dumps(policy(spec))
    words = ("create", "-n", server.namespace, "--dry-run=server", "-f", "-")
    ends = time.monotonic() + PATIENCE
    output = server.done(*words, given=given)
    while warning not in output and time.monotonic() < ends:  # the policy may not be in effect yet
        time.sleep(0.5)
        output = server.done(*words, given=given)
    assert output.count("Warning:") == bool(warning), output
    assert warning in output, output
