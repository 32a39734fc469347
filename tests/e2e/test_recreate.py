"""What a request means, on a real runtime: containerd here, or whatever cluster the variables name."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from crrd.core.api.types import ANNOTATION_PINNED
from crrd.kube.resources import EVENTS
from crrd.lib.errors import ApiRefusedError
from tests.support.cluster import (
    PATIENCE,
    Cluster,
    Json,
    bare,
    container,
    container_id,
    container_status,
    crr_for,
    pod_ready,
    restart_count,
    states,
)
from tests.support.daemons import NodeDaemon

pytestmark = [pytest.mark.containerd, pytest.mark.cluster, pytest.mark.usefixtures("node_daemon")]

STORY = "echo start >> /shared/log; trap 'echo term >> /shared/log; sleep 1; echo end >> /shared/log; exit 0' TERM; "
WAIT = "while :; do sleep 0.1; done"


def hook(script: str) -> Json:
    return {"preStop": {"exec": {"command": ["/bin/sh", "-c", script]}}}


def messages(request: Json) -> dict[str, str]:
    return {state["name"]: state.get("message", "") for state in request["status"]["containerRecreateStates"]}


async def event_reasons(cluster: Cluster, kind: str, name: str) -> list[str]:
    listing = await cluster.client.list_all(EVENTS, dict, namespace=cluster.namespace)
    about = [event for event in listing.items if event["involvedObject"]["name"] == name]
    return [event["reason"] for event in about if event["involvedObject"]["kind"] == kind]


async def finished(cluster: Cluster, pod: Json, names: list[str], **strategy: Any) -> Json:
    created = await cluster.recreate(pod, names, **strategy)
    return await cluster.wait_completed(created["metadata"]["name"])


async def test_the_whole_story(cluster: Cluster) -> None:
    app = container("app", STORY + WAIT, lifecycle=hook("echo hook $HOSTNAME >> /shared/log"))
    before = await cluster.run_pod("web", [app, container("side")])
    sandboxes = await cluster.sandboxes(before)
    request = await finished(cluster, before, ["app"])

    assert states(request) == {"app": "Succeeded"}
    assert request["status"]["containerRecreateStates"][0]["isKilled"] is True
    after = await cluster.pod("web")
    async with asyncio.timeout(PATIENCE):  # a container that runs may not have got that far
        while len(log := cluster.read("web", "log").splitlines()) < 5:
            await asyncio.sleep(0.05)
    assert [line.split()[0] for line in log] == ["start", "hook", "term", "end", "start"]
    assert container_id(after, "app") != container_id(before, "app")
    assert restart_count(after, "app") == 1
    assert (await cluster.status(container_id(before, "app"))).exit_code == 0, "it had the time to end by itself"
    assert container_status(after, "side") == container_status(before, "side")
    assert [entry.id for entry in await cluster.sandboxes(after)] == [entry.id for entry in sandboxes]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["podIP"] == before["status"]["podIP"]


@pytest.mark.parametrize(
    ("lifecycle", "outcome"),
    [
        ({"preStop": {"sleep": {"seconds": 1}}}, ""),
        (hook("echo no luck >&2; exit 7"), "preStop hook failed: exec ended with exit code 7: no luck"),
        (hook("sleep 60"), "preStop hook failed: "),
        ({"preStop": {"httpGet": {"host": "127.0.0.1", "port": 1, "path": "/"}}}, "preStop hook failed: "),
    ],
    ids=["sleep", "failing exec", "exec that takes longer than expected", "httpGet to nobody"],
)
async def test_a_hook_that_fails_does_not_keep_the_container(cluster: Cluster, lifecycle: Json, outcome: str) -> None:
    pod = await cluster.run_pod("web", [container("app", lifecycle=lifecycle)], grace=3)
    request = await finished(cluster, pod, ["app"])
    assert states(request) == {"app": "Succeeded"}
    assert messages(request)["app"].startswith(outcome)
    if outcome:
        async with asyncio.timeout(20):
            while "FailedPreStopHook" not in await event_reasons(cluster, "Pod", "web"):
                await asyncio.sleep(0.1)


async def test_an_http_hook_reaches_the_pod(cluster: Cluster) -> None:
    serve = "mkdir -p /tmp/w && echo bye > /tmp/w/bye && httpd -f -v -p 127.0.0.1:18973 -h /tmp/w 2>> /shared/log & "
    ports = [{"name": "admin", "containerPort": 18973, "hostPort": 18973}]
    lifecycle = {"preStop": {"httpGet": {"host": "127.0.0.1", "port": "admin", "path": "/bye"}}}
    script = serve + "trap 'exit 0' TERM; " + WAIT
    pod = await cluster.run_pod("web", [container("app", script, ports=ports, lifecycle=lifecycle)])
    async with asyncio.timeout(20):
        while True:
            with suppress(OSError):
                (await asyncio.open_connection("127.0.0.1", 18973))[1].close()
                break
            await asyncio.sleep(0.1)
    request = await finished(cluster, pod, ["app"])
    assert messages(request) == {"app": ""}
    assert "response:200" in cluster.read("web", "log")


async def test_a_native_sidecar(cluster: Cluster) -> None:
    sidecar = {**container("proxy"), "restartPolicy": "Always"}
    before = await cluster.run_pod("web", [container("app")], init_containers=[sidecar, container("setup", "true")])
    request = await finished(cluster, before, ["proxy"])
    assert states(request) == {"proxy": "Succeeded"}
    after = await cluster.pod("web")
    assert restart_count(after, "proxy") == 1
    assert container_status(after, "app") == container_status(before, "app")
    refused = await finished(cluster, after, ["setup"])
    assert messages(refused) == {
        "setup": "this is an init container; only containers and native sidecars can be recreated"
    }


async def test_a_container_that_would_not_come_back_is_left_alone(cluster: Cluster) -> None:
    before = await cluster.run_pod("web", [container("app")], restartPolicy="Never")
    request = await finished(cluster, before, ["app"])
    assert states(request) == {"app": "Failed"}
    assert messages(request) == {"app": "restartPolicy is Never, so kubelet would not start the container again"}
    after = await cluster.pod("web")
    assert pod_ready(after)
    assert container_id(after, "app") == container_id(before, "app")


async def test_on_failure_depends_on_the_exit_code(cluster: Cluster) -> None:
    failing = container("failing", "trap 'exit 3' TERM; " + WAIT)
    pod = await cluster.run_pod("web", [container("calm"), failing], restartPolicy="OnFailure")
    assert states(await finished(cluster, pod, ["failing"])) == {"failing": "Succeeded"}
    request = await finished(cluster, pod, ["calm"])
    assert "exited with code 0 and restartPolicy is OnFailure" in messages(request)["calm"]


async def run_ruled(cluster: Cluster, needed: str, containers: Sequence[Json], **spec: Any) -> Json:
    """Run a pod whose first container has restart rules. Skips the test if the API server does not know them."""
    try:
        pod = await cluster.run_pod("web", containers, **spec)
    except ApiRefusedError as error:
        if "restartPolicy" not in str(error):
            raise
        pytest.skip(f"this cluster has no {needed}")
    if "restartPolicyRules" not in pod["spec"]["containers"][0]:
        pytest.skip(f"this cluster has no {needed}")
    return pod


async def test_what_a_rule_restarts_is_awaited_whatever_its_exit_code(cluster: Cluster) -> None:
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [0]}}
    ruled = container("app", restartPolicy="OnFailure", restartPolicyRules=[rule])
    pod = await run_ruled(cluster, "restartPolicyRules (Kubernetes 1.35)", [ruled], restartPolicy="Never")
    assert states(await finished(cluster, pod, ["app"])) == {"app": "Succeeded"}


async def test_a_rule_that_restarts_the_whole_pod(cluster: Cluster) -> None:
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}}
    ruled = container("app", "trap 'exit 3' TERM; " + WAIT, restartPolicy="Always", restartPolicyRules=[rule])
    pod = await run_ruled(cluster, "RestartAllContainers (Kubernetes 1.36)", [ruled, container("side")])
    refused = await finished(cluster, pod, ["app"])
    assert "restart all containers of the pod after exit code" in messages(refused)["app"]
    assert container_id(await cluster.pod("web"), "app") == container_id(pod, "app")
    allowed = await finished(cluster, pod, ["app"], allowPodRestart=True)
    assert states(allowed) == {"app": "Succeeded"}
    after = await cluster.pod("web")
    assert pod_ready(after)
    assert container_id(after, "side") != container_id(pod, "side")
    assert allowed["status"]["message"].endswith("kubelet also restarted other containers of the pod: side")


async def test_the_next_request_runs_when_the_first_is_deleted(cluster: Cluster) -> None:
    slow = container("app", "trap 'sleep 2; exit 0' TERM; " + WAIT)
    pod = await cluster.run_pod("web", [slow], grace=20)
    first = await cluster.recreate(pod, ["app"], name="first")
    await cluster.wait_request("first", lambda request: bool(request.get("status")), "answered")
    second = await cluster.recreate(pod, ["app"], name="second")
    await cluster.delete_request(first["metadata"]["name"])
    request = await cluster.wait_completed(second["metadata"]["name"])
    assert states(request) == {"app": "Succeeded"}
    assert restart_count(await cluster.pod("web"), "app") == 1


async def test_a_request_in_the_containers_first_moments(cluster: Cluster) -> None:
    await cluster.create_pod("web", [container("app")])
    pod = await cluster.wait_pod("web", lambda pod: bool(container_status(pod, "app").get("containerID")), "has an ID")
    request = await finished(cluster, pod, ["app"])
    assert states(request) == {"app": "Succeeded"}
    after = await cluster.pod("web")
    assert restart_count(after, "app") == 1
    assert container_id(after, "app") != container_id(pod, "app")


async def test_without_status_context_the_node_pins(cluster: Cluster) -> None:
    pod = await cluster.run_pod("web", [container("a"), container("b")])
    body = crr_for(pod, ["a", "b"])
    for wanted in body["spec"]["containers"]:
        del wanted["statusContext"]
    created = await cluster.create_request(body)
    request = await cluster.wait_completed(created["metadata"]["name"])
    assert states(request) == {"a": "Succeeded", "b": "Succeeded"}
    assert bare(container_id(pod, "a")) in request["metadata"]["annotations"][ANNOTATION_PINNED]


async def test_already_recreated_is_awaited_unless_forced(cluster: Cluster) -> None:
    pod = await cluster.run_pod("web", [container("app")])
    assert states(await finished(cluster, pod, ["app"])) == {"app": "Succeeded"}
    assert states(await finished(cluster, pod, ["app"])) == {"app": "Succeeded"}
    assert restart_count(await cluster.pod("web"), "app") == 1
    assert states(await finished(cluster, pod, ["app"], forceRecreate=True)) == {"app": "Succeeded"}
    assert restart_count(await cluster.pod("web"), "app") == 2


async def test_ordered_containers_come_one_after_the_other(cluster: Cluster) -> None:
    def told(name: str) -> Json:
        script = f"trap 'echo {name}-term >> /shared/log; exit 0' TERM; echo {name}-start >> /shared/log; {WAIT}"
        return container(name, script)

    pod = await cluster.run_pod("web", [told("a"), told("b")])
    while len(cluster.read("web", "log").split()) < 2:  # a stop before the trap is set would be waited out
        await asyncio.sleep(0.1)
    request = await finished(cluster, pod, ["b", "a"], orderedRecreate=True)
    assert states(request) == {"b": "Succeeded", "a": "Succeeded"}
    assert cluster.read("web", "log").split()[-4:] == ["b-term", "b-start", "a-term", "a-start"]


async def test_min_started_seconds(cluster: Cluster) -> None:
    pod = await cluster.run_pod("web", [container("app")])
    request = await finished(cluster, pod, ["app"], minStartedSeconds=3)
    assert states(request) == {"app": "Succeeded"}
    status = await cluster.status(container_id(await cluster.pod("web"), "app"))
    assert status.started_at > 0


async def test_an_in_place_update_before_the_request_is_taken_as_its_own(cluster: Cluster) -> None:
    image = cluster.need_second_image()
    pod = await cluster.run_pod("web", [container("app", "trap 'sleep 1; exit 0' TERM; " + WAIT)])
    await cluster.set_image("web", "app", image)
    request = await finished(cluster, pod, ["app"])
    assert states(request) == {"app": "Succeeded"}
    after = await cluster.wait_pod("web", pod_ready, "ready")
    assert restart_count(after, "app") == 1
    assert container_status(after, "app")["image"].endswith(image.rpartition("/")[2])


async def test_an_in_place_update_during_the_request_costs_no_second_restart(cluster: Cluster) -> None:
    image = cluster.need_second_image()
    pod = await cluster.run_pod("web", [container("app", "trap 'sleep 2; exit 0' TERM; " + WAIT)], grace=20)
    created = await cluster.recreate(pod, ["app"])
    name = created["metadata"]["name"]
    await cluster.wait_request(name, lambda request: bool(request.get("status")), "answered")
    await cluster.set_image("web", "app", image)
    request = await cluster.wait_completed(name)
    assert states(request) == {"app": "Succeeded"}
    after = await cluster.wait_pod("web", pod_ready, "ready")
    assert restart_count(after, "app") == 1
    assert container_status(after, "app")["image"].endswith(image.rpartition("/")[2]), "no other restart is to come"


async def test_bad_input_fails_plainly_and_touches_nothing(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    before = await cluster.run_pod("web", [container("app")])
    other = await cluster.run_pod("db", [container("app")])

    def spoiled(name: str, **changes: Any) -> Json:
        body = crr_for(before, ["app"], name=name)
        body["spec"]["containers"][0].update(changes.pop("container", {}))
        for part, value in changes.items():
            body["metadata"][part] = {**body["metadata"].get(part, {}), **value}
        return body

    context = {"restartCount": 0}
    bad = {
        "unknown": spoiled("unknown", container={"name": "nope"}),
        "foreign": spoiled(
            "foreign", container={"statusContext": {**context, "containerID": container_id(other, "app")}}
        ),
        "runtime": spoiled("runtime", container={"statusContext": {**context, "containerID": "docker://abc"}}),
        "no-runtime": spoiled("no-runtime", container={"statusContext": {**context, "containerID": "abc"}}),
        "uid": spoiled("uid", labels={"crr.apps.kruise.io/pod-uid": "not-the-pods"}),
        "pins": spoiled("pins", annotations={ANNOTATION_PINNED: "{"}),
    }
    sentences = {
        "unknown": f'pod {cluster.namespace}/web has no container "nope"',
        "foreign": f"belongs to pod {cluster.namespace}/db",
        "runtime": "belongs to runtime 'docker'",
        "no-runtime": "containerID",
        "uid": "the pod was replaced: the request is for UID not-the-pods",
        "pins": ANNOTATION_PINNED,
    }
    for body in bad.values():
        await cluster.create_request(body)
    for name, sentence in sentences.items():
        request = await cluster.wait_completed(name)
        assert set(states(request).values()) == {"Failed"}, request
        assert sentence in " ".join(messages(request).values()), request
    after = await cluster.pod("web")
    assert container_status(after, "app") == container_status(before, "app")
    assert container_status(await cluster.pod("db"), "app") == container_status(other, "app")
    assert not [line for line in node_daemon.log if line["event"] in ("stopping container", "preStop hook started")]
    assert states(await finished(cluster, before, ["app"])) == {"app": "Succeeded"}, "the daemon goes on"
