"""The kind of run that restarts containers by a patch of their pods. See Kind for what its methods return.

It is the plain restart in all else: order, budgets, and when a pod is done. What a patch cannot restart is skipped.
"""

from collections.abc import Iterable
from typing import ClassVar

from crrd.core.api.pod import ContainerKind, PodContainer
from crrd.core.api.types import GROUP, StatePhase
from crrd.core.rollout.patch.operations import runs_other_image, spelling_of
from crrd.core.rollout.patched import most_seconds
from crrd.core.rollout.phases import End
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.restart import Restart
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import Options
from crrd.core.rollout.skips import wanted
from crrd.core.rollout.state import Member
from crrd.core.rollout.waits import Skip, Wait, WaitReason
from crrd.kubelet.restart_rules import RestartPolicy, keeps_sidecars

_UNFIT = (Skip.INJECTED, Skip.NOT_ALWAYS, Skip.KEPT, Skip.LONG_GRACE, Skip.CHANGED, Skip.NO_SPELLING)
"""Why a patch cannot restart a container that a node daemon may restart."""


class PatchRestart(Restart):
    """See Kind."""

    needs_daemon: ClassVar[bool] = False

    def skip(self, member: Member, container: PodContainer, failed: RunRequest | None) -> Skip | None:
        """See Kind, and `unfit`."""
        if (why_not := super().skip(member, container, failed)) is not None:
            return why_not
        minor = self.minor_of(member)
        return unfit(member, container, minor, self.run.options)

    def wait_before_end(self, rows: tuple[Row, ...], end: End) -> Wait:
        """See Kind. Kubelet may not be able to start a container, and nobody else gives it its image back."""
        waits = [row.pod for row in rows if _is_begun(row)]
        waiting = Wait.of(WaitReason.NOT_STARTED, pods=", ".join(waits))
        return waiting if waits else super().wait_before_end(rows, end)

    def left_out(self, rows: Iterable[Row]) -> list[str]:
        """See Kind: what a patch could not restart, also beside containers of the same pod that it has restarted."""
        left = [f"{row.pod}: {row.wait.why}" for row in rows if row.skip in _UNFIT]
        for row in rows:
            if row.skip is None and row.member is not None and row.member.counts:
                unfit = ((self.skip(row.member, each, None), each.name) for each in wanted(self.run, row.member))
                left += [f"{row.pod}: {skip.say(container=name)}" for skip, name in unfit if skip in _UNFIT]
        return left

    def has_instance(self, container: PodContainer) -> bool:
        """See Restart. The patch ends the back-off of one that crashes."""
        crashes = container.terminated or container.waiting_reason == "CrashLoopBackOff"
        return super().has_instance(container) or (crashes and bool(container.container_id))


def _is_begun(row: Row) -> bool:
    """Whether kubelet has yet to start a container of a pod. The next ones of a run in order are begun no more."""
    states = row.request.request.status.states if row.request is not None else ()
    return row.has_open_request and any(each.phase is StatePhase.RECREATING for each in states)


def unfit(member: Member, container: PodContainer, minor: int | None, options: Options | None = None) -> Skip | None:
    """Return why a patch cannot restart a container now, None if it can. The parameters are as in `never_patched`."""
    if (why_not := never_patched(member, container, minor, options)) is not None:
        return why_not
    if runs_other_image(member, container):
        return Skip.CHANGED
    return None if spelling_of(member, container) else Skip.NO_SPELLING


def never_patched(
    member: Member, container: PodContainer, minor: int | None, options: Options | None = None
) -> Skip | None:
    """Return why a patch can never restart a container, None if it can. `minor` is that of its kubelet, if known.

    Kubelet may not start one again whose restartPolicy is not Always, and keeps some sidecars. `options` are those of
    the run, None for a request, which has its own deadline.
    """
    if member.pod.static_uid:
        return Skip.STATIC
    if member.owner is not None and member.owner.api_version.partition("/")[0] == GROUP:
        return Skip.OF_KRUISE
    if container.injected:
        return Skip.INJECTED
    if container.policy(minor) is not RestartPolicy.ALWAYS:
        return Skip.NOT_ALWAYS
    if container.kind is ContainerKind.SIDECAR and keeps_sidecars(minor):
        return Skip.KEPT
    if options is not None and _most_seconds(member, options) > options.pod_timeout:
        return Skip.LONG_GRACE
    return Skip.NO_SPELLING if container.image_id and not spelling_of(member, container) else None


def _most_seconds(member: Member, options: Options) -> int:
    """Return after how many seconds kubelet has started all of the run's containers again, at the latest."""
    there = member.pod.recreatable
    count = sum(name in there for name in options.containers or there)
    return most_seconds(member.pod, count, ordered=options.ordered)
