"""`make bench CLUSTER=1`: crrd on a real cluster, by requests and by patches, beside the same stops by hand, in turn.

For a cluster for tests only, with crrd installed: the node daemon is taken away for a while. Needs KUBECONFIG,
CRRD_TEST_CRI_ENDPOINT (the runtime's socket), CRRD_TEST_NODE (its node, best this machine) and CRRD_TEST_IMAGE (a
busybox that the node has). CPU is read from this machine's /proc; a process that is not here has no row.

Absolute times differ between machines, and on one machine by a factor of two within an hour: compare the columns.
"""

import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from kubernetes import client, config
from prometheus_client.parser import text_string_to_metric_families

from cri_stubs import api_pb2, api_pb2_grpc
from crrd.core.api.types import API_VERSION, GROUP, KIND, PLURAL, VERSION
from crrd.core.rollout.patch.operations import restart
from crrd.core.rollout.run import LABEL_RUN
from crrd.core.rollout.state import read_member
from tests.tools.cluster.parts import NAMES, cpu_seconds, processes

VARIABLES = ("CRRD_TEST_CRI_ENDPOINT", "CRRD_TEST_NODE", "CRRD_TEST_IMAGE")
NAMESPACE = "crrd-bench"
BURSTS, ROUNDS, SINGLE = (90, 30), 3, 12
PAD_BYTES = 8000
"""Of an annotation of each pod: pods of real clusters are not small."""
AT_A_TIME = 16
SENT = "POSTs, or PATCHes with their dry runs,"
DAEMON = ("crrd-node", "crrd-node")
"""Namespace and name of the node daemon's DaemonSet."""
ENDS_ON_SIGTERM = "trap 'exit 0' TERM; sleep 1000000 & wait"
WAYS = HAND, PATCH, REQUEST = "by hand", "by patch", "by request"
_COLLECTION = (GROUP, VERSION, NAMESPACE, PLURAL)
Json = dict[str, Any]


class Bench:
    """A cluster, the runtime of one of its nodes, and what was measured there: row -> the values of each way."""

    def __init__(self) -> None:
        missing = [
            name for name in ("CRRD_TEST_CRI_ENDPOINT", "CRRD_TEST_NODE", "CRRD_TEST_IMAGE") if name not in os.environ
        ]
        if missing:
            sys.exit(f"set {', '.join(missing)}: see tests/bench/cluster.py")
        config.load_kube_config()  # type: ignore[no-untyped-call]
        self.node, self.image = os.environ["CRRD_TEST_NODE"], os.environ["CRRD_TEST_IMAGE"]
        self.core: Any = client.CoreV1Api()
        self.apps: Any = client.AppsV1Api()
        self.custom: Any = client.CustomObjectsApi()
        self.cri: Any = api_pb2_grpc.RuntimeServiceStub(grpc.insecure_channel(os.environ["CRRD_TEST_CRI_ENDPOINT"]))
        self.rows: dict[str, dict[str, list[float]]] = {}

    def note(self, row: str, value: float, way: str) -> None:
        self.rows.setdefault(row, {each: [] for each in WAYS})[way].append(value)

    def fresh_pods(self, count: int) -> dict[str, str]:
        """New pods, all ready; name -> container ID."""
        self.custom.delete_collection_namespaced_custom_object(*_COLLECTION)
        self.core.delete_collection_namespaced_pod(NAMESPACE, grace_period_seconds=0)
        self._until(lambda: not self.core.list_namespaced_pod(NAMESPACE).items)
        container = {"name": "app", "image": self.image, "command": ["/bin/sh", "-c", ENDS_ON_SIGTERM]}
        spec = {
            "nodeName": self.node,
            "hostNetwork": True,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 5,
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        }
        stamp = time.time_ns()
        for number in range(count):
            meta = {"name": f"web-{number}-{stamp}", "annotations": {"pad": "x" * PAD_BYTES}}
            self.core.create_namespaced_pod(NAMESPACE, {"metadata": meta, "spec": spec})
        self._until(lambda: len(self._ready(0)) == count)
        time.sleep(5)  # kubelet and API server come to rest
        return self._ready(0)

    def _ready(self, restarts: int) -> dict[str, str]:
        """Pods whose container runs, is ready and was restarted so often; name -> container ID."""
        found = {}
        for pod in self.core.list_namespaced_pod(NAMESPACE).items:
            for status in pod.status.container_statuses or ():
                if status.ready and status.restart_count == restarts:
                    found[pod.metadata.name] = status.container_id.partition("://")[2]
        return found

    @staticmethod
    def _until(holds: Callable[[], bool], seconds: float = 600, pause: float = 0.5) -> None:
        ends = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > ends:
                sys.exit(f"not within {seconds:.0f} s: the cluster does not do what this needs")
            time.sleep(pause)

    def stop(self, container_id: str) -> None:
        self.cri.StopContainer(api_pb2.StopContainerRequest(container_id=container_id, timeout=5))

    def post(self, pod: str) -> None:
        spec = {"podName": pod, "containers": [{"name": "app"}]}
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": pod, "namespace": NAMESPACE},
            "spec": spec,
        }
        self.custom.create_namespaced_custom_object(*_COLLECTION, body)

    def patch(self, pod: str) -> None:
        """Restart the container as `kubectl recreate --via patch` does: read the pod, try the patch, and send it."""
        read = json.loads(self.core.read_namespaced_pod(pod, NAMESPACE, _preload_content=False).data)
        spec = {"strategy": {"orderedRecreate": False}, "containers": [{"name": "app"}]}
        meta = {"name": pod, "labels": {LABEL_RUN: "bench"}, "annotations": {}}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        operations = list(restart(read_member(read), {"metadata": meta, "spec": spec}, now))
        for options in ({"dry_run": "All"}, {}):
            self.core.patch_namespaced_pod(pod, NAMESPACE, operations, **options)

    def ready_again(self, pod: str) -> float:
        """The time at which a pod is seen ready with another instance; waits for it."""
        while True:
            status = self.core.read_namespaced_pod(pod, NAMESPACE).status.container_statuses[0]
            if status.ready and status.restart_count:
                return time.time()
            time.sleep(0.02)

    def finished_at(self, container_id: str, pause: float) -> float:
        """The Unix time at which the runtime says that the container ended; waits for it."""
        while True:
            asked = api_pb2.ContainerStatusRequest(container_id=container_id)
            if found := self.cri.ContainerStatus(asked).status.finished_at:
                return float(found) / 1e9
            time.sleep(pause)

    def completed(self) -> int:
        """The number of requests that have succeeded."""
        found = self.custom.list_namespaced_custom_object(*_COLLECTION)["items"]
        ended = [each["status"] for each in found if each.get("status", {}).get("phase") == "Completed"]
        if failed := [each for each in ended if each["containerRecreateStates"][0]["phase"] != "Succeeded"]:
            sys.exit(f"a request has failed: {failed[0]}")
        return len(ended)

    def all_at_once(self, count: int, way: str) -> None:
        """Restart the containers of so many new pods."""
        pods = self.fresh_pods(count)
        cpu, lists, calls = cpu_seconds(), self.lists(), self.calls()
        began = time.time()
        with ThreadPoolExecutor(count if way == HAND else AT_A_TIME) as pool:
            list(pool.map(self.stop, pods.values()) if way == HAND else pool.map(self.ask(way), pods))
        asked = time.time() - began
        took = sorted(self.finished_at(each, 0.02) - began for each in pods.values())
        self._until(lambda: (self.completed() if way == REQUEST else len(self._ready(1))) == count)
        over = time.time() - began
        time.sleep(3)  # what goes on behind it is part of the cost
        if way != HAND:
            self.note(f"{count} {SENT} answered ({AT_A_TIME} at a time), s", asked, way)
        self.note(f"{count} at once, stopped: p50, s", took[len(took) // 2], way)
        self.note(f"{count} at once, stopped: p99, s", took[int(len(took) * 0.99)], way)
        self.note(f"{count} at once, all ready again, or Completed, s", over, way)
        self.note(f"{count} at once, writes to the API server a restart", (self.calls() - calls) / count, way)
        if way == REQUEST:
            self.note(f"{count} at once, ListContainers a request", (self.lists() - lists) / count, way)
        after = cpu_seconds()
        for name in NAMES:
            if name in after:
                self.note(f"{count} at once, CPU: {name}, s", after[name] - cpu.get(name, 0.0), way)

    def ask(self, way: str) -> Callable[[str], None]:
        """How a pod's container is restarted in this way, by the pod's name."""
        return self.patch if way == PATCH else self.post

    def calls(self) -> float:
        """How many writes the API server has answered, leases and this bench's own deletions not counted."""
        api = self.core.api_client
        asked = api.call_api(*api.param_serialize("GET", "/metrics", auth_settings=["BearerToken"]))
        page = asked.read().decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == "apiserver_request_total"
            and sample.labels["verb"] in {"POST", "PUT", "PATCH", "APPLY"}
            and sample.labels["resource"] != "leases"
        )

    def posts_alone(self) -> None:
        """POST for each pod while there is no node daemon."""
        with self.without_daemon():
            count = max(BURSTS)
            pods = self.fresh_pods(count)
            began = time.time()
            with ThreadPoolExecutor(AT_A_TIME) as pool:
                list(pool.map(self.post, pods))
            self.note(f"{count} {SENT} answered ({AT_A_TIME} at a time), s", time.time() - began, HAND)
            self.custom.delete_collection_namespaced_custom_object(*_COLLECTION)

    @contextmanager
    def without_daemon(self) -> Iterator[None]:
        """The DaemonSet selects no node meanwhile."""
        namespace, name = DAEMON
        patch: Json = {"spec": {"template": {"spec": {"nodeSelector": {"crrd-bench": "none"}}}}}
        self.apps.patch_namespaced_daemon_set(name, namespace, patch)
        try:
            self._until(lambda: not self._daemons())
            yield
        finally:
            patch["spec"]["template"]["spec"]["nodeSelector"] = {"crrd-bench": None}
            self.apps.patch_namespaced_daemon_set(name, namespace, patch)
            self._until(lambda: any(each.status.container_statuses[0].ready for each in self._daemons()))

    def _daemons(self) -> list[Any]:
        """The node daemon's pods on the node."""
        where = f"spec.nodeName={self.node}"
        found = self.core.list_namespaced_pod(DAEMON[0], field_selector=where).items
        return [each for each in found if each.status.container_statuses]

    def lists(self) -> float:
        """How often the node daemon has called ListContainers."""
        (pod,) = self._daemons()
        port = next(each.container_port for each in pod.spec.containers[0].ports if each.name == "http")
        page = self.core.connect_get_namespaced_pod_proxy_with_path(f"{pod.metadata.name}:{port}", DAEMON[0], "metrics")
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == "crrd_cri_calls_total" and sample.labels["method"] == "ListContainers"
        )

    def one_at_a_time(self) -> None:
        """A request, a patch, a stop by hand, and so on."""
        pods = iter(self.fresh_pods(len(WAYS) * SINGLE).items())
        for _ in range(SINGLE):
            for way in WAYS:
                name, container_id = next(pods)
                began = time.time()
                self.core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": name}})
                self.note("one at a time: POST of a ConfigMap, ms", (time.time() - began) * 1e3, HAND)
                began = time.time()
                if way == HAND:
                    self.stop(container_id)
                else:
                    self.ask(way)(name)
                    self.note(f"one at a time: {SENT} ms", (time.time() - began) * 1e3, way)
                self.note("one at a time: to ready again, s", self.ready_again(name) - began, way)
                self.note("one at a time: to stopped, ms", (self.finished_at(container_id, 0.02) - began) * 1e3, way)
                time.sleep(1)

    def memory(self) -> None:
        """Of the node daemon of this machine."""
        for status, kind in (("VmRSS", "resident"), ("RssAnon", "anonymous")):
            for folder in processes("node daemon"):
                lines = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
                self.note(f"node daemon afterwards: {kind}, MiB", int(lines[status].split()[0]) / 1024, REQUEST)

    def report(self) -> None:
        """The rows as a table: medians of the rounds, and the lowest and highest."""
        print(f"| | {' | '.join(WAYS)} |\n|---|---|---|---|")
        for row, columns in self.rows.items():
            print(f"| {row} | {' | '.join(map(shown, columns.values()))} |")


def shown(values: list[float]) -> str:
    """A cell."""
    if not values:
        return ""
    middle = f"{statistics.median(values):.3g}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.3g} to {max(values):.3g})"


def main() -> None:
    """Measure, and print the table."""
    warnings.filterwarnings("ignore")
    bench = Bench()
    if NAMESPACE not in [each.metadata.name for each in bench.core.list_namespace().items]:
        bench.core.create_namespace({"metadata": {"name": NAMESPACE}})
    try:
        for number in range(ROUNDS):
            print(f"round {number + 1} of {ROUNDS}", file=sys.stderr)
            for count in BURSTS:
                for way in WAYS:
                    bench.all_at_once(count, way)
            bench.one_at_a_time()
            bench.memory()
            bench.posts_alone()
        bench.report()
    finally:
        bench.core.delete_namespace(NAMESPACE)


if __name__ == "__main__":
    main()
