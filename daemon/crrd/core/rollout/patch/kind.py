"""The kind of run that restarts containers by a patch of their pods. See Kind for what its methods return.

It is the plain restart in all else: order, budgets, and when a pod is done. What a patch cannot restart is skipped.
"""

from typing import ClassVar

from crrd.core.api.pod import ContainerKind, PodContainer
from crrd.core.api.types import GROUP, Strategy
from crrd.core.rollout.patch.operations import START_SECONDS, runs_other_image, spelling_of
from crrd.core.rollout.phases import End
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.restart import Restart
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import Options
from crrd.core.rollout.state import Member
from crrd.core.rollout.waits import NO_WAIT, Skip, Wait, WaitReason
from crrd.kubelet.restart_rules import RestartPolicy, keeps_sidecars
from crrd.kubelet.version import known_minor


class PatchRestart(Restart):
    """See Kind."""

    needs_daemon: ClassVar[bool] = False

    def skip(self, member: Member, container: PodContainer, failed: RunRequest | None) -> Skip | None:
        """See Kind, and `unfit`."""
        if (why_not := super().skip(member, container, failed)) is not None:
            return why_not
        minor = known_minor(self.world.kubelets.get(member.pod.node_name, ""))
        return unfit(member, container, minor, self.run.options)

    def wait_before_end(self, rows: tuple[Row, ...], end: End) -> Wait:
        """See Kind. Kubelet may not be able to start a container, and nobody else gives it its image back."""
        waits = [row.pod for row in rows if row.has_open_request]
        return Wait.of(WaitReason.NOT_STARTED, pods=", ".join(waits)) if waits else NO_WAIT

    def has_instance(self, container: PodContainer) -> bool:
        """See Restart. The patch ends the back-off of one that crashes."""
        crashes = container.terminated or container.waiting_reason == "CrashLoopBackOff"
        return super().has_instance(container) or (crashes and bool(container.container_id))


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
    if container.policy(minor) is not RestartPolicy.ALWAYS:
        return Skip.NOT_ALWAYS
    if container.kind is ContainerKind.SIDECAR and keeps_sidecars(minor):
        return Skip.KEPT
    if options is not None and Strategy().grace(member.pod.grace_seconds) + START_SECONDS > options.pod_timeout:
        return Skip.LONG_GRACE
    return Skip.NO_SPELLING if container.image_id and not spelling_of(member, container) else None
