"""Carries out the steps of a run with an image: pull pods, the patches of pods, and the adoption by the workload.

Each write is bound to what was decided on by the tests of its JSON patch. If it is not accepted, the next plan decides
again from fresh reads. So it does not matter whether the response to a write arrives.
"""

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from crrd.core.api.pod import parse_pod
from crrd.core.api.types import ANNOTATION_STOPPED
from crrd.core.rollout.adoption import Write
from crrd.core.rollout.image_steps import has_image, patch_of, pulls_of
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.pull import LABEL_PULL, LABEL_PULL_POLICY, PullPod, PullState, pull_pod, read_pull_pod
from crrd.core.rollout.requests import RunRequest, read_run_request
from crrd.core.rollout.run import LABEL_RUN, Run
from crrd.core.rollout.standing import Row
from crrd.core.rollout.template import LABEL_ADOPTING
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS, REQUESTS, Resource, Where
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, ConflictError, GoneError
from crrd.lib.jsonfields import mapping, text
from crrd.lib.supervise import cancel
from crrd.rollout.cluster import Cluster
from crrd.rollout.image_objects import ImageObjects
from crrd.rollout.refresher import lacks_right
from crrd.rollout.side_by_side import SideBySide

T = TypeVar("T")
_PARALLEL = 16
_PAUSE_SECONDS = 0.5  # After a write that was not accepted, so that the watches can catch up
_INVALID = 422


class ImageWriter:
    """The writes of one run with an image."""

    def __init__(self, client: KubeClient, cluster: Cluster, known: ImageObjects) -> None:
        """`known` are the cluster's objects for images."""
        self._client, self._cluster, self._known = client, cluster, known
        self._patches = SideBySide(cluster.changed.set)
        self._chosen: dict[str, Row] = {}  # By UID: the pods that get the image by the newest plan
        self._sent: set[str] = set()  # Those of them whose patch is under way
        self._writes: set[asyncio.Task[Any]] = set()  # Writes of pull pods and of the adoption that are under way
        self._refused: list[Write] = []  # Writes of the adoption that were refused, before the objects were read again

    async def begin(self, run: Run) -> None:
        """Delete the run's pull pods that have not pulled, so that they are tried again, with their whole time."""
        known = pulls_of(self._cluster.world(), run).values()
        await _each(self._drop(run, each) for each in known if each.state is not PullState.PULLED)

    async def carry_out(self, run: Run, plan: Plan) -> None:
        """Carry out what is due. Patches of pods are only begun. Raises ConfigurationError if waiting cannot help."""
        self._patches.raise_error()
        steps, written = plan.image, True
        self._chosen = {row.uid: row for row in steps.patch}
        for uid in self._chosen:
            self._patches.begin(uid, partial(self._patch_chosen, run, uid))
        await _each(self._uninterrupted(self._pull(run, node, plan)) for node in steps.pull[:_PARALLEL])
        with suppress(ApiUnavailableError):  # the next plan says so again
            await _each(self._give_up(run, row) for row in steps.give_up)
        await _each(self._drop(run, each) for each in steps.drop)
        if steps.adoption is not None and not self._sent:
            for write in steps.adoption.writes:
                written = await self._uninterrupted(self._adopt(run, write)) and written
            with suppress(ApiUnavailableError):
                await self._known.read_revisions()
        if not written:
            await asyncio.sleep(_PAUSE_SECONDS)

    async def end(self) -> None:
        """Begin no more patches. Return when the response to each write that was sent is there."""
        self._chosen = {}
        await self._patches.stop(but=self._sent)
        if self._writes:
            await asyncio.wait(self._writes)

    async def cancel(self) -> None:
        """Stop at once."""
        await self._patches.stop()
        await cancel(self._writes)

    async def _uninterrupted(self, write: Coroutine[Any, Any, T]) -> T:
        """Return the result of a write. If the caller is interrupted, the write goes on, and `end` waits for it."""
        task = asyncio.create_task(write)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return await asyncio.shield(task)

    async def _pull(self, run: Run, node: str, plan: Plan) -> None:
        """Create the pull pod of a node, like a pod of the run there."""
        change, rows = run.options.image, (row for row in plan.rows if row.node == node and row.member is not None)
        if change is None:
            return
        begun = (row.pod for row in rows if row.containers and not has_image(row, change))
        try:
            like = await self._client.get(PODS, run.namespace, next(begun, ""))
            made = await self._client.create(PODS, run.namespace, pull_pod(run, node, change.image, like))
        except (ConflictError, GoneError):  # it exists, or that pod does not: the watches say so
            await asyncio.sleep(_PAUSE_SECONDS)
        except ApiRefusedError as error:
            if error.status == 401 or lacks_right(error):
                raise ConfigurationError(str(error)) from error
            self._known.pull_refused(run, node, str(error))
        except ApiUnavailableError:
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            self._known.pull_written(made)

    async def _patch_chosen(self, run: Run, uid: str) -> None:
        """Give a pod the image, unless the newest plan or an error says otherwise."""
        if (row := self._chosen.get(uid)) is None:
            return
        self._sent.add(uid)
        written = False
        try:
            written = await self._patch(run, row)
        finally:
            self._sent.discard(uid)
        if not written:
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _patch(self, run: Run, row: Row) -> bool:
        """Give a pod the image. Return whether it has it. After a refusal, the next plan decides about the others."""
        if row.member is not None:
            self._known.sent[row.uid] = row.member.pod.containers[run.options.containers[0]].container_id
        try:
            made = await self._client.json_patch(PODS, run.namespace, row.pod, patch_of(row, run))
        except GoneError:
            return False
        except ApiRefusedError as error:
            self._chosen = {}
            if error.status == 401 or lacks_right(error):
                raise ConfigurationError(str(error)) from error
            known = await self._cluster.look_again(row.pod)
            if error.status != _INVALID or known == row.member:  # else a test has failed, and the next plan decides
                self._cluster.refused(row.uid, str(error))
            return False
        except ApiUnavailableError:
            with suppress(ApiUnavailableError):  # else the watch says whether the pod has it
                await self._cluster.look_again(row.pod)
            return False
        self._cluster.pod_written(made)
        return True

    async def _give_up(self, run: Run, row: Row) -> None:
        """End a pod's request, unless the pod has just got the image: it drains the pod and sees it restart."""
        if row.request is None or run.options.image is None:
            return
        with suppress(GoneError, ConflictError):
            present = replace(row, member=await self._cluster.look_again(row.pod))
            if not has_image(present, run.options.image):
                body = {"metadata": {"annotations": {ANNOTATION_STOPPED: "true"}}}
                name = row.request.request.name
                self._cluster.written(await self._client.merge_patch(REQUESTS, run.namespace, name, body))

    async def _drop(self, run: Run, pull: PullPod) -> None:
        with suppress(ApiUnavailableError):  # the next plan says so again, or the end of the run
            await _delete_pull_pod(self._client, run.namespace, pull)

    async def _adopt(self, run: Run, write: Write) -> bool:
        """Carry out one write of the adoption. Return whether it was accepted."""
        resource = PODS if write.plural == PODS.plural else Resource(write.plural, "apps")
        name = write.name
        try:
            if not write.operations:
                await self._client.delete(resource, run.namespace, name, uid=write.uid, version=write.version)
                return True
            made = await self._client.json_patch(resource, run.namespace, name, write.operations)
        except (ConflictError, GoneError, ApiUnavailableError):
            return False
        except ApiRefusedError as error:
            if error.status != _INVALID or write in self._refused:
                raise ConfigurationError(f"cannot change {write.plural} {name}: {error}") from error
            # A test has failed, or a policy refuses it. Then the next plan is the same, because it knows the object.
            with suppress(GoneError, ApiUnavailableError):
                if resource == PODS:
                    await self._cluster.look_again(name)  # another one may have its name by now
                else:
                    self._record(run, resource, await self._client.get(resource, run.namespace, name))
                await self._known.read_revisions()
                self._refused.append(write)
            return False
        released = self._record(run, resource, made)
        self._known.released = self._known.released or released
        return True

    def _record(self, run: Run, resource: Resource, obj: Mapping[str, Any]) -> bool:
        """Record an object of the adoption. Return whether it is the workload, and no run holds its controller."""
        meta = mapping(obj.get("metadata"))
        if resource == PODS:
            self._cluster.pod_written(obj)
        elif text(meta.get("uid")) == run.target.uid:
            self._known.workload_written(obj)
            return LABEL_ADOPTING not in mapping(meta.get("labels"))
        return False


async def delete_pull_pods(client: KubeClient, namespace: str, run: str) -> int:
    """Delete all pull pods of a run. Return how many there were."""
    where = Where(namespace=namespace, label_selector=f"{LABEL_PULL}={run}")
    found = [each for each in (await client.list_all(PODS, read_pull_pod, **where)).items if each.run == run]
    await _each(_delete(client, namespace, each.name, each.uid) for each in found)
    return len(found)


async def release_runs(client: KubeClient, namespace: str, policy: str, keep: str) -> None:
    """Clean up after the runs of a policy (UID), except the run `keep`, which is carried out.

    The requests of pods that do not get the image end, and pull pods are deleted. This needs a right that the namespace
    may have taken back, so it is the last. A user who resumes one of the runs gets them again. Raises
    ApiUnavailableError and ApiRefusedError.
    """
    requests = Where(namespace=namespace, label_selector=LABEL_RUN)
    asked = (await client.list_all(REQUESTS, read_run_request, **requests)).items
    own = (each for each in asked if each is not None and each.run.options.policy == policy)
    await stop_requests(client, (each for each in own if each.run.name != keep), set())
    pods = Where(namespace=namespace, label_selector=f"{LABEL_PULL_POLICY}={policy}")
    pulls = (await client.list_all(PODS, read_pull_pod, **pods)).items
    await _each(_delete(client, namespace, each.name, each.uid) for each in pulls if each.run not in ("", keep))


async def stop_requests(client: KubeClient, requests: Iterable[RunRequest], ended: set[str]) -> None:
    """End those that are open, for another image, of pods that do not have it. Their names are added to `ended`.

    A pod that has the image keeps its request, which drains it and sees its restart. The node may not know that yet.
    Each is tried before the error of one is raised: ApiUnavailableError or ApiRefusedError.
    """
    await _each(_stop_request(client, each, ended) for each in requests)


async def _stop_request(client: KubeClient, asked: RunRequest, ended: set[str]) -> None:
    change, request, namespace = asked.run.options.image, asked.request, asked.run.namespace
    if change is None or request.completed or request.stopped:
        return
    with suppress(GoneError, ConflictError):
        pod = parse_pod(await client.get(PODS, namespace, request.pod_name))
        found = pod.containers.get(asked.run.options.containers[0])
        if pod.uid == request.pod_uid and (found is None or found.image != change.image):
            body = {"metadata": {"annotations": {ANNOTATION_STOPPED: "true"}}}
            await client.merge_patch(REQUESTS, namespace, request.name, body)
            ended.add(request.name)


async def _delete_pull_pod(client: KubeClient, namespace: str, pull: PullPod) -> None:
    if pull.name:
        await _delete(client, namespace, pull.name, pull.uid)


async def _delete(client: KubeClient, namespace: str, name: str, uid: str) -> None:
    with suppress(GoneError, ConflictError):
        await client.delete(PODS, namespace, name, uid=uid, grace_seconds=0)


async def _each(calls: Iterable[Awaitable[object]]) -> None:
    """Do all of this, and then raise the first error."""
    for each in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(each, BaseException):
            raise each
