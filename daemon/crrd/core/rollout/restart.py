"""The plain kind of run: it restarts containers as they are.

If the data of mounted files has changed, kubelet refreshes the files of a pod before the restart. kubelet refreshes the
files of a ConfigMap or Secret about once a minute, and when it syncs a pod whose annotations have changed. Otherwise,
a restarted container can read the old file, and the first start of a container with `subPath` can fail
(kubernetes#68211). So a run that restarts because data has changed sets an annotation first. Its token identifies the
change, so a process that continues the run does not set it again.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import ClassVar

from crrd.core.api.pod import PodContainer
from crrd.core.api.time import parse_time
from crrd.core.api.types import StatePhase
from crrd.core.config.objects import changes
from crrd.core.config.parts import held_since, parts_of, read_change
from crrd.core.config.references import Reference
from crrd.core.recreate.reload import REFRESH_SECONDS
from crrd.core.rollout.kind import NO_ACTIONS, Actions, Choice, Kind, Prepared
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import Run
from crrd.core.rollout.skips import barred, wanted
from crrd.core.rollout.state import Extra, Member, World
from crrd.core.rollout.waits import Skip, Wait, WaitReason

_MOST = 3
"""Most refreshes of a pod before its restart, so that data which changes all the time does not keep it waiting."""


@dataclass(frozen=True, slots=True)
class FileRefresh:
    """The last refresh of a pod's files before its restart."""

    token: str
    age: float  # Seconds since this process set the annotation, or found that the pod has it
    count: int = 1  # Refreshes of the pod by this process
    problem: str = ""  # Why the annotation could not be set; the pod is restarted without


@dataclass(frozen=True, slots=True)
class Files(Extra):
    """What a process knows of refreshes. Without it, as in a preview, pods start without any."""

    refreshes: Mapping[str, FileRefresh] = field(default_factory=dict)  # By pod (UID): the last one


@dataclass(frozen=True, slots=True)
class FileActions(Actions):
    """Pods whose files are refreshed now, each with its token."""

    due: tuple[tuple[Row, str], ...] = ()
    starting: tuple[tuple[Row, str], ...] = ()  # Pods that the run leaves, because kubelet is about to start them again

    @property
    def begins_with(self) -> tuple[str, ...]:
        """See Actions."""
        return tuple(row.uid for row, _ in self.due)

    def for_started(self) -> Actions:
        """See Actions."""
        return NO_ACTIONS


class Restart(Kind):
    """See Kind."""

    refresh_seconds: ClassVar[float] = REFRESH_SECONDS  # From the annotation to the request

    def __init__(self, world: World, run: Run) -> None:
        super().__init__(world, run)
        self.rescues = bool(run.options.objects)  # a pod may be unready because of the data from before the change

    def skip(self, member: Member, container: PodContainer, failed: RunRequest | None) -> Skip | None:
        """See Kind."""
        options, minor = self.run.options, self.minor_of(member)
        why_not = barred(member.pod, container, minor, allow_pod_restart=options.allow_pod_restart)
        if not self.has_instance(container):
            return why_not if why_not is Skip.NEVER else Skip.NOT_RUNNING
        if failed is not None and failed.request.status.state(container.name).phase is StatePhase.FAILED:
            return why_not
        recent, uses = self.is_recent(container), member.config.get(container.name, ())
        if options.objects and parse_time(container.started_at) is not None:
            if not self.is_concerned(member, container):
                return Skip.RECENT if recent else Skip.FRESH
        elif recent:
            return Skip.RECENT
        if options.stale and not changes(uses, container, self.world.config, self.world.kept_on(member)):
            return Skip.FRESH
        return why_not

    def is_concerned(self, member: Member, container: PodContainer) -> bool:
        """Whether a container misses one of the changes that the run is about."""
        if self.run.only and member.pod.name not in self.run.only:
            return False
        started, uses = parse_time(container.started_at), member.config.get(container.name, ())
        return started is None or self._misses_change(uses, started, member.mounted(container.name))

    def is_recent(self, container: PodContainer) -> bool:
        """Whether a container has started since the time from which the run counts."""
        started = parse_time(container.started_at)
        return started is not None and self.since is not None and started > self.since

    def has_instance(self, container: PodContainer) -> bool:
        """Whether there is an instance that can be restarted."""
        return container.running and bool(container.container_id)

    def _misses_change(self, uses: Iterable[Reference], started: datetime, mounted: datetime | None) -> bool:
        """Whether a container misses one of the run's changes. `mounted` is as in `held_since`."""
        held = {part: held_since(some, started, mounted) for part, some in parts_of(uses).items()}
        missed = filter(None, map(read_change, self.run.options.objects))
        return any(change.misses(part, since, started) for change in missed for part, since in held.items())

    def prepare(self, rows: tuple[Row, ...], choice: Choice, now: datetime) -> Prepared:
        """See Kind. Pods with changed files start after a refresh."""
        files = self.world.extra
        if not isinstance(files, Files):
            return Prepared(tuple(choice.chosen))
        ready, due, waiting, times = list[Row](), list[tuple[Row, str]](), list[str](), list[datetime]()
        for row in choice.chosen:
            token, known = self._token(row), files.refreshes.get(row.uid)
            if not token:
                ready.append(row)
            elif known is None or (known.token != token and known.count < _MOST):
                due.append((row, token))
                waiting.append(row.uid)
            elif known.problem or known.age >= self.refresh_seconds:
                ready.append(row)
            else:
                waiting.append(row.uid)
                times.append(now + timedelta(seconds=self.refresh_seconds - known.age))
        waits = dict.fromkeys(waiting, Wait.of(WaitReason.FILES))
        actions = FileActions(tuple(due), tuple(self._starting(rows, files)))
        return Prepared(tuple(ready), waits, actions, wake_at=min(times, default=None))

    def _starting(self, rows: Iterable[Row], files: Files) -> Iterator[tuple[Row, str]]:
        """Yield the pods with a container that kubelet starts later, for example because of its back-off.

        The container then counts as having the change. kubelet may not sync its pod before that start, which would be
        too late for the files.
        """
        for row in rows:
            if row.skip is Skip.NOT_RUNNING and row.member is not None:
                names = tuple(each.name for each in wanted(self.run, row.member) if not self.has_instance(each))
                token, known = self._token(replace(row, containers=names)), files.refreshes.get(row.uid)
                if token and (known is None or known.token != token):
                    yield row, token

    def shown(self) -> tuple[World, Run]:
        """See Kind."""
        return replace(self.world, extra=Extra()), self.run

    def _token(self, row: Row) -> str:
        """Return a token for the present data of the changed files; "" if no container to restart has any."""
        found = set()
        for use in self._changed_files(row.containers, row.member) if row.member is not None else ():
            obj = self.world.config.get(use.object)
            found.add(f"{use.kind} {use.name} {obj.changed_at(use) if obj is not None else None}")
        return hashlib.sha256("|".join([self.run.name, *sorted(found)]).encode()).hexdigest()[:16] if found else ""

    def _changed_files(self, containers: Iterable[str], member: Member) -> Iterator[Reference]:
        """Yield the mounted objects whose changes are the reason of the restart.

        For a run of a policy, those are all objects that it may read: after the restart, the container counts as having
        every change before it, also those that are not the reason.
        """
        world, options = self.world, self.run.options
        changed = {change.part for change in map(read_change, options.objects) if change is not None}
        for name in containers:
            uses = member.config.get(name, ())
            found = [use for part, same in parts_of(uses).items() if part in changed for use in same]
            found += [use for use in uses if options.policy and world.config.get(use.object) is not None]
            if options.stale:
                container, kept = member.pod.containers[name], world.kept_on(member)
                found += (each.reference for each in changes(uses, container, world.config, kept))
            yield from (use for use in found if use.use.mounted)
