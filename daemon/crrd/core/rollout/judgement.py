"""The judgement of a step: whether its pods stay ready, without another restart, and what metrics say.

It is found again for each plan, from the pods' statuses. The progress of the run says besides whether the pods of the
step have been done, so that one which is unready has fallen, and whether the judgement was no, because it stays no.
What the metrics have said is known to a process (`World.measured`). One that has not asked them waits until it has.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from crrd.core.api.images import is_tag_of, read_image_name
from crrd.core.api.pod import PodContainer
from crrd.core.api.reasons import Reason
from crrd.core.api.time import format_duration, parse_time
from crrd.core.api.types import StatePhase
from crrd.core.rollout.kind import Kind
from crrd.core.rollout.phases import End, RunPhase, Stage
from crrd.core.rollout.progress import Progress
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.rows import Row
from crrd.core.rollout.state import Member
from crrd.lib.plain import and_more

_NAMED = 3  # Most pods that a refusal names


@dataclass(frozen=True)
class Judgement:
    """What is known of the pods of a step."""

    kind: Kind
    rows: Sequence[Row]  # Its pods that the run has started
    now: datetime
    last: Progress | None  # What is recorded last of the run, if it is about this step

    @property
    def was_no(self) -> bool:
        """Whether it is recorded that the judgement of this step is no."""
        return self.last is not None and self.last.end is End.HALTED

    @property
    def has_pods(self) -> bool:
        """Whether any of its pods is there, and stays."""
        return any(row.member is not None and row.member.counts for row in self.rows)

    @cached_property
    def refusal(self) -> str:
        """Why the judgement is no, "" if it is not."""
        if self.last is not None and self.was_no:
            return self.last.waits
        found = [why for row in self.rows if (why := self._against(row))]
        if found:
            return and_more(found[:_NAMED], len(found) - _NAMED)
        measured, options = self.kind.world.measured, self.kind.run.options
        if measured is None or not options.metrics_digest:
            return ""
        if measured.holds is False:
            return measured.words
        if measured.unknown > options.failure_limit:
            return f"metrics are not known, {measured.unknown} times in a row: {measured.words}"
        return ""

    @cached_property
    def _restarted(self) -> Sequence[tuple[Row, RunRequest]]:
        """The pods whose request has succeeded. Those for which it has failed are a matter of `max_failures`."""
        return [(row, row.request) for row in self.rows if row.request is not None and row.request.succeeded]

    @property
    def is_over(self) -> bool:
        """Whether the pods have been ready for long enough, and the metrics hold after that."""
        if not self._restarted:
            return True
        if self.ends_at > self.now:
            return False
        measured = self.kind.world.measured
        return not self.kind.run.options.metrics_digest or (
            measured is not None and measured.holds is True and measured.at >= self.ends_at
        )

    @cached_property
    def ends_at(self) -> datetime:
        """When the pods have been ready for long enough, by the clocks of their kubelets and of the API server."""
        times = [parse_time(self.kind.run.started)]
        for row, asked in self._restarted:
            times += [row.member.ready_since] if row.member is not None else []
            times += [parse_time(asked.request.status.completion_time)]
        last = max(at for at in times if at is not None)
        return last + timedelta(seconds=self.kind.run.options.judge)

    @property
    def detail(self) -> str:
        """What the metrics have said last, as the end of a sentence."""
        measured = self.kind.world.measured
        return f" ({measured.words})" if measured is not None and measured.words else ""

    @property
    def others(self) -> str:
        """How many other pods have what the run brings, because they have started by themselves meanwhile."""
        run, own = self.kind.run, {row.uid for row in self.rows}
        began = parse_time(run.started)
        found = [each for each in self.kind.world.members if each.pod.uid not in own and _started_after(each, began)]
        asked = {row.request.pod_uid for row in self.kind.world.requests_of(run)}
        count = sum(1 for each in found if each.pod.uid not in asked)
        more = f"{count} more pod{'s have' if count > 1 else ' has'}"
        return f"{more} started without the run since it began; " if count else ""

    @cached_property
    def _requests(self) -> Mapping[str, Sequence[RunRequest]]:
        """The requests of all runs, by pod (UID)."""
        found: dict[str, list[RunRequest]] = {}
        for each in self.kind.world.requests:
            found.setdefault(each.request.pod_uid, []).append(each)
        return found

    def _against(self, row: Row) -> str:
        """Return what speaks against a pod, or ""."""
        return next(self._reasons(row), "")

    def _reasons(self, row: Row) -> Iterator[str]:
        options, asked, member = self.kind.run.options, row.request, row.member
        if asked is None or member is None or member.pod.deleting:
            return  # a pod that is being deleted becomes unready, and may be Failed at last
        if member.pod.phase == "Failed":
            yield f"{row.pod} has failed, for example because kubelet has evicted it"
        is_late = row.stage is Stage.FAILED and row.has_reason(Reason.DEADLINE)
        if is_late and _is_new(asked, member) and not member.ready:
            yield f"{row.pod} is not ready {format_duration(options.pod_timeout)} after its restart"
        if member.pod.ended or (asked.request.completed and not asked.succeeded):
            return
        requests = self._requests.get(row.uid, ())
        restarts = _restarts(asked, member, requests)
        own = restarts - _restarts_after(asked, requests)
        if own > options.max_restarts:
            again = "once more" if own == 1 else "again" if _replaces(asked) else f"{own} times more"
            yield f"{row.pod} has restarted {again}{_last_words(row, member)}"
        if not asked.succeeded or row.stage is not Stage.SETTLING or member.ready:
            return
        had_rest = self.last is not None and self.last.phase in (RunPhase.JUDGING, RunPhase.PAUSED)
        if had_rest and not restarts and all(each.request.completed for each in requests):
            yield f"{row.pod} has become unready again"
        completed = parse_time(asked.request.status.completion_time)
        if completed is not None and completed + timedelta(seconds=options.pod_timeout) <= self.now:
            yield f"{row.pod} is not ready {format_duration(options.pod_timeout)} after its restart"


def _is_new(asked: RunRequest, member: Member) -> bool:
    """Whether a pod has another instance of a container than the one that the run was to restart.

    For an image, the pod must have it: without it, the container may have crashed.
    """
    for each in asked.request.containers:
        now = member.pod.containers.get(each.name)
        if now is None or each.context is None or now.container_id == each.context.container_id:
            continue
        if not each.image or now.has_image(each.image):
            return True
    return False


def _replaces(asked: RunRequest) -> bool:
    """Whether the containers of a request are replaced some time after their restart counts were recorded."""
    return asked.request.whole_pod or any(each.image for each in asked.request.containers)


def _restarts(asked: RunRequest, member: Member, requests: Sequence[RunRequest]) -> int:
    """Return how often the containers of a pod have restarted since the run restarted them.

    A request for an image, or for the whole pod, restarts them long after admission has recorded their restart counts.
    If they have crashed in between, the counts are higher, so they count only once a later instance has ended. How many
    of the restarts were earlier is not known then. `requests` are all for the pod. Those for other containers have not
    restarted this one. Nor have those that failed before they stopped it, where a request says that.
    """
    count, replaces = 0, _replaces(asked)
    for each in asked.request.containers:
        container = member.pod.containers.get(each.name)
        if container is None or each.context is None:
            continue
        others = [one for one in requests if one.request.uid != asked.request.uid and _may_restart(one, each.name)]
        if replaces and any(not one.request.completed for one in others):
            continue  # a restart by that one looks the same
        if replaces and not _has_ended_since(_completed(asked, others), container, each.image):
            continue
        own = not asked.keeps(each.name)
        count += max(0, container.restart_count - each.context.restart_count - own)
    return count


def _may_restart(asked: RunRequest, name: str) -> bool:
    """Whether a request restarts a container, or has done so.

    What kubelet stops, for an image or a whole pod, is not recorded. So such a request counts, also if it has failed.
    """
    request = asked.request
    is_meant = request.whole_pod or any(each.name == name for each in request.containers)
    state = request.status.state(name)
    return is_meant and (state.phase is not StatePhase.FAILED or state.started or _replaces(asked))


def _completed(asked: RunRequest, others: Iterable[RunRequest]) -> datetime | None:
    """Return when a container was last restarted by a request, at the latest: by this one, or by one of the others.

    None if this request has not succeeded.
    """
    if not asked.succeeded:
        return None
    times = (parse_time(each.request.status.completion_time) for each in (asked, *others))
    return max((at for at in times if at is not None), default=None)


def _has_ended_since(completed: datetime | None, container: PodContainer, image: str) -> bool:
    """Whether an instance of a container has ended that has run since requests restarted it. All times are of its node.

    Before they have succeeded, that is certain only for one that is down, and is shown with the image.
    """
    started, ended = parse_time(container.started_at), parse_time(container.finished_at)
    if completed is not None:
        return started > completed if started is not None else ended is not None and ended >= completed
    name = read_image_name(image)
    is_shown = name.is_of(container.image_id) or is_tag_of(name, container.image_shown)
    return not container.running and container.has_image(image) and bool(is_shown)


def _restarts_after(own: RunRequest, requests: Iterable[RunRequest]) -> int:
    """Return how many restarts of a pod's containers since `own` are those of later requests for the pod."""
    counts = {each.name: each.context.restart_count for each in own.request.containers if each.context is not None}
    asked = {
        (each.name, each.context.restart_count)
        for other in requests
        for each in other.request.containers
        if each.context is not None and _may_restart(other, each.name)
    }
    return sum(1 for name, count in asked if name in counts and count > counts[name])


def _last_words(row: Row, member: Member) -> str:
    """Return the exit code of the container that has ended last, as the end of a sentence."""
    there = (member.pod.containers.get(name) for name in row.containers)
    codes = [f"{each.name} ended with {each.exit_code}" for each in there if each is not None and each.exit_code]
    return f" ({', '.join(codes)})" if codes else ""


def _started_after(member: Member, began: datetime | None) -> bool:
    """Whether a container of a pod has started after this time."""
    times = (parse_time(each.started_at) for each in member.pod.recreatable.values())
    return began is not None and any(at is not None and at > began for at in times)
