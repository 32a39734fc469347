"""`crrd recreate` as its user meets it: what it does, how it ends, and input that cannot work, one line each."""

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from crrd.cli.main import main
from crrd.cli.recreate import VERBS
from crrd.core.api.time import parse_time, rfc3339
from crrd.core.api.types import ANNOTATION_ABORTED, API_VERSION, KIND
from crrd.core.rollout.run import ANNOTATION_TARGET, LABEL_RUN, Options, Run, Target
from crrd.kube.resources import CONFIG_MAPS, EVENTS, NODES, PODS, REQUESTS, Resource
from crrd_localnode.api.admission import AdmissionRequest
from crrd_localnode.api.errors import Cause, invalid
from tests.support.command import Begun, crrd
from tests.support.faulty_api import Call, Match
from tests.support.played_cluster import NAMESPACE, PlayedCluster, played
from tests.support.warm import begun

CRDS = Resource("customresourcedefinitions", "apiextensions.k8s.io")
pytestmark = pytest.mark.timeout(300)  # many processes, one after the other
JOBS = Resource("jobs", "batch")


_begun = AsyncExitStack()
"""The commands that `begin` has started in the current test."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[PlayedCluster]:
    async with played(tmp_path) as found:
        yield found
        await _begun.aclose()


def on(verb: str, resource: str) -> Match:
    return lambda call: (call.verb, call.resource) == (verb, resource)


async def begin(cluster: PlayedCluster, *words: str, ignores: tuple[signal.Signals, ...] = ()) -> Begun:
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    return Begun(await _begun.enter_async_context(begun(["recreate", *words], environment, ignores=ignores)))


async def the_run(cluster: PlayedCluster) -> str:
    """The name of the only run."""
    (name,) = {request["metadata"]["labels"][LABEL_RUN] for request in await cluster.requests()}
    return str(name)


async def test_a_deployment_pod_by_pod(cluster: PlayedCluster) -> None:
    pods = await cluster.workload("Deployment", "web", 3)
    await cluster.pod("stray", {"app": "web"})  # its labels are right, and it is not the Deployment's
    code, out, err = await cluster.recreate("deployment/web", "-c", "app", "--reason", "log level")
    assert (code, err) == (0, "")
    assert cluster.stops == [(pod, "app") for pod in pods]
    name = await the_run(cluster)
    head, *told = out.splitlines()
    what = "app of deployment.apps/web, 3 pods, at most 1 unready (log level)"
    assert head == f"run {name}: {what}; namespace default, context local"
    for at, pod in enumerate(pods):
        (line,) = [line for line in told if pod in line and "  done  " in line]
        assert re.search(rf"containerd://\w{{12}} -> containerd://\w{{12}}  in \d+\.\d s  \({at + 1} of 3\)$", line)
    assert re.fullmatch(r"done: 3 of 3 pods recreated \(after \d+s\)", told[-1])
    events = (await cluster.client.list_all(EVENTS, dict, namespace=NAMESPACE)).items
    assert [(each["reason"], each["involvedObject"]["kind"], each["involvedObject"]["name"]) for each in events] == [
        ("ContainersRecreating", "Deployment", "web"),
        ("ContainersRecreated", "Deployment", "web"),
    ]
    assert "log level" in events[0]["message"]
    code, out, err = await cluster.recreate("resume", name)
    assert (code, err, out.splitlines()[-1].startswith("done: 3 of 3")) == (0, "", True)
    assert len((await cluster.client.list_all(EVENTS, dict, namespace=NAMESPACE)).items) == len(events)


async def test_pods_by_their_labels_several_containers_and_json(cluster: PlayedCluster) -> None:
    await cluster.workload("StatefulSet", "db", 2)
    flags = ("--ordered", "--unready-grace", "5s", "--max-unavailable", "100%", "--pod-timeout", "2m")
    code, out, err = await cluster.recreate("-l", "app=db", "-c", "app,side", *flags, "-o", "json")
    assert (code, err) == (0, "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (lines[0]["event"], lines[0]["target"], lines[0]["containers"]) == ("begin", "pods app=db", ["app", "side"])
    done = [line for line in lines if line.get("stage") == "done"]
    assert {line["pod"] for line in done} == {"db-0", "db-1"}
    assert all(line["new"].keys() == line["old"].keys() == {"app", "side"} for line in done)
    assert (lines[-1]["event"], lines[-1]["outcome"], lines[-1]["pods"]["done"]) == ("end", "done", 2)
    (spec, _) = [request["spec"] for request in await cluster.requests()]
    assert spec["strategy"]["orderedRecreate"] is True
    assert spec["strategy"]["unreadyGracePeriodSeconds"] == 5
    assert spec["activeDeadlineSeconds"] == 120


async def test_a_statefulset_from_the_highest_ordinal(cluster: PlayedCluster) -> None:
    await cluster.workload("StatefulSet", "db", 3, "app")
    assert (await cluster.recreate("sts", "db", "-c", "app")).code == 0
    assert cluster.stops == [("db-2", "app"), ("db-1", "app"), ("db-0", "app")]


async def custom(cluster: PlayedCluster, group: str, kind: str, status: dict[str, object]) -> str:
    """A kind that only this cluster has, and `c` of it; returns its UID."""
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "shortNames": [kind[:5].lower()]}
    spec = {"group": group, "names": names, "scope": "Namespaced", "versions": [version]}
    await cluster.client.create(CRDS, "", {"metadata": {"name": f"{plural}.{group}"}, "spec": spec})
    selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["clone"]}]}
    body = {"metadata": {"name": "c"}, "spec": {"replicas": 1, "selector": selector}, "status": status}
    body |= {"apiVersion": f"{group}/v1", "kind": kind}
    made = await cluster.client.create(Resource(plural, group), NAMESPACE, body)
    return str(made["metadata"]["uid"])


async def test_a_kind_that_is_found_by_discovery(cluster: PlayedCluster) -> None:
    uid = await custom(cluster, "apps.kruise.io", "CloneSet", {"observedGeneration": 1})
    owner = {"apiVersion": "apps.kruise.io/v1", "kind": "CloneSet", "name": "c", "uid": uid}
    await cluster.pod("c-1", {"app": "clone"}, ownerReferences=[{**owner, "controller": True}])
    await cluster.pod("c-2", {"app": "clone"}, ownerReferences=[{**owner, "uid": "another", "controller": True}])
    for word in ("clone/c", "clonesets.apps.kruise.io/c", "cloneset.v1.apps.kruise.io/c"):
        code, out, err = await cluster.recreate(word, "-c", "app", "--dry-run")
        assert (code, out, err) == (0, "batch 1: c-1 (node-a)\n", "")


async def test_pods_of_another_workload_are_left_alone(cluster: PlayedCluster) -> None:
    """Their labels match the selector, too. It does not matter whether their owner can be read."""
    pods = await cluster.workload("Deployment", "web", 2, "app")
    rollout = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "canary", "uid": "rollout-1"}
    await cluster.pod("web-canary", {"app": "web"}, ownerReferences=[{**rollout, "controller": True}])
    await cluster.pod("web-alone", {"app": "web"})
    code, out, err = await cluster.recreate("deployment/web", "-c", "app", "--dry-run")
    assert (code, out, err) == (0, "".join(f"batch {n}: {pod} (node-a)\n" for n, pod in enumerate(pods, 1)), "")
    for pod in pods:
        await cluster.client.delete(PODS, NAMESPACE, pod, grace_seconds=0)
    code, out, err = await cluster.recreate("deployment/web", "-c", "app", "--dry-run")
    assert (code, out) == (2, "")
    assert "argoproj.io/v1alpha1" in err, "perhaps it is one of web's"


async def test_a_dry_run_changes_nothing(cluster: PlayedCluster) -> None:
    pods = await cluster.workload("Deployment", "web", 4)
    await cluster.pod("web-other", {"app": "web"}, "else")
    flags = ("-c", "app", "--max-unavailable", "2", "--partition", "25%", "--dry-run")
    code, out, _ = await cluster.recreate("-l", "app=web", *flags)
    assert (code, out.splitlines()) == (
        0,
        [
            f"batch 1: {pods[0]} (node-a)",
            "then asks whether to continue",
            f"batch 2: {pods[1]} (node-a), {pods[2]} (node-a)",
            f"batch 3: {pods[3]} (node-a)",
            "skipped: web-other (container app not found in the pod)",
        ],
    )
    answer = json.loads((await cluster.recreate("-l", "app=web", *flags, "-o", "json")).out)
    assert [[each["pod"] for each in batch] for batch in answer["batches"]] == [[pods[0]], [*pods[1:3]], [pods[3]]]
    assert answer["skipped"] == {"container app not found in the pod": ["web-other"]}
    assert await cluster.requests() == []
    await cluster.budget("strict", {"app": "web"}, 0)
    _, out, _ = await cluster.recreate("deploy/web", "-c", "app", "--dry-run")
    assert out.startswith("then waits: PodDisruptionBudget strict allows no disruption now (kubectl describe pdb ")


async def test_a_dry_run_of_one_that_has_begun_changes_nothing_either(cluster: PlayedCluster) -> None:
    pods = await cluster.workload("Deployment", "web", 3, "app")
    await cluster.recreate("deployment/web", "-c", "app", "--run", "nightly", "--partition", "1")
    before = await cluster.requests()
    for words in (("deployment/web", "-c", "app", "--run", "nightly"), ("resume", "nightly", "--yes")):
        code, out, err = await cluster.recreate(*words, "--dry-run")
        assert (code, out, err) == (0, f"batch 1: {pods[1]} (node-a)\nbatch 2: {pods[2]} (node-a)\n", "")
    assert (cluster.stops, await cluster.requests()) == ([(pods[0], "app")], before)
    assert (await cluster.recreate("resume", "nightly", "--yes")).code == 0
    code, out, _ = await cluster.recreate("resume", "nightly", "--dry-run")
    assert (code, out) == (0, "no pods left to restart\n")


@pytest.mark.parametrize(
    ("labels", "begun"), [({"app": "web"}, True), ({"app": "api"}, True), ({"tier": "front"}, False)]
)
async def test_two_runs_under_one_budget(cluster: PlayedCluster, labels: dict[str, str], begun: bool) -> None:
    """A pod of another workload under way spends the budget that selects it, and no other."""
    for name in ("web", "api"):
        for pod in await cluster.workload("Deployment", name, 1, "app"):
            await cluster.client.merge_patch(PODS, NAMESPACE, pod, {"metadata": {"labels": {"tier": "front"}}})
    await cluster.budget("guard", labels, 1)
    cluster.goes_on.clear()
    other = asyncio.create_task(cluster.recreate("deployment/api", "-c", "app"))
    while not cluster.stops:
        await asyncio.sleep(0.01)
    _, out, _ = await cluster.recreate("deployment/web", "-c", "app", "--dry-run")
    assert out.startswith(
        "batch 1: web-" if begun else "then waits: PodDisruptionBudget guard allows no disruption now"
    )
    cluster.goes_on.set()
    assert (await other).code == 0


async def test_the_first_failure_stops_it_and_is_explained(cluster: PlayedCluster) -> None:
    pods = await cluster.workload("Deployment", "web", 3, "app")
    cluster.fails[pods[1]] = ("StillRuns", "the runtime reported the container as stopped, but it is still running")
    code, out, err = await cluster.recreate("deployment/web", "-c", "app")
    assert (code, err) == (1, "")
    name = await the_run(cluster)
    assert f"{pods[1]} failed: app: the runtime reported the container as stopped, but it is still running" in out
    assert "  Completed; these containers were not recreated: " in out
    assert "    > check the container runtime on node node-a" in out
    assert cluster.stops == [(pods[0], "app")], "the rest is left alone"
    end = out.splitlines()[-1]
    assert end.startswith(
        f"failed: 1 of 3 pods recreated, 1 failed; after fixing the cause, to continue: crrd recreate resume {name}"
    )

    code, out, _ = await cluster.recreate("resume", name)
    assert (code, len(cluster.stops)) == (1, 1), "a run that has failed goes no further by itself"
    code, out, _ = await cluster.recreate("resume", name, "--max-failures", "2")
    assert code == 1, "one pod is not recreated"
    assert cluster.stops == [(pods[0], "app"), (pods[2], "app")]
    events = (await cluster.client.list_all(EVENTS, dict, namespace=NAMESPACE)).items
    failed = [each for each in events if each["reason"] == "ContainersRecreateFailed"]
    assert {each["type"] for each in failed} == {"Warning"}
    assert f"{pods[1]}: app: the runtime reported" in failed[0]["message"]


async def test_a_budget_that_never_allows(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 2, "app")
    await cluster.budget("strict", {"app": "web"}, 0)
    code, out, _ = await cluster.recreate("deployment/web", "-c", "app", "--timeout", "2s")
    assert code == 3
    why = "PodDisruptionBudget strict allows no disruption now (kubectl describe pdb strict -n default)"
    assert f"waiting: {why}" in out
    said = f"0 of 2 pods recreated; last waited for: {why}; no pod was restarted"
    assert out.splitlines()[-1].startswith(f"timed out: {said} (after ")
    _, out, _ = await cluster.recreate("deployment/web", "-c", "app", "--timeout", "2s", "-o", "json")
    assert json.loads(out.splitlines()[-1])["message"] == said
    assert (cluster.stops, await cluster.requests()) == ([], [])


async def test_a_workload_that_is_being_rolled_out(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 2, "app")
    deployments = Resource("deployments", "apps")
    await cluster.client.merge_patch(deployments, NAMESPACE, "web", {"spec": {"paused": True}})
    code, out, _ = await cluster.recreate("deployment/web", "-c", "app", "--timeout", "2s")
    assert code == 3
    rolling = (
        "the rollout of deployment.apps/web is not finished: waiting for its controller to observe the last change"
    )
    assert f"waiting: {rolling}" in out
    assert (await cluster.recreate("deployment/web", "-c", "app", "--force")).code == 0
    unseen = {"status": {"observedGeneration": None}}
    await cluster.client.merge_patch(deployments, NAMESPACE, "web", unseen, subresource="status")
    _, out, _ = await cluster.recreate("deployment/web", "-c", "app", "--dry-run")
    assert out.startswith(
        "then waits: the rollout of deployment.apps/web is not finished: waiting for its controller to observe "
    )


async def job(cluster: PlayedCluster, spec: dict[str, int], status: dict[str, int], *phases: str) -> None:
    """The Job `work` with its pods `work-0` ..., as its controller keeps it: it has no observedGeneration."""
    template = {"spec": {"restartPolicy": "OnFailure", "containers": [{"name": "app", "image": "i:1"}]}}
    own = {**spec, "selector": {"matchLabels": {"app": "work"}}, "template": template}
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work"}, "spec": own}
    made = await cluster.client.create(JOBS, NAMESPACE, body)
    assert made["metadata"]["generation"] == 1
    await cluster.client.merge_patch(JOBS, NAMESPACE, "work", {"status": status}, subresource="status")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "work", "uid": made["metadata"]["uid"]}
    for number, phase in enumerate(phases):
        name = f"work-{number}"
        await cluster.pod(name, {"app": "work"}, ownerReferences=[{**owner, "controller": True}])
        await cluster.client.merge_patch(PODS, NAMESPACE, name, {"status": {"phase": phase}}, subresource="status")


async def test_a_job(cluster: PlayedCluster) -> None:
    await job(cluster, {"parallelism": 2, "completions": 2}, {"active": 2, "ready": 2}, "Running", "Running")
    assert (await cluster.recreate("job/work", "-c", "app", "--timeout", "30s")).code == 0
    assert cluster.stops == [("work-0", "app"), ("work-1", "app")]


async def test_a_job_of_which_a_part_is_done(cluster: PlayedCluster) -> None:
    done = ("Succeeded",) * 3
    await job(cluster, {"parallelism": 5, "completions": 5}, {"active": 2, "succeeded": 3}, *done, "Running", "Running")
    _, out, _ = await cluster.recreate("job/work", "-c", "app", "--dry-run")
    assert out.splitlines()[:2] == ["batch 1: work-3 (node-a)", "batch 2: work-4 (node-a)"]
    await cluster.client.merge_patch(JOBS, NAMESPACE, "work", {"status": {"succeeded": 2}}, subresource="status")
    _, out, _ = await cluster.recreate("job/work", "-c", "app", "--dry-run")
    assert out.splitlines()[0] == "then waits: 1 pod is unready, the limit is 1: 1 not created yet", "one is to come"


async def test_whoever_is_unready_counts_and_zones_are_heeded(cluster: PlayedCluster) -> None:
    pods = await cluster.workload("Deployment", "web", 3, "app")
    await cluster.client.create(
        Resource("nodes"), "", {"metadata": {"name": "node-a", "labels": {"topology.kubernetes.io/zone": "east"}}}
    )
    flags = ("--max-unavailable", "3", "--max-per-zone", "1", "--max-per-node", "2", "--dry-run")
    _, out, _ = await cluster.recreate("deployment/web", "-c", "app", *flags)
    assert len(out.splitlines()) == 3
    await cluster.pod("broken", {"app": "web"}, "else")
    await cluster.set_ready("broken", ready=False)
    code, out, _ = await cluster.recreate("-l", "app=web", "-c", "app", "--timeout", "2s")
    assert (code, "waiting: 1 pod is unready, the limit is 1: broken" in out, cluster.stops) == (3, True, [])
    await cluster.set_ready(pods[0], ready=False)
    _, out, _ = await cluster.recreate("-l", "app=web", "-c", "app", "--dry-run", "--max-unavailable", "2")
    assert out.splitlines()[0] == f"batch 1: {pods[0]} (node-a)", "what is unready anyway costs nothing"


RULES = [{"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}}]
MAY_RESTART_POD = (
    "container app: stopping it may restart all containers of the pod (restartPolicyRules); "
    "to allow this, use --allow-pod-restart"
)


async def ruled(cluster: PlayedCluster, name: str, node: str) -> None:
    """A pod whose container would have a kubelet from 1.36 on restart the whole pod."""
    app = {"name": "app", "image": "i:1", "restartPolicyRules": RULES, "restartPolicy": "Always"}
    body = {"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {"nodeName": node, "containers": [app]}}
    await cluster.run(dict(await cluster.client.create(PODS, NAMESPACE, body)))


async def node(cluster: PlayedCluster, name: str, kubelet: str) -> None:
    """A node, with the version of its kubelet."""
    body = {"metadata": {"name": name}, "status": {"nodeInfo": {"kubeletVersion": kubelet}}}
    await cluster.client.create(NODES, "", body)
    await cluster.client.merge_patch(NODES, "", name, {"status": body["status"]}, subresource="status")


async def test_a_pod_that_would_be_restarted_as_a_whole_is_left_out(cluster: PlayedCluster) -> None:
    for name, version in (("new", "v1.36.1"), ("old", "v1.35.4")):
        await node(cluster, name, version)
        await ruled(cluster, f"web-{name}", name)
    dry = ("-l", "app=web", "-c", "app", "--dry-run")
    code, out, err = await cluster.recreate(*dry)
    assert (code, err) == (0, "")
    assert out == f"batch 1: web-old (old)\nskipped: web-new ({MAY_RESTART_POD})\n"
    cluster.api.fail_next(9, status=403, match=on("get", "nodes"))
    for asked in (dry, dry[:-1]):
        code, out, err = await cluster.recreate(*asked)
        why = f"2 pods are skipped, for example web-new ({MAY_RESTART_POD})"
        said = f"crrd recreate: no container can be restarted: {why}\n"
        assert (code, out, err) == (2, "", said), "an unknown kubelet is taken to have the rules"
    cluster.api.clear_faults()
    assert await cluster.requests() == []
    code, out, _ = await cluster.recreate(*dry, "--allow-pod-restart")
    assert (code, out) == (0, "batch 1: web-new (new)\nbatch 2: web-old (old)\n")


@pytest.mark.parametrize(("flags", "seconds"), [((), 30), (("--min-ready", "1m"), 60), (("--min-ready", "0s"), 0)])
async def test_a_dry_run_says_how_long_a_pod_must_be_ready(
    cluster: PlayedCluster, flags: tuple[str, ...], seconds: int
) -> None:
    await cluster.workload("Deployment", "web", 2, "app")
    deployments = Resource("deployments", "apps")
    await cluster.client.merge_patch(deployments, NAMESPACE, "web", {"spec": {"minReadySeconds": 30}})
    words = ("deployment/web", "-c", "app", "--dry-run", "--force", *flags)
    _, out, _ = await cluster.recreate(*words)
    assert (f"each pod must be ready for {seconds}s before the next batch" in out) is bool(seconds)
    assert json.loads((await cluster.recreate(*words, "-o", "json")).out)["minReadySeconds"] == seconds


async def test_a_dry_run_warns_of_an_image_that_is_pulled_again(cluster: PlayedCluster) -> None:
    pods = await cluster.workload("Deployment", "web", 2, "app", imagePullPolicy="Always")
    flags = ("deployment/web", "-c", "app", "--dry-run")
    _, out, _ = await cluster.recreate(*flags)
    assert f"warning: {', '.join(pods)}: imagePullPolicy of container app is Always, " in out
    ((warning, named),) = json.loads((await cluster.recreate(*flags, "-o", "json")).out)["warnings"].items()
    assert ("kubernetes#111822" in warning, named) == (True, pods)


async def test_a_dry_run_warns_of_a_kubelet_that_may_not_restart_the_container(cluster: PlayedCluster) -> None:
    await node(cluster, "node-a", "v1.35.1")
    proxy = {
        "name": "proxy",
        "image": "i:1",
        "restartPolicy": "Always",
        "startupProbe": {"exec": {"command": ["true"]}},
    }
    spec = {"nodeName": "node-a", "initContainers": [proxy], "containers": [{"name": "app", "image": "i:1"}]}
    body = {"metadata": {"name": "web-1", "labels": {"app": "web"}}, "spec": spec}
    await cluster.run(dict(await cluster.client.create(PODS, NAMESPACE, body)))
    await cluster.pod("web-2", {"app": "web"})
    flags = ("-l", "app=web", "-c", "app", "--dry-run")
    warning = (
        "kubelet v1.35.1 has a defect (kubernetes#137146, fixed in 1.35.4): if it was restarted after the pod "
        "started, regular containers might stay down, because the pod has a sidecar with a startupProbe"
    )
    code, out, _ = await cluster.recreate(*flags)
    assert (code, out) == (0, f"batch 1: web-1 (node-a)\nbatch 2: web-2 (node-a)\nwarning: web-1: {warning}\n")
    assert json.loads((await cluster.recreate(*flags, "-o", "json")).out)["warnings"] == {warning: ["web-1"]}


async def test_who_allows_the_restart_of_pods_allows_it_for_the_whole_run(cluster: PlayedCluster) -> None:
    for name in ("web-1", "web-2"):
        await ruled(cluster, name, "node-a")
    flags = ("-l", "app=web", "-c", "app", "--run", "nightly")
    assert (await cluster.recreate(*flags, "--partition", "1", "--allow-pod-restart")).code == 0
    code, out, _ = await cluster.recreate("resume", "nightly", "--dry-run")
    assert (code, out) == (0, "batch 1: web-2 (node-a)\n")
    assert (await cluster.recreate(*flags, "--yes")).code == 0
    assert cluster.stops == [("web-1", "app"), ("web-2", "app")]
    assert [each["spec"]["strategy"]["allowPodRestart"] for each in await cluster.requests()] == [True, True]


async def test_the_restart_of_pods_can_be_allowed_when_a_run_is_resumed(cluster: PlayedCluster) -> None:
    await ruled(cluster, "web-1", "node-a")
    await cluster.pod("web-2", {"app": "web"})
    assert (await cluster.recreate("-l", "app=web", "-c", "app", "--run", "nightly")).code == 0
    assert cluster.stops == [("web-2", "app")]
    assert (await cluster.recreate("resume", "nightly", "--allow-pod-restart")).code == 0
    assert cluster.stops == [("web-2", "app"), ("web-1", "app")]


async def test_a_kubelet_that_is_replaced_during_a_run_is_noticed(cluster: PlayedCluster) -> None:
    """Of its node the version is asked for once more before a pod gets its request."""
    await node(cluster, "node-a", "v1.35.4")
    await cluster.pod("web-1", {"app": "web"})
    await ruled(cluster, "web-2", "node-a")
    cluster.goes_on.clear()
    run = await begin(cluster, "-l", "app=web", "-c", "app")
    await run.until("recreating")
    status = {"status": {"nodeInfo": {"kubeletVersion": "v1.36.0"}}}
    await cluster.client.merge_patch(NODES, "", "node-a", status, subresource="status")
    cluster.goes_on.set()
    code, out = await run.end()
    assert (code, cluster.stops) == (0, [("web-1", "app")])
    assert f"web-2  node-a  skipped  - {MAY_RESTART_POD}" in out


async def test_two_runs_on_one_target_see_each_other(cluster: PlayedCluster) -> None:
    pods = await cluster.workload("Deployment", "web", 2, "app")
    cluster.goes_on.clear()
    first = await begin(cluster, "deployment/web", "-c", "app")
    await first.until("recreating")
    name = await the_run(cluster)
    code, _, err = await cluster.recreate("deployment/web", "-c", "app")
    assert code == 2
    assert err.startswith(f"crrd recreate: run {name} on deployment.apps/web is not finished: ")
    code, _, err = await cluster.recreate(f"pod/{pods[0]}", "-c", "app")
    assert (code, f"run {name} on deployment.apps/web" in err) == (2, True)

    code, out, _ = await cluster.recreate("abort", name)
    said = "pending requests deleted: 0; 1 in progress will finish"
    assert (code, out) == (0, f"run {name} aborted, {said}\n")
    code, out = await first.end()
    assert (code, out.splitlines()[-1].startswith("aborted: 0 of 2 pods recreated, 1 in progress")) == (1, True)
    cluster.goes_on.set()
    code, _, err = await cluster.recreate("resume", name)
    assert (code, err) == (2, f"crrd recreate: run {name} was aborted: start a new one\n")


async def test_what_has_not_begun_is_taken_back(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 2, "app")
    run = await begin(cluster, "deployment/web", "-c", "app", "--max-unavailable", "2")
    cluster.api.fail_next(999, status=500, match=lambda call: call.subresource == "status")  # the node says nothing
    await run.until("requested")
    await run.until("requested")
    name = await the_run(cluster)
    made = [each["metadata"] for each in await cluster.requests()]
    _, kept = min((each["creationTimestamp"], each["name"]) for each in made)
    code, out, _ = await cluster.recreate("abort", name)
    said = f"pending requests deleted: 1; request {kept} is kept to record the abort, and may still restart pod "
    assert (code, out.startswith(f"run {name} aborted, {said}")) == (0, True)
    assert (await run.end())[0] == 1
    (left,) = await cluster.requests()
    assert (left["metadata"]["name"], ANNOTATION_ABORTED in left["metadata"]["annotations"]) == (kept, True)
    code, _, err = await cluster.recreate("deployment/web", "-c", "app", "--run", name)  # as a Job does
    assert (code, err) == (2, f"crrd recreate: run {name} was aborted: start a new one\n")


async def test_interrupted_and_resumed(cluster: PlayedCluster) -> None:
    pods = await cluster.workload("Deployment", "web", 3, "app")
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 130)):
        cluster.goes_on.clear()
        before = await cluster.requests()
        name = await the_run(cluster) if before else ""
        run = await begin(cluster, *(["resume", name] if name else ["deployment/web", "-c", "app"]))
        await run.until("recreating")
        run.process.send_signal(number)
        ended, out = await run.end()
        name = await the_run(cluster)
        assert ended == code
        assert f"to continue: crrd recreate resume {name} -n default" in out.splitlines()[-1]
        cluster.goes_on.set()
    code, out, _ = await cluster.recreate("resume", name)
    assert code == 0
    assert sorted(cluster.stops) == [(pod, "app") for pod in pods]


@pytest.mark.parametrize(
    ("ignores", "ends"),
    [
        pytest.param((signal.SIGHUP,), signal.SIGINT, id="nohup"),
        pytest.param((signal.SIGHUP, signal.SIGINT, signal.SIGQUIT), signal.SIGTERM, id="nohup-in-a-script-with-&"),
        pytest.param((), signal.SIGHUP, id="closed-terminal"),
    ],
)
async def test_in_the_background_a_run_ends_by_what_it_was_not_told_to_ignore(
    cluster: PlayedCluster, ignores: tuple[signal.Signals, ...], ends: signal.Signals
) -> None:
    await cluster.workload("Deployment", "web", 2, "app")
    cluster.goes_on.clear()
    words = ("deployment/web", "-c", "app", "--run", "nightly", "--max-unavailable", "2")
    run = await begin(cluster, *words, ignores=ignores)
    await run.until("recreating")
    for number in (*ignores, ends):
        run.process.send_signal(number)
    code, out = await run.end()
    assert (code, "to continue: crrd recreate resume nightly -n default" in out.splitlines()[-1]) == (130, True)


@pytest.mark.parametrize("unbuffered", ["", "1"])
async def test_whose_reader_goes_is_interrupted(cluster: PlayedCluster, unbuffered: str) -> None:
    await cluster.workload("Deployment", "web", 3, "app")
    words = ("deployment/web", "-c", "app", "--run", "unread")

    async def unread(until: str) -> tuple[int, str]:
        """Exit code and stderr of a run whose reader goes as soon as that is in the requests."""
        reader, writer = os.pipe()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "crrd", "recreate", *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=writer,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered, "KUBECONFIG": str(cluster.kubeconfig)},
        )
        os.close(writer)
        async with asyncio.timeout(60):
            while until not in json.dumps(await cluster.requests()):
                await asyncio.sleep(0.01)
            os.close(reader)
            cluster.goes_on.set()
            _, err = await process.communicate()
        return process.returncode or 0, err.decode()

    said = "crrd recreate: stdout: Broken pipe; interrupted: "
    assert await unread("") == (130, f"{said}0 of 3 pods recreated; no pod was restarted\n")
    cluster.goes_on.clear()
    code, err = await unread("Recreating")
    assert (code, len(err.splitlines()), err.startswith(said)) == (130, 1, True), err
    assert err.endswith("; requests in progress will finish; to continue: crrd recreate resume unread -n default\n")
    assert (await cluster.recreate(*words)).code == 0
    assert len(cluster.stops) == 3


async def test_the_first_part_then_somebody_is_asked(cluster: PlayedCluster) -> None:
    pods = await cluster.workload("Deployment", "web", 3, "app")
    code, out, _ = await cluster.recreate("deployment/web", "-c", "app", "--partition", "1")
    name = await the_run(cluster)
    assert (code, cluster.stops) == (0, [(pods[0], "app")])
    assert out.splitlines()[-1].startswith(
        "paused: 1 of 3 pods recreated; the first part of the run is done, 2 left; "
        f"to continue: crrd recreate resume {name} -n default --yes"
    )
    assert (await cluster.recreate("resume", name, "--yes")).code == 0
    assert len(cluster.stops) == 3


async def test_what_is_to_be_typed_next_names_the_same_cluster(cluster: PlayedCluster, tmp_path: Path) -> None:
    """What was given on the command line: pasted without it, the line would go to whichever cluster is current."""
    await cluster.workload("Deployment", "web", 3, "app")
    odd = tmp_path / "my clusters"
    odd.write_bytes(cluster.kubeconfig.read_bytes())
    words = ("recreate", "deployment/web", "-c", "app", "--run", "mine", "--partition", "1")
    _, out, _ = await crrd(*words, "--kubeconfig", str(odd), "--context", "local")
    flags = f"--context local --kubeconfig '{odd}'"
    assert f"to continue: crrd recreate {flags} resume mine -n default --yes" in out.splitlines()[-1]
    _, out, err = await crrd("recreate", "resume", "other", "--kubeconfig", str(odd), "--context", "local")
    assert err.endswith(f"to list runs: crrd recreate {flags} status -n default\n")
    _, _, err = await crrd("recreate", "resume", "other", KUBECONFIG=str(odd))
    shown = "to list runs: crrd recreate status -n default\n"  # the environment is still there
    assert err == f"crrd recreate: run 'other' not found in namespace 'default'; {shown}"
    _, out, _ = await crrd("recreate", "resume", "mine", "-y", "-n", "default", KUBECONFIG=str(odd))
    assert "done: 3 of 3 pods recreated" in out
    await cluster.budget("strict", {"app": "web"}, 0)
    dry = ("recreate", "deployment/web", "-c", "app", "--dry-run", "--kubeconfig", str(odd), "--context", "local")
    _, out, _ = await crrd(*dry)
    assert f"(kubectl {flags} describe pdb strict -n default)" in out
    assert json.loads((await crrd(*dry, "-o", "json")).out)["command"].startswith(f"kubectl {flags} describe ")


async def test_a_run_of_a_name_is_begun_once(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 2, "app")
    for _ in range(2):
        assert (await cluster.recreate("deployment/web", "-c", "app", "--run", "nightly")).code == 0
    assert (await the_run(cluster), len(cluster.stops)) == ("nightly", 2)


async def test_a_name_that_is_another_runs_is_refused(cluster: PlayedCluster) -> None:
    pods = await cluster.workload("Deployment", "web", 2)
    await cluster.workload("Deployment", "api", 2)
    await cluster.recreate("deploy/web", "-c", "app,side", "--run", "nightly", "--partition", "1")
    mine, rest = ("--run", "nightly", "--yes"), [(pods[0], "app"), (pods[0], "side")]
    line = "crrd recreate resume nightly -n default --yes"
    again = f"use another --run NAME, or resume it: {line}"
    for words, differs in (
        (("deployment/api", "-c", "app,side", *mine), "is on deployment.apps/web, not on deployment.apps/api"),
        (("-l", "app=web", "-c", "app,side", *mine), "is on deployment.apps/web, not on pods app=web"),
        (("deployment/web", "-c", "app", *mine), "recreates app, side, not app"),
        (("deployment/web", "-c", "side,app", *mine, "--dry-run"), "recreates app, side, not side, app"),
    ):
        code, out, err = await cluster.recreate(*words)
        assert (code, out, err) == (2, "", f"crrd recreate: run nightly {differs}: {again}\n")
    assert cluster.stops == rest
    assert (await cluster.recreate("deployments", "web", "-c", "app", "-c", "side", *mine)).code == 0
    assert len(cluster.stops) == 4


async def test_pods_that_go_and_come_meanwhile(cluster: PlayedCluster) -> None:
    pods = await cluster.workload("Deployment", "web", 3, "app")
    cluster.goes_on.clear()
    run = await begin(cluster, "deployment/web", "-c", "app", "--max-unavailable", "2")
    await run.until("recreating")
    owner = (await cluster.client.get(PODS, NAMESPACE, pods[2]))["metadata"]["ownerReferences"]
    await cluster.client.delete(PODS, NAMESPACE, pods[2], grace_seconds=0)
    await asyncio.sleep(1)  # a new pod is told from an old one by the second of its creation
    await cluster.pod("web-new", {"app": "web", "pod-template-hash": "x"}, ownerReferences=owner)
    cluster.goes_on.set()
    code, out = await run.end()
    assert code == 0
    assert "web-new  node-a  skipped  - the pod was created after the run started" in out
    assert sorted(cluster.stops) == [(pod, "app") for pod in pods[:2]]


async def test_only_containers_with_outdated_configuration(cluster: PlayedCluster) -> None:
    body = {"metadata": {"name": "web-cfg"}, "data": {"LOG": "info"}}
    made = await cluster.client.create(CONFIG_MAPS, NAMESPACE, body)
    env = [{"name": "LOG", "valueFrom": {"configMapKeyRef": {"name": "web-cfg", "key": "LOG"}}}]
    pods = await cluster.workload("Deployment", "web", 2, env=env)
    await cluster.workload("Deployment", "other", 1)
    code, out, err = await cluster.recreate("--stale", "--dry-run")
    assert (code, err) == (0, "")
    changed = f"ConfigMap web-cfg (env)  {made['metadata']['creationTimestamp']}"
    head, *rows, _, _, _, skipped = out.splitlines()
    assert re.split(r" {3,}", head) == ["POD", "CONTAINER", "CHANGED", "STARTED"]
    assert [re.split(r" {3,}", row) for row in rows] == [[pod, "app", changed, "2026-01-01T00:00:00Z"] for pod in pods]
    assert skipped.startswith("skipped: other-")
    assert skipped.endswith("(container app uses no ConfigMap or Secret that has changed since it started)")
    answer = json.loads((await cluster.recreate("--stale", "--dry-run", "-o", "json")).out)
    assert [(each["pod"], each["changes"][0]["object"]) for each in answer["stale"]] == [
        (pod, "ConfigMap web-cfg (env)") for pod in pods
    ]
    assert (await cluster.recreate("--stale")).code == 2, "a run is on a workload"
    assert cluster.stops == []
    cluster.api.fail_next(9, status=403, match=on("get", "configmaps"))
    code, _, err = await cluster.recreate("deployment/web", "--stale")
    assert (code, "bind the ClusterRole crrd-read-config" in err) == (2, True)
    cluster.api.clear_faults()
    code, out, _ = await cluster.recreate("deployment/web", "--stale")
    assert (code, "stale containers of deployment.apps/web, 2 pods" in out) == (0, True)
    assert cluster.stops == [(pod, "app") for pod in pods]
    await cluster.client.delete(CONFIG_MAPS, NAMESPACE, "web-cfg")
    code, out, _ = await cluster.recreate("deployment/web", "-c", "app", "--preflight", "--dry-run")
    assert (code, out) == (0, "then waits: ConfigMap web-cfg not found\n")


async def test_already_restarted(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 2, "app")
    assert (await cluster.recreate("deployment/web", "-c", "app")).code == 0
    code, out, _ = await cluster.recreate("deployment/web", "-c", "app", "--since", "10m")
    assert (code, "nothing to do: 0 of 0 pods recreated, 2 skipped" in out) == (0, True)
    assert len(cluster.stops) == 2
    no_time = "must be an age like 2h"
    for odd, said in (
        ("2100-01-01T00:00:00Z", "must not be in the future"),
        ("soon", no_time),
        ("0001-01-01T00:00:00+23:00", no_time),
        ("9999-12-31T23:59:59-23:00", no_time),
    ):
        code, _, err = await cluster.recreate("deployment/web", "-c", "app", "--since", odd)
        assert (code, said in err) == (2, True)


@pytest.mark.parametrize("hours", [-1, 1])
async def test_since_is_by_the_clock_of_the_api_server(tmp_path: Path, hours: int) -> None:
    async with played(tmp_path, clock=lambda: datetime.now(UTC) + timedelta(hours=hours)) as cluster:
        pods = await cluster.workload("Deployment", "web", 2, "app")
        for pod, minutes in zip(await cluster.pods(), (45, 15), strict=True):
            await cluster.run(pod, started=rfc3339(cluster.api.now() - timedelta(minutes=minutes)))
        ago = rfc3339(cluster.api.now() - timedelta(minutes=30))
        ahead = rfc3339(cluster.api.now() + timedelta(minutes=30))
        for since in ("30m", ago):
            code, out, err = await cluster.recreate("deployment/web", "-c", "app", "--since", since, "--dry-run")
            said = f"batch 1: {pods[0]} (node-a)\nskipped: {pods[1]} (container app was already restarted)\n"
            assert (code, out, err) == (0, said, "")
        code, _, err = await cluster.recreate("deployment/web", "-c", "app", "--since", ahead, "--dry-run")
        assert (code, err) == (2, f"crrd recreate: --since {ahead} must not be in the future\n")
        assert (await cluster.recreate("deployment/web", "-c", "app", "--since", "30m")).code == 0
        assert cluster.stops == [(pods[0], "app")]
        events = (await cluster.client.list_all(EVENTS, dict, namespace=NAMESPACE)).items
        told = [parse_time(event["lastTimestamp"]) for event in events]
        latest = max(moment for moment in told if moment is not None)
        assert abs(latest - cluster.api.now()) < timedelta(minutes=5), "events are by it as well"


async def test_admission_that_refuses_a_pod(cluster: PlayedCluster) -> None:
    (pod,) = await cluster.workload("Deployment", "web", 1, "app")

    async def refuse(asked: AdmissionRequest) -> None:
        if asked.kind.plural == REQUESTS.plural:
            raise invalid(asked.kind.group, asked.kind.kind, asked.name, [Cause("spec", "not on a Friday")])

    cluster.api.admission.validating.append(refuse)
    code, out, _ = await cluster.recreate("deployment/web", "-c", "app")
    assert code == 1
    assert f"{pod} failed: " in out
    assert "not on a Friday" in out
    assert out.splitlines()[-1].startswith("failed: 0 of 1 pods recreated, 1 failed; no pod was restarted (after ")


async def test_a_request_of_that_name_that_is_somebody_elses(cluster: PlayedCluster) -> None:
    (pod,) = await cluster.workload("Deployment", "web", 1, "app")
    uid = (await cluster.client.get(PODS, NAMESPACE, pod))["metadata"]["uid"]
    name = Run(NAMESPACE, "mine", Target("deployment.apps/web"), Options(("app",)), "").request_name(uid)
    body = {"metadata": {"name": name}, "spec": {"podName": pod, "containers": [{"name": "side"}]}}
    cluster.api.admission.mutating.clear()  # nobody serves it
    await cluster.client.create(REQUESTS, NAMESPACE, {"apiVersion": API_VERSION, "kind": KIND, **body})
    code, out, _ = await cluster.recreate("deployment/web", "-c", "app", "--run", "mine")
    assert (code, f"{pod} failed: request {name} exists, but does not belong to this run" in out) == (1, True)


async def test_answers_that_are_lost_and_an_api_server_that_is_away(cluster: PlayedCluster) -> None:
    pods = await cluster.workload("Deployment", "web", 3, "app")
    creates = on("create", REQUESTS.plural)
    cluster.api.fail_next(2, status=None, match=creates, after=True)  # written, and the connection cut: twice
    cluster.api.fail_next(2, status=503, match=creates)
    code, out, _ = await cluster.recreate("deployment/web", "-c", "app")
    assert code == 0, out
    assert cluster.stops == [(pod, "app") for pod in pods]


async def test_what_runs_there_are_and_how_they_stand(cluster: PlayedCluster) -> None:
    assert (await cluster.recreate("status")).out == "no runs\n"
    pods = await cluster.workload("Deployment", "web", 2, "app")
    await cluster.recreate("deployment/web", "-c", "app", "--run", "one", "--reason", "new lög\x1b[31m level")
    head, row = (await cluster.recreate("status")).out.splitlines()
    heads = ["RUN", "TARGET", "STATE", "PHASE", "DONE", "STARTED", "LAST ACTIVITY", "WAITS FOR"]
    assert re.split(r" {3,}", head) == heads
    assert row.split()[:5] == ["one", "deployment.apps/web", "done", "Over", "2/2"]
    assert json.loads((await cluster.recreate("status", "-o", "json")).out)[0]["run"] == "one"
    out = (await cluster.recreate("status", "one", PYTHONIOENCODING="ascii")).out
    assert "; new l\\xf6g\\x1b[31m level\n" in out
    out = (await cluster.recreate("status", "one")).out
    assert re.match(r"run one: app of deployment\.apps/web, since \S+; new lög\\x1b\[31m level\n", out)
    assert "done (Over): 2 of 2 pods recreated" in out
    assert re.search(rf"^{pods[0]} +node-a +done$", out, re.MULTILINE)
    answer = json.loads((await cluster.recreate("status", "one", "-o", "json")).out)
    assert (answer["state"], [pod["stage"] for pod in answer["pods"]]) == ("done", ["done", "done"])
    (request, _) = await cluster.requests()
    assert request["metadata"]["annotations"][ANNOTATION_TARGET] == "deployment.apps/web"
    await cluster.set_ready(pods[0], ready=False)
    out = (await cluster.recreate("status", "one")).out
    assert "done (Over): 2 of 2 pods recreated" in out
    assert re.search(rf"^{pods[0]} +node-a +done +the pod is not ready$", out, re.MULTILINE)
    assert (await cluster.recreate("deployment/web", "-c", "app", "--run", "two")).code == 0
    assert len(cluster.stops) == 4


BAD_INPUT: list[tuple[tuple[str, ...], str]] = [
    (("deployment/web",), "use -c NAME to select a container, or --whole-pod; deployment.apps/web has app, side"),
    (("deployment/web", "-c", "ap"), "deployment.apps/web has no container 'ap'; it has app, side"),
    (("deployment/nope", "-c", "app"), 'deployment.apps "nope" not found in namespace "default"'),
    (("thing/web", "-c", "app"), "the API server has no resource type 'thing': kubectl api-resources shows them"),
    (("deployment", "-c", "app"), "'deployment' is not a workload or pod: use TYPE/NAME (for example deployment/web)"),
    (("a/b/c", "-c", "app"), "'a/b/c' is not a workload or pod"),
    (("cm/x", "-c", "app"), 'configmap "x" not found in namespace "default"'),
    (("configmap/known", "-c", "app"), "configmap/known has no spec.selector"),
    (("node/n", "-c", "app"), "node/n cannot be restarted, because it is not namespaced"),
    (("pod/nope", "-c", "app"), 'pod "nope" not found in namespace "default"'),
    (("-l", "app=nope", "-c", "app"), "no pods found in namespace 'default': pods app=nope not found"),
    (("-l", "app=!", "-c", "app"), "unable to parse requirement in selector"),
    (("deployment/jobs", "-c", "app"), "no container can be restarted: "),
    (("resume", "nope"), "run 'nope' not found in namespace 'default'"),
    (("status", "nope"), "run 'nope' not found in namespace 'default'"),
    (("deployment/web", "-c", "app", "--context", "nope"), "it has no context named 'nope'"),
]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("deployment/web", "-l", "app=web", "-c", "app"),
            "use either TYPE/NAME (for example deployment/web) or -l SELECTOR",
        ),
        (("-c", "app"), "use either TYPE/NAME (for example deployment/web) or -l SELECTOR"),
        (
            ("deployment/web", "-c", "app", "-A"),
            "--all-namespaces is not supported: a run covers one namespace (use -n NAMESPACE)",
        ),
        (("resume",), "resume needs the name of one run"),
        (("-n", "shop", "abort"), "abort needs the name of one run; to list runs: crrd recreate status"),
        (("resume", "--yes", "a", "--force", "b"), "unknown arguments: b; `crrd recreate resume --help` lists what"),
        (("abort", "a", "b"), "unknown arguments: b; `crrd recreate abort --help` lists what there is"),
        (("abort", "a", "--dry-run"), "unknown arguments: --dry-run; `crrd recreate abort --help` lists what there is"),
        (("status", "-w"), "--watch needs the name of one run"),
    ],
)
def test_what_cannot_be_meant(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["recreate", *words])
    captured = capsys.readouterr()
    assert (ended.value.code, captured.out, len(captured.err.splitlines())) == (2, "", 1)
    assert captured.err.startswith(f"crrd recreate: {said}")


async def test_bad_input_is_one_line(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 1)
    await cluster.workload("Deployment", "jobs", 1, "app", node="node-z")
    labels = {"app.kubernetes.io/name": "crrd", "app.kubernetes.io/component": "node"}
    await cluster.pod("crrd-node-1", labels, node="node-a")  # and none on node-z
    await cluster.client.create(Resource("configmaps"), NAMESPACE, {"metadata": {"name": "known"}})
    for words, said in BAD_INPUT:
        way = () if words[0] in VERBS else ("--via", "daemon")  # without it, a run goes by patches around node-z
        code, out, err = await cluster.recreate(*words, *way)
        assert (code, out, len(err.splitlines())) == (2, "", 1), (words, out, err)
        assert err.startswith("crrd recreate: ")
        assert said in err


async def test_a_workload_that_is_scaled_to_zero_needs_nothing(cluster: PlayedCluster) -> None:
    """It keeps no other target from its restart."""
    await cluster.workload("Deployment", "zero", 0)
    await cluster.workload("Deployment", "web", 1)
    for flags in ((), ("--dry-run",)):
        code, out, err = await cluster.recreate("deployment/zero", "-c", "app", *flags)
        assert (code, err) == (0, "")
        assert "nothing to do: deployment.apps/zero has no pods" in out
    code, out, _ = await cluster.recreate("deployment/zero", "deployment/web", "-c", "app")
    assert (code, "done: 1 of 1 pods recreated" in out) == (0, True)
    assert len(await cluster.requests()) == 1


async def test_only_what_can_be_recreated_is_offered(cluster: PlayedCluster) -> None:
    sidecar = {"name": "proxy", "image": "i:1", "restartPolicy": "Always"}
    inits = [{"name": "migrate", "image": "i:1"}, sidecar]
    spec = {"nodeName": "node-a", "initContainers": inits, "containers": [{"name": "app", "image": "i:1"}]}
    pod = {"metadata": {"name": "web-1", "labels": {"app": "web"}}, "spec": spec}
    await cluster.run(dict(await cluster.client.create(PODS, NAMESPACE, pod)))
    only = "only app containers and native sidecars (restartPolicy: Always) can be recreated"
    for flags, said in (
        ((), "use -c NAME to select a container, or --whole-pod; pods app=web has app, proxy"),
        (("-c", "ap"), "pods app=web has no container 'ap'; it has app, proxy"),
        (("-c", "migrate"), f"migrate is an init container: {only}"),
        (("-c", "migrate,app"), f"migrate is an init container: {only}"),
    ):
        code, out, err = await cluster.recreate("-l", "app=web", *flags)
        assert (code, out, err) == (2, "", f"crrd recreate: {said}\n")
    assert await cluster.requests() == []
    await cluster.pod("web-2", {"app": "web"}, "migrate")
    code, out, _ = await cluster.recreate("-l", "app=web", "-c", "migrate", "--dry-run")
    said = "batch 1: web-2 (node-a)\nskipped: web-1 (container migrate not found in the pod)\n"
    assert (code, out) == (0, said), "elsewhere it is an app container"


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        (("--max-unavailable", "0"), "'0' must be a number of at least 1, or a percentage from 1% to 100%"),
        (("--min-ready", "soon"), "'soon' must be a time like 30s, 5m or 1h30m, at least 0s"),
        (("--pod-timeout", "1s"), "'1s' must be a time like 30s, 5m or 1h30m, from 3s to 7 days"),
        (("--pod-timeout", "168h1s"), "'168h1s' must be a time like 30s, 5m or 1h30m, from 3s to 7 days"),
        (("--unready-grace", "86401"), "'86401' must be a time like 30s, 5m or 1h30m, from 0s to a day"),
        (("--max-failures", "0"), "'0' must be a whole number of at least 1"),
        (
            ("--run", "a" * 41),
            f"'{'a' * 41}' must be at most 40 characters (a-z, 0-9, '-'), and start and end with a letter or digit",
        ),
        (("--since", "soon"), "'soon' must be an age like 2h, or a time like 2026-01-31T12:00:00Z"),
    ],
)
def test_flags_that_cannot_be(flag: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["recreate", "deployment/web", "-c", "app", *flag])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"crrd recreate: error: argument {flag[0]}: {said}"


async def test_what_may_not_be_done_is_said(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 1)
    budgets = "poddisruptionbudgets"
    refusals = [
        ("get", "deployments"),
        ("list", "pods"),
        ("list", budgets),
        ("watch", "pods"),
        ("create", REQUESTS.plural),
    ]
    for verb, resource in refusals:
        cluster.api.fail_next(9, status=403, match=in_namespace(verb, resource))
        code, _, err = await cluster.recreate("deployment/web", "-c", "app")
        cluster.api.clear_faults()
        assert (code, len(err.splitlines())) == (2, 1), err
        assert err.startswith(f"crrd recreate: forbidden: {verb} ")
        assert resource in err
        role = "crrd-recreate (edit where crrd is not installed)"
        assert err.endswith(f"bind the ClusterRole {role}, which grants this\n")


async def test_a_right_that_the_role_does_not_have(cluster: PlayedCluster) -> None:
    uid = await custom(cluster, "argoproj.io", "Rollout", {"observedGeneration": "1"})
    owner = {"apiVersion": "argoproj.io/v1", "kind": "Rollout", "name": "c", "uid": uid, "controller": True}
    await cluster.pod("c-1", {"app": "clone"}, ownerReferences=[owner])
    takes = "grant get, list and watch on rollouts.argoproj.io, which the ClusterRole crrd-recreate does not include\n"
    for verb in ("get", "list", "watch"):
        cluster.api.fail_next(9, status=403, match=in_namespace(verb, "rollouts"))
        code, _, err = await cluster.recreate("rollout/c", "-c", "app")
        cluster.api.clear_faults()
        assert (code, err.endswith(takes)) == (2, True), err
        assert err.startswith(f"crrd recreate: forbidden: {verb} ")
    cluster.api.fail_next(9, status=403, match=lambda call: call.path == "/apis")
    code, _, err = await cluster.recreate("rollout/c", "-c", "app")
    assert (code, err.endswith(" (403)\n")) == (2, True), err


def in_namespace(verb: str, resource: str) -> Match:
    return lambda call: (call.verb, call.resource) == (verb, resource) and bool(call.namespace)


async def test_a_daemon_that_may_not_be_looked_for_is_not_missed(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 1)
    cluster.api.fail_next(status=403, match=lambda call: on("list", "pods")(call) and not call.namespace)
    assert (await cluster.recreate("deployment/web", "-c", "app")).code == 0


async def test_without_the_crd(tmp_path: Path) -> None:
    async with played(tmp_path, crds=[]) as cluster:
        await cluster.workload("Deployment", "web", 1)
        code, out, _ = await cluster.recreate("deployment/web", "-c", "app")
        assert (code, "restarts by patches: crrd is not installed" in out) == (2, True)
        code, _, err = await cluster.recreate("deployment/web", "-c", "app", "--via", "daemon")
        assert (code, err) == (
            2,
            (
                "crrd recreate: the CRD ContainerRecreateRequest is not installed: install crrd with "
                "`kubectl apply -f install.yaml`\n"
            ),
        )


async def test_without_admission(tmp_path: Path) -> None:
    async with played(tmp_path, admission=False) as cluster:
        await cluster.workload("Deployment", "web", 1)
        code, _, err = await cluster.recreate("deployment/web", "-c", "app")
        assert (code, await cluster.requests()) == (2, [])
        assert err.startswith("crrd recreate: admission did not handle the request, so it was deleted again: ")
        code, out, _ = await cluster.recreate("deployment/web", "-c", "app", "--dry-run=server")
        assert (code, "admission did not handle the request: check that the manager is running" in out) == (1, True)


async def test_without_an_api_server(cluster: PlayedCluster) -> None:
    await cluster.api.stop()
    code, out, err = await cluster.recreate("deployment/web", "-c", "app")
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert err.startswith("crrd recreate: cannot reach the API server: ")


async def killed(cluster: PlayedCluster, moment: int, *words: str) -> int:
    """Run a command, and kill it after the n-th write, whoever writes, before it can know of it."""
    run = await begin(cluster, *words)
    writes = 0

    def note(call: Call) -> None:
        nonlocal writes
        writes += call.writes
        if call.writes and writes == moment and run.process.runs:  # at that write, not at a later GET
            run.process.send_signal(signal.SIGKILL)

    cluster.api.front.note = note
    code, _ = await run.end()
    cluster.api.front.note = lambda _: None
    assert code in (0, -signal.SIGKILL)
    return code


@pytest.mark.timeout(600)
async def test_killed_after_every_write_and_resumed_by_another_process(cluster: PlayedCluster) -> None:
    """Each pod is restarted once."""
    pods = await cluster.workload("Deployment", "web", 2, "app")
    for moment in count(1):
        cluster.stops.clear()
        words = ("deployment/web", "-c", "app", "--run", f"run-{moment}")
        if await killed(cluster, moment, *words) == 0:
            break
        ended = await cluster.recreate(*words)
        assert ended.code == 0, ended
        assert cluster.stops == [(pod, "app") for pod in pods], f"killed after write {moment}"
    assert moment > 10, "each request is written by three"


@pytest.mark.timeout(600)
async def test_killed_after_every_write_of_a_retry(cluster: PlayedCluster) -> None:
    """The failure is still known until its pod has another request, and the pod is restarted once."""
    (pod,) = await cluster.workload("Deployment", "web", 1, "app")
    outcomes = []
    for moment in count(1):
        cluster.stops.clear()
        cluster.fails[pod] = ("StillRuns", "it still runs")
        name = f"run-{moment}"
        assert (await cluster.recreate("deployment/web", "-c", "app", "--run", name)).code == 1
        cluster.fails.clear()
        if await killed(cluster, moment, "resume", name, "--retry-failed") == 0:
            break
        outcomes.append((await cluster.recreate("resume", name)).code)
        assert cluster.stops == [(pod, "app")] * (outcomes[-1] == 0), f"killed after write {moment}"
    assert outcomes[:1] == [1], "no other request is created by itself"
    assert outcomes == sorted(outcomes, reverse=True)
    assert outcomes[-1] == 0


async def on_terminal(cluster: PlayedCluster, *words: str, answer: bytes, term: str = "xterm") -> tuple[int, str]:
    """`crrd recreate` on a terminal of 120 columns, where somebody answers its question."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "crrd", "recreate", *words, "--kubeconfig", str(cluster.kubeconfig)),
        stdin=its,
        stdout=its,
        stderr=its,
        env={**{key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}, "TERM": term},
    )
    os.close(its)
    os.set_blocking(ours, False)
    said = b""
    answered = False
    async with asyncio.timeout(60):
        while True:
            try:
                said += os.read(ours, 65536)
            except BlockingIOError:
                await asyncio.sleep(0.02)
            except OSError:  # the other end is closed
                break
            if not answered and b"[y/N]" in said:
                answered = True
                os.write(ours, answer)
        await process.wait()
    os.close(ours)
    return process.returncode or 0, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())


async def test_on_a_terminal_there_is_a_table_and_a_question(cluster: PlayedCluster) -> None:
    pods = await cluster.workload("Deployment", "web", 3, "app")
    words = ("deployment/web", "-c", "app", "--partition", "1")
    code, out = await on_terminal(cluster, *words, answer=b"n\n")
    assert (code, cluster.stops) == (0, [(pods[0], "app")])
    assert "the first part of the run is done, 2 left. Continue? [y/N]" in out
    code, out = await on_terminal(cluster, "resume", await the_run(cluster), answer=b"y\n")
    assert (code, len(cluster.stops)) == (0, 3)
    assert re.search(r"pod +node +old +new +phase +s +waits for", out)
    assert "3 of 3 pods" in out
    assert "done: 3 of 3 pods recreated" in out


async def test_on_a_terminal_that_cannot_move_its_cursor_there_are_lines(cluster: PlayedCluster) -> None:
    pods = await cluster.workload("Deployment", "web", 2, "app")
    code, out = await on_terminal(
        cluster, "deployment/web", "-c", "app", "--partition", "1", answer=b"y\n", term="dumb"
    )
    assert (code, len(cluster.stops)) == (0, 2)
    assert re.search(rf"{pods[1]}  node-a  done  .* \(2 of 2\)", out)
