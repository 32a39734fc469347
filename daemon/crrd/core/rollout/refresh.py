"""When a run has kubelet refresh the files of a pod, before it restarts the pod's containers.

kubelet refreshes the files of a ConfigMap or Secret about once a minute, and when it syncs a pod whose annotations have
changed. Without that, a restarted container can read the old file, and the first start of a container with `subPath`
can fail (kubernetes#68211). So a run that restarts because data has changed sets an annotation first. Its token
identifies the change, so a process that continues the run does not set it again.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from crrd.core.config.objects import changes
from crrd.core.config.parts import parts_of, read_change
from crrd.core.config.references import Reference
from crrd.core.rollout.run import Run
from crrd.core.rollout.standing import Row
from crrd.core.rollout.state import Member, World

REFRESH_SECONDS = 2.0
"""From the annotation to the restart. kubelet 1.30 and 1.36 had the new files 0.3 to 0.7 s after the annotation."""
_MOST = 3
"""Most refreshes of a pod before its restart, so that data which changes all the time does not keep it waiting."""


@dataclass(frozen=True, slots=True)
class Refreshes:
    """The chosen pods of a plan, by what is next for each of them."""

    ready: tuple[Row, ...]  # Get their request now
    due: tuple[tuple[Row, str], ...]  # Get the annotation with this token now
    waiting: tuple[Row, ...]  # Their files are being refreshed
    until: datetime | None = None  # When the first of `waiting` is ready


def sort_refreshes(world: World, run: Run, chosen: Iterable[Row], now: datetime) -> Refreshes:
    """Sort the pods that may start now. All are ready if the world has no refreshes, as in a preview."""
    ready, due, waiting, times = [], [], [], []
    for row in chosen:
        token = _token(world, run, row)
        if world.refreshes is None or not token:
            ready.append(row)
            continue
        known = world.refreshes.get(row.uid)
        if known is None or (known.token != token and known.count < _MOST):
            due.append((row, token))
        elif known.problem or known.age >= REFRESH_SECONDS:
            ready.append(row)
        else:
            waiting.append(row)
            times.append(now + timedelta(seconds=REFRESH_SECONDS - known.age))
    return Refreshes(tuple(ready), tuple(due), tuple(waiting), min(times, default=None))


def _token(world: World, run: Run, row: Row) -> str:
    """Return a token for the present data of the changed files; "" if no container to restart has any."""
    found = set()
    for use in _changed_files(world, run, row.containers, row.member) if row.member is not None else ():
        obj = world.config.get(use.object)
        found.add(f"{use.kind} {use.name} {obj.changed_at(use) if obj is not None else None}")
    return hashlib.sha256("|".join([run.name, *sorted(found)]).encode()).hexdigest()[:16] if found else ""


def _changed_files(world: World, run: Run, containers: Iterable[str], member: Member) -> Iterator[Reference]:
    """Yield the mounted objects whose changes are the reason of the restart.

    For a run of a policy, those are all objects that it may read: after the restart, the container counts as having
    every change before it, also those that are not the reason.
    """
    changed = {change.part for change in map(read_change, run.options.objects) if change is not None}
    for name in containers:
        uses = member.config.get(name, ())
        found = [use for part, same in parts_of(uses).items() if part in changed for use in same]
        found += [use for use in uses if run.options.policy and world.config.get(use.object) is not None]
        if run.options.stale:
            container, kept = member.pod.containers[name], world.kept_on(member)
            found += (each.reference for each in changes(uses, container, world.config, kept))
        yield from (use for use in found if use.use.mounted)
