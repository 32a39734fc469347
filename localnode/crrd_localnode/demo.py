"""`crrd demo`: starts a local node and a pod, and restarts a container of it before anything of crrd is installed.

Then it installs crrd, creates a request, and shows live what it changes. `crrd recreate` recreates a workload of three
pods, a policy applies a changed ConfigMap to the same pods, and `crrd recreate --image` gives one of their containers
another image. The demo removes everything at its end, however it ends; with `--keep` it first waits for Ctrl-C.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import structlog

from crrd.core.api.pod import Pod, parse_pod
from crrd.core.api.types import API_VERSION, KIND, Request
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.policy.types import API_VERSION as POLICY_API_VERSION
from crrd.core.policy.types import KIND as POLICY_KIND
from crrd.cri.client import CriClient
from crrd.cri.discovery import discover
from crrd.kube.client import KubeClient
from crrd.kube.resources import CONFIG_MAPS, PODS, POLICIES, REQUESTS, Resource
from crrd.lib.errors import CrrdError
from crrd_localnode import leftovers
from crrd_localnode.apiserver import ApiServer
from crrd_localnode.daemons import node_daemon, running_manager
from crrd_localnode.demo_view import Row, Snapshot, View, image_rows, pod_rows
from crrd_localnode.node import LocalNode
from crrd_localnode.workload import Maker

CRDS = Resource("customresourcedefinitions", "apiextensions.k8s.io")
NAMESPACE, POD, REQUEST, WORKLOAD = "default", "demo", "restart-app", "web"
NEXT_IMAGE = "side:2"  # A runtime of plain processes runs the same programs with any image
PATIENCE_SECONDS = 60.0
IN_VOLUME = "$CRRD_ROOT/data/hook"
"""A file in the pod's volume. A runtime of plain processes sets the variable if it cannot mount `/data`."""
SHELL_LOOP = "trap 'echo got TERM; exit 0' TERM; while true; do sleep 0.1; done"


def run_demo(*, cri_endpoints: Sequence[str], image: str, keep: bool) -> int:
    """Run the demo. Return 0 if the container was recreated, else 1.

    `cri_endpoints` are the sockets of a real runtime (ConfigurationError if it cannot be used); empty for plain
    processes. `image` contains a shell. `keep` leaves everything running until Ctrl-C.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))  # the node daemon logs to a file
    return asyncio.run(_until_signal(_Demo(View(), image).run(list(cri_endpoints), keep=keep)))


async def _until_signal(demo: Coroutine[Any, Any, int]) -> int:
    """Run the demo. SIGTERM and SIGHUP (a closed terminal) end it and everything that it has started, like Ctrl-C."""
    loop, received = asyncio.get_running_loop(), 0
    task = asyncio.ensure_future(demo)

    def end(number: int) -> None:
        nonlocal received
        if not received:  # a second signal does not interrupt the cleanup
            received = number
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
            loop.add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        return 128 + received


class _Demo:
    """One run of the demo."""

    def __init__(self, view: View, image: str) -> None:
        self._view = view
        self._image = image
        self._policy_message = ""

    async def run(self, cri_endpoints: list[str], *, keep: bool) -> int:
        """Set up, show, compare and clean up."""
        endpoint = (await discover(cri_endpoints))[0].endpoint if cri_endpoints else ""
        for folder in await leftovers.clear():
            self._view.print_line(f"removed the remains of an earlier demo: {folder}")
        async with AsyncExitStack() as stack:
            runtime = endpoint or "a runtime of plain processes"
            self._view.print_line(f"starting a local node: API server, kubelet, {runtime}")
            api = ApiServer()
            crds, api.crds = api.crds, []
            node = await stack.enter_async_context(LocalNode(cri_endpoint=endpoint, api=api))
            try:
                ok = await self._restart_by_patch(node)
                for crd in crds:
                    await node.client.create(CRDS, "", crd)
                return 0 if await self._play(node, stack, endpoint, keep=keep) and ok else 1
            except TimeoutError:
                self._view.print_line(f"timed out after {PATIENCE_SECONDS:.0f}s")
                if endpoint:
                    self._view.print_line("use an image that the runtime has or can pull: --image (crictl images)")
                    self._view.print_line("stop this machine's own kubelet, if any, because it removes the demo's pod")
                return 1
            finally:
                with suppress(CrrdError, TimeoutError):
                    for pod in await _pods(node.client):
                        await node.client.delete(PODS, NAMESPACE, pod.name)
                    await _until_pods(node.client, lambda pods: not pods)  # so that a real runtime is left as it was

    async def _restart_by_patch(self, node: LocalNode) -> bool:
        """Restart a container of the demo's pod with nothing of crrd in the cluster. Return whether it succeeded."""
        await node.client.create(PODS, NAMESPACE, self._pod(node))
        self._view.print_line(f'creating pod "{POD}": "app" with a preStop hook that writes into a volume, and "side"')
        before = await self._pod_ready(node.client)
        self._view.print_line("nothing of crrd is installed: the command writes the pod's image in another way,")
        self._view.print_line("so kubelet restarts the container with the same image")
        done = await self._recreate(node, f"pod/{POD}", "-c", "app")
        after = await self._pod_ready(node.client)
        hook: Row = ("preStop hook runs", "0", await _hook_runs(node, after))
        self._view.summary([*pod_rows(before, after), *image_rows("app", before, after), hook])
        return done

    async def _play(self, node: LocalNode, stack: AsyncExitStack, endpoint: str, *, keep: bool) -> bool:
        """Show what the daemons add. Return whether all succeeded."""
        client = node.client
        before = await self._pod_ready(client)
        runs = await _hook_runs(node, before)
        self._view.print_line("installing crrd: its CRDs, crrd manager (admission, lifecycle) and crrd node")
        manager = await stack.enter_async_context(running_manager(node))
        daemon = await stack.enter_async_context(node_daemon(node))
        self._view.print_line(f"manager {manager.pid} and node daemon {daemon.pid} are ready; logs: {node.root}")
        self._view.print_line(f'creating ContainerRecreateRequest "{REQUEST}" for container "app"')
        # As a user writes it. Admission adds labels, defaults and the container's ID.
        request = _object(API_VERSION, KIND, REQUEST, {"podName": POD, "containers": [{"name": "app"}]})
        created = await client.create(REQUESTS, NAMESPACE, request)
        final = await self._follow(client, parse_request(created))
        after = await self._pod_ready(client)
        hook: Row = ("preStop hook runs", runs, await _hook_runs(node, after))
        ended: Row = ("request", "-", f"{final.status.phase}: {final.status.message}")
        self._view.summary([*pod_rows(before, after), hook, ended])
        ok = all(state.phase.value == "Succeeded" for state in final.status.states)
        ok = await self._recreate_workload(node) and ok
        ok = await self._edit_configuration(node.client, node.cri_endpoint) and ok
        if not endpoint:  # a real runtime may not have a second image
            ok = await self._replace_image(node) and ok
        if keep:
            self._view.print_line("running until Ctrl-C; to use it in another terminal (docs/local-testing.md):")
            self._view.print_line(f"export KUBECONFIG={node.kubeconfig} CONTAINER_RUNTIME_ENDPOINT={node.cri_endpoint}")
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return ok

    async def _recreate_workload(self, node: LocalNode) -> bool:
        """Create three pods of a Deployment, and restart a container of each. Return whether it succeeded."""
        spec = self._spec(node, {"name": "app"}, {"name": "side", "envFrom": [{"configMapRef": {"name": WORKLOAD}}]})
        names = f'ConfigMap "{WORKLOAD}" and Deployment "{WORKLOAD}"'
        self._view.print_line(f'creating {names} of three pods, whose "side" uses it')
        config = {"metadata": {"name": WORKLOAD}, "data": {"GREETING": "hello"}}
        await node.client.create(CONFIG_MAPS, NAMESPACE, config)
        await Maker(node.client, NAMESPACE).workload("Deployment", WORKLOAD, 3, spec)
        await _until_pods(node.client, lambda pods: all(map(_all_ready, pods)))
        return await self._recreate(node, f"deployment/{WORKLOAD}", "-c", "app", "--reason", "demo")

    async def _recreate(self, node: LocalNode, *words: str) -> bool:
        """Run `crrd recreate`. Return whether it succeeded."""
        arguments = ["recreate", *words]
        self._view.pause()
        self._view.print_line(f"kubectl {' '.join(arguments)}")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "crrd", *arguments, "--kubeconfig", str(node.kubeconfig), "-n", NAMESPACE),
            env={**os.environ, "NO_COLOR": "1"} if not sys.stdout.isatty() else None,
        )
        try:
            return await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _replace_image(self, node: LocalNode) -> bool:
        """Give a container of the Deployment's pods another image. The pods stay."""
        before = await _images(node.client)
        flags = ("--image", NEXT_IMAGE, "--template", "keep", "--max-unavailable", "100%", "--min-ready", "0")
        done = await self._recreate(node, f"deployment/{WORKLOAD}", "-c", "side", *flags)
        after = await _images(node.client)
        self._view.summary([(name, old, new) for (name, _, old), (*_, new) in zip(before, after, strict=True)])
        return done and [each[:2] for each in before] == [each[:2] for each in after]

    async def _edit_configuration(self, client: KubeClient, endpoint: str) -> bool:
        """Create a policy for the Deployment, and edit its ConfigMap. The same pods get the change."""
        self._view.print_line(f'creating ContainerRecreatePolicy "{WORKLOAD}" for the Deployment')
        await client.create(POLICIES, NAMESPACE, _policy())
        await self._until_policy(client, lambda status: bool(status.get("config")))
        before = [await _greeting(pod, endpoint) for pod in await _workload_pods(client)]
        self._view.print_line(f'editing ConfigMap "{WORKLOAD}": GREETING: welcome')
        await client.merge_patch(CONFIG_MAPS, NAMESPACE, WORKLOAD, {"data": {"GREETING": "welcome"}})
        status = await self._until_policy(client, lambda status: bool(status.get("run", {}).get("finished")))
        after = [await _greeting(pod, endpoint) for pod in await _workload_pods(client)]
        self._view.summary([(name, old, new) for (name, _, old), (*_, new) in zip(before, after, strict=True)])
        self._view.print_line(f"policy: {status['run']['message']}")
        same = [uid for _, uid, _ in before] == [uid for _, uid, _ in after]
        return same and {value for *_, value in after} == {"welcome"}

    async def _until_policy(
        self, client: KubeClient, condition: Callable[[Mapping[str, Any]], bool]
    ) -> Mapping[str, Any]:
        """Return the policy's status when it meets the condition. Meanwhile, show what the policy waits for."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                status: Mapping[str, Any] = (await client.get(POLICIES, NAMESPACE, WORKLOAD)).get("status") or {}
                message = "".join(each["message"] for each in status.get("conditions", ()) if each["type"] == "Ready")
                if message not in ("", self._policy_message):
                    self._view.print_line(f"policy: {message}")
                    self._policy_message = message
                if condition(status):
                    return status
                await asyncio.sleep(0.1)

    def _spec(self, node: LocalNode, *containers: dict[str, Any]) -> dict[str, Any]:
        """Return the spec of a pod whose containers wait for SIGTERM."""
        command = {"command": ["sh", "-c", SHELL_LOOP], "image": self._image}
        return {
            "nodeName": node.node_name,
            "hostNetwork": True,
            "terminationGracePeriodSeconds": 10,
            "containers": [{**command, **container} for container in containers],
        }

    def _pod(self, node: LocalNode) -> dict[str, Any]:
        """Return the demo's pod."""
        mounts = [{"name": "data", "mountPath": "/data"}]
        hook = {"exec": {"command": ["sh", "-c", f"sleep 0.3; echo preStop hook ran >> {IN_VOLUME}"]}}
        app = {"name": "app", "volumeMounts": mounts, "lifecycle": {"preStop": hook}}
        spec = {**self._spec(node, app, {"name": "side"}), "volumes": [{"name": "data", "emptyDir": {}}]}
        return _object("v1", "Pod", POD, spec)

    async def _pod_ready(self, client: KubeClient) -> Pod:
        """Wait until every container of the pod is ready."""
        shown: set[str] = set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                pod = parse_pod(await client.get(PODS, NAMESPACE, POD))
                self._view.show(Snapshot(pod, None))
                for message in (found.waiting_message for found in pod.containers.values()):
                    if message and message not in shown:
                        self._view.print_line(message)
                    shown.add(message)
                if _all_ready(pod):
                    return pod
                await asyncio.sleep(0.1)

    async def _follow(self, client: KubeClient, request: Request) -> Request:
        """Show every change of the request and of the pod until the request has ended."""
        changes: asyncio.Queue[tuple[str, Mapping[str, Any]]] = asyncio.Queue()
        watched = ((PODS, POD), (REQUESTS, REQUEST))
        watches = [asyncio.ensure_future(_watch(client, resource, name, changes)) for resource, name in watched]
        pod = parse_pod(await client.get(PODS, NAMESPACE, POD))
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    self._view.show(Snapshot(pod, request))
                    if request.completed:
                        return request
                    kind, shape = await changes.get()
                    if kind == PODS.plural:
                        pod = parse_pod(shape)
                    else:
                        request = parse_request(shape)
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)


async def _until_pods(client: KubeClient, condition: Callable[[tuple[Pod, ...]], bool]) -> None:
    """Wait until the demo's pods meet the condition."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if condition(await _pods(client)):
                return
            await asyncio.sleep(0.1)


async def _pods(client: KubeClient) -> tuple[Pod, ...]:
    """Return all pods of the demo."""
    return (await client.list_all(PODS, parse_pod, namespace=NAMESPACE)).items


def _all_ready(pod: Pod) -> bool:
    return bool(pod.containers) and all(container.ready for container in pod.containers.values())


async def _workload_pods(client: KubeClient) -> list[Pod]:
    """Return the Deployment's pods, sorted by name."""
    return sorted((pod for pod in await _pods(client) if pod.name != POD), key=lambda pod: pod.name)


async def _greeting(pod: Pod, endpoint: str) -> tuple[str, str, str]:
    """Return name and UID of a pod, and the value of GREETING in its container "side"."""
    return pod.name, pod.uid, await _run_inside(endpoint, pod, "side", "echo $GREETING")


async def _hook_runs(node: LocalNode, pod: Pod) -> str:
    """Return how often the preStop hook of the container "app" has run."""
    return await _run_inside(node.cri_endpoint, pod, "app", f"grep -c ran {IN_VOLUME}")


async def _images(client: KubeClient) -> list[tuple[str, str, str]]:
    """Return name and UID of the Deployment's pods, and the image of their container "side"."""
    return [(pod.name, pod.uid, pod.containers["side"].image) for pod in await _workload_pods(client)]


def _policy() -> dict[str, Any]:
    """Return the policy as a user writes it."""
    spec = {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": WORKLOAD},
        "triggers": {"configChange": {"settle": "1s"}},
        "budget": {"maxUnavailable": "100%"},
    }
    return _object(POLICY_API_VERSION, POLICY_KIND, WORKLOAD, spec)


def _object(api_version: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


async def _watch(
    client: KubeClient, resource: Resource, name: str, changes: asyncio.Queue[tuple[str, Mapping[str, Any]]]
) -> None:
    """Put every version of one object into the queue."""
    selector = f"metadata.name={name}"
    async with client.watch(resource, "0", namespace=NAMESPACE, field_selector=selector) as events:
        async for event in events:
            if event.kind in ("ADDED", "MODIFIED"):
                await changes.put((resource.plural, event.object))


async def _run_inside(endpoint: str, pod: Pod, name: str, script: str) -> str:
    """Run a shell script in a container, and return its output."""
    client = CriClient(endpoint)
    try:
        bare = pod.containers[name].container_id.partition("://")[2]
        result = await client.exec_sync(bare, ["sh", "-c", script], 10)
    finally:
        await client.close()
    return (result.stdout.strip() or result.stderr.strip()).decode(errors="replace")
