"""The checks of `crrd doctor`: facts in, findings out. Each check has at least one finding."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from crrd.core.doctor.admission import check_admission, check_crd, check_openkruise, check_policies, check_webhooks
from crrd.core.doctor.daemons import check_clocks, check_daemons, check_manager, check_runtime
from crrd.core.doctor.facts import Facts, PodSeen, Unread
from crrd.core.doctor.findings import Check, Finding, State, Topic
from crrd.core.doctor.making import Make, names_of, unread


def examine(facts: Facts) -> tuple[Finding, ...]:
    """All findings, in the order of the checks."""
    places = {
        "managers": next((each.namespace for each in _pods(facts.managers)), "crrd-system"),
        "daemons": next((each.namespace for each in _pods(facts.daemons)), "crrd-node"),
    }
    found = (each for check, look in _CHECKS.items() for each in look(partial(Finding, check), facts))
    return tuple(replace(each, values={**places, **each.values}) for each in found)


def _pods(found: tuple[PodSeen, ...] | Unread) -> tuple[PodSeen, ...]:
    return () if isinstance(found, Unread) else found


def _server(new: Make, facts: Facts) -> list[Finding]:
    state, topic = (State.WARNING, Topic.SERVER_TOO_OLD) if facts.too_old else (State.OK, Topic.SERVER)
    return [new(state, topic, {"version": facts.version})]


def _rights(new: Make, facts: Facts) -> list[Finding]:
    if isinstance(facts.rights, Unread):
        return unread(new, facts.rights)
    if missing := [each.what for each in facts.rights if not each.allowed]:
        return [new(State.WARNING, Topic.RIGHTS_MISSING, {"names": ", ".join(missing)})]
    return [new(State.OK, Topic.RIGHTS)]


def _accounts(new: Make, facts: Facts) -> list[Finding]:
    if isinstance(facts.account_rights, Unread):
        return unread(new, facts.account_rights)
    missing: dict[str, list[str]] = {each.account: [] for each in facts.account_rights}
    for each in facts.account_rights:
        missing[each.account] += [] if each.allowed else [each.what]
    found = [
        new(State.PROBLEM, Topic.ACCOUNT_LACKS, {"account": account, "names": ", ".join(rights)})
        for account, rights in missing.items()
        if rights
    ]
    return found or [new(State.OK, Topic.ACCOUNTS, names_of(missing))]


_CHECKS: dict[Check, Callable[[Make, Facts], list[Finding]]] = {
    Check.SERVER: _server,
    Check.CRD: check_crd,
    Check.WEBHOOKS: check_webhooks,
    Check.ADMISSION: check_admission,
    Check.POLICIES: check_policies,
    Check.MANAGER: check_manager,
    Check.DAEMONS: check_daemons,
    Check.RUNTIME: check_runtime,
    Check.CLOCKS: check_clocks,
    Check.RIGHTS: _rights,
    Check.ACCOUNTS: _accounts,
    Check.OPENKRUISE: check_openkruise,
}
