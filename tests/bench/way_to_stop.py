"""How long the node daemon takes from a watch event's bytes to StopContainer on the wire, on a node with many pods.

Run from the project's root: `python -m tests.bench.way_to_stop [--pods 110] [--kib 10]`. API server, kubelet and
runtime are stand-ins, the runtime in a process of its own, which answer from prepared bytes over TLS and a unix socket,
after the latency of a real API server (`latency`) and of a runtime that gets slower with each call under way. The
daemon is crrd itself, so what is measured is the daemon, on the machine's one monotonic clock. Four ways: idle before;
the same after the API server has closed all connections but that of the requests' watch, as it does after 90 s; busy
(another request is served all the while); and all pods at once. Beside it, what it cannot go below: its two calls of
the runtime alone, one after the other, by the same client.
"""

import argparse
import asyncio
import json
import ssl
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from cri_stubs import api_pb2
from crrd.cri.client import CriClient
from crrd.manager.certificates.pki import CERTIFICATE, KEY, to_data
from crrd_localnode.api.patches import merge_patch
from crrd_localnode.daemons import Daemon
from tests.bench.latency import pass_time
from tests.bench.recreate import SETTLED_SECONDS, cpu_seconds, memory, p99
from tests.support.scripted_cri import Context, ScriptedRuntime, labels, serving
from tests.support.webhook import new_certificates

Json = dict[str, Any]
NODE, NAMESPACE = "bench", "shop"
KUBELET_SECONDS = 0.03
"""From a container's end to its next instance."""
BUSY_SECONDS = 0.001
"""By which each call to the runtime that is under way holds up the next one. containerd 2.1 on two cores stops 90
containers at once in 1.2 s, and one in 10 ms."""
MANAGER_SECONDS = 0.02
"""From a request's completion until the manager has taken its label: it is heard of after the write's answer."""


def _line(kind: str, obj: Json) -> bytes:
    return json.dumps({"type": kind, "object": obj}, separators=(",", ":")).encode() + b"\n"


def pod(number: int, size: int) -> Json:
    """A running pod of so many bytes of JSON, most of them in its variables and its managed fields."""
    name = f"web-{number}"
    container = {"name": "app", "image": "registry.example/team/service:v1.2.3", "env": []}
    status = {"name": "app", "containerID": f"containerd://{name}-0", "ready": True, "restartCount": 0}
    made = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": NAMESPACE, "name": name, "uid": f"uid-{name}", "resourceVersion": "10"},
        "spec": {"nodeName": NODE, "containers": [container], "terminationGracePeriodSeconds": 30},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "containerStatuses": [{**status, "state": {"running": {}}}],
        },
    }
    fields: Json = {"f:metadata": {}}
    made["metadata"]["managedFields"] = [{"manager": "kubelet", "operation": "Update", "fieldsV1": fields}]  # type: ignore[index]
    count = 0
    while len(json.dumps(made)) < size:
        container["env"].append({"name": f"VARIABLE_{count}", "value": f"value {count} of {name}"})  # type: ignore[attr-defined]
        fields["f:metadata"][f"f:field-{count}"] = {".": {}, "f:one": {}, "f:other": {}}
        count += 1
    return made


def _send(writer: asyncio.StreamWriter, answer: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(answer)
    writer.write(head + answer)


class Api:
    """What of an API server a node daemon asks for: lists, watches and merge patches, over HTTP/1.1."""

    def __init__(self, pods: list[Json]) -> None:
        self.version = 100
        self.pods = {found["metadata"]["name"]: found for found in pods}
        self.requests: dict[str, Json] = {}
        self.calls: Counter[str] = Counter()
        self.completed = asyncio.Event()
        self.watched = asyncio.Event()
        """The daemon watches requests."""
        self._open: set[asyncio.StreamWriter] = set()
        self._watches: dict[asyncio.StreamWriter, tuple[str, str]] = {}
        self._prepared: dict[str, bytes] = {}
        self._encode()

    def _encode(self) -> None:
        for name, found in self.pods.items():
            self._prepared[name] = json.dumps(found, separators=(",", ":")).encode()

    def tell(self, plural: str, kind: str, obj: Json) -> None:
        """One event for every watch that selects the object."""
        line = _line(kind, obj)
        for writer, (watched, name) in list(self._watches.items()):
            if watched == plural and name in ("", obj["metadata"]["name"]):
                writer.write(b"%x\r\n%s\r\n" % (len(line), line))

    def change_pod(self, name: str, status: Json) -> None:
        """Kubelet reports."""
        self.version += 1
        found = self.pods[name]
        meta = {**found["metadata"], "resourceVersion": str(self.version)}
        self.pods[name] = {**found, "metadata": meta, "status": {**found["status"], "containerStatuses": [status]}}
        self._prepared[name] = json.dumps(self.pods[name], separators=(",", ":")).encode()
        self.tell("pods", "MODIFIED", self.pods[name])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.calls["connections"] += 1
        self._open.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, target, *_ = head.split(b" ", 2)
                length = next(
                    (int(row[15:]) for row in head.split(b"\r\n") if row.lower().startswith(b"content-length")), 0
                )
                body = await reader.readexactly(length) if length else b""
                await self._answer(method.decode(), target.decode(), body, writer)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            self._watches.pop(writer, None)
        finally:
            self._open.discard(writer)
            writer.close()

    def close_unused(self) -> None:
        """Close all connections but those of watches."""
        for writer in self._open - self._watches.keys():
            writer.close()

    async def _answer(self, method: str, target: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        path, _, query = target.partition("?")
        if path == "/version":
            _send(writer, b'{"major":"1","minor":"36","gitVersion":"v1.36.2"}')
            return
        parts = path.strip("/").split("/")
        plural = next(part for part in parts if part in ("pods", "events", "containerrecreaterequests"))
        name = query.partition("metadata.name%3D")[2] or query.partition("metadata.name=")[2]
        name = name.replace("%2C", "&").replace(",", "&").partition("&")[0]
        verb = {"PATCH": "patch", "POST": "create"}.get(method, "watch" if "watch=true" in query else "list")
        self.calls[f"{verb} {plural}"] += 1
        await pass_time(method)
        if verb == "watch":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            self._watches[writer] = (plural, name)
            if plural == "containerrecreaterequests":
                self.watched.set()
            else:
                self._catch_up(writer, name, int(query.partition("resourceVersion=")[2].partition("&")[0]))
            return
        if verb == "list":
            found = self._prepared if plural == "pods" else {}
            items = [found[name]] if name in found else found.values()
            meta = b'{"kind":"List","metadata":{"resourceVersion":"%d"},"items":[' % self.version
            answer = meta + b",".join(items) + b"]}"
        elif verb == "patch":
            answer = json.dumps(self._patch(parts[parts.index(plural) + 1], json.loads(body))).encode()
        else:
            answer = body
        _send(writer, answer)

    def _catch_up(self, writer: asyncio.StreamWriter, name: str, version: int) -> None:
        """Tell a new watch of what changed after the list that it goes on from."""
        for pod_name, found in self.pods.items():
            if name in ("", pod_name) and int(found["metadata"]["resourceVersion"]) > version:
                line = _line("MODIFIED", found)
                writer.write(b"%x\r\n%s\r\n" % (len(line), line))

    def _patch(self, name: str, patch: Json) -> Json:
        patch["metadata"].pop("resourceVersion", None)
        self.version += 1
        new: Json = merge_patch(self.requests[name], patch)
        new["metadata"]["resourceVersion"] = str(self.version)
        self.requests[name] = new
        self.tell("containerrecreaterequests", "MODIFIED", new)
        if new["status"]["phase"] == "Completed":
            gone = self.requests.pop(name)
            asyncio.get_running_loop().call_later(
                MANAGER_SECONDS, self.tell, "containerrecreaterequests", "DELETED", gone
            )
            self.completed.set()
        return new

    def delete(self, name: str) -> None:
        """Somebody deletes a request."""
        self.version += 1
        gone = self.requests.pop(name)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self.tell("containerrecreaterequests", "DELETED", gone)

    def post(self, number: int, pod_name: str) -> str:
        """A new request as admission makes it."""
        self.version += 1
        found = self.pods[pod_name]
        (status,) = found["status"]["containerStatuses"]
        name = f"{pod_name}-{number}"
        label = "crr.apps.kruise.io"
        meta = {"namespace": NAMESPACE, "name": name, "uid": f"uid-{name}", "resourceVersion": str(self.version)}
        meta["labels"] = {
            f"{label}/node-name": NODE,
            f"{label}/active": "true",
            f"{label}/pod-uid": found["metadata"]["uid"],
        }  # type: ignore[assignment]
        context = {key: status[key] for key in ("containerID", "restartCount")}
        spec = {"podName": pod_name, "containers": [{"name": "app", "statusContext": context}]}
        meta["creationTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        body = {
            "apiVersion": "apps.kruise.io/v1alpha1",
            "kind": "ContainerRecreateRequest",
            "metadata": meta,
            "spec": spec,
        }
        self.requests[name] = body
        self.tell("containerrecreaterequests", "ADDED", body)
        return name


class Runtime(ScriptedRuntime):
    """A runtime whose containers are started again by a kubelet; what becomes of them is printed, a line each."""

    def __init__(self, pods: int) -> None:
        super().__init__(name="containerd", version="2.1.0")
        self._under_way = 0
        for number in range(pods):
            self.start(f"web-{number}", 0)

    def start(self, pod_name: str, count: int) -> None:
        """One more instance."""
        status = api_pb2.ContainerStatus(
            id=f"{pod_name}-{count}",
            state=api_pb2.CONTAINER_RUNNING,
            labels=labels(f"uid-{pod_name}", "app", pod_name, NAMESPACE),
            annotations={"io.kubernetes.container.restartCount": str(count)},
            metadata=api_pb2.ContainerMetadata(name="app", attempt=count),
            created_at=time.time_ns(),
        )
        self.containers = [one for one in self.containers if one.labels["io.kubernetes.pod.name"] != pod_name]
        self.containers.append(status)

    async def handle(self, method: str, request: Message, context: Context) -> Message | bytes:
        self._under_way += 1
        await asyncio.sleep(BUSY_SECONDS * (self._under_way - 1))
        self._under_way -= 1
        if method == "StopContainer":
            assert isinstance(request, api_pb2.StopContainerRequest)
            print("stopped", request.container_id, time.perf_counter(), flush=True)
            asyncio.get_running_loop().call_later(KUBELET_SECONDS, self._again, request.container_id)
        return await super().handle(method, request, context)

    def _again(self, container_id: str) -> None:
        pod_name, _, number = container_id.rpartition("-")
        count = int(number) + 1
        self.start(pod_name, count)
        print("started", pod_name, count, flush=True)


async def serve_runtime(path: Path, pods: int) -> None:
    """Be the runtime, until standard input ends."""
    async with serving(Runtime(pods), path):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


class BenchKubelet:
    """Tells the API server what has become of the runtime's containers, and this bench when they were stopped."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.stopped: dict[str, float] = {}
        self.stuck: set[str] = set()
        """Pods whose next instance never gets ready."""

    @asynccontextmanager
    async def running(self, path: Path) -> AsyncIterator[str]:
        """The runtime as a process of its own, as on a node: it does not wait while an API server answers."""
        command = ("-m", __spec__.name, "--only-runtime", str(path), "--pods", str(len(self._api.pods)))
        pipe = asyncio.subprocess.PIPE
        runtime = await asyncio.create_subprocess_exec(sys.executable, *command, stdin=pipe, stdout=pipe)
        assert runtime.stdin is not None
        assert runtime.stdout is not None
        await runtime.stdout.readline()
        follow = asyncio.create_task(self._follow(runtime.stdout))
        try:
            yield f"unix://{path}"
        finally:
            runtime.stdin.close()
            await runtime.wait()
            await follow

    async def _follow(self, lines: asyncio.StreamReader) -> None:
        async for line in lines:
            match line.decode().split():
                case "stopped", container_id, at:
                    self.stopped[container_id] = float(at)
                case "started", pod_name, count:
                    self._report(pod_name, int(count))

    def _report(self, pod_name: str, count: int) -> None:
        status = {"name": "app", "containerID": f"containerd://{pod_name}-{count}", "restartCount": count}
        ready = pod_name not in self.stuck
        self._api.change_pod(pod_name, {**status, "ready": ready, "state": {"running": {}}})


async def _once(api: Api, kubelet: BenchKubelet, number: int, names: list[str]) -> list[float]:
    """Seconds from each request's event to its stop; returns when all requests have ended."""
    sent: dict[str, float] = {}
    waiting = set()
    for name in names:
        (status,) = api.pods[name]["status"]["containerStatuses"]
        sent[status["containerID"].removeprefix("containerd://")] = time.perf_counter()
        waiting.add(api.post(number, name))
    while waiting & api.requests.keys():
        api.completed.clear()
        await api.completed.wait()
    return [kubelet.stopped[bare_id] - began for bare_id, began in sent.items()]


def _row(what: str, values: list[float]) -> None:
    print(f"  {what:28} p50 {statistics.median(values) * 1000:7.2f} ms   p99 {p99(values) * 1000:7.2f} ms", flush=True)


async def run(args: argparse.Namespace) -> None:
    """Measure and print."""
    api = Api([pod(number, args.kib * 1024) for number in range(args.pods)])
    kubelet = BenchKubelet(api)
    with tempfile.TemporaryDirectory(prefix="crrd-bench-") as folder:
        root = Path(folder)
        certificates = new_certificates()
        data = to_data(certificates)
        pem = root / "server.pem"
        pem.write_bytes(data[CERTIFICATE] + data[KEY])
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(pem)
        (root / "ca.crt").write_bytes(certificates.bundle)
        server = await asyncio.start_server(api.serve, "127.0.0.1", 0, ssl=tls, limit=2**20)
        cluster = {"server": f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
        cluster["certificate-authority"] = str(root / "ca.crt")
        named = {"name": "bench", "context": {"cluster": "bench", "user": "bench"}}
        config = {"current-context": "bench", "contexts": [named], "clusters": [{"name": "bench", "cluster": cluster}]}
        config["users"] = [{"name": "bench", "user": {"token": "x"}}]
        (root / "kubeconfig").write_text(json.dumps(config), encoding="utf-8")
        async with kubelet.running(root / "cri.sock") as endpoint:
            alone = await _alone(kubelet, endpoint, min(args.busy, args.pods - 1))
            flags = ("--node-name", NODE, "--cri-endpoint", endpoint, "--log-level", "info")
            async with Daemon("node", root / "node.log", root / "kubeconfig", *flags) as daemon:
                await api.watched.wait()
                await _measure(api, kubelet, daemon.pid, args)
                _row("the two CRI calls alone", alone)
        server.close()


async def call_alone(endpoint: str, count: int) -> None:
    """The two calls on the way to a stop, for so many pods; prints when each pair began."""
    client = CriClient(endpoint)
    await client.version()
    for number in range(1, count + 1):
        await asyncio.sleep(0.1)
        began = time.perf_counter()
        await client.list_containers(pod_uid=f"uid-web-{number}")
        await client.stop_container(f"web-{number}-0", 30)
        print(began, flush=True)
    await client.close()


async def _alone(kubelet: BenchKubelet, endpoint: str, count: int) -> list[float]:
    """Seconds from the first of the two calls to the stop, made by a process of its own."""
    command = ("-m", __spec__.name, "--only-calls", endpoint, "--busy", str(count))
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    began = map(float, out.split())
    return [kubelet.stopped[f"web-{number}-0"] - at for number, at in enumerate(began, 1)]


async def _settled(api: Api) -> None:
    """Wait until the daemon has written its last event, and given memory back."""
    calls = None
    while calls != api.calls:
        calls = Counter(api.calls)
        await asyncio.sleep(SETTLED_SECONDS)


async def _measure(api: Api, kubelet: BenchKubelet, pid: int, args: argparse.Namespace) -> None:
    names = list(api.pods)
    print(f"way to the stop: {args.pods} pods of {args.kib} KB on the node, from the watch event to StopContainer")
    await asyncio.sleep(SETTLED_SECONDS)
    fresh = memory(pid)
    idle = []
    for number in range(args.singles):
        await asyncio.sleep(args.idle)
        idle += await _once(api, kubelet, number, [names[-1]])
    _row(f"idle for {args.idle:g} s before", idle)
    cold = []
    for number in range(args.singles):
        await asyncio.sleep(SETTLED_SECONDS)  # the last event of the one before has been written
        api.close_unused()
        await asyncio.sleep(1.0)
        cold += await _once(api, kubelet, 500 + number, [names[-1]])
    _row("idle, without a connection", cold)
    kubelet.stuck.add(names[0])
    stuck = api.post(0, names[0])
    await asyncio.sleep(2.0)
    before, cpu, busy = Counter(api.calls), cpu_seconds(pid), []
    for number in range(args.busy):
        await asyncio.sleep(0.1)
        busy += await _once(api, kubelet, 1000 + number, [names[1 + number % (len(names) - 1)]])
    _row("busy", busy)
    used = (cpu_seconds(pid) - cpu) / args.busy * 1000
    calls = {what: round(count / args.busy, 2) for what, count in (api.calls - before).items()}
    print(f"  CPU of the daemon {used:.1f} ms a request; calls a request {calls}")
    before, cpu = Counter(api.calls), cpu_seconds(pid)
    burst = await _once(api, kubelet, 5000, names[1:])
    _row(f"{len(names) - 1} at once", burst)
    used = (cpu_seconds(pid) - cpu) / len(burst) * 1000
    calls = {what: round(count / len(burst), 2) for what, count in (api.calls - before).items()}
    print(f"  CPU of the daemon {used:.1f} ms a request; calls a request {calls}")
    api.delete(stuck)
    await _settled(api)
    sizes = {"fresh": fresh, "after these": memory(pid)}
    for begun in range(0, args.many, len(names) - 1):
        print(f"\r  {begun} of {args.many} requests more", end="", file=sys.stderr, flush=True)
        await _once(api, kubelet, 10_000 + begun, names[1:])
    print("\r", end="", file=sys.stderr, flush=True)
    await _settled(api)
    sizes[f"after {args.many} more"] = memory(pid)
    for what, found in sizes.items():
        print(f"  memory {what}: " + ", ".join(f"{key} {value:.1f} MiB" for key, value in found.items()), flush=True)


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=(__doc__ or "-").splitlines()[0])
    parser.add_argument("--pods", type=int, default=110, help="pods on the node (default: %(default)s)")
    parser.add_argument("--kib", type=int, default=10, help="size of one pod (default: %(default)s)")
    parser.add_argument("--idle", type=float, default=17.0, help="seconds without requests (default: %(default)s)")
    parser.add_argument("--singles", type=int, default=7, help="requests after an idle time (default: %(default)s)")
    parser.add_argument("--busy", type=int, default=60, help="requests beside another one (default: %(default)s)")
    parser.add_argument("--many", type=int, default=10_000, help="requests before the last row (default: %(default)s)")
    parser.add_argument("--only-calls", metavar="ENDPOINT", help="make the two calls alone, and print when")
    parser.add_argument("--only-runtime", metavar="SOCKET", type=Path, help="be the runtime")
    args = parser.parse_args()
    if args.only_calls:
        asyncio.run(call_alone(args.only_calls, args.busy))
    else:
        asyncio.run(serve_runtime(args.only_runtime, args.pods) if args.only_runtime else run(args))


if __name__ == "__main__":
    main()
