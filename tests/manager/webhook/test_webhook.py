"""Admission through real TLS: every refusal of the contract, in its own words, and what is let in."""

import asyncio
import base64
import copy
import json
from collections.abc import Mapping
from typing import Any

import jsonpatch
import pytest
from aiohttp import web

from crrd.core.admission.rules import Denied
from crrd.kube.client import KubeClient
from crrd.kube.resources import NODES, PODS, Resource
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError
from tests.support.admission import (
    CREATE_REFUSALS,
    NODE_NAME,
    REQUESTED_BY,
    USER,
    JsonObject,
    Refusal,
    new_pod,
    new_request,
    new_review,
    reviewed,
)
from tests.support.faulty_api import FaultyApiServer
from tests.support.scripted_api import FixedAccess, reply, scripted_api
from tests.support.webhook import Pods, Served, webhook

POD_KIND = {"group": "", "version": "v1", "kind": "Pod"}


def refusal_of(response: JsonObject) -> tuple[str, int]:
    assert response["allowed"] is False
    assert "patch" not in response
    status = response["status"]
    assert status["status"] == "Failure"
    return status["message"], status["code"]


def patched(obj: JsonObject, response: JsonObject) -> JsonObject:
    assert response["allowed"] is True
    if "patch" not in response:
        return obj
    assert response["patchType"] == "JSONPatch"
    changed: JsonObject = jsonpatch.apply_patch(obj, json.loads(base64.b64decode(response["patch"])))
    return changed


def finished() -> JsonObject:
    outcome = reviewed(new_request(), new_pod(), USER)
    assert not isinstance(outcome, Denied)
    return outcome


@pytest.mark.parametrize("refusal", CREATE_REFUSALS, ids=lambda refusal: refusal.name)
async def test_every_refusal_of_a_new_request(served: Served, pods: Pods, refusal: Refusal) -> None:
    request, pod = refusal.objects()
    pods.pods.clear()
    if pod is not None:
        pods.put(pod)
    response = await served.ask("/mutate-crr", new_review(request))
    assert refusal_of(response) == (refusal.sentence, 422)
    assert response["status"]["reason"] == "Invalid"
    assert "details" not in response["status"], "clients would try again for nothing"


async def test_a_sound_request_is_completed(served: Served, pods: Pods) -> None:
    request = new_request()
    completed = patched(request, await served.ask("/mutate-crr", new_review(request)))
    assert completed == finished()
    assert pods.asked == [("shop", "web-0")]


async def test_asked_again_about_its_own_work_it_changes_nothing(served: Served) -> None:
    """Another webhook has changed the request in between (reinvocationPolicy IfNeeded)."""
    request = finished()
    request["metadata"]["labels"]["mesh"] = "on"
    assert await served.ask("/mutate-crr", new_review(request)) == {"uid": "review-1", "allowed": True}


async def test_what_was_changed_meanwhile_is_refused(served: Served) -> None:
    request = finished()
    request["metadata"]["annotations"][REQUESTED_BY] = "root"
    message, code = refusal_of(await served.ask("/mutate-crr", new_review(request)))
    assert message == (
        "spec.containers[0].statusContext must be left out: admission takes it from the pod "
        "(if you left it out, another webhook has changed the request)"
    )
    assert code == 422


async def test_changes_need_no_pod(served: Served, pods: Pods) -> None:
    old = finished()
    new = copy.deepcopy(old)
    del new["metadata"]["labels"]["crr.apps.kruise.io/active"]
    review = new_review(new, "UPDATE", old=old)
    assert await served.ask("/mutate-crr", review) == {"uid": "review-1", "allowed": True}
    assert not pods.asked


async def test_what_an_update_leaves_out_is_put_back(served: Served) -> None:
    old = finished()
    file = new_request()
    assert patched(file, await served.ask("/mutate-crr", new_review(file, "UPDATE", old=old))) == old


async def test_what_admission_has_no_say_in_is_let_in(served: Served) -> None:
    for review in (
        new_review(None, "DELETE", old=finished()),
        new_review(None, "CONNECT"),
        new_review({"status": {}}, "UPDATE", old={"status": {"phase": "Pending"}}, subResource="status"),
    ):
        assert await served.ask("/mutate-crr", review) == {"uid": "review-1", "allowed": True}


async def test_new_pods_get_the_readiness_gate(served: Served) -> None:
    pod = new_pod()
    gated = patched(pod, await served.ask("/mutate-pod", new_review(pod, kind=POD_KIND)))
    assert gated["spec"]["readinessGates"] == [{"conditionType": "KruisePodReady"}]
    assert patched(gated, await served.ask("/mutate-pod", new_review(gated, kind=POD_KIND))) == gated
    assert patched(pod, await served.ask("/mutate-pod", new_review(pod, "UPDATE", old=pod, kind=POD_KIND))) == pod


@pytest.mark.parametrize(
    ("error", "code", "sentence", "retried"),
    [
        (
            ApiUnavailableError("get pods: connection refused"),
            503,
            "spec.podName cannot be checked now: the API server did not answer the manager's pod lookup; try again",
            True,
        ),
        (
            ApiRefusedError("get pods: forbidden", status=403),
            500,
            (
                "spec.podName cannot be checked: the API server rejected the manager's pod lookup; "
                "check the manager's log"
            ),
            False,
        ),
    ],
)
async def test_an_api_server_in_trouble(
    served: Served, pods: Pods, error: Exception, code: int, sentence: str, *, retried: bool
) -> None:
    async def fail() -> None:
        raise error

    pods.before = fail
    response = await served.ask("/mutate-crr", new_review(new_request()))
    assert refusal_of(response) == (sentence, code)
    assert response["status"].get("details") == ({"retryAfterSeconds": 1} if retried else None)


class StalledNodes(Pods):
    async def get(self, resource: Resource, namespace: str, name: str) -> Mapping[str, Any]:
        if resource is NODES:
            await asyncio.Event().wait()
        return await super().get(resource, namespace, name)


async def test_a_node_that_cannot_be_looked_up_in_time_is_unknown() -> None:
    """Its kubelet's version matters; the answer comes before the API server gives up, for each of several reviews."""
    pod = new_pod(lambda o: o["spec"]["containers"][0].update(restartPolicy="Always"))
    async with webhook(StalledNodes({("shop", "web-0"): pod})) as served:
        reviews = (served.ask("/mutate-crr", new_review(new_request()), "?timeout=1s") for _ in range(3))
        async with asyncio.timeout(3):
            assert [answer["allowed"] for answer in await asyncio.gather(*reviews)] == [True] * 3


@pytest.mark.parametrize(("kubelet", "fits"), [("v1.34.9", True), ("v1.36.0", False)])
async def test_a_request_for_a_whole_pod_is_judged_by_its_kubelet(kubelet: str, *, fits: bool) -> None:
    """It need not name the containers, and those of runs do not."""
    own = [{"name": "app", "restartPolicy": "OnFailure"}, {"name": "log"}]
    pods = Pods({("shop", "web-0"): new_pod(lambda pod: pod["spec"].update(containers=own))}, kubelet=kubelet)
    async with webhook(pods) as served:
        answer = await served.ask("/mutate-crr", new_review(new_request(wholePod=True, containers=[])))
        assert answer["allowed"] is fits


def known_images(pod: JsonObject) -> None:
    """Images that have been pulled, so that they have another name."""
    spec, status = pod["spec"], pod["status"]
    for each in (*spec["containers"], *spec["initContainers"]):
        each["image"] = f"{each['name']}:1"
    for each in (*status["containerStatuses"], *status["initContainerStatuses"]):
        each["imageID"] = f"docker.io/library/{each['name']}@sha256:{'0' * 64}"


def known_elsewhere(pod: JsonObject) -> None:
    known_images(pod)
    pod["spec"]["nodeName"] = "old"


async def on_no_node(_: str) -> bool:
    return False


async def test_what_needs_a_node_daemon_is_refused_where_none_is() -> None:
    pods = Pods({("shop", "web-0"): new_pod(known_images)})
    async with webhook(pods, served=on_no_node) as on:
        completed = patched(new_request(), await on.ask("/mutate-crr", new_review(new_request())))
        assert completed == finished()
        forced = new_request(strategy={"forceRecreate": True})
        message, code = refusal_of(await on.ask("/mutate-crr", new_review(forced)))
        assert message.startswith("spec.strategy.forceRecreate must be left out: without a node daemon, only the")
        assert code == 422
        unknown = new_request(podName="web-1")
        assert "not found" in refusal_of(await on.ask("/mutate-crr", new_review(unknown)))[0]
        pods.put(new_pod(known_elsewhere))
        pods.kubelet = "v1.31.0"
        message, _ = refusal_of(await on.ask("/mutate-crr", new_review(new_request())))
        assert message.startswith("spec.containers[1].name must name a container that can be restarted without a node")
        assert "older than 1.32, and would not replace native sidecar proxy" in message


async def test_a_node_daemon_can_do_all_of_it(pods: Pods) -> None:
    asked = list[str]()

    async def served(node: str) -> bool:
        asked.append(node)
        return True

    async with webhook(pods, served=served) as on:
        for request in (new_request(), new_request(strategy={"forceRecreate": True})):
            assert (await on.ask("/mutate-crr", new_review(request)))["allowed"]
    assert asked == ["node-1", "node-1"], "its images have no other name"


async def test_whether_there_is_a_node_daemon_cannot_be_read(pods: Pods) -> None:
    async def served(_: str) -> bool:
        raise ApiUnavailableError("list pods: connection refused")

    async with webhook(pods, served=served) as on:
        message, code = refusal_of(await on.ask("/mutate-crr", new_review(new_request())))
    assert (message.partition(":")[0], code) == ("spec.podName cannot be checked now", 503)


WARNING = "no node daemon is ready on node node-1: the request fails if none answers within 60s"


async def test_a_request_for_a_node_without_a_ready_daemon_is_admitted_with_a_warning(pods: Pods) -> None:
    lacking = {"node-1"}
    async with webhook(pods, lacking=lacking.__contains__) as on:
        answer = await on.ask("/mutate-crr", new_review(new_request()))
        assert (patched(new_request(), answer), answer["warnings"]) == (finished(), [WARNING])
        unknown = await on.ask("/mutate-crr", new_review(new_request(podName="web-1")))
        assert "not found" in refusal_of(unknown)[0]
        assert "warnings" not in unknown
        update = new_review(finished(), "UPDATE", old=finished())
        assert "warnings" not in await on.ask("/mutate-crr", update)
        lacking.clear()
        assert "warnings" not in await on.ask("/mutate-crr", new_review(new_request()))


async def test_such_a_request_is_denied_if_the_manager_is_told_so(pods: Pods) -> None:
    async with webhook(pods, lacking={"node-1"}.__contains__, deny=True) as on:
        message, code = refusal_of(await on.ask("/mutate-crr", new_review(new_request())))
        assert message.endswith("must name a pod on a node with a ready node daemon: node 'node-1' has none now")
        assert code == 422
        elsewhere = new_pod()
        elsewhere["spec"]["nodeName"] = "node-2"
        pods.put(elsewhere)
        assert (await on.ask("/mutate-crr", new_review(new_request())))["allowed"]


async def test_each_answer_is_reported(pods: Pods) -> None:
    seen: list[tuple[str, ...]] = []

    def observe(*received: Any) -> None:
        assert received[3] >= 0
        seen.append(received[:3])

    async with webhook(pods, on_review=observe) as on:
        await on.ask("/mutate-crr", new_review(new_request()))
        await on.ask("/mutate-crr", new_review(new_request(podName="\ud800"), userInfo={"username": "\ud800"}))
    assert seen == [("mutate", "allowed", ""), ("mutate", "denied", "invalid_spec")]


async def test_pods_of_a_real_api_server() -> None:
    """The whole way: the pod comes over HTTP, there is none, and the API server stalls."""
    async with FaultyApiServer() as api, KubeClient(FixedAccess(api.url)) as client, webhook(client) as served:
        await client.create(PODS, "default", {"metadata": {"name": "web-0"}, "spec": new_pod()["spec"]})
        await client.merge_patch(PODS, "default", "web-0", {"status": new_pod()["status"]}, subresource="status")
        review = new_review(new_request(), namespace="default")
        completed = patched(new_request(), await served.ask("/mutate-crr", review))
        assert completed["metadata"]["labels"][NODE_NAME] == "node-1"
        elsewhere = new_review(new_request(podName="web-1"), namespace="default")
        message, _ = refusal_of(await served.ask("/mutate-crr", elsewhere))
        assert message.endswith("pod 'web-1' not found")
        api.fail_next(status=500)
        assert refusal_of(await served.ask("/mutate-crr", review))[1] == 503
        api.pause()
        message, code = refusal_of(await served.ask("/mutate-crr", review, "?timeout=1s"))
        assert (message.endswith("try again"), code) == (True, 503)
        api.resume()
        assert (await served.ask("/mutate-crr", review))["allowed"] is True


async def test_many_reviews_at_once_on_a_slow_api_server() -> None:
    """Each pod takes 2 s to be looked up, and there are more reviews than places for calls."""
    pod = {**new_pod(), "apiVersion": "v1", "kind": "Pod"}

    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(2)
        return await reply(pod)(request)

    async with scripted_api() as api, KubeClient(FixedAccess(api.url)) as client, webhook(client) as served:
        api.then(*[slow] * 24)
        reviews = (served.ask("/mutate-crr", new_review(new_request()), "?timeout=6s") for _ in range(24))
        assert [answer["allowed"] for answer in await asyncio.gather(*reviews)] == [True] * 24
