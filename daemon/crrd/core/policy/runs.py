"""The run of a policy as a record in its status: how it is made, whether it still fits, and how it begins and ends."""

import hashlib
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum

from crrd.core.api.time import parse_time, rfc3339
from crrd.core.config.parts import read_change
from crrd.core.policy.config import Due, covered
from crrd.core.policy.observed import Look
from crrd.core.policy.types import Policy, PolicyStatus, RunRecord
from crrd.core.rollout.run import Options, Run, Target


class Trigger(StrEnum):
    """Why a run starts."""

    CONFIG = "configChange"
    SCHEDULE = "schedule"
    AGE = "maxAge"


def make_record(
    look: Look, trigger: Trigger, containers: tuple[str, ...], since: datetime, change: Due | None = None
) -> RunRecord:
    """Return the record of a run that could start now. Containers that started after `since` are not recreated."""
    policy, at, started = look.policy, rfc3339(since), rfc3339(look.now)
    message = f"policy {policy.name}: " + (f"{change.objects} changed" if change is not None else trigger)
    objects = tuple(map(str, change.changes)) if change is not None else ()
    run = RunRecord("", trigger.value, containers, at, started, policy.generation, message, objects)
    return replace(run, name=_name(policy, run))


def make_run(policy: Policy, record: RunRecord, target: Target) -> Run:
    """Return the run in the form of `kubectl recreate`."""
    budget = policy.budget
    options = Options(
        record.containers,
        max_unavailable=budget.max_unavailable,
        max_per_node=budget.max_per_node,
        min_ready=budget.min_ready,
        preflight=True,
        since=record.since,
        objects=record.objects,
        reason=record.reason,
        policy=policy.uid,
    )
    return Run(policy.namespace, record.name, target, options, record.started)


def begun(policy: Policy, run: RunRecord) -> PolicyStatus:
    """Return the status at the start of a run. From then on, containers may have the new data of its changes."""
    status = replace(policy.status, run=run)
    if run.trigger == Trigger.SCHEDULE:
        return replace(status, scheduled=run.since, skipped="")
    return replace(status, config=covered(policy, run, done=False)) if _is_for_change(run) else status


def ended(
    policy: Policy, run: RunRecord, *, failed: bool, message: str, now: datetime, complete: bool = True
) -> PolicyStatus:
    """Return the status after the end of a run. It is not `complete` if pods are left whose nodes are down."""
    over = replace(run, finished=rfc3339(now), failed=failed, message=message)
    config = policy.status.config
    if not failed and complete and _is_for_change(run) and policy.config is not None:
        config = covered(policy, run, done=True)
    return replace(policy.status, run=over, config=config)


def next_run(look: Look, wanted: tuple[RunRecord, ...]) -> tuple[RunRecord | None, RunRecord | None]:
    """Return the policy's last run as it is from now on, and the run to carry out.

    The latter is the last run if that goes on, or a wanted one. It is None if nothing is to be done, or if a failed run
    stops the policy.
    """
    policy, last, first = look.policy, look.status.run, next(iter(wanted), None)
    if last is None:
        return None, first
    changes = [each for each in wanted if _is_for_change(each) and each.since > last.since]
    if last.finished:
        return last, next(reversed(changes), None) if stops(policy, last) else first
    if why := _misfit(policy, last):
        return replace(last, finished=rfc3339(look.now), message=f"ended because {why}"), first
    if newer := [each for each in changes if _is_for_change(last) and {*each.containers} & {*last.containers}]:
        return replace(last, finished=rfc3339(look.now), message="replaced by a run for a newer change"), newer[-1]
    return last, last


def stops(policy: Policy, last: RunRecord) -> bool:
    """Whether a failed run stops the policy until the policy or the configuration changes."""
    return last.failed and last.generation == policy.generation


def is_repaired(look: Look, run: RunRecord) -> bool:
    """Whether all containers of a run have started since its time, and are ready for long enough."""
    changes = [change for change in map(read_change, run.objects) if change is not None]
    since, available = parse_time(run.since) or look.now, look.now - timedelta(seconds=look.min_ready)
    for each in look.found.running:
        own = [change.until for change in changes if (each.name, change.part) in each.keys]
        concerned = each.name in run.containers and (own or not run.objects)
        if concerned and not (each.ready and max(own, default=since) < each.started <= available):
            return False
    return True


def _is_for_change(run: RunRecord) -> bool:
    return run.trigger == Trigger.CONFIG


def _name(policy: Policy, run: RunRecord) -> str:
    """Return the name of a run. Every process computes the same name, and another one for another target."""
    identity = [policy.uid, str(run.generation), run.trigger, run.since, *run.containers]
    digest = hashlib.sha256("|".join([*identity, str(policy.target), policy.selector]).encode()).hexdigest()
    return f"{policy.name.replace('.', '-')[:28].rstrip('-')}-{digest[:10]}"


def _misfit(policy: Policy, active: RunRecord) -> str:
    """Return why an active run does not fit the policy after an edit, "" if it fits."""
    triggers: dict[str, object] = {
        Trigger.CONFIG: policy.config,
        Trigger.SCHEDULE: policy.schedule,
        Trigger.AGE: policy.max_age,
    }
    if active.generation == policy.generation:
        return ""
    if triggers.get(active.trigger) is None:
        return f"the policy no longer has the trigger {active.trigger}"
    if policy.containers and not {*active.containers} <= {*policy.containers}:
        return "the policy no longer has all of its containers"
    return "" if active.name == _name(policy, active) else "the policy has another target"
