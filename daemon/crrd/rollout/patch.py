"""Restarts containers by patches of their pods (`core.rollout.patch`), and gives images back that cannot be started."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

from crrd.core.api.types import StatePhase
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.rollout.patch.operations import (
    foreign_image,
    give_back,
    give_images_back,
    proceed,
    record_of,
    restart,
)
from crrd.core.rollout.patched import status_of
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import LABEL_RUN, Run
from crrd.core.rollout.state import Member, read_member
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.resources import PODS, REQUESTS
from crrd.lib.backoff import retry_delay
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, ConflictError, GoneError
from crrd.lib.jsonpatch import Operation
from crrd.rollout.attempt import attempt
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import RunDisplay
from crrd.rollout.kind import Maker
from crrd.rollout.process import has_other
from crrd.rollout.refresher import FileObjects, FileRefresher
from crrd.rollout.refusals import INVALID, ends_run
from crrd.rollout.side_by_side import SideBySide, each_of


class PodPatcher(Maker):
    """Restarts the containers of a pod by a patch, which records the request on the pod."""

    what = "patch the pod"

    def __init__(self, client: KubeClient, cluster: Cluster) -> None:
        self._client, self._cluster = client, cluster

    async def make(self, run: Run, row: Row, body: Mapping[str, Any], now: str, ending: Iterable[RunRequest]) -> bool:
        """See Maker. Nothing ends other runs: what they have patched is awaited."""
        if why := await self.refusal(run, row, body, now):
            await self._check_unchanged(row)
            raise ApiRefusedError(why, status=INVALID)
        _, made = await self._patch(row, body, now)
        self._cluster.written(made)
        return True

    async def refusal(self, run: Run, row: Row, body: Mapping[str, Any], now: str) -> str:
        """See Maker. A webhook that changes the image would make kubelet start another one, or none."""
        assert row.member is not None  # noqa: S101 - the pod is there
        return changes_by_webhooks(row.member, *await self._patch(row, body, now, dry_run=True))

    async def _patch(
        self, row: Row, body: Mapping[str, Any], now: str, *, dry_run: bool = False
    ) -> tuple[Sequence[Operation], Mapping[str, Any]]:
        """Patch the pod. Return the patch, and the pod after it."""
        member = row.member
        assert member is not None  # noqa: S101 - the pod is there
        operations = restart(member, body, now)
        try:
            made = await self._client.json_patch(PODS, member.pod.namespace, row.pod, operations, dry_run=dry_run)
        except GoneError as error:
            raise ConflictError(str(error), status=409) from error  # the next plan is without the pod
        except ApiRefusedError as error:
            if error.status == INVALID:
                await self._check_unchanged(row)
            raise
        return operations, made

    async def _check_unchanged(self, row: Row) -> None:
        """Raise ConflictError if the pod has changed since the row was made."""
        if await self._cluster.look_again(row.pod, row.uid) != row.member:
            raise ConflictError(f"pod {row.pod} has changed meanwhile", status=409)


def changes_by_webhooks(before: Member, operations: Iterable[Operation], tried: Mapping[str, Any]) -> str:
    """Return what webhooks make of a patch of a pod, after a dry run of it; "" for nothing that matters."""
    foreign = foreign_image(before, read_member(tried, with_config=False), operations)
    return f"a webhook changes the image of container {foreign}" if foreign else ""


class PatchWriter(FileRefresher):
    """The steps of a run by patches: those of a plain restart, the next of several containers, and images back."""

    def __init__(
        self, client: KubeClient, cluster: Cluster, known: FileObjects, display: RunDisplay, clock: ServerClock
    ) -> None:
        """The first parameters are those of FileRefresher."""
        super().__init__(client, cluster, known, display)
        self._clock = clock
        self.maker = PodPatcher(client, cluster)
        self._patches = SideBySide(cluster.changed.set)
        self._sent: set[str] = set()  # Pods (UID) whose patch is under way
        self._failures: dict[str, int] = {}  # By pod (UID): patches that have failed in a row
        self._problems: dict[str, str] = {}  # By pod (UID): why its last patch has failed, until the next one

    @property
    def problem(self) -> str:
        """See KindWriter."""
        return next(iter(self._problems.values()), "")

    async def carry_out(self, run: Run, plan: Plan) -> None:
        """See KindWriter. A run that waits before its end begins no further containers."""
        self._patches.raise_error()
        now, ends = self._clock.now(), bool(plan.wait_before_end.why)
        for member in self._own(run):
            if back := give_back(member, now):
                self._patches.begin(member.pod.uid, partial(self._try, member, back))
            elif not ends and (operations := proceed(member, now)):
                self._patches.begin(member.pod.uid, partial(self._try, member, operations, dry_run=True))
        await super().carry_out(run, plan)

    async def end(self) -> None:
        """See KindWriter."""
        await self._patches.stop(but=self._sent)

    async def cancel(self) -> None:
        """See KindWriter."""
        await super().cancel()
        await self._patches.stop()

    async def clean_up(self, seconds: float) -> str:
        """See KindWriter. The last pods may still need their images back."""
        problem = await attempt(self._give_all_back, seconds, self._display)
        return problem and f"containers that kubelet cannot start could not get their images back: {problem}"

    def _own(self, run: Run) -> list[Member]:
        known = ((each, each.patched) for each in self._cluster.world().members)
        return [each for each, asked in known if asked is not None and asked.run.name == run.name]

    async def _give_all_back(self) -> None:
        now = self._clock.now()
        due = ((each, give_back(each, now)) for each in self._cluster.world().members)
        await each_of(self._send(member, operations) for member, operations in due if operations)

    async def _try(self, member: Member, operations: Sequence[Operation], *, dry_run: bool = False) -> None:
        """Patch a pod. After a failure, wait: the next plan decides again, and at its deadline the pod has failed.

        `dry_run`: try it first, because of webhooks. Raises ConfigurationError if the run cannot go on.
        """
        uid = member.pod.uid
        self._sent.add(uid)
        try:
            if dry_run:
                await self._dry_run(member, operations)
            await self._send(member, operations)
        except (ApiUnavailableError, ApiRefusedError) as error:
            if isinstance(error, ApiRefusedError) and ends_run(error):
                raise ConfigurationError(str(error)) from error
            self._sent.discard(uid)
            failures = self._failures[uid] = self._failures.get(uid, 0) + 1
            self._problems[uid] = f"cannot {self.maker.what}, retrying: {error}"
            self._cluster.changed.set()
            await asyncio.sleep(retry_delay(error, failures))
        else:
            self._failures.pop(uid, None)
        finally:
            self._sent.discard(uid)
            self._problems.pop(uid, None)

    async def _dry_run(self, member: Member, operations: Sequence[Operation]) -> None:
        with suppress(GoneError):  # which the write says, too
            tried = await self._client.json_patch(PODS, member.pod.namespace, member.pod.name, operations, dry_run=True)
            if why := changes_by_webhooks(member, operations, tried):
                raise ApiRefusedError(why, status=INVALID)

    async def _send(self, member: Member, operations: Sequence[Operation]) -> None:
        """Patch a pod, unless it has changed, which the next plan sees."""
        try:
            made = await self._client.json_patch(PODS, member.pod.namespace, member.pod.name, operations)
        except GoneError:
            return
        except ApiRefusedError as error:
            if error.status == INVALID and await self._cluster.look_again(member.pod.name, member.pod.uid) != member:
                return
            raise
        self._cluster.written(made)


async def end_restarts(
    client: KubeClient, namespace: str, carried_on: Callable[[], Collection[str]], now: datetime
) -> bool:
    """Give containers images back that kubelet cannot start: of policies' runs that nobody carries on, and of requests.

    A request gives its images back itself while it is there, if this manager carries out requests. Return whether a
    restart has not ended yet. The parameters and errors are those of `release_runs`.
    """
    known = await client.list_all(PODS, _read, namespace=namespace, label_selector=LABEL_RUN)
    asked = [(each, each.patched.at(now)) for each in known.items if each.patched is not None]
    of_policies = [(each, patched) for each, patched in asked if patched.run.options.policy]
    requests = [patched for _, patched in of_policies]
    users = {name for name in {each.run.name for each in requests} if has_other(requests, name, now)}
    keep = {*carried_on(), *users}
    left = [(each, give_back(each, now), patched) for each, patched in of_policies if patched.run.name not in keep]
    lost, awaited = await _of_requests(client, namespace, known.items)
    patches = [*((member, operations) for member, operations, _ in left if operations), *lost]
    await each_of(_patch_unchanged(client, member, operations) for member, operations in patches)
    return bool(users or awaited or lost) or any(operations or patched.is_open for _, operations, patched in left)


async def _of_requests(
    client: KubeClient, namespace: str, members: Iterable[Member]
) -> tuple[list[tuple[Member, tuple[Operation, ...]]], bool]:
    """Return patches for pods whose record names a request that is gone or has ended, and whether others may follow."""
    records = [(each, record) for each in members if (record := record_of(each)) is not None and record.uid]
    if not records:
        return [], False
    requests = (await client.list_all(REQUESTS, parse_request, namespace=namespace)).items
    live = {each.uid for each in requests if each.live}
    found, awaited = list[tuple[Member, tuple[Operation, ...]]](), False
    for member, record in records:
        states = {each.name: each for each in status_of(record, member.pod).states}
        awaited |= any(not each.phase.final for each in states.values())
        failed = {name: each for name, each in states.items() if each.phase is StatePhase.FAILED}
        if operations := give_images_back(member, failed):
            awaited |= record.uid in live
            found += [] if record.uid in live else [(member, operations)]
    return found, awaited


async def namespaces_with_restarts(client: KubeClient) -> set[str]:
    """Return the namespaces with pods that a policy's run or the manager has patched."""
    known = (await client.list_all(PODS, _read, label_selector=LABEL_RUN)).items
    own = (each for each in known if each.patched is None or each.patched.run.options.policy)
    return {each.pod.namespace for each in own}


def _read(obj: Mapping[str, Any]) -> Member:
    return read_member(obj, with_config=False)


async def _patch_unchanged(client: KubeClient, member: Member, operations: Sequence[Operation]) -> None:
    """Patch a pod, unless it has changed since it was read."""
    try:
        await client.json_patch(PODS, member.pod.namespace, member.pod.name, operations)
    except GoneError:
        return
    except ApiRefusedError as error:
        if error.status != INVALID:
            raise
