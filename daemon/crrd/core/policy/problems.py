"""What a policy asks for that has no effect on its target, and what to do about it. Silence would look like health."""

from collections.abc import Iterator
from dataclasses import dataclass

from crrd.core.api.time import format_duration
from crrd.core.config.references import Kind
from crrd.core.policy.observed import Look
from crrd.core.policy.order import circle, unknown
from crrd.core.policy.reasons import PolicyReason
from crrd.core.policy.triggers import CONFIG_CHANGE, triggers_of
from crrd.core.policy.types import OnFailure
from crrd.lib.plain import and_more

_NAMED = 5  # Most objects that a message names


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that the policy asks for and that has no effect."""

    reason: PolicyReason
    message: str  # What is wrong, and what to do
    blocking: bool  # Whether the policy can do nothing at all, or leaves containers with old data


def problems(look: Look) -> tuple[Problem, ...]:
    """Return the problems of a policy with up-to-date records, those first because of which it is not ready."""
    of_pods = (_of_containers, _of_configuration, _of_age) if look.found.names else (_of_no_pods,)
    every = (
        each for find in (_of_spec, _of_nodes, _of_template, _of_records, _of_barred, *of_pods) for each in find(look)
    )
    return tuple(sorted(every, key=lambda each: not each.blocking))


def _of_spec(look: Look) -> Iterator[Problem]:
    """Yield a `Restore` or `Undo` of nothing, and what keeps `spec.after` from having an order."""
    if look.policy.on_failure is OnFailure.RESTORE and look.policy.config is None:
        yield _problem(PolicyReason.NO_RESTORE, blocking=False)
    if look.policy.on_failure is OnFailure.UNDO and not look.policy.template_image:
        yield _problem(PolicyReason.NO_UNDO, blocking=False)
    if names := circle(look):
        yield _problem(PolicyReason.CIRCLE, blocking=True, circle=" after ".join(names))
    if names := unknown(look):
        yield _problem(PolicyReason.NO_POLICY, blocking=False, names=" and ".join(names))


def _of_nodes(look: Look) -> Iterator[Problem]:
    """Yield the pods that should be restarted now, but whose nodes cannot do it."""
    pods: dict[str, set[str]] = {}
    for pod, node in (place for each in triggers_of(look.policy) for place in each.put_off(look)):
        pods.setdefault(look.found.down[node], set()).add(pod)
    if pods:
        shown = "; ".join(f"{_some(sorted(names))} ({why})" for why, names in sorted(pods.items()))
        yield _problem(PolicyReason.NODES, blocking=True, pods=shown)


def _of_template(look: Look) -> Iterator[Problem]:
    """Yield why pods in place cannot follow the template of their workload, and what to do."""
    template = look.found.template
    if template is not None and (whys := [*filter(None, (template.problem, *template.refused))]):
        yield _problem(PolicyReason.TEMPLATE, blocking=True, what="; ".join(whys))


def _of_barred(look: Look) -> Iterator[Problem]:
    """Yield the containers that can never be restarted in place."""
    pods: dict[str, set[str]] = {}
    for each in look.found.running:
        if each.barred is not None:
            pods.setdefault(each.barred.say(container=each.barred_by or each.name), set()).add(each.pod)
    for what, names in sorted(pods.items()):
        yield _problem(PolicyReason.BARRED, blocking=not look.restartable, what=what, pods=_some(sorted(names)))


def _of_records(look: Look) -> Iterator[Problem]:
    """Yield the immutable objects whose old data nodes may keep."""
    kept = [each for each in look.status.config if each.is_kept]
    if look.policy.config is not None and kept:
        objects = _some(sorted({each.part.object for each in kept}))
        nodes = _some(sorted({node for each in kept for node in each.nodes}))
        yield _problem(PolicyReason.IMMUTABLE, blocking=True, objects=objects, nodes=nodes)


def _problem(reason: PolicyReason, *, blocking: bool, **values: object) -> Problem:
    return Problem(reason, reason.message(**values), blocking)


def _of_no_pods(look: Look) -> Iterator[Problem]:
    """Yield why there is no pod, unless the target may just have none now."""
    policy, found = look.policy, look.found
    if found.stopped is not None:
        return  # maybe its pods could not be listed
    if policy.target is None:
        yield _problem(PolicyReason.NO_PODS, blocking=False)
    elif found.not_owned:
        target = f"{policy.target.kind} {policy.target.name}"
        yield _problem(PolicyReason.NOT_OWNED, blocking=True, target=target, count=found.not_owned)


def _of_containers(look: Look) -> Iterator[Problem]:
    policy, found = look.policy, look.found
    absent = [name for name in policy.containers if name not in found.names]
    if absent:
        names, there = " or ".join(absent), ", ".join(sorted(found.names))
        every = len(absent) == len(policy.containers)
        yield _problem(PolicyReason.CONTAINER, blocking=every, names=names, there=there)


def _of_configuration(look: Look) -> Iterator[Problem]:
    policy, found = look.policy, look.found
    if policy.config is None or not found.running:
        return
    yield from _of_reload(look)
    useless = not any(each.works(look) for each in triggers_of(policy))
    for each in found.unreached:
        yield _problem(PolicyReason.UNREACHED, blocking=useless, what=each)
    if CONFIG_CHANGE.works(look):
        return
    ignored = [each for each in found.left_out if each.name in policy.config.ignore]
    secrets = {each.name for each in found.left_out if each.kind is Kind.SECRET and each not in ignored}
    if secrets:
        yield _problem(PolicyReason.SECRETS, blocking=useless, names=_some(sorted(secrets)))
    elif not found.unreached:
        others = " that is not ignored" if ignored else ""
        yield _problem(PolicyReason.NO_CONFIG, blocking=useless, others=others)


def _of_reload(look: Look) -> Iterator[Problem]:
    """Yield why no container ever reloads, although the policy would like it."""
    old = look.found.old_daemons
    whys = {
        each.why_restart([part]) or ("its node daemon is too old" if each.node in old else "")
        for each in look.restartable
        for _, part in each.keys
        if not each.is_init
    }
    if look.policy.reloads and whys and "" not in whys:
        yield _problem(PolicyReason.NO_RELOAD, blocking=False, why=min(whys))


def _of_age(look: Look) -> Iterator[Problem]:
    """Yield a `maxAge` that is over before a restarted pod is available. The fastest pod shows how long it takes."""
    needed = min((each.ready_after for each in look.found.running if each.ready_after is not None), default=0)
    age, least = look.policy.max_age, look.min_ready
    if age is not None and needed + least >= age:
        words = {"age": format_duration(age), "needed": format_duration(needed)}
        more = f" and minReady is {format_duration(least)}" if least else ""
        yield _problem(PolicyReason.AGE, blocking=True, **words, least=more)


def _some(names: list[str]) -> str:
    return and_more(names[:_NAMED], len(names) - _NAMED)
