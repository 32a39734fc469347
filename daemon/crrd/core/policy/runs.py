"""The run of a policy as a record in its status: how it is made, whether it still fits, and how it begins and ends."""

import hashlib
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum

from crrd.core.api.time import parse_time, rfc3339
from crrd.core.policy.config import Due, covered
from crrd.core.policy.observed import Look, Running
from crrd.core.policy.types import Policy, PolicyStatus, RunRecord
from crrd.core.rollout.change import ImageChange
from crrd.core.rollout.image.following import TemplateChange
from crrd.core.rollout.run import Options, Run, Target


class Trigger(StrEnum):
    """Why a run starts."""

    CONFIG = "configChange"
    SCHEDULE = "schedule"
    AGE = "maxAge"
    IMAGE = "templateImage"


def make_record(
    look: Look, trigger: Trigger, containers: tuple[str, ...], since: datetime, change: Due | None = None
) -> RunRecord:
    """Return the record of a run that could start now. Containers that started after `since` are not recreated."""
    policy, at, started = look.policy, rfc3339(since), rfc3339(look.now)
    message = f"policy {policy.name}: " + (f"{change.objects} changed" if change is not None else trigger)
    objects = tuple(map(str, change.changes)) if change is not None else ()
    run = RunRecord("", trigger.value, containers, at, started, policy.generation, message, objects)
    return replace(run, name=_name(policy, run))


def make_image_record(look: Look, change: TemplateChange, data: Due | None = None) -> RunRecord:
    """Return the record of a run that gives pods the image of their template.

    `data` is changed configuration of the container, which it gets at the same time.
    """
    since, names = data.limit if data is not None else look.now, (change.container,)
    run = make_record(look, Trigger.IMAGE, names, since, data)
    reason = f"policy {look.policy.name}: the template has {change.image} for {change.container}"
    more = f", and {data.objects} changed" if data is not None else ""
    before, last = {*change.before}, look.status.run
    if last is not None and not last.finished and last.containers == names:  # a pod may still get its image
        before |= {last.image} - {change.image, ""}
    run = replace(run, image=change.image, before=tuple(sorted(before)), template=change.rest, reason=f"{reason}{more}")
    return replace(run, name=_name(look.policy, run))


def last_try(look: Look, change: TemplateChange) -> RunRecord | None:
    """Return the last run that gave pods the image of this template, and that has ended by itself; None for none."""
    what, last = ((change.container,), change.image, change.rest), look.status.run
    known = (*look.status.tried, *([last] if last is not None and last.finished else []))  # an older CRD has no `tried`
    return next((each for each in known if each.gives == what), None)


def make_run(policy: Policy, record: RunRecord, target: Target) -> Run:
    """Return the run in the form of `kubectl recreate`.

    A run with an image reads configuration only if the policy does: it needs no right to it otherwise.
    """
    budget, image = policy.budget, None
    if record.image:
        image = ImageChange(
            record.image, record.before, adopt=True, template=record.template, follow=True, had=record.image
        )
    options = Options(
        record.containers,
        max_unavailable=budget.max_unavailable,
        max_per_node=budget.max_per_node,
        min_ready=budget.min_ready,
        preflight=image is None or policy.config is not None,
        since=record.since,
        objects=record.objects,
        reason=record.reason,
        policy=policy.uid,
        image=image,
    )
    return Run(policy.namespace, record.name, target, options, record.started)


def begun(policy: Policy, run: RunRecord) -> PolicyStatus:
    """Return the status at the start of a run. From then on, containers may have the new data of its changes."""
    status = replace(policy.status, run=run)
    if run.trigger == Trigger.SCHEDULE:
        return replace(status, scheduled=run.since, skipped="")
    return replace(status, config=covered(policy, run, done=False)) if run.trigger == Trigger.CONFIG else status


def ended(
    policy: Policy, run: RunRecord, *, failed: bool, message: str, now: datetime, complete: bool = True
) -> PolicyStatus:
    """Return the status after the end of a run. It is not `complete` if pods are left whose nodes are down.

    A run for an image covers no change of configuration, because it leaves pods alone that have the image.
    """
    over = replace(run, finished=rfc3339(now), failed=failed, message=message)
    config = policy.status.config
    if not failed and complete and run.trigger == Trigger.CONFIG and policy.config is not None:
        config = covered(policy, run, done=True)
    others = tuple(each for each in policy.status.tried if each.containers != run.containers)
    tried = (*others, over) if run.image else policy.status.tried
    return replace(policy.status, run=over, config=config, tried=tried)


def next_run(look: Look, wanted: tuple[RunRecord, ...], *, may_start: bool) -> tuple[PolicyStatus, RunRecord | None]:
    """Return the status with the policy's last run as it is from now on, and the run to carry out.

    The latter is the last run if that goes on, or a wanted one. It is None if nothing is to be done, or if a failed run
    stops the policy. A run that another one replaces goes on until that one `may_start`: it brings the newest data.
    """
    policy, last, first = look.policy, look.status.run, next(iter(wanted), None)
    if last is None:
        return look.status, first
    changes = [each for each in wanted if _is_for_change(each) and each.since > last.since]
    images = [each for each in wanted if each.image and each.gives != last.gives]
    if last.finished:
        return look.status, next(iter((*images, *reversed(changes))), None) if stops(policy, last) else first
    if why := _misfit(policy, last):
        return _over(look, last, f"ended because {why}"), first
    concerned = [each for each in look.found.running if _concerns(last, each)]
    for kind, newer in (("template", images), ("change", changes[::-1])):
        found = next((each for each in newer if any(_concerns(each, one) for one in concerned)), None)
        starts = bool(last.image) or (may_start and _is_for_change(last)) if kind == "template" else may_start
        if found is not None and starts:
            status = _over(look, last, f"replaced by a run for a newer {kind}")
            if last.trigger == Trigger.SCHEDULE:  # it goes on afterwards
                before = (parse_time(last.since) or look.now) - timedelta(seconds=1)
                status = replace(status, scheduled=rfc3339(before))
            return status, found
    return look.status, last


def _over(look: Look, run: RunRecord, message: str) -> PolicyStatus:
    return replace(look.status, run=replace(run, finished=rfc3339(look.now), message=message))


def _concerns(run: RunRecord, container: Running) -> bool:
    """Whether a run may restart a container."""
    parts = {each.part for each in run.changes}
    uses_changed = not run.objects or bool(run.image) or any(part in parts for _, part in container.keys)
    return container.name in run.containers and uses_changed


def stops(policy: Policy, last: RunRecord) -> bool:
    """Whether a failed run stops the policy until the policy, the configuration or the template changes."""
    return last.failed and last.generation == policy.generation


def is_repaired(look: Look, run: RunRecord) -> bool:
    """Whether all containers of a run have started since its time, and are ready for long enough.

    After a run for an image, they have the image of the template instead, and so has what new pods are made of.
    """
    if run.image:
        ready = all(each.ready for each in look.found.running if each.name in run.containers)
        return ready and look.follows and not any(each.container in run.containers for each in look.changes)
    concerned = [each.barred for each in look.found.running if _concerns(run, each)]
    if concerned and None not in concerned:
        return False  # maybe only while the versions of kubelet are unknown
    since, available = parse_time(run.since) or look.now, look.now - timedelta(seconds=look.min_ready)
    for each in look.restartable:
        own = [change.until for change in run.changes if (each.name, change.part) in each.keys]
        if _concerns(run, each) and not (each.ready and max(own, default=since) < each.started <= available):
            return False
    return True


def _is_for_change(run: RunRecord) -> bool:
    return run.trigger == Trigger.CONFIG or bool(run.image and run.objects)


def _name(policy: Policy, run: RunRecord) -> str:
    """Return the name of a run. Every process computes the same name, and another one for another target."""
    identity = [policy.uid, str(run.generation), run.trigger, run.since, *run.containers]
    identity += [run.image, run.template] if run.image else []
    digest = hashlib.sha256("|".join([*identity, str(policy.target), policy.selector]).encode()).hexdigest()
    return f"{policy.name.replace('.', '-')[:28].rstrip('-')}-{digest[:10]}"


def _misfit(policy: Policy, active: RunRecord) -> str:
    """Return why an active run does not fit the policy after an edit, "" if it fits."""
    triggers: dict[str, object] = {
        Trigger.CONFIG: policy.config,
        Trigger.SCHEDULE: policy.schedule,
        Trigger.AGE: policy.max_age,
        Trigger.IMAGE: policy.template_image or None,
    }
    if active.generation == policy.generation:
        return ""
    if triggers.get(active.trigger) is None:
        return f"the policy no longer has the trigger {active.trigger}"
    if policy.containers and not {*active.containers} <= {*policy.containers}:
        return "the policy no longer has all of its containers"
    return "" if active.name == _name(policy, active) else "the policy has another target"
