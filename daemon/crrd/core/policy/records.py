"""The records of runs that could start now, and what the status knows of runs for images that have ended."""

import hashlib
from dataclasses import replace
from datetime import datetime

from crrd.core.api.time import rfc3339
from crrd.core.policy.config import Due
from crrd.core.policy.observed import Look
from crrd.core.policy.revisions import goes_back
from crrd.core.policy.types import Policy, PolicyStatus, RunRecord
from crrd.core.rollout.image.following import TemplateChange
from crrd.core.rollout.image.names import is_mutable
from crrd.core.rollout.parts import sizes

_OF_IMAGES = "templateImage"  # The trigger


def make_record(
    look: Look, trigger: str, containers: tuple[str, ...], since: datetime, change: Due | None = None
) -> RunRecord:
    """Return the record of a run that could start now. Containers that started after `since` are not recreated."""
    policy, at, started = look.policy, rfc3339(since), rfc3339(look.now)
    changes = () if change is None else change.changes
    back = change is not None and goes_back(look, changes)
    why = trigger if change is None else _why(change, back=back)
    by_text, message = {str(each): each for each in changes}, f"policy {policy.name}: {why}"
    pods, reload = change is not None and change.pods, change is not None and change.reload
    parts = trigger, containers, at, started, policy.generation, message, tuple(by_text)
    brought = {each.part: each.hash for each in look.status.config if each.container in containers}
    hashes = tuple(brought.get(each.part, "") for each in by_text.values())
    run = RunRecord("", *parts, pods=pods, back=back, reload=reload, hashes=hashes)
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
    run = make_record(look, _OF_IMAGES, names, since, data)
    reason = f"policy {look.policy.name}: the template has {change.image} for {change.container}"
    more = f", and {data.objects} changed" if data is not None else ""
    before, last = {*change.before}, look.status.run
    if last is not None and not last.finished and last.containers == names:  # a pod may still get its image
        before |= {last.image} - {change.image, ""}
    run = replace(run, image=change.image, before=tuple(sorted(before)), template=change.rest, reason=f"{reason}{more}")
    return replace(run, name=name_of(look.policy, run))


def make_undo_record(look: Look, failed: RunRecord) -> RunRecord:
    """Return the record of a run that gives pods the image back that they had before a run failed (`can_undo`)."""
    (image,), names, before = failed.before, failed.containers, (failed.image,)
    reason = f"policy {look.policy.name}: run {failed.name} has failed, so {names[0]} gets {image} back"
    run = make_record(look, _OF_IMAGES, names, look.now)
    run = replace(run, image=image, before=before, template=failed.template, steps="", reason=reason)
    run = replace(run, back=True, undoes=failed.name)
    return replace(run, name=name_of(look.policy, run))


def run_back(status: PolicyStatus, failed: RunRecord) -> RunRecord | None:
    """Return the last run that has undone this one, and has ended; None for none."""
    return next((each for each in status.tried if each.undoes == failed.name), None)


def can_undo(run: RunRecord) -> bool:
    """Whether it is certain which image the pods of a run with an image had before."""
    return len(run.before) == 1 and not is_mutable(run.before[0])


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
    return next((each for each in known if each.gives == what and not each.undoes), None)
