"""The requests of runs, read from JSON, and what they record about their run."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from crrd.core.api.reasons import Reason
from crrd.core.api.time import parse_time, rfc3339
from crrd.core.api.types import (
    ANNOTATION_REQUESTED_BY,
    ANNOTATION_STOPPED,
    Request,
    RequestPhase,
    StatePhase,
    Status,
)
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.rollout.change import read_image_change
from crrd.core.rollout.progress import ANNOTATION_PROGRESS, Progress, read_progress
from crrd.core.rollout.run import ANNOTATION_RUN, LABEL_RUN, RUN_NAME, STORED_VERSION, Options, Run, Target, read_amount
from crrd.core.rollout.run_limits import ANNOTATION_LIMITS, fits, with_limits
from crrd.lib.jsonfields import items, mapping, number, text

_SHARED_RUNS, _SHARED_CHARACTERS = 64, 4096
"""How many runs are kept for other requests that record the same, and how long a record may be. What a user writes
must not fill the memory: it may take 20 times as much once it is read."""
STOPPED: Mapping[str, Any] = {"metadata": {"annotations": {ANNOTATION_STOPPED: "true"}}}
"""The merge patch after which the manager ends an open request for another image. The request is kept for an undo."""


class GivenImage(NamedTuple):
    """An image that a run gives to a container of a pod, so that kubelet replaces the container."""

    pod_uid: str
    container: str
    image: str
    replaced: str  # The ID of the container that is to be replaced, "" if it has never run


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request of a run, and what it records about the run."""

    request: Request
    run: Run
    progress: Progress | None = None  # None if it was not written here
    creator: str = ""  # The user who has created the request; "" if admission has not said so
    on_pod: bool = False  # Whether it is kept on its pod, and is no object of its own (`patched`)
    next_seconds: int = 0
    """How long kubelet may take to start the next container, if those before it are ready again; 0 if none is next."""

    def at(self, now: datetime) -> "RunRequest":
        """Return the request as it is at this time. The manager ends requests at their deadline, but not these.

        The next container fails earlier: it would get its image back while it is stopped, and be restarted twice.
        """
        if not self.on_pod or self.request.completed or (created := parse_time(self.request.created)) is None:
            return self
        seconds = self.run.options.pod_timeout
        ends = created + timedelta(seconds=seconds)
        last = ends - timedelta(seconds=min(self.next_seconds, seconds))
        if self.next_seconds and now > last:
            why = Reason.TOO_LATE.say(deadline=f"{seconds}s", seconds=self.next_seconds)
            return self._failed(Reason.TOO_LATE, why, rfc3339(last))
        if now < ends:
            return self
        return self._failed(Reason.DEADLINE, Reason.DEADLINE.say(deadline=f"{seconds}s", waited=""), rfc3339(ends))

    def without_pod(self) -> "RunRequest":
        """Return the request as it is once its pod is gone."""
        if self.request.completed:
            return self
        return self._failed(Reason.POD_GONE, Reason.POD_GONE.say(), self.request.created)

    def _failed(self, why: Reason, message: str, at: str) -> "RunRequest":
        """Return the request after the containers that are not finished have failed."""
        states = tuple(
            each if each.phase.final else replace(each, phase=StatePhase.FAILED, message=message, reason=why)
            for each in self.request.status.states
        )
        status = Status(RequestPhase.COMPLETED, states, message, at, why)
        return replace(self, request=replace(self.request, status=status))

    @property
    def first_name(self) -> str:
        """The name of the run's first request for the pod. Retries have this name and a number (`Run.request_name`)."""
        return self.request.name.partition(".")[0]

    @property
    def succeeded(self) -> bool:
        """Whether every container was recreated."""
        states = self.request.status.states
        return self.request.completed and bool(states) and all(each.phase == "Succeeded" for each in states)

    def keeps(self, name: str) -> bool:
        """Whether a container stays the instance that it was: it reloads, or kubelet did not replace it."""
        return self.request.reloads or self.request.status.state(name).reason is Reason.IMAGE_KEPT

    @property
    def given(self) -> Iterator[GivenImage]:
        """The images that it is for."""
        for each in self.request.containers:
            if each.image:
                old = each.context.container_id if each.context is not None else ""
                yield GivenImage(self.request.pod_uid, each.name, each.image, old)

    @property
    def ended_runs(self) -> frozenset[str]:
        """The names of the runs that go no further because of it: its own if it was aborted, and one that is undone."""
        aborted = self.run.name if self.request.aborted else ""
        return frozenset(filter(None, (aborted, self.run.options.change.undoes)))

    @property
    def is_open(self) -> bool:
        """Whether it has not ended, and nobody is about to end it."""
        return not (self.request.completed or self.request.stopped)

    @property
    def started(self) -> bool:
        """Whether the node has started to work on it."""
        return self.request.status.phase is RequestPhase.RECREATING

    @property
    def created_at(self) -> datetime | None:
        """When it was created, by the API server's clock."""
        return parse_time(self.request.created)

    @property
    def age(self) -> tuple[str, str]:
        """Sort key, the oldest first."""
        return self.request.created, self.request.name

    @property
    def lifetime(self) -> tuple[bool, str, tuple[str, str]]:
        """Sort key, the first to be deleted first: the TTL counts from the completion."""
        return not self.request.completed, self.request.status.completion_time or "", self.age


def read_run_request(obj: Mapping[str, Any]) -> RunRequest | None:
    """Parse a request of a run. Return None if it belongs to no run, or its annotation is invalid.

    The run's image, and whether it restarts whole pods or reloads, must be those of the spec, which nobody can change.
    """
    meta = mapping(obj.get("metadata"))
    annotations, name = mapping(meta.get("annotations")), text(mapping(meta.get("labels")).get(LABEL_RUN))
    written = (text(annotations.get(each)) for each in (ANNOTATION_RUN, ANNOTATION_LIMITS))
    annotation, limits = written
    read = _shared_run if len(annotation) + len(limits) <= _SHARED_CHARACTERS else _read_run
    if (run := read(text(meta.get("namespace")), name, annotation, limits)) is None:
        return None
    options = run.options
    progress, request = read_progress(text(annotations.get(ANNOTATION_PROGRESS))), parse_request(obj)
    if request.whole_pod is not options.whole_pod or request.reloads is not options.reload:
        return None
    gets = [each for each in request.containers if each.image or not request.whole_pod]
    if any(each.image != options.change.fields.get("image", "") for each in gets):
        return None
    return RunRequest(request, run, progress, text(annotations.get(ANNOTATION_REQUESTED_BY)))


def _read_run(namespace: str, name: str, annotation: str, limits: str) -> Run | None:
    """Parse what a request records of its run."""
    try:
        shape = mapping(json.loads(annotation))
        started, raw = text(shape.get("started")), dict(mapping(shape.get("options")))
        raw |= {key: tuple(map(text, items(raw.get(key)))) for key in ("containers", "objects")}
        raw["steps"] = tuple(items(raw.get("steps")))
        raw["max_unavailable"] = read_amount(text(raw.get("max_unavailable")))
        image = read_image_change(raw.pop("image", None))
        if number(shape.get("version")) > STORED_VERSION:
            return None
        target, options = Target(**mapping(shape.get("target"))), Options(**raw)
    except (ValueError, TypeError, RecursionError):
        return None
    sound = fits(target, Target("")) and fits(options, Options(())) and parse_time(started) is not None
    if not sound or not _names_containers(options) or not RUN_NAME.fullmatch(name):
        return None
    if not options.has_valid_numbers or (image is not None and len(options.containers) != 1):
        return None
    parts = namespace, name, target, replace(options, image=image), started
    run = Run(*parts, number(shape.get("revision")), text(shape.get("partition")), text(shape.get("steps")))
    return with_limits(run, limits) if limits else run


_shared_run = lru_cache(_SHARED_RUNS)(_read_run)
"""The requests of a run record the same, so they share one object."""


def _names_containers(options: Options) -> bool:
    """Whether a run with these options names containers, or needs no names."""
    return bool(options.containers or options.stale or options.whole_pod or options.reload)


def creator_of(requests: Iterable[RunRequest]) -> str:
    """Return the user who has written what the run of `newest_run` does."""
    return min(requests, key=lambda each: each.age).creator


def newest_run(requests: Iterable[RunRequest]) -> Run:
    """Return the run of the oldest request, with the options that were changed last.

    A younger request with another aim was not written by the run: who may write requests may not have its rights.
    """
    first, *others = sorted(requests, key=lambda each: each.age)
    own = (first, *(each for each in others if each.run.aim == first.run.aim))
    return max(own, key=lambda each: (each.run.revision, each.age)).run


def longest_lived(requests: Iterable[RunRequest]) -> RunRequest:
    """Return the request that will be deleted last. What a run or a user records about the run is kept there."""
    return max(requests, key=lambda each: each.lifetime)


def last_progress(requests: Iterable[RunRequest]) -> Progress | None:
    """Return the progress that was written last, None if there is none. An end is later than others of its second.

    A later step is later even if the clock was set back meanwhile.
    """
    newest_first = sorted(requests, key=lambda each: each.age, reverse=True)
    written = (each.progress for each in newest_first if each.progress is not None)
    return max(written, key=lambda each: (each.steps, each.at, each.end is not None), default=None)
