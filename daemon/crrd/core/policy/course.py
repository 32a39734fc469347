"""The course of a policy's run: whether it still fits, when it gives way to another one, how it begins and ends."""

from dataclasses import replace
from datetime import datetime, timedelta

from crrd.core.api.time import parse_time, rfc3339
from crrd.core.judge.metrics import digest_of
from crrd.core.policy.config import brings, is_behind, is_taken_back
from crrd.core.policy.failures import is_corrected, stopped_by, stops, with_last
from crrd.core.policy.observed import Look, Running
from crrd.core.policy.outcome import Outcome
from crrd.core.policy.records import name_of
from crrd.core.policy.reloads import has_reloaded, lacked, only
from crrd.core.policy.triggers import TRIGGERS, triggers_of
from crrd.core.policy.types import Judge, Policy, PolicyStatus, RunRecord
from crrd.core.rollout.change import ImageChange, TemplateMode
from crrd.core.rollout.phases import End
from crrd.core.rollout.run import Options, Run, Target
from crrd.lib.jsonfields import decimal


def make_run(policy: Policy, record: RunRecord, target: Target) -> Run:
    """Return the run in the form of `kubectl recreate`.

    A run with an image reads configuration only if the policy does: it needs no right to it otherwise.
    """
    budget, new, image = policy.budget, record.image, None
    judge = policy.judge if policy.judge is not None and not record.back else Judge(0)
    if new:
        had = next(iter(record.before), new) if record.undoes else new
        image = ImageChange(
            new, record.before, TemplateMode.FOLLOW, template=record.template, undoes=record.undoes, had=had
        )
    options = Options(
        () if record.pods else record.containers,
        max_unavailable=budget.max_unavailable,
        max_per_node=budget.max_per_node,
        min_ready=budget.min_ready,
        preflight=image is None or policy.config is not None,
        since=record.since,
        objects=record.objects,
        reason=record.reason,
        policy=policy.uid,
        image=image,
        pull_resources=policy.pull_resources if image is not None else "",
        patch=policy.patch,
        whole_pod=record.pods,
        reload=record.reload,
        steps=tuple(filter(None, map(decimal, record.steps.split(",")))),
        step_pause=budget.step_pause if record.steps else None,
        judge=judge.seconds,
        max_restarts=judge.max_restarts,
        failure_limit=judge.failure_limit,
        metrics_digest=digest_of(judge.metrics),
    )
    return Run(policy.namespace, record.name, target, options, record.started)


def begun(policy: Policy, run: RunRecord) -> PolicyStatus:
    """Return the status at the start of a run."""
    policy = policy.with_status(with_last(policy.status))
    return replace(TRIGGERS[run.trigger].begun(policy, run), run=run)


def ended(policy: Policy, run: RunRecord, outcome: Outcome, *, message: str, now: datetime) -> PolicyStatus:
    """Return the status after the end of a run."""
    trigger, end, failed = TRIGGERS[run.trigger], outcome.end, outcome.end.has_failed
    over = replace(run, finished=rfc3339(now), failed=failed, message=message, halted=end is End.HALTED)
    over = replace(over, hashes=_hashes(policy, run), left=outcome.left)
    status = trigger.ended(policy, over)
    if end is End.DONE and trigger in triggers_of(policy):
        status = trigger.complete(policy.with_status(status), over)
    elif run.reload and not failed:
        status = lacked(policy.with_status(status), over, (*outcome.away, *outcome.left))
    return replace(status, run=over)


def _hashes(policy: Policy, run: RunRecord) -> tuple[str, ...]:
    """Return `RunRecord.hashes`."""
    there = {each.part: each.hash for each in policy.status.config if brings(run, each)}
    return tuple(there.get(each.part, "") for each in run.changes)


def given_way(look: Look) -> Look:
    """End a run that was begun in another way to restart (--via). Nobody has edited the policy, so its time counts."""
    policy, run = look.policy, look.status.run
    if run is None or run.finished or run.name != name_of(replace(policy, patch=not policy.patch), run):
        return look
    why = "ended because the manager restarts containers in another way now (--via)"
    return look.with_status(_over(TRIGGERS[run.trigger].replaced(policy, run), run, why, look.now))


def next_run(look: Look, wanted: tuple[RunRecord, ...], *, may_start: bool) -> tuple[PolicyStatus, RunRecord | None]:
    """Return the status with the policy's last run as it is from now on, and the run to carry out.

    The latter is the last run if that goes on, or a wanted one. It is None if nothing is to be done, or if a failed run
    stops the policy. A run that another one replaces goes on until that one `may_start`: it brings the newest data.
    """
    policy, last, first = look.policy, look.status.run, next(iter(wanted), None)
    if last is None:
        return look.status, first
    failed = stopped_by(policy) if last.finished else None
    before = failed or last
    newer_changes = (each for each in wanted if each.objects and each.since > before.since)
    changes = sorted(newer_changes, key=lambda each: (each.pods, each.since), reverse=True)
    over = bool(before.finished and before.undoes)  # a run back, which is not for the template
    images = [each for each in wanted if each.image and (over or each.gives != before.gives)]
    if last.finished:
        return look.status, first if failed is None else next(iter((*images, *changes)), None)
    if why := _misfit(policy, last):
        return _over(look.status, last, f"ended because {why}", look.now), first
    if not last.image and is_taken_back(look, last):
        why = "all containers have reloaded" if has_reloaded(policy, last) else "its changes were taken back"
        return _over(look.status, last, f"ended because {why}", look.now), first
    concerned = [each for each in look.found.running if _concerns(last, each)]
    image_may = bool(last.image) or (may_start and bool(last.objects))
    for what, may, newer in (("template", image_may, images), ("change", may_start and not last.undoes, changes)):
        found = (each for each in newer if any(_concerns(each, one) for one in _reasons(look, each, concerned)))
        if may and (run := next(found, None)) is not None:
            status = TRIGGERS[last.trigger].replaced(policy, last)
            return _over(status, last, f"replaced by a run for a newer {what}", look.now), run
    return look.status, last


def _over(status: PolicyStatus, run: RunRecord, message: str, now: datetime) -> PolicyStatus:
    return replace(status, run=replace(run, finished=rfc3339(now), message=message))


def _concerns(run: RunRecord, container: Running) -> bool:
    """Whether a container is a reason for a run."""
    parts = {each.part for each in run.changes}
    uses_changed = not run.objects or bool(run.image) or any(part in parts for _, part in container.keys)
    return container.name in run.containers and container.is_init is run.pods and uses_changed


def _reasons(look: Look, newer: RunRecord, concerned: list[Running]) -> list[Running]:
    """Return what may be a reason to replace a run, which concerns these containers, by a newer one.

    One that restarts whole pods restarts all of their containers, and gives none an image.
    """
    if not newer.pods or (look.status.run is not None and look.status.run.image):
        return concerned
    pods = {each.pod for each in concerned}
    return [each for each in look.found.running if each.pod in pods]


def is_without(look: Look, run: RunRecord) -> bool:
    """Whether no pod has a container that is a reason for a run."""
    return not any(_concerns(run, each) for each in look.found.running)


def is_repaired(look: Look, run: RunRecord) -> bool:
    """Whether all containers of a run have started since its time, and are ready for long enough.

    If its changes were taken back, none of them may have one of these. If no pod has one of them any more, those of the
    same names, or else all others, must have started since the run began.
    After a run for an image, they have the image of the template instead, and so has what new pods are made of.
    """
    if run.image:
        ready = [each.ready for each in look.found.running if each.name in run.containers]
        lacking = any(each.container in run.containers for each in look.changes)
        follows = bool(ready) and all(ready) and look.follows and not lacking
        return follows and not run.halted  # its pods are ready, and yet the judgement of them was no
    without = is_without(look, run)
    if not without and any(look.status.is_bad(each) and brings(run, each) for each in look.status.config):
        return False
    taken_back = is_taken_back(look, run)
    if run.halted and stops(look.policy, run) and not (taken_back or is_corrected(look.status, run)):
        return False
    concerned = [each.barred for each in look.found.running if _concerns(run, each)]
    if concerned and None not in concerned:
        return False  # maybe only while the versions of kubelet are unknown
    since, available = parse_time(run.since) or look.now, look.now - timedelta(seconds=look.min_ready)
    if not taken_back and without:
        left = [each for each in look.found.running if each.name in run.containers]  # they need it no more
        began, running = parse_time(run.started) or look.now, left or look.found.running
        # Beside older ones, those that need it may be away for a moment.
        return bool(running) and all(each.ready and began < each.started <= available for each in running)
    pods = only(look.policy, run)
    for each in look.restartable:
        if pods and each.pod not in pods:
            continue
        own = [change.until for change in run.changes if (each.name, change.part) in each.keys]
        has_it = not is_behind(look, each) if taken_back else max(own, default=since) < each.started
        has_it |= each.pod in look.found.reloaded.get(run.name, ())
        if _concerns(run, each) and not (each.ready and has_it and each.started <= available):
            return False
    return True


def _misfit(policy: Policy, active: RunRecord) -> str:
    """Return why an active run does not fit the policy; "" if it fits."""
    if active.name == name_of(policy, replace(active, reload=not active.reload)):
        return "another version of the manager has started it, which does not know how containers reload"
    if active.back and active.image and not (active.undoes or active.objects):
        return "its record does not say which run it undoes"  # an older CRD or manager has dropped that
    if active.reload and not policy.reloads:
        return "containers must not reload any more (triggers.configChange.action)"
    if active.generation == policy.generation:
        return ""
    trigger = TRIGGERS[active.trigger]
    if trigger not in triggers_of(policy):
        return f"the policy no longer has the trigger {active.trigger}"
    if policy.containers and not {*active.containers} <= {*policy.containers}:
        return "the policy no longer has all of its containers"
    if active.name != name_of(policy, active):
        return "the policy has another target"
    return trigger.misfit(policy, active)
