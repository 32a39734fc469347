"""The kind of run that gives an init container another image, and restarts the whole pods.

Kubelet does nothing when the image of an init container changes, because that runs only when the pod starts. All else
is as in `NewImage`: pull, request, patch, adoption. The request is for the whole pod, and the node restarts it once it
has the image (docs/contract.md, step 16).
"""

from crrd.core.api.pod import ContainerKind, PodContainer
from crrd.core.rollout.image.kind import NewImage
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.state import Member
from crrd.core.rollout.waits import Skip
from crrd.core.rollout.whole_pod import never_in_place


class NewInitImage(NewImage):
    """See Kind."""

    def skip(self, member: Member, container: PodContainer, failed: RunRequest | None) -> Skip | None:
        """See Kind. A pod that has the image, and has not run its init container with it, is restarted."""
        if container.kind is not ContainerKind.INIT:
            return Skip.NO_INIT
        if self.facts.image_of(member) == self.facts.image and self.facts.has_run(member):
            return Skip.HAS_IMAGE
        minor = self.minor_of(member)
        allow = self.run.options.allow_pod_restart
        for each in member.pod.containers.values():
            if why_not := never_in_place(member, each, minor, allow_pod_restart=allow):
                return why_not
        return Skip.NOT_RUNNING if self.facts.is_starting(member) else None
