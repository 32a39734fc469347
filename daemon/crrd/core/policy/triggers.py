"""The table of triggers: when each wants a run, what its runs record, what it needs, and whether it can work.

Whatever depends on the triggers of a policy asks the rows. Those come first whose runs go first.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from crrd.core.api.fields import Section
from crrd.core.api.time import parse_time, rfc3339
from crrd.core.policy.config import Due, brings, covered, due, remember
from crrd.core.policy.failures import passed, pruned, stops
from crrd.core.policy.observed import Look, Running
from crrd.core.policy.records import can_undo, last_try, make_image_record, make_record, make_undo_record, run_back
from crrd.core.policy.reloads import narrowed, unsure
from crrd.core.policy.retries import (
    Retry,
    forget_old,
    just_left,
    keep_last,
    keep_pods,
    not_left,
    retries,
    retry_at,
)
from crrd.core.policy.revisions import note, tried
from crrd.core.policy.schedule import note_schedule, read_schedule
from crrd.core.policy.types import ConfigAction, ConfigChange, Policy, PolicyStatus, RunRecord, Schedule
from crrd.core.rollout.image.following import TemplateChange

READ_ROLE, UPDATE_ROLE, PATCH_ROLE = "crrd-read-config", "crrd-update-images", "crrd-patch-pods"
SECRETS_ROLE, RESTORE_ROLE = "crrd-read-secrets", "crrd-restore-config"
Place = tuple[str, str]  # A pod, and its node


def grant(namespace: str, role: str, account: str) -> str:
    """Return the command that gives the rights of a ClusterRole to the manager's ServiceAccount (`namespace:name`)."""
    return f"kubectl create rolebinding {role} -n {namespace} --clusterrole={role} --serviceaccount={account}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What triggers ask for."""

    runs: tuple[RunRecord, ...] = ()  # That should start: those of whole pods, then those for the earliest changes
    wakes: tuple[datetime, ...] = ()  # When there can be others
    settling: tuple[Due, ...] = ()  # Changed configuration that settles, what does so first at the beginning
    retries: tuple[Retry, ...] = ()  # The earliest first
    put_off: tuple[RunRecord, ...] = ()  # Runs back, all of whose pods are on nodes that are down


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
    misfit: Callable[[Policy, RunRecord], str] = lambda *_: ""
    """Why a run of it does not fit the policy after an edit that leaves the trigger; "" if it fits."""
    works: Callable[[Look], bool] = lambda _: True  # Whether it can concern any of the containers that are there
    put_off: Callable[[Look], Iterable[Place]] = lambda _: ()  # The pods to restart now, on nodes that cannot do it
    noted: Callable[[Look], PolicyStatus] = lambda look: look.status  # What each look records, also without the trigger
    begun: Then = _unchanged
    replaced: Then = _unchanged  # By a run for something newer
    complete: Then = _unchanged  # It has succeeded, and has left no pod
    ended: Then = _unchanged  # In any way, except that it was replaced
    retried: str = ""  # Why a run is tried again: what it has left
    resumed_by: str = "the policy or the configuration changes, or {resume} succeeds"
    """Until when no run starts after one that has failed. `resume` stands for the command."""


def _outdated(look: Look) -> Wanted:
    """Return a run for the first container that lacks the image of the template. The others follow one by one.

    It waits until changed configuration of the container has settled, so that one restart brings both. A run that has
    ended and left something, for example a pod that could not start, is repeated after RETRY. One that failed
    is not, and stops the others, until the template, the policy or data of its container changes. Data with which a run
    has failed comes with a new image, because that may be what the data needs.
    """
    if not look.changes:
        return Wanted()
    if (back := _back(look)) is not None:
        return back
    (changes, settling), active, again = due(look, look.served, failed=True), look.status.run, list[Retry]()
    data_of = {name: each for each in reversed(changes) if not each.pods for name in each.containers}
    if any(_is_refused(look, each, data_of.get(each.container)) for each in look.changes):
        return Wanted()
    for each in sorted(look.changes, key=lambda each: not each.lacking):  # that of records waits for all images
        data, last = data_of.get(each.container), last_try(look, each)
        away = [node in look.found.down for _, node in each.lacking]
        if (away and all(away)) or any(each.container in other.containers for other in settling):
            continue
        run = make_image_record(look, each, data)
        goes_on = active is not None and not active.finished and active.gives == run.gives
        if goes_on or last is None or last.failed or not last.finished:
            return Wanted((run,))
        again.append(Retry(retry_at(last), last, run))
    return Wanted(retries=tuple(again))


def _is_refused(look: Look, change: TemplateChange, data: Due | None) -> bool:
    """Whether a run with `change`, or the one that undid that, has failed, and nothing has changed since."""
    if (last := last_try(look, change)) is None:
        return False
    undo = run_back(look.status, last)
    tries = [(last, last.since)] if undo is None else [(last, last.since), (undo, undo.finished)]
    return any(stops(look.policy, run) and (data is None or rfc3339(data.limit) <= since) for run, since in tries)


def _undo(look: Look, change: TemplateChange, failed: RunRecord) -> Wanted | None:
    """Return the run that gives pods the image back that they had before a run with `change` failed; None for none.

    It is not for a run that gave the image of new pods to the others, because some pods had that before. If it leaves
    a pod, for example because a node is down, it is repeated after RETRY, but not while it could do no pod.
    """
    old, last = {pod for pod, _ in change.lacking}, run_back(look.status, failed)
    new = [each for each in look.found.running if each.name in failed.containers and each.pod not in old]
    has_new = change.behind and bool(new)
    if not (look.policy.undoes and has_new and can_undo(failed)) or (last is not None and last.failed):
        return None
    run = make_undo_record(look, failed)
    if all(each.node in look.found.down for each in new):
        return Wanted(put_off=(run,))
    if last is not None and last.finished:
        return Wanted(retries=(Retry(retry_at(last), last, run),))
    return Wanted((run,))


def _back(look: Look) -> Wanted | None:
    """Return what a policy with a run to undo wants: that its run back begins, or goes on; None if it has none to undo.

    An edit of the policy ends no run back.
    """
    active = look.status.run
    for each in look.changes:
        last = last_try(look, each)
        if last is None or not last.failed:
            continue
        if active is not None and not active.finished and active.undoes == last.name:
            return Wanted()
        if stops(look.policy, last) and (wanted := _undo(look, each, last)) is not None:
            return wanted
    return None


def _note_tried(look: Look) -> PolicyStatus:
    """Keep the last runs for images, without failures of a template that was set back.

    Nothing is known of that while no pod runs, or a run is undone.
    """
    status, template, run = look.status, look.found.template, look.status.run
    is_undone = run is not None and bool(run.undoes) and not run.finished
    if template is None or template.wait or template.problem or is_undone or not look.found.running:
        return status
    lacking = {each.container for each in look.changes}
    kept = [each for each in status.tried if not each.failed or lacking.intersection(each.containers)]
    names = {each.name for each in kept}
    return replace(status, tried=tuple(each for each in kept if not each.undoes or each.undoes in names))


def _add_tried(policy: Policy, run: RunRecord) -> PolicyStatus:
    """Keep the run as the last one of its container, or beside the one that it undoes."""
    kept = (each for each in policy.status.tried if each.containers != run.containers or each.name == run.undoes)
    return replace(policy.status, tried=(*kept, run))


def _brought_too(policy: Policy, run: RunRecord) -> PolicyStatus:
    """A run for an image is well. Pods that had the image before may still lack the data that it has brought."""
    return passed(policy, [each for each in policy.status.config if brings(run, each)])


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
    left = just_left(look, CONFIG_CHANGE.name)
    wanted = not_left(look, changes, left)
    given = {name for run in _outdated(look).runs for name in run.containers}
    own = [
        each if each.pods else replace(each, containers=tuple(name for name in each.containers if name not in given))
        for each in wanted
    ]
    runs = (make_record(look, CONFIG_CHANGE.name, each.containers, each.limit, each) for each in own if each.containers)
    again = retries(left) if wanted != changes else ()
    return Wanted(tuple(runs), tuple(each.limit for each in settling[:1]), tuple(settling), again)


def _not_for_change(policy: Policy, run: RunRecord) -> str:
    config = policy.config
    if config is None or not all(config.counts(each.part) for each in run.changes):
        return "not all of its objects count any more (triggers.configChange)"
    if run.pods and not config.allow_pod_restart:
        return "whole pods must not be restarted any more (triggers.configChange.allowPodRestart)"
    return ""


def _begin_change(policy: Policy, run: RunRecord) -> PolicyStatus:
    status = tried(policy, run)
    return unsure(policy.with_status(status), run) if run.reload else status


def _note_config(look: Look) -> PolicyStatus:
    look = look.with_status(replace(look.status, config=remember(look)))
    return pruned(note(look.with_status(narrowed(look))))


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
        return Wanted((make_record(look, SCHEDULE.name, names, time),))
    return Wanted(wakes=(schedule.next_after(now),))


def _schedule_again(policy: Policy, run: RunRecord) -> PolicyStatus:
    """The run's time counts again, unless the schedule was edited or suspended since."""
    status, time = policy.status, parse_time(run.since)
    if time is None or status.scheduled != run.since:
        return status
    return replace(status, scheduled=rfc3339(time - timedelta(seconds=1)))


def _too_old(look: Look, running: Iterable[Running]) -> list[Running]:
    """Return the containers that have run for maxAge, the oldest first."""
    limit = look.now - timedelta(seconds=look.policy.max_age or 0)
    old = (each for each in running if each.started <= limit and not each.is_init)
    return sorted(old, key=lambda each: (each.started, each.name))


def _not_for_age(policy: Policy, run: RunRecord) -> str:
    started, age = parse_time(run.started), timedelta(seconds=policy.max_age or 0)
    return "maxAge is longer now" if started is not None and run.since > rfc3339(started - age) else ""


def _aged(look: Look) -> Wanted:
    """Return a run for the containers that are too old, except those that the last such run has just left."""
    age, now = timedelta(seconds=look.policy.max_age or 0), look.now
    left, old = just_left(look, MAX_AGE.name), _too_old(look, look.served)
    wakes = sorted(each.started + age for each in look.served if each.started > now - age and not each.is_init)[:1]
    untried = [each for each in old if all(rfc3339(each.started) > run.since for run in left)]
    again = retries(left) if len(untried) < len(old) else ()
    names = tuple(dict.fromkeys(each.name for each in untried))
    run = (make_record(look, MAX_AGE.name, names, now - age),) if untried else ()
    return Wanted(run, tuple(wakes), retries=again)


# The table. Above are the functions of each row.
# fmt: off
TEMPLATE_IMAGE = Trigger(
    name="templateImage", attribute="template_image",
    read=lambda triggers: triggers.optional_section("templateImage") is not None,
    wants=_outdated, goes_first=True, role=UPDATE_ROLE,
    put_off=lambda look: (place for each in look.changes for place in each.lacking if place[1] in look.found.down),
    noted=_note_tried, complete=_brought_too, ended=_add_tried, retried="pods lack the image of the template",
    resumed_by="the template, the policy or the configuration changes; to try again, set spec.suspend to true, and "
    "back to false")  # there may be no request that `resume` could find
CONFIG_CHANGE = Trigger(
    name="configChange", attribute="config", read=_read_change, wants=_changed, goes_first=True,
    misfit=_not_for_change, works=lambda look: any(each.uses for each in look.found.running), put_off=_changed_but_down,
    noted=_note_config, begun=_begin_change, complete=covered, ended=keep_pods, retried="pods lack the new data")
SCHEDULE = Trigger(
    name="schedule", attribute="schedule", read=_read_schedule, wants=_scheduled, noted=note_schedule,
    begun=lambda policy, run: replace(policy.status, scheduled=run.since, skipped=""), replaced=_schedule_again)
MAX_AGE = Trigger(
    name="maxAge", attribute="max_age", read=lambda triggers: triggers.optional_integer("maxAge"), wants=_aged,
    misfit=_not_for_age, put_off=lambda look: ((each.pod, each.node) for each in _too_old(look, look.unserved)),
    noted=forget_old, ended=keep_last, retried="containers are older than maxAge")
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
    later = sorted((each for one in asked for each in one.retries), key=lambda each: each.at)
    again = [each.run for each in later if each.run and each.at <= look.now]
    runs = [run for one in asked for run in one.runs] or again
    wakes = (*(at for one in asked for at in one.wakes), *(each.at for each in later if each.at > look.now))
    settling = tuple(due for one in asked for due in one.settling)
    return Wanted(tuple(runs), wakes, settling, tuple(later), tuple(run for one in asked for run in one.put_off))
