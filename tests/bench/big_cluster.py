"""An API server with a large cluster's objects in it, a process of its own: `python -m tests.bench.big_cluster`.

10 000 pods of 12 KB with the readiness gate, in one namespace with its label, and 1 000 requests. They are put into
the store as they are: the cost of their creation is not measured. Commands come on standard input, one a line;
on standard output it tells, one JSON object a line, where it listens, who leads, and each command's outcome.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from crrd.core.api.types import (
    API_VERSION,
    GROUP,
    KIND,
    LABEL_ACTIVE,
    LABEL_NODE_NAME,
    LABEL_POD_UID,
    LABEL_READINESS_GATE,
    PLURAL,
)
from crrd_localnode.api.store import Event
from crrd_localnode.apiserver import ApiServer
from tests.support.admission import new_pod

Object = dict[str, Any]
PODS, REQUESTS, EVENTS, LEASES = "/pods", f"{GROUP}/{PLURAL}", "/events", "coordination.k8s.io/leases"
NAMESPACE = "large"
LONG_AGO = "2020-01-01T00:00:00Z"
POD_BYTES = 12_000


def pod(number: int) -> Object:
    """A pod of about 12 KB, in as many small fields as real ones have; what is the same in all is shared."""
    name = f"web-{number}"
    meta = {
        "name": name,
        "namespace": NAMESPACE,
        "uid": f"pod-{number}",
        "creationTimestamp": LONG_AGO,
        "labels": {"app": "web", "pod-template-hash": "6d4b75cb6d"},
        "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": _FIELDS}],
    }
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": LONG_AGO} for kind in _CONDITIONS]
    status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": conditions, "containerStatuses": [_STATUS]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": _SPEC, "status": status}


def request(name: str, number: int, status: Object) -> Object:
    """A request for a pod, as admission leaves it."""
    labels = {LABEL_ACTIVE: "true", LABEL_NODE_NAME: "node-a", LABEL_POD_UID: f"pod-{number}"}
    meta = {"name": name, "namespace": NAMESPACE, "uid": name, "creationTimestamp": LONG_AGO, "labels": labels}
    spec = {
        "podName": f"web-{number}",
        "containers": [{"name": "app", "statusContext": {"containerID": "containerd://a", "restartCount": 0}}],
        "strategy": {"failurePolicy": "Fail", "unreadyGracePeriodSeconds": 5, "terminationGracePeriodSeconds": 30},
        "activeDeadlineSeconds": 10**9,
    }
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec, "status": status}


_CONDITIONS = ("Initialized", "Ready", "ContainersReady", "PodScheduled", "KruisePodReady")
_FIELDS: Object = {f"f:field-{number}": {"f:key": {}, "f:value": {}, ".": {}} for number in range(60)}
_STATUS = {"name": "app", "ready": True, "restartCount": 0, "state": {"running": {"startedAt": LONG_AGO}}}
_CONTAINER = {
    "name": "app",
    "image": "registry.example.org/shop/web:1.2.3",
    "env": [{"name": f"VARIABLE_{number}", "value": f"value-{number}"} for number in range(120)],
    "volumeMounts": [{"name": f"volume-{number}", "mountPath": f"/mnt/{number}"} for number in range(20)],
}
_SPEC: Object = {
    "nodeName": "node-a",
    "readinessGates": [{"conditionType": "KruisePodReady"}],
    "containers": [_CONTAINER],
    "volumes": [{"name": f"volume-{number}", "configMap": {"name": f"configuration-{number}"}} for number in range(20)],
}
_SPEC["annotations"] = {"padding": "x" * max(0, POD_BYTES - len(json.dumps(pod(0), separators=(",", ":"))))}


class BigCluster:
    """The server, its objects, and what is seen of the manager's writes."""

    def __init__(self, pods: int, requests: int) -> None:
        self.server = ApiServer()
        self._pods = pods
        self._requests = requests
        self._written: list[float] = []
        """When the manager wrote requests, since the last command."""
        self._events: list[float] = []
        self._leader = ""

    async def run(self, kubeconfig: Path) -> None:
        """Serve until standard input ends."""
        async with self.server:
            store = self.server.store
            labelled = {LABEL_READINESS_GATE: "enabled"}
            for name, labels in (("crrd-system", {}), ("shop", {}), (NAMESPACE, labelled)):
                meta = {"name": name, "uid": name, "labels": labels, "creationTimestamp": LONG_AGO}
                store.put("/namespaces", None, {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
            for number in range(self._pods):
                store.put(PODS, None, pod(number))
            store.put(PODS, None, {"apiVersion": "v1", "kind": "Pod", **new_pod()})  # which admission is asked about
            self.server.kubeconfig(kubeconfig)
            store.subscribe(None, self._note)
            tell(pods=self._pods, bytes=len(next(iter(store.objects(PODS).values())).text))
            while line := await asyncio.to_thread(sys.stdin.readline):
                await self._command(*line.split())
                await asyncio.sleep(0)

    async def _command(self, what: str, *arguments: str) -> None:
        store = self.server.store
        if what == "create":
            states = {"recreating": {"phase": "Recreating"}, "unanswered": {}}
            for number in range(self._requests):
                name = f"{arguments[0]}-{number}"
                store.put(REQUESTS, None, request(name, number, states[arguments[0]]))
            self._forget()
            tell(created=self._requests)
        elif what == "complete":  # as the nodes would do, at once
            for found in list(store.objects(REQUESTS).values()):
                status = {"phase": "Completed", "completionTime": LONG_AGO}
                store.put(REQUESTS, found, {**found.obj, "status": status})
            self._forget()
            tell(completed=True)
        elif what == "told":
            tell(written=self._written, events=self._events)

    def _forget(self) -> None:
        self._written, self._events = [], []

    def _note(self, event: Event) -> None:
        """Take note of a write; nobody but the manager writes over HTTP."""
        if event.key == REQUESTS:
            self._written.append(time.time())
        elif event.key == EVENTS and event.old is None:
            self._events.append(time.time())
        elif event.key == LEASES and event.new is not None:
            leader = str(event.new.obj["spec"].get("holderIdentity") or "")
            if leader != self._leader:
                self._leader = leader
                tell(leader=leader, at=time.time())


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubeconfig-out", type=Path, required=True)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=1_000)
    given = parser.parse_args()
    asyncio.run(BigCluster(given.pods, given.requests).run(given.kubeconfig_out))


if __name__ == "__main__":
    main()
