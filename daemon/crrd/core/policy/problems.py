"""What a policy asks for that has no effect on its target, and what to do about it. Silence would look like health."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from crrd.core.api.reason_table import ReasonTable
from crrd.core.api.time import format_duration
from crrd.core.config.references import Kind
from crrd.core.policy.config import due
from crrd.core.policy.observed import Look
from crrd.core.policy.types import Policy
from crrd.lib.plain import and_more

_NAMED = 5  # Most objects that a message names


class PolicyReason(ReasonTable):
    """Reasons of the conditions. Those of problems have a sentence, and what to do."""

    INVALID = "InvalidSpec"
    SUSPENDED = "Suspended"
    TARGET = "TargetNotFound"
    UNREADABLE = "ConfigNotReadable"
    READABLE = "ConfigReadable"
    OLD_FILES = "PodPatchRefused"
    DROPPED = (
        "StatusFieldsDropped",
        "no run starts, because the API server drops fields of the status that the CRD of policies lacks: {fields}",
        "install crrd again, the way you installed it (helm upgrade, or kubectl apply)",
    )
    MISSING = "ConfigMissing"
    FAILED = "RunFailed"
    LOOK_FAILING = (
        "LookFailing",
        "the manager cannot look at the policy's objects, and starts nothing: {error}",
        "the manager's log has all errors; it tries again until it can",
    )
    RUNNING = "Running"
    BLOCKED = "RunBlocked", "no progress for {time}"
    WINDOW = "WaitingForWindow"
    INTERVAL = "WaitingForMinInterval"
    SETTLING = "Settling"
    UNSETTLED = (
        "NeverSettles",
        "{objects} has changed again and again since {since}, and each time before settle was over",
        "add what changes all the time to spec.triggers.configChange.ignore, or set settle to a shorter time",
    )
    RETRY = "WaitingForRetry"
    CONTROLLER = "WaitingForController"
    NODES = "WaitingForNodes", "not restarted yet: {pods}", "a run restarts them when their nodes are back"
    IDLE = "Idle"
    EFFECTIVE = "Effective", "the policy does all that it asks for"
    IMMUTABLE = (
        "ImmutableReplaced",
        (
            "{objects} is immutable and was replaced under its name; kubelet on {nodes} may keep the old data while "
            "any pod there uses it, and gives it to new pods, too"
        ),
        (
            "use another name for new data, or let no pod on these nodes use the object for a moment, for example by "
            "scaling to 0 and back"
        ),
    )
    NO_PODS = "NoPods", "no pod matches spec.selector", "check its labels, if there should be pods now"
    NOT_OWNED = (
        "PodsNotOwned",
        "{target} owns no pods; {count} pods match its selector, but other workloads own them",
        "name the workload that owns the pods in spec.targetRef, or use spec.selector",
    )
    CONTAINER = (
        "ContainerNotFound",
        "no pod has a container {names} that can be restarted in place",
        "use names in spec.containers that the pods have: {there}",
    )
    SECRETS = (
        "SecretsNotCounted",
        "the containers use only Secrets ({names}), and these do not count",
        "set spec.triggers.configChange.secrets to true",
    )
    NO_CONFIG = (
        "NoConfiguration",
        "the containers use no ConfigMap or Secret{others} in env, envFrom or a volume",
        "remove the trigger configChange, or check spec.containers and the target",
    )
    UNREACHED = "ConfigOutOfReach", "{what}"
    TEMPLATE = "TemplateNotFollowed", "{what}"
    BARRED = (
        "NotRestartable",
        "{what} ({pods}), so changes do not reach it",
        "replace these pods, or name only other containers in spec.containers",
    )
    AGE = (
        "MaxAgeTooShort",
        "maxAge is {age}, but pods need {needed} to become ready after a start{least}",
        "set maxAge to a longer time",
    )


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that the policy asks for and that has no effect."""

    reason: PolicyReason
    message: str  # What is wrong, and what to do
    blocking: bool  # Whether the policy can do nothing at all, or leaves containers with old data


def problems(look: Look) -> tuple[Problem, ...]:
    """Return the problems of a policy with up-to-date records, those first because of which it is not ready."""
    every = [*_of_nodes(look), *_of_template(look), *_of_records(look.policy), *_of_barred(look)]
    if look.found.names:
        every += [*_of_containers(look), *_of_configuration(look), *_of_age(look)]
    else:
        every += _of_no_pods(look)
    return tuple(sorted(every, key=lambda each: not each.blocking))


def _of_nodes(look: Look) -> Iterator[Problem]:
    """Yield the pods that should be restarted now, but whose nodes cannot do it."""
    pods: dict[str, set[str]] = {}
    max_age, down = look.policy.max_age, look.found.down
    off = [each for each in look.restartable if each.node in down]
    changes, _ = due(look, off)
    for each in off:
        old = max_age is not None and each.started <= look.now - timedelta(seconds=max_age)
        if old or any(change.concerns(each) for change in changes):
            pods.setdefault(down[each.node], set()).add(each.pod)
    for pod, node in (place for each in look.changes for place in each.lacking):
        if node in down:
            pods.setdefault(down[node], set()).add(pod)
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
            pods.setdefault(each.barred.say(container=each.name), set()).add(each.pod)
    for what, names in sorted(pods.items()):
        yield _problem(PolicyReason.BARRED, blocking=not look.restartable, what=what, pods=_some(sorted(names)))


def _of_records(policy: Policy) -> Iterator[Problem]:
    """Yield the immutable objects whose old data nodes may keep."""
    kept = [each for each in policy.status.config if each.is_kept]
    if policy.config is not None and kept:
        objects = _some(sorted({each.part.object for each in kept}))
        nodes = _some(sorted({node for each in kept for node in each.nodes}))
        yield _problem(PolicyReason.IMMUTABLE, blocking=True, objects=objects, nodes=nodes)


def _problem(reason: PolicyReason, *, blocking: bool, **values: object) -> Problem:
    return Problem(reason, ": ".join([reason.say(**values), *reason.advise(**values)]), blocking)


def _of_no_pods(look: Look) -> Iterator[Problem]:
    """Yield why there is no pod, unless the target may just have none now."""
    policy, found = look.policy, look.found
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
    nothing = not any(each.uses for each in found.running)
    alone = nothing and policy.schedule is None and policy.max_age is None and not policy.template_image
    for each in found.unreached:
        yield _problem(PolicyReason.UNREACHED, blocking=alone, what=each)
    if not nothing:
        return
    ignored = [each for each in found.left_out if each.name in policy.config.ignore]
    secrets = {each.name for each in found.left_out if each.kind is Kind.SECRET and each not in ignored}
    if secrets:
        yield _problem(PolicyReason.SECRETS, blocking=alone, names=_some(sorted(secrets)))
    elif not found.unreached:
        others = " that is not ignored" if ignored else ""
        yield _problem(PolicyReason.NO_CONFIG, blocking=alone, others=others)


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
