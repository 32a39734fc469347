"""`make bench CLUSTER=1`: crrd on a real cluster, beside the same stops by hand, in turn.

For a cluster for tests only, with crrd installed: the node daemon is taken away for a while. Needs KUBECONFIG,
CRRD_TEST_CRI_ENDPOINT (the runtime's socket), CRRD_TEST_NODE (its node, best this machine) and CRRD_TEST_IMAGE (a
busybox that the node has). CPU is read from this machine's /proc; a process that is not here has no row.

Absolute times differ between machines, and on one machine by a factor of two within an hour: compare the columns.
"""

import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from kubernetes import client, config
from prometheus_client.parser import text_string_to_metric_families

from cri_stubs import api_pb2, api_pb2_grpc
from crrd.core.api.types import API_VERSION, GROUP, KIND, PLURAL, VERSION

VARIABLES = ("CRRD_TEST_CRI_ENDPOINT", "CRRD_TEST_NODE", "CRRD_TEST_IMAGE")
NAMESPACE = "crrd-bench"
BURSTS, ROUNDS, SINGLE = (90, 30), 5, 12
PAD_BYTES = 8000
"""Of an annotation of each pod: pods of real clusters are not small."""
POSTERS = 16
DAEMON = ("crrd-node", "crrd-node")
"""Namespace and name of the node daemon's DaemonSet."""
ENDS_ON_SIGTERM = "trap 'exit 0' TERM; sleep 1000000 & wait"
NAMES = ("kube-apiserver", "etcd", "containerd", "kubelet", "node daemon", "managers")
_TICKS = os.sysconf("SC_CLK_TCK")
_COLLECTION = (GROUP, VERSION, NAMESPACE, PLURAL)
Json = dict[str, Any]


class Bench:
    """A cluster, the runtime of one of its nodes, and what was measured there: row -> by hand and by request, each."""

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
        self.rows: dict[str, tuple[list[float], list[float]]] = {}

    def note(self, row: str, value: float, *, by_request: bool) -> None:
        self.rows.setdefault(row, ([], []))[by_request].append(value)

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

    def all_at_once(self, count: int, *, by_request: bool) -> None:
        """Stop the containers of so many new pods, by hand or by a request each."""
        pods = self.fresh_pods(count)
        cpu, lists = cpu_seconds(), self.lists()
        began = time.time()
        with ThreadPoolExecutor(POSTERS if by_request else count) as pool:
            list(pool.map(self.post, pods) if by_request else pool.map(self.stop, pods.values()))
        posted = time.time() - began
        took = sorted(self.finished_at(each, 0.02) - began for each in pods.values())
        if by_request:
            self._until(lambda: self.completed() == count)
        else:
            self._until(lambda: len(self._ready(1)) == count)
        over = time.time() - began
        time.sleep(3)  # what goes on behind it is part of the cost
        if by_request:
            self.note(f"{count} POSTs answered ({POSTERS} at a time), s", posted, by_request=True)
        self.note(f"{count} at once, stopped: p50, s", took[len(took) // 2], by_request=by_request)
        self.note(f"{count} at once, stopped: p99, s", took[int(len(took) * 0.99)], by_request=by_request)
        self.note(f"{count} at once, all ready again, or Completed, s", over, by_request=by_request)
        if by_request:
            self.note(f"{count} at once, ListContainers a request", (self.lists() - lists) / count, by_request=True)
        after = cpu_seconds()
        for name in NAMES:
            if name in after:
                self.note(f"{count} at once, CPU: {name}, s", after[name] - cpu.get(name, 0.0), by_request=by_request)

    def posts_alone(self) -> None:
        """POST for each pod while there is no node daemon."""
        with self.without_daemon():
            count = max(BURSTS)
            pods = self.fresh_pods(count)
            began = time.time()
            with ThreadPoolExecutor(POSTERS) as pool:
                list(pool.map(self.post, pods))
            self.note(f"{count} POSTs answered ({POSTERS} at a time), s", time.time() - began, by_request=False)
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
        """A request, then a stop by hand, and so on."""
        pods = iter(self.fresh_pods(2 * SINGLE).items())
        for _ in range(SINGLE):
            name, container_id = next(pods)
            began = time.time()
            self.post(name)
            answered = time.time()
            stopped = self.finished_at(container_id, 0.02)
            self.note("one at a time: POST, ms", (answered - began) * 1e3, by_request=True)
            self.note("one at a time: to stopped, ms", (stopped - answered) * 1e3, by_request=True)
            time.sleep(1)
            began = time.time()
            self.core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": name}})
            self.note("one at a time: POST, ms", (time.time() - began) * 1e3, by_request=False)
            _, container_id = next(pods)
            began = time.time()
            self.stop(container_id)
            self.note(
                "one at a time: to stopped, ms", (self.finished_at(container_id, 0.02) - began) * 1e3, by_request=False
            )
            time.sleep(1)

    def memory(self) -> None:
        """Of the node daemon of this machine."""
        for status, kind in (("VmRSS", "resident"), ("RssAnon", "anonymous")):
            for folder in processes("node daemon"):
                lines = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
                self.note(f"node daemon afterwards: {kind}, MiB", int(lines[status].split()[0]) / 1024, by_request=True)

    def report(self) -> None:
        """The rows as a table: medians of the rounds, and the lowest and highest."""
        print("| | by hand | by request |\n|---|---|---|")
        for row, columns in self.rows.items():
            print(f"| {row} | {' | '.join(map(shown, columns))} |")


def shown(values: list[float]) -> str:
    """A cell."""
    if not values:
        return ""
    middle = f"{statistics.median(values):.3g}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.3g} to {max(values):.3g})"


def processes(name: str) -> Iterator[Path]:
    """The processes of this machine by one of NAMES, as folders of /proc."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
            short = (folder / "comm").read_text().strip()
        except OSError:  # it has just ended
            continue
        crrd = any(Path(word).name == "crrd" for word in words[:3])
        kind = "node daemon" if crrd and "node" in words else "managers" if crrd and "manager" in words else short
        if kind == name:
            yield folder


def cpu_seconds() -> dict[str, float]:
    """Seconds of CPU that the processes of NAMES have used; without those that are not on this machine."""
    found: dict[str, float] = {}
    for name in NAMES:
        for folder in processes(name):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            found[name] = found.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / _TICKS
    return found


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
                bench.all_at_once(count, by_request=True)
                bench.all_at_once(count, by_request=False)
            bench.one_at_a_time()
            bench.memory()
            bench.posts_alone()
        bench.report()
    finally:
        bench.core.delete_namespace(NAMESPACE)


if __name__ == "__main__":
    main()
