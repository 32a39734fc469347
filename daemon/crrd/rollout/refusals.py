"""What to tell the user of `crrd recreate` when the API server refuses a call, and which right is missing."""

import re

from crrd.kube.discovery import KNOWN
from crrd.kube.errors import ResourceMissingError
from crrd.kube.reflector import APPLY
from crrd.kube.resources import BUDGETS, EVENTS, NODES, PODS, REQUESTS, Resource
from crrd.lib.errors import ApiRefusedError

_KRUISE = tuple(Resource(each, REQUESTS.group) for each in ("clonesets", "statefulsets", "daemonsets"))
IN_ROLE = {
    ".".join(filter(None, (each.plural, each.group)))
    for each in (REQUESTS, PODS, BUDGETS, NODES, EVENTS, *(known.resource for known in KNOWN), *_KRUISE)
}
"""Resources that the ClusterRole crrd-recreate has rights on, as kubectl names them."""
_CALL = re.compile(r"\w+ /api(?:s/(?P<group>[^/]+))?/[^/]+(?:/namespaces/[^/]+)?/(?P<plural>[^/:]+)")
"""What an error of the API begins with: verb and path."""


def describe_refusal(error: BaseException | None) -> str:
    """The refusal in one line, with what to do about it."""
    message = " ".join(str(error).split())
    if isinstance(error, ResourceMissingError) and REQUESTS.plural in message:
        return f"this cluster has no ContainerRecreateRequests: install crrd, `{APPLY}`"
    status = error.status if isinstance(error, ApiRefusedError) else 0
    if status == 403:
        return f"you may not do that: {message}{_right(message)}"
    return f"the API server does not accept your credentials: {message}" if status == 401 else message


def _right(message: str) -> str:
    """Which ClusterRole has the right that a refused call needs; "" for what is no resource (discovery)."""
    call = _CALL.match(message)
    if call is None:
        return ""
    name = ".".join(filter(None, (call["plural"], call["group"])))
    if name in IN_ROLE:
        return "; the ClusterRole crrd-recreate has what is needed"
    return f"; the ClusterRole crrd-recreate has no rights on {name}: it takes get, list and watch"
