"""Where requests stand, from the API's objects to the sentence: a row for each place where a request can stand."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crrd.cli.explain_sentences import SENTENCES, STEPS, sentence, steps
from crrd.cli.explain_text import cause_sentence, note_sentence, render
from crrd.core.api.pod import parse_pod
from crrd.core.api.time import format_duration, rfc3339
from crrd.core.api.types import FINALIZER
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.explain.facts import (
    DaemonFacts,
    Facts,
    NodeFacts,
    is_admitted,
    others_of,
    read_daemon,
    read_event,
    read_node,
    read_ready_since,
    read_times,
)
from crrd.core.explain.findings import Advice, Explanation, Finding, Found, Step, Verdict
from crrd.core.explain.request import explain_request

Json = dict[str, Any]

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
MANAGER = (
    "is the manager running? kubectl get pods -A -l app.kubernetes.io/name=crrd,app.kubernetes.io/component=manager"
)
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


READY = NodeFacts("n1", since=NOW - timedelta(days=3))
AWAY = NodeFacts("n1", ready=False, since=NOW - timedelta(seconds=200))
NO_RUNTIME = read_node(
    "n1",
    {
        "status": {
            "conditions": [
                {**condition("Ready", "False", 30), "reason": "KubeletNotReady", "message": "container runtime is down"}
            ]
        }
    },
)
NO_NODE = read_node("n1", None)
DAEMON = DaemonFacts("crrd-node/crrd-node-x", "Running", ready=True)
DEAD = {"daemons": (replace(DAEMON, ready=False),)}
KUBELET_AWAY = "node n1 is not ready: kubelet there does not report"
BOTH_AWAY = "node n1 is not ready: neither kubelet nor the daemon there reports"


def stop_event(seconds: float) -> Json:
    message = "Stopping container app to recreate it"
    return {"metadata": {"creationTimestamp": ago(seconds)}, "reason": "ContainerRecreating", "message": message}


def facts(obj: Json, pod_obj: Json | None, others: tuple[Json, ...] = (), events: tuple[Json, ...] = ()) -> Facts:
    wanted = parse_request(obj)
    return Facts(
        request=wanted,
        now=NOW,
        pod=None if pod_obj is None else parse_pod(pod_obj),
        ready_since=read_ready_since(pod_obj or {}),
        others=others_of(wanted, map(parse_request, (obj, *others))),
        node=READY,
        daemons=(DAEMON,),
        events=tuple(map(read_event, events)),
        times=read_times(obj),
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
        return Said(cause_sentence(self.found), cause.since, tuple(steps(self.found, cause)), cause.stuck)

    @property
    def containers(self) -> list[Said]:
        return [
            Said(
                sentence(self.found, each.finding),
                each.finding.since,
                tuple(steps(self.found, each.finding)),
                each.finding.stuck,
                each.phase,
                each.name,
            )
            for each in self.found.containers
        ]

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(note_sentence(self.found, note) for note in self.found.notes)

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
NO_DAEMON = "no daemon has answered on node n1 for"
PODS_THERE = (
    "kubectl get pods -A -l app.kubernetes.io/name=crrd,app.kubernetes.io/component=node -o wide "
    "--field-selector spec.nodeName=n1"
)
BACK_OFF = "back-off 40s restarting failed container=app pod=web_shop(pod-1)"


def failed(message: str, reason: str = "", summary: str = "0 of 1 containers recreated; failed: app") -> Json:
    states = [state(phase="Failed", message=message, reason=reason)]
    return request(phase="Completed", message=summary, states=states, completed=5, spec={"activeDeadlineSeconds": 90})


def did_fail(message: str) -> str:
    return f"Completed, but not every container was recreated: app: {message}"


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
    Row("just created", request(age=2), MOVING, "just created; the daemon on node n1 has not answered yet"),
    Row(
        "no daemon",
        request(age=45),
        STUCK,
        f"{NO_DAEMON} 45 s; the manager gives it up in 15 s",
        f"no pod of the DaemonSet is there: {PODS_THERE}",
        changes={"daemons": ()},
        since=45,
    ),
    Row(
        "nobody knows whether there is a daemon",
        request(age=45),
        STUCK,
        f"{NO_DAEMON} 45 s; the manager gives it up in 15 s",
        f"is the DaemonSet's pod running there? {PODS_THERE}",
        changes={"daemons": None, "node": None},
        since=45,
    ),
    Row(
        "a daemon that does not answer",
        request(age=70),
        STUCK,
        f"{NO_DAEMON} 1 min 10 s; the manager is to give it up",
        "its daemon's pod crrd-node/crrd-node-x is Pending, not ready: kubectl -n crrd-node logs crrd-node-x",
        changes={"daemons": (read_daemon({"metadata": {"namespace": "crrd-node", "name": "crrd-node-x"}}),)},
        since=70,
    ),
    Row(
        "neither a daemon nor a manager",
        request(age=200),
        STUCK,
        f"{NO_DAEMON} 3 min 20 s; the manager is to give it up",
        "node n1 is not ready for 3 min 20 s | its daemon's pod crrd-node/crrd-node-x is Running, ready: "
        f"kubectl -n crrd-node logs crrd-node-x | {MANAGER}",
        changes={"node": AWAY},
        since=200,
    ),
    Row(
        "no node",
        request(age=45),
        STUCK,
        f"{NO_DAEMON} 45 s; the manager gives it up in 15 s",
        "there is no node n1 any more",
        changes={"node": NO_NODE},
        since=45,
    ),
    # nobody ever will
    Row(
        "no node label",
        request(labels={}),
        STUCK,
        "no daemon serves it: the label crr.apps.kruise.io/node-name is missing",
        "admission sets that label",
    ),
    Row(
        "no active label",
        request(labels={"crr.apps.kruise.io/node-name": "n1"}),
        STUCK,
        'no daemon serves it: the label crr.apps.kruise.io/active: "true" is missing',
        "admission sets that label",
    ),
    Row(
        "another node",
        request(),
        STUCK,
        "no daemon serves it: it is for node n1, and the pod is on n2",
        "then create the request anew",
        pod=pod(node="n2"),
    ),
    Row(
        "a request that cannot be served",
        request(phase="Pending", strategy={"failurePolicy": "Perhaps"}),
        STUCK,
        "it cannot be served: spec.strategy.failurePolicy must be Fail or Ignore, not 'Perhaps'",
        "create another request without that | kubectl -n shop delete crr restart",
    ),
    # the pod
    Row(
        "another pod of the name",
        request(**RECREATING),
        STUCK,
        "pod deleted: the pod that is now called shop/web is another one (UID pod-2)",
        "the manager completes it as failed",
        pod=pod(uid="pod-2"),
    ),
    Row(
        "the pod is being deleted",
        request(**RECREATING),
        STUCK,
        "the pod is being deleted: nothing is stopped in it any more",
        pod=pod(deletionTimestamp=ago(1)),
    ),
    Row(
        "the pod has ended",
        request(**RECREATING),
        STUCK,
        "the pod has ended (phase Failed): kubelet starts nothing in it any more",
        pod=pod(phase="Failed"),
    ),
    Row(
        "a pod that the daemon does not see",
        request(phase="Pending", message="waiting to see pod shop/web on node n1", reason="WaitingForPod"),
        STUCK,
        "the node daemon is waiting to see pod shop/web on node n1",
        "is the pod on that node? kubectl get pod -n shop web -o wide | "
        "may the daemon list pods? kubectl -n crrd-node logs crrd-node-x",
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
        "look at the container runtime on node n1 | kubectl -n crrd-node logs crrd-node-x",
    ),
    Row(
        "a CRD that prunes reasons",
        request(phase="Pending", message="waiting for the container runtime: connection refused"),
        STUCK,
        "the node daemon is waiting for the container runtime: connection refused",
        "look at the container runtime on node n1 | kubectl -n crrd-node logs crrd-node-x",
    ),
    # others
    Row(
        "behind another",
        request(phase="Pending", age=10),
        MOVING,
        "waits behind request shop/first of the same pod",
        "crrd explain shop/first says what that one waits for | "
        "without it, this one goes on at once: kubectl -n shop delete crr first",
        others=(request("first", **RECREATING),),
        since=10,
    ),
    Row(
        "behind two",
        request(phase="Pending", age=10),
        MOVING,
        "waits behind request shop/first of the same pod and 1 more",
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
        "container app: stop sent, the container still runs; grace 45 s",
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
        "container app: stop sent, the container still runs; grace 45 s",
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
            ("nobody knows since when", 9, {"node": read_node("n1", {}), **DEAD}, BOTH_AWAY, None),
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
                {"node": read_node("n1", {"status": {"conditions": [condition("Ready", "False", 30)]}})},
                "node n1 is not ready: kubelet says so",
                30,
            ),
        )
    ),
    Row("the node is gone", request(**KILLED), STUCK, "there is no node n1 any more", changes={"node": NO_NODE}),
    Row(
        "the node is gone, whatever its daemon has said",
        request(phase="Pending", message="waiting for the container runtime: gone", reason="RuntimeUnavailable"),
        STUCK,
        "there is no node n1 any more",
        changes={"node": NO_NODE},
    ),
    # the daemon has gone
    *(
        Row(
            f"the daemon has gone: {name}",
            request(**stands, age=1800),
            STUCK,
            "no daemon is ready on node n1: nobody goes on with it",
            f"no pod of the DaemonSet is there: {PODS_THERE}",
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
        "no daemon is ready on node n1: nobody goes on with it",
        "its daemon's pod crrd-node/crrd-node-x is Running, not ready: kubectl -n crrd-node logs crrd-node-x",
        changes=DEAD,
    ),
    Row(
        "the daemon is not ready, and was at work just now",
        request(**KILLED, managedFields=written_before(30)),
        MOVING,
        "container app: stop sent, the container still runs; grace 45 s",
        changes=DEAD,
    ),
    Row(
        "a daemon that has the turn to give and gives none",
        request(phase="Pending", age=1800, managedFields=written_before(31)),
        STUCK,
        "container app: its turn has not come yet, though nothing is before it",
        "its daemon's pod crrd-node/crrd-node-x is Running, ready",
        since=31,
    ),
    Row(
        "a daemon that does not see what is done",
        request(**KILLED),
        STUCK,
        "container app: the new container containerd://new012345678 runs for 1 h, is ready; "
        "the node daemon has yet to say so",
        "why does it not? kubectl -n crrd-node logs crrd-node-x",
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
        "unready grace: mark acquired 12 s ago, 18 s left at most",
        pod=pod(gate=True),
        since=12,
    ),
    Row(
        "in the grace period of a newer manager",
        conditioned(10),
        MOVING,
        "unready grace: mark acquired 10 s ago, 20 s left at most",
        pod=pod(gate=True),
        since=10,
    ),
    Row(
        "the grace period is just over",
        graceful(31),
        MOVING,
        "container app: its turn has not come yet",
        pod=pod(gate=True),
    ),
    Row(
        "nothing follows the grace period",
        graceful(90),
        STUCK,
        "unready grace over for 1 min, but nothing was stopped yet",
        "its daemon's pod crrd-node/crrd-node-x is Running, ready",
        pod=pod(gate=True),
        since=90,
    ),
    Row(
        "in a grace period of unknown age",
        graceful(12),
        MOVING,
        "unready grace: the pod is unready, stopping after 30 s",
        pod=pod(gate=True),
        changes={"times": read_times({})},
    ),
    # stopping
    Row(
        "the hook runs",
        request(phase="Recreating", states=[state()]),
        MOVING,
        "container app: its preStop hook runs, or its stop is just being sent; grace 45 s",
        events=(stop_event(90), stop_event(4), {"reason": "Other"}),
        since=4,
    ),
    Row(
        "the hook has just begun",
        request(phase="Recreating", states=[state(phase="Pending")], strategy={"terminationGracePeriodSeconds": 7}),
        MOVING,
        "container app: its preStop hook runs, or its stop is just being sent; grace 7 s",
        events=(stop_event(1),),
        since=1,
    ),
    Row(
        "the stop was sent",
        request(**KILLED),
        MOVING,
        "container app: stop sent, the container still runs; grace 30 s",
        pod=pod() | {"spec": {"nodeName": "n1", "containers": [{"name": "app"}]}},
    ),
    Row(
        "the stop does not end",
        request(**KILLED),
        STUCK,
        "container app: stop sent, the container still runs; grace 45 s, 1 min 15 s over",
        "the runtime does not end the container: see the log of crrd on node n1",
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
                    message="stopping failed 3 times, is tried again: no such socket",
                    reason="StopRetried",
                    killed=True,
                )
            ],
        ),
        STUCK,
        "container app: stopping failed 3 times, is tried again: no such socket",
        "look at the container runtime on node n1 | kubectl -n crrd-node logs crrd-node-x",
    ),
    Row(
        "kubelet does not answer",
        request(
            phase="Recreating",
            states=[
                state(
                    phase="Pending",
                    message="kubelet on this node does not answer since 10 s: nothing is stopped",
                    reason="KubeletNotAnswering",
                )
            ],
        ),
        STUCK,
        "container app: kubelet on this node does not answer since 10 s: nothing is stopped",
        "see what is wrong with kubelet on node n1: systemctl status kubelet",
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
                "stopping failed 3 times, is tried again: no such socket",
                True,
                STUCK,
                "look at the container runtime on node n1",
            ),
            (
                "KubeletNotAnswering",
                "Pending",
                "kubelet on this node does not answer since 600 s: nothing is stopped that it would not start again",
                False,
                STUCK,
                "see what is wrong with kubelet on node n1",
            ),
            (
                "NotPinned",
                "Pending",
                "which instances are meant cannot be written to the request's annotations: forbidden",
                False,
                STUCK,
                "see what refuses it: a policy",
            ),
            (
                "OtherRequestAtWork",
                "Recreating",
                "a stop of this container by another request is under way",
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
        "container app: stopping it by other means; grace 45 s",
    ),
    Row(
        "a hook that has failed before the stop",
        request(
            phase="Recreating",
            states=[state(message="preStop hook failed: exit code 1", reason="PreStopHookFailed", killed=True)],
        ),
        MOVING,
        "container app: stop sent, the container still runs; grace 45 s",
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
        "next try in about 31 s",
        "kubelet starts it by itself when its back-off is over | if the container ends by itself, see why: "
        "kubectl logs -n shop web -c app --previous",
        pod=pod(waiting("CrashLoopBackOff", BACK_OFF)),
        since=9,
    ),
    Row(
        "CrashLoopBackOff that is over",
        request(**KILLED),
        MOVING,
        "container app: waiting for kubelet: CrashLoopBackOff, back-off 40s restarting failed container; "
        "next try any moment",
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
            ("1h0m0s", 3590, "in about 10 s"),
            ("2m0s", 90, "in about 30 s"),
            ("12s500ms", 8, "in about 4 s"),
        )
    ),
    Row(
        "no image",
        request(**KILLED),
        STUCK,
        "container app: waiting for kubelet: the image cannot be pulled (ErrImagePull: not found)",
        "check the image's name, the registry and the pod's imagePullSecrets: kubectl describe pod -n shop web",
        pod=pod(waiting("ErrImagePull", "not found")),
        since=9,
    ),
    Row(
        "no configuration",
        request(**KILLED),
        STUCK,
        "container app: waiting for kubelet: the container cannot be made "
        '(CreateContainerConfigError: configmap "x" not found)',
        "see what is missing (a ConfigMap, a Secret, a volume): kubectl describe pod -n shop web",
        pod=pod(waiting("CreateContainerConfigError", 'configmap "x" not found')),
        since=9,
    ),
    Row(
        "something else",
        request(**KILLED),
        MOVING,
        "container app: waiting for kubelet: Odd",
        "see kubectl describe pod -n shop web",
        pod=pod(waiting("Odd")),
        since=9,
    ),
    Row(
        "just stopped",
        request(**KILLED),
        MOVING,
        "container app: the container has stopped with exit code 143; waiting for kubelet to start the next one",
        pod=pod(status(state={"terminated": {"finishedAt": ago(3), "exitCode": 143}}, ready=False)),
        since=3,
    ),
    Row(
        "being created",
        request(**KILLED),
        MOVING,
        "container app: the container has stopped; waiting for kubelet to start the next one",
        pod=pod(waiting("ContainerCreating", finished=None)),
    ),
    Row(
        "not started for a while",
        request(
            phase="Recreating",
            states=[
                state(message="kubelet has not started it for 10 s", reason="WaitingForKubelet", killed=True)
            ],
        ),
        MOVING,
        "container app: the container has stopped; kubelet has not started it for 10 s",
        pod=pod(waiting("ContainerCreating", finished=None)),
    ),
    Row(
        "kubelet says neither that it has stopped nor starts it",
        request(
            phase="Recreating",
            strategy={"terminationGracePeriodSeconds": 2},
            states=[state(message="kubelet has not started it for 10 s", reason="WaitingForKubelet", killed=True)],
            managedFields=written_before(9),
        ),
        STUCK,
        "container app: kubelet has not started it for 10 s, and the pod's status still shows the old one 21 s after "
        "the stop: kubelet has not reported its end",
        "see what is wrong with kubelet on node n1: systemctl status kubelet",
        events=(stop_event(21),),
        since=21,
    ),
    Row(
        "not ready",
        request(**KILLED),
        MOVING,
        "container app: the new container containerd://new012345678 runs for 20 s, but is not ready: "
        "its readiness probe has not succeeded yet",
        "see what its readiness probe says: kubectl describe pod -n shop web | "
        "and what the container says: kubectl logs -n shop web -c app",
        pod=pod(status(NEW, 3, ready=False)),
        since=20,
    ),
    Row(
        "not started for long",
        request(**KILLED),
        STUCK,
        "container app: the new container containerd://new012345678 runs for 6 min 40 s, but is not ready: "
        "its startup probe has not succeeded yet",
        pod=pod(status(NEW, 3, ready=False, started=False, state={"running": {"startedAt": ago(400)}})),
        since=400,
    ),
    Row(
        "minStartedSeconds",
        request(**KILLED, strategy={"minStartedSeconds": 60}),
        MOVING,
        "container app: the new container containerd://new012345678 runs for 20 s, is ready; "
        "minStartedSeconds 60: counts in 40 s",
        pod=pod(status(NEW, 3)),
        since=20,
    ),
    Row(
        "about to succeed",
        request(**KILLED),
        MOVING,
        "container app: the new container new012345678 runs, is ready; the node daemon has yet to say so",
        pod=pod(status(NEW.partition("//")[2], 3, state={"running": {}})),
    ),
    Row(
        "the same instance with a higher count",
        request(**KILLED),
        MOVING,
        "container app: the new container containerd://old012345678 runs for 20 s, is ready; "
        "the node daemon has yet to say so",
        pod=pod(status(OLD, 3)),
        since=20,
    ),
    Row(
        "nothing known of the container",
        request("restart", "nope", phase="Recreating"),
        MOVING,
        "container nope: nothing is known about it in the pod's status",
    ),
    Row(
        "all have ended",
        request(phase="Recreating", states=[state(phase="Succeeded")]),
        MOVING,
        "every container has ended; the request is about to be Completed",
    ),
    # going
    Row(
        "being deleted",
        request(deletionTimestamp=ago(5), **KILLED),
        MOVING,
        "it is being deleted: nothing more is begun for it",
        since=5,
    ),
    Row(
        "a finalizer of somebody else's",
        request(deletionTimestamp=ago(5), finalizers=["example.org/keep"], **KILLED),
        MOVING,
        "it is being deleted: nothing more is begun for it",
        "whoever set the finalizer has to take it away: example.org/keep",
        since=5,
    ),
    Row(
        "the pod has to be released",
        request(deletionTimestamp=ago(5), finalizers=[FINALIZER], **KILLED),
        MOVING,
        "it is being deleted; the manager has to make the pod ready again first",
        since=5,
    ),
    Row(
        "nobody releases the pod",
        request(deletionTimestamp=ago(50), finalizers=[FINALIZER], **KILLED),
        STUCK,
        "it is being deleted; the manager has to make the pod ready again first",
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
        "Completed: every container was recreated",
        since=5,
    ),
    Row("failed without a word", failed(""), FAILED, did_fail("no reason was given"), "a request can be made", since=5),
    Row(
        "the runtime would not",
        failed("stopping failed 8 times in 130 s, last with: no", "StopFailed"),
        FAILED,
        did_fail("stopping failed 8 times in 130 s, last with: no"),
        "look at the container runtime on node n1 | kubectl -n crrd-node logs crrd-node-x",
        since=5,
    ),
    Row(
        "too late",
        failed("activeDeadlineSeconds (90) has passed", "DeadlineExceeded"),
        FAILED,
        did_fail("activeDeadlineSeconds (90) has passed"),
        "give the next one more time, in spec.activeDeadlineSeconds",
        since=5,
    ),
    Row(
        "given up",
        failed("no daemon answered on node n1", "NoDaemonAnswered"),
        FAILED,
        did_fail("no daemon answered on node n1"),
        "its daemon's pod crrd-node/crrd-node-x is Running, ready: kubectl -n crrd-node logs crrd-node-x | "
        "a request can be made anew",
        since=5,
    ),
    Row(
        "failed where a CRD prunes reasons",
        failed("activeDeadlineSeconds (90) has passed"),
        FAILED,
        did_fail("activeDeadlineSeconds (90) has passed"),
        "give the next one more time, in spec.activeDeadlineSeconds",
        since=5,
    ),
    Row(
        "a reason that is another program's",
        failed("no kruise-daemon answered", "AnotherProgramsReason"),
        FAILED,
        did_fail("no kruise-daemon answered"),
        "a request can be made anew",
        since=5,
    ),
    *(
        Row(
            f"completed by another program: {name}",
            obj,
            FAILED,
            did_fail(f"not finished: {why}"),
            "a request can be made anew",
            events=(stop_event(300),),
            since=5,
        )
        for name, obj, why in (
            ("not begun", elsewhere(TOO_LATE, state(phase="Pending")), TOO_LATE),
            ("no states", elsewhere(TOO_LATE), TOO_LATE),
            ("stop sent", elsewhere(TOO_LATE, state(message="CrashLoopBackOff: back-off", killed=True)), TOO_LATE),
            ("without a word", elsewhere("", state()), "nobody said why"),
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
        "Completed, but not every container was recreated: app: an earlier one failed; log: restartPolicy is Never",
        "kubelet does not start such a container again: replace the pod instead",
        since=5,
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_where_a_request_stands(row: Row) -> None:
    found = told(row.obj, row.pod, others=row.others, events=row.events, changes=row.changes)
    assert (found.verdict, found.cause.what, found.cause.since) == (row.verdict, row.what, row.since)
    assert " | ".join(found.cause.advice).startswith(row.advice)


LEAST: Json = {"strategy": {"minStartedSeconds": 60}}
READY_SOON = "the node daemon has yet to say so"


def not_started(words: str, written: float | None = None, stop: float | None = None) -> Json:
    said = state(message=f"kubelet has not started it {words}", reason="WaitingForKubelet", killed=True)
    pin = {"containerID": OLD, "restartCount": 2, "stopSentAt": "" if stop is None else ago(stop)}
    annotations = {"crr.apps.kruise.io/pinned-containers": json.dumps({"app": pin})}
    return request(phase="Recreating", states=[said], managedFields=written_before(written), annotations=annotations)


LIMITS: list[tuple[Json, Json, tuple[Json, ...], Verdict, str]] = [
    (request(**KILLED), pod(), (stop_event(60),), MOVING, "; grace 45 s"),
    (request(**KILLED), pod(), (stop_event(61),), STUCK, "; grace 45 s, 16 s over"),
    (request(strategy={"terminationGracePeriodSeconds": 0}, **KILLED), pod(), (), MOVING, "; grace 0 s"),
    (request(**KILLED), runs(300, ready=False), (), MOVING, "has not succeeded yet"),
    (request(**KILLED), runs(301, ready=False), (), STUCK, "has not succeeded yet"),
    (request(**KILLED, **LEAST), runs(59), (), MOVING, "counts in 1 s"),
    (request(**KILLED, **LEAST), runs(60), (), MOVING, READY_SOON),
    (request(**KILLED, **LEAST), runs(90), (), MOVING, READY_SOON),
    (request(**KILLED, **LEAST), runs(90, ready_for=90), (), MOVING, READY_SOON),
    (request(**KILLED, **LEAST), runs(91, ready_for=31), (), STUCK, READY_SOON),
    (request(**KILLED, **LEAST), runs(3600, ready_for=30), (), MOVING, READY_SOON),
    (request(**KILLED, **LEAST), runs(3600), (), MOVING, READY_SOON),
    (request(phase="Pending", age=30), pod(), (), MOVING, "its turn has not come yet"),
    (request(phase="Pending", age=31), pod(), (), STUCK, "though nothing is before it"),
    (request(phase="Pending", age=31, strategy=GRACE), pod(), (), STUCK, "though nothing is before it"),
    (request(phase="Pending", age=99, managedFields=written_before(30)), pod(), (), MOVING, "has not come yet"),
    (not_started("for 14 s"), pod(), (), MOVING, "still shows the old one: kubelet has not reported its end"),
    (not_started("for 10 s", 14), pod(), (), MOVING, "kubelet has not reported its end"),
    (not_started("for 10 s", 15), pod(), (), STUCK, "kubelet has not reported its end"),
    (not_started("for 30 s", 1, stop=59), pod(), (), MOVING, " 59 s after the stop: kubelet has not reported its end"),
    (not_started("for 30 s", 1, stop=60), pod(), (), STUCK, "1 min after the stop: kubelet has not reported its end"),
    (not_started("", 1, stop=59), pod(), (stop_event(99),), MOVING, "kubelet has not reported its end"),
    (request(**KILLED, **LEAST), runs(None), (), MOVING, "counts in 1 min"),
    (request(**KILLED), pod(waiting("CrashLoopBackOff", BACK_OFF, 39)), (), MOVING, "next try in about 1 s"),
    (request(**KILLED), pod(waiting("CrashLoopBackOff", BACK_OFF, 40)), (), MOVING, "next try any moment"),
    (request(context=False, phase="Recreating", states=[state()]), pod(), (), MOVING, "just being sent; grace 45 s"),
    (request(age=4), pod(), (), MOVING, "has not answered yet"),
    (request(age=5), pod(), (), STUCK, "for 5 s; the manager gives it up in 55 s"),
    (request(age=59), pod(), (), STUCK, "the manager gives it up in 1 s"),
    (request(age=60), pod(), (), STUCK, "the manager is to give it up"),
    (graceful(None, written=30), pod(gate=True), (), MOVING, "to make the pod unready"),
    (graceful(29), pod(gate=True), (), MOVING, "1 s left at most"),
    (graceful(30), pod(gate=True), (), MOVING, "its turn has not come yet"),
    (graceful(60), pod(gate=True), (), MOVING, "its turn has not come yet"),
    (graceful(61), pod(gate=True), (), STUCK, "over for 31 s, but nothing was stopped yet"),
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


def test_how_a_wait_is_printed() -> None:
    """A sentence that says for how long is not followed by the same time once more."""
    lines = told(not_started("for 10 s", 9, stop=21)).lines
    assert lines[2] == (
        "container app: kubelet has not started it for 10 s, and the pod's status still shows the old one 21 s after "
        "the stop: kubelet has not reported its end"
    )
    assert told(request(**KILLED), events=(stop_event(9),)).lines[2].endswith("; grace 45 s (9 s so far)")
    assert (
        told(request(**KILLED), runs(3600))
        .lines[2]
        .endswith(" runs for 1 h, is ready; the node daemon has yet to say so")
    )
    assert told(request(age=45)).lines[2].endswith("for 45 s; the manager gives it up in 15 s")
    assert told(graceful(12), pod(gate=True)).lines[2].endswith("mark acquired 12 s ago, 18 s left at most")
    assert told(request(**KILLED), changes={"node": AWAY}).lines[2].endswith("does not report (3 min 20 s so far)")


def test_the_containers_are_listed_unless_the_one_at_work_is_all_there_is_to_say() -> None:
    states = [state(killed=True), state("log", "Pending")]
    both = pod(status(), status() | {"name": "log"})
    assert len(told(request("restart", "app", "log", phase="Recreating", states=states), both).lines) == 5
    states[1] = state("log", "Failed", "restartPolicy is Never")
    assert told(request("restart", "app", "log", phase="Recreating", states=states), both).lines[4:6] == [
        "  app  Recreating  stop sent, the container still runs; grace 45 s",
        "  log  Failed      restartPolicy is Never",
    ]


def test_an_explanation_is_data() -> None:
    """Programs need not read a sentence: what is waited for, since when and what to do are values."""
    found = told(request(age=45), changes={"node": AWAY}).found
    assert found.cause == Finding(
        Found.NO_ANSWER,
        {"left": 15.0},
        45.0,
        stuck=True,
        advice=(
            Advice(Step.NODE_IS_NOT_READY, {"since": 200.0}),
            Advice(
                Step.CHECK_DAEMON,
                {"daemon_namespace": "crrd-node", "daemon": "crrd-node-x", "phase": "Running", "ready": "ready"},
            ),
        ),
    )
    held = told(request(**KILLED), pod(waiting("CrashLoopBackOff", BACK_OFF))).found
    assert held.cause == replace(held.containers[0].finding, container="app")
    assert (held.cause.reason, held.cause.values["left"], held.cause.since) == (Found.BACK_OFF, 31.0, 9.0)


def test_every_finding_and_every_step_has_its_sentence() -> None:
    assert SENTENCES.keys() == {*Found}
    assert STEPS.keys() == {*Step}


def test_no_advice_where_nothing_is_late() -> None:
    assert told(request(**KILLED), events=(stop_event(4),)).cause.advice == ()
    assert told(request(deletionTimestamp=ago(5), **KILLED)).cause.advice == ()
    assert told(request(deletionTimestamp=ago(5), finalizers=[FINALIZER], **KILLED)).cause.advice == ()
    assert told(request(age=90)).cause.advice == told(request(age=45)).cause.advice
    assert told(request(age=91)).cause.advice[-1] == MANAGER


def test_a_begun_request_waits_for_no_grace() -> None:
    for begun in (state(phase="Recreating"), state(phase="Pending", killed=True)):
        obj = graceful(12)
        obj["status"]["containerRecreateStates"] = [begun, state("log", "Pending")]
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
    assert gone.cause.what == "pod deleted: there is no pod shop/web"
    assert gone.containers[0].what == "nothing is known about it in the pod's status"


def test_a_pod_that_may_not_be_read_is_not_gone() -> None:
    unread = (Finding(Found.UNREAD, {"object": "the pod", "error": "not allowed"}),)
    obj = request(phase="Recreating", states=[state(message="CrashLoopBackOff: back-off")], labels={"a": "b"})
    obj["metadata"]["labels"] = request()["metadata"]["labels"]
    found = explain(replace(facts(obj, None), pod_read=False, unread=unread, node=None))
    assert found.cause.what == "container app: CrashLoopBackOff: back-off"
    assert found.notes[1:] == ("the pod could not be read: not allowed",)
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
    assert found.cause.what.endswith("not every container was recreated: log: preStop hook failed: exit code 1")


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
    "deadline: 59 min 30 s left of 3630 s (none was given: the default of crrd's manager, unless its flag says "
    "otherwise); what is not done by then fails"
)
GRACE_DEFAULT = DEFAULT.replace("59 min 30 s left of 3630 s", "1 h left of 3660 s")
OVER = "unless a manager has come to lead since, which counts anew"
STAYS = "no ttlSecondsAfterFinished: it stays until somebody deletes it"
NOTES = [
    ("deadline", request(age=60, spec={"activeDeadlineSeconds": 300}, **KILLED),
     "deadline: 4 min left of 300 s; what is not done by then fails"),
    ("default", request("restart", "app", "log", age=3660, strategy={"minStartedSeconds": 20}, **KILLED),
     ("deadline: 40 s left of 3700 s (none was given: the default of crrd's manager, unless its flag says otherwise); "
     "what is not done by then fails")),
    ("default over", request(age=3640, **KILLED),
     ("deadline: passed 10 s ago (none was given: the default of crrd's manager, unless its flag says otherwise), "
     f"the manager is to complete it; {MANAGER}")),
    ("late", request(age=60, spec={"activeDeadlineSeconds": 40}, **KILLED),
     f"deadline: passed 20 s ago, the manager is to complete it; {MANAGER}"),
    ("on the dot", request(age=40, spec={"activeDeadlineSeconds": 40}, **KILLED),
     f"deadline: passed 0 s ago, the manager is to complete it; {MANAGER}"),
    ("a second left", request(age=39, spec={"activeDeadlineSeconds": 40}, **KILLED),
     "deadline: 1 s left of 40 s; what is not done by then fails"),
    ("no admission", request(context=False, **KILLED),
     f"{DEFAULT} | no statusContext: no admission saw the request; the daemon takes the instances that it finds"),
    ("forced", request(strategy={"forceRecreate": True}, **KILLED),
     f"{DEFAULT} | forceRecreate: whatever runs when its turn comes is stopped, once"),
    ("no gate", request(strategy=GRACE, **KILLED),
     f"{GRACE_DEFAULT} | the pod has no readiness gate KruisePodReady: unreadyGracePeriodSeconds is not waited for"),
    ("kept", request(phase="Completed", states=[state(phase="Succeeded")], completed=5, labels={}),
     STAYS),
    ("ttl", request(phase="Completed", completed=5, labels={}, spec={"ttlSecondsAfterFinished": 3605}),
     "TTL: deleted in 1 h"),
    ("ttl over", request(phase="Completed", completed=50, labels={}, spec={"ttlSecondsAfterFinished": 40}),
     f"TTL: over for 10 s, {OVER}; {MANAGER}"),
    ("ttl on the dot", request(phase="Completed", completed=40, labels={}, spec={"ttlSecondsAfterFinished": 40}),
     f"TTL: over for 0 s, {OVER}; {MANAGER}"),
    ("ttl by another clock",
     request(phase="Completed", completed=9000, labels={}, spec={"ttlSecondsAfterFinished": 40},
             managedFields=[{"subresource": "status", "time": ago(10)}]),
     "TTL: deleted in 30 s"),
    ("ttl from nobody knows when",
     request(phase="Completed", labels={}, spec={"ttlSecondsAfterFinished": 40}), ""),
    ("not late yet", request(phase="Completed", completed=30),
     f"the manager has yet to take the label crr.apps.kruise.io/active away | {STAYS}"),
    ("late indeed", request(phase="Completed", completed=31),
     f"the manager has yet to take the label crr.apps.kruise.io/active away; {MANAGER} | {STAYS}"),
    ("completed nobody knows when", request(phase="Completed"),
     f"the manager has yet to take the label crr.apps.kruise.io/active away | {STAYS}"),
    ("still active", request(phase="Completed", completed=5, spec={"ttlSecondsAfterFinished": 6}),
     "the manager has yet to take the label crr.apps.kruise.io/active away | TTL: deleted in 1 s"),
    ("being deleted", request(phase="Completed", completed=5, deletionTimestamp=ago(1), labels={}),
     "it is being deleted"),
    ("being deleted and held", request(phase="Completed", completed=50, deletionTimestamp=ago(45), labels={},
                                       finalizers=[FINALIZER, "example.org/a", "example.org/b"]),
     (f"the manager has yet to take the finalizer {FINALIZER} away; {MANAGER} | it is being deleted; whoever set the "
      "finalizer has to take it away: example.org/a, example.org/b")),
    ("still guarded", request(phase="Completed", completed=50, finalizers=[FINALIZER], labels={}),
     f"the manager has yet to take the finalizer {FINALIZER} away; {MANAGER} | {STAYS}"),
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


def test_another_manager_may_be_the_one_that_runs() -> None:
    found = told(request(age=3640, **KILLED), changes={"admitted": False}).notes
    assert found == (
        (
            "deadline: passed 10 s ago (none was given: the default of crrd's manager, if that is the one that runs: "
            "OpenKruise's has none), the manager is to complete it; "
            f"is the manager running? crrd's: {MANAGER.partition('? ')[2]}; or OpenKruise's"
        ),
    )
    assert is_admitted({"metadata": {"annotations": {"crr.apps.kruise.io/requested-by": "alice"}}})
    assert not is_admitted({"metadata": {"annotations": {MARK: "alice"}}})


def test_one_container_without_context_is_enough_to_say_so() -> None:
    obj = request("restart", "app", "log", **KILLED)
    del obj["spec"]["containers"][1]["statusContext"]
    assert told(obj).notes[1].startswith("no statusContext: ")


def test_nothing_else_to_say() -> None:
    assert told(request(**KILLED)).notes == (DEFAULT,)
    assert len(told(request(strategy=GRACE, **KILLED), pod(gate=True)).notes) == 1


def test_a_node_by_its_conditions() -> None:
    ready = read_node(
        "n1", {"status": {"conditions": [condition("DiskPressure", "False"), condition("Ready", "True")]}}
    )
    assert ready == NodeFacts("n1", since=NOW)
    assert not read_node("n1", {"status": {"conditions": [condition("Ready", "Unknown")]}}).ready
    assert read_node("n1", {}) == NodeFacts("n1", ready=False)
    late = told(request(age=45), changes={"node": read_node("n1", {})})
    assert late.cause.advice[0] == "node n1 is not ready"


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
        (-3.0, "0 s"), (0.4, "0 s"), (59.4, "59 s"), (60.0, "1 min"), (200.0, "3 min 20 s"), (3600.0, "1 h"),
        (7500.0, "2 h 5 min"), (86400.0, "1 d"), (273600.0, "3 d 4 h"),
    ],
)  # fmt: skip
def test_times_in_words(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said
