"""Carries out the steps of a run with an image: pull pods, the patches of pods, and the adoption by the workload.

Each write is bound to what was decided on by the tests of its JSON patch. If it is not accepted, the next plan decides
again from fresh reads. So it does not matter whether the response to a write arrives.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from crrd.core.api.pod import parse_pod
from crrd.core.rollout.image.controllers import Write
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.pull import PullPod, PullState, read_pull_pod
from crrd.core.rollout.image.steps import ImageActions, patch_of
from crrd.core.rollout.image.template import LABEL_ADOPTING
from crrd.core.rollout.phases import RunPhase
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.requests import STOPPED
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import Run
from crrd.core.rollout.state import World
from crrd.kube.client import KubeClient
from crrd.kube.resources import PODS, REQUESTS, Resource
from crrd.lib.backoff import retry_delay
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, ConflictError, GoneError
from crrd.lib.jsonfields import mapping, text
from crrd.lib.supervise import cancel
from crrd.rollout.attempt import attempt
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import RunDisplay
from crrd.rollout.image.clean_up import CleanUp, unknown_holder
from crrd.rollout.image.leftovers import delete_pull_pod, name_and_uid
from crrd.rollout.image.objects import ImageObjects
from crrd.rollout.image.pulls import create_pull_pod
from crrd.rollout.kind import KindWriter
from crrd.rollout.maker import RequestMaker
from crrd.rollout.refusals import INVALID, ends_run
from crrd.rollout.side_by_side import SideBySide, each_of

T = TypeVar("T")
_PARALLEL = 16
_PAUSE_SECONDS = 0.5  # After a write that was not accepted, so that the watches can catch up


def _without_world(run: Run) -> ImageRun:
    """Return what is enough to look at one pod."""
    return ImageRun.of(World(()), run)


class ImageWriter(KindWriter):
    """The writes of one run with an image. See KindWriter for what its methods do."""

    def __init__(
        self, client: KubeClient, cluster: Cluster, known: ImageObjects, run: Run, display: RunDisplay
    ) -> None:
        """`known` are the cluster's objects for images."""
        self._client, self._cluster, self._known = client, cluster, known
        self._display, self._clean_up = display, CleanUp(client, run, display)
        self.maker = RequestMaker(client, cluster)
        self._patches = SideBySide(cluster.changed.set)
        self._chosen: dict[str, Row] = {}  # By UID: the pods that get the image by the newest plan
        self._sent: set[str] = set()  # Those of them whose patch is under way
        self._pulls = SideBySide(cluster.changed.set)  # By node
        self._creating: set[str] = set()  # The nodes whose pull pod is being created
        self._refusals: dict[str, int] = {}  # By node: how often in a row its pull pod was refused
        self._problems: dict[str, str] = {}  # By node: why its pull pod was refused, until it is tried again
        self._writes: set[asyncio.Task[Any]] = set()  # Writes of the adoption that are under way
        self._refused: list[Write] = []  # Writes of the adoption that were refused, before the objects were read again

    async def begin(self, run: Run) -> None:
        """Delete the run's pull pods that have not pulled, so that they are tried again, with their whole time."""
        known = ImageRun.of(self._cluster.world(), run).pulls.values()
        await each_of(self._drop(run, each) for each in known if each.state is not PullState.PULLED)

    async def carry_out(self, run: Run, plan: Plan) -> None:
        """Carry out what is due. Patches of pods, and pull pods, are only begun.

        Raises ConfigurationError if waiting cannot help.
        """
        self._patches.raise_error()
        self._pulls.raise_error()
        actions, written = plan.actions if isinstance(plan.actions, ImageActions) else ImageActions(), True
        self._chosen = {row.uid: row for row in actions.patch}
        for uid in self._chosen:
            self._patches.begin(uid, partial(self._patch_chosen, run, uid))
        for node in actions.pull[:_PARALLEL]:
            self._pulls.begin(node, partial(self._pull, run, node, plan))
        with suppress(ApiUnavailableError):  # the next plan says so again
            await each_of(self._stop_request(run, row) for row in actions.stop)
        await each_of(self._drop(run, each) for each in actions.drop)
        if actions.adoption is not None and not self._sent:
            for write in actions.adoption.writes:
                written = await self._uninterrupted(self._adopt(run, write)) and written
            with suppress(ApiUnavailableError):
                await self._known.read_revisions()
        if not written:
            await asyncio.sleep(_PAUSE_SECONDS)

    async def end(self) -> None:
        """Begin nothing more. Return when the response to each write that was sent is there."""
        self._chosen = {}
        await self._patches.stop(but=self._sent)
        await self._pulls.stop(but=self._creating)
        if self._writes:
            await asyncio.wait(self._writes)

    async def cancel(self) -> None:
        """Stop at once."""
        await self._patches.stop()
        await self._pulls.stop()
        await cancel(self._writes)

    @property
    def problem(self) -> str:
        """See KindWriter."""
        return next(iter(self._problems.values()), "")

    @property
    def unfinished(self) -> str:
        """See KindWriter."""
        return self._clean_up.unfinished

    async def clean_up(self, seconds: float) -> str:
        """See KindWriter."""
        return await self._clean_up.finish(seconds)

    async def look_back(self, run: Run, plan: Plan, seconds: float) -> str:
        """See KindWriter: the workload, in the middle of an adoption."""
        if plan.phase not in (RunPhase.ADOPTING, RunPhase.RELEASING):
            return ""
        error = await attempt(self._known.read_workload, seconds, self._display, "reading the workload")
        return unknown_holder(run, error) if error else ""

    async def _uninterrupted(self, write: Coroutine[Any, Any, T]) -> T:
        """Return the result of a write. If the caller is interrupted, the write goes on, and `end` waits for it."""
        task = asyncio.create_task(write)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return await asyncio.shield(task)

    async def _pull(self, run: Run, node: str, plan: Plan) -> None:
        """Create the pull pod of a node, like a pod of the run there.

        After a refusal, the run of a policy waits, and tries again, because nobody would resume it: quotas are raised,
        and other pull pods go.
        """
        facts = ImageRun.of(self._cluster.world(), run)
        rows = (row for row in plan.rows if row.node == node and row.member is not None)
        pod = next((row for row in rows if row.containers and facts.is_left(row)), None)
        try:
            like = await self._client.get(PODS, run.namespace, pod.pod) if pod is not None else {}
            if pod is None or name_and_uid(like) != (pod.pod, pod.uid):  # there is none by now, or another of its name
                await asyncio.sleep(_PAUSE_SECONDS)
                return
            self._creating.add(node)
            made = await create_pull_pod(self._client, run, node, facts.image, like)
        except (ConflictError, GoneError, ApiUnavailableError):  # it may exist, or that pod may not: the watches say so
            self._creating.discard(node)
            await asyncio.sleep(_PAUSE_SECONDS)
        except ApiRefusedError as error:
            self._creating.discard(node)
            if ends_run(error):
                raise ConfigurationError(str(error)) from error
            if run.options.policy:
                await self._wait_after(node, error)
            else:
                self._known.pull_refused(run, node, str(error))
        else:
            self._refusals.pop(node, None)
            self._known.pull_written(made)
            if (found := read_pull_pod(made).image) != facts.image:  # the next plan deletes it
                why = f"a webhook sets {found} in the pod that pulls instead of {facts.image}"
                self._known.pull_refused(run, node, why)
        finally:
            self._creating.discard(node)

    async def _wait_after(self, node: str, error: ApiRefusedError) -> None:
        """Wait before the next attempt, and show why."""
        refusals = self._refusals[node] = self._refusals.get(node, 0) + 1
        self._problems[node] = f"cannot create the pod that pulls the image on node {node}, retrying: {error}"
        self._cluster.changed.set()
        try:
            await asyncio.sleep(retry_delay(error, refusals))
        finally:
            del self._problems[node]

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
            made = await self._client.json_patch(PODS, run.namespace, row.pod, patch_of(_without_world(run), row))
        except GoneError:
            return False
        except ApiRefusedError as error:
            self._chosen = {}
            if ends_run(error):
                raise ConfigurationError(str(error)) from error
            known = await self._cluster.look_again(row.pod, row.uid)
            if error.status != INVALID or known == row.member:  # else a test has failed, and the next plan decides
                self._cluster.refused(row.uid, str(error))
            return False
        except ApiUnavailableError:
            with suppress(ApiUnavailableError):  # else the watch says whether the pod has it
                await self._cluster.look_again(row.pod, row.uid)
            return False
        self._cluster.pod_written(made)
        found = parse_pod(made).containers[run.options.containers[0]].image
        if (given := run.options.change.label) != found:
            self._cluster.refused(row.uid, f"a webhook sets {found} in this pod instead of {given}")
        return found == given

    async def _stop_request(self, run: Run, row: Row) -> None:
        """End a pod's request, unless the pod has just got the image: it drains the pod and sees it restart."""
        if row.request is None:
            return
        with suppress(GoneError, ConflictError):
            present = replace(row, member=await self._cluster.look_again(row.pod, row.uid))
            if not _without_world(run).has_image(present):
                name = row.request.request.name
                self._cluster.written(await self._client.merge_patch(REQUESTS, run.namespace, name, STOPPED))

    async def _drop(self, run: Run, pull: PullPod) -> None:
        with suppress(ApiUnavailableError):  # the next plan says so again, or the end of the run
            await delete_pull_pod(self._client, run.namespace, pull)

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
            if error.status != INVALID or write in self._refused:
                raise ConfigurationError(f"cannot change {write.plural} {name}: {error}") from error
            # A test has failed, or a policy refuses it. Then the next plan is the same, because it knows the object.
            with suppress(GoneError, ApiUnavailableError):
                if resource == PODS:
                    await self._cluster.look_again(name, write.uid)  # another one may have its name by now
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
