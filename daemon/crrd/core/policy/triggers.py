"""The table of triggers: when each wants a run, what its runs record, what it needs, and whether it can work.

Whatever depends on the triggers of a policy asks the rows. Those come first whose runs go first.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from crrd.core.api.fields import Section
from crrd.core.api.time import parse_time, rfc3339
from crrd.core.policy.config import Due, brings, covered, due, remember
from crrd.core.policy.failures import passed, pruned, stops
from crrd.core.policy.observed import Look, Running
from crrd.core.policy.reloads import narrowed, unsure
from crrd.core.policy.revisions import goes_back, note, tried
from crrd.core.policy.schedule import note_schedule, read_schedule
from crrd.core.policy.types import ConfigAction, ConfigChange, Policy, PolicyStatus, RunRecord, Schedule
from crrd.core.rollout.image.following import TemplateChange
from crrd.core.rollout.parts import sizes

RETRY = timedelta(minutes=10)  # After a run, until what it has left is tried again
READ_ROLE, UPDATE_ROLE, PATCH_ROLE = "crrd-read-config", "crrd-update-images", "crrd-patch-pods"
Place = tuple[str, str]  # A pod, and its node


def grant(namespace: str, role: str, account: str) -> str:
    """Return the command that gives the rights of a ClusterRole to the manager's ServiceAccount (`namespace:name`)."""
    return f"kubectl create rolebinding {role} -n {namespace} --clusterrole={role} --serviceaccount={account}"


class Left(NamedTuple):
    """What a run has left, and when that is tried again."""

    at: datetime
    by: RunRecord
    run: RunRecord | None = None  # The run that then starts, unless a trigger wants another one


@dataclass(frozen=True, slots=True)
class Wanted:
    """What triggers ask for."""

    runs: tuple[RunRecord, ...] = ()  # That should start: those of whole pods, then those for the earliest changes
    wakes: tuple[datetime, ...] = ()  # When there can be others
    settling: tuple[Due, ...] = ()  # Changed configuration that settles, what does so first at the beginning
    left: tuple[Left, ...] = ()  # The earliest first


Then = Callable[[Policy, RunRecord], PolicyStatus]  # Returns the status after something has happened to a run


def _unchanged(policy: Policy, _: RunRecord) -> PolicyStatus:
    return policy.status


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """A row of the table."""

    name: str  # Of its field in `spec.triggers`
    attribute: str  # Of `Policy`, with the value of the field; None or False if the policy does not have the trigger
    read: Callable[[Section], object]  # Reads the value from `spec.triggers`
    wants: Callable[[Look], Wanted]
    goes_first: bool = False  # Whether its runs bring something new: it is asked even if a row above wants a run
    role: str = READ_ROLE  # The ClusterRole that it needs in the policy's namespace
    works: Callable[[Look], bool] = lambda _: True  # Whether it can concern any of the containers that are there
    put_off: Callable[[Look], Iterable[Place]] = lambda _: ()  # The pods to restart now, on nodes that cannot do it
    noted: Callable[[Look], PolicyStatus] = lambda look: look.status  # What each look records, also without the trigger
    begun: Then = _unchanged
    replaced: Then = _unchanged  # By a run for something newer
    complete: Then = _unchanged  # It has succeeded, and has left no pod
    ended: Then = _unchanged  # In any way, except that it was replaced
    left: str = ""  # What its runs can leave
    resumed_by: str = "the policy or the configuration changes, or {resume} succeeds"
    """Until when no run starts after one that has failed. `resume` stands for the command."""


def make_record(
    look: Look, trigger: Trigger, containers: tuple[str, ...], since: datetime, change: Due | None = None
) -> RunRecord:
    """Return the record of a run that could start now. Containers that started after `since` are not recreated."""
    policy, at, started = look.policy, rfc3339(since), rfc3339(look.now)
    changes = () if change is None else change.changes
    back = change is not None and goes_back(look.status, changes)
    why = trigger.name if change is None else _why(change, back=back)
    objects, message = tuple(dict.fromkeys(map(str, changes))), f"policy {policy.name}: {why}"
    pods, reload = change is not None and change.pods, change is not None and change.reload
    parts = trigger.name, containers, at, started, policy.generation, message, objects
    run = RunRecord("", *parts, pods=pods, back=back, reload=reload)
    concerned = {each.pod for each in look.found.running if each.name in containers}
    steps = () if back else sizes(policy.budget.steps, len(concerned))
    run = replace(run, steps=",".join(map(str, steps)))
    return replace(run, name=name_of(policy, run))


def _why(change: Due, *, back: bool) -> str:
    what = f", which {', '.join(change.containers)} uses; restarting whole pods" if change.pods else ""
    if change.reload:
        what = f"; {', '.join(change.containers)} reloads"
    elif change.why_restart:
        what = f"; restarting {', '.join(change.containers)}, because {change.why_restart}"
    return f"{change.objects} {'has its last good data again' if back else 'changed'}{what}"


def make_image_record(look: Look, change: TemplateChange, data: Due | None = None) -> RunRecord:
    """Return the record of a run that gives pods the image of their template.

    `data` is changed configuration of the container, which it gets at the same time.
    """
    since, names = data.limit if data is not None else look.now, (change.container,)
    data = data and replace(data, reload=False, why_restart="")
    run = make_record(look, TEMPLATE_IMAGE, names, since, data)
    reason = f"policy {look.policy.name}: the template has {change.image} for {change.container}"
    more = f", and {data.objects} changed" if data is not None else ""
    before, last = {*change.before}, look.status.run
    if last is not None and not last.finished and last.containers == names:  # a pod may still get its image
        before |= {last.image} - {change.image, ""}
    run = replace(run, image=change.image, before=tuple(sorted(before)), template=change.rest, reason=f"{reason}{more}")
    return replace(run, name=name_of(look.policy, run))


def _undo(look: Look, change: TemplateChange, failed: RunRecord) -> tuple[RunRecord, ...]:
    """Return the run that gives pods the image back that they had before a run with `change` failed; () for none.

    It begins right after that run, so once at most, and only if a pod has the new image. It is not for a run that gave
    the image of new pods to the others, because some pods had that before.
    """
    there = {each.pod for each in look.found.running if each.name in failed.containers}
    is_last = look.status.run is not None and look.status.run.name == failed.name
    has_new = change.behind and bool(there - {pod for pod, _ in change.lacking})
    if not (look.policy.undoes and is_last and has_new and can_undo(failed)):
        return ()
    (image,), names, before = failed.before, failed.containers, (failed.image,)
    reason = f"policy {look.policy.name}: run {failed.name} has failed, so {names[0]} gets {image} back"
    run = make_record(look, TEMPLATE_IMAGE, names, look.now)
    run = replace(run, image=image, before=before, template=failed.template, steps="", reason=reason)
    run = replace(run, back=True, undoes=failed.name)
    return (replace(run, name=name_of(look.policy, run)),)


def can_undo(run: RunRecord) -> bool:
    """Whether it is certain which image the pods of a run with an image had before."""
    return len(run.before) == 1


def name_of(policy: Policy, run: RunRecord) -> str:
    """Return the name of a run. Every process computes the same name, and another one for another target."""
    identity = [policy.uid, str(run.generation), run.trigger, run.since, *run.containers]
    identity += [run.image, run.template] if run.image else []
    identity += ["patch"] if policy.patch else []
    identity += ["pods"] if run.pods else []
    identity += ["reload"] if run.reload else []
    digest = hashlib.sha256("|".join([*identity, str(policy.target), policy.selector]).encode()).hexdigest()
    return f"{policy.name.replace('.', '-')[:28].rstrip('-')}-{digest[:10]}"


def last_try(look: Look, change: TemplateChange) -> RunRecord | None:
    """Return the last run that gave pods the image of this template, and that has ended by itself; None for none."""
    what, last = ((change.container,), change.image, change.rest), look.status.run
    known = (*look.status.tried, *([last] if last is not None and last.finished else []))  # an older CRD has no `tried`
    return next((each for each in known if each.gives == what), None)


def _outdated(look: Look) -> Wanted:
    """Return a run for the first container that lacks the image of the template. The others follow one by one.

    It waits until changed configuration of the container has settled, so that one restart brings both. A run that has
    ended and left something, for example a pod that could not start, is repeated after RETRY. One that failed
    is not, and stops the others, until the template, the policy or data of its container changes. Data with which a run
    has failed comes with a new image, because that may be what the data needs.
    """
    (changes, settling), active, left = due(look, look.served, failed=True), look.status.run, list[Left]()
    for each in look.changes:
        data, last = (
            next((due for due in changes if each.container in due.containers and not due.pods), None),
            last_try(look, each),
        )
        if last is not None and active is not None and not active.finished and active.undoes == last.name:
            return Wanted()  # that goes on, also after an edit of the policy
        if last is not None and stops(look.policy, last) and (data is None or rfc3339(data.limit) <= last.since):
            return Wanted(_undo(look, each, last))
        away = [node in look.found.down for _, node in each.lacking]
        if (away and all(away)) or any(each.container in other.containers for other in settling):
            continue
        run = make_image_record(look, each, data)
        goes_on = active is not None and not active.finished and active.gives == run.gives
        if goes_on or last is None or last.failed or (ended := parse_time(last.finished)) is None:
            return Wanted((run,))
        left.append(Left(ended + RETRY, last, run))
    return Wanted(left=tuple(left))


def _note_tried(look: Look) -> PolicyStatus:
    """Keep the last runs for images, without failures of a template that was set back."""
    status, template, lacking = look.status, look.found.template, {each.container for each in look.changes}
    if template is None or template.wait or template.problem:
        return status
    kept = (each for each in status.tried if not each.failed or lacking.intersection(each.containers))
    return replace(status, tried=tuple(kept))


def _add_tried(policy: Policy, run: RunRecord) -> PolicyStatus:
    """Keep the run as the last one of its container. One that undoes it is noted there, so that it stays the last."""
    if run.undoes:
        noted = (
            replace(each, message=f"{each.message}; run {run.name} gave {run.image} back: {run.message}")
            if each.name == run.undoes
            else each
            for each in policy.status.tried
        )
        return replace(policy.status, tried=tuple(noted))
    others = (each for each in policy.status.tried if each.containers != run.containers)
    return replace(policy.status, tried=(*others, run))


def _brought_too(policy: Policy, run: RunRecord) -> PolicyStatus:
    """A run for an image is well. Pods that had the image before may still lack the data that it has brought."""
    return passed(policy, [each for each in policy.status.config if brings(policy, run, each)])


def _read_change(triggers: Section) -> ConfigChange | None:
    section = triggers.optional_section("configChange")
    if section is None:
        return None
    switches = section.flag("secrets"), section.texts("ignore"), section.flag("allowPodRestart")
    return ConfigChange(section.integer("settle"), *switches, section.choice("action", ConfigAction))


def _changed(look: Look) -> Wanted:
    """Return runs for changes that have settled, those of whole pods first.

    A container that gets an image has them from that run.
    """
    changes, settling = due(look, look.served)
    given = {name for run in _outdated(look).runs for name in run.containers}
    left = [
        each if each.pods else replace(each, containers=tuple(name for name in each.containers if name not in given))
        for each in changes
    ]
    runs = (make_record(look, CONFIG_CHANGE, each.containers, each.limit, each) for each in left if each.containers)
    return Wanted(tuple(runs), tuple(each.limit for each in settling[:1]), tuple(settling))


def _begin_change(policy: Policy, run: RunRecord) -> PolicyStatus:
    status = tried(policy, run)
    return unsure(replace(policy, status=status), run) if run.reload else status


def _note_config(look: Look) -> PolicyStatus:
    look = replace(look, policy=replace(look.policy, status=replace(look.status, config=remember(look))))
    return pruned(note(replace(look, policy=replace(look.policy, status=narrowed(look)))))


def _changed_but_down(look: Look) -> Iterable[Place]:
    changes, _ = due(look, look.unserved)
    return ((each.pod, each.node) for each in look.unserved if any(change.concerns(each) for change in changes))


def _read_schedule(triggers: Section) -> Schedule | None:
    section = triggers.optional_section("schedule")
    return None if section is None else read_schedule(section, section.integer("startingDeadline"))


def _scheduled(look: Look) -> Wanted:
    """Return a run for the latest time of the schedule. Late ones were skipped before (`note_schedule`)."""
    schedule, now = look.policy.schedule, look.now
    names = look.policy.containers or tuple(sorted({each.name for each in look.restartable if not each.is_init}))
    if schedule is None or not names:
        return Wanted()
    if (time := schedule.latest(parse_time(look.status.scheduled) or now, now)) is not None:
        return Wanted((make_record(look, SCHEDULE, names, time),))
    return Wanted(wakes=(schedule.next_after(now),))


def _schedule_again(policy: Policy, run: RunRecord) -> PolicyStatus:
    time = parse_time(run.since)
    return replace(policy.status, scheduled=rfc3339(time - timedelta(seconds=1)) if time else "")


def _too_old(look: Look, running: Iterable[Running]) -> list[Running]:
    """Return the containers that have run for maxAge, the oldest first."""
    limit = look.now - timedelta(seconds=look.policy.max_age or 0)
    old = (each for each in running if each.started <= limit and not each.is_init)
    return sorted(old, key=lambda each: (each.started, each.name))


def _aged(look: Look) -> Wanted:
    """Return a run for the containers that are too old, except those that the last such run has just left."""
    age, last, now = timedelta(seconds=look.policy.max_age or 0), look.status.run, look.now
    old, left = _too_old(look, look.served), tuple[Left, ...]()
    wakes = sorted(each.started + age for each in look.served if each.started > now - age and not each.is_init)[:1]
    ended = parse_time(last.finished) if last is not None and last.trigger == MAX_AGE.name else None
    if last is not None and ended is not None and ended + RETRY > now:
        untried = [each for each in old if rfc3339(each.started) > last.since]
        left, old = (Left(ended + RETRY, last),) if len(untried) < len(old) else (), untried
    names = tuple(dict.fromkeys(each.name for each in old))
    return Wanted((make_record(look, MAX_AGE, names, now - age),) if old else (), tuple(wakes), left=left)


# The table. Above are the functions of each row.
# fmt: off
TEMPLATE_IMAGE = Trigger(
    name="templateImage", attribute="template_image",
    read=lambda triggers: triggers.optional_section("templateImage") is not None,
    wants=_outdated, goes_first=True, role=UPDATE_ROLE,
    put_off=lambda look: (place for each in look.changes for place in each.lacking if place[1] in look.found.down),
    noted=_note_tried, complete=_brought_too, ended=_add_tried, left="pods lack the image of the template",
    resumed_by="the template, the policy or the configuration changes; to try again, set spec.suspend to true, and "
    "back to false")  # there may be no request that `resume` could find
CONFIG_CHANGE = Trigger(
    name="configChange", attribute="config", read=_read_change, wants=_changed, goes_first=True,
    works=lambda look: any(each.uses for each in look.found.running), put_off=_changed_but_down,
    noted=_note_config, begun=_begin_change, complete=covered)
SCHEDULE = Trigger(
    name="schedule", attribute="schedule", read=_read_schedule, wants=_scheduled, noted=note_schedule,
    begun=lambda policy, run: replace(policy.status, scheduled=run.since, skipped=""), replaced=_schedule_again)
MAX_AGE = Trigger(
    name="maxAge", attribute="max_age", read=lambda triggers: triggers.optional_integer("maxAge"), wants=_aged,
    put_off=lambda look: ((each.pod, each.node) for each in _too_old(look, look.unserved)),
    left="containers are older than maxAge")
# fmt: on
TRIGGERS = {each.name: each for each in (TEMPLATE_IMAGE, CONFIG_CHANGE, SCHEDULE, MAX_AGE)}


def triggers_of(policy: Policy) -> list[Trigger]:
    """Return the triggers that a policy has."""
    return [each for each in TRIGGERS.values() if getattr(policy, each.attribute)]


def role_for(policy: Policy) -> str:
    """Return the ClusterRole that a policy needs before all others. Only one of them can read configuration."""
    if policy.patch and policy.config is None:
        return PATCH_ROLE
    roles = [each.role for each in triggers_of(policy)]
    return READ_ROLE if READ_ROLE in roles else roles[0]


def find_wanted(look: Look) -> Wanted:
    """Return what the triggers of a policy with up-to-date records ask for.

    One that does not go first is asked only if those above it want no run. What runs have left comes after all.
    """
    asked: list[Wanted] = []
    for each in triggers_of(look.policy):
        if each.goes_first or not any(one.runs for one in asked):
            asked.append(each.wants(look))
    left = sorted((each for one in asked for each in one.left), key=lambda each: each.at)
    runs = [run for one in asked for run in one.runs] or [each.run for each in left if each.run and each.at <= look.now]
    wakes = (*(at for one in asked for at in one.wakes), *(each.at for each in left if each.at > look.now))
    return Wanted(tuple(runs), wakes, tuple(due for one in asked for due in one.settling), tuple(left))
