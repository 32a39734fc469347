"""The order of runs of several policies for a change of one object: a bad change should cost one pod, not one of each.

`spec.after` names the policies that come first. Without it, a run waits until those that have begun before it for the
same object have done their first step. If a run has failed, the others do not begin with the same data.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from crrd.core.config.references import ObjectName
from crrd.core.policy.config import brings
from crrd.core.policy.failures import failed_with, refuses, stopped_by
from crrd.core.policy.observed import Look, Peer
from crrd.core.policy.triggers import Wanted
from crrd.core.policy.types import Policy, RunRecord, UsedObject
from crrd.core.rollout.parts import PartState
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.run import Options


@dataclass(frozen=True, slots=True)
class Claims:
    """What a policy does about changed objects, as of its last decision."""

    wants: frozenset[ObjectName] = frozenset()
    """Changes that are due or settle, data with which a run has failed, and data without which none can start."""
    runs: frozenset[ObjectName] = frozenset()  # Those of its run
    waits: bool = False  # Whether it waits for another policy
    blind: bool = False  # Whether the manager may not read what it uses, or may not patch its pods


NO_CLAIMS, BLIND = Claims(), Claims(blind=True)
_STEP_OVER = (PartState.ASKING, PartState.PAUSING, PartState.OVER)


def claims_of(look: Look, wanted: Wanted, run: RunRecord | None, *, waits: bool) -> Claims:
    """Return what a policy does about changed objects. `run` is the one to carry out."""
    changes = [change for each in wanted.runs for change in each.changes]
    changes += [change for each in wanted.settling for change in each.changes]
    lacking = (part.object_name for (_, part), data in look.found.data.items() if not data.exists)
    wants = frozenset([*(each.part.object_name for each in changes), *lacking]) | refused_by(look.policy)
    return Claims(wants, _objects(run), waits)


def _objects(run: RunRecord | None) -> frozenset[ObjectName]:
    return frozenset(each.part.object_name for each in run.changes) if run is not None else frozenset()


def refused_by(policy: Policy, tries: RunRecord | None = None) -> frozenset[ObjectName]:
    """Return the objects with whose data a run of a policy has failed, as far as it has seen them.

    It may try them once more (`refuses`). No other policy does so before it has: `tries` is its run then, once the
    first step of that is done.
    """
    status, failed = policy.status, list[UsedObject]()
    for each in policy.counted:
        tried = tries is not None and brings(tries, each)
        if status.is_bad(each) or (failed_with(status, each) is not None and not tried):
            failed.append(each)
    return frozenset(each.part.object_name for each in failed)


def peer_of(policy: Policy, claims: Claims | None, seen: Mapping[ObjectName, bool], *, past_first_step: bool) -> Peer:
    """Return a policy as others see it.

    `claims` are those of its last decision, None before the first one of this process. `seen` are the objects that it
    was about, and whether they are still the same. `past_first_step` is about the run in progress.
    """
    run, failed, looked_at = policy.status.run, stopped_by(policy), frozenset(seen)
    known = frozenset(each.part.object_name for each in policy.counted)
    uses = known if claims is None or claims.blind else looked_at
    if claims is None:  # an earlier leader may have begun the run
        looked_at = known
        claims = Claims(runs=_objects(run) if run is not None and not run.finished else frozenset())
    same = frozenset(each for each, is_same in seen.items() if is_same)
    bad = {each.part.object_name for each in policy.status.bad}
    return Peer(
        policy.name,
        policy.after,
        active=policy.config is not None and not policy.is_off,
        uses=uses,
        seen=same,
        wants=claims.wants,
        runs=claims.runs,
        past_first_step=past_first_step,
        failed=failed.name if failed is not None else "",
        refused=refused_by(policy, run if past_first_step else None) | (bad & looked_at - same),
    )


def past_first_step(options: Options, plan: Plan) -> bool:
    """Whether a run is well after its first step, or after its first pod if it has no steps."""
    if any(row.stage is Stage.FAILED for row in plan.rows):
        return False
    if options.steps or options.judge:
        return plan.part.number > 0 or plan.part.state in _STEP_OVER
    return any(row.stage is Stage.DONE for row in plan.rows)


def _tried_again(policy: Policy) -> frozenset[ObjectName]:
    """Return the objects with whose data a run of a policy has failed, and which it tries once more."""
    failed = (each for each in policy.status.config if failed_with(policy.status, each) is not None)
    return frozenset(each.part.object_name for each in failed if not refuses(policy, each))


def wait_for_others(look: Look, run: RunRecord, *, begun: bool = False) -> str:
    """Return for which other policy a run waits before it begins, or goes on, and why; "" if for none.

    One that brings the last good data back waits for none. Nor does one with an image that has `begun`, because its
    pods may be unready. All others wait while their containers would read data with which a run of another one has
    failed.
    """
    if run.back or (begun and run.image):
        return ""
    objects = frozenset[ObjectName]() if begun else _objects(run)
    using = (each for each in look.found.running if each.name in run.containers)
    read = (objects | {part.object_name for each in using for _, part in each.keys}) - _tried_again(look.policy)
    for peer in sorted(look.found.peers, key=lambda each: each.name):
        first = peer.active and peer.name in look.policy.after
        if first and (some := objects & peer.uses & ((peer.uses - peer.seen) | peer.wants | peer.runs)):
            more = f", whose run {peer.failed} has failed" if peer.failed else ""
            return f"policy {peer.name}{more}, which comes first (spec.after) for {_shown(some)}"
        if peer.active and (some := read & peer.refused):
            data = f"of which a run has failed with this {_shown(some)}"
            return f"policy {peer.name}, {data}: correct the data, repair its pods, or suspend that policy"
        if peer.active and not peer.past_first_step and (some := objects & peer.runs):
            return f"policy {peer.name}, whose run for {_shown(some)} has not finished its first step"
    return ""


def _shown(objects: frozenset[ObjectName]) -> str:
    return ", ".join(sorted(f"{kind} {name}" for kind, name in objects))


def circle(look: Look) -> tuple[str, ...]:
    """Return the policies that would wait for each other, beginning and ending with this one; () for none."""
    after: Mapping[str, tuple[str, ...]] = {each.name: each.after for each in look.found.peers}
    seen, paths = set[str](), list[tuple[str, ...]]()
    paths += [(look.policy.name, name) for name in look.policy.after]
    while paths:
        path = paths.pop()
        if path[-1] == look.policy.name:
            return path
        if path[-1] not in seen:
            seen.add(path[-1])
            paths += [(*path, name) for name in after.get(path[-1], ())]
    return ()


def unknown(look: Look) -> tuple[str, ...]:
    """Return the names in `spec.after` that no policy of the namespace has."""
    known = {look.policy.name, *(each.name for each in look.found.peers)}
    return tuple(name for name in look.policy.after if name not in known)
