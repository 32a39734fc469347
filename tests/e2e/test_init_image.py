"""An init container gets another image, and its pods restart in place: on a real runtime and kubelet."""

from pathlib import Path

import pytest

from cri_stubs import api_pb2 as pb
from crrd.core.api.types import API_VERSION, KIND
from crrd.core.rollout.image.pull import LABEL_PULL
from crrd.kube.resources import PODS, REQUESTS
from crrd.lib import jsonpatch
from crrd_localnode.workload import RESOURCES
from tests.support.cluster import Cluster, Json, container_id, container_status, foreign, pod_ready, states
from tests.support.recreates import daemons, killed, pod_spec, pods_of, recreate, rolled_out, workload

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(400),
    pytest.mark.skipif(foreign() is None, reason="needs the controllers of a cluster"),
]
PROBE = {"exec": {"command": ["/bin/cat", "/tmp/up"]}, "periodSeconds": 1}
ADOPT = ("deployment/web", "--whole-pod", "-c", "render", "--template", "adopt", "--allow-mutable-tag")
RENDER = "echo $REVISION > /shared/version; echo init >> /shared/log"
APP = """
cat /shared/version >> /shared/read
touch /tmp/up
trap 'exit 0' TERM
while :; do sleep 0.1; done
"""


def rendered(cluster: Cluster, script: str) -> Json:
    """Return the spec of pods whose init container writes what its image is, and whose app reads that as it starts."""
    mount = {"name": "shared", "mountPath": "/shared"}
    app, render, side = (
        {**each, "volumeMounts": [mount]} for each in pod_spec(cluster, "app", "render", "side")["containers"]
    )
    app |= {"command": ["/bin/sh", "-c", APP], "readinessProbe": PROBE}
    render |= {"command": ["/bin/sh", "-c", script]}
    side |= {"restartPolicy": "Always"}
    own = {"hostNetwork": False, "volumes": [{"name": "shared", "emptyDir": {}}], "containers": [app]}
    return {**pod_spec(cluster, "app"), **own, "initContainers": [render, side]}


async def read(cluster: Cluster, pod: Json, name: str) -> list[str]:
    """Return the words of a file in the volume of a pod."""
    found = await cluster.execute(container_id(pod, "app"), "cat", f"/shared/{name}")
    return found.stdout.decode().split()


async def started(cluster: Cluster, replicas: int = 1, script: str = RENDER) -> list[Json]:
    """Run such a Deployment. Skips the test if the images do not say what they are."""
    pods = await workload(cluster, "Deployment", "web", replicas, spec=rendered(cluster, script))
    if await read(cluster, pods[0], "read") != ["1"]:
        pytest.skip("needs the images of tests/support/images.py, which have the variable REVISION")
    return pods


def uids(pods: list[Json]) -> list[str]:
    return [pod["metadata"]["uid"] for pod in pods]


async def template_image(cluster: Cluster) -> str:
    found = dict(await rolled_out(cluster, "Deployment", "web"))
    return str(found["spec"]["template"]["spec"]["initContainers"][0]["image"])


async def checked(cluster: Cluster, before: list[Json], revisions: list[str], image: str) -> list[Json]:
    """Check that each of the pods has run its init container once for each of these images. Return the pods."""
    after = await pods_of(cluster, "web")
    assert uids(after) == uids(before)
    for pod in after:
        assert pod_ready(pod)
        assert await read(cluster, pod, "log") == ["init"] * len(revisions), "each init container once"
        assert await read(cluster, pod, "read") == revisions, "the app has read what the image has written"
        assert next(each["image"] for each in pod["spec"]["initContainers"]) == image
        assert container_status(pod, "render")["image"] == image
    where = {"namespace": cluster.namespace, "label_selector": LABEL_PULL}
    assert not (await cluster.client.list_all(PODS, dict, **where)).items, "no pull pod is left"
    return after


async def test_the_pods_stay_and_their_init_containers_run_with_the_image(cluster: Cluster, tmp_path: Path) -> None:
    image = cluster.need_second_image()
    async with daemons(cluster, tmp_path):
        before = await started(cluster, 2)
        missing = await recreate(cluster, *ADOPT, "--image", "localhost/does-not-exist:1")
        assert (missing.code, "no container was stopped there" in missing.out) == (1, True), missing
        await checked(cluster, before, ["1"], cluster.image)
        ended = await recreate(cluster, *ADOPT, "--image", image, "--run", "mine")
        assert ended.code == 0, ended
        after = await checked(cluster, before, ["1", "2"], image)
        assert not {each["status"]["podIP"] for each in after} & {each["status"]["podIP"] for each in before}
        assert await template_image(cluster) == image
        undone = await recreate(cluster, "undo", "mine")
        assert undone.code == 0, undone
        await checked(cluster, before, ["1", "2", "1"], cluster.image)
        assert await template_image(cluster) == cluster.image
        again = await recreate(cluster, *ADOPT, "--image", image, "--run", "other", "--max-unavailable", "2")
        assert again.code == 0, again
        await checked(cluster, before, ["1", "2", "1", "2"], image)
        same = await recreate(cluster, *ADOPT, "--image", image)
        assert (same.code, "nothing to do" in same.out) == (0, True), same


async def test_an_init_container_that_fails_ends_the_run_and_undo_goes_back(cluster: Cluster, tmp_path: Path) -> None:
    """The pod is in Init:CrashLoopBackOff. Kubelet tries the init container again with the image from before."""
    image = cluster.need_second_image()
    fails = f"[ $REVISION = 1 ] || exit 3; {RENDER}"
    async with daemons(cluster, tmp_path):
        before = await started(cluster, 2, fails)
        words = (*ADOPT, "--image", image, "--run", "mine", "--pod-timeout", "40s")
        ended = await recreate(cluster, *words)
        assert ended.code == 1, ended
        assert "render: CrashLoopBackOff" in ended.out
        pods = await pods_of(cluster, "web")
        assert uids(pods) == uids(before)
        assert sorted(pod_ready(pod) for pod in pods) == [False, True], "only the first pod"
        undone = await recreate(cluster, "undo", "mine")
        assert undone.code == 0, undone
        after = await pods_of(cluster, "web")
        assert (uids(after), [pod_ready(pod) for pod in after]) == (uids(before), [True, True])
        logs = sorted([await read(cluster, pod, "log") for pod in after])
        assert logs == [["init"], ["init", "init"]], "the other pod was left alone"
        assert await template_image(cluster) == cluster.image


@pytest.mark.parametrize("writes", [1, 2, 3, 4, 6])
async def test_a_run_that_is_killed_after_one_of_its_writes_is_resumed(
    cluster: Cluster, tmp_path: Path, writes: int
) -> None:
    """No pod keeps an image that its init container has not run."""
    image = cluster.need_second_image()
    async with daemons(cluster, tmp_path):
        before = await started(cluster)
        words = (*ADOPT, "--image", image, "--run", "mine")
        assert await killed(cluster, writes, *words) == -9
        ended = await recreate(cluster, *words)
        assert ended.code == 0, ended
        await checked(cluster, before, ["1", "2"], image)
        assert await template_image(cluster) == image


async def test_a_pod_that_restarts_by_itself_after_it_got_the_image_is_done(cluster: Cluster, tmp_path: Path) -> None:
    """Its node daemon is down meanwhile. The pod's sandbox ends, and kubelet starts all of it with the image."""
    image = cluster.need_second_image()
    async with daemons(cluster, tmp_path) as node:
        (pod,) = before = await started(cluster)
        if "observedGeneration" not in pod["status"]:
            pytest.skip("needs a kubelet that says what it has seen of a pod (1.34)")
        name, path = pod["metadata"]["name"], "/spec/initContainers/0/image"
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "mine"}}
        gets = [{"name": "render", "image": image}]
        await cluster.create_request({**body, "spec": {"podName": name, "wholePod": True, "containers": gets}})
        await cluster.wait(REQUESTS, "mine", lambda found: state_of(found).get("reason") == "ImagePresent", "the image")
        await node.kill()
        await cluster.client.json_patch(PODS, cluster.namespace, name, [jsonpatch.replace(path, image)])
        await cluster.wait_pod(name, seen, "kubelet has seen the image")
        (sandbox,) = [each for each in await cluster.sandboxes(pod) if each.state == 0]
        await cluster.cri.StopPodSandbox(pb.StopPodSandboxRequest(pod_sandbox_id=sandbox.id), timeout=60)
        await cluster.wait_pod(name, lambda now: container_status(now, "render").get("image") == image, "its restart")
        await node.start()
        done = await cluster.wait_completed("mine", 90)
        assert set(states(done).values()) == {"Succeeded"}, done["status"]
        await checked(cluster, before, ["1", "2"], image)


def seen(pod: Json) -> bool:
    """Whether kubelet has seen the last change of a pod. Before that, it may start the pod as it was."""
    return bool(pod["status"]["observedGeneration"] == pod["metadata"]["generation"])


def state_of(request: Json) -> Json:
    """Return the state of the first container of a request, which gets an image."""
    return next(iter((request.get("status") or {}).get("containerRecreateStates") or ()), {})


async def test_sidecars_of_such_pods_get_an_image_while_the_pod_runs(cluster: Cluster, tmp_path: Path) -> None:
    image = cluster.need_second_image()
    async with daemons(cluster, tmp_path):
        before = await started(cluster)
        words = ("deployment/web", "-c", "side", "--template", "keep", "--allow-mutable-tag", "--min-ready", "0")
        ended = await recreate(cluster, *words, "--image", image)
        assert ended.code == 0, ended
        (after,) = await pods_of(cluster, "web")
        assert container_status(after, "side")["image"] == image
        assert await read(cluster, after, "log") == ["init"], "no init container has run again"
        assert container_id(after, "app") == container_id(before[0], "app")
        found = await cluster.client.get(RESOURCES["Deployment"], cluster.namespace, "web")
        assert found["spec"]["template"]["spec"]["initContainers"][1]["image"] == cluster.image
