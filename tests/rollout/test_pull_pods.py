"""Pull pods in namespaces that accept few pods, and those that a killed run has left."""

import asyncio
import json
from typing import Any

import pytest

from crrd.core.rollout.image.pull import LABEL_PULL, pull_pod
from crrd.kube.resources import PODS
from crrd.lib.errors import ApiRefusedError, ConfigurationError
from crrd.rollout.display import Display
from crrd.rollout.jsonlines import JsonLines
from crrd_localnode.api.admission import AdmissionRequest, Operation
from crrd_localnode.api.errors import forbidden
from crrd_localnode.api.objects import Object
from tests.support.played_cluster import NAMESPACE, PlayedCluster
from tests.support.played_images import Images, image_of
from tests.support.rollouts import run
from tests.support.sessions import recreated
from tests.support.strict_namespaces import RANGE, create_limit_range, limit_ranger, restricted_v2

Json = dict[str, Any]
TO = ("-c", "app", "--image", "i:2", "--min-ready", "0")


def keep_pulls(cluster: PlayedCluster) -> list[Json]:
    """Return a list that gets each pull pod that is created."""
    found: list[Json] = []

    async def note(asked: AdmissionRequest) -> None:
        pod = asked.new if asked.kind.plural == "pods" and asked.operation is Operation.CREATE else None
        if pod is not None and LABEL_PULL in pod["metadata"].get("labels", {}) and not asked.dry_run:
            found.append(pod)

    cluster.api.admission.validating.append(note)
    return found


async def leave_pulls(cluster: PlayedCluster, name: str, *nodes: str, image: str = "i:2") -> None:
    """As a run that was killed."""
    like = await cluster.pod("like", {"app": "like"})
    for node in nodes:
        await cluster.client.create(PODS, NAMESPACE, pull_pod(run(name=name), node, image, like))


async def shown(
    cluster: PlayedCluster,
    capsys: pytest.CaptureFixture[str],
    *words: str,
    code: int = 0,
    display: Display | None = None,
) -> str:
    """Return what a command prints."""
    capsys.readouterr()
    assert await recreated(cluster, *words, display=display) == code
    return capsys.readouterr().out


async def test_a_run_that_was_killed_before_its_first_request_is_shown_and_aborted(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await leave_pulls(cluster, "begun", "node-a", "node-b")
    remedy = "if no process carries it out, delete its pull pods: crrd recreate abort begun -n default"
    _, row = (await shown(cluster, capsys, "status")).splitlines()
    assert row.split()[:5] == ["begun", "unknown", "unknown", "Pulling", "0/0"]
    assert row.endswith(f"the pull of an image; {remedy}")
    lines = (await shown(cluster, capsys, "status", "begun")).splitlines()
    assert lines[0].startswith("run begun: no pod has a request, since 20")
    assert lines[1].startswith("unknown (Pulling): 0 of 0 pods recreated; last activity ")
    assert lines[2] == f"waits for: the pull of an image; {remedy}"
    await shown(cluster, capsys, "status", "begun", "-w", code=1)
    (found,) = json.loads(await shown(cluster, capsys, "status", display=JsonLines(cluster.api.now)))
    assert (found["run"], found["state"], found["phase"], found["pullPods"]) == ("begun", "unknown", "Pulling", 2)
    one = json.loads(await shown(cluster, capsys, "status", "begun", display=JsonLines(cluster.api.now)))
    assert "" != found["started"] <= found["lastActivity"]
    assert one == {**found, "pods": []}
    for verb in ("resume", "undo"):
        with pytest.raises(ConfigurationError, match=r"has only pull pods, .* with --run begun, or delete them"):
            await recreated(cluster, verb, "begun")
    text = await shown(cluster, capsys, "abort", "begun")
    assert text.startswith("run begun has no request, so only its pull pods were deleted; a process that still ")
    assert await shown(cluster, capsys, "status") == "no runs\n"
    for verb in ("status", "resume", "undo", "abort"):
        with pytest.raises(ConfigurationError, match="run 'begun' not found"):
            await recreated(cluster, verb, "begun")


async def test_its_command_given_again_goes_on(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    await leave_pulls(cluster, "begun", "node-a")
    await cluster.pod("one", {"app": "solo"})
    assert await recreated(cluster, "pod/one", *TO, "--run", "begun") == 0
    assert [LABEL_PULL in pod["metadata"]["labels"] for pod in await cluster.pods()] == [False, False]
    assert "begun   pod/one   done" in await shown(cluster, capsys, "status")


async def test_its_name_with_another_image_pulls_that_image(cluster: PlayedCluster, images: Images) -> None:
    await leave_pulls(cluster, "nightly", "node-a", image="i:9")
    await cluster.pod("one", {"app": "solo"})
    while "i:9" not in images.on_node:
        await asyncio.sleep(0.01)
    assert await recreated(cluster, "pod/one", *TO, "--run", "nightly") == 0
    assert (images.on_node, images.outages) == ({"i:1", "i:2", "i:9"}, [])


async def test_a_webhook_that_sets_another_image_in_a_pull_pod_ends_the_run(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    """It came after the run was tried as a dry run, or it is for some nodes only."""

    async def mirror(asked: AdmissionRequest) -> Object | None:
        pod = asked.new if asked.kind.plural == "pods" and asked.operation is Operation.CREATE else None
        if pod is not None and LABEL_PULL in pod["metadata"].get("labels", {}) and not asked.dry_run:
            pod["spec"]["containers"][0]["image"] = "mirror/i:2"
        return asked.new

    await cluster.pod("one", {"app": "solo"})
    cluster.api.admission.mutating.append(mirror)
    text = await shown(cluster, capsys, "pod/one", *TO, code=1)
    assert "a webhook sets mirror/i:2 in the pod that pulls instead of i:2" in text
    assert [image_of(pod) for pod in await cluster.pods()] == ["i:1"], "and no pull pod is left"


async def test_pull_pods_of_a_run_that_is_over_are_shown(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.pod("one", {"app": "solo"})
    assert await recreated(cluster, "pod/one", *TO, "--run", "mine") == 0
    await leave_pulls(cluster, "mine", "node-a")
    left = "it has left 1 pull pod; to delete what is left: crrd recreate abort mine -n default"
    assert left in await shown(cluster, capsys, "status")
    assert left in await shown(cluster, capsys, "status", "mine")
    await shown(cluster, capsys, "abort", "mine")
    assert "pull pod" not in await shown(cluster, capsys, "status")


async def test_who_may_not_read_pods_sees_the_runs_with_requests(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise ApiRefusedError("pods", status=403)

    monkeypatch.setattr("crrd.rollout.kinds.find_pull_pods", refuse)
    await cluster.pod("one", {"app": "solo"})
    assert await recreated(cluster, "pod/one", "-c", "app", "--run", "mine") == 0
    assert "mine   pod/one   done" in await shown(cluster, capsys, "status")


async def test_a_limit_range_that_refuses_pull_pods_is_named_before_anything_is_written(
    cluster: PlayedCluster, images: Images
) -> None:
    await create_limit_range(cluster.client, NAMESPACE, cpu="50m", memory="64Mi")
    cluster.api.admission.mutating.append(limit_ranger(cpu="50m", memory="64Mi"))
    pulls = keep_pulls(cluster)
    await cluster.pod("one", {"app": "solo"})
    message = (
        r"^the API server rejects the pod that would pull i:2, nothing was changed: .*minimum cpu usage per Container "
        r"is 50m, but request is 10m.* \(LimitRange small\); to set what pull pods request: --pull-resources$"
    )
    with pytest.raises(ConfigurationError, match=message):
        await recreated(cluster, "pod/one", *TO)
    assert (await cluster.requests(), pulls) == ([], [])
    assert await recreated(cluster, "pod/one", *TO, "--pull-resources", "cpu=50m,memory=64Mi") == 0
    assert [image_of(pod) for pod in await cluster.pods()] == ["i:2"]
    assert [pod["spec"]["containers"][0]["resources"]["limits"] for pod in pulls] == [{"cpu": "50m", "memory": "64Mi"}]


async def test_a_limit_range_that_comes_during_a_run_stops_nothing(
    cluster: PlayedCluster, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    await create_limit_range(cluster.client, NAMESPACE, cpu="50m")
    limits = limit_ranger(cpu="50m")

    async def later(asked: AdmissionRequest) -> Object | None:
        return None if asked.dry_run else await limits(asked)

    cluster.api.admission.mutating.append(later)
    await cluster.pod("one", {"app": "solo"})
    words = ("pod/one", *TO, "--run", "mine")
    assert await recreated(cluster, *words) == 1
    text = capsys.readouterr().out
    assert "the API server rejects the pod that would pull i:2 on node node-a, so no container was stopped: " in text
    assert "minimum cpu usage per Container is 50m" in text
    assert "(LimitRange small); to set what pull pods request: --pull-resources" in text
    assert await recreated(cluster, *words, "--pull-resources", "cpu=50m") == 0
    assert [image_of(pod) for pod in await cluster.pods()] == ["i:2"]


async def test_a_quota_that_refuses_pull_pods_is_named_and_no_role_is_advised(
    cluster: PlayedCluster, images: Images
) -> None:
    async def refuse(asked: AdmissionRequest) -> None:
        if asked.kind.plural == "pods" and asked.operation is Operation.CREATE:
            why = "exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1"
            raise forbidden("", "pods", asked.name, why)

    await cluster.pod("one", {"app": "solo"})
    cluster.api.admission.validating.append(refuse)
    message = r"^the API server rejects the pod that would pull i:2, nothing was changed: .*exceeded quota: few, [^;]*$"
    with pytest.raises(ConfigurationError, match=message):
        await recreated(cluster, "pod/one", *TO)


@pytest.mark.parametrize("uid", [None, RANGE[7]])
async def test_pull_pods_have_a_user_that_openshift_accepts(
    cluster: PlayedCluster, images: Images, uid: int | None
) -> None:
    """That of the pods, if it is in their specs, as under restricted-v2. Else OpenShift chooses one."""
    pulls = keep_pulls(cluster)
    config = {"securityContext": {"runAsUser": uid}} if uid else None
    await cluster.pod("one", {"app": "solo"}, config=config)
    cluster.api.admission.mutating.append(restricted_v2)
    assert await recreated(cluster, "pod/one", *TO) == 0
    assert [image_of(pod) for pod in await cluster.pods()] == ["i:2"]
    (pull,) = pulls
    of_pod, of_container = pull["spec"]["securityContext"], pull["spec"]["containers"][0]["securityContext"]
    assert (of_pod.get("runAsUser"), of_container.get("runAsUser")) == ((uid, None) if uid else (None, RANGE[0]))


async def test_what_is_refused_with_a_user_and_without_one_is_said(cluster: PlayedCluster, images: Images) -> None:
    async def refuse(asked: AdmissionRequest) -> None:
        if asked.kind.plural == "pods" and asked.operation is Operation.CREATE and asked.new is not None:
            has_user = "runAsUser" in asked.new["spec"]["securityContext"]
            raise forbidden("", "pods", asked.name, "the user must be 1000" if has_user else "a user is needed")

    await cluster.pod("one", {"app": "solo"})
    cluster.api.admission.validating.append(refuse)
    with pytest.raises(ConfigurationError, match=r"user must be 1000.*; without runAsUser: .*a user is needed"):
        await recreated(cluster, "pod/one", *TO)
