"""The checks of `crrd doctor`: facts in, findings out. Each check has at least one finding."""

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any

from crrd.core.api.reasons import Reason
from crrd.core.api.schema import FIELDS, Field, SetBy, Type
from crrd.core.api.types import VERSIONS, RequestPhase, StatePhase
from crrd.core.doctor.facts import Facts, Hook, Json, LeaseSeen, PodSeen, Unread
from crrd.core.doctor.findings import Check, Finding, Seen, State
from crrd.lib.jsonfields import items, mapping, text

HOOKS = {"mutate-crr.apps.kruise.io": "mutating", "validate-crr.apps.kruise.io": "validating"}
"""The webhooks of crrd's manager that requests need."""
POLICIES_OF_NODE = ("crrd-node", "crrd-requests")
POLICIES_OF_MANAGER = ("crrd-manager", "crrd-manager-webhooks")
SKEW_SECONDS = 10.0
"""By how much clocks may differ: whole seconds in headers, and calls that take a while."""
NODE_LEASE_SECONDS = 60.0
"""Kubelet renews its Lease every 10 s, and a node whose Lease is 40 s old is no longer Ready."""
_SHOWN = 3
"""Names that a sentence lists."""
_OTHERS = (SetBy.OPENKRUISE, SetBy.OTHERS)


def examine(facts: Facts) -> tuple[Finding, ...]:
    """All findings, in the order of the checks."""
    return tuple(finding for check, look in _CHECKS.items() for finding in look(partial(Finding, check), facts))


def dropped_fields(schema: Json) -> list[Field]:
    """The fields of our table that a CRD's schema does not have, so that the API server drops them.

    Of an object that is missing, its fields are not listed. Fields that only other programs use do not count.
    """
    missing: list[Field] = []
    for path, field in FIELDS.items():
        below = any(path.startswith(f"{each.path}.") for each in missing)
        if field.set_by not in _OTHERS and not below and not _has(schema, path):
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
    """Whether no request can be served without the field."""
    phase = isinstance(field.default, RequestPhase | StatePhase)
    return field.required or phase or field.type in (Type.OBJECT, Type.LIST)


_New = Callable[..., Finding]
"""Makes a finding of one check: state, what was seen, values."""


def _unread(new: _New, *found: object) -> list[Finding]:
    """A finding for the first that could not be read; none where all could."""
    return [new(State.NOT_CHECKED, Seen.UNREAD, {"why": each.why}) for each in found if isinstance(each, Unread)][:1]


def _names(names: Iterable[str]) -> dict[str, Any]:
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return {"names": ", ".join(ordered[:_SHOWN]) + more, "count": len(ordered)}


def _server(new: _New, facts: Facts) -> list[Finding]:
    state, seen = (State.WARNING, Seen.SERVER_TOO_OLD) if facts.too_old else (State.OK, Seen.SERVER)
    return [new(state, seen, {"version": facts.version})]


def _crd(new: _New, facts: Facts) -> list[Finding]:
    if isinstance(facts.crd, Unread):
        return _unread(new, facts.crd)
    if facts.crd is None:
        return [new(State.PROBLEM, Seen.CRD_MISSING)]
    entries = map(mapping, items(mapping(facts.crd.get("spec")).get("versions")))
    served = {text(each.get("name")): each for each in entries if each.get("served") is True}
    known = [version for version in VERSIONS if version in served]
    if not known:
        return [new(State.PROBLEM, Seen.CRD_NOT_SERVED, _names(VERSIONS))]
    schema = mapping(mapping(served[known[0]].get("schema")).get("openAPIV3Schema"))
    if missing := dropped_fields(schema):
        state = State.PROBLEM if any(map(_needed, missing)) else State.WARNING
        return [new(state, Seen.FIELDS_DROPPED, {"names": ", ".join(each.path for each in missing)})]
    return [new(State.OK, Seen.CRD, _names(known))]


def _split(hooks: Iterable[Hook]) -> tuple[list[Hook], list[Hook]]:
    """The webhooks of crrd's manager, and those of others."""
    found = list(hooks)
    return [each for each in found if each.name in HOOKS], [each for each in found if each.name not in HOOKS]


def _webhooks(new: _New, facts: Facts) -> list[Finding]:
    if isinstance(facts.hooks, Unread):
        return _unread(new, facts.hooks)
    ours, others = _split(facts.hooks)
    if not ours and others:
        return [new(State.OK, Seen.OTHER_WEBHOOKS, _names({each.configuration for each in others}))]
    if not ours:
        return [new(State.PROBLEM, Seen.NO_WEBHOOKS)]
    found = []
    if missing := HOOKS.keys() - {each.name for each in ours}:
        found.append(new(State.PROBLEM, Seen.WEBHOOK_MISSING, _names(f"{HOOKS[name]} {name}" for name in missing)))
    if bare := [f"{each.kind} {each.name}" for each in ours if each.namespace and not each.ca_bundle]:
        found.append(new(State.PROBLEM, Seen.NO_CA_BUNDLE, _names(bare)))
    if ignored := [f"{each.kind} {each.name}" for each in ours if each.failure_policy == "Ignore"]:
        found.append(new(State.WARNING, Seen.WEBHOOK_IGNORED, _names(ignored)))
    return found or [new(State.OK, Seen.WEBHOOKS)]


def _admission(new: _New, facts: Facts) -> list[Finding]:
    if facts.trial.status in (400, 422):  # denied, as no pod has that name
        return [new(State.OK, Seen.ADMISSION)]
    if 200 <= facts.trial.status < 300:
        return [new(State.PROBLEM, Seen.NOT_ADMITTED)]
    if facts.trial.status == 0:
        return [new(State.PROBLEM, Seen.ADMISSION_FAILED, {"error": facts.trial.error})]
    return [new(State.NOT_CHECKED, Seen.UNREAD, {"why": facts.trial.error})]


def _policies(new: _New, facts: Facts) -> list[Finding]:
    if isinstance(facts.policies, Unread) or isinstance(facts.bindings, Unread):
        return _unread(new, facts.policies, facts.bindings)
    managed = not isinstance(facts.hooks, Unread) and bool(_split(facts.hooks)[0])
    wanted = (*POLICIES_OF_NODE, *(POLICIES_OF_MANAGER if managed else ()))
    bound = {each.policy for each in facts.bindings if each.denies}
    there = {each: [name for name in facts.policies if name.endswith(each)] for each in wanted}  # past a namePrefix
    missing = [each for each, names in there.items() if not names]
    loose = [each for each, names in there.items() if names and not bound.intersection(names)]
    found = [new(State.PROBLEM, Seen.POLICIES_MISSING, _names(missing))] if missing else []
    if loose:
        found.append(new(State.PROBLEM, Seen.POLICIES_UNBOUND, _names(loose)))
    return found or [new(State.OK, Seen.POLICIES, {"count": len(wanted)})]


def _shown(pod: PodSeen) -> str:
    return f"{pod.key} on {pod.node or 'no node'}" + (f" ({pod.why})" if pod.why else "")


def _manager(new: _New, facts: Facts) -> list[Finding]:
    if isinstance(facts.managers, Unread):
        return _unread(new, facts.managers)
    if not facts.managers:
        other = not isinstance(facts.hooks, Unread) and bool(_split(facts.hooks)[1])
        return [new(State.OK, Seen.OTHER_MANAGER) if other else new(State.PROBLEM, Seen.NO_MANAGER)]
    down = [each for each in facts.managers if not each.ready]
    if len(down) == len(facts.managers):
        return [new(State.PROBLEM, Seen.MANAGER_DOWN, _names(map(_shown, down)))]
    found = [new(State.WARNING, Seen.MANAGER_DEGRADED, _names(map(_shown, down)))] if down else []
    if not isinstance(facts.leader, Unread) and not _is_held(facts.leader, facts.now):
        found.append(new(State.PROBLEM, Seen.NO_LEADER))
    versions = sorted({each.version for each in facts.managers})
    ready = {"ready": len(facts.managers) - len(down), "count": len(facts.managers), "version": ", ".join(versions)}
    return found or [new(State.OK, Seen.MANAGER, ready)]


def _is_held(lease: LeaseSeen | None, now: datetime) -> bool:
    if lease is None or not lease.holder or lease.renewed is None:
        return False
    return (now - lease.renewed).total_seconds() <= lease.seconds + SKEW_SECONDS


def _daemons(new: _New, facts: Facts) -> list[Finding]:
    if isinstance(facts.daemons, Unread):
        return _unread(new, facts.daemons)
    if not facts.daemons:
        return [new(State.PROBLEM, Seen.NO_DAEMONS)]
    nodes = () if isinstance(facts.nodes, Unread) else facts.nodes
    away = {each.name for each in nodes if not each.ready}
    found = []
    if down := [_shown(each) for each in facts.daemons if not each.ready and each.node not in away]:
        found.append(new(State.PROBLEM, Seen.DAEMONS_DOWN, _names(down)))
    served = {each.node for each in facts.daemons}
    if without := [each.name for each in nodes if each.linux and each.ready and each.name not in served]:
        found.append(new(State.WARNING, Seen.NODES_WITHOUT, _names(without)))
    if away:
        found.append(new(State.WARNING, Seen.NODES_NOT_READY, _names(away)))
    managers = () if isinstance(facts.managers, Unread) else facts.managers
    versions = {each.version for each in (*facts.daemons, *managers)}
    if len(versions) > 1:
        found.append(new(State.WARNING, Seen.VERSIONS_DIFFER, _names(versions)))
    return found or [new(State.OK, Seen.DAEMONS, {"count": len(facts.daemons), "version": "".join(versions)})]


def _runtime(new: _New, facts: Facts) -> list[Finding]:
    if isinstance(facts.daemons, Unread) or isinstance(facts.waiting, Unread):
        return _unread(new, facts.daemons, facts.waiting)
    found = []
    for reason, seen in (
        (Reason.RUNTIME_UNAVAILABLE, Seen.RUNTIME_UNAVAILABLE),
        (Reason.KUBELET_SILENT, Seen.KUBELET_SILENT),
    ):
        if nodes := {each.node for each in facts.waiting if reason.value in each.reasons}:
            found.append(new(State.PROBLEM, seen, _names(nodes)))
    ready = sum(each.ready for each in facts.daemons)
    if not ready:
        found.append(new(State.NOT_CHECKED, Seen.NO_READY_DAEMON))
    return found or [new(State.OK, Seen.RUNTIME, {"count": ready})]


def _clocks(new: _New, facts: Facts) -> list[Finding]:
    found = []
    ahead = (facts.here - facts.now).total_seconds()
    if abs(ahead) > SKEW_SECONDS:
        found.append(new(State.WARNING, Seen.CLOCK_HERE, {"seconds": abs(ahead), "way": _way(ahead)}))
    if isinstance(facts.node_leases, Unread) or isinstance(facts.nodes, Unread):
        return found or _unread(new, facts.node_leases, facts.nodes)
    ready = {each.name for each in facts.nodes if each.ready}
    wrong = []
    for lease in facts.node_leases:
        by = (lease.renewed - facts.now).total_seconds() if lease.renewed is not None else 0.0
        if lease.name in ready and not -NODE_LEASE_SECONDS <= by <= SKEW_SECONDS:
            wrong.append(f"{lease.name} ({abs(by):.0f}s {_way(by)})")
    if wrong:
        found.append(new(State.WARNING, Seen.CLOCKS_OF_NODES, _names(wrong)))
    return found or [new(State.OK, Seen.CLOCKS, {"count": len(facts.node_leases)})]


def _way(seconds: float) -> str:
    return "ahead" if seconds > 0 else "behind"


def _rights(new: _New, facts: Facts) -> list[Finding]:
    if isinstance(facts.rights, Unread):
        return _unread(new, facts.rights)
    if missing := [each.what for each in facts.rights if not each.allowed]:
        return [new(State.WARNING, Seen.RIGHTS_MISSING, {"names": ", ".join(missing)})]
    return [new(State.OK, Seen.RIGHTS)]


def _accounts(new: _New, facts: Facts) -> list[Finding]:
    if isinstance(facts.account_rights, Unread):
        return _unread(new, facts.account_rights)
    found = []
    accounts = dict.fromkeys(each.account for each in facts.account_rights)
    for account in accounts:
        of = [each for each in facts.account_rights if each.account == account and not each.allowed]
        if of:
            values = {"account": account, "names": ", ".join(each.what for each in of)}
            found.append(new(State.PROBLEM, Seen.ACCOUNT_LACKS, values))
    return found or [new(State.OK, Seen.ACCOUNTS, _names(accounts))]


def _openkruise(new: _New, facts: Facts) -> list[Finding]:
    if isinstance(facts.hooks, Unread) or isinstance(facts.kruise_daemons, Unread) or isinstance(facts.daemons, Unread):
        return _unread(new, facts.hooks, facts.kruise_daemons, facts.daemons)
    ours, others = _split(facts.hooks)
    found = []
    if any(facts.kruise_daemons) and facts.daemons:
        found.append(new(State.PROBLEM, Seen.TWO_DAEMONS, {"count": sum(facts.kruise_daemons)}))
    if ours and others:
        found.append(new(State.PROBLEM, Seen.TWO_ADMISSIONS, _names({each.configuration for each in others})))
    return found or [new(State.OK, Seen.OPENKRUISE_MANAGES if others else Seen.NO_OPENKRUISE)]


_CHECKS: dict[Check, Callable[[_New, Facts], list[Finding]]] = {
    Check.SERVER: _server,
    Check.CRD: _crd,
    Check.WEBHOOKS: _webhooks,
    Check.ADMISSION: _admission,
    Check.POLICIES: _policies,
    Check.MANAGER: _manager,
    Check.DAEMONS: _daemons,
    Check.RUNTIME: _runtime,
    Check.CLOCKS: _clocks,
    Check.RIGHTS: _rights,
    Check.ACCOUNTS: _accounts,
    Check.OPENKRUISE: _openkruise,
}
