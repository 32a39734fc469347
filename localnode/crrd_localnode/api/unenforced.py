"""What the local API server stores, but neither it nor a controller carries out. kubectl shows these warnings."""

from collections.abc import Callable

from crrd_localnode.api.objects import Object, dig
from crrd_localnode.api.schema import unenforced_rules

ROLES = "the local API server does not enforce RBAC: every user may do everything"
POLICIES = "the local API server does not enforce ValidatingAdmissionPolicies"
NETWORK_POLICIES = "the local node does not enforce NetworkPolicies"
BUDGETS = "the local node has no controller for PodDisruptionBudgets: their status stays as it is written"
WORKLOADS = "the local node has no controllers for workloads: it creates and deletes no pods for them"


def always(warning: str) -> Callable[[Object], list[str]]:
    """Return a function that returns this warning for every object."""
    return lambda _obj: [warning]


def allow_everything(review: Object) -> Object:
    """Return the review of a right with its result: every user may do everything."""
    return {**review, "status": {"allowed": True, "reason": ROLES}}


def of_webhooks(configuration: Object) -> list[str]:
    """Return warnings for what is not evaluated in a MutatingWebhookConfiguration."""
    named = [str(each.get("name")) for each in configuration.get("webhooks") or () if each.get("matchConditions")]
    return [
        f"the local API server ignores the matchConditions of webhook {name}, and always calls it" for name in named
    ]


def of_crd(crd: Object) -> list[str]:
    """Return warnings for the CEL rules of a CRD that are not evaluated."""
    schemas = [dig(version, "schema", "openAPIV3Schema") or {} for version in dig(crd, "spec", "versions") or ()]
    rules = dict.fromkeys(rule for schema in schemas for rule in unenforced_rules(schema))
    return [f"the local API server does not enforce the rule {rule!r}" for rule in rules]
