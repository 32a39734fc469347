"""What a bad change costs on a real cluster: steps and a judgement, beside a rollout of new pods.

`pytest tests/e2e/test_bad_changes.py -rP` prints the figures of the table in docs/policy.md. The value of the ConfigMap
says how the program behaves.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from crrd.core.policy.types import API_VERSION, KIND
from crrd.kube.resources import CONFIG_MAPS, EVENTS, PODS, POLICIES, REQUESTS, Where
from crrd_localnode.workload import RESOURCES
from tests.support.cluster import Cluster, Json, completed, pod_ready
from tests.support.real_nodes import kill_managers, kubectl, machines, wait_for_manager
from tests.support.recreates import Record, create_workload, grant, pods_of, recorded, wait_ready
from tests.tools.cluster.cluster import RealCluster as Machines

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(machines() is None, reason="needs a cluster of python -m tests.tools.cluster"),
]
REPLICAS = 20
READY_SECONDS = 4
"""How long a program that crashes is ready before it does."""
HTTP = 8080
SCRIPT = f"""trap 'exit 0' TERM
mkdir -p /www/cgi-bin
serve() {{ httpd -p {HTTP} -h /www; }}
case "$(value)" in
  exits) exit 3;;
  crashes) serve; sleep {READY_SECONDS} & wait $!; exit 3;;
  *) serve;;
esac
while :; do sleep 1 & wait $!; done"""
VALUES = {"variable": 'echo "$VALUE"', "file": "cat /plain/value", "subPath": "cat /part"}
"""How the program reads its ConfigMap."""


def served(cluster: Cluster, command: str) -> Json:
    """Return the spec of pods that are ready while a command serves HTTP."""
    app = {
        "name": "app",
        "image": cluster.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", command],
        "readinessProbe": {"tcpSocket": {"port": HTTP}, "periodSeconds": 1, "failureThreshold": 1},
    }
    own = {"nodeName": cluster.node_name, "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 5}
    return {**own, "tolerations": [{"operator": "Exists"}], "containers": [app]}


async def configured(cluster: Cluster, use: str) -> list[Json]:
    """Run the Deployment "web" with good data, and return its pods. See `run_pods`."""
    good = {"metadata": {"name": "cfg"}, "data": {"value": "good"}}
    await cluster.client.create(CONFIG_MAPS, cluster.namespace, good)
    return await run_pods(cluster, "web", use, REPLICAS)


async def run_pods(cluster: Cluster, name: str, use: str, replicas: int) -> list[Json]:
    """Run a Deployment whose program reads the ConfigMap as `use` says, and return its pods."""
    spec = served(cluster, f"value() {{ {VALUES[use]}; }}\n{SCRIPT}")
    (app,) = spec["containers"]
    match use:
        case "variable":
            app["env"] = [{"name": "VALUE", "valueFrom": {"configMapKeyRef": {"name": "cfg", "key": "value"}}}]
        case "file":
            app["volumeMounts"] = [{"name": "cfg", "mountPath": "/plain"}]
        case _:
            app["volumeMounts"] = [{"name": "cfg", "mountPath": "/part", "subPath": "value"}]
    if use != "variable":
        spec["volumes"] = [{"name": "cfg", "configMap": {"name": "cfg"}}]
    await create_workload(cluster, "Deployment", name, replicas, spec)
    return await wait_ready(cluster, name, replicas)


async def edit(cluster: Cluster, value: str) -> None:
    await cluster.client.merge_patch(CONFIG_MAPS, cluster.namespace, "cfg", {"data": {"value": value}})


async def give_policy(cluster: Cluster, name: str = "web", **more: object) -> None:
    """Create the policy of a Deployment, and wait until it has seen all pods."""
    await grant(cluster, "crrd-read-config", f"policy-{name}")
    spec = {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "triggers": {"configChange": {"settle": "2s"}},
        "budget": {"maxUnavailable": 5, "steps": [1, "50%"]},
        "judge": {"for": "15s"},
        **more,
    }
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}
    await cluster.client.create(POLICIES, cluster.namespace, body)
    await until_policy(cluster, lambda found: conditions(found).get("Ready", {}).get("reason") == "Idle", "idle", name)
    await asyncio.sleep(3)  # containers that start while a change settles are restarted once more


def conditions(policy: Json) -> dict[str, Json]:
    """Return the conditions of a policy by type."""
    return {each["type"]: each for each in (policy.get("status") or {}).get("conditions") or ()}


async def until_policy(cluster: Cluster, reached: Callable[[Json], bool], what: str, name: str = "web") -> Json:
    return await cluster.wait(POLICIES, name, reached, f"policy: {what}", seconds=300)


def has_run(policy: Json) -> bool:
    return bool(policy.get("status", {}).get("run"))


def is_done(policy: Json) -> bool:
    run = policy["status"]["run"]
    return bool(run.get("finished")) and not run["failed"] and conditions(policy)["Ready"]["reason"] == "Idle"


def is_halted(policy: Json) -> bool:
    found = conditions(policy)
    return found.get("Judged", {}).get("status") == "False" and found["Ready"]["reason"] == "RunFailed"


def disturbed(record: Record) -> set[str]:
    """Return the names of the pods that were unready or restarted at any time."""
    return {name for name, _ in record.restarts} | {pod["metadata"]["name"] for each in record.unready for pod in each}


async def ended_runs(cluster: Cluster) -> dict[str, float]:
    """Return how many runs of policies the managers have ended, by result."""
    where = Where(namespace="crrd-system", label_selector="app.kubernetes.io/component=manager")
    found: dict[str, float] = {}
    async with aiohttp.ClientSession() as session:
        for pod in (await cluster.client.list_all(PODS, dict, **where)).items:
            async with session.get(f"http://{pod['status']['podIP']}:9420/metrics") as answer:
                for line in (await answer.text()).splitlines():
                    if line.startswith("crrd_policy_runs_total{"):
                        labels, _, value = line.rpartition(" ")
                        result = labels.partition('result="')[2].partition('"')[0]
                        found[result] = found.get(result, 0) + float(value)
    return found


async def events(cluster: Cluster) -> set[str]:
    """Return the reasons of the events of "web"."""
    listing = await cluster.client.list_all(EVENTS, dict, namespace=cluster.namespace)
    return {each["reason"] for each in listing.items if each["involvedObject"]["name"] == "web"}


async def halted(cluster: Cluster, before: list[Json], record: Record) -> None:
    """Wait until the run is halted, and assert that it has reached exactly one pod."""
    await until_policy(cluster, is_halted, "halted")
    await asyncio.sleep(10)  # nothing more happens
    policy = dict(await cluster.client.get(POLICIES, cluster.namespace, "web"))
    assert is_halted(policy)
    (bad,) = disturbed(record)
    after = await pods_of(cluster, "web")
    assert [pod["metadata"]["uid"] for pod in after] == [pod["metadata"]["uid"] for pod in before]
    (request,) = (await cluster.client.list_all(REQUESTS, dict, namespace=cluster.namespace)).items
    assert request["spec"]["podName"] == bad
    judged = conditions(policy)["Judged"]
    assert judged["reason"] == "JudgementNo"
    assert f"the judgement of step 1 of 3 is no: {bad} " in judged["message"]
    assert f"{REPLICAS - 1} left" in judged["message"]
    assert policy["status"]["run"]["halted"]
    assert "ContainersRecreateHalted" in await events(cluster)


BAD = [("variable", "exits"), ("variable", "crashes"), ("file", "crashes"), ("subPath", "exits")]


@pytest.mark.parametrize(("use", "value"), BAD)
async def test_a_bad_config_map_reaches_one_pod(cluster: Cluster, nodes: Machines, use: str, value: str) -> None:
    """The program ends at once, or after it was ready. The owner then changes the data back."""
    before = await configured(cluster, use)
    await give_policy(cluster)
    ended = await ended_runs(cluster)
    began = time.monotonic()
    async with recorded(cluster, "web") as record:
        await edit(cluster, value)
        await until_policy(cluster, is_halted, "halted")
        print(f"{use} {value}: halted after {time.monotonic() - began:.0f} s")
        await halted(cluster, before, record)
    assert (await ended_runs(cluster))["halted"] == ended["halted"] + 1
    began = time.monotonic()
    await edit(cluster, "good")
    await until_policy(cluster, is_done, "done")
    await wait_ready(cluster, "web", REPLICAS)
    print(f"{use} {value}: all ready {time.monotonic() - began:.0f} s after the data was good again")
    policy = dict(await cluster.client.get(POLICIES, cluster.namespace, "web"))
    assert conditions(policy)["Judged"]["status"] == "True"


MOMENTS = ("status", "request", "judgement", "halted")


@pytest.mark.parametrize("moment", MOMENTS)
async def test_managers_that_are_killed_reach_no_other_pod(cluster: Cluster, nodes: Machines, moment: str) -> None:
    before = await configured(cluster, "variable")
    await give_policy(cluster)
    async with recorded(cluster, "web") as record:
        await edit(cluster, "crashes")
        match moment:
            case "status":
                await until_policy(cluster, has_run, "a run")
            case "halted":
                await until_policy(cluster, is_halted, "halted")
            case _:
                await first_request(cluster, lambda each: moment == "request" or completed(each))
        await asyncio.to_thread(kill_managers, nodes)
        await halted(cluster, before, record)
    await asyncio.to_thread(wait_for_manager, nodes)


async def first_request(cluster: Cluster, condition: Callable[[Json], bool]) -> None:
    """Wait until the first request meets the condition."""
    async with asyncio.timeout(60):
        while True:
            listing = await cluster.client.list_all(REQUESTS, dict, namespace=cluster.namespace)
            if any(map(condition, listing.items)):
                return
            await asyncio.sleep(0.05)


# Rollouts of new pods


async def restart_rollout(cluster: Cluster, nodes: Machines) -> None:
    """Roll out new pods, as a user does."""
    words = ("rollout", "restart", "deployment/web", "-n", cluster.namespace)
    await asyncio.to_thread(kubectl, nodes, *words)


async def annotate_template(cluster: Cluster, nodes: Machines) -> None:
    """Roll out new pods, as controllers do that write an annotation in the template."""
    template = {"metadata": {"annotations": {"example.com/config": str(time.time())}}}
    change = {"spec": {"template": template}}
    await cluster.client.merge_patch(RESOURCES["Deployment"], cluster.namespace, "web", change)


ROLLOUTS = [
    (restart_rollout, "exits", REPLICAS // 2),
    (restart_rollout, "crashes", REPLICAS),
    (annotate_template, "exits", REPLICAS // 2),
]
"""With the defaults, 25 % more pods and 25 % fewer, half of the pods are new and bad, or all if they are ready."""


@pytest.mark.parametrize(("roll_out", "value", "reached"), ROLLOUTS)
async def test_a_bad_config_map_with_a_rollout(
    cluster: Cluster,
    nodes: Machines,
    roll_out: Callable[[Cluster, Machines], Awaitable[None]],
    value: str,
    reached: int,
) -> None:
    before = {pod["metadata"]["name"] for pod in await configured(cluster, "variable")}
    began = last = time.monotonic()
    await edit(cluster, value)
    await roll_out(cluster, nodes)
    bad: set[str] = set()
    while time.monotonic() < last + 30:  # no further pod for so long
        found = {pod["metadata"]["name"] for pod in await pods_of(cluster, "web")} - before
        if found - bad:
            bad, last = bad | found, time.monotonic()
        await asyncio.sleep(0.2)
    ready = sum(map(pod_ready, await pods_of(cluster, "web")))
    print(f"{roll_out.__name__} {value}: {len(bad)} bad pods, the last after {last - began:.0f} s, {ready} pods ready")
    assert len(bad) == reached
