"""What a run with an image knows of the cluster, in addition to its pods and requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from crrd.core.rollout.image.pull import PullPod
from crrd.core.rollout.image.template import NO_TEMPLATE, Revision, Template
from crrd.core.rollout.state import Extra


@dataclass(frozen=True, slots=True)
class ImageState(Extra):
    """The pull pods of all runs of the namespace, and the workload's template."""

    pulls: tuple[PullPod, ...] = ()
    template: Template = NO_TEMPLATE
    revisions: tuple[Revision, ...] | None = None  # None if they were not read yet
    container: str = ""  # The container whose image `template` and `revisions` have
    released: bool = False  # Whether this process has released the workload's controller
    sent: Mapping[str, str] = field(default_factory=dict)
    """Pods (UID) to which this process has given the image, and the ID of the container that kubelet replaces."""

    @property
    def own_revisions(self) -> list[Revision]:
        """The workload's own revisions, the newest first."""
        own = (each for each in self.revisions or () if each.owner == self.template.uid)
        return sorted(own, key=lambda each: each.number, reverse=True)

    @property
    def active(self) -> list[Revision]:
        """The ReplicaSets of a Deployment that have pods. Of one without pods, the newest."""
        own = self.own_revisions
        return [each for each in own if each.replicas] or own[:1]
