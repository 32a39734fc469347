"""What to tell the user of `crrd recreate` when the API server refuses a call, and which right is missing."""

from crrd.kube.discovery import KNOWN
from crrd.kube.errors import ResourceMissingError
from crrd.kube.reflector import APPLY
from crrd.kube.resources import BUDGETS, CONFIG_MAPS, DISCOVERY, EVENTS, NODES, PODS, REQUESTS, SECRETS, Resource
from crrd.lib.errors import ApiRefusedError

_KRUISE = tuple(Resource(each, REQUESTS.group) for each in ("clonesets", "statefulsets", "daemonsets"))
IN_ROLE = {
    each.full_name for each in (REQUESTS, PODS, BUDGETS, NODES, EVENTS, *(known.resource for known in KNOWN), *_KRUISE)
}
"""Resources that the ClusterRole crrd-recreate has rights on, as kubectl names them."""

_READERS = {CONFIG_MAPS.full_name: "crrd-read-config", SECRETS.full_name: "crrd-read-secrets"}


def describe_refusal(error: ApiRefusedError) -> str:
    """The refusal in one line, with what to do about it."""
    message = " ".join(str(error).split())
    if isinstance(error, ResourceMissingError) and error.resource == REQUESTS.full_name:
        return f"the CRD ContainerRecreateRequest is not installed: install crrd with `{APPLY}`"
    if error.status == 403:
        return f"forbidden: {message}{_where_granted(error.resource)}"
    return f"the API server does not accept your credentials: {message}" if error.status == 401 else message


def _where_granted(resource: str) -> str:
    """Which ClusterRole has the right that a refused call needs; "" for what is no resource."""
    if resource in ("", DISCOVERY.full_name):
        return ""
    if role := "crrd-recreate" if resource in IN_ROLE else _READERS.get(resource):
        return f"; bind the ClusterRole {role}, which grants this"
    return f"; grant get, list and watch on {resource}, which the ClusterRole crrd-recreate does not include"
