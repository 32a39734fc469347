"""The checks of `crrd doctor`: facts in, findings out.

A check yields all problems first, then what it could not read, and at last that all is well. If there is no problem,
only the first of the others counts.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from crrd.core.api.fields import Field, SetBy, Type
from crrd.core.api.reasons import Reason
from crrd.core.api.schema import FIELDS
from crrd.core.api.types import GROUP, PLURAL, VERSIONS, RequestPhase, StatePhase
from crrd.core.doctor.facts import Facts, Json, PodSeen, Trial, Webhook
from crrd.core.doctor.findings import Check, Finding, Result, State, Topic, listed
from crrd.core.doctor.restarts import find_other_names, find_ways
from crrd.core.policy.schema import FIELDS as POLICY_FIELDS
from crrd.lib.jsonfields import items, mapping, text, value_at
from crrd.lib.plain import plain

HOOK = "mutate-crr.apps.kruise.io"  # The webhook of crrd's manager that requests need
KRUISE_HOOKS = "kruise-mutating-webhook-configuration"  # OpenKruise's manager knows its own by this name
POLICY_OF_REQUESTS, POLICY_OF_NODE = "crrd-requests", "crrd-node"
POLICIES_OF_MANAGER = (
    *("crrd-admission", "crrd-manager", "crrd-refresh-files", "crrd-pull-pods", "crrd-update-images"),
    *("crrd-manager-webhooks", "crrd-manager-secrets"),
)
CREATE = f"create {PLURAL}.{GROUP}"  # The right that a user needs first
SKEW_SECONDS = 10.0  # By how much clocks may differ: headers have whole seconds, and calls take some time
NODE_LEASE_SECONDS = 60.0  # Kubelet renews its Lease every 10 s, and a node whose Lease is 40 s old is no longer Ready
_CRIO_PANICS = re.compile(r"cri-o://v?1\.(?:\d|[12]\d|3[0-3]|34\.[0-8]|35\.[0-2])(?!\d)", re.ASCII)
"""A CRI-O without the fix of cri-o#9799, which is in 1.34.9 (cri-o#9920), 1.35.3 (cri-o#9814) and 1.36.0. A vendor's
build may have it earlier."""


def examine(facts: Facts) -> tuple[Finding, ...]:
    """Return all findings, in the order of the checks; each check has at least one."""
    places = {
        "managers": next((each.namespace for each in facts.managers), "crrd-system"),
        "daemons": next((each.namespace for each in facts.daemons), "crrd-node"),
    }
    findings: list[Finding] = []
    for check, (look, needs) in _CHECKS.items():
        is_absent = facts.is_absent and check in _OF_INSTALLATION
        found = [*_unread(facts, *needs)] or [*look(facts)]
        results: list[Result] = [(Topic.NOT_INSTALLED, {})] if is_absent else found
        faults = [each for each in results if each[0].state in (State.WARNING, State.PROBLEM)]
        findings += [_finding(check, topic, {**places, **values}) for topic, values in faults or results[:1]]
    return tuple(findings)


def _finding(check: Check, topic: Topic, values: Mapping[str, Any]) -> Finding:
    return Finding(check, topic, plain(topic.say(**values)), "".join(topic.advise(**values)))


def _unread(facts: Facts, *names: str) -> Iterator[Result]:
    """Yield the first of these facts that could not be read."""
    for name in names:
        if name in facts.unread:
            yield Topic.UNREAD, {"why": facts.unread[name]}
            return


def _if_any(topic: Topic, names: Collection[str]) -> Iterator[Result]:
    if names:
        yield topic, listed(names)


def _server(facts: Facts) -> Iterator[Result]:
    yield Topic.SERVER_TOO_OLD if facts.too_old else Topic.SERVER, {"version": facts.version}


def dropped_fields(schema: Json, fields: Mapping[str, Field]) -> list[Field]:
    """Return the fields of the table that a CRD's schema lacks, so that the API server drops them.

    If an object is missing, its fields are not listed. Fields that only other programs use do not count.
    """
    missing: list[Field] = []
    for path, field in fields.items():
        below = any(path.startswith(f"{each.path}.") for each in missing)
        if field.set_by not in (SetBy.OPENKRUISE, SetBy.OTHERS) and not below and not _has(schema, path):
            missing.append(field)
    return missing


def _has(schema: Json, path: str) -> bool:
    for part in path.split("."):
        if schema.get("x-kubernetes-preserve-unknown-fields") is True:
            return True
        properties = mapping(schema.get("properties"))
        if part.removesuffix("[]") not in properties:
            return False
        schema = mapping(properties[part.removesuffix("[]")])
        if part.endswith("[]"):
            schema = mapping(schema.get("items"))
    return True


def _needed(field: Field) -> bool:
    """Whether requests cannot be served without the field."""
    phase = isinstance(field.default, RequestPhase | StatePhase)
    return field.required or phase or field.type in (Type.OBJECT, Type.LIST)


def _crd(facts: Facts) -> Iterator[Result]:
    """Check that the CRDs are served and keep all fields. Policies need crrd's manager."""
    policies = facts.policy_crd
    if policies is None and _own_hooks(facts):
        yield Topic.POLICY_CRD_MISSING, {}
    if policies and (missing := dropped_fields(next(iter(_schemas(policies).values()), {}), POLICY_FIELDS)):
        yield Topic.POLICY_FIELDS_DROPPED, _paths(missing)
    if facts.crd is None:
        yield Topic.CRD_MISSING, {}
        return
    served = _schemas(facts.crd)
    known = [version for version in VERSIONS if version in served]
    if not known:
        yield Topic.CRD_NOT_SERVED, listed(VERSIONS)
    elif missing := dropped_fields(served[known[0]], FIELDS):
        yield Topic.NEEDED_FIELDS_DROPPED if any(map(_needed, missing)) else Topic.FIELDS_DROPPED, _paths(missing)
    else:
        yield Topic.CRD, listed(known)


def _schemas(crd: Json) -> dict[str, Json]:
    """Return the schemas of the versions that a CRD serves."""
    served = (each for each in map(mapping, items(value_at(crd, "spec.versions"))) if each.get("served") is True)
    return {text(each.get("name")): mapping(value_at(each, "schema.openAPIV3Schema")) for each in served}


def _paths(fields: Iterable[Field]) -> dict[str, Any]:
    return {"names": ", ".join(each.path for each in fields)}


def _own_hooks(facts: Facts) -> list[Webhook]:
    """Return the webhooks of crrd's manager."""
    return [each for each in facts.hooks if each.name == HOOK]


def _kruise_hooks(facts: Facts) -> set[str]:
    """Return the configuration of the webhooks of OpenKruise's manager, if it is there.

    Other programs (Kyverno, for example) have webhooks for requests, too, which admit nothing for a node daemon.
    """
    return {each.configuration for each in facts.hooks} & {KRUISE_HOOKS}


def _webhooks(facts: Facts) -> Iterator[Result]:
    """Check that the webhooks for requests exist and have a CA bundle."""
    ours, others = _own_hooks(facts), _kruise_hooks(facts)
    if ours:
        yield from _if_any(Topic.NO_CA_BUNDLE, {each.name for each in ours if not each.trusted})
        yield from _if_any(Topic.WEBHOOK_IGNORED, {each.name for each in ours if each.ignored})
        yield Topic.WEBHOOKS, {}
    elif others:
        yield Topic.OTHER_WEBHOOKS, listed(others)
    else:
        yield Topic.NO_WEBHOOKS, {}


def _admission(facts: Facts) -> Iterator[Result]:
    """Check that the webhook denies an invalid request, and that a valid one is admitted, by each version."""
    first, values = next(_by_one_version(facts, facts.trial, facts.valid_trial))
    yield first, {**values, "by": ""}
    for version, trials in facts.by_version.items():
        topic, values = next(_by_one_version(facts, *trials))
        if topic is not first:
            yield topic, {**values, "by": f" by {version}"}


def _by_one_version(facts: Facts, trial: Trial, valid: Trial | None) -> Iterator[Result]:
    if 200 <= trial.status < 300:
        yield Topic.NOT_ADMITTED, {}
    elif not _denied_by({each.name for each in _own_hooks(facts) or facts.hooks} or {HOOK}, trial):
        yield _refusal(facts, trial, Topic.WEBHOOK_NOT_ASKED)
    elif valid is None:
        yield Topic.ONLY_DENIES, {}
    elif not 200 <= valid.status < 300:
        yield _refusal(facts, valid, Topic.REQUEST_DENIED)
    else:
        yield Topic.ADMISSION if valid.admitted else Topic.NOT_COMPLETED, {"pod": valid.pod}


def _denied_by(webhooks: Iterable[str], trial: Trial) -> bool:
    """Whether one of the webhooks has denied a request, and not a policy, a quota or the API server itself.

    Only the API server's message has the name of the webhook.
    """
    return any(f'admission webhook "{each}" denied the request' in trial.error for each in webhooks)


def _refusal(facts: Facts, trial: Trial, topic: Topic) -> Result:
    """Return the result for a trial that was refused: the topic if it shows that users' requests are refused, too."""
    rights = facts.missing_rights if "missing_rights" not in facts.unread else (CREATE,)
    if trial.status == 0:
        return Topic.ADMISSION_FAILED, {"error": trial.error}
    if trial.status == 422 or (trial.status == 403 and CREATE not in rights):
        return topic, {"error": trial.error, "pod": trial.pod}
    return Topic.UNREAD, {"why": trial.error}  # for example, a webhook that does not support a dry run (400)


def _policies(facts: Facts) -> Iterator[Result]:
    """Check that the ValidatingAdmissionPolicies exist and are bound."""
    of_node = () if facts.needs_no_daemons else (POLICY_OF_NODE,)
    wanted = (POLICY_OF_REQUESTS, *of_node, *(POLICIES_OF_MANAGER if _own_hooks(facts) else ()))
    there = {each: {name for name in facts.policies if name.endswith(each)} for each in wanted}  # allows a namePrefix
    unbound = [each for each, names in there.items() if names and names.isdisjoint(facts.bound)]
    yield from _if_any(Topic.POLICIES_MISSING, [each for each in wanted if not there[each]])
    yield from _if_any(Topic.POLICIES_UNBOUND, unbound)
    yield Topic.POLICIES, {"count": len(wanted)}


def _shown(pod: PodSeen) -> str:
    return f"{pod.key} on {pod.node or 'no node'}" + (f" ({pod.why})" if pod.why else "")


def _manager(facts: Facts) -> Iterator[Result]:
    """Check that the manager is ready and has a leader."""
    down = [_shown(each) for each in facts.managers if not each.ready]
    if not facts.managers and _kruise_hooks(facts):
        yield Topic.OTHER_MANAGER, {}
    elif not facts.managers:
        yield Topic.NO_MANAGER, {}
    elif len(down) == len(facts.managers):
        yield Topic.MANAGER_DOWN, listed(down)
    else:
        yield from _if_any(Topic.MANAGER_DEGRADED, down)
        if "leader" not in facts.unread and not _has_leader(facts):
            yield Topic.NO_LEADER, {}
        yield Topic.MANAGER, {"count": len(facts.managers)}


def _has_leader(facts: Facts) -> bool:
    lease = facts.leader
    if lease is None or not lease.holder or lease.renewed is None:
        return False
    return (facts.now - lease.renewed).total_seconds() <= lease.seconds + SKEW_SECONDS


def _daemons(facts: Facts) -> Iterator[Result]:
    """Check that each node has a ready daemon, and that all daemons have the same version."""
    if not facts.daemons:
        yield Topic.NONE_NEEDED if facts.needs_no_daemons else Topic.NO_DAEMONS, {}
        return
    served = {each.node for each in facts.daemons}
    without = [each.name for each in facts.nodes if each.has_runtime and each.ready and each.name not in served]
    away = {each.name for each in facts.nodes if not each.ready}
    down = [_shown(each) for each in facts.daemons if not each.ready and each.node not in away]
    versions = {each.version for each in (*facts.daemons, *facts.managers)}
    yield from _if_any(Topic.DAEMONS_DOWN, down)
    yield from _if_any(Topic.NODES_WITHOUT, without)
    yield from _if_any(Topic.NODES_NOT_READY, away)
    yield from _if_any(Topic.VERSIONS_DIFFER, versions if len(versions) > 1 else ())
    yield Topic.DAEMONS, {"count": len(facts.daemons), "version": "".join(versions)}


def _runtime(facts: Facts) -> Iterator[Result]:
    """Check that the daemons reach the runtime and kubelet, and that no runtime is known to crash at a stop."""
    for reason, topic in (
        (Reason.RUNTIME_UNAVAILABLE, Topic.RUNTIME_UNAVAILABLE),
        (Reason.RUNTIME_NOT_READY, Topic.RUNTIME_NOT_READY),
        (Reason.KUBELET_SILENT, Topic.KUBELET_SILENT),
    ):
        yield from _if_any(topic, {node for node, reasons in facts.waiting if reason.value in reasons})
    yield from _if_any(Topic.CRIO_PANICS, {each.name for each in facts.nodes if _can_panic(each.runtime)})
    ready = sum(each.ready for each in facts.daemons)
    yield (Topic.RUNTIME, {"count": ready}) if ready else (Topic.NO_READY_DAEMON, {})


def _can_panic(runtime: str) -> bool:
    return _CRIO_PANICS.match(runtime) is not None


def _clocks(facts: Facts) -> Iterator[Result]:
    """Check that the clocks of this machine and of the nodes agree with the API server's time."""
    ahead = (facts.here - facts.now).total_seconds()
    if abs(ahead) > SKEW_SECONDS:
        yield Topic.CLOCK_HERE, {"seconds": abs(ahead), "way": _way(ahead)}
    yield from _unread(facts, "node_leases", "nodes")
    ready = {each.name for each in facts.nodes if each.ready}
    wrong = []
    for lease in facts.node_leases:
        by = (lease.renewed - facts.now).total_seconds() if lease.renewed is not None else 0.0
        if lease.name in ready and not -NODE_LEASE_SECONDS <= by <= SKEW_SECONDS:
            wrong.append(f"{lease.name} ({abs(by):.0f}s {_way(by)})")
    yield from _if_any(Topic.CLOCKS_OF_NODES, wrong)
    yield Topic.CLOCKS, {}


def _way(seconds: float) -> str:
    return "ahead" if seconds > 0 else "behind"


def _rights(facts: Facts) -> Iterator[Result]:
    if facts.missing_rights:
        yield Topic.RIGHTS_MISSING, {"names": ", ".join(facts.missing_rights)}
    yield Topic.RIGHTS, {}


def _accounts(facts: Facts) -> Iterator[Result]:
    for account, missing in facts.accounts.items():
        if missing:
            yield Topic.ACCOUNT_LACKS, {"account": account, "names": ", ".join(missing)}
    yield Topic.ACCOUNTS, listed(facts.accounts)


def _openkruise(facts: Facts) -> Iterator[Result]:
    """Check that OpenKruise and crrd do not do the same work."""
    others = _kruise_hooks(facts)
    yield from _if_any(Topic.TWO_ADMISSIONS, others if _own_hooks(facts) else ())
    if any(facts.kruise_daemons) and facts.daemons:
        yield Topic.TWO_DAEMONS, {"count": sum(facts.kruise_daemons)}
    yield Topic.OPENKRUISE_MANAGES if others else Topic.NO_OPENKRUISE, {}


_CHECKS: Mapping[Check, tuple[Callable[[Facts], Iterator[Result]], tuple[str, ...]]] = {
    Check.SERVER: (_server, ()),
    Check.CRD: (_crd, ("crd", "policy_crd")),
    Check.WEBHOOKS: (_webhooks, ("hooks",)),
    Check.ADMISSION: (_admission, ()),
    Check.POLICIES: (_policies, ("policies", "bound")),
    Check.MANAGER: (_manager, ("managers",)),
    Check.DAEMONS: (_daemons, ("daemons",)),
    Check.RUNTIME: (_runtime, ("daemons", "waiting")),
    Check.RESTARTS: (find_ways, ()),
    Check.IMAGES: (find_other_names, ("other_names",)),
    Check.CLOCKS: (_clocks, ()),
    Check.RIGHTS: (_rights, ("missing_rights",)),
    Check.ACCOUNTS: (_accounts, ("accounts",)),
    Check.OPENKRUISE: (_openkruise, ("hooks", "kruise_daemons", "daemons")),
}
"""Each check, with the facts that it needs."""
_OF_INSTALLATION = (
    *(Check.WEBHOOKS, Check.ADMISSION, Check.POLICIES, Check.MANAGER, Check.DAEMONS, Check.RUNTIME),
    *(Check.RIGHTS, Check.ACCOUNTS, Check.OPENKRUISE),
)
"""Checks that say nothing of use where crrd is not installed."""
