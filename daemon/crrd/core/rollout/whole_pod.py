"""The kind of run that restarts whole pods in place, with their init containers. See Kind for what its methods return.

It is the plain restart in all else: order, budgets, refreshed files, and when a pod is done. Admission names all
containers of the pod in its requests, so a pod is done once all are back.
"""

from collections.abc import Iterable, Iterator

from crrd.core.api.pod import ContainerKind, PodContainer
from crrd.core.api.reasons import Reason
from crrd.core.api.time import parse_time
from crrd.core.api.types import Pin, StatePhase
from crrd.core.config.objects import changes
from crrd.core.config.references import Reference
from crrd.core.recreate.sandbox_view import RUNTIMES, unfit
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.restart import Restart
from crrd.core.rollout.skips import barred
from crrd.core.rollout.state import Member
from crrd.core.rollout.waits import Skip

_OF_REASON = {
    Reason.POD_WOULD_END: Skip.POD_WOULD_END,
    Reason.HOOK_NEEDS_IP: Skip.HOOK_NEEDS_IP,
    Reason.HOST_NETWORK: Skip.HOST_NETWORK,
    Reason.RESTARTS_TWICE: Skip.RESTARTS_TWICE,
}


def never_in_place(
    member: Member, container: PodContainer, minor: int | None, *, allow_pod_restart: bool = False
) -> Skip | None:
    """Return why the whole pod can never be restarted in place because of this container, None if it can.

    The parameters are as in `barred`.
    """
    if container.kind is ContainerKind.EPHEMERAL:
        return None
    if message := unfit(member.pod, minor, (container,)):
        return _OF_REASON[message.reason]
    if container.container_id and Pin(container.container_id).runtime not in RUNTIMES:
        return Skip.OTHER_RUNTIME
    return barred(member.pod, container, minor, allow_pod_restart=allow_pod_restart)


class WholePod(Restart):
    """See Kind."""

    beside = (ContainerKind.INIT,)

    def skip(self, member: Member, container: PodContainer, failed: RunRequest | None) -> Skip | None:
        """See Kind. What is true of the whole pod is returned for each of its containers."""
        options, minor = self.run.options, self.minor_of(member)
        why_not = never_in_place(member, container, minor, allow_pod_restart=options.allow_pod_restart)
        if container.kind.recreatable and not container.container_id:
            return why_not or Skip.NOT_STARTED
        if failed is not None and any(each.phase is StatePhase.FAILED for each in failed.request.status.states):
            return why_not
        own = [each for each in member.pod.containers.values() if each.kind is not ContainerKind.EPHEMERAL]
        starts = [parse_time(each.started_at) for each in own]
        recent = self.since is not None and all(at is not None and at > self.since for at in starts)
        if options.objects:
            if not any(self._lacks_change(member, each.name) for each in own if each.kind is ContainerKind.INIT):
                return Skip.POD_RECENT if recent else Skip.POD_FRESH
        elif recent:
            return Skip.POD_RECENT
        if options.stale and not any(self._is_stale(member, name) for name in member.config):
            return Skip.POD_FRESH
        return why_not

    def _lacks_change(self, member: Member, name: str) -> bool:
        """Whether an init container has run without one of the run's changes."""
        started, uses = member.started(name), member.config.get(name, ())
        return started is not None and self._misses_change(uses, started, member.mounted(name))

    def _is_stale(self, member: Member, name: str) -> bool:
        container, kept = member.pod.containers[name], self.world.kept_on(member)
        return bool(changes(member.config[name], container, self.world.config, kept))

    def _changed_files(self, containers: Iterable[str], member: Member) -> Iterator[Reference]:
        """See Restart. The files of all containers count."""
        yield from super()._changed_files(member.config, member)
