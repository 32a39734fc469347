"""A valid request, its valid pod, and all ways in which a request is denied, with the message."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from crrd.core.admission.rules import Denied, read_new, review_create
from crrd.core.api.pod import parse_pod
from crrd.core.api.types import ANNOTATION_RELOAD
from crrd.lib.jsonfields import shown
from tests.support.spelled import names_on_pod

JsonObject = dict[str, Any]
Change = Callable[[JsonObject], object]

USER = "alice@example.org"
POD_UID = "crr.apps.kruise.io/pod-uid"
POD_NAME = "crr.apps.kruise.io/pod-name"
NODE_NAME = "crr.apps.kruise.io/node-name"
ACTIVE = "crr.apps.kruise.io/active"
REQUESTED_BY = "crr.apps.kruise.io/requested-by"
UNREADY = "crr.apps.kruise.io/unready-acquired"
PINNED = "crr.apps.kruise.io/pinned-containers"
_BASE_REQUEST: JsonObject = {
    "apiVersion": "apps.kruise.io/v1alpha1",
    "kind": "ContainerRecreateRequest",
    "metadata": {"namespace": "shop", "name": "restart-app", "labels": {"team": "a"}},
    "spec": {"podName": "web-0", "containers": [{"name": "app"}, {"name": "proxy"}], "somethingNew": [1]},
}
_BASE_POD: JsonObject = {
    "metadata": {"namespace": "shop", "name": "web-0", "uid": "pod-uid-1"},
    "spec": {
        "nodeName": "node-1",
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 45,
        "initContainers": [{"name": "setup"}, {"name": "proxy", "restartPolicy": "Always"}],
        "containers": [
            {
                "name": "app",
                "lifecycle": {"preStop": {"httpGet": {"path": "/bye", "port": "web", "scheme": "HTTP"}}},
                "ports": [{"name": "web", "containerPort": 8080, "protocol": "TCP"}],
            },
            {"name": "log", "lifecycle": {"preStop": {"sleep": {"seconds": 5}}}, "ports": [{"containerPort": 9}]},
            {"name": "once", "restartPolicy": "Never"},
        ],
        "ephemeralContainers": [{"name": "debug"}],
    },
    "status": {
        "phase": "Running",
        "containerStatuses": [
            {"name": "app", "containerID": "containerd://a1", "restartCount": 2},
            {"name": "log", "containerID": "containerd://l1", "restartCount": 0},
            {"name": "once", "containerID": "containerd://o1", "restartCount": 0},
        ],
        "initContainerStatuses": [
            {"name": "setup", "containerID": "containerd://s1", "restartCount": 0},
            {"name": "proxy", "containerID": "containerd://p1", "restartCount": 1},
        ],
    },
}


def new_request(**spec: Any) -> JsonObject:
    request = copy.deepcopy(_BASE_REQUEST)
    request["spec"].update(spec)
    return request


def new_pod(*changes: Change) -> JsonObject:
    pod = copy.deepcopy(_BASE_POD)
    for change in changes:
        change(pod)
    return pod


@dataclass(frozen=True, slots=True)
class Refusal:
    """A change to the valid request or pod, and the whole message of its denial."""

    name: str
    sentence: str
    request: Change = lambda _: None
    pod: Change | None = lambda _: None  # None if there is no pod

    def objects(self) -> tuple[JsonObject, JsonObject | None]:
        request, pod = new_request(), new_pod()
        self.request(request)
        if self.pod is None:
            return request, None
        self.pod(pod)
        return request, pod


def spec(**fields: Any) -> Change:
    return lambda obj: obj["spec"].update(fields)


def strategy(**fields: Any) -> Change:
    return spec(strategy=fields)


def containers(*entries: Any) -> Change:
    return spec(containers=list(entries))


def meta(**fields: Any) -> Change:
    return lambda obj: obj["metadata"].update(fields)


def status(**fields: Any) -> Change:
    return lambda obj: obj["status"].update(fields)


SPELLED = f"docker.io/library/app:1@sha256:{'0123456789abcdef' * 4}"


def spelled(pod: JsonObject) -> None:
    """Give the container another name of its image, as a restart by a patch does."""
    pod["spec"]["containers"][0].update(image=SPELLED)
    pod["metadata"]["annotations"] = names_on_pod("app", "app:1", SPELLED)
    pod["status"]["containerStatuses"][0].update(imageID=SPELLED.replace(":1@", "@"))


HUP = '{"signal": "HUP"}'


def reloads(**declarations: str) -> Change:
    """Have containers of the pod declare how they reload."""
    annotations = {f"{ANNOTATION_RELOAD}{name}": declaration for name, declaration in declarations.items()}
    return meta(annotations=annotations)


def without_id(pod: JsonObject) -> None:
    del pod["status"]["containerStatuses"][0]["containerID"]


INT64 = "9223372036854775807"
INT32 = "2147483647"
CREATE_REFUSALS = [
    Refusal("no pod name", "spec.podName must be a string that is not empty", lambda o: o["spec"].pop("podName")),
    Refusal("empty pod name", "spec.podName must be a string that is not empty", spec(podName="")),
    Refusal(
        "path for a pod name",
        "spec.podName must be a pod's name, made of a-z, 0-9, '-' and '.', not '../secrets'",
        spec(podName="../secrets"),
    ),
    Refusal("no spec", "spec.podName must be a string that is not empty", lambda o: o.pop("spec")),
    Refusal("spec is no object", "spec.podName must be a string that is not empty", lambda o: o.update(spec=[1])),
    Refusal("no containers", "spec.containers must name at least one container", containers()),
    Refusal("containers is no list", "spec.containers must be a list", spec(containers="app")),
    Refusal("container is no object", "spec.containers[0] must be an object", containers("app")),
    Refusal(
        "container without a name",
        "spec.containers[1].name must be a string that is not empty",
        containers({"name": "app"}, {}),
    ),
    Refusal(
        "repeated container",
        "spec.containers[1].name must not contain 'app' twice",
        containers({"name": "app"}, {"name": "app"}),
    ),
    Refusal(
        "unknown container",
        "spec.containers[1].name must name a container of pod 'web-0': container 'db' not found",
        containers({"name": "app"}, {"name": "db"}),
    ),
    Refusal(
        "init container",
        "spec.containers[0].name must name a container or a native sidecar: 'setup' is an init container",
        containers({"name": "setup"}),
    ),
    Refusal(
        "ephemeral container",
        "spec.containers[0].name must name a container or a native sidecar: 'debug' is an ephemeral container",
        containers({"name": "debug"}),
    ),
    Refusal(
        "preStop given",
        "spec.containers[0].preStop must be left out: admission takes it from the pod",
        containers({"name": "app", "preStop": {"exec": {"command": ["reboot"]}}}),
    ),
    Refusal(
        "ports given",
        "spec.containers[1].ports must be left out: admission takes it from the pod",
        containers({"name": "app"}, {"name": "proxy", "ports": []}),
    ),
    Refusal(
        "statusContext given",
        "spec.containers[0].statusContext must be left out: admission takes it from the pod",
        containers({"name": "app", "statusContext": {"containerID": "containerd://a1", "restartCount": 2}}),
    ),
    Refusal(
        "negative grace",
        f"spec.strategy.terminationGracePeriodSeconds must be a whole number from 0 to {INT64}, not -1",
        strategy(terminationGracePeriodSeconds=-1),
    ),
    Refusal(
        "negative unready grace",
        f"spec.strategy.unreadyGracePeriodSeconds must be a whole number from 0 to {INT64}, not -5",
        strategy(unreadyGracePeriodSeconds=-5),
    ),
    Refusal(
        "too large minStartedSeconds",
        f"spec.strategy.minStartedSeconds must be a whole number from 0 to {INT32}, not 2147483648",
        strategy(minStartedSeconds=2**31),
    ),
    Refusal(
        "deadline too short",
        f"spec.activeDeadlineSeconds must be a whole number from 3 to {INT64}, not 2",
        spec(activeDeadlineSeconds=2),
    ),
    Refusal(
        "negative TTL",
        f"spec.ttlSecondsAfterFinished must be a whole number from 0 to {INT32}, not -1",
        spec(ttlSecondsAfterFinished=-1),
    ),
    Refusal(
        "fraction of a second",
        f"spec.activeDeadlineSeconds must be a whole number from 3 to {INT64}, not 3.5",
        spec(activeDeadlineSeconds=3.5),
    ),
    Refusal(
        "unready for too long",
        "spec.strategy.unreadyGracePeriodSeconds must be at most 86400 (a day), not 86401",
        strategy(unreadyGracePeriodSeconds=86_401),
    ),
    Refusal(
        "grace too long",
        "spec.strategy.terminationGracePeriodSeconds must be at most 604800 (7 days), not 604801",
        strategy(terminationGracePeriodSeconds=604_801),
    ),
    Refusal(
        "started for too long",
        "spec.strategy.minStartedSeconds must be at most 604800 (7 days), not 604801",
        strategy(minStartedSeconds=604_801),
    ),
    Refusal(
        "deadline too late",
        "spec.activeDeadlineSeconds must be at most 604800 (7 days), not 604801",
        spec(activeDeadlineSeconds=604_801),
    ),
    Refusal(
        "TTL too long",
        "spec.ttlSecondsAfterFinished must be at most 604800 (7 days), not 604801",
        spec(ttlSecondsAfterFinished=604_801),
    ),
    Refusal("flag is no flag", "spec.strategy.forceRecreate must be true or false", strategy(forceRecreate="yes")),
    Refusal(
        "unknown failurePolicy",
        "spec.strategy.failurePolicy must be Fail or Ignore, not 'Retry'",
        strategy(failurePolicy="Retry"),
    ),
    Refusal(
        "pod not found",
        "spec.podName must name a pod in the request's namespace: pod 'web-0' not found",
        pod=None,
    ),
    Refusal(
        "pod succeeded",
        "spec.podName must name an active pod: pod 'web-0' has ended (phase Succeeded)",
        pod=status(phase="Succeeded"),
    ),
    Refusal(
        "pod failed",
        "spec.podName must name an active pod: pod 'web-0' has ended (phase Failed)",
        pod=status(phase="Failed"),
    ),
    Refusal(
        "pod being deleted",
        "spec.podName must name an active pod: pod 'web-0' is being deleted",
        pod=meta(deletionTimestamp="2026-01-02T03:04:05Z"),
    ),
    Refusal(
        "pod not scheduled",
        "spec.podName must name a scheduled pod: pod 'web-0' has not been scheduled yet",
        pod=spec(nodeName=""),
    ),
    Refusal(
        "node name that fits no label",
        f"spec.podName must name a pod on a node whose name fits a label (at most 63 characters), not on '{'n' * 60}'",
        pod=spec(nodeName="n" * 64),
    ),
    Refusal(
        "container without an ID",
        "spec.containers[0].name must name a container that has started: 'app' has no container ID yet, try later",
        pod=without_id,
    ),
    Refusal(
        "pod without any status",
        "spec.containers[0].name must name a container that has started: 'app' has no container ID yet, try later",
        pod=lambda o: o.pop("status"),
    ),
    Refusal(
        "container ID without a runtime",
        "spec.containers[0].statusContext.containerID must look like containerd://ID, not 'a1'",
        pod=lambda o: o["status"]["containerStatuses"][0].update(containerID="a1"),
    ),
    Refusal(
        "whole pod, but not all of its containers",
        "spec.containers must be left out, or name all containers of pod 'web-0': app, log, once, proxy",
        spec(wholePod=True),
    ),
    Refusal(
        "whole pod with an order",
        "spec.strategy.orderedRecreate must be left out: kubelet stops a whole pod by its own rules",
        spec(wholePod=True, containers=[], strategy={"orderedRecreate": True}),
    ),
    Refusal(
        "whole pod with a grace period",
        "spec.strategy.terminationGracePeriodSeconds must be left out: kubelet stops a whole pod by its own rules",
        spec(wholePod=True, containers=[], strategy={"terminationGracePeriodSeconds": 5}),
    ),
    Refusal(
        "whole pod with an image of a container that runs",
        "spec.wholePod must be false: 'app' is no init container, and gets its image while the pod runs",
        spec(wholePod=True, containers=[{"name": "app", "image": "app:2"}]),
    ),
    Refusal(
        "whole pod with an image of an unknown container",
        "spec.containers[0].name must name a container of pod 'web-0': container 'other' not found",
        spec(wholePod=True, containers=[{"name": "other", "image": "app:2"}]),
        lambda pod: pod["spec"].update(containers=[{"name": "app"}, {"name": "log"}]),
    ),
    Refusal(
        "whole pod with two images",
        "spec.containers must have an image for only one init container",
        spec(wholePod=True, containers=[{"name": "setup", "image": "app:2"}, {"name": "app", "image": "app:2"}]),
    ),
    Refusal(
        "whole pod with an init container without an image",
        "spec.containers must be left out, or name all containers of pod 'web-0': app, log, once, proxy",
        spec(wholePod=True, containers=[{"name": "setup"}]),
    ),
    Refusal(
        "image of an init container without the whole pod",
        "spec.containers[0].name must name a container or a native sidecar: 'setup' is an init container",
        containers({"name": "setup", "image": "app:2"}),
    ),
    Refusal(
        "whole pod with an image and force",
        "spec.strategy.forceRecreate must be left out: kubelet stops the container for its new image",
        spec(wholePod=True, containers=[{"name": "setup", "image": "app:2"}], strategy={"forceRecreate": True}),
        lambda pod: pod["spec"].update(containers=[{"name": "app"}, {"name": "log"}]),
    ),
    Refusal(
        "whole pod whose hook would fail",
        "spec.wholePod must be false: the pod cannot be restarted in place, because the httpGet preStop hook of "
        "container app has no host, and kubelet does not know the pod's IP while it restarts the pod",
        spec(wholePod=True, containers=[]),
    ),
    Refusal(
        "whole pod that would end",
        "spec.wholePod must be false: the pod cannot be restarted in place, because the restartPolicy of container app "
        "is OnFailure, and kubelet may end the pod",
        spec(wholePod=True, containers=[]),
        spec(restartPolicy="OnFailure"),
    ),
    Refusal(
        "reload that names its containers as a restart does",
        "spec.containers must be left out, because the request is for a reload: use spec.strategy.reloadContainers",
        spec(strategy={"action": "Reload"}, containers=[{"name": "log"}]),
        pod=reloads(app=HUP),
    ),
    Refusal(
        "reload that no container declares",
        "spec.strategy.action must not be Reload: no container of pod 'web-0' declares a reload (annotation "
        "reload.crrd.dev/CONTAINER of the pod)",
        spec(strategy={"action": "Reload"}, containers=[]),
    ),
    Refusal(
        "reload of a container that does not declare it",
        "spec.strategy.reloadContainers[1] must name a container that can reload: the pod does not declare how the "
        "container reloads: the pod has no annotation reload.crrd.dev/log",
        spec(strategy={"action": "Reload", "reloadContainers": ["app", "log"]}, containers=[]),
        pod=reloads(app=HUP),
    ),
    Refusal(
        "reload with a declaration that is invalid",
        "spec.strategy.reloadContainers must name a container that can reload: the pod does not declare how the "
        "container reloads: the annotation reload.crrd.dev/app is invalid: its signal must be one of HUP, USR1, USR2",
        spec(strategy={"action": "Reload"}, containers=[]),
        pod=reloads(app='{"signal": "KILL"}'),
    ),
    Refusal(
        "reload of a container that is not there",
        "spec.strategy.reloadContainers[0] must name a container of pod 'web-0': container 'db' not found",
        spec(strategy={"action": "Reload", "reloadContainers": ["db"]}, containers=[]),
    ),
    Refusal(
        "reload of an init container",
        "spec.strategy.reloadContainers[0] must name a container or a native sidecar: 'setup' is an init container",
        spec(strategy={"action": "Reload", "reloadContainers": ["setup"]}, containers=[]),
    ),
    Refusal(
        "reload of a container that has not started",
        "spec.strategy.reloadContainers must name a container that has started: 'app' has no container ID yet, "
        "try later",
        spec(strategy={"action": "Reload"}, containers=[]),
        pod=lambda o: (reloads(app=HUP)(o), o["status"]["containerStatuses"][0].pop("containerID")),
    ),
    Refusal(
        "reload of a container whose ID has no runtime",
        "spec.strategy.reloadContainers must name a container with a valid ID: the ID of 'app' must look like "
        "containerd://ID, not 'a1'",
        spec(strategy={"action": "Reload"}, containers=[]),
        pod=lambda o: (reloads(app=HUP)(o), o["status"]["containerStatuses"][0].update(containerID="a1")),
    ),
    Refusal(
        "reload of a container twice",
        "spec.strategy.reloadContainers[1] must not contain 'app' twice",
        spec(strategy={"action": "Reload", "reloadContainers": ["app", "app"]}, containers=[]),
        pod=reloads(app=HUP),
    ),
    Refusal(
        "reload with a grace period",
        "spec.strategy.terminationGracePeriodSeconds must be left out: no container is stopped for a reload",
        spec(strategy={"action": "Reload", "terminationGracePeriodSeconds": 5}, containers=[]),
        pod=reloads(app=HUP),
    ),
    Refusal(
        "reload with an image",
        "spec.strategy.action must not be Reload, because the request has an image",
        spec(strategy={"action": "Reload"}, containers=[{"name": "app", "image": "app:2"}]),
    ),
    Refusal(
        "reload of the whole pod",
        "spec.strategy.action must not be Reload, because the request is for the whole pod",
        spec(strategy={"action": "Reload"}, containers=[], wholePod=True),
    ),
    Refusal(
        "containers to reload in a request for a restart",
        "spec.strategy.reloadContainers must be left out, unless spec.strategy.action is Reload",
        spec(strategy={"reloadContainers": ["app"]}),
    ),
    Refusal(
        "unknown action",
        "spec.strategy.action must be Restart or Reload, not 'Stop'",
        spec(strategy={"action": "Stop"}),
    ),
    Refusal(
        "container that stays down",
        "spec.containers[0].name must name a container that kubelet restarts: the restartPolicy of 'once' is Never",
        containers({"name": "once"}),
    ),
    Refusal(
        "image of one container of two",
        "spec.containers must name one container, because the request has an image",
        containers({"name": "app", "image": "app:2"}, {"name": "log"}),
    ),
    Refusal(
        "image that the container has",
        "spec.containers[0].image must be another image than that of 'app'",
        containers({"name": "app", "image": "app:1"}),
        pod=lambda o: o["spec"]["containers"][0].update(image="app:1"),
    ),
    Refusal(
        "image that the container has by another name",
        f"spec.containers[0].image must be another image than that of 'app', which is named {shown(SPELLED)} there",
        containers({"name": "app", "image": "app:1"}),
        pod=spelled,
    ),
    Refusal(
        "image of a static pod",
        "spec.containers[0].image must be left out: pod 'web-0' is a static pod",
        containers({"name": "app", "image": "app:2"}),
        pod=meta(annotations={"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "uid-on-node"}),
    ),
    Refusal(
        "image of a container that may stay down",
        "spec.containers[0].image must be left out: the restartPolicy of 'app' is OnFailure, and if the image "
        "cannot be started, kubelet does not try again",
        containers({"name": "app", "image": "app:2"}),
        pod=spec(restartPolicy="OnFailure"),
    ),
    Refusal(
        "image and force",
        "spec.strategy.forceRecreate must be left out: kubelet stops the container for its new image",
        spec(containers=[{"name": "app", "image": "app:2"}], strategy={"forceRecreate": True}),
    ),
    Refusal(
        "image and a grace period",
        "spec.strategy.terminationGracePeriodSeconds must be left out: kubelet stops the container for its new image",
        spec(containers=[{"name": "app", "image": "app:2"}], strategy={"terminationGracePeriodSeconds": 44}),
    ),
    Refusal(
        "pod that stays down",
        "spec.containers[0].name must name a container that kubelet restarts: the restartPolicy of 'app' is Never",
        pod=spec(restartPolicy="Never"),
    ),
]


def reviewed(
    obj: JsonObject, pod: JsonObject | None, user: str = USER, kubelet_minor: int | None = None
) -> JsonObject | Denied:
    """Return what admission makes of a new request."""
    request = read_new(obj)
    if isinstance(request, Denied):
        return request
    return review_create(request, None if pod is None else parse_pod(pod), user, kubelet_minor)


def new_review(
    obj: JsonObject | None, operation: str = "CREATE", *, old: JsonObject | None = None, **request: Any
) -> JsonObject:
    """Return an AdmissionReview as the API server sends it, about a request unless `kind` is given."""
    kind = {"group": "apps.kruise.io", "version": "v1alpha1", "kind": "ContainerRecreateRequest"}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "review-1",
            "kind": kind,
            "resource": {"group": kind["group"], "version": kind["version"], "resource": "containerrecreaterequests"},
            "operation": operation,
            "namespace": "shop",
            "name": "restart-app",
            "userInfo": {"username": USER, "groups": ["system:authenticated"]},
            "object": obj,
            "oldObject": old,
            "dryRun": False,
            "options": {"kind": "CreateOptions"},
            **request,
        },
    }
