"""The checks of what requests pass on their way in: CRD, webhooks, policies, and OpenKruise beside them."""

from crrd.core.api.schema import FIELDS, Field, SetBy, Type
from crrd.core.api.types import VERSIONS, RequestPhase, StatePhase
from crrd.core.doctor.facts import Facts, Hook, Json, Unread
from crrd.core.doctor.findings import Finding, State, Topic
from crrd.core.doctor.making import Make, names_of, unread, with_names
from crrd.lib.jsonfields import items, mapping, text

HOOK = "mutate-crr.apps.kruise.io"  # The webhook of crrd's manager that requests need
POLICIES_OF_NODE = ("crrd-node", "crrd-requests")
POLICIES_OF_MANAGER = ("crrd-admission", "crrd-manager", "crrd-manager-webhooks", "crrd-manager-secrets")
_OTHERS = (SetBy.OPENKRUISE, SetBy.OTHERS)


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


def check_crd(new: Make, facts: Facts) -> list[Finding]:
    """Whether the CRD is served and keeps all fields."""
    if isinstance(facts.crd, Unread):
        return unread(new, facts.crd)
    if facts.crd is None:
        return [new(State.PROBLEM, Topic.CRD_MISSING)]
    entries = map(mapping, items(mapping(facts.crd.get("spec")).get("versions")))
    served = {text(each.get("name")): each for each in entries if each.get("served") is True}
    known = [version for version in VERSIONS if version in served]
    if not known:
        return [new(State.PROBLEM, Topic.CRD_NOT_SERVED, names_of(VERSIONS))]
    schema = mapping(mapping(served[known[0]].get("schema")).get("openAPIV3Schema"))
    if missing := dropped_fields(schema):
        state = State.PROBLEM if any(map(_needed, missing)) else State.WARNING
        return [new(state, Topic.FIELDS_DROPPED, {"names": ", ".join(each.path for each in missing)})]
    return [new(State.OK, Topic.CRD, names_of(known))]


def webhooks_of(facts: Facts) -> tuple[dict[str, Hook], set[str]]:
    """The webhooks of crrd's manager by name, and the configurations of others."""
    found = () if isinstance(facts.hooks, Unread) else facts.hooks
    return {each.name: each for each in found if each.name == HOOK}, {
        each.configuration for each in found if each.name != HOOK
    }


def check_webhooks(new: Make, facts: Facts) -> list[Finding]:
    """Whether the webhooks for requests are there and trusted."""
    if isinstance(facts.hooks, Unread):
        return unread(new, facts.hooks)
    ours, others = webhooks_of(facts)
    if not ours:
        return [
            new(State.OK, Topic.OTHER_WEBHOOKS, names_of(others)) if others else new(State.PROBLEM, Topic.NO_WEBHOOKS)
        ]
    found = [
        (State.PROBLEM, Topic.NO_CA_BUNDLE, {each.name for each in ours.values() if not each.trusted}),
        (State.WARNING, Topic.WEBHOOK_IGNORED, {each.name for each in ours.values() if each.ignored}),
    ]
    return with_names(new, found) or [new(State.OK, Topic.WEBHOOKS)]


def check_admission(new: Make, facts: Facts) -> list[Finding]:
    """Whether admission answers."""
    # crrd's manager denies with 422, OpenKruise's with 400, which is also what a webhook gets that allows no dry runs
    denied = (422,) if webhooks_of(facts)[0] else (400, 422)
    if facts.trial.status in denied:
        return [new(State.OK, Topic.ADMISSION)]
    if 200 <= facts.trial.status < 300:
        return [new(State.PROBLEM, Topic.NOT_ADMITTED)]
    if facts.trial.status == 0:
        return [new(State.PROBLEM, Topic.ADMISSION_FAILED, {"error": facts.trial.error})]
    return [new(State.NOT_CHECKED, Topic.UNREAD, {"why": facts.trial.error})]


def check_policies(new: Make, facts: Facts) -> list[Finding]:
    """Whether the ValidatingAdmissionPolicies are there and bound."""
    if isinstance(facts.policies, Unread) or isinstance(facts.bound, Unread):
        return unread(new, facts.policies, facts.bound)
    wanted = POLICIES_OF_NODE + (POLICIES_OF_MANAGER if webhooks_of(facts)[0] else ())
    there = {each: {name for name in facts.policies if name.endswith(each)} for each in wanted}  # past a namePrefix
    found = [
        (State.PROBLEM, Topic.POLICIES_MISSING, [each for each, names in there.items() if not names]),
        (
            State.PROBLEM,
            Topic.POLICIES_UNBOUND,
            [each for each, names in there.items() if names and names.isdisjoint(facts.bound)],
        ),
    ]
    return with_names(new, found) or [new(State.OK, Topic.POLICIES, {"count": len(wanted)})]


def check_openkruise(new: Make, facts: Facts) -> list[Finding]:
    """Whether OpenKruise and crrd do the same work."""
    if isinstance(facts.hooks, Unread) or isinstance(facts.kruise_daemons, Unread) or isinstance(facts.daemons, Unread):
        return unread(new, facts.hooks, facts.kruise_daemons, facts.daemons)
    ours, others = webhooks_of(facts)
    found = with_names(new, [(State.PROBLEM, Topic.TWO_ADMISSIONS, others if ours else ())])
    if any(facts.kruise_daemons) and facts.daemons:
        found.append(new(State.PROBLEM, Topic.TWO_DAEMONS, {"count": sum(facts.kruise_daemons)}))
    return found or [new(State.OK, Topic.OPENKRUISE_MANAGES if others else Topic.NO_OPENKRUISE)]
