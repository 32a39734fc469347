"""The stage of a pod that has no request of a run, or whose request does not count any more. See `standing`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from crrd.core.rollout.kind import Kind
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.rows import Row
from crrd.core.rollout.skips import skips, wanted
from crrd.core.rollout.state import Member
from crrd.core.rollout.waits import NO_WAIT, Skip, Wait, wait_for_node


@dataclass(frozen=True)
class Candidate:
    """What is known of a pod that has no request, or whose request does not count any more."""

    kind: Kind
    member: Member
    failed: RunRequest | None = None  # A request that has failed, if the pod gets another one because of that

    @cached_property
    def skip(self) -> tuple[Skip | None, str]:
        """Why the pod is skipped, and its container."""
        return next(skips(self.kind, self.member, self.failed), (None, ""))

    @property
    def refusal(self) -> str | None:
        """Why the API server has refused its request."""
        return self.kind.world.refused.get(self.member.pod.uid)

    @property
    def wait_for_skip(self) -> Wait:
        """Why it is skipped."""
        skip, container = self.skip
        pod = self.member.pod
        return Wait.of(skip, container=container, pod=pod.name, namespace=pod.namespace) if skip else NO_WAIT

    @cached_property
    def wait_for_node(self) -> Wait:
        """Why its node cannot restart containers now."""
        return wait_for_node(self.kind.world, self.member.pod.node_name)

    @property
    def row(self) -> Row:
        """Its row."""
        stage, wait = next((stage, wait(self)) for holds, stage, wait in CANDIDATES if holds(self))
        pod, is_skipped = self.member.pod, stage is Stage.SKIPPED
        chosen = () if is_skipped else wanted(self.kind.run, self.member)
        names = tuple(each.name for each in chosen if self.kind.skip(self.member, each, self.failed) is None)
        skip = self.skip[0] if is_skipped else None
        return Row(pod.name, pod.uid, stage, wait, pod.node_name, self.member, self.failed, names, skip)


CANDIDATES: tuple[tuple[Callable[[Candidate], bool], Stage, Callable[[Candidate], Wait]], ...] = (
    (lambda pod: pod.refusal is not None, Stage.FAILED, lambda pod: Wait(pod.refusal or "")),
    (lambda pod: pod.skip[0] is not None, Stage.SKIPPED, lambda pod: pod.wait_for_skip),
    (lambda pod: bool(pod.wait_for_node.why), Stage.PUT_OFF, lambda pod: pod.wait_for_node),
    (lambda _: True, Stage.WAITING, lambda _: NO_WAIT),
)
"""The rules for pods without a request: what holds, the stage, and the wait. The first one that holds counts."""
