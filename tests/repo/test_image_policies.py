"""What the manager may write where crrd-update-images is bound: images of pods and ReplicaSets, and pull pods."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from crrd.core.rollout.change import ImageChange, TemplateMode
from crrd.core.rollout.image.pull import pull_pod
from crrd.core.rollout.run import Options, Run, Target
from crrd.manager.policies.rights import Rights
from tests.repo.test_manager_policies import both, finalized, in_meta, owned, refreshed, unchanged
from tests.repo.test_policies import ROBOT, ROOT, USER, labelled, manager, node, rules_of
from tests.support.manifests import needs_kubectl, one, rendered
from tests.support.policies import Change, Rules, Who, Write, annotated, evaluate, without

pytestmark = needs_kubectl
Json = dict[str, Any]
ROLE = "crrd-update-images"
HASH = "controller-revision-hash"
KUBELET = Who("system:node:worker-1", ("system:nodes",))
KRUISE_ADMIN = {
    "kind": "ClusterRole",
    "metadata": {"name": "all-of-kruise"},
    "rules": [{"apiGroups": ["apps.kruise.io"], "resources": ["*"], "verbs": ["*"]}],
}
"""A role of users who may create and delete pods. Its verbs contain those that the policies ask for."""
BUILDER = Who("system:serviceaccount:ci:builder", bound=("all-of-kruise",))
FREE = (USER, ROOT, ROBOT, node("default"), KUBELET, BUILDER, Who("ann", bound=("crrd-recreate-from-template",)))
CONTROLLERS = ("replicaset-controller", "daemon-set-controller", "generic-garbage-collector", "namespace-controller")
UNASKED = (
    *(KUBELET.name, "system:kube-controller-manager", "system:kube-scheduler"),
    *(f"system:serviceaccount:kube-system:{each}" for each in CONTROLLERS),
)
"""Who writes most pods and ReplicaSets."""
ASKED = (
    *("system:serviceaccount:kube-system:crrd-manager", "system:serviceaccount:shop:replicaset-controller"),
    *("jane", "system:nodes", "system:serviceaccount:crrd-system:crrd-manager", "system:node"),
)


def controller(kind: str, api_version: str = "apps/v1") -> list[Json]:
    return [{"apiVersion": api_version, "kind": kind, "name": "web", "uid": "owner", "controller": True}]


def containers() -> Json:
    env = [{"name": "A", "value": "1"}]
    mesh = {"name": "mesh", "image": "none.invalid/mesh:1", "restartPolicy": "Always"}
    return {
        "containers": [{"name": "app", "image": "none.invalid/app:1", "env": env}],
        "initContainers": [{"name": "setup", "image": "none.invalid/setup:1"}, mesh],
    }


def pod() -> Json:
    meta: Json = {"name": "web", "namespace": "shop", "labels": {"app": "web", HASH: "web-1"}}
    meta |= {"ownerReferences": controller("ReplicaSet")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {**containers(), "schedulerName": "nobody"}}


def replica_set() -> Json:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": containers()}
    meta = {"name": "web", "namespace": "shop", "ownerReferences": controller("Deployment")}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": meta, "spec": spec, "status": {"replicas": 0}}


def spec_of(found: Json) -> Json:
    """The spec of a pod, or of the template of a ReplicaSet."""
    spec: Json = found["spec"]
    found = spec["template"]["spec"] if "template" in spec else spec
    return dict(found)


def image(kind: str, index: int) -> Change:
    return lambda found: spec_of(found)[kind][index].update(image="none.invalid/other:2")


def app(**fields: Any) -> Change:
    return lambda found: spec_of(found)["containers"][0].update(fields)


def in_spec(**fields: Any) -> Change:
    return lambda found: found["spec"].update(fields)


def one_more(kind: str) -> Change:
    return lambda found: spec_of(found)[kind].append({"name": "more", "image": "none.invalid/more:1"})


def tolerant(found: Json) -> None:
    found["spec"]["tolerations"] = [*found["spec"].get("tolerations", []), {"operator": "Exists"}]


def revision(value: str = "web-2") -> Change:
    return lambda found: found["metadata"]["labels"].update({HASH: value})


APP, SETUP, MESH = image("containers", 0), image("initContainers", 0), image("initContainers", 1)
UPDATES: dict[str, tuple[Change, Change, bool]] = {
    "nothing": (unchanged, unchanged, True),
    "image": (unchanged, APP, True),
    "image of a sidecar": (unchanged, MESH, True),
    "both, and files": (unchanged, both(both(APP, MESH), refreshed()), True),
    "image of a StatefulSet": (in_meta(ownerReferences=controller("StatefulSet")), APP, True),
    "image of a DaemonSet": (in_meta(ownerReferences=controller("DaemonSet")), APP, True),
    "image without a workload": (lambda found: found["metadata"].pop("ownerReferences"), APP, False),
    "image of a Job": (in_meta(ownerReferences=controller("Job", "batch/v1")), APP, False),
    "image of another StatefulSet": (
        in_meta(ownerReferences=controller("StatefulSet", "apps.kruise.io/v1")),
        APP,
        False,
    ),
    "image of an owned pod": (
        in_meta(ownerReferences=[{**controller("ReplicaSet")[0], "controller": False}]),
        APP,
        False,
    ),
    "image of an init container": (unchanged, SETUP, False),
    "images of all": (unchanged, both(APP, SETUP), False),
    "revision": (unchanged, revision(), True),
    "revision and image": (unchanged, both(APP, revision()), True),
    "revision taken off": (unchanged, without("labels", HASH), False),
    "revision added": (without("labels", HASH), revision(), False),
    "revision without a workload": (lambda found: found["metadata"].pop("ownerReferences"), revision(), False),
    "label": (unchanged, labelled, False),
    "label changed": (unchanged, lambda found: found["metadata"]["labels"].update(app="db"), False),
    "label taken off": (unchanged, without("labels", "app"), False),
    "labels taken off": (unchanged, lambda found: found["metadata"].pop("labels"), False),
    "annotation": (unchanged, both(APP, annotated("team", "red")), False),
    "finalizer": (unchanged, both(APP, finalized), False),
    "owner": (unchanged, both(APP, owned), False),
    "deadline": (unchanged, both(APP, in_spec(activeDeadlineSeconds=1)), False),
    "toleration": (unchanged, both(APP, tolerant), False),
    "environment": (unchanged, both(APP, app(env=[{"name": "A", "value": "2"}])), False),
    "command": (unchanged, both(APP, app(command=["sh"])), False),
    "pull policy": (unchanged, both(APP, app(imagePullPolicy="Never")), False),
    "restart policy of an init container": (
        unchanged,
        lambda found: found["spec"]["initContainers"][0].update(restartPolicy="Always", image="none.invalid/other:2"),
        False,
    ),
    "another container": (unchanged, one_more("containers"), False),
    "another init container": (unchanged, one_more("initContainers"), False),
    "no init containers": (unchanged, lambda found: found["spec"].pop("initContainers"), False),
    "order": (unchanged, lambda found: found["spec"]["initContainers"].reverse(), False),
}
"""What a pod was -> what is made of it -> whether those may who have crrd-update-images."""
REFUSED_BEFORE = (
    *("environment", "command", "pull policy", "restart policy of an init container", "order", "finalizer"),
    *("another container", "another init container", "no init containers"),
)
"""Those of UPDATES that a real API server refuses before it asks policies (the pod is being deleted there)."""


def pull(image_name: str = "none.invalid/app:2") -> Json:
    """As the manager creates it."""
    change = ImageChange(image_name, ("none.invalid/app:1",), mode=TemplateMode.FOLLOW)
    options = Options(("app",), image=change, policy="0dd2c1a8-6f55-4c50-a5a7-2f0b8b7a3f11")
    target = Target("deployment.apps/web", "apps/v1", "Deployment", "web", "uid")
    like = {"spec": {**containers(), "serviceAccountName": "default", "imagePullSecrets": [{"name": "registry"}]}}
    made = pull_pod(
        Run("shop", "web-0123456789", target, options, "2026-01-01T00:00:00Z"), "worker-1", image_name, like
    )
    return {**made, "apiVersion": "v1", "kind": "Pod"}


def under_restricted_v2(found: Json) -> None:
    """What OpenShift's SecurityContextConstraint admission adds to a pod without a UID (apiserver-library-go)."""
    found["metadata"]["annotations"] |= {
        "openshift.io/scc": "restricted-v2",
        "security.openshift.io/validated-scc-subject-type": "user",
        "seccomp.security.alpha.kubernetes.io/pod": "runtime/default",
    }
    context = found["spec"]["securityContext"]
    context |= {"fsGroup": 1000650000, "seLinuxOptions": {"level": "s0:c26,c5"}}
    del context["runAsUser"]
    found["spec"]["containers"][0]["securityContext"]["runAsUser"] = 1000650000


def defaulted(found: Json) -> None:
    """What other admission plugins and Kyverno's example policies add."""
    found["metadata"]["annotations"]["policies.kyverno.io/last-applied-patches"] = "a.b.c: added /spec\n"
    found["spec"] |= {"dnsConfig": {"options": [{"name": "ndots", "value": "1"}]}}
    found["spec"] |= {"priority": 0, "preemptionPolicy": "PreemptLowerPriority", "hostUsers": False}
    found["spec"]["nodeSelector"] = {"team": "red"}
    found["spec"]["imagePullSecrets"].append({"name": "default-dockercfg-x"})
    tolerations = found["spec"]["tolerations"]
    tolerations.append({"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"})
    found["spec"]["securityContext"] |= {"runAsGroup": 3000, "fsGroup": 2000, "supplementalGroups": [4000]}
    more = {"privileged": False, "runAsNonRoot": True, "runAsGroup": 3000, "seccompProfile": {"type": "RuntimeDefault"}}
    found["spec"]["containers"][0]["securityContext"] |= more


def in_pull(**fields: Any) -> Change:
    return lambda found: found["spec"]["containers"][0].update(fields)


def security(**fields: Any) -> Change:
    return lambda found: found["spec"]["containers"][0]["securityContext"].update(fields)


def of_pod(**fields: Any) -> Change:
    return lambda found: found["spec"]["securityContext"].update(fields)


def resources(**more: str) -> Change:
    def change(found: Json) -> None:
        for each in found["spec"]["containers"][0]["resources"].values():
            each.update(more)

    return change


def no(key: str) -> Change:
    return lambda found: found["spec"].pop(key)


DROPS_OF_RESTRICTED = security(capabilities={"drop": ["KILL", "MKNOD", "SETUID", "SETGID", "ALL"]})
SECRET = {"secretKeyRef": {"name": "password", "key": "p"}}
HOST = [{"name": "host", "hostPath": {"path": "/"}}]
TOKEN = [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}]}}]
CHECK = {"httpGet": {"port": 80, "host": "169.254.169.254"}}
PULLS: dict[str, tuple[Change, bool]] = {
    "as the manager makes it": (unchanged, True),
    "under OpenShift's restricted-v2": (under_restricted_v2, True),
    "under OpenShift's restricted": (
        both(under_restricted_v2, DROPS_OF_RESTRICTED),
        True,
    ),
    "without a UID": (lambda found: found["spec"]["securityContext"].pop("runAsUser"), True),
    "with defaults of other plugins": (defaulted, True),
    "another account": (in_spec(serviceAccountName="default"), True),
    "with the API server's annotation": (annotated("kubernetes.io/limit-ranger", "LimitRanger plugin set"), True),
    "with the API server's labels": (
        lambda found: found["metadata"]["labels"].update({"topology.kubernetes.io/zone": "a"}),
        True,
    ),
    "no mark": (without("labels", "crr.apps.kruise.io/pull-for-run"), False),
    "empty mark": (lambda found: found["metadata"]["labels"].update({"crr.apps.kruise.io/pull-for-run": ""}), False),
    "label of a Service": (lambda found: found["metadata"]["labels"].update(app="web"), False),
    "annotation": (annotated("k8s.v1.cni.cncf.io/networks", "admin"), False),
    "finalizer": (finalized, False),
    "owner": (owned, False),
    "token": (in_spec(automountServiceAccountToken=True), False),
    "token by default": (no("automountServiceAccountToken"), False),
    "projected token": (in_spec(volumes=TOKEN), False),
    "volume of the host": (in_spec(volumes=HOST), False),
    "network of the host": (in_spec(hostNetwork=True), False),
    "processes of the host": (in_spec(hostPID=True), False),
    "IPC of the host": (in_spec(hostIPC=True), False),
    "init container": (in_spec(initContainers=[{"name": "run", "image": "none.invalid/app:2"}]), False),
    "two containers": (one_more("containers"), False),
    "another name": (in_pull(name="app"), False),
    "another command": (in_pull(command=["sh"]), False),
    "the command of the image": (lambda found: found["spec"]["containers"][0].pop("command"), False),
    "arguments": (in_pull(args=["-c", "true"]), False),
    "Secret in the environment": (in_pull(env=[{"name": "P", "valueFrom": SECRET}]), False),
    "Secrets in the environment": (in_pull(envFrom=[{"secretRef": {"name": "password"}}]), False),
    "port of the host": (in_pull(ports=[{"containerPort": 80, "hostPort": 80}]), False),
    "hook": (in_pull(lifecycle={"postStart": CHECK}), False),
    "probe": (in_pull(livenessProbe=CHECK), False),
    "terminal": (in_pull(stdin=True), False),
    "capability": (security(capabilities={"add": ["NET_ADMIN"], "drop": ["ALL"]}), False),
    "usual capabilities": (security(capabilities={}), False),
    "escalation": (security(allowPrivilegeEscalation=True), False),
    "root": (security(runAsUser=0), False),
    "label of SELinux": (security(seLinuxOptions={"type": "spc_t"}), False),
    "type of SELinux in the pod": (of_pod(seLinuxOptions={"level": "s0:c1,c2", "type": "spc_t"}), False),
    "all categories of SELinux": (of_pod(seLinuxOptions={"level": "s0:c0.c1023"}), False),
    "more than two categories of SELinux": (of_pod(seLinuxOptions={"level": "s0:c1,c2,c3"}), False),
    "a higher level of SELinux": (of_pod(seLinuxOptions={"level": "s1:c1,c2"}), False),
    "user": (security(runAsUser=1), True),
    "privileged": (security(privileged=True), False),
    "container may be root": (security(runAsNonRoot=False), False),
    "container unconfined": (security(seccompProfile={"type": "Unconfined"}), False),
    "group of root": (security(runAsGroup=0), False),
    "group of root in the pod": (of_pod(runAsGroup=0), False),
    "supplemental group of root": (of_pod(supplementalGroups=[4000, 0]), False),
    "no SecurityContext": (no("securityContext"), False),
    "annotation for another seccomp profile": (
        annotated("seccomp.security.alpha.kubernetes.io/pod", "unconfined"),
        False,
    ),
    "annotation for the container's seccomp profile": (
        annotated("container.seccomp.security.alpha.kubernetes.io/pull", "unconfined"),
        False,
    ),
    "annotation for AppArmor": (annotated("container.apparmor.security.beta.kubernetes.io/pull", "unconfined"), False),
    "annotation for another SCC": (annotated("openshift.io/required-scc", "privileged"), False),
    "users of the host": (in_spec(hostUsers=True), False),
    "root in the pod": (of_pod(runAsUser=0), False),
    "may be root": (of_pod(runAsNonRoot=False), False),
    "unconfined": (of_pod(seccompProfile={"type": "Unconfined"}), False),
    "kernel parameter": (of_pod(sysctls=[{"name": "kernel.shm_rmid_forced", "value": "1"}]), False),
    "group": (of_pod(fsGroup=0), False),
    "no node": (no("nodeName"), False),
    "restarted": (in_spec(restartPolicy="Always"), False),
    "no deadline": (no("activeDeadlineSeconds"), False),
    "a long deadline": (in_spec(activeDeadlineSeconds=3601), False),
    "most resources": (resources(cpu="1", memory="1Gi", **{"ephemeral-storage": "1Gi"}), True),
    "more memory": (resources(memory="1025Mi"), False),
    "more cpu": (resources(cpu="1001m"), False),
    "more ephemeral storage": (resources(**{"ephemeral-storage": "2Gi"}), False),
    "no limit of cpu": (lambda found: found["spec"]["containers"][0]["resources"]["limits"].pop("cpu"), False),
    "no limit of memory": (lambda found: found["spec"]["containers"][0]["resources"]["limits"].pop("memory"), False),
    "a limit of cpu that is none": (resources(cpu="0"), False),
    "a limit of memory that is none": (resources(memory="0"), False),
    "requests that a policy lowers": (
        lambda found: found["spec"]["containers"][0]["resources"]["requests"].update(cpu="1m"),
        True,
    ),
    "no limits": (lambda found: found["spec"]["containers"][0]["resources"].pop("limits"), False),
    "no resources": (lambda found: found["spec"]["containers"][0].pop("resources"), False),
    "a device": (resources(**{"example.com/gpu": "1"}), False),
    "ephemeral storage of a LimitRange": (resources(**{"ephemeral-storage": "1Gi"}), True),
    "critical": (in_spec(priorityClassName="system-node-critical"), False),
    "host names": (in_spec(hostAliases=[{"ip": "10.0.0.1", "hostnames": ["a"]}]), False),
    "shared processes": (in_spec(shareProcessNamespace=True), False),
    "subdomain": (in_spec(hostname="web-0", subdomain="web"), False),
}
"""What is made of a new pull pod -> whether the manager may create it."""
INVALID_PULLS = ("privileged", "annotation for another seccomp profile")
"""Those of PULLS that a real API server refuses before it asks policies."""
SETS: dict[str, tuple[Change, Change, bool]] = {
    "nothing": (unchanged, unchanged, True),
    "image": (unchanged, APP, True),
    "image of a sidecar": (unchanged, MESH, True),
    "image of an init container": (unchanged, SETUP, False),
    "image without a Deployment": (lambda found: found["metadata"].pop("ownerReferences"), APP, False),
    "image of a Rollout": (in_meta(ownerReferences=controller("Rollout", "argoproj.io/v1alpha1")), APP, False),
    "environment": (unchanged, both(APP, app(env=[{"name": "A", "valueFrom": SECRET}])), False),
    "command": (unchanged, app(command=["sh"]), False),
    "another container": (unchanged, one_more("containers"), False),
    "another init container": (unchanged, one_more("initContainers"), False),
    "order": (unchanged, lambda found: found["spec"]["template"]["spec"]["initContainers"].reverse(), False),
    "account": (unchanged, lambda found: found["spec"]["template"]["spec"].update(serviceAccountName="admin"), False),
    "network of the host": (unchanged, lambda found: found["spec"]["template"]["spec"].update(hostNetwork=True), False),
    "label of pods": (
        unchanged,
        lambda found: found["spec"]["template"]["metadata"]["labels"].update(team="red"),
        False,
    ),
    "annotation of pods": (
        unchanged,
        lambda found: found["spec"]["template"]["metadata"].update(annotations={"a": "b"}),
        False,
    ),
    "replicas": (unchanged, in_spec(replicas=5), False),
    "minReadySeconds": (unchanged, in_spec(minReadySeconds=5), False),
    "label": (unchanged, in_meta(labels={"a": "b"}), False),
    "annotation": (unchanged, annotated("deployment.kubernetes.io/revision", "9"), False),
    "finalizer": (unchanged, finalized, False),
    "owner": (unchanged, owned, False),
}
"""What a ReplicaSet was -> what is made of it -> whether the manager may."""
DELETED_SETS: dict[str, tuple[Change, bool]] = {
    "without pods": (unchanged, True),
    "that wants pods": (in_spec(replicas=1), False),
    "with pods": (lambda found: found["status"].update(replicas=1), False),
    "of nobody": (lambda found: found["metadata"].pop("ownerReferences"), False),
}


def changed(make: Callable[[], Json], *changes: Change) -> Json:
    found = make()
    for change in changes:
        change(found)
    return found


def rules_with_roles(world: str = "default") -> Rules:
    rules = rules_of(world)
    rules.objects = [*rules.objects, KRUISE_ADMIN]
    return rules


def check(write: Write, *, allowed: bool, world: str = "default") -> None:
    """Assert whether those may write this who have the role: the manager, and a user."""
    rules = rules_with_roles(world)
    for who in (replace(manager(world), bound=("crrd-read-config", ROLE)), Who("ann", bound=(ROLE,))):
        assert bool(rules.refused(who, write)) is not allowed, (who, rules.refused(who, write))


def updated(what: str) -> Write:
    before, after, _ = UPDATES[what]
    return Write(changed(pod, before), changed(pod, before, after), group="", resource="pods")


def created(what: str) -> Write:
    return Write(None, changed(pull, PULLS[what][0]), group="", resource="pods")


def deleted(old: Json, kind: str = "pods") -> Write:
    return Write(old, old, group="" if kind == "pods" else "apps", resource=kind, deletes=True)


def set_updated(what: str) -> Write:
    before, after, _ = SETS[what]
    old = changed(replica_set, before)
    return Write(old, changed(replica_set, before, after), group="apps", resource="replicasets")


@pytest.mark.parametrize("what", UPDATES)
def test_images_and_the_revision_of_pods_may_be_changed(what: str) -> None:
    check(updated(what), allowed=UPDATES[what][2])


@pytest.mark.parametrize("what", [what for what, row in UPDATES.items() if row[2] and what != "nothing"])
def test_no_image_may_be_changed_where_the_role_is_not_bound(what: str) -> None:
    assert rules_with_roles().refused(replace(manager("default"), bound=("crrd-read-config",)), updated(what))


@pytest.mark.parametrize("what", PULLS)
def test_only_pull_pods_may_be_created(what: str) -> None:
    check(created(what), allowed=PULLS[what][1])


@pytest.mark.parametrize("marked", [True, False])
def test_only_pull_pods_may_be_deleted(*, marked: bool) -> None:
    check(deleted(pull() if marked else pod()), allowed=marked)


@pytest.mark.parametrize("what", SETS)
def test_images_of_replicasets_may_be_changed(what: str) -> None:
    check(set_updated(what), allowed=SETS[what][2])


@pytest.mark.parametrize("what", DELETED_SETS)
def test_replicasets_without_pods_may_be_deleted(what: str) -> None:
    change, allowed = DELETED_SETS[what]
    check(deleted(changed(replica_set, change), "replicasets"), allowed=allowed)


@pytest.mark.parametrize("who", FREE, ids=lambda who: str(who.name))
def test_nobody_else_is_limited(who: Who) -> None:
    rules, sets = rules_with_roles(), changed(replica_set, in_spec(replicas=1))
    for write in (updated("environment"), created("root"), set_updated("command"), deleted(pod())):
        assert rules.refused(who, write) == "", write
    assert rules.refused(who, deleted(sets, "replicasets")) == ""


def test_a_manager_in_another_namespace_is_limited_too() -> None:
    for write in (updated("environment"), created("root"), set_updated("command"), deleted(pod())):
        check(write, allowed=False, world="manager elsewhere")


@pytest.mark.parametrize("name", ["crrd-pull-pods", "crrd-update-images", "crrd-refresh-files"])
def test_no_authorizer_is_asked_about_those_who_write_most_pods(name: str) -> None:
    """It may be a slow webhook. Kubernetes evaluates all conditions, also after one that is false."""
    conditions = one(rendered("default"), "ValidatingAdmissionPolicy", name)["spec"]["matchConditions"]
    for each in conditions:
        for who in UNASKED:
            assert not evaluate(each["expression"], {"request": {"userInfo": {"username": who}}}), who
        for who in ASKED:
            with pytest.raises(AssertionError):
                evaluate(each["expression"], {"request": {"userInfo": {"username": who}}})


def test_the_role_has_what_a_policy_checks_before_a_run() -> None:
    role = one(rendered("base"), "ClusterRole", ROLE)
    has = {f"{verb} {kind}" for rule in role["rules"] for verb in rule["verbs"]
           for kind in (".".join(filter(None, (each, *rule["apiGroups"]))) for each in rule["resources"])}  # fmt: skip
    wanted = {f"{verb} {kind}" for verbs, kind in map(str.split, Rights.UPDATE.rights) for verb in verbs.split(",")}
    assert wanted <= has
