"""What the API server refuses to a run, in words for its user, with the ClusterRole that grants it."""

from crrd.kube.discovery import KNOWN
from crrd.kube.errors import NamespaceEndingError, ResourceMissingError
from crrd.kube.reflector import APPLY
from crrd.kube.resources import (
    BUDGETS,
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    DISCOVERY,
    EVENTS,
    NODES,
    PODS,
    REQUESTS,
    SECRETS,
    Resource,
)
from crrd.lib.errors import ApiRefusedError, ConfigurationError
from crrd.lib.plain import plain

_KRUISE = tuple(Resource(each, REQUESTS.group) for each in ("clonesets", "statefulsets", "daemonsets"))
IN_ROLE = {
    each.full_name for each in (REQUESTS, PODS, BUDGETS, NODES, EVENTS, *(known.resource for known in KNOWN), *_KRUISE)
}
"""Resources in the ClusterRole crrd-recreate, with kubectl's names."""
_READERS = {
    CONFIG_MAPS.full_name: "crrd-read-config",
    SECRETS.full_name: "crrd-read-secrets",
    CONTROLLER_REVISIONS.full_name: "crrd-recreate-from-template",
}
INVALID = 422
"""The status of a write that the API server does not accept, also if a test of its JSON patch has failed."""


def lacks_right(error: ApiRefusedError) -> bool:
    """Whether a call was refused because the user has no right to it, and not by a quota, a policy or a webhook."""
    return error.status == 403 and ' is forbidden: User "' in str(error)


def ends_run(error: ApiRefusedError) -> bool:
    """Whether a call was refused for a reason that is not about its object, so that the run cannot go on."""
    return error.status == 401 or lacks_right(error) or isinstance(error, NamespaceEndingError)


def describe(error: Exception) -> str:
    """Return an error in one line. If the API server has refused a call: with what to do about it."""
    if isinstance(error, ConfigurationError) and isinstance(error.__cause__, ApiRefusedError):
        cause = error.__cause__
        error = cause if ends_run(cause) or isinstance(cause, ResourceMissingError) else error
    return plain(_message(error) if isinstance(error, ApiRefusedError) else str(error))


def _message(error: ApiRefusedError) -> str:
    message = " ".join(str(error).split())
    if isinstance(error, ResourceMissingError) and error.resource == REQUESTS.full_name:
        return f"the CRD ContainerRecreateRequest is not installed: install crrd with `{APPLY}`"
    if isinstance(error, NamespaceEndingError):
        return f"the namespace is being deleted: {message}"
    if lacks_right(error):
        return f"forbidden: {message}{_where_granted(error.resource, message)}"
    return f"the API server does not accept your credentials: {message}" if error.status == 401 else message


def _where_granted(resource: str, message: str) -> str:
    """Return the ClusterRole with the right that a refused call needs, or "" if it is not about a resource."""
    if resource in ("", DISCOVERY.full_name):
        return ""
    if resource == PODS.full_name and ' cannot patch resource "' in message:  # crrd-recreate has no right to that
        return "; bind the ClusterRole edit, which grants this"
    role = "crrd-recreate (edit where crrd is not installed)" if resource in IN_ROLE else _READERS.get(resource)
    if role is not None:
        return f"; bind the ClusterRole {role}, which grants this"
    return f"; grant get, list and watch on {resource}, which the ClusterRole crrd-recreate does not include"
