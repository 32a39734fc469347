"""The local kubelet on the runtime of plain processes: what a pod goes through, from its creation to its end."""

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cri_stubs import api_pb2 as pb
from crrd.kube.resources import CONFIG_MAPS, EVENTS, NODES, PODS, SECRETS
from crrd.lib.errors import GoneError
from tests.support import programs
from tests.support.cluster import (
    WAITING_SCRIPT,
    Cluster,
    Json,
    bare,
    condition,
    container,
    container_id,
    container_status,
    local_cluster,
    pod_ready,
    restart_count,
    restarted,
)

EXEC_TRUE = {"exec": {"command": ["/bin/sh", "-c", "test -e /shared/good"]}}


def waiting(name: str, reason: str) -> Callable[[Json], bool]:
    return lambda pod: state(pod, name).get("waiting", {}).get("reason") == reason


def state(pod: Json, name: str) -> Json:
    return dict(container_status(pod, name).get("state") or {})


def is_held(wanted: Json) -> Callable[[Json], bool]:
    return lambda pod: state(pod, "app") == wanted


def phase(wanted: str) -> Callable[[Json], bool]:
    return lambda pod: bool((pod.get("status") or {}).get("phase") == wanted)


def folder_of(cluster: Cluster, pod: Json) -> Path:
    return cluster.local.root / "kubelet" / "pods" / str(pod["metadata"]["uid"])


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            if check():
                return
            await asyncio.sleep(0.01)


# The node and the pod's status


async def test_the_node_stands_in_the_api_as_ready(cluster: Cluster) -> None:
    node = await cluster.client.get(NODES, "", cluster.node_name)
    assert [(entry["type"], entry["status"]) for entry in node["status"]["conditions"]] == [("Ready", "True")]
    assert node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("crrd-local://")
    assert {"type": "InternalIP", "address": "127.0.0.1"} in node["status"]["addresses"]


async def test_a_running_pod_has_a_whole_status(cluster: Cluster) -> None:
    pod = await cluster.run_pod("web", [container("app")])
    status = pod["status"]
    assert status["phase"] == "Running"
    assert (status["podIP"], status["hostIP"]) == ("127.0.0.1", "127.0.0.1")
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    assert {kind: condition(pod, kind) for kind in kinds} == dict.fromkeys(kinds, "True")
    app = container_status(pod, "app")
    assert app["containerID"].startswith("crrd-local://")
    assert app["image"] == "localhost/shell:1"
    assert app["imageID"].startswith("localhost/shell@sha256:")
    assert (app["ready"], app["started"], app["restartCount"], app["lastState"]) == (True, True, 0, {})
    assert list(app["state"]) == ["running"]


async def test_pods_of_other_nodes_are_left_alone(cluster: Cluster) -> None:
    other = {
        "metadata": {"name": "other"},
        "spec": {"nodeName": "elsewhere", "containers": [container("app", image="x")]},
    }
    await cluster.client.create(PODS, cluster.namespace, other)
    await cluster.run_pod("web", [container("app")])
    assert (await cluster.pod("other"))["status"]["phase"] == "Pending"
    await cluster.delete_pod("other", grace=0)


async def test_environment_command_and_working_folder_are_the_spec_s(cluster: Cluster) -> None:
    env: list[Json] = [
        {"name": "PLAIN", "value": "one"},
        {"name": "MADE", "value": "$(PLAIN)-$(MISSING)-$$(PLAIN)"},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "TIER", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['tier']"}}},
        {"name": "NOTE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['none']"}}},
        {"name": "MAYBE", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "k", "optional": True}}},
    ]
    names = ("$MADE", "$POD_IP", "$HOST_IP", "$POD", "$NODE", "$TIER", "$NOTE", "${MAYBE-unset}", "$(PLAIN)", "$PWD")
    shown = " ".join(f'"{name}"' for name in names)
    script = f"printf '%s\\n' {shown} > /shared/out; exec sleep 1000"
    spec = {"name": "app", "command": ["/bin/sh", "-c"], "args": [script], "env": env, "workingDir": "/tmp"}
    await cluster.run_pod("web", [spec], metadata={"labels": {"tier": "front"}})
    await until(lambda: cluster.read("web", "out").count("\n") == len(names))
    node = cluster.node_name
    expected = ["one-$(MISSING)-$(PLAIN)", "127.0.0.1", "127.0.0.1", "web", node, "front", "", "unset", "one", "/tmp"]
    assert cluster.read("web", "out").splitlines() == expected


async def test_variables_come_from_config_maps_and_secrets_as_they_are_at_the_start(cluster: Cluster) -> None:
    client, namespace = cluster.client, cluster.namespace
    await client.create(CONFIG_MAPS, namespace, {"metadata": {"name": "cfg"}, "data": {"LOG": "info", "SIZE": "1"}})
    await client.create(SECRETS, namespace, {"metadata": {"name": "key"}, "data": {"KEY": "c2VjcmV0"}})
    env: list[Json] = [
        {"name": "SIZE", "value": "own"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "key", "key": "KEY"}}},
        {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "cfg", "key": "no", "optional": True}}},
        {"name": "LATE", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "value"}}},
    ]
    sources = [{"configMapRef": {"name": "cfg"}}, {"prefix": "P_", "secretRef": {"name": "key"}}]
    script = f'echo "$LOG $SIZE $TOKEN ${{NONE-unset}} $P_KEY $LATE" >> /shared/log; {WAITING_SCRIPT}'
    app = container("app", script, env=env, envFrom=[*sources, {"configMapRef": {"name": "no", "optional": True}}])
    await cluster.create_pod("web", [app])
    for message, data in (
        ('configmap "late" not found', {"other": ""}),
        (f"couldn't find key value in ConfigMap {namespace}/late", {"value": "now"}),
    ):
        held = {"waiting": {"reason": "CreateContainerConfigError", "message": message}}
        await cluster.wait_pod("web", is_held(held), message)
        with suppress(GoneError):
            await client.delete(CONFIG_MAPS, namespace, "late")
        await client.create(CONFIG_MAPS, namespace, {"metadata": {"name": "late"}, "data": data})
    await cluster.wait_pod("web", pod_ready, "ready")
    await cluster.wait_words("web", "log", *["info", "own", "secret", "unset", "secret", "now"])


# Restarts


async def test_an_image_update_recreates_that_container_alone(cluster: Cluster) -> None:
    hook = {"preStop": {"exec": {"command": ["/bin/sh", "-c", "echo hook >> /shared/log"]}}}
    script = f"echo started >> /shared/log; {WAITING_SCRIPT}"
    before = await cluster.run_pod("web", [container("app", script, lifecycle=hook), container("side")])
    await cluster.wait_words("web", "log", "started")
    await cluster.set_image("web", "app", cluster.second_image)
    after = await cluster.wait_pod("web", lambda pod: restarted("app")(pod) and pod_ready(pod), "app restarted")
    assert restart_count(after, "app") == 1
    assert container_status(after, "app")["image"] == cluster.second_image
    assert container_status(after, "app")["lastState"]["terminated"]["containerID"] == container_id(before, "app")
    assert container_status(after, "side") == container_status(before, "side")
    await cluster.wait_words("web", "log", "started", "hook", "started")
    annotations = (await cluster.status(container_id(after, "app"))).annotations
    assert annotations["io.kubernetes.container.restartCount"] == "1"


async def test_a_container_that_keeps_failing_backs_off_in_kubelet_s_words(cluster: Cluster) -> None:
    pod = await cluster.create_pod("web", [container("app", "exit 3")])
    held = await cluster.wait_pod("web", waiting("app", "CrashLoopBackOff"), "CrashLoopBackOff")
    uid = pod["metadata"]["uid"]
    message = f"restarting failed container=app pod=web_{cluster.namespace}({uid})"
    assert state(held, "app")["waiting"]["message"] == f"back-off 500ms {message}"
    assert restart_count(held, "app") == 1
    assert container_status(held, "app")["lastState"]["terminated"]["exitCode"] == 3
    doubled = await cluster.wait_pod(
        "web", lambda pod: "back-off 1s " in json.dumps(state(pod, "app")), "the doubled back-off"
    )
    assert restart_count(doubled, "app") == 2
    assert phase("Running")(doubled)
    assert len(await cluster.instances(doubled, "app")) <= 2  # the newest dead one is kept, and one that may run


async def test_a_container_killed_in_the_runtime_comes_back_with_the_next_restart_count(cluster: Cluster) -> None:
    script = "echo bye > /dev/termination-log; echo said > /shared/log; exec sleep 1000"
    before = await cluster.run_pod("web", [container("app", script)])
    await cluster.wait_words("web", "log", "said")
    await cluster.stop(container_id(before, "app"))
    after = await cluster.wait_pod("web", restarted("app"), "restarted")
    ended = container_status(after, "app")["lastState"]["terminated"]
    assert (ended["exitCode"], ended["message"]) == (137, "bye\n")
    assert [entry.id for entry in await cluster.instances(after, "app")] == [
        bare(container_id(after, "app")),
        bare(container_id(before, "app")),
    ]


@pytest.mark.parametrize(
    ("policy", "code", "end"),
    [("Never", 0, "Succeeded"), ("Never", 4, "Failed"), ("OnFailure", 0, "Succeeded")],
)
async def test_a_pod_whose_containers_are_not_restarted_ends(
    cluster: Cluster, policy: str, code: int, end: str
) -> None:
    await cluster.create_pod("web", [container("app", f"exit {code}"), container("b", "exit 0")], restartPolicy=policy)
    pod = await cluster.wait_pod("web", phase(end), end)
    assert state(pod, "app")["terminated"]["exitCode"] == code
    assert restart_count(pod, "app") == 0
    assert not pod_ready(pod)
    await until_sandbox_stopped(cluster, pod)


async def until_sandbox_stopped(cluster: Cluster, pod: Json) -> None:
    async with asyncio.timeout(30):
        while True:
            sandboxes = await cluster.sandboxes(pod)
            if all(sandbox.state == pb.SANDBOX_NOTREADY for sandbox in sandboxes):
                return
            await asyncio.sleep(0.01)


async def test_on_failure_restarts_what_failed_and_leaves_what_succeeded(cluster: Cluster) -> None:
    script = "test -e /shared/again && exit 0; touch /shared/again; exit 1"
    await cluster.create_pod("web", [container("app", script), container("other", "exit 0")], restartPolicy="OnFailure")
    pod = await cluster.wait_pod("web", phase("Succeeded"), "Succeeded")
    assert (restart_count(pod, "app"), restart_count(pod, "other")) == (1, 0)


async def test_a_lost_sandbox_is_replaced_and_its_containers_restarted(cluster: Cluster) -> None:
    before = await cluster.run_pod(
        "web", [container("app")], init_containers=[container("init", "echo >> /shared/init")]
    )
    old = (await cluster.sandboxes(before))[0]
    await cluster.cri.StopPodSandbox(pb.StopPodSandboxRequest(pod_sandbox_id=old.id))
    after = await cluster.wait_pod("web", lambda pod: restarted("app")(pod) and pod_ready(pod), "restarted")
    newest = (await cluster.sandboxes(after))[0]
    assert (newest.id != old.id, newest.metadata.attempt) == (True, 1)
    assert cluster.read("web", "init") == "\n\n"  # initialized anew


# Init containers and sidecars


async def test_init_containers_run_in_order_before_the_others(cluster: Cluster) -> None:
    say = "echo {} >> /shared/log"
    await cluster.create_pod(
        "web",
        [container("app", f"{say.format('app')}; {WAITING_SCRIPT}")],
        init_containers=[
            container("one", f"{say.format('one')}; test -e /shared/retry || {{ touch /shared/retry; exit 1; }}"),
            container("two", say.format("two")),
        ],
    )
    pod = await cluster.wait_pod("web", pod_ready, "ready")
    await cluster.wait_words("web", "log", "one", "one", "two", "app")
    assert restart_count(pod, "one") == 1
    assert container_status(pod, "two")["ready"]
    assert condition(pod, "Initialized") == "True"


async def test_a_pod_waits_for_its_init_containers_and_says_so(cluster: Cluster) -> None:
    wait = "while ! test -e /shared/go; do sleep 0.05; done"
    await cluster.create_pod("web", [container("app")], init_containers=[container("init", wait)])
    pod = await cluster.wait_pod("web", lambda pod: "running" in state(pod, "init"), "init runs")
    assert phase("Pending")(pod)
    assert state(pod, "app") == {"waiting": {"reason": "PodInitializing"}}
    assert condition(pod, "Initialized") == "False"
    (cluster.shared("web") / "go").touch()
    await cluster.wait_pod("web", pod_ready, "ready")


async def test_a_failed_init_container_ends_a_pod_that_is_never_restarted(cluster: Cluster) -> None:
    await cluster.create_pod(
        "web", [container("app")], init_containers=[container("init", "exit 5")], restartPolicy="Never"
    )
    pod = await cluster.wait_pod("web", phase("Failed"), "Failed")
    assert state(pod, "init")["terminated"]["exitCode"] == 5
    assert not await cluster.instances(pod, "app")


async def test_a_sidecar_starts_first_and_is_kept_running(cluster: Cluster) -> None:
    probe = {"exec": {"command": ["/bin/sh", "-c", "test -e /shared/up"]}, "periodSeconds": 1}
    script = f"sleep 0.3; touch /shared/up; {WAITING_SCRIPT}"
    await cluster.create_pod(
        "web",
        [container("app", f"ls /shared > /tmp/seen.$$; mv /tmp/seen.$$ /shared/seen; {WAITING_SCRIPT}")],
        init_containers=[container("side", script, restartPolicy="Always", startupProbe=probe)],
    )
    before = await cluster.wait_pod("web", pod_ready, "ready")
    await cluster.wait_words("web", "seen", "up")
    await cluster.stop(container_id(before, "side"))
    after = await cluster.wait_pod("web", lambda pod: restarted("side")(pod) and pod_ready(pod), "side restarted")
    assert container_id(after, "app") == container_id(before, "app")


# Probes and readiness


async def test_readiness_follows_its_probe(cluster: Cluster) -> None:
    probe = {**EXEC_TRUE, "periodSeconds": 1, "failureThreshold": 1}
    await cluster.create_pod("web", [container("app", readinessProbe=probe), container("side")])
    pod = await cluster.wait_pod("web", lambda pod: "running" in state(pod, "app"), "running")
    assert (container_status(pod, "app")["ready"], pod_ready(pod)) == (False, False)
    good = cluster.shared("web") / "good"
    good.touch()
    await cluster.wait_pod("web", pod_ready, "ready")
    good.unlink()
    pod = await cluster.wait_pod("web", lambda pod: not pod_ready(pod), "unready")
    ready = next(entry for entry in pod["status"]["conditions"] if entry["type"] == "Ready")
    assert (ready["reason"], ready["message"]) == ("ContainersNotReady", "containers with unready status: [app]")
    assert restart_count(pod, "app") == 0


async def test_a_container_that_fails_its_liveness_probe_is_restarted(cluster: Cluster) -> None:
    probe = {**EXEC_TRUE, "periodSeconds": 1, "failureThreshold": 1, "initialDelaySeconds": 1}
    script = f"touch /shared/good; {WAITING_SCRIPT}"
    await cluster.run_pod("web", [container("app", script, livenessProbe=probe, readinessProbe=EXEC_TRUE)])
    (cluster.shared("web") / "good").unlink()
    pod = await cluster.wait_pod("web", restarted("app"), "restarted")
    assert container_status(pod, "app")["lastState"]["terminated"]["exitCode"] == 0  # it was given its time


async def test_a_container_that_never_passes_its_startup_probe_is_restarted(cluster: Cluster) -> None:
    probe = {"exec": {"command": ["/bin/false"]}, "periodSeconds": 1, "failureThreshold": 1}
    await cluster.create_pod("web", [container("app", startupProbe=probe)])
    pod = await cluster.wait_pod(
        "web", lambda pod: bool(container_status(pod, "app")) and restart_count(pod, "app") > 0, "restarted"
    )
    assert not container_status(pod, "app")["started"]


async def test_http_and_tcp_probes_ask_the_pod_s_address(cluster: Cluster) -> None:
    requests: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.read(4096)).decode()
        if head:
            requests.append(head)
            writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        ports = [{"name": "web", "containerPort": port}]
        http = {"httpGet": {"port": "web", "path": "ready", "httpHeaders": [{"name": "X-Who", "value": "kubelet"}]}}
        await cluster.run_pod(
            "web",
            [
                container("http", ports=ports, readinessProbe={**http, "periodSeconds": 1}),
                container("tcp", readinessProbe={"tcpSocket": {"port": port}, "periodSeconds": 1}),
            ],
        )
    assert requests[0].startswith("GET /ready HTTP/1.1\r\n")
    assert "X-Who: kubelet" in requests[0]


async def test_a_probe_that_nobody_answers_leaves_the_container_unready(cluster: Cluster) -> None:
    await cluster.create_pod(
        "web",
        [
            container("http", readinessProbe={"httpGet": {"port": 1}, "periodSeconds": 1}),
            container("tcp", readinessProbe={"tcpSocket": {"port": "unknown"}, "periodSeconds": 1}),
            container("odd", readinessProbe={"grpc": {"port": 1}, "periodSeconds": 1}),
            container("slow", readinessProbe={"exec": {"command": ["/bin/sleep", "1000"]}, "periodSeconds": 1}),
            container("none", readinessProbe={"exec": {"command": ["/no/such/program"]}, "periodSeconds": 1}),
            container("fine"),
        ],
    )
    pod = await cluster.wait_pod("web", lambda pod: bool(container_status(pod, "fine").get("ready")), "fine is ready")
    ready = [entry for entry in pod["status"]["conditions"] if entry["type"] == "ContainersReady"]
    assert ready[0]["message"] == "containers with unready status: [http tcp odd slow none]"


async def test_a_readiness_gate_holds_the_pod_back_and_its_condition_is_kept(cluster: Cluster) -> None:
    gate = "KruisePodReady"
    await cluster.create_pod("web", [container("app")], readinessGates=[{"conditionType": gate}])
    pod = await cluster.wait_pod("web", lambda pod: condition(pod, "ContainersReady") == "True", "containers ready")
    assert not pod_ready(pod)
    assert "does not exist" in json.dumps(pod["status"]["conditions"])
    for status in ("False", "True"):
        pod = await cluster.pod("web")
        conditions = [entry for entry in pod["status"]["conditions"] if entry["type"] != gate]
        conditions.append({"type": gate, "status": status, "message": "[]"})
        body: Json = {"metadata": {"resourceVersion": pod["metadata"]["resourceVersion"]}}
        await cluster.client.merge_patch(
            PODS, cluster.namespace, "web", {**body, "status": {"conditions": conditions}}, subresource="status"
        )
        if status == "False":
            await cluster.wait_pod("web", lambda pod: 'not \\"True\\", but False' in json.dumps(pod), "its reason")
    pod = await cluster.wait_pod("web", pod_ready, "ready")
    assert condition(pod, gate) == "True"


# What cannot be started


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        ({"image": "local/does-not-exist:1"}, "ErrImagePull", "does-not-exist"),
        ({"image": "local/does-not-exist:1"}, "ImagePullBackOff", 'Back-off pulling image "local/does-not-exist:1"'),
        (
            {"image": "local/absent:1", "imagePullPolicy": "Never"},
            "ErrImageNeverPull",
            'Container image "local/absent:1" is not present with pull policy of Never',
        ),
        (
            {"env": [{"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]},
            "CreateContainerConfigError",
            "resourceFieldRef",
        ),
        (
            {"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "status.nothing"}}}]},
            "CreateContainerConfigError",
            "status.nothing",
        ),
        ({"command": ["/no/such/program"]}, "RunContainerError", "/no/such/program"),
        ({"lifecycle": {"postStart": {"exec": {"command": ["/bin/false"]}}}}, "PostStartHookError", "exit code 1"),
    ],
)
async def test_a_container_that_cannot_be_started_says_why(
    cluster: Cluster, fields: Json, reason: str, words: str
) -> None:
    await cluster.create_pod("web", [container("app", **{"command": ["/bin/sleep", "1000"], **fields})])
    pod = await cluster.wait_pod("web", waiting("app", reason), reason)
    assert words in state(pod, "app")["waiting"]["message"]
    assert not pod_ready(pod)
    if reason == "ImagePullBackOff":
        image, why = fields["image"], f"PullImage failed: image '{fields['image']}' not found (NOT_FOUND)"
        assert [(each["type"], each["reason"], each["message"]) for each in await pull_events(cluster)] == [
            ("Normal", "Pulling", f'Pulling image "{image}"'),
            ("Warning", "Failed", f'Failed to pull image "{image}": {why}'),
            ("Warning", "Failed", "Error: ErrImagePull"),
            ("Normal", "BackOff", f'Back-off pulling image "{image}"'),
            ("Warning", "Failed", "Error: ImagePullBackOff"),
        ]


async def pull_events(cluster: Cluster) -> list[Json]:
    """The events about a container, in the order in which kubelet has written them."""
    found = (await cluster.local.client.list_all(EVENTS, dict)).items
    own = [each for each in found if each["involvedObject"].get("fieldPath") == "spec.containers{app}"]
    return sorted(own, key=lambda each: int(each["metadata"]["name"].rpartition(".")[2], 16))


async def test_an_image_that_takes_long_to_pull(cluster: Cluster) -> None:
    spec = container("app", command=["/bin/sleep", "1000"], image="local/slow-0s:1")
    await cluster.create_pod("web", [spec])
    await cluster.wait_pod("web", pod_ready, "ready")
    reasons = [each["reason"] for each in await pull_events(cluster)]
    assert reasons == ["Pulling", "Pulled"]


async def test_an_image_that_is_always_pulled_is_pulled(cluster: Cluster) -> None:
    pod = await cluster.run_pod("web", [container("app", image="local/other", imagePullPolicy="Always")])
    assert container_status(pod, "app")["image"] == "docker.io/local/other:latest"


async def test_a_pod_with_a_volume_that_cannot_be_had_waits(cluster: Cluster) -> None:
    volumes: list[Json] = [{"name": "config", "configMap": {"name": "none"}}]
    await cluster.create_pod("web", [container("app")], volumes=volumes)
    pod = await cluster.wait_pod("web", waiting("app", "ContainerCreating"), "ContainerCreating")
    assert not await cluster.sandboxes(pod)


# Volumes


async def test_an_empty_dir_is_shared_by_the_containers_and_goes_with_the_pod(cluster: Cluster) -> None:
    mount = {"name": "scratch", "mountPath": "/scratch"}
    sub = {"name": "scratch", "mountPath": "/sub", "subPath": "deep/er"}
    reader = container("reader", f"cp /scratch/deep/er/x /shared/x; {WAITING_SCRIPT}", volumeMounts=[mount])
    reader["command"][2] = f"while ! test -e /scratch/deep/er/x; do sleep 0.05; done; {reader['command'][2]}"
    pod = await cluster.run_pod(
        "web",
        [container("writer", f"echo hello > /sub/x; {WAITING_SCRIPT}", volumeMounts=[sub]), reader],
        volumes=[{"name": "scratch", "emptyDir": {}}],
    )
    await until(lambda: cluster.read("web", "x") == "hello\n")
    assert folder_of(cluster, pod).is_dir()
    await cluster.delete_pod("web")
    assert not folder_of(cluster, pod).exists()


# Deletion


async def test_a_deleted_pod_gets_its_hooks_and_its_grace_and_leaves_nothing(cluster: Cluster) -> None:
    hook = {"preStop": {"exec": {"command": ["/bin/sh", "-c", "echo hook >> /shared/log"]}}}
    script = "trap 'echo term >> /shared/log; exit 0' TERM; echo up >> /shared/log; while :; do sleep 0.05; done"
    pod = await cluster.run_pod("web", [container("app", script, lifecycle=hook), container("side")])
    await cluster.wait_words("web", "log", "up")
    await cluster.delete_pod("web")
    await cluster.wait_words("web", "log", "up", "hook", "term")
    assert not await cluster.sandboxes(pod)
    assert not await cluster.instances(pod, "app")


async def test_sidecars_of_a_deleted_pod_end_last_and_in_reverse(cluster: Cluster) -> None:
    def script(name: str) -> str:
        return f"trap 'echo {name} >> /shared/log; exit 0' TERM; touch /shared/{name}; while :; do sleep 0.05; done"

    sidecars = [container(name, script(name), restartPolicy="Always") for name in ("first", "second")]
    await cluster.run_pod("web", [container("app", script("app"))], init_containers=sidecars)
    await until(lambda: all((cluster.shared("web") / name).exists() for name in ("app", "first", "second")))
    await cluster.delete_pod("web")
    await cluster.wait_words("web", "log", "app", "second", "first")


async def test_the_last_status_of_a_deleted_pod_says_how_it_ended(cluster: Cluster) -> None:
    script = "trap 'exit 9' TERM; echo up > /shared/log; while :; do sleep 0.05; done"
    await cluster.run_pod("web", [container("app", script)])
    await cluster.wait_words("web", "log", "up")
    body: Json = {"metadata": {"finalizers": ["tests/hold"]}}
    await cluster.client.merge_patch(PODS, cluster.namespace, "web", body)
    await cluster.client.delete(PODS, cluster.namespace, "web")
    pod = await cluster.wait_pod("web", phase("Failed"), "Failed")
    assert state(pod, "app")["terminated"]["exitCode"] == 9
    body["metadata"]["finalizers"] = None
    await cluster.client.merge_patch(PODS, cluster.namespace, "web", body)
    await cluster.wait_gone(PODS, "web")


async def test_a_pod_deleted_by_force_is_stopped_all_the_same(cluster: Cluster) -> None:
    pod = await cluster.run_pod("web", [container("app")])
    await cluster.client.delete(PODS, cluster.namespace, "web", grace_seconds=0)
    with pytest.raises(GoneError):
        await cluster.pod("web")
    async with asyncio.timeout(30):
        while True:
            if not await cluster.sandboxes(pod):
                return
            await asyncio.sleep(0.01)


# Restarts of the kubelet and of the runtime


async def test_a_restarted_kubelet_adopts_what_runs(cluster: Cluster) -> None:
    probe = {**EXEC_TRUE, "periodSeconds": 1}
    before = await cluster.run_pod(
        "web", [container("app", f"touch /shared/good; {WAITING_SCRIPT}", readinessProbe=probe)]
    )
    await cluster.local.stop_kubelet()
    await cluster.local.start_kubelet()
    await cluster.stop(container_id(before, "app"))
    after = await cluster.wait_pod("web", restarted("app"), "restarted by the second kubelet")
    assert restart_count(after, "app") == 1
    assert await cluster.sandboxes(after) == await cluster.sandboxes(before)


async def test_a_pod_deleted_while_the_kubelet_was_away_is_ended_when_it_is_back(cluster: Cluster) -> None:
    forced = await cluster.run_pod("forced", [container("app")])
    await cluster.run_pod("web", [container("app")])
    await cluster.local.stop_kubelet()
    await cluster.client.delete(PODS, cluster.namespace, "forced", grace_seconds=0)
    await cluster.client.delete(PODS, cluster.namespace, "web")
    await cluster.local.start_kubelet()
    await cluster.wait_gone(PODS, "web")
    async with asyncio.timeout(30):
        while True:
            if not await cluster.sandboxes(forced):
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("away", ["down", "stalled"])
async def test_containers_are_restarted_while_the_api_server_is_away(cluster: Cluster, away: str) -> None:
    script = f"echo started >> /shared/log; {WAITING_SCRIPT}"
    before = await cluster.run_pod("web", [container("app", script)])
    await cluster.wait_words("web", "log", "started")
    api = cluster.local.api
    if away == "down":
        await api.stop()
    else:
        api.pause()
    await cluster.stop(container_id(before, "app"))
    await cluster.wait_words("web", "log", "started", "started", seconds=10)
    if away == "down":
        await api.start()
    else:
        api.resume()
    after = await cluster.wait_pod("web", restarted("app"), "what happened meanwhile")
    assert restart_count(after, "app") == 1


async def test_a_status_made_from_an_older_version_is_made_anew(cluster: Cluster) -> None:
    """A condition that somebody else writes just before the kubelet does is not lost."""
    await cluster.run_pod("web", [container("app")])
    api = cluster.local.api
    api.hold_cache()  # the kubelet's watch falls behind
    pod = await cluster.pod("web")
    mine = {"type": "tests/mine", "status": "True"}
    body = {"status": {"conditions": [*pod["status"]["conditions"], mine]}}
    await cluster.client.merge_patch(PODS, cluster.namespace, "web", body, subresource="status")
    await cluster.stop(container_id(pod, "app"))
    async with asyncio.timeout(30):
        while True:
            pod = await cluster.pod("web")
            if restarted("app")(pod):
                break
            await asyncio.sleep(0.02)
    assert condition(pod, "tests/mine") == "True"
    api.release_cache()


async def test_a_runtime_that_dies_and_comes_back_keeps_its_pods(tmp_path: Path) -> None:
    async with local_cluster(tmp_path, relist=0.05, runtime_process=True) as cluster:
        before = await cluster.run_pod("web", [container("app")])
        await cluster.local.kill_runtime()
        await cluster.local.start_runtime()
        await cluster.cri.ListContainers(pb.ListContainersRequest(), wait_for_ready=True)
        await cluster.stop(container_id(before, "app"))
        after = await cluster.wait_pod("web", restarted("app"), "restarted after the runtime came back")
        assert restart_count(after, "app") == 1


async def test_the_kubelet_runs_as_a_process_of_its_own(tmp_path: Path) -> None:
    """Killed with SIGKILL and started again, it goes on with what runs."""
    async with local_cluster(tmp_path) as cluster:
        command: list[Any] = [sys.executable, "-m", f"{programs.NAME}.kubelet", "--kubeconfig", cluster.kubeconfig]
        command += ["--cri-endpoint", cluster.cri_endpoint, "--node-name", "second", "--root", tmp_path / "second"]
        command += ["--relist", "0.05", "--backoff", "0.2"]
        cluster.node_name = "second"
        process = await asyncio.create_subprocess_exec(*command)
        before = await cluster.run_pod("web", [container("app")])
        process.kill()
        await process.wait()
        process = await asyncio.create_subprocess_exec(*command)
        await cluster.stop(container_id(before, "app"))
        after = await cluster.wait_pod("web", restarted("app"), "restarted by the second process")
        assert restart_count(after, "app") == 1
        await cluster.delete_pod("web")
        process.terminate()
        assert await process.wait() == 0
