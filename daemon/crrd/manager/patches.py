"""Carries out requests by patches of their pods, where no node daemon serves them. `core.patching` decides.

It is a part of the lifecycle controller, whose rounds are one at a time for a pod, and works on what that knows. While
a request is under way, it reads the pod by name, often at first, and then less often. So it needs no watch of pods.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from crrd.core.api.pod import Pod
from crrd.core.api.types import Request
from crrd.core.lifecycle import steps as lc
from crrd.core.patching.steps import SHORTEST_SECONDS, PatchPod, Step, next_step
from crrd.core.patching.view import Seen, View
from crrd.core.policy.triggers import PATCH_ROLE, grant
from crrd.core.recreate.actions import EmitEvent
from crrd.core.recreate.decide import serving_order
from crrd.core.rollout.patch.operations import record_of
from crrd.core.rollout.skips import kubelet_matters
from crrd.core.rollout.state import Member, read_member
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.kubelet_version import KubeletVersions
from crrd.kube.resources import PODS
from crrd.lib.errors import ApiRefusedError, ConflictError, CrrdError, GoneError
from crrd.rollout.daemons import has_daemon
from crrd.rollout.patch import changes_by_webhooks
from crrd.rollout.refusals import INVALID, lacks_right

log = structlog.get_logger(__name__)

UNAUTHORIZED = 401
_MOST_STEPS = 12  # Writes in one round of a request, far more than there are

Read = Callable[[str, Sequence[Request]], Awaitable[Mapping[str, Any] | None]]
Write = Callable[[Request, lc.RequestAction], Awaitable[Request | None]]
Act = Callable[[EmitEvent | PatchPod], None]
Deadline = tuple[float, str]  # Seconds until it, and how messages name it


@dataclass(frozen=True, slots=True)
class Served:
    """What a round has come to."""

    held: Collection[str] = ()  # UIDs of the requests that must keep their finalizer
    wait: float | None = None  # Seconds until the next round
    failure: CrrdError | None = None  # The first error of a request. The others of the pod were carried out


NOTHING = Served()


class RequestPatches:
    """Carries out the requests of pods by patches. The caller runs one round at a time for each pod."""

    def __init__(
        self, client: KubeClient, clock: ServerClock, account: str, *, read: Read, write: Write, act: Act
    ) -> None:
        """Set up, without starting anything.

        Args:
            client: for the pods.
            clock: the API server's time.
            account: the manager's ServiceAccount as `namespace:name`, for the command that grants it a right.
            read: reads the pod of these requests, None if it does not exist.
            write: carries out a write of a request, and returns the request after it, None if it has changed meanwhile.
            act: called with each event, and with each patch after the API server has accepted it.
        """
        self._client, self._clock, self._account = client, clock, account
        self._read, self._write, self._act = read, write, act
        self._kubelets = KubeletVersions(client)
        self._seen: dict[str, dict[str, Seen]] = {}  # By pod: by request (UID), while it is under way

    async def serve(self, key: str, requests: Sequence[Request], deadline: Callable[[Request], Deadline]) -> Served:
        """Carry out what is due for the requests of a pod. `deadline` returns that of a request.

        Raises CrrdError; then all requests must keep their finalizers.
        """
        live = sorted((each for each in requests if each.live and each.pod_uid), key=serving_order)
        ended = [each for each in requests if each.has_finalizer and not each.live]
        obj = await self._read(key, (*ended, *live)) if live or ended else None
        if obj is None:
            self._seen.pop(key, None)
            return NOTHING
        member = read_member(obj, with_config=False)
        live = [each for each in live if each.pod_uid == member.pod.uid]
        own = [*(each for each in ended if each.pod_uid == member.pod.uid), *live]
        before = self._seen.get(key, {})
        self._seen[key] = {each.uid: before.get(each.uid, Seen()) for each in own}
        held, waits, failure = set[str](), list[float](), None
        record = record_of(member)
        begun = record is not None and record.uid in [each.uid for each in live]
        served = bool(live) and not begun and await has_daemon(self._client, member.pod.node_name)
        minor = await self._minor(member.pod) if own else None
        for request in own:
            left, words = deadline(request)
            facts = {
                "first": request in live[:1],
                "served": served,
                "deadline": words,
                "left": left,
                "kubelet_minor": minor,
            }
            try:
                step, member = await self._carry_out(key, request, member, facts)
            except CrrdError as error:
                failure = failure or error
                held.add(request.uid)
                continue
            if step.held:
                held.add(request.uid)
            if step.wait is not None:
                waits.append(step.wait)
        return Served(held, min(waits, default=None), failure)

    async def _minor(self, pod: Pod) -> int | None:
        return await self._kubelets.minor(pod.node_name) if kubelet_matters(pod, for_image=True) else None

    async def _carry_out(
        self, key: str, request: Request, member: Member, facts: Mapping[str, Any]
    ) -> tuple[Step, Member]:
        """Carry out the steps of a request, until it has to wait. Return the last step, and the pod after it."""
        memory = self._seen[key]
        for _ in range(_MOST_STEPS):
            now = self._clock.monotonic()
            seen = memory[request.uid] = memory[request.uid].after(request, member, now)
            step = next_step(View(request, member, seen, now=now, utc=self._clock.now(), **facts))
            match step.action:
                case None:
                    return step, member
                case PatchPod() as patch:
                    made, refused = await self._patch(member, patch)
                    member = made or member
                    if refused:
                        memory[request.uid] = replace(seen, refused=refused)
                        continue
                    if made is None:
                        return Step(step.turn, wait=SHORTEST_SECONDS, held=True), member
                    log.info("pod patched", request=request.key, pod=key, back=patch.back)
                    self._act(patch)
                case action:
                    written = await self._write(request, action)
                    if written is None:
                        return Step(step.turn, held=True), member
                    request = written
            for event in step.events:
                self._act(event)
        raise AssertionError("a request needs fewer steps")

    async def _patch(self, member: Member, patch: PatchPod) -> tuple[Member | None, str]:
        """Patch the pod. Return it after that, and why the API server refuses it. None: it has changed meanwhile."""
        pod = member.pod
        try:
            if not patch.back:
                tried = await self._send(pod, patch, dry_run=True)
                if why := changes_by_webhooks(member, patch.operations, tried):
                    return None, "" if await self._has_changed(member) else why
            return read_member(await self._send(pod, patch), with_config=False), ""
        except (GoneError, ConflictError):
            return None, ""
        except ApiRefusedError as error:
            if error.status == INVALID and await self._has_changed(member):
                return None, ""
            if patch.back or error.status == UNAUTHORIZED:
                raise
            return None, self._why(error, pod.namespace)

    async def _send(self, pod: Pod, patch: PatchPod, *, dry_run: bool = False) -> Mapping[str, Any]:
        return await self._client.json_patch(PODS, pod.namespace, pod.name, patch.operations, dry_run=dry_run)

    async def _has_changed(self, member: Member) -> bool:
        try:
            newest = await self._client.get(PODS, member.pod.namespace, member.pod.name)
        except GoneError:
            return True
        return read_member(newest, with_config=False) != member

    def _why(self, error: ApiRefusedError, namespace: str) -> str:
        """Return why the API server refuses a patch, with the command that grants the right if that is missing."""
        if not lacks_right(error):
            return " ".join(str(error).split())
        command = grant(namespace, PATCH_ROLE, self._account)
        return f"the manager may not patch pods in this namespace; to allow it: {command}"
