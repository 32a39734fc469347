"""What runs with an image leave behind: pull pods, and open requests of pods that do not get the image."""

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import datetime

from crrd.core.api.pod import parse_pod
from crrd.core.rollout.image.pull import LABEL_PULL, LABEL_PULL_POLICY, PullPod, PullState, read_pull_pod
from crrd.core.rollout.requests import STOPPED, RunRequest, read_run_request
from crrd.core.rollout.run import LABEL_RUN
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS, REQUESTS, Where
from crrd.lib.errors import ConflictError, GoneError
from crrd.lib.jsonfields import mapping, text
from crrd.rollout.process import has_other
from crrd.rollout.side_by_side import each_of


async def find_pull_pods(client: KubeClient, namespace: str, run: str = "") -> list[PullPod]:
    """Return the pull pods of a run, or of all runs."""
    where = Where(namespace=namespace, label_selector=f"{LABEL_PULL}={run}" if run else LABEL_PULL)
    return [each for each in (await client.list_all(PODS, read_pull_pod, **where)).items if each.run]


async def delete_pull_pods(client: KubeClient, namespace: str, run: str) -> int:
    """Delete all pull pods of a run. Return how many there were."""
    found = await find_pull_pods(client, namespace, run)
    await each_of(_delete(client, namespace, each.name, each.uid) for each in found)
    return len(found)


async def release_runs(
    client: KubeClient, namespace: str, carried_on: Callable[[], Collection[str]], now: datetime
) -> bool:
    """Clean up after the policies' runs of a namespace that nobody carries on. Return whether any may have been left.

    `carried_on` returns the runs that this process carries on, which may change meanwhile. Others are kept while a
    process of a user writes their progress, who has resumed them. The requests of pods that do not get the image end,
    and pull pods are deleted. This needs a right that the namespace may have taken back, so it is the last. Raises
    ApiUnavailableError and ApiRefusedError.
    """
    requests = Where(namespace=namespace, label_selector=LABEL_RUN)
    asked = [each for each in (await client.list_all(REQUESTS, read_run_request, **requests)).items if each is not None]
    of_policies = [each for each in asked if each.run.options.policy]
    users = {name for name in {each.run.name for each in of_policies} if has_other(of_policies, name, now)}
    ended, keep = set[str](), {*carried_on(), *users}
    await stop_requests(client, (each for each in of_policies if each.run.name not in keep), ended)
    pods = Where(namespace=namespace, label_selector=LABEL_PULL_POLICY)
    pulls, keep = (await client.list_all(PODS, read_pull_pod, **pods)).items, {*carried_on(), *users}
    own = [each for each in pulls if each.run not in {"", *keep}]
    await each_of(_delete(client, namespace, each.name, each.uid) for each in own)
    return bool(users or ended or own)


async def stop_requests(client: KubeClient, requests: Iterable[RunRequest], ended: set[str]) -> None:
    """End those that are open, for another image, of pods that do not have it. Their names are added to `ended`.

    A pod that has the image keeps its request, which drains it and sees its restart. The node may not know that yet.
    Each is tried before the error of one is raised: ApiUnavailableError or ApiRefusedError.
    """
    await each_of(_stop_request(client, each, ended) for each in requests)


async def _stop_request(client: KubeClient, asked: RunRequest, ended: set[str]) -> None:
    change, request, namespace = asked.run.options.image, asked.request, asked.run.namespace
    if change is None or not asked.is_open:
        return
    with suppress(GoneError, ConflictError):
        pod = parse_pod(await client.get(PODS, namespace, request.pod_name))
        found = pod.containers.get(asked.run.options.containers[0])
        if pod.uid == request.pod_uid and (found is None or not found.has_image(change.image)):
            await client.merge_patch(REQUESTS, namespace, request.name, STOPPED)
            ended.add(request.name)


async def delete_pull_pod(client: KubeClient, namespace: str, pull: PullPod) -> None:
    """Delete one pull pod, unless it was refused."""
    if pull.state is not PullState.REFUSED:
        await _delete(client, namespace, pull.name, pull.uid)


async def _delete(client: KubeClient, namespace: str, name: str, uid: str) -> None:
    with suppress(GoneError, ConflictError):
        await client.delete(PODS, namespace, name, uid=uid, grace_seconds=0)


def name_and_uid(obj: object) -> tuple[str, str]:
    """Return name and UID of an object."""
    meta = mapping(mapping(obj).get("metadata"))
    return text(meta.get("name")), text(meta.get("uid"))
