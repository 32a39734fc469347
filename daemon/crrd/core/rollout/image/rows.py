"""What a run with an image knows of its pods in addition: who has the image, and why a pod cannot get it.

The rules are an ordered table. The first one that holds replaces the stage of the row, or only what it waits for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

from crrd.core.api.pod import ContainerKind
from crrd.core.api.time import parse_time
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.pull import PullPod, PullState, lacking
from crrd.core.rollout.image.steps import is_over, is_present, may_start
from crrd.core.rollout.kind import Kind
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.rows import Row
from crrd.core.rollout.state import Member
from crrd.core.rollout.waits import NO_WAIT, Skip, Wait, WaitReason, describe_pod, wait_for_node

_NEVER_RAN = -1  # The restart count before that of a container's first instance


@dataclass(frozen=True)
class Pod:
    """What is known of a pod that exists and has the container."""

    facts: ImageRun
    row: Row
    member: Member
    failures: Mapping[str, str]  # Nodes that cannot pull the image, with kubelet's message
    unreplaced: bool  # Whether kubelet must replace the container, because the pod has another image
    now: datetime

    @property
    def image(self) -> str:
        """The image in the pod's spec."""
        return self.facts.image_of(self.member)

    @property
    def lacks_image(self) -> bool:
        """Whether this is not the image of the run."""
        return self.facts.lacks_image(self.row)

    @property
    def skipped_with_image(self) -> bool:
        """Whether the pod was skipped because it has the image."""
        return self.row.skip is Skip.HAS_IMAGE

    @property
    def begins(self) -> bool:
        """Whether the pod is next, or is about to get the image."""
        return self.row.stage is Stage.WAITING or (self.row.stage.under_way and self.lacks_image)

    @property
    def was_given(self) -> bool:
        """Whether this process gave it the image, and it is not ready since. Somebody has deleted its request."""
        return self.row.uid in self.facts.state.sent and not self.member.ready

    @cached_property
    def wait_for_node(self) -> Wait:
        """Why its node cannot replace the container now."""
        return wait_for_node(self.facts.world, self.row.node)

    @property
    def is_overdue(self) -> bool:
        """Whether it has been unready for longer than a request may take."""
        since, limit = self.member.ready_since, timedelta(seconds=self.facts.run.options.pod_timeout)
        return since is not None and self.now >= since + limit

    @property
    def is_foreign(self) -> bool:
        """Whether somebody else has given it another image."""
        concerned = may_start(self.row) or self.row.stage.under_way or self.row.stage is Stage.DONE
        return concerned and self.facts.is_foreign(self.member)

    @property
    def pull(self) -> PullPod | None:
        """The pull pod that has done its work on its node."""
        found = self.facts.pulls.get(self.row.node) if self.facts.change.pulls else None
        return found if found is not None and is_over(found) else None

    @property
    def is_refused(self) -> bool:
        """Whether the API server has rejected the pull pod of its node."""
        return self.row.node in self.failures and self.facts.pulls[self.row.node].state is PullState.REFUSED

    @cached_property
    def lacking(self) -> str:
        """The fields in which the pull pod differs from it."""
        pull = self.pull if self.begins else None
        return lacking(pull, self.member, self.facts.container) if pull is not None else ""

    @cached_property
    def failure(self) -> WaitReason | None:
        """Why it has failed after its request has succeeded, None if it has not.

        Only an end of the instance that has succeeded counts: with the image from before, the container may have
        crashed.
        """
        asked = self.row.request
        if asked is None or not asked.succeeded or not asked.request.resource_version:
            return None  # without a version, it is one of a preview, and the pod is as it was
        if asked.request.uid in self.facts.world.retried and self.row.stage not in (Stage.SETTLING, Stage.DONE):
            return None
        request, container = asked.request, self.member.pod.containers[self.facts.container]
        pin = next((each.context for each in request.containers if each.context is not None), None)
        if container.kind is ContainerKind.INIT:  # it ends each time, and kubelet may count its restarts from 0
            is_next = pin is None or pin.container_id != container.container_id
            return WaitReason.SET_BACK if self.lacks_image and is_next else None
        restarts = container.restart_count - (pin.restart_count if pin is not None else _NEVER_RAN)
        started, completed = parse_time(container.started_at), parse_time(request.status.completion_time)
        ended = not container.running or (started is not None and completed is not None and started > completed)
        if restarts < 1 or not container.container_id or not (ended or pin is not None):
            return None  # the pod as it is known here may be older
        if self.lacks_image:
            return WaitReason.SET_BACK
        return WaitReason.ENDED_AGAIN if restarts > 1 and ended else None

    def wait(self, reason: WaitReason) -> Wait:
        """Return a wait with all that is known of the pod."""
        pull, node = self.pull, self.row.node
        values = {
            "container": self.facts.container,
            "image": self.image if reason in _OWN_IMAGE else self.facts.image,
            "node": node,
            "message": self.failures.get(node, ""),
            "pull": pull.name if pull is not None else "",
            "fields": self.lacking,
        }
        return Wait.of(reason, describe_pod(self.member) if reason in _DESCRIBED else "", **values)


_OWN_IMAGE = (WaitReason.FOREIGN_IMAGE, WaitReason.SET_BACK, WaitReason.ENDED_AGAIN)
"""Sentences that name the image which the pod has."""
_DESCRIBED = (*_OWN_IMAGE, WaitReason.NOT_REPLACED, WaitReason.NOT_READY)


@dataclass(frozen=True)
class Rule:
    """A rule for pods of a run with an image."""

    holds: Callable[[Pod], bool]
    stage: Stage | None  # None if the row keeps its stage
    wait: Callable[[Pod], Wait]


def _because(reason: WaitReason) -> Callable[[Pod], Wait]:
    return lambda pod: pod.wait(reason)


RULES = (
    Rule(
        lambda pod: pod.skipped_with_image and pod.unreplaced and bool(pod.wait_for_node.why),
        Stage.PUT_OFF,
        lambda pod: pod.wait_for_node,
    ),
    Rule(lambda pod: pod.skipped_with_image and pod.unreplaced, Stage.RECREATING, _because(WaitReason.NOT_REPLACED)),
    Rule(
        lambda pod: pod.skipped_with_image and pod.was_given and pod.is_overdue,
        Stage.FAILED,
        _because(WaitReason.NOT_READY),
    ),
    Rule(lambda pod: pod.skipped_with_image and pod.was_given, Stage.RECREATING, _because(WaitReason.NOT_READY)),
    Rule(
        lambda pod: pod.row.uid in pod.facts.world.refused and pod.row.stage.under_way and pod.lacks_image,
        Stage.FAILED,
        lambda pod: Wait(pod.facts.world.refused[pod.row.uid]),
    ),
    Rule(lambda pod: pod.is_foreign, Stage.FAILED, _because(WaitReason.FOREIGN_IMAGE)),
    Rule(lambda pod: pod.begins and pod.is_refused, Stage.FAILED, _because(WaitReason.PULL_REFUSED)),
    Rule(lambda pod: pod.begins and pod.row.node in pod.failures, Stage.FAILED, _because(WaitReason.PULL_FAILED)),
    Rule(lambda pod: bool(pod.lacking), Stage.FAILED, _because(WaitReason.PULLED_OTHERWISE)),
    Rule(lambda pod: pod.failure is not None, Stage.FAILED, lambda pod: pod.wait(pod.failure or WaitReason.REPORTED)),
    Rule(
        lambda pod: pod.row.stage.under_way and is_present(pod.facts, pod.row),  # what the request says ends now
        None,
        lambda pod: pod.wait(WaitReason.SETTING_IMAGE) if pod.lacks_image else NO_WAIT,
    ),
)
"""The first one that holds counts."""


def image_rows(kind: Kind, facts: ImageRun, rows: tuple[Row, ...], now: datetime) -> tuple[Row, ...]:
    """Return the rows, with what is known of the image."""
    pulls, limit = facts.pulls.values() if facts.change.pulls else (), facts.run.options.pod_timeout
    failures = {each.node: why for each in pulls if (why := each.failure(now, limit)) is not None}

    def judged(row: Row) -> Row:
        member = row.member
        if member is None or not facts.image_of(member) or not member.counts:
            return row
        if row.stage.under_way and row.request is None:  # it is being created, and keeps its place until it is known
            return row
        pod = Pod(facts, row, member, failures, (row.uid, facts.container) in kind.unreplaced, now)
        rule = next((rule for rule in RULES if rule.holds(pod)), None)
        if rule is None:
            return row
        found = replace(row, stage=rule.stage or row.stage, wait=rule.wait(pod))
        return replace(found, skip=None, containers=(facts.container,)) if pod.skipped_with_image else found

    found = map(judged, rows)
    return tuple(replace(row, needs_step=True) if facts.needs_step(row) else row for row in found)
