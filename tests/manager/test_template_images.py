"""Policies with templateImage through the local API server: pods and their ReplicaSet follow a paused Deployment."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from crrd.core.api.types import PLURAL
from crrd.core.policy.v1alpha1 import read_policy
from crrd.core.rollout.image.following import TemplateImages
from crrd.core.rollout.image.pull import LABEL_PULL, LABEL_PULL_POLICY
from crrd.core.rollout.state import read_member
from crrd.kube.discovery import kind_of
from crrd.kube.resources import POLICIES, REPLICA_SETS
from crrd.manager.policies.template_images import TemplateObserver
from crrd.rollout.target import find_workload
from crrd_localnode.api.admission import AdmissionRequest, Operation, User
from crrd_localnode.api.errors import Cause, forbidden, invalid
from crrd_localnode.api.objects import Object
from crrd_localnode.workload import RESOURCES
from tests.manager.test_permissions import asked, granted
from tests.manager.test_policies import Managed, is_done, is_idle, managing, ready
from tests.support.faulty_api import Call
from tests.support.manifests import needs_kubectl
from tests.support.played_cluster import NAMESPACE
from tests.support.played_images import Images, image_of, played_images
from tests.support.spelled import digest_of
from tests.support.strict_namespaces import create_limit_range, limit_ranger

Json = dict[str, Any]
DEPLOYMENTS = RESOURCES["Deployment"]
FOLLOW: Json = {"triggers": {"templateImage": {}}, "budget": {"maxUnavailable": 2, "minReady": "0s"}}


@dataclass
class Shop:
    """A managed Deployment with a policy, and the images of its node."""

    managed: Managed
    images: Images

    async def set(self, *images: str, paused: bool = True) -> None:
        """Give the template these images, as from git."""
        client = self.managed.cluster.client
        found = dict(await client.get(DEPLOYMENTS, NAMESPACE, "web"))
        containers = found["spec"]["template"]["spec"]["containers"]
        for entry, image in zip(containers, images, strict=False):
            entry["image"] = image
        body = {"spec": {"paused": paused, "template": {"spec": {"containers": containers}}}}
        await client.merge_patch(DEPLOYMENTS, NAMESPACE, "web", body)

    async def pods(self) -> dict[str, str]:
        """The image of each pod of the Deployment, by UID."""
        found = [pod for pod in await self.managed.cluster.pods() if "app" in pod["metadata"]["labels"]]
        return {pod["metadata"]["uid"]: image_of(pod) for pod in found}

    async def pulls(self) -> list[Json]:
        return [pod for pod in await self.managed.cluster.pods() if LABEL_PULL in pod["metadata"]["labels"]]

    async def replica_set(self) -> str:
        (found,) = (await self.managed.cluster.client.list_all(REPLICA_SETS, dict, namespace=NAMESPACE)).items
        return image_of(found["spec"]["template"])

    async def has(self, image: str) -> Json:
        """The status, once all pods and the ReplicaSet have the image, and the run has ended."""
        status = await self.managed.until(lambda status: is_done(status) and status["run"].get("image") == image)
        assert {*(await self.pods()).values(), await self.replica_set()} == {image}
        return status

    async def patch(self, **spec: Any) -> None:
        """Edit the policy."""
        await self.managed.cluster.client.merge_patch(POLICIES, NAMESPACE, "web", {"spec": spec})

    async def requested(self) -> list[Json]:
        """The pull pods, once a pod has its request, for which its node has not answered yet."""
        while not await self.open_requests():
            await asyncio.sleep(0.05)
        return await self.pulls()

    async def edited_in_its_run(self) -> None:
        """Edit the policy. Its run goes on with the same pull pods and requests."""
        before = [each["metadata"]["uid"] for each in (*await self.open_requests(), *await self.pulls())]
        await self.patch(budget={"maxUnavailable": 2, "minReady": "1s"})
        edited = await self.managed.cluster.client.get(POLICIES, NAMESPACE, "web")
        generation = edited["metadata"]["generation"]
        await self.managed.until(lambda status: status.get("observedGeneration") == generation)
        await asyncio.sleep(1)
        after = [each["metadata"]["uid"] for each in (*await self.open_requests(), *await self.pulls())]
        assert {*before} <= {*after}

    async def open_requests(self) -> list[Json]:
        """The requests that are not completed."""
        requests = await self.managed.cluster.requests()
        return [each for each in requests if each.get("status", {}).get("phase") != "Completed"]

    async def released(self) -> None:
        """Wait until no pull pod and no open request is left, so that no pod stays unready."""
        async with asyncio.timeout(20):
            while await self.open_requests() or await self.pulls():
                await asyncio.sleep(0.05)


@asynccontextmanager
async def shopping(folder: Path, **options: Any) -> AsyncIterator[Shop]:
    async with managing(folder, "m", **options) as managed, played_images(managed.cluster) as images:
        found = Shop(managed, images)
        await found.set("i:1")
        yield found


@needs_kubectl
async def test_pods_and_replicaset_follow_through_typos_leaders_and_suspensions(tmp_path: Path) -> None:
    calls: list[Call] = []
    async with shopping(tmp_path, tokens={"m": User("crrd-manager")}, log=calls.append) as shop:
        managed, cluster = shop.managed, shop.managed.cluster
        before, spec = await shop.pods(), (await cluster.client.get(DEPLOYMENTS, NAMESPACE, "web"))["spec"]
        await managed.policy(**FOLLOW)
        await managed.lead()
        await managed.until(is_idle)
        await shop.set("i:2")
        run = (await shop.has("i:2"))["run"]
        assert (run["trigger"], run["containers"], run["before"]) == ("templateImage", ["app"], ["i:1"])
        assert (run["failed"], run["message"]) == (False, "2 of 2 pods recreated")
        after = dict((await cluster.client.get(DEPLOYMENTS, NAMESPACE, "web"))["spec"])
        after["template"]["spec"]["containers"][0]["image"] = "i:1"
        assert after == spec, "only its user has written it"
        used, bound = asked(calls, "crrd-manager"), granted("crrd-update-images")
        reviews = {("create", "authorization.k8s.io", "selfsubjectaccessreviews")}  # open to everybody
        assert used - granted("crrd-manager") - bound - reviews == set(), "calls that no rule allows"
        runs = {(verb, "", "pods") for verb in ("patch", "create", "delete")}
        assert runs | {("create", "apps.kruise.io", PLURAL), ("patch", "apps", "replicasets")} <= used & bound
        await shop.set("i:missing")
        why = ready(await managed.until(lambda status: ready(status).get("reason") == "RunFailed"))["message"]
        assert "kubelet cannot pull i:missing on node node-a, and no container was stopped there" in why
        assert {*(await shop.pods()).values()} == {"i:2"}
        assert await shop.pulls() == []
        shop.images.grace = True
        await shop.set("i:3")
        (pull,) = await shop.requested()
        policy = await cluster.client.get(POLICIES, NAMESPACE, "web")
        assert pull["metadata"]["labels"][LABEL_PULL_POLICY] == policy["metadata"]["uid"]
        await managed.die()
        await shop.patch(suspend=True)
        await managed.lead()
        await shop.released()
        shop.images.grace = False
        await shop.patch(suspend=False)
        await shop.has("i:3")
        assert (await shop.pods()).keys() == before.keys()
        shop.images.grace = True
        await shop.set("i:4")
        await shop.requested()
        await cluster.client.delete(POLICIES, NAMESPACE, "web")
        await shop.released()
        assert ({*(await shop.pods()).values()}, shop.images.outages) == ({"i:3"}, [])
        assert managed.ended == [("templateImage", each) for each in ("succeeded", "failed", "succeeded")]


async def test_a_quota_for_pull_pods_delays_a_run(tmp_path: Path) -> None:
    """It is raised, or another pull pod goes. Nobody would resume a run that has failed."""
    left = iter(range(6))  # each attempt without a user, too

    async def quota(given: AdmissionRequest) -> None:
        pod = given.new if given.kind.plural == "pods" and given.operation is Operation.CREATE else None
        pulls = pod is not None and LABEL_PULL in pod["metadata"].get("labels", {}) and not given.dry_run
        if pulls and next(left, None) is not None:
            raise forbidden("", "pods", given.name, "exceeded quota: few")

    async with shopping(tmp_path) as shop:
        await shop.managed.policy(**FOLLOW)
        await shop.managed.lead()
        await shop.managed.until(is_idle)
        shop.managed.cluster.api.admission.validating.append(quota)
        await shop.set("i:2")
        await shop.has("i:2")
        assert next(left, None) is None


async def test_a_pod_that_a_patch_has_restarted_has_the_image_of_its_template(tmp_path: Path) -> None:
    spelled = f"docker.io/library/i:1@{digest_of('i:1')}"
    async with shopping(tmp_path, tokens={"m": User("crrd-manager")}) as shop:
        await shop.images.give(spelled, but=1)
        before = await shop.pods()
        assert {*before.values()} == {spelled, "i:1"}
        await shop.managed.policy(**FOLLOW)
        await shop.managed.lead()
        assert "run" not in await shop.managed.until(is_idle)
        assert (await shop.pods(), await shop.managed.cluster.requests()) == (before, [])
        await shop.set("i:2")
        run = (await shop.has("i:2"))["run"]
        assert (run["failed"], run["before"]) == (False, ["i:1"])


async def test_nothing_is_left_of_a_policy_in_whatever_order_it_ends(tmp_path: Path) -> None:
    """Neither a request that keeps a pod unready nor a pull pod."""
    async with shopping(tmp_path, tokens={"m": User("crrd-manager")}) as shop:
        managed, client = shop.managed, shop.managed.cluster.client
        shop.images.grace = True
        await managed.lead()
        orders = "edit suspend delete", "break delete", "suspend die delete lead", "die delete lead"
        for number, order in enumerate(orders):
            await managed.policy(**FOLLOW)
            await shop.set(f"i:{number + 2}")
            await shop.requested()
            for event in order.split():
                match event:
                    case "edit":
                        await shop.edited_in_its_run()
                    case "suspend":
                        await shop.patch(suspend=True)
                    case "break":
                        await shop.patch(window={"cron": "61 * * * *", "duration": "1h"})  # no schema finds that
                    case "delete":
                        await client.delete(POLICIES, NAMESPACE, "web")
                    case "die":
                        await managed.die()
                    case "lead":
                        await managed.lead()
            await shop.released()
            assert {*(await shop.pods()).values()} == {"i:1"}, order
            await shop.set("i:1")


@needs_kubectl
async def test_a_fix_in_git_reaches_a_pod_that_its_replicaset_makes_with_the_first_image(tmp_path: Path) -> None:
    async with shopping(tmp_path, tokens={"m": User("crrd-manager")}) as shop:
        cluster = shop.managed.cluster
        await shop.managed.policy(**FOLLOW)
        await shop.managed.lead()
        await shop.managed.until(is_idle)
        shop.images.bad = "i:2"  # it does not become ready
        await shop.set("i:2")
        async with asyncio.timeout(30):
            while {*(await shop.pods()).values()} != {"i:2"}:
                await asyncio.sleep(0.05)
        shop.images.grace = True
        await shop.set("i:3")  # the fix
        async with asyncio.timeout(30):
            while "i:3" not in [each["spec"]["containers"][0]["image"] for each in await shop.open_requests()]:
                await asyncio.sleep(0.05)
        (owner,) = (await cluster.client.list_all(REPLICA_SETS, dict, namespace=NAMESPACE)).items
        assert image_of(owner["spec"]["template"]) == "i:1"
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": True}
        reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
        labels = owner["spec"]["template"]["metadata"]["labels"]
        made = await cluster.pod("web-new", labels, "app", "side", ownerReferences=[reference])
        shop.images.grace = False
        await shop.has("i:3")
        assert made["metadata"]["uid"] in await shop.pods()


def with_sidecar(pod: Json) -> Json:
    app, side = pod["spec"]["containers"]
    first, second = pod["status"]["containerStatuses"]
    spec = {**pod["spec"], "containers": [app], "initContainers": [{**side, "restartPolicy": "Always"}]}
    return {**pod, "spec": spec, "status": {**pod["status"], "containerStatuses": [first],
                                            "initContainerStatuses": [second]}}  # fmt: skip


async def observed(shop: Shop, kubelet: str = "") -> TemplateImages:
    """What a manager sees of the template. With a version of kubelet, container side is a native sidecar."""
    client = shop.managed.cluster.client
    spec: Json = {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, **FOLLOW}
    policy = read_policy({"metadata": {"name": "web", "namespace": NAMESPACE, "uid": "u"}, "spec": spec})
    aim = await find_workload(client, NAMESPACE, await kind_of(client, "apps/v1", "Deployment"), "web")
    pods = [with_sidecar(pod) if kubelet else pod for pod in await shop.managed.cluster.pods()]
    members = [read_member(pod) for pod in pods]
    observer, kubelets = TemplateObserver(client, "crrd-system:crrd-manager"), {"node-a": kubelet}
    return await observer.look(policy, aim, members, datetime.now(UTC), kubelets)


async def pin(given: AdmissionRequest) -> Object | None:
    if given.kind.plural != "pods" or given.operation is not Operation.UPDATE or given.new is None:
        return None
    for each in given.new["spec"]["containers"]:
        each["image"] = "i@sha256:2" if each["image"] == "i:2" else each["image"]
    return given.new


async def deny(given: AdmissionRequest) -> Object | None:
    if given.kind.plural == "replicasets" and given.operation is Operation.UPDATE:
        raise invalid("apps", "ReplicaSet", given.name, [Cause("spec", "images are fixed here")])
    return None


async def prune(given: AdmissionRequest) -> Object | None:
    """As a CRD without the field: the request would be an ordinary restart."""
    if given.kind.plural != "containerrecreaterequests" or given.new is None:
        return None
    for each in given.new["spec"]["containers"]:
        each.pop("image", None)
    return given.new


async def test_what_a_limit_range_refuses_is_in_the_condition(tmp_path: Path) -> None:
    """With the field of the policy that sets what pull pods request. The manager can set it for all policies."""
    async with shopping(tmp_path, tokens={"m": User("crrd-manager")}) as shop:
        cluster = shop.managed.cluster
        await create_limit_range(cluster.client, NAMESPACE, cpu="50m")
        cluster.api.admission.mutating.append(limit_ranger(cpu="50m", memory="32Mi"))
        await shop.managed.policy(**FOLLOW)
        await shop.managed.lead()
        await shop.managed.until(is_idle)
        await shop.set("i:2")
        why = ready(await shop.managed.until(lambda status: ready(status).get("reason") == "TemplateNotFollowed"))
        assert "minimum cpu usage per Container is 50m, but request is 10m" in why["message"]
        assert "(LimitRange small); to set what pull pods request: spec.triggers.templateImage" in why["message"]
        assert await cluster.requests() == []
        await shop.patch(triggers={"templateImage": {"pullResources": {"cpu": "50m"}}})
        await shop.has("i:2")
        await shop.managed.die()
        await shop.patch(triggers={"templateImage": {"pullResources": None}})
        await shop.managed.lead(pull_resources="cpu=60m")
        await shop.set("i:3")
        await shop.has("i:3")


async def lacks(_client: object, wanted: tuple[str, ...], _namespace: str) -> tuple[str, ...]:
    assert "patch,create,delete pods" in wanted
    return ("patch pods", "list controllerrevisions.apps")


async def test_what_keeps_pods_from_following_is_said_before_a_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with what to do; nothing was written."""

    async with shopping(tmp_path, tokens={"m": User("crrd-manager")}) as shop:
        cluster = shop.managed.cluster

        async def settled() -> TemplateImages:
            while (found := await observed(shop)).wait:
                await asyncio.sleep(0.02)
            return found

        assert await settled() == TemplateImages()
        await shop.set("i:latest")
        assert "has i:latest for app, which has no fixed tag" in (await settled()).refused[0]
        await shop.set("i:2", "i:latest")
        found = await settled()
        assert [(each.container, each.image, each.before) for each in found.changes] == [("app", "i:2", ("i:1",))]
        assert "has i:latest for side, which has no fixed tag" in found.refused[0], "it is tried all the same"
        await shop.set("i:1", "i:3")
        while (old := await observed(shop, "v1.31.14")).wait:
            await asyncio.sleep(0.02)
        assert old.changes == (), "no run begins that leaves all pods out"
        assert "older than 1.32, and would not replace native sidecar side" in old.refused[0]
        newer = await observed(shop, "v1.36.2")
        assert "older than" not in "".join(newer.refused), newer
        await shop.set("i:2", "i:3")
        cluster.api.admission.mutating.append(pin)
        found = await settled()
        assert [each.container for each in found.changes] == ["side"], "each container is tried"
        assert "a webhook sets i@sha256:2 in the pods of deployment.apps/web instead of i:2" in found.refused[0]
        assert found.refused[0].endswith("write i@sha256:2 in the template")
        for admission, message in ((deny, "images are fixed here"), (prune, "does not know images of requests")):
            cluster.api.admission.mutating[-1] = admission
            found = await settled()
            assert found.changes == ()
            assert all(message in each.replace("do not know", "does not know") for each in found.refused), found
        cluster.api.admission.mutating.pop()
        await shop.set("i:2", paused=False)
        assert "is not held" in (await settled()).problem
        monkeypatch.setattr("crrd.manager.policies.rights.missing_rights", lacks)
        found = await observed(shop)
        assert found.lacks_right
        assert found.problem == (
            "the manager may not patch pods, list controllerrevisions.apps in this namespace; to allow it: kubectl "
            "create rolebinding crrd-update-images -n default --clusterrole=crrd-update-images "
            "--serviceaccount=crrd-system:crrd-manager"
        )
        assert (await cluster.requests(), await shop.pulls()) == ([], [])
        assert {*(await shop.pods()).values()} == {"i:1"}
