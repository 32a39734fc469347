"""What a real kubelet does with a second sandbox of a pod, case by case: the way in which crrd restarts whole pods.

`pytest tests/e2e/test_second_sandbox.py tests/e2e/test_second_sandbox_kills.py -rP` prints the rows of the cluster for
the table in docs/support.md.
"""

import asyncio
import secrets
from time import monotonic

import grpc
import pytest
import yaml

from cri_stubs import api_pb2 as pb
from crrd.kube.resources import NODES, PODS, Resource
from tests.support import second_sandbox as second
from tests.support.cluster import PATIENCE, Cluster, Json, container, container_id, container_status, foreign, pod_ready
from tests.support.real_nodes import machines
from tests.support.second_sandbox import APP, INIT, SIDE, SPEC, WHOLE_POD, attempts, counts, member, of, show, words

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(foreign() is None, reason="needs a real kubelet"),
]
SERVICES, SLICES = Resource("services"), Resource("endpointslices", "discovery.k8s.io")
RUNTIME_CLASSES = Resource("runtimeclasses", "node.k8s.io")
ONE_RESTART = ["start-1", "hook", "hooked", "term", "end", "start-2"]
WITHOUT_HOOK = ["start-1", "term", "end", "start-2"]
HOST_PORT = [{"containerPort": 18080, "hostPort": 18080}]
RULE = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [0, 143]}}


async def runs(cluster: Cluster, name: str, *containers: Json, init: Json = INIT, **spec: object) -> Json:
    """Run a pod, and return it."""
    return await cluster.run_pod(name, containers, init_containers=[init], grace=10, **{**SPEC, **spec})


async def whole(cluster: Cluster, before: Json, network: "pb.NamespaceMode.ValueType" = pb.NODE) -> str:
    """Restart a pod with a second sandbox. Assert that it was restarted once, and return what was seen."""
    seen = await second.restart(cluster, before, network)
    await second.restarted_once(cluster, seen)
    found = words(cluster, seen.after)
    assert of("app", found) == ONE_RESTART, found
    assert of("init", found) == ["1", "2"], found
    return f"restarted once in {seen.seconds:.1f} s, {seen.address}"


async def with_sidecar(cluster: Cluster) -> str:
    """Order, hook and grace by the log, the emptyDir by its counts, and the Service by its EndpointSlice."""
    ports = [{"port": 80}]
    service = {"metadata": {"name": "plain"}, "spec": {"selector": {"app": "plain"}, "ports": ports}}
    await cluster.client.create(SERVICES, cluster.namespace, service)
    labels, inits = {"labels": {"app": "plain"}}, [INIT, SIDE]
    before = await cluster.run_pod("plain", [APP], init_containers=inits, grace=10, metadata=labels, **SPEC)
    await in_slice(cluster, before)
    result = await whole(cluster, before)
    after = await cluster.pod("plain")
    await in_slice(cluster, after)
    assert words(cluster, after) == [*WHOLE_POD]
    return f"{result}, in the EndpointSlice. Sandboxes: {attempts(await second.sandboxes(cluster, after))}"


async def in_slice(cluster: Cluster, pod: Json) -> None:
    """Wait until the pod's IP is the only address of its Service."""
    async with asyncio.timeout(PATIENCE):
        while True:
            slices = (await cluster.client.list_all(SLICES, dict, namespace=cluster.namespace)).items
            ends = [end for each in slices for end in each.get("endpoints") or ()]
            ready = [end["addresses"] for end in ends if end["conditions"].get("ready")]
            if ready == [[pod["status"]["podIP"]]]:
                return
            await asyncio.sleep(0.2)


async def two_apps(cluster: Cluster) -> str:
    before = await runs(cluster, "two", APP, member("other"))
    result = await whole(cluster, before)
    assert of("other", words(cluster, before)) == WITHOUT_HOOK
    return result


async def in_host_network(cluster: Cluster) -> str:
    return await whole(cluster, await runs(cluster, "host", APP, hostNetwork=True))


async def in_host_network_by_a_pod_network(cluster: Cluster) -> str:
    return await whole(cluster, await runs(cluster, "host-pod", APP, hostNetwork=True), pb.POD)


async def with_host_port(cluster: Cluster) -> str:
    return await whole(cluster, await runs(cluster, "port", {**APP, "ports": HOST_PORT}))


async def with_runtime_class(cluster: Cluster) -> str:
    """The runtimes of the tests have a handler runc."""
    name = cluster.namespace
    await cluster.client.create(RUNTIME_CLASSES, "", {"metadata": {"name": name}, "handler": "runc"})
    try:
        return await whole(cluster, await runs(cluster, "class", APP, runtimeClassName=name))
    finally:
        await cluster.client.delete(RUNTIME_CLASSES, "", name)


async def twice(cluster: Cluster) -> str:
    before = await runs(cluster, "twice", member("app", hook_seconds=0))
    first = await second.restart(cluster, before)
    again = await second.restart(cluster, first.after)
    await second.restarted_once(cluster, again)
    assert of("init", words(cluster, before)) == ["1", "2", "3"]
    return f"restarted once by each, in {first.seconds:.1f} s and {again.seconds:.1f} s"


ALWAYS = {
    "init container, native sidecar, app with hook": with_sidecar,
    "two apps": two_apps,
    "hostNetwork": in_host_network,
    "hostNetwork, the second sandbox in the pod network": in_host_network_by_a_pod_network,
    "hostPort": with_host_port,
    "RuntimeClass": with_runtime_class,
    "two restarts within seconds": twice,
}


async def test_pods_that_kubelet_restarts_once(cluster: Cluster) -> None:
    results = await asyncio.gather(*(case(cluster) for case in ALWAYS.values()), return_exceptions=True)
    await show(cluster, {case: f"{result}"[:300] for case, result in zip(ALWAYS, results, strict=True)})
    assert not [each for each in results if isinstance(each, BaseException)]


async def test_an_init_container_that_fails_the_second_time(cluster: Cluster) -> None:
    failing = second.init("test ! -e /kept/failed && touch /kept/failed")
    before = await runs(cluster, "web", APP, init=failing)
    await second.second_sandbox(cluster, before)

    def backs_off(pod: Json) -> bool:
        return bool(container_status(pod, "init")["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff")

    after = await cluster.wait_pod("web", backs_off, "the init container waits")
    assert not pod_ready(after)
    assert of("app", words(cluster, after)) == ONE_RESTART[:-1]
    await show(cluster, {"init container that fails the second time": "Init:CrashLoopBackOff, the app stays down"})


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
@pytest.mark.parametrize("code", [0, 3])
async def test_other_restart_policies(cluster: Cluster, policy: str, code: int) -> None:
    before = await runs(cluster, "web", member("app", code=code, hook_seconds=1), restartPolicy=policy)
    await second.second_sandbox(cluster, before)
    if policy == "OnFailure" and code:
        over, result = second.restarted_whole(before), "restarted"
    else:
        phase = "Failed" if code else "Succeeded"
        over, result = (lambda pod: pod["status"]["phase"] == phase), f"not restarted, pod {phase}"
    after = await cluster.wait_pod("web", over, result)
    found = words(cluster, after)
    assert of("app", found)[: len(ONE_RESTART) - 1] == ONE_RESTART[:-1]
    again = ", the init container ran again" if of("init", found) == ["1", "2"] else ""
    await show(cluster, {f"restartPolicy {policy}, exit code {code} on SIGTERM": f"{result}{again}"})


async def test_a_container_that_has_completed(cluster: Cluster) -> None:
    job = container("job", "echo job-run >> /shared/log")
    app = member("app", code=3, hook_seconds=1)
    options = {**SPEC, "restartPolicy": "OnFailure"}
    await cluster.create_pod("web", [app, job], init_containers=[INIT], grace=10, **options)

    def half_done(pod: Json) -> bool:
        ended = container_status(pod, "job").get("state", {}).get("terminated")
        return bool(ended) and bool(container_status(pod, "app").get("started"))

    before = await cluster.wait_pod("web", half_done, "job has completed")
    await second.second_sandbox(cluster, before)
    await cluster.wait_pod("web", lambda pod: bool(counts(pod).get("app")), "restarted")
    await asyncio.sleep(second.WINDOW_SECONDS)
    now, found = await cluster.pod("web"), words(cluster, before)
    assert found.count("app-hook") == 1
    job_again = "ran again" if found.count("job-run") > 1 else "did not run again"
    result = f"restarted, the completed one {job_again}, restart counts {counts(now)}"
    await show(cluster, {"restartPolicy OnFailure, one container has completed": result})


@pytest.mark.parametrize("moment", ["before", "in the hook"])
async def test_a_pod_that_is_deleted(cluster: Cluster, moment: str) -> None:
    before = await runs(cluster, "web", member("app", hook_seconds=4))
    if moment == "before":
        await cluster.client.delete(PODS, cluster.namespace, "web")
    await second.second_sandbox(cluster, before)
    if moment == "in the hook":
        await second.written(cluster, before, "app-hook")
        await cluster.client.delete(PODS, cluster.namespace, "web")
    since = monotonic()
    await cluster.wait_gone(PODS, "web")
    seconds = monotonic() - since
    async with asyncio.timeout(PATIENCE):
        while "ready" in (await second.sandboxes(cluster, before)).values():
            await asyncio.sleep(0.2)
    found = words(cluster, before)
    seen = (
        f"gone after {seconds:.1f} s, hook ran {found.count('app-hook')} times, init container {len(of('init', found))}"
    )
    await show(cluster, {f"pod deleted {moment}": seen})


async def test_a_static_pod(cluster: Cluster) -> None:
    found = machines()
    if found is None:
        pytest.skip("needs a cluster of python -m tests.tools.cluster")
    node = found.node(cluster.node_name)
    folder = cluster.shared(f"static-{node.name}")
    folder.mkdir(parents=True)
    mounts = [{"name": "kept", "mountPath": "/kept"}, {"name": "shared", "mountPath": "/shared"}]
    volumes = [*SPEC["volumes"], {"name": "shared", "hostPath": {"path": str(folder)}}]
    containers = [{**APP, "image": cluster.image, "volumeMounts": mounts}]
    spec = {"containers": containers, "volumes": volumes, "terminationGracePeriodSeconds": 10}
    metadata = {"name": "static", "namespace": cluster.namespace}
    file = node.static_pods / "second-sandbox.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
    try:
        before = await cluster.wait_pod(folder.name, pod_ready, "ready")
        seen = await second.restart(cluster, before)
        await second.restarted_once(cluster, seen)
        assert of("app", words(cluster, before)) == ONE_RESTART
    finally:
        file.unlink()
        await cluster.wait_gone(PODS, folder.name)
    await show(
        cluster, {"static pod (by the UID of its file)": f"restarted once in {seen.seconds:.1f} s, {seen.address}"}
    )


@pytest.mark.parametrize("code", [0, 143])
async def test_rules_that_restart_all_containers(cluster: Cluster, code: int) -> None:
    """Kubelet's own restart of the whole pod must not follow."""
    ruled = member("app", code=code, hook_seconds=1, restartPolicy="Always", restartPolicyRules=[RULE])
    before = await second.run_ruled(cluster, "web", [ruled, member("other")], init_containers=[INIT], grace=10)
    seen = await second.restart(cluster, before)
    await asyncio.sleep(second.WINDOW_SECONDS)
    now, found = await cluster.pod("web"), words(cluster, before)
    result = (
        f"init container ran {len(of('init', found))} times, app: {' '.join(of('app', found))}, counts {counts(now)}"
    )
    await show(cluster, {f"RestartAllContainers for exit code {code}": f"{result}, {seen.address}"})
    assert found.count("app-hook") == 1, found


async def test_the_rule_itself(cluster: Cluster) -> None:
    """For the figures beside: a container that ends by itself, and its rule restarts all."""
    own_end = container("app", "until rm /shared/end; do sleep 0.1; done 2> /dev/null; exit 3")
    rule = {**RULE, "exitCodes": {"operator": "In", "values": [3]}}
    app = {**own_end, "restartPolicy": "Always", "restartPolicyRules": [rule]}
    before = await second.run_ruled(cluster, "web", [app, APP | {"name": "other"}], init_containers=[INIT], grace=10)
    since = monotonic()
    (cluster.shared("web") / "end").touch()
    seen = await second.awaited(cluster, before, since)
    found = words(cluster, before)
    log = ", ".join(f"{event} {found.count(f'app-{event}')}" for event in ("hook", "term", "end"))
    result = f"ready after {seen.seconds:.1f} s, {seen.address}; of the other container: {log}"
    await show(cluster, {"for comparison: RestartAllContainers by its own rule": result})


async def test_names_are_reserved_and_a_ready_sandbox_is_removed(cluster: Cluster) -> None:
    """On a pod that kubelet does not know; it would take a moment to stop it."""
    pod = {"metadata": {"name": "ghost", "namespace": cluster.namespace, "uid": secrets.token_hex(16)}}
    made = await second.run(cluster, second.configuration(pod, 1))
    try:
        again = await second.run(cluster, second.configuration(pod, 1))
    except grpc.aio.AioRpcError as error:
        refused = f"{error.code().name}: `{error.details()}`".replace(made, "ID").replace("|", "\\|")
    else:
        refused = "no error, the ID of the first one"
        assert again == made
    ready = list((await second.sandboxes(cluster, pod)).values())
    await second.remove(cluster, made)
    assert not await second.sandboxes(cluster, pod)
    results = {
        "same attempt again": refused,
        "RemovePodSandbox without StopPodSandbox": f"removed ({', '.join(ready)} before)",
    }
    await show(cluster, results)
    assert ready == ["ready"]


async def test_exclusive_cpus(cluster: Cluster) -> None:
    path = f"/api/v1/nodes/{cluster.node_name}/proxy/configz"
    kubelet = (await cluster.client.document(path))["kubeletconfig"]
    if kubelet.get("cpuManagerPolicy") != "static":
        pytest.skip("needs a kubelet with cpuManagerPolicy static")
    exclusive = {"limits": {"cpu": "1", "memory": "64Mi"}}
    before = await runs(cluster, "web", {**APP, "resources": exclusive}, init={**INIT, "resources": exclusive})
    cpus = await cluster.execute(container_id(before, "app"), "grep", "Cpus_allowed_list", "/proc/self/status")
    result = await whole(cluster, before)
    now = await cluster.execute(
        container_id(await cluster.pod("web"), "app"), "grep", "Cpus_allowed_list", "/proc/self/status"
    )
    assert now.stdout == cpus.stdout
    await show(cluster, {"exclusive CPUs": f"{result}, same CPUs"})


async def cpus_of(cluster: Cluster, pod: Json) -> bytes:
    read = await cluster.execute(container_id(pod, "app"), "grep", "Cpus_allowed_list", "/proc/self/status")
    return read.stdout


@pytest.mark.parametrize("count", [30, 100])
async def test_many_at_once(cluster: Cluster, count: int) -> None:
    node = await cluster.client.get(NODES, "", cluster.node_name)
    if int(node["status"]["allocatable"]["pods"]) < count + 10:
        pytest.skip(f"the node may not have {count} more pods")
    pods = [await cluster.create_pod(f"web-{number}", [APP], grace=10, **SPEC) for number in range(count)]
    await second.all_meet(cluster, pods, lambda _: pod_ready)
    before = [await cluster.pod(each["metadata"]["name"]) for each in pods]
    since = monotonic()
    await asyncio.gather(*(second.second_sandbox(cluster, each) for each in before))
    made = monotonic() - since
    await second.all_meet(cluster, before, second.restarted_whole)
    seconds = monotonic() - since
    await asyncio.sleep(second.WINDOW_SECONDS)
    for pod in before:
        assert of("app", words(cluster, pod)) == ONE_RESTART
        assert counts(await cluster.pod(pod["metadata"]["name"])) == {"app": 1}
    await show(
        cluster, {f"{count} pods at once": f"each once; all ready after {seconds:.0f} s (sandboxes: {made:.1f} s)"}
    )
