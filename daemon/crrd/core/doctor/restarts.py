"""Which way of restarting containers each node offers, and the names of images that restarts by patches have left."""

from collections.abc import Iterator

from crrd.core.api.types import GROUP, PLURAL
from crrd.core.doctor.facts import Facts
from crrd.core.doctor.findings import Result, Topic, listed

_NEEDED = tuple(f"{verb} {PLURAL}.{GROUP}" for verb in ("list", "create"))
"""The rights without which `kubectl recreate` uses patches (`crrd.rollout.way`)."""
_NOT_SERVED = 404  # Also if the namespace does not exist, so the CRD says more


def find_ways(facts: Facts) -> Iterator[Result]:
    """Yield how the containers of each node can be restarted, and what `kubectl recreate` uses without --via.

    Each node offers patches, because only kubelet is needed for them.
    """
    missing = [each for each in facts.missing_rights if each in _NEEDED]
    is_absent = facts.trial.status == _NOT_SERVED if "crd" in facts.unread else facts.crd is None
    if (missing or is_absent) and facts.missing_for_patches:
        yield Topic.NO_WAY, {"names": ", ".join(facts.missing_for_patches)}
    elif is_absent:
        yield Topic.BY_PATCHES, {"why": "ContainerRecreateRequest is not installed"}
    elif missing:
        yield Topic.BY_PATCHES, {"why": f"you may not {' and '.join(missing)} in the namespace"}
    elif unread := next(filter(None, map(facts.unread.get, ("daemons", "nodes"))), ""):
        yield Topic.UNREAD, {"why": unread}
    elif facts.daemons:
        yield _by_node(facts)
    else:
        yield Topic.BY_MANAGER if facts.needs_no_daemons else Topic.BY_OTHERS, {}


def _by_node(facts: Facts) -> Result:
    ready, down = ({each.node for each in facts.daemons if each.ready is is_ready} for is_ready in (True, False))
    without = {each.name for each in facts.nodes if each.has_runtime} - ready - down
    names = [*without, *(f"{node} (its daemon is not ready)" for node in down)]
    if not names:
        return Topic.BY_REQUESTS, {"count": len(ready)}
    return Topic.BY_BOTH, {**listed(names), "served": len(ready), "all": len(ready | without | down)}


def find_other_names(facts: Facts) -> Iterator[Result]:
    """Yield how many pods have an image by another name than their template, because of a restart by a patch."""
    found = sorted(filter(None, facts.other_names))
    if found:
        namespace, _, name = found[0].partition("/")
        yield Topic.OTHER_NAMES, {"count": len(found), "namespace": namespace, "name": name}
    yield Topic.NO_OTHER_NAMES, {}
