"""Where requests stand, from the API's objects to the sentence: a row for each place where a request can stand."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crrd.cli.explain import cause_message, note_message, render
from crrd.core.api.pod import parse_pod
from crrd.core.api.time import format_duration, rfc3339
from crrd.core.api.types import FINALIZER
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.explain.facts import (
    DAEMON_PODS,
    DaemonFacts,
    Facts,
    NodeFacts,
    is_admitted,
    others_of,
    read_daemon,
    read_ends,
    read_event,
    read_node,
    read_ready_since,
    read_times,
)
from crrd.core.explain.findings import Explanation, Topic, Verdict
from crrd.core.explain.request import explain_request
from crrd.core.rollout.change import ImageChange, TemplateMode
from crrd.core.rollout.requests import read_run_request
from crrd.core.rollout.run import LABEL_RUN, Options, Run, Target
from crrd.core.rollout.waits import read_probe_failure
from tests.support.spelled import names_on_pod

Json = dict[str, Any]

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
MANAGER = (
    "check that the manager is running: kubectl get pods -A -l "
    "app.kubernetes.io/name=crrd,app.kubernetes.io/component=manager"
)
UNANSWERED = "no node daemon answered the request"
OLD, NEW = "containerd://old0123456789abcdef", "containerd://new0123456789abcdef"


def ago(seconds: float) -> str:
    return rfc3339(NOW - timedelta(seconds=seconds))


def condition(kind: str, status: str, seconds: float = 0.0) -> Json:
    return {"type": kind, "status": status, "lastTransitionTime": ago(seconds)}


def labels(node: str = "n1") -> dict[str, str]:
    return {
        "crr.apps.kruise.io/pod-uid": "pod-1",
        "crr.apps.kruise.io/node-name": node,
        "crr.apps.kruise.io/active": "true",
    }


def request(
    name: str = "restart",
    *names: str,
    age: float = 60.0,
    phase: str = "",
    message: str = "",
    reason: str = "",
    states: Any = (),
    completed: float | None = None,
    context: bool = True,
    spec: Mapping[str, Any] | None = None,
    strategy: Mapping[str, Any] | None = None,
    **metadata: Any,
) -> Json:
    wanted = names or ("app",)
    status: Json = {"containerRecreateStates": list(states)}
    status |= {"phase": phase} if phase else {}
    status |= {"message": message} if message else {}
    status |= {"reason": reason} if reason else {}
    status |= {"completionTime": ago(completed)} if completed is not None else {}
    given = {"statusContext": {"containerID": OLD, "restartCount": 2}} if context else {}
    return {
        "metadata": {
            "namespace": "shop",
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "creationTimestamp": ago(age),
            "labels": labels(),
            **metadata,
        },
        "spec": {
            "podName": "web",
            "containers": [{"name": each, **given} for each in wanted],
            "strategy": dict(strategy or {}),
            **(spec or {}),
        },
        "status": status,
    }


def state(
    name: str = "app", phase: str = "Recreating", message: str = "", reason: str = "", *, killed: bool = False
) -> Json:
    return {"name": name, "phase": phase, "message": message, "reason": reason, "isKilled": killed}


def status(container_id: str = OLD, count: int = 2, **changes: Any) -> Json:
    base = {"name": "app", "containerID": container_id, "restartCount": count, "ready": True, "started": True}
    return {**base, "state": {"running": {"startedAt": ago(20)}}, **changes}


def waiting(reason: str, message: str = "", finished: float | None = 9.0) -> Json:
    last = {} if finished is None else {"terminated": {"finishedAt": ago(finished), "exitCode": 143}}
    return status(state={"waiting": {"reason": reason, "message": message}}, lastState=last, ready=False)


def pod(*statuses: Json, gate: bool = False, phase: str = "Running", node: str = "n1", **metadata: Any) -> Json:
    gates = [{"conditionType": "KruisePodReady"}] if gate else []
    return {
        "metadata": {"namespace": "shop", "name": "web", "uid": "pod-1", **metadata},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 45,
            "containers": [{"name": "app"}, {"name": "log"}],
            "readinessGates": gates,
        },
        "status": {"phase": phase, "containerStatuses": list(statuses or [status()])},
    }


READY = NodeFacts(since=NOW - timedelta(days=3))
AWAY = NodeFacts(ready=False, since=NOW - timedelta(seconds=200))
NO_RUNTIME = read_node(
    {
        "status": {
            "conditions": [
                {**condition("Ready", "False", 30), "reason": "KubeletNotReady", "message": "container runtime is down"}
            ]
        }
    },
)
NO_NODE = read_node(None)
DAEMON = DaemonFacts("crrd-node/crrd-node-x", "Running", ready=True)
BY_MANAGER = {"daemons": None, "manager": "crrd-system"}
BY_SOMEBODY = {"daemons": None, "unread": {DAEMON_PODS: "forbidden"}}
LOG_OF_MANAGER = "kubectl -n crrd-system logs -l app.kubernetes.io/name=crrd,app.kubernetes.io/component=manager"
LOG_OF_SOMEBODY = "see the log of the node daemon on node n1, or of the manager if there are no node daemons"
LOOK_FOR_SOMEBODY = "check the node daemon on node n1, or the manager if there are no node daemons: crrd doctor"
DEAD = {"daemons": (replace(DAEMON, ready=False),)}
KUBELET_AWAY = "node n1 is not ready: kubelet has stopped reporting its status"
BOTH_AWAY = "node n1 is not ready: kubelet and the node daemon have stopped reporting"


def stop_event(seconds: float) -> Json:
    message = "Stopping container app to recreate it"
    return {"metadata": {"creationTimestamp": ago(seconds)}, "reason": "ContainerRecreating", "message": message}


def unhealthy(message: str, seconds: float, container: str = "app", uid: str = "pod-1") -> Json:
    """Kubelet's event about a probe of a container that has failed."""
    involved = {"kind": "Pod", "uid": uid, "fieldPath": f"spec.containers{{{container}}}"}
    return {"reason": "Unhealthy", "message": message, "lastTimestamp": ago(seconds), "involvedObject": involved}


def facts(obj: Json, pod_obj: Json | None, others: tuple[Json, ...] = (), events: tuple[Json, ...] = ()) -> Facts:
    wanted = parse_request(obj)
    return Facts(
        request=wanted,
        now=NOW,
        pod=None if pod_obj is None else parse_pod(pod_obj),
        ready_since=read_ready_since(pod_obj or {}),
        ends=read_ends(pod_obj or {}),
        others=others_of(wanted, map(parse_request, (obj, *others))),
        node=READY,
        daemons=(DAEMON,),
        events=tuple(map(read_event, events)),
        times=read_times(obj),
        run=asked.run if (asked := read_run_request(obj)) is not None else None,
    )


@dataclass(frozen=True)
class Said:
    """A finding in words."""

    what: str
    since: float | None
    advice: tuple[str, ...]
    stuck: bool
    phase: str = ""
    name: str = ""


@dataclass(frozen=True)
class Told:
    """An explanation in words."""

    found: Explanation

    @property
    def cause(self) -> Said:
        cause = self.found.cause
        return Said(cause_message(self.found), cause.since, tuple(cause.advice), cause.stuck)

    @property
    def containers(self) -> list[Said]:
        return [
            Said(
                each.message,
                each.since,
                tuple(each.advice),
                each.stuck,
                each.phase,
                each.container,
            )
            for each in self.found.containers
        ]

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(note_message(note) for note in self.found.notes)

    @property
    def lines(self) -> list[str]:
        """As they are printed."""
        return render(self.found).splitlines()

    @property
    def verdict(self) -> Verdict:
        return self.found.verdict


def explain(known: Facts) -> Told:
    return Told(explain_request(known))


def told(obj: Json, pod_obj: Json | None = None, *, changes: Mapping[str, Any] | None = None, **kinds: Any) -> Told:
    given = pod() if pod_obj is None else pod_obj
    return explain(replace(facts(obj, given, **kinds), **(changes or {})))


@dataclass(frozen=True)
class Row:
    """A request and its world, and what is said of it; `advice` is what the advice begins with."""

    name: str
    obj: Json
    verdict: Verdict
    what: str
    advice: str = ""
    pod: Json | None = None
    others: tuple[Json, ...] = ()
    events: tuple[Json, ...] = ()
    changes: Mapping[str, Any] | None = None
    since: float | None = None


STUCK, MOVING, FAILED, SUCCEEDED = Verdict.STUCK, Verdict.MOVING, Verdict.FAILED, Verdict.SUCCEEDED
RECREATING: Json = {"phase": "Recreating"}
KILLED: Json = RECREATING | {"states": [state(killed=True)]}
NO_DAEMON = "the daemon on node n1 has not answered for"
PODS_THERE = (
    "kubectl get pods -A -l app.kubernetes.io/name=crrd,app.kubernetes.io/component=node -o wide "
    "--field-selector spec.nodeName=n1"
)
BACK_OFF = "back-off 40s restarting failed container=app pod=web_shop(pod-1)"
OOM = {"terminated": {"finishedAt": ago(9), "exitCode": 137, "reason": "OOMKilled"}}
NEW_RUNS = "the new container containerd://new012345678 is running (for 20s)"
CHECK_LOG = "if the container exits on its own, check its log: kubectl logs -n shop web -c app --previous"


def failed(message: str, reason: str = "", summary: str = "0 of 1 containers recreated; failed: app") -> Json:
    states = [state(phase="Failed", message=message, reason=reason)]
    return request(phase="Completed", message=summary, states=states, completed=5, spec={"activeDeadlineSeconds": 90})


def did_fail(message: str) -> str:
    return f"Completed; these containers were not recreated: app: {message}"


TOO_LATE = "recreating has exceeded the activeDeadlineSeconds"


def elsewhere(message: str, *states: Json) -> Json:
    return request(phase="Completed", message=message, states=states, completed=5)


GRACE = {"unreadyGracePeriodSeconds": 30}
MARK = "crr.apps.kruise.io/unready-acquired"


def graceful(acquired: float | None, written: float | None = None, **changes: Any) -> Json:
    annotations = {} if acquired is None else {MARK: ago(acquired)}
    fields = [] if written is None else [{"subresource": "status", "time": ago(written)}, {"time": ago(0)}]
    meta: Json = {"annotations": annotations, "managedFields": fields}
    return request(phase="Recreating", states=[state(phase="Pending")], strategy=GRACE, **meta, **changes)


def conditioned(seconds: float) -> Json:
    obj = graceful(None)
    obj["status"]["conditions"] = [condition("Other", "True"), condition("PreRecreateGrace", "True", seconds)]
    return obj


def runs(seconds: float | None, *, ready_for: float | None = None, **changes: Any) -> Json:
    """The pod with the next instance, up for so many seconds, and all of it ready for so many."""
    started = {} if seconds is None else {"startedAt": ago(seconds)}
    found = pod(status(NEW, 3, state={"running": started}, **changes))
    if ready_for is not None:
        found["status"]["conditions"] = [condition("ContainersReady", "True", ready_for)]
    return found


def written_before(seconds: float | None) -> list[Json]:
    return [] if seconds is None else [{"subresource": "status", "time": ago(seconds)}]


ROWS = [
    # nobody has answered
    Row(
        "nobody has answered, and it names no containers",
        request(phase="Completed", message=UNANSWERED, completed=5, spec={"wholePod": True, "containers": []}),
        FAILED,
        f"Completed; these containers were not recreated: all ({UNANSWERED})",
        since=5.0,
    ),
    Row("just created", request(age=2), MOVING, "just created; waiting for the daemon on node n1"),
    Row(
        "no daemon",
        request(age=45),
        STUCK,
        f"{NO_DAEMON} 45s; the manager fails the request in 15s",
        "the DaemonSet has no pod on node n1; to see why: kubectl describe daemonset -A -l ",
        changes={"daemons": ()},
        since=45,
    ),
    Row(
        "nobody knows whether there is a daemon",
        request(age=45),
        STUCK,
        "crrd has not answered for 45s; the manager fails the request in 15s",
        "check the node daemon on node n1, or the manager if there are no node daemons: crrd doctor",
        changes={"daemons": None, "node": None},
        since=45,
    ),
    Row(
        "a daemon that does not answer",
        request(age=70),
        STUCK,
        f"{NO_DAEMON} 1m10s; waiting for the manager to fail the request",
        "the daemon's pod crrd-node/crrd-node-x is Pending, not ready: kubectl -n crrd-node logs crrd-node-x",
        changes={"daemons": (read_daemon({"metadata": {"namespace": "crrd-node", "name": "crrd-node-x"}}),)},
        since=70,
    ),
    Row(
        "neither a daemon nor a manager",
        request(age=200),
        STUCK,
        f"{NO_DAEMON} 3m20s; waiting for the manager to fail the request",
        "node n1 is not ready (for 3m20s) | the daemon's pod crrd-node/crrd-node-x is Running, ready: "
        f"kubectl -n crrd-node logs crrd-node-x | {MANAGER}",
        changes={"node": AWAY},
        since=200,
    ),
    *(
        row
        for name, changes, server, look, log in (
            ("the manager alone", BY_MANAGER, "the manager", MANAGER, LOG_OF_MANAGER),
            ("it is unknown who serves", BY_SOMEBODY, "crrd", LOOK_FOR_SOMEBODY, LOG_OF_SOMEBODY),
        )
        for row in (
            Row(f"{name}: is new", request(age=2), MOVING, f"just created; waiting for {server}", changes=changes),
            Row(
                f"{name}: no answer",
                request(age=45),
                STUCK,
                f"{server} has not answered for 45s; the manager fails the request in 15s",
                look,
                changes=changes,
                since=45,
            ),
            Row(
                f"{name}: no answer for long",
                request(age=200),
                STUCK,
                f"{server} has not answered for 3m20s; waiting for the manager to fail the request",
                look,
                changes=changes,
                since=200,
            ),
            Row(
                f"{name}: begins nothing",
                request(phase="Pending", age=1800, managedFields=written_before(31)),
                STUCK,
                f"container app: {server} has not started on this container, although nothing is before it",
                look,
                changes=changes,
                since=31,
            ),
            Row(
                f"{name}: nothing follows the grace period",
                graceful(90),
                STUCK,
                "unreadyGracePeriodSeconds ended 1m ago, but no container has been stopped yet",
                look,
                pod=pod(gate=True),
                changes=changes,
                since=90,
            ),
            Row(
                f"{name}: does not see what is done",
                request(**KILLED),
                STUCK,
                "container app: the new container containerd://new012345678 is running (for 1h), and is ready; "
                f"waiting for {server} to record it",
                f"check why {server} does not see it: {log}",
                pod=runs(3600, ready_for=31),
                changes=changes,
                since=3600,
            ),
            Row(
                f"{name}: the node is away",
                request(**KILLED, managedFields=written_before(200)),
                STUCK,
                KUBELET_AWAY,
                changes={**changes, "node": AWAY},
                since=200,
            ),
            Row(
                f"{name}: has given up",
                failed("no node daemon answered the request on node n1", "NoDaemonAnswered"),
                FAILED,
                did_fail("no node daemon answered the request on node n1"),
                f"{look} | check manager and node daemons: crrd doctor",
                changes=changes,
                since=5,
            ),
        )
    ),
    Row(
        "the manager alone: kubelet does not stop it",
        request(phase="Recreating", states=[state()]),
        STUCK,
        "container app: the preStop hook is running, or the stop is being sent; grace period 45s, exceeded by 1m15s",
        "check that kubelet works: kubectl describe node n1",
        events=(stop_event(120),),
        changes=BY_MANAGER,
        since=120,
    ),
    Row(
        "it is unknown who serves, and another admission has checked the request",
        request(age=45),
        STUCK,
        f"{NO_DAEMON} 45s; the manager fails the request in 15s",
        "check that the DaemonSet's pod is running on node n1",
        changes={**BY_SOMEBODY, "admitted": False},
        since=45,
    ),
    Row(
        "no node",
        request(age=45),
        STUCK,
        f"{NO_DAEMON} 45s; the manager fails the request in 15s",
        "node n1 not found",
        changes={"node": NO_NODE},
        since=45,
    ),
    # nobody ever will
    Row(
        "no node label",
        request(labels={}),
        STUCK,
        "no node daemon handles the request, because the label crr.apps.kruise.io/node-name is missing",
        "admission sets this label",
    ),
    Row(
        "no active label",
        request(labels={"crr.apps.kruise.io/node-name": "n1"}),
        STUCK,
        'no node daemon handles the request, because the label crr.apps.kruise.io/active: "true" is missing',
        "admission sets this label",
    ),
    Row(
        "another node",
        request(),
        STUCK,
        "no node daemon handles the request, because it is for node n1 and the pod is on n2",
        "then create a new request; ",
        pod=pod(node="n2"),
    ),
    Row(
        "a request that cannot be served",
        request(phase="Pending", strategy={"failurePolicy": "Perhaps"}),
        STUCK,
        "the request is invalid: spec.strategy.failurePolicy must be Fail or Ignore, not 'Perhaps'",
        "create a new request without this error | kubectl -n shop delete crr restart",
    ),
    # the pod
    Row(
        "another pod of the name",
        request(**RECREATING),
        STUCK,
        "the pod was replaced: shop/web now has UID pod-2",
        "the manager completes the request as failed",
        pod=pod(uid="pod-2"),
    ),
    Row(
        "the pod is being deleted",
        request(**RECREATING),
        STUCK,
        "the pod is being deleted, so no more containers are stopped in it",
        pod=pod(deletionTimestamp=ago(1)),
    ),
    Row(
        "the pod has ended",
        request(**RECREATING),
        STUCK,
        "the pod has ended (phase Failed), so kubelet does not start containers in it",
        pod=pod(phase="Failed"),
    ),
    Row(
        "a pod that the daemon does not see",
        request(phase="Pending", message="waiting for pod shop/web to appear on node n1", reason="WaitingForPod"),
        STUCK,
        "the node daemon is waiting for pod shop/web to appear on node n1",
        "check that the pod is on that node: kubectl get pod -n shop web -o wide | "
        "check that the daemon may list pods: kubectl -n crrd-node logs crrd-node-x",
    ),
    Row(
        "a runtime that does not answer",
        request(
            phase="Pending",
            message="waiting for the container runtime: connection refused",
            reason="RuntimeUnavailable",
        ),
        STUCK,
        "the node daemon is waiting for the container runtime: connection refused",
        "check the container runtime on node n1 | read the node daemon's log: kubectl -n crrd-node logs crrd-node-x",
    ),
    Row(
        "a CRD that prunes reasons",
        request(phase="Pending", message="waiting for the container runtime: connection refused"),
        STUCK,
        "the node daemon is waiting for the container runtime: connection refused",
        "check the container runtime on node n1 | read the node daemon's log: kubectl -n crrd-node logs crrd-node-x",
    ),
    # others
    Row(
        "behind another",
        request(phase="Pending", age=10),
        MOVING,
        "waiting for request shop/first of the same pod",
        "to see what that request waits for: crrd explain shop/first | "
        "to let this request continue, delete that one: kubectl -n shop delete crr first",
        others=(request("first", **RECREATING),),
        since=10,
    ),
    Row(
        "behind two",
        request(phase="Pending", age=10),
        MOVING,
        "waiting for request shop/first and 1 more requests of the same pod",
        others=(
            request("second", age=12, phase="Pending"),
            request("first", age=5, **RECREATING),
            request("ended", phase="Completed", completed=1),
            request("elsewhere", spec={"podName": "db"}),
            request("of-another-node", age=90, labels=labels(node="n9"), **RECREATING),
            request("later", age=3, phase="Pending"),
        ),
        since=10,
    ),
    Row(
        "begun, though an older one is Recreating",
        request(**KILLED),
        MOVING,
        "container app: stop sent; the container is still running; grace period 45s",
        others=(request("first", age=500, **RECREATING),),
    ),
    Row(
        "begun by its pins, though an older one is Recreating",
        request(
            phase="Recreating",
            annotations={
                "crr.apps.kruise.io/pinned-containers": (
                    f'{{"app": {{"containerID": "{OLD}", "restartCount": 2, "stopSentAt": "{ago(9)}"}}}}'
                )
            },
        ),
        MOVING,
        "container app: stop sent; the container is still running; grace period 45s",
        others=(request("first", age=500, **RECREATING),),
        since=9,
    ),
    *(
        Row(
            f"the node is away: {name}",
            request(**KILLED, managedFields=written_before(written)),
            STUCK,
            what,
            "kubectl describe node n1",
            changes=changes,
            since=since,
        )
        for name, written, changes, what, since in (
            ("nothing says that the daemon is", None, {"node": AWAY}, KUBELET_AWAY, 200),
            ("the daemon has written since", 199, {"node": AWAY, **DEAD}, KUBELET_AWAY, 200),
            ("the daemon has not written since", 200, {"node": AWAY}, BOTH_AWAY, 200),
            ("its daemon too", None, {"node": AWAY, **DEAD}, BOTH_AWAY, 200),
            ("nobody knows since when", 9, {"node": read_node({}), **DEAD}, BOTH_AWAY, None),
            (
                "kubelet says why",
                200,
                {"node": NO_RUNTIME},
                "node n1 is not ready: KubeletNotReady: container runtime is down",
                30,
            ),
            (
                "kubelet says no more",
                200,
                {"node": read_node({"status": {"conditions": [condition("Ready", "False", 30)]}})},
                "node n1 is not ready: kubelet gives no reason",
                30,
            ),
        )
    ),
    Row(
        "the node is gone",
        request(**KILLED),
        STUCK,
        "node n1 not found, so no node daemon handles the request",
        changes={"node": NO_NODE},
    ),
    Row(
        "the node is gone, whatever its daemon has said",
        request(phase="Pending", message="waiting for the container runtime: gone", reason="RuntimeUnavailable"),
        STUCK,
        "node n1 not found, so no node daemon handles the request",
        changes={"node": NO_NODE},
    ),
    # the daemon has gone
    *(
        Row(
            f"the daemon has gone: {name}",
            request(**stands, age=1800),
            STUCK,
            "no node daemon is ready on node n1, so the request does not continue",
            "the DaemonSet has no pod on node n1; to see why: kubectl describe daemonset -A -l ",
            pod=shown,
            changes={"daemons": ()},
        )
        for name, stands, shown in (
            ("before its turn", {"phase": "Pending"}, None),
            ("during the hook", {"phase": "Recreating", "states": [state()]}, None),
            ("during the stop", KILLED, None),
            ("kubelet is at work", KILLED, pod(waiting("CrashLoopBackOff", BACK_OFF))),
            ("all is done", KILLED, pod(status(NEW, 3))),
        )
    ),
    Row(
        "the daemon is not ready",
        request(**KILLED, managedFields=written_before(31)),
        STUCK,
        "no node daemon is ready on node n1, so the request does not continue",
        "the daemon's pod crrd-node/crrd-node-x is Running, not ready: kubectl -n crrd-node logs crrd-node-x",
        changes=DEAD,
    ),
    Row(
        "the daemon is not ready, and was at work just now",
        request(**KILLED, managedFields=written_before(30)),
        MOVING,
        "container app: stop sent; the container is still running; grace period 45s",
        changes=DEAD,
    ),
    Row(
        "a daemon that has the turn to give and gives none",
        request(phase="Pending", age=1800, managedFields=written_before(31)),
        STUCK,
        "container app: the daemon on node n1 has not started on this container, although nothing is before it",
        "the daemon's pod crrd-node/crrd-node-x is Running, ready",
        since=31,
    ),
    Row(
        "a daemon that does not see what is done",
        request(**KILLED),
        STUCK,
        "container app: the new container containerd://new012345678 is running (for 1h), and is ready; "
        "waiting for the daemon on node n1 to record it",
        "check why the daemon on node n1 does not see it: kubectl -n crrd-node logs crrd-node-x",
        pod=runs(3600, ready_for=31),
        since=3600,
    ),
    # unready grace
    Row(
        "waiting for the manager",
        graceful(None),
        MOVING,
        "waiting for the manager to make the pod unready",
        MANAGER,
        pod=pod(gate=True),
    ),
    Row(
        "waiting for the manager for long",
        graceful(None, written=31),
        STUCK,
        "waiting for the manager to make the pod unready",
        MANAGER,
        pod=pod(gate=True),
        since=31,
    ),
    Row(
        "in the grace period",
        graceful(12),
        MOVING,
        "the pod has been unready for 12s; containers are stopped in at most 18s",
        pod=pod(gate=True),
        since=12,
    ),
    Row(
        "in the grace period of a newer manager",
        conditioned(10),
        MOVING,
        "the pod has been unready for 10s; containers are stopped in at most 20s",
        pod=pod(gate=True),
        since=10,
    ),
    Row(
        "the grace period is just over",
        graceful(31),
        MOVING,
        "container app: not started yet",
        pod=pod(gate=True),
    ),
    Row(
        "nothing follows the grace period",
        graceful(90),
        STUCK,
        "unreadyGracePeriodSeconds ended 1m ago, but no container has been stopped yet",
        "the daemon's pod crrd-node/crrd-node-x is Running, ready",
        pod=pod(gate=True),
        since=90,
    ),
    Row(
        "in a grace period of unknown age",
        graceful(12),
        MOVING,
        "the pod is unready; waiting 30s before stopping containers",
        pod=pod(gate=True),
        changes={"times": read_times({})},
    ),
    # stopping
    Row(
        "the hook runs",
        request(phase="Recreating", states=[state()]),
        MOVING,
        "container app: the preStop hook is running, or the stop is being sent; grace period 45s",
        events=(stop_event(90), stop_event(4), {"reason": "Other"}),
        since=4,
    ),
    Row(
        "the hook has just begun",
        request(phase="Recreating", states=[state(phase="Pending")], strategy={"terminationGracePeriodSeconds": 7}),
        MOVING,
        "container app: the preStop hook is running, or the stop is being sent; grace period 7s",
        events=(stop_event(1),),
        since=1,
    ),
    Row(
        "the stop was sent",
        request(**KILLED),
        MOVING,
        "container app: stop sent; the container is still running; grace period 30s",
        pod=pod() | {"spec": {"nodeName": "n1", "containers": [{"name": "app"}]}},
    ),
    Row(
        "the stop does not end",
        request(**KILLED),
        STUCK,
        "container app: stop sent; the container is still running; grace period 45s, exceeded by 1m15s",
        "check why the container runtime does not stop the container: see the log of the node daemon on node n1",
        events=(stop_event(120),),
        changes={"daemons": None},
        since=120,
    ),
    Row(
        "the stop fails",
        request(
            phase="Recreating",
            states=[
                state(
                    message="StopContainer failed 3 times, retrying: no such socket",
                    reason="StopRetried",
                    killed=True,
                )
            ],
        ),
        STUCK,
        "container app: StopContainer failed 3 times, retrying: no such socket",
        "check the container runtime on node n1 | read the node daemon's log: kubectl -n crrd-node logs crrd-node-x",
    ),
    Row(
        "kubelet does not answer",
        request(
            phase="Recreating",
            states=[
                state(
                    phase="Pending",
                    message="kubelet on this node does not answer since 10s: nothing is stopped",
                    reason="KubeletNotAnswering",
                )
            ],
        ),
        STUCK,
        "container app: kubelet on this node does not answer since 10s: nothing is stopped",
        "check kubelet on node n1 | if its healthz port is not 10248, set --kubelet-healthz-port of the node daemon",
    ),
    *(
        Row(
            f"held up, {'and told by the message alone' if not reason else 'and told'}: {message[:20]}",
            request(phase="Recreating", states=[state(phase=phase, message=message, reason=reason, killed=killed)]),
            verdict,
            f"container app: {message}",
            advice,
            events=(stop_event(4),),
            since=4,
        )
        for told_as, phase, message, killed, verdict, advice in (
            (
                "StopRetried",
                "Recreating",
                "StopContainer failed 3 times, retrying: no such socket",
                True,
                STUCK,
                "check the container runtime on node n1",
            ),
            (
                "KubeletNotAnswering",
                "Pending",
                (
"kubelet on this node has not answered /healthz for 600s; not stopping the "
"container, because kubelet could not start it again"
),
                False,
                STUCK,
                "check kubelet on node n1",
            ),
            (
                "NotPinned",
                "Pending",
                "cannot record the target container IDs in the request's annotations: forbidden",
                False,
                STUCK,
                "check what rejects the write: a policy",
            ),
            (
                "OtherRequestAtWork",
                "Recreating",
                "an earlier request that has ended is still working on this container (stop)",
                True,
                MOVING,
                "",
            ),
        )
        for reason in ("", told_as)
    ),
    Row(
        "a stop of which another program tells something",
        request(phase="Recreating", states=[state(message="stopping it by other means", killed=True)]),
        MOVING,
        "container app: stopping it by other means; grace period 45s",
    ),
    Row(
        "a hook that has failed before the stop",
        request(
            phase="Recreating",
            states=[state(message="preStop hook failed: exit code 1", reason="PreStopHookFailed", killed=True)],
        ),
        MOVING,
        "container app: stop sent; the container is still running; grace period 45s",
    ),
    Row(
        "its turn comes later, and says why",
        request(phase="Recreating", states=[state(phase="Pending", message="the container is created")]),
        MOVING,
        "container app: the container is created",
    ),
    # kubelet
    Row(
        "CrashLoopBackOff",
        request(**KILLED),
        MOVING,
        "container app: waiting for kubelet: CrashLoopBackOff, back-off 40s restarting failed container; "
        "next try in about 31s",
        "kubelet restarts the container when its back-off ends | if the container exits on its own, check its log: "
        "kubectl logs -n shop web -c app --previous",
        pod=pod(waiting("CrashLoopBackOff", BACK_OFF)),
        since=9,
    ),
    Row(
        "CrashLoopBackOff that is over",
        request(**KILLED),
        MOVING,
        "container app: waiting for kubelet: CrashLoopBackOff, back-off 40s restarting failed container; "
        "next try at any moment",
        pod=pod(waiting("CrashLoopBackOff", BACK_OFF, 41)),
        since=41,
    ),
    Row(
        "CrashLoopBackOff from nobody knows when",
        request(**KILLED),
        MOVING,
        "container app: waiting for kubelet: CrashLoopBackOff, back-off 1m20s restarting failed container",
        pod=pod(waiting("CrashLoopBackOff", BACK_OFF.replace("40s", "1m20s"), None)),
    ),
    *(
        Row(
            f"CrashLoopBackOff of {words}",
            request(**KILLED),
            MOVING,
            f"container app: waiting for kubelet: CrashLoopBackOff, back-off {words} restarting failed container; "
            f"next try {when}",
            pod=pod(waiting("CrashLoopBackOff", BACK_OFF.replace("40s", words), since)),
            since=since,
        )
        for words, since, when in (
            ("1h0m0s", 3590, "in about 10s"),
            ("2m0s", 90, "in about 30s"),
            ("12s500ms", 8, "in about 4s"),
            (f"1m{'9' * 400}s", 1, "in about 11574d1h"),
        )
    ),
    *(
        Row(
            f"a container that keeps ending: {name}",
            request(**KILLED),
            verdict,
            f"container app: {what}",
            advice,
            pod=pod(status(NEW, count, **{"lastState": OOM, "ready": False, **shown})),
            since=since,
        )
        for name, count, shown, since, verdict, what, advice in (
            (
                "in its back-off",
                11,
                {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": BACK_OFF}}},
                9,
                STUCK,
                ("waiting for kubelet: CrashLoopBackOff, back-off 40s restarting failed container; next try in about "
                "31s; restarted 8 times more than requested, last: OOMKilled (137)"),
                f"{CHECK_LOG} | kubelet restarts the container when its back-off ends",
            ),
            (
                "runs for the moment",
                11,
                {},
                20,
                STUCK,
                (f"{NEW_RUNS}, but is not ready: its readiness probe has not succeeded yet; "
                "restarted 8 times more than requested, last: OOMKilled (137)"),
                f"{CHECK_LOG} | check the result of its readiness probe",
            ),
            (
                "has just ended",
                11,
                {"state": OOM, "lastState": {}},
                9,
                STUCK,
                ("the container has stopped with exit code 137; waiting for kubelet to restart it; "
                "restarted 8 times more than requested, last: OOMKilled (137)"),
                CHECK_LOG,
            ),
            (
                "kubelet says no more than the code",
                6,
                {"lastState": {"terminated": {"exitCode": 0}}},
                20,
                STUCK,
                (f"{NEW_RUNS}, but is not ready: its readiness probe has not succeeded yet; "
                "restarted 3 times more than requested, last: exit code 0"),
                CHECK_LOG,
            ),
            (
                "kubelet says nothing",
                6,
                {"lastState": {}},
                20,
                STUCK,
                (f"{NEW_RUNS}, but is not ready: its readiness probe has not succeeded yet; "
                "restarted 3 times more than requested"),
                CHECK_LOG,
            ),
            (
                "not often yet",
                5,
                {},
                20,
                MOVING,
                f"{NEW_RUNS}, but is not ready: its readiness probe has not succeeded yet",
                "check the result of its readiness probe",
            ),
            (
                "is ready now",
                11,
                {"ready": True},
                20,
                MOVING,
                f"{NEW_RUNS}, and is ready; waiting for the daemon on node n1 to record it",
                "",
            ),
        )
    ),
    Row(
        "no image",
        request(**KILLED),
        STUCK,
        "container app: waiting for kubelet: the image cannot be pulled (ErrImagePull: not found)",
        "check the image name, the registry and the pod's imagePullSecrets: kubectl describe pod -n shop web",
        pod=pod(waiting("ErrImagePull", "not found")),
        since=9,
    ),
    Row(
        "no configuration",
        request(**KILLED),
        STUCK,
        "container app: waiting for kubelet: the container cannot be created "
        '(CreateContainerConfigError: configmap "x" not found)',
        "check what is missing (a ConfigMap, a Secret, a volume): kubectl describe pod -n shop web",
        pod=pod(waiting("CreateContainerConfigError", 'configmap "x" not found')),
        since=9,
    ),
    Row(
        "something else",
        request(**KILLED),
        MOVING,
        "container app: waiting for kubelet: Odd",
        "check the pod: kubectl describe pod -n shop web",
        pod=pod(waiting("Odd")),
        since=9,
    ),
    Row(
        "just stopped",
        request(**KILLED),
        MOVING,
        "container app: the container has stopped with exit code 143; waiting for kubelet to restart it",
        pod=pod(status(state={"terminated": {"finishedAt": ago(3), "exitCode": 143}}, ready=False)),
        since=3,
    ),
    Row(
        "being created",
        request(**KILLED),
        MOVING,
        "container app: the container has stopped; waiting for kubelet to restart it",
        pod=pod(waiting("ContainerCreating", finished=None)),
    ),
    Row(
        "not started for a while",
        request(
            phase="Recreating",
            states=[
                state(message=(
"kubelet has not restarted the container for "
"10s"
), reason="WaitingForKubelet", killed=True)
            ],
        ),
        MOVING,
        "container app: the container has stopped; kubelet has not restarted the container for 10s",
        pod=pod(waiting("ContainerCreating", finished=None)),
    ),
    Row(
        "kubelet says neither that it has stopped nor starts it",
        request(
            phase="Recreating",
            strategy={"terminationGracePeriodSeconds": 2},
            states=[state(message=(
"kubelet has not restarted the container for "
"10s"
), reason="WaitingForKubelet", killed=True)],
            managedFields=written_before(9),
        ),
        STUCK,
        "container app: kubelet has not restarted the container for 10s; the pod's status still "
"shows the old instance 21s after "
        "the stop, because kubelet has not reported that it has ended",
        "check kubelet on node n1 | if its healthz port is not 10248, set --kubelet-healthz-port of the node daemon",
        events=(stop_event(21),),
        since=21,
    ),
    Row(
        "not ready",
        request(**KILLED),
        MOVING,
        "container app: the new container containerd://new012345678 is running (for 20s), but is not ready: "
        "its readiness probe has not succeeded yet",
        "check the result of its readiness probe: kubectl describe pod -n shop web | "
        "check the container's log: kubectl logs -n shop web -c app",
        pod=pod(status(NEW, 3, ready=False)),
        since=20,
    ),
    Row(
        "not started for long",
        request(**KILLED),
        STUCK,
        "container app: the new container containerd://new012345678 is running (for 6m40s), but is not ready: "
        "its startup probe has not succeeded yet",
        pod=pod(status(NEW, 3, ready=False, started=False, state={"running": {"startedAt": ago(400)}})),
        since=400,
    ),
    Row(
        "a readiness probe that fails",
        request(**KILLED),
        MOVING,
        "container app: the new container containerd://new012345678 is running (for 20s), but is not ready: "
        "its readiness probe has not succeeded yet; kubelet's last event, 4s ago: "
        "readiness probe failed: HTTP probe failed with statuscode: 503",
        "check the result of its readiness probe: kubectl describe pod -n shop web | "
        "check the container's log: kubectl logs -n shop web -c app",
        pod=pod(status(NEW, 3, ready=False)),
        changes={
            "probes": tuple(
                map(
                    read_probe_failure,
                    (
                        unhealthy("Readiness probe failed: connection refused", 14),
                        unhealthy("Readiness probe failed: HTTP probe failed with statuscode: 503", 4),
                        unhealthy("Startup probe failed: of another container", 3, container="log"),
                        unhealthy("Liveness probe failed: of another pod", 2, uid="pod-2"),
                        unhealthy("", 1),
                    ),
                )
            )
        },
        since=20,
    ),
    Row(
        "minStartedSeconds",
        request(**KILLED, strategy={"minStartedSeconds": 60}),
        MOVING,
        "container app: the new container containerd://new012345678 is running (for 20s), and is ready; "
        "it counts as recreated in 40s (minStartedSeconds 60)",
        pod=pod(status(NEW, 3)),
        since=20,
    ),
    Row(
        "about to succeed",
        request(**KILLED),
        MOVING,
        (
"container app: the new container new012345678 is running, and is ready; waiting for the "
"daemon on node n1 to record it"
),
        pod=pod(status(NEW.partition("//")[2], 3, state={"running": {}})),
    ),
    Row(
        "the same instance with a higher count",
        request(**KILLED),
        MOVING,
        "container app: the new container containerd://old012345678 is running (for 20s), and is ready; "
        "waiting for the daemon on node n1 to record it",
        pod=pod(status(OLD, 3)),
        since=20,
    ),
    Row(
        "nothing known of the container",
        request("restart", "nope", phase="Recreating"),
        MOVING,
        "container nope: the pod's status does not list this container",
    ),
    Row(
        "all have ended",
        request(phase="Recreating", states=[state(phase="Succeeded")]),
        MOVING,
        "all containers have finished; the request will be Completed soon",
    ),
    # going
    Row(
        "being deleted",
        request(deletionTimestamp=ago(5), **KILLED),
        MOVING,
        "the request is being deleted, so no more containers are stopped for it",
        since=5,
    ),
    Row(
        "a finalizer of somebody else's",
        request(deletionTimestamp=ago(5), finalizers=["example.org/keep"], **KILLED),
        MOVING,
        "the request is being deleted, so no more containers are stopped for it",
        "other controllers must remove their finalizers: example.org/keep",
        since=5,
    ),
    Row(
        "the pod has to be released",
        request(deletionTimestamp=ago(5), finalizers=[FINALIZER], **KILLED),
        MOVING,
        "the request is being deleted; the manager must make the pod ready again first",
        since=5,
    ),
    Row(
        "nobody releases the pod",
        request(deletionTimestamp=ago(50), finalizers=[FINALIZER], **KILLED),
        STUCK,
        "the request is being deleted; the manager must make the pod ready again first",
        MANAGER,
        since=50,
    ),
    # ended
    Row(
        "succeeded",
        request(phase="Completed", message="1 of 1 recreated", states=[state(phase="Succeeded")], completed=5),
        SUCCEEDED,
        "Completed: 1 of 1 recreated",
        since=5,
    ),
    Row(
        "succeeded without a word",
        request(phase="Completed", states=[state(phase="Succeeded")], completed=5),
        SUCCEEDED,
        "Completed: all containers were recreated",
        since=5,
    ),
    Row("no message", failed(""), FAILED, did_fail("no reason was recorded"), "create a new request", since=5),
    Row(
        "the runtime would not",
        failed("StopContainer failed 8 times in 130s, last error: no", "StopFailed"),
        FAILED,
        did_fail("StopContainer failed 8 times in 130s, last error: no"),
        "check the container runtime on node n1 | read the node daemon's log: kubectl -n crrd-node logs crrd-node-x",
        since=5,
    ),
    Row(
        "too late",
        failed("activeDeadlineSeconds (90s) has passed", "DeadlineExceeded"),
        FAILED,
        did_fail("activeDeadlineSeconds (90s) has passed"),
        "fix what the container was waiting for; if it only needs more time, set a longer spec.activeDeadlineSeconds",
        since=5,
    ),
    Row(
        "given up",
        failed("no node daemon answered the request on node n1", "NoDaemonAnswered"),
        FAILED,
        did_fail("no node daemon answered the request on node n1"),
        "the daemon's pod crrd-node/crrd-node-x is Running, ready: kubectl -n crrd-node logs crrd-node-x | "
        "check manager and node daemons: crrd doctor | create a new request",
        since=5,
    ),
    Row(
        "failed where a CRD prunes reasons",
        failed("activeDeadlineSeconds (90s) has passed"),
        FAILED,
        did_fail("activeDeadlineSeconds (90s) has passed"),
        "fix what the container was waiting for; if it only needs more time, set a longer spec.activeDeadlineSeconds",
        since=5,
    ),
    Row(
        "a reason that is another program's",
        failed("no kruise-daemon answered", "AnotherProgramsReason"),
        FAILED,
        did_fail("no kruise-daemon answered"),
        "create a new request",
        since=5,
    ),
    *(
        Row(
            f"completed by another program: {name}",
            obj,
            FAILED,
            did_fail(f"not finished: {why}"),
            "create a new request",
            events=(stop_event(300),),
            since=5,
        )
        for name, obj, why in (
            ("not begun", elsewhere(TOO_LATE, state(phase="Pending")), TOO_LATE),
            ("no states", elsewhere(TOO_LATE), TOO_LATE),
            ("stop sent", elsewhere(TOO_LATE, state(message="CrashLoopBackOff: back-off", killed=True)), TOO_LATE),
            ("without a word", elsewhere("", state()), "no reason was recorded"),
        )
    ),
    Row(
        "what failed first is what counts",
        request(
            "restart",
            "app",
            "log",
            phase="Completed",
            reason="DeadlineExceeded",
            states=[
                state(phase="Failed", message="an earlier one failed", reason="EarlierFailure"),
                state("log", "Failed", "restartPolicy is Never", "NotRestartable"),
            ],
            completed=5,
        ),
        FAILED,
        "Completed; these containers were not recreated: app: an earlier one failed; log: restartPolicy is Never",
        "delete the pod instead, if a controller creates a new one: kubectl -n shop delete pod web",
        since=5,
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_where_a_request_stands(row: Row) -> None:
    found = told(row.obj, row.pod, others=row.others, events=row.events, changes=row.changes)
    assert (found.verdict, found.cause.what, found.cause.since) == (row.verdict, row.what, row.since)
    assert " | ".join(found.cause.advice).startswith(row.advice)


LEAST: Json = {"strategy": {"minStartedSeconds": 60}}
READY_SOON = "waiting for the daemon on node n1 to record it"


def not_started(words: str, written: float | None = None, stop: float | None = None) -> Json:
    said = state(message=f"kubelet has not restarted the container {words}", reason="WaitingForKubelet", killed=True)
    pin = {"containerID": OLD, "restartCount": 2, "stopSentAt": "" if stop is None else ago(stop)}
    annotations = {"crr.apps.kruise.io/pinned-containers": json.dumps({"app": pin})}
    return request(phase="Recreating", states=[said], managedFields=written_before(written), annotations=annotations)


LIMITS: list[tuple[Json, Json, tuple[Json, ...], Verdict, str]] = [
    (request(**KILLED), pod(), (stop_event(60),), MOVING, "; grace period 45s"),
    (request(**KILLED), pod(), (stop_event(61),), STUCK, "; grace period 45s, exceeded by 16s"),
    (request(strategy={"terminationGracePeriodSeconds": 0}, **KILLED), pod(), (), MOVING, "; grace period 0s"),
    (request(**KILLED), runs(300, ready=False), (), MOVING, "has not succeeded yet"),
    (request(**KILLED), runs(301, ready=False), (), STUCK, "has not succeeded yet"),
    (request(**KILLED, **LEAST), runs(59), (), MOVING, "it counts as recreated in 1s (minStartedSeconds 60)"),
    (request(**KILLED, **LEAST), runs(60), (), MOVING, READY_SOON),
    (request(**KILLED, **LEAST), runs(90), (), MOVING, READY_SOON),
    (request(**KILLED, **LEAST), runs(90, ready_for=90), (), MOVING, READY_SOON),
    (request(**KILLED, **LEAST), runs(91, ready_for=31), (), STUCK, READY_SOON),
    (request(**KILLED, **LEAST), runs(3600, ready_for=30), (), MOVING, READY_SOON),
    (request(**KILLED, **LEAST), runs(3600), (), MOVING, READY_SOON),
    (request(phase="Pending", age=30), pod(), (), MOVING, "not started yet"),
    (request(phase="Pending", age=31), pod(), (), STUCK, "although nothing is before it"),
    (request(phase="Pending", age=31, strategy=GRACE), pod(), (), STUCK, "although nothing is before it"),
    (request(phase="Pending", age=99, managedFields=written_before(30)), pod(), (), MOVING, "not started yet"),
    (not_started("for 14s"), pod(), (), MOVING, (
"still shows the old instance, because kubelet has not reported "
"that it has ended"
)),
    (not_started("for 10s", 14), pod(), (), MOVING, "kubelet has not reported that it has ended"),
    (not_started("for 10s", 15), pod(), (), STUCK, "kubelet has not reported that it has ended"),
    (not_started("for 30s", 1, stop=59), pod(), (), MOVING, (
" 59s after the stop, because kubelet has not reported "
"that it has ended"
)),
    (not_started("for 30s", 1, stop=60), pod(), (), STUCK, (
"1m after the stop, because kubelet has not reported "
"that it has ended"
)),
    (not_started("", 1, stop=59), pod(), (stop_event(99),), MOVING, "kubelet has not reported that it has ended"),
    (request(**KILLED, **LEAST), runs(None), (), MOVING, "it counts as recreated in 1m (minStartedSeconds 60)"),
    (request(**KILLED), pod(waiting("CrashLoopBackOff", BACK_OFF, 39)), (), MOVING, "next try in about 1s"),
    (request(**KILLED), pod(waiting("CrashLoopBackOff", BACK_OFF, 40)), (), MOVING, "next try at any moment"),
    (request(context=False, phase="Recreating", states=[state()]), pod(), (), MOVING, (
"the stop is being sent; grace period "
"45s"
)),
    (request(age=4), pod(), (), MOVING, "waiting for the daemon on node n1"),
    (request(age=5), pod(), (), STUCK, "for 5s; the manager fails the request in 55s"),
    (request(age=59), pod(), (), STUCK, "the manager fails the request in 1s"),
    (request(age=60), pod(), (), STUCK, "waiting for the manager to fail the request"),
    (graceful(None, written=30), pod(gate=True), (), MOVING, "to make the pod unready"),
    (graceful(29), pod(gate=True), (), MOVING, "containers are stopped in at most 1s"),
    (graceful(30), pod(gate=True), (), MOVING, "not started yet"),
    (graceful(60), pod(gate=True), (), MOVING, "not started yet"),
    (graceful(61), pod(gate=True), (), STUCK, "ended 31s ago, but no container has been stopped yet"),
    (request(deletionTimestamp=ago(30), finalizers=[FINALIZER]), pod(), (), MOVING, "ready again first"),
    (request(deletionTimestamp=ago(31), finalizers=[FINALIZER]), pod(), (), STUCK, "ready again first"),
]  # fmt: skip


@pytest.mark.parametrize(("obj", "pod_obj", "events", "verdict", "ends"), LIMITS)
def test_at_a_limit_and_just_beyond(
    obj: Json, pod_obj: Json, events: tuple[Json, ...], verdict: Verdict, ends: str
) -> None:
    found = told(obj, pod_obj, events=events)
    assert found.verdict is verdict
    assert found.cause.what.endswith(ends)
    if ends == READY_SOON:
        assert bool(found.cause.advice) is (verdict is STUCK)


@pytest.mark.parametrize(("seconds", "shown"), [(20, True), (21, False)])
def test_what_a_probe_said_of_an_instance_before_is_not_shown(seconds: float, *, shown: bool) -> None:
    failure = read_probe_failure(unhealthy("Liveness probe failed: exit code 1", seconds))
    found = told(request(**KILLED), runs(20, ready=False), changes={"probes": (failure,)})
    assert found.cause.what.endswith("; kubelet's last event, 20s ago: liveness probe failed: exit code 1") is shown
    assert shown or found.cause.what.endswith("its readiness probe has not succeeded yet")


def test_the_daemon_is_not_late_while_another_container_is_not_ready() -> None:
    waits = runs(3600, ready_for=31)
    assert told(request(**KILLED), waits).verdict is STUCK
    waits["status"]["conditions"][0]["status"] = "False"
    assert told(request(**KILLED), waits).verdict is MOVING


def test_how_a_wait_is_printed() -> None:
    """A sentence that says for how long is not followed by the same time once more."""
    lines = told(not_started("for 10s", 9, stop=21)).lines
    assert lines[2] == (
        "container app: kubelet has not restarted the container for 10s; the pod's status still "
        "shows the old instance 21s after "
        "the stop, because kubelet has not reported that it has ended"
    )
    assert told(request(**KILLED), events=(stop_event(9),)).lines[2].endswith("; grace period 45s (9s so far)")
    assert (
        told(request(**KILLED), runs(3600))
        .lines[2]
        .endswith(" is running (for 1h), and is ready; waiting for the daemon on node n1 to record it")
    )
    assert told(request(age=45)).lines[2].endswith("for 45s; the manager fails the request in 15s")
    assert (
        told(graceful(12), pod(gate=True)).lines[2].endswith("unready for 12s; containers are stopped in at most 18s")
    )
    assert (
        told(request(**KILLED), changes={"node": AWAY})
        .lines[2]
        .endswith("has stopped reporting its status (3m20s so far)")
    )


def test_the_containers_are_listed_unless_the_one_at_work_is_all_there_is_to_say() -> None:
    states = [state(killed=True), state("log", "Pending")]
    both = pod(status(), status() | {"name": "log"})
    assert len(told(request("restart", "app", "log", phase="Recreating", states=states), both).lines) == 5
    states[1] = state("log", "Failed", "restartPolicy is Never")
    assert told(request("restart", "app", "log", phase="Recreating", states=states), both).lines[4:6] == [
        "  app  Recreating  stop sent; the container is still running; grace period 45s",
        "  log  Failed      restartPolicy is Never",
    ]


def test_programs_need_not_read_a_message() -> None:
    found = told(request(age=45), changes={"node": AWAY}).found
    assert (found.cause.topic, found.cause.since, found.cause.stuck) == (Topic.NO_ANSWER, 45.0, True)
    held = told(request(**KILLED), pod(waiting("CrashLoopBackOff", BACK_OFF))).found
    assert held.cause == held.containers[0]
    assert (held.cause.topic, held.cause.since) == (Topic.BACK_OFF, 9.0)


def test_no_advice_where_nothing_is_late() -> None:
    assert told(request(**KILLED), events=(stop_event(4),)).cause.advice == ()
    assert told(not_started("for 10s", 14)).cause.advice == ()
    assert told(request(deletionTimestamp=ago(5), **KILLED)).cause.advice == ()
    assert told(request(deletionTimestamp=ago(5), finalizers=[FINALIZER], **KILLED)).cause.advice == ()
    assert told(request(age=90)).cause.advice == told(request(age=45)).cause.advice
    assert told(request(age=91)).cause.advice[-1] == MANAGER
    assert told(request(age=91), changes=BY_MANAGER).cause.advice == (MANAGER,)


def test_a_begun_request_waits_for_no_grace() -> None:
    for started in (state(phase="Recreating"), state(phase="Pending", killed=True)):
        obj = graceful(12)
        obj["status"]["containerRecreateStates"] = [started, state("log", "Pending")]
        assert told(obj, pod(gate=True)).cause.what.startswith("container app: ")


def test_what_nobody_dated_or_a_clock_ahead_did_is_new() -> None:
    for created in ("", ago(-5)):
        assert told(request() | {"metadata": request()["metadata"] | {"creationTimestamp": created}}).found.age == 0.0


def test_the_newest_event_of_a_container_counts() -> None:
    other = stop_event(1) | {"message": "Stopping container log to recreate it"}
    undated: Json = stop_event(2) | {"metadata": {}}
    found = told(request(**KILLED), events=(stop_event(30), stop_event(8), other, undated)).cause
    assert found.since == 8


def test_the_newest_write_of_the_status_counts() -> None:
    obj = graceful(None)
    times = [{"subresource": "status", "time": ago(seconds)} for seconds in (40, 12, 25)]
    obj["metadata"]["managedFields"] = times
    assert told(obj, pod(gate=True)).cause.since == 12


def test_there_is_no_pod() -> None:
    gone = explain(facts(request(**RECREATING), None))
    assert (gone.verdict, gone.cause.what) == (STUCK, "pod shop/web not found")
    assert gone.containers[0].what == "the pod's status does not list this container"


def test_a_pod_that_may_not_be_read_is_not_gone() -> None:
    unread = {"the pod": "forbidden"}
    obj = request(phase="Recreating", states=[state(message="CrashLoopBackOff: back-off")], labels={"a": "b"})
    obj["metadata"]["labels"] = request()["metadata"]["labels"]
    found = explain(replace(facts(obj, None), pod_read=False, unread=unread, node=None))
    assert found.cause.what == "container app: CrashLoopBackOff: back-off"
    assert found.notes[1:] == ("cannot read the pod: forbidden",)
    killed = explain(replace(facts(request(**KILLED), None), pod_read=False))
    assert killed.verdict is Verdict.MOVING


def test_the_pods_node_stands_in_for_a_missing_label() -> None:
    assert told(request(labels={})).found.node == "n1"
    assert explain(facts(request(labels={}), None)).found.node == ""


def test_what_became_of_each_container() -> None:
    states = [state(phase="Succeeded"), state("log", "Failed", "preStop hook failed: exit code 1")]
    obj = request("restart", "app", "log", phase="Completed", states=states, completed=5)
    found = told(obj, pod(status(NEW, 3)))
    assert [(each.name, each.phase, each.what) for each in found.containers] == [
        (
            "app",
            "Succeeded",
            "recreated: containerd://old012345678 -> containerd://new012345678, restart count 2 -> 3",
        ),
        ("log", "Failed", "preStop hook failed: exit code 1"),
    ]
    assert [each.stuck for each in found.containers] == [False, True]
    assert found.cause.what.endswith("these containers were not recreated: log: preStop hook failed: exit code 1")


def test_a_container_that_another_program_has_not_finished_is_stuck() -> None:
    (app,) = told(elsewhere(TOO_LATE, state(phase="Pending"))).containers
    assert (app.what, app.stuck) == (f"not finished: {TOO_LATE}", True)


def test_a_container_that_was_recreated_tells_what_it_can() -> None:
    obj = request(phase="Completed", states=[state(phase="Succeeded", message="preStop hook failed: x")], completed=5)
    assert told(obj).containers[0].what == "recreated; preStop hook failed: x"
    assert explain(facts(obj, None)).containers[0].what == "recreated; preStop hook failed: x"
    forced = request(
        phase="Completed", states=[state(phase="Succeeded")], completed=5, strategy={"forceRecreate": True}
    )
    assert told(forced, pod(status(NEW, 3))).containers[0].what == "recreated"
    assert told(forced, pod(status(""))).containers[0].what == "recreated"


def test_what_a_later_pod_or_restart_has_to_do_with_it() -> None:
    obj = request(phase="Completed", states=[state(phase="Succeeded")], completed=5)
    assert told(obj, pod(status(NEW, 3), uid="pod-2")).containers[0].what == "recreated"
    assert told(obj, pod(status(NEW, 4))).containers[0].what.endswith("restart count 2 -> 4; restarted more than once")
    assert told(obj, pod(status(NEW, 5))).containers[0].what.endswith("restart count 2 -> 5; restarted more than once")


def test_the_container_that_is_being_recreated_comes_first() -> None:
    states = [state(phase="Pending"), state("log", killed=True)]
    found = told(request("restart", "app", "log", phase="Recreating", states=states))
    assert found.cause.what.startswith("container log: ")


def test_the_container_that_is_stuck_comes_first() -> None:
    states = [state(phase="Pending"), *(state(name, killed=True) for name in ("log", "web", "db"))]
    failing = [{**waiting("ErrImagePull", name), "name": name} for name in ("web", "db")]
    obj = pod(*failing, {**status(), "name": "log"})
    obj["spec"]["containers"] += [{"name": "web"}, {"name": "db"}]
    found = told(request("restart", "app", "log", "web", "db", phase="Recreating", states=states), obj)
    assert (found.verdict, found.cause.what) == (
        STUCK,
        "container web: waiting for kubelet: the image cannot be pulled (ErrImagePull: web)",
    )


DEFAULT = (
    "deadline: 59m30s left of 3630s (crrd's default, see --default-deadline-slack-seconds of its manager); "
    "containers not recreated by then fail"
)
GRACE_DEFAULT = DEFAULT.replace("59m30s left of 3630s", "1h left of 3660s")
OVER = "the request is deleted soon (a new leader counts from its start)"
STAYS = "ttlSecondsAfterFinished is not set, so the request stays until you delete it"
NOTES = [
    ("deadline", request(age=60, spec={"activeDeadlineSeconds": 300}, **KILLED),
     "deadline: 4m left of 300s; containers not recreated by then fail"),
    ("default", request("restart", "app", "log", age=3660, strategy={"minStartedSeconds": 20}, **KILLED),
     ("deadline: 40s left of 3700s (crrd's default, see --default-deadline-slack-seconds of its manager); "
     "containers not recreated by then fail")),
    ("default over", request(age=3640, **KILLED),
     ("deadline passed 10s ago (crrd's default, see --default-deadline-slack-seconds of its manager); "
     f"waiting for the manager to complete the request; {MANAGER}")),
    ("late", request(age=60, spec={"activeDeadlineSeconds": 40}, **KILLED),
     f"deadline passed 20s ago; waiting for the manager to complete the request; {MANAGER}"),
    ("on the dot", request(age=40, spec={"activeDeadlineSeconds": 40}, **KILLED),
     f"deadline passed 0s ago; waiting for the manager to complete the request; {MANAGER}"),
    ("a second left", request(age=39, spec={"activeDeadlineSeconds": 40}, **KILLED),
     "deadline: 1s left of 40s; containers not recreated by then fail"),
    ("no admission", request(context=False, **KILLED),
     (
f"{DEFAULT} | the request has no statusContext, because it did not pass admission; the daemon "
f"stops the running instances"
)),
    ("forced", request(strategy={"forceRecreate": True}, **KILLED),
     f"{DEFAULT} | forceRecreate is set, so the running instance is stopped once, even if it is newer"),
    ("no gate", request(strategy=GRACE, **KILLED),
     f"{GRACE_DEFAULT} | the pod has no readiness gate KruisePodReady, so unreadyGracePeriodSeconds is ignored"),
    ("kept", request(phase="Completed", states=[state(phase="Succeeded")], completed=5, labels={}),
     STAYS),
    ("ttl", request(phase="Completed", completed=5, labels={}, spec={"ttlSecondsAfterFinished": 3605}),
     "ttlSecondsAfterFinished: the request is deleted in 1h"),
    ("ttl over", request(phase="Completed", completed=50, labels={}, spec={"ttlSecondsAfterFinished": 40}),
     f"ttlSecondsAfterFinished ended 10s ago; {OVER}; {MANAGER}"),
    ("ttl on the dot", request(phase="Completed", completed=40, labels={}, spec={"ttlSecondsAfterFinished": 40}),
     f"ttlSecondsAfterFinished ended 0s ago; {OVER}; {MANAGER}"),
    ("ttl by another clock",
     request(phase="Completed", completed=9000, labels={}, spec={"ttlSecondsAfterFinished": 40},
             managedFields=[{"subresource": "status", "time": ago(10)}]),
     "ttlSecondsAfterFinished: the request is deleted in 30s"),
    ("ttl from nobody knows when",
     request(phase="Completed", labels={}, spec={"ttlSecondsAfterFinished": 40}), ""),
    ("not late yet", request(phase="Completed", completed=30),
     f"waiting for the manager to remove the label crr.apps.kruise.io/active | {STAYS}"),
    ("late indeed", request(phase="Completed", completed=31),
     f"waiting for the manager to remove the label crr.apps.kruise.io/active; {MANAGER} | {STAYS}"),
    ("completed nobody knows when", request(phase="Completed"),
     f"waiting for the manager to remove the label crr.apps.kruise.io/active | {STAYS}"),
    ("still active", request(phase="Completed", completed=5, spec={"ttlSecondsAfterFinished": 6}),
     (
"waiting for the manager to remove the label crr.apps.kruise.io/active | "
"ttlSecondsAfterFinished: the request is deleted in 1s"
)),
    ("being deleted", request(phase="Completed", completed=5, deletionTimestamp=ago(1), labels={}),
     "the request is being deleted"),
    ("being deleted and held", request(phase="Completed", completed=50, deletionTimestamp=ago(45), labels={},
                                       finalizers=[FINALIZER, "example.org/a", "example.org/b"]),
     (f"waiting for the manager to remove the finalizer {FINALIZER}; {MANAGER} | the request is being "
f"deleted; other controllers must remove "
      "their finalizers: example.org/a, example.org/b")),
    ("still guarded", request(phase="Completed", completed=50, finalizers=[FINALIZER], labels={}),
     f"waiting for the manager to remove the finalizer {FINALIZER}; {MANAGER} | {STAYS}"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "obj", "notes"), NOTES, ids=[name for name, _, _ in NOTES])
def test_what_else_there_is_to_say(name: str, obj: Json, notes: str) -> None:
    assert " | ".join(told(obj).notes) == notes, name


@pytest.mark.parametrize(
    ("obj", "what"),
    [
        (
            request(phase="Pending", message="waiting for the container runtime: no", reason="RuntimeUnavailable"),
            "the node daemon is waiting for the container runtime: no",
        ),
        (
            request(
                phase="Recreating", states=[state(message="kubelet does not answer", reason="KubeletNotAnswering")]
            ),
            "container app: kubelet does not answer",
        ),
    ],
)
def test_what_the_daemon_says_goes_before_what_the_node_does(obj: Json, what: str) -> None:
    found = told(obj, changes={"node": NO_RUNTIME})
    assert (found.verdict, found.cause.what) == (STUCK, what)
    assert found.notes[1] == "node n1 is not ready: KubeletNotReady: container runtime is down"
    assert told(request(**KILLED), changes={"node": NO_RUNTIME}).notes == (DEFAULT,)


def beside_sidecar(*statuses: Json, probed: bool = True) -> Json:
    """The pod with a native sidecar, which has a startup probe or none."""
    found = pod(*statuses)
    probe = {"startupProbe": {"exec": {"command": ["true"]}}} if probed else {}
    found["spec"]["initContainers"] = [{"name": "proxy", "restartPolicy": "Always", **probe}]
    return found


DOWN = status(state={"terminated": {"exitCode": 143, "finishedAt": ago(9)}}, ready=False)
LOG = status(name="log")
STAYS_DOWN = (
    "kubelet v1.35.2 has a defect (kubernetes#137146, fixed in 1.35.4): if it was restarted after the pod "
    "started, regular containers might stay down, because the pod has a sidecar with a startupProbe; "
    "if the container stays down, delete the pod: kubectl delete pod -n shop web"
)
AFFECTED = replace(READY, kubelet="v1.35.2")  # By both defects of kubelet
TIMED_OUT = [state(phase="Failed", message=TOO_LATE, reason="DeadlineExceeded")]


@pytest.mark.parametrize(
    ("name", "obj", "pod_obj", "kubelet", "warned"),
    [
        ("waiting for kubelet", request(**KILLED), beside_sidecar(DOWN), "v1.35.2", True),
        ("failed by its deadline", request(phase="Completed", states=TIMED_OUT), beside_sidecar(DOWN), "v1.35.2", True),
        ("another kubelet", request(**KILLED), beside_sidecar(DOWN), "v1.35.4", False),
        ("an unknown kubelet", request(**KILLED), beside_sidecar(DOWN), "", False),
        ("no startup probe", request(**KILLED), beside_sidecar(DOWN, probed=False), "v1.35.2", False),
        ("no sidecar", request(**KILLED), pod(DOWN), "v1.35.2", False),
        ("another container runs", request(**KILLED), beside_sidecar(DOWN, LOG), "v1.35.2", False),
        ("it still runs", request(**KILLED), beside_sidecar(status()), "v1.35.2", False),
        ("kubelet says why", request(**KILLED), beside_sidecar(waiting("ErrImagePull")), "v1.35.2", False),
        ("failed otherwise", failed("it exited with code 0"), beside_sidecar(DOWN), "v1.35.2", False),
        ("the pod is gone", request(**KILLED), {"metadata": {"uid": "another"}}, "v1.35.2", False),
        ("only the sidecar", request("restart", "proxy", **KILLED), beside_sidecar(DOWN), "v1.35.2", False),
    ],
)
def test_a_kubelet_that_may_not_restart_the_container(
    name: str, obj: Json, pod_obj: Json, kubelet: str, *, warned: bool
) -> None:
    notes = told(obj, pod_obj, changes={"node": replace(READY, kubelet=kubelet)}).notes
    assert (STAYS_DOWN in notes) is warned, name
    assert warned or "137146" not in str(notes)


@pytest.mark.parametrize(
    ("probes", "kubelet", "warned"),
    [
        (("startupProbe", "livenessProbe"), "v1.36.2", True),
        (("startupProbe", "livenessProbe"), "v1.38.0", False),
        (("startupProbe", "livenessProbe"), "", False),
        (("startupProbe",), "v1.36.2", False),
        (("livenessProbe",), "v1.36.2", False),
    ],
)
def test_a_kubelet_that_may_kill_the_container_while_it_starts(
    probes: tuple[str, ...], kubelet: str, *, warned: bool
) -> None:
    probed = pod(DOWN)
    probed["spec"]["containers"][0].update({probe: {"exec": {"command": ["true"]}} for probe in probes})
    notes = told(request(**KILLED), probed, changes={"node": replace(READY, kubelet=kubelet)}).notes
    early = "it may run the livenessProbe of container app before its startupProbe"
    assert any(early in note for note in notes) is warned


def test_another_manager_may_be_the_one_that_runs() -> None:
    found = told(request(age=3640, **KILLED), changes={"admitted": False}).notes
    assert found == (
        (
            "deadline passed 10s ago (crrd's default, OpenKruise's manager applies none);"
            " waiting for the manager to complete the request; "
            f"check that crrd's manager is running ({MANAGER.partition(': ')[2]}), or OpenKruise's "
            "(kubectl get pods -n kruise-system)"
        ),
    )
    assert is_admitted({"metadata": {"annotations": {"crr.apps.kruise.io/requested-by": "alice"}}})
    assert not is_admitted({"metadata": {"annotations": {MARK: "alice"}}})


def test_one_container_without_context_is_enough_to_say_so() -> None:
    obj = request("restart", "app", "log", **KILLED)
    del obj["spec"]["containers"][1]["statusContext"]
    assert told(obj).notes[1].startswith("the request has no statusContext, ")


PULLS = (
    "imagePullPolicy of container app is Always, so kubelet pulls its image again. The container may get another image "
    "than in other pods, or not start while the registry is down (kubernetes#111822)"
)


@pytest.mark.parametrize("policy", ["Always", "IfNotPresent", "Never"])
def test_an_image_that_is_pulled_again(policy: str) -> None:
    found = pod()
    for each in found["spec"]["containers"]:
        each["imagePullPolicy"] = policy
    notes = told(request(**KILLED), found).notes
    assert (PULLS in notes) is (policy == "Always")
    done = request(phase="Completed", states=[state(phase="Succeeded")], completed=5)
    assert PULLS not in told(done, found).notes, "the request is completed, so it causes no further pull"


@pytest.mark.parametrize(
    ("labels", "policy", "note"),
    [
        (
            {"leaderworkerset.sigs.k8s.io/name": "llm"},
            "Always",
            "its LeaderWorkerSet may replace all pods of the group",
        ),
        ({"rolebasedgroup.workloads.x-k8s.io/name": "llm"}, "Always", "its RoleBasedGroup may replace all pods of"),
        ({"batch.kubernetes.io/job-name": "sum"}, "OnFailure", "its Job counts the restart of container app against"),
        ({"training.kubeflow.org/job-name": "sum"}, "Always", "its Kubeflow job counts the restart of container app"),
        ({"batch.kubernetes.io/job-name": "sum"}, "Always", ""),
        ({"app": "web"}, "OnFailure", ""),
    ],
)
def test_an_owner_that_reacts_to_restarts(labels: dict[str, str], policy: str, note: str) -> None:
    found = pod(labels=labels)
    found["spec"]["restartPolicy"] = policy
    notes = [each for each in told(request(**KILLED), found).notes if "group" in each or "counts" in each]
    assert len(notes) == bool(note)
    assert note in "".join(notes)


def test_a_container_that_has_never_run_has_no_context() -> None:
    assert not any("statusContext" in each for each in told(first_image(8), having("app:2", REFUSED)).notes)


def test_nothing_else_to_say() -> None:
    assert told(request(**KILLED)).notes == (DEFAULT,)
    assert len(told(request(strategy=GRACE, **KILLED), pod(gate=True)).notes) == 1


def test_a_node_by_its_conditions() -> None:
    ready = read_node({"status": {"conditions": [condition("DiskPressure", "False"), condition("Ready", "True")]}})
    assert ready == NodeFacts(since=NOW)
    assert not read_node({"status": {"conditions": [condition("Ready", "Unknown")]}}).ready
    assert read_node({}) == NodeFacts(ready=False)
    assert read_node(None) == NodeFacts(exists=False, ready=False)
    late = told(request(age=45), changes={"node": read_node({})})
    assert late.cause.advice[0] == "node n1 is not ready"


@pytest.mark.parametrize(
    ("ready", "why"),
    [
        (condition("Ready", "False"), "kubelet gives no reason"),
        (condition("Ready", "False") | {"reason": "KubeletNotReady"}, "KubeletNotReady"),
        (condition("Ready", "False") | {"reason": "KubeletNotReady", "message": "no CNI"}, "KubeletNotReady: no CNI"),
        (condition("Ready", "Unknown") | {"reason": "NodeStatusUnknown", "message": "kubelet is silent"}, ""),
    ],
)
def test_why_kubelet_says_that_a_node_is_not_ready(ready: Json, why: str) -> None:
    assert read_node({"status": {"conditions": [ready]}}).why == why


def test_the_kubelet_of_a_node() -> None:
    assert read_node({"status": {"nodeInfo": {"kubeletVersion": "v1.35.2"}}}).kubelet == "v1.35.2"
    assert read_node({}).kubelet == read_node(None).kubelet == ""


def test_a_daemon_by_its_pod() -> None:
    obj = {
        "metadata": {"namespace": "crrd-node", "name": "crrd-node-x"},
        "status": {"phase": "Running", "conditions": [condition("Ready", "True")]},
    }
    assert read_daemon(obj) == DAEMON
    for conditions in ([condition("Ready", "False")], [condition("Initialized", "True")], []):
        obj["status"] = {"phase": "Running", "conditions": conditions}
        assert read_daemon(obj) == replace(DAEMON, ready=False)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-3.0, "0s"), (0.4, "0s"), (59.4, "59s"), (60.0, "1m"), (200.0, "3m20s"), (3600.0, "1h"),
        (7500.0, "2h5m"), (86400.0, "1d"), (273600.0, "3d4h"),
    ],
)  # fmt: skip
def test_times_in_words(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said


def for_image(written: float, reason: str = "", *, run: bool = True, adopt: bool = False) -> Json:
    """A request for another image, perhaps of a run, whose status was written so many seconds ago."""
    message = "as the node daemon says it" if reason else ""
    states = [state(message=message, reason=reason)]
    writes = [{"subresource": "status", "time": ago(written)}]
    obj = request("web-abc-1", phase="Recreating", states=states, managedFields=writes)
    obj["spec"]["containers"][0]["image"] = "app:2"
    obj["metadata"]["labels"] |= {"crr.apps.kruise.io/active": "image"} | ({LABEL_RUN: "web-abc"} if run else {})
    change, target = (
        ImageChange("app:2", ("app:1",), mode=TemplateMode.ADOPT if adopt else TemplateMode.KEEP),
        Target("deployment.apps/web", "apps/v1", uid="u"),
    )
    of = Run("shop", "web-abc", target, Options(("app",), image=change), ago(60))
    obj["metadata"]["annotations"] = of.annotations() if run else {}
    return obj


def having(image: str, *statuses: Json, **meta: Any) -> Json:
    """The pod with this image in its spec."""
    found = pod(*statuses)
    found["metadata"] |= meta
    found["spec"]["containers"][0]["image"] = image
    return found


def first_image(written: float, reason: str = "") -> Json:
    """The same for a container that has never run."""
    found = for_image(written, reason)
    del found["spec"]["containers"][0]["statusContext"]
    return found


REFUSED = waiting("ErrImagePull", "not found")
SPELLED = f"docker.io/library/app:2@sha256:{'0123456789abcdef' * 4}"
SET, TAKEN = "the image app:2 is on the node; waiting until the pod has it", "the pod has the image app:2; kubelet has"
FAILING = "kubelet has stopped the container, and cannot pull its new image app:2 (ErrImagePull: not found)"
BACK = "to start the container with an image that the node has: kubectl "
IMAGE_ROWS = [
    Row("set soon", for_image(30, "ImagePresent"), MOVING, SET, pod=having("app:1"), since=30),
    Row(
        "set by nobody",
        for_image(31, "ImagePresent"),
        STUCK,
        SET,
        "continue the run that has created this request: kubectl recreate status -n shop",
        pod=having("app:1"),
        since=31,
    ),
    Row("taken soon", for_image(15), MOVING, f"{TAKEN} not replaced the container yet (for 15s)", pod=having("app:2")),
    Row(
        "not taken",
        for_image(16, "WaitingForNewImage"),
        STUCK,
        f"{TAKEN} not replaced the container yet (for 16s)",
        "check that kubelet works: kubectl describe node n1",
        pod=having("app:2"),
    ),
    Row(
        "not pulled",
        for_image(8),
        STUCK,
        FAILING,
        f"{BACK}recreate undo web-abc -n shop",
        pod=having("app:2", waiting("ErrImagePull", "not found")),
        since=8,
    ),
    Row(
        "not pulled, by hand",
        for_image(8, run=False),
        STUCK,
        FAILING,
        f"{BACK}-n shop set image pod/web app=IMAGE",
        pod=having("app:2", waiting("ErrImagePull", "not found")),
    ),
    Row("as before", for_image(8), MOVING, "not started yet", pod=having("app:1")),
    Row("set soon, refused", for_image(3, "ImagePresent"), MOVING, SET, pod=having("app:1", REFUSED)),
    Row("set soon, never ran", first_image(3, "ImagePresent"), MOVING, SET, pod=having("app:1", REFUSED)),
    Row(
        "not pulled, never ran",
        first_image(8),
        STUCK,
        "waiting for kubelet: the image cannot be pulled (ErrImagePull: not found)",
        "check the image name, the registry and the pod's imagePullSecrets: kubectl describe pod -n shop web",
        pod=having("app:2", REFUSED),
    ),
    Row(
        "ready, never ran",
        first_image(8),
        MOVING,
        "the new container containerd://new012345678 is running (for 20s), and is ready",
        pod=having("app:2", status(NEW, 0)),
    ),
    Row("of the old image, never ran", first_image(8), MOVING, "not started yet", pod=having("app:1", status(NEW, 0))),
    Row(
        "ready",
        for_image(8),
        MOVING,
        "the new container containerd://new012345678 is running (for 20s), and is ready",
        pod=having("app:2", status(NEW, 3)),
    ),
    Row(
        "ready, and restarted by a patch",
        for_image(8, "ImagePresent"),
        MOVING,
        "the new container containerd://new012345678 is running (for 20s), and is ready",
        pod=having(
            SPELLED,
            status(NEW, 4, imageID=SPELLED.replace(":2@", "@")),
            annotations=names_on_pod("app", "app:2", SPELLED),
        ),
    ),
]


@pytest.mark.parametrize("row", IMAGE_ROWS, ids=lambda row: row.name)
def test_where_a_request_for_another_image_stands(row: Row) -> None:
    found = told(row.obj, row.pod)
    advice = found.cause.advice[0] if found.cause.advice else ""
    assert found.cause.what.startswith(f"container app: {row.what}")
    assert (found.found.verdict, advice) == (row.verdict, row.advice)
    assert row.since is None or found.cause.since == row.since


@pytest.mark.parametrize(
    ("image", "reason", "what"),
    [
        ("app:1", "ImagePresent", SET),
        ("app:2", "HeldBackByKubelet", "as the node daemon says it"),
        ("app:2", "", "not started yet"),
    ],
)
def test_where_an_init_container_that_gets_an_image_stands(image: str, reason: str, what: str) -> None:
    """It has ended, and only a restart of its pod starts it again."""
    found, obj = having(image, DOWN), for_image(3, reason)
    obj["spec"]["wholePod"] = True
    obj["metadata"]["labels"]["crr.apps.kruise.io/active"] = "pod"
    found["spec"]["initContainers"] = [found["spec"]["containers"].pop(0)]
    assert told(obj, found).cause.what.startswith(f"container app: {what}")


def test_a_run_that_leaves_the_template_as_it_is() -> None:
    kept = "run web-abc leaves the template of deployment.apps/web as it is, so a new pod does not get app:2 from it"
    assert kept in told(for_image(3)).notes
    for run in (True, False):
        assert not any("template" in note for note in told(for_image(3, adopt=True, run=run)).notes)


def reloading(**fields: Any) -> Json:
    obj = request(strategy={"action": "Reload"}, **{"phase": "Recreating", **fields})
    obj["metadata"]["labels"] |= {"crr.apps.kruise.io/active": "reload"}
    return obj


RELOADED = "reloaded in 0.4s: signal sent"
RELOAD_ROWS = [
    Row("its turn comes", reloading(phase="Pending", managedFields=written_before(7)), MOVING, "not started yet"),
    Row(
        "its turn has come",
        reloading(states=[state(phase="Pending")]),
        STUCK,
        "the daemon on node n1 has not started on",
        since=60,
    ),
    Row(
        "runs",
        reloading(states=[state()], managedFields=written_before(7)),
        MOVING,
        "its reload is running (for 7s)",
        since=7,
    ),
    Row(
        "waits for the container's start",
        reloading(states=[state(phase="Pending", message="the container is created", reason="ContainerNotStarted")]),
        MOVING,
        "the container is created",
    ),
    Row(
        "waits for kubelet's files",
        reloading(states=[state(phase="Pending", message="waiting until", reason="WaitingForFiles")]),
        MOVING,
        "waiting until",
        "to have them refreshed at once",
    ),
    Row(
        "waits for kubelet",
        reloading(states=[state(phase="Pending", message="kubelet on this", reason="KubeletNotAnswering")]),
        STUCK,
        "kubelet on this",
        "check kubelet on node n1",
    ),
    Row(
        "has reloaded",
        reloading(
            phase="Completed", message="1 of 1", completed=5, states=[state(phase="Succeeded", message=RELOADED)]
        ),
        SUCCEEDED,
        "Completed: 1 of 1",
        since=5,
    ),
    Row(
        "could not",
        reloading(phase="Completed", completed=5, states=[state(phase="Failed", message="bad", reason="ReloadFailed")]),
        FAILED,
        "Completed; these containers were not recreated: app: bad",
        since=5,
    ),
]


@pytest.mark.parametrize("row", RELOAD_ROWS, ids=lambda row: row.name)
def test_where_a_request_for_a_reload_stands(row: Row) -> None:
    found = told(row.obj, row.pod)
    advice = found.cause.advice[0] if found.cause.advice else ""
    assert found.cause.what.removeprefix("container app: ").startswith(row.what)
    assert (found.found.verdict, found.cause.since) == (row.verdict, row.since)
    assert advice.startswith(row.advice)


def test_what_a_container_has_reloaded_is_shown() -> None:
    done = reloading(phase="Completed", completed=5, states=[state(phase="Succeeded", message=RELOADED)])
    assert [each.message for each in told(done).found.containers] == [RELOADED]
    quiet = reloading(phase="Completed", completed=5, states=[state(phase="Succeeded")])
    assert [each.message for each in told(quiet).found.containers] == ["reloaded"]


def test_no_hazard_of_a_restart_is_named_for_a_reload() -> None:
    pulled = pod()
    pulled["spec"]["containers"][0]["imagePullPolicy"] = "Always"
    assert any("image" in note for note in told(request(**RECREATING, states=[state()]), pulled).notes)
    assert not any("image" in note for note in told(reloading(states=[state()]), pulled).notes)


def test_each_row_of_the_table_is_found_for_some_request() -> None:
    done = request(phase="Completed", states=[state(phase="Succeeded")], completed=5)
    probed, pulled = pod(DOWN), pod()
    probed["spec"]["containers"][0].update({probe: {"exec": {}} for probe in ("startupProbe", "livenessProbe")})
    pulled["spec"]["containers"][0]["imagePullPolicy"] = "Always"
    explained = [told(row.obj, row.pod, others=row.others, events=row.events, changes=row.changes) for row in ROWS]
    explained += [told(row.obj, row.pod) for row in (*IMAGE_ROWS, *RELOAD_ROWS)]
    explained += [told(obj) for _, obj, _ in NOTES]
    explained += [told(done, pod(status(NEW, restarts))) for restarts in (3, 5)]
    explained += [told(request(**KILLED), each, changes={"node": AFFECTED}) for each in (beside_sidecar(DOWN), probed)]
    grouped = pod(labels={"leaderworkerset.sigs.k8s.io/name": "llm", "job-name": "sum"})
    grouped["spec"]["restartPolicy"] = "OnFailure"
    explained += [
        told(request(**KILLED), pulled),
        told(request(**KILLED), grouped),
        told(request(**KILLED), changes={"unread": {"the pod": "forbidden"}}),
    ]
    found = {each.topic for one in explained for each in (one.found.cause, *one.found.containers, *one.found.notes)}
    found.add(explain(facts(request(**RECREATING), None)).found.cause.topic)
    assert set(Topic) - found == set()
