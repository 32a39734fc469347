"""The kind of run whose containers reload their files, and are not stopped. See Kind for what its methods return.

It is the plain restart in order and budgets. Each pod gets the annotation for which kubelet refreshes its files, and
its request names that annotation. The node daemon then waits until kubelet has done so, has the container reload, and
waits until it is ready. Nothing shows later that a container has reloaded, other than its request.
"""

from crrd.core.api.pod import PodContainer
from crrd.core.api.types import StatePhase
from crrd.core.recreate.declared import undeclared
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.restart import Restart
from crrd.core.rollout.rows import Row
from crrd.core.rollout.state import Member
from crrd.core.rollout.waits import Skip


class Reload(Restart):
    """See Kind."""

    refresh_seconds = 0.0  # the node daemon waits

    def skip(self, member: Member, container: PodContainer, failed: RunRequest | None) -> Skip | None:
        """See Kind. A container that has started since has read its files then."""
        if undeclared(member.pod, container.name):
            return Skip.CANNOT_RELOAD
        daemon = (self.world.daemons or {}).get(member.pod.node_name)
        if daemon is not None and not daemon.reloads:
            return Skip.OLD_DAEMON
        if not self.has_instance(container):
            return Skip.NOT_RUNNING
        if failed is not None and failed.request.status.state(container.name).phase is StatePhase.FAILED:
            return None
        recent = self.is_recent(container)
        if self.run.options.objects and self.is_concerned(member, container):
            return None
        return Skip.RECENT if recent else Skip.FRESH if self.run.options.objects else None

    def _token(self, row: Row) -> str:
        return self.run.refresh_token(row.failed)
