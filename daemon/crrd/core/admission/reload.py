"""Admission of requests whose containers reload (`spec.strategy.action: Reload`).

Such a request names its containers in `spec.strategy.reloadContainers`, and admission writes them to `spec.containers`.
A CRD or a manager that does not know these fields sees a request without containers and rejects it. It never takes it
for a restart. Which command runs is not in the request at all: the pod declares it (`core.recreate.declared`).
"""

from crrd.core.api.pod import Pod
from crrd.core.api.types import Request
from crrd.core.api.v1alpha1 import container_id_error
from crrd.core.recreate.declared import undeclared
from crrd.lib.jsonfields import shown

_NAMES = "spec.strategy.reloadContainers"


def containers_to_reload(request: Request, pod: Pod) -> tuple[str, ...]:
    """Return the containers that reload: those that the request names, or else all that declare a reload."""
    declared = (name for name, each in pod.recreatable.items() if each.reload)
    return request.strategy.reload_containers or tuple(declared)


def unfit_for_reload(request: Request, pod: Pod) -> str:
    """Return why the containers cannot reload, as a sentence that names the field; "" if they can or need not."""
    if not request.reloads:
        unused = request.strategy.reload_containers
        return f"{_NAMES} must be left out, unless spec.strategy.action is Reload" if unused else ""
    names = containers_to_reload(request, pod)
    if not names:
        return f"spec.strategy.action must not be Reload: {undeclared_everywhere(pod)}"
    for index, name in enumerate(names):
        if why := _unfit(pod, name):
            where = f"{_NAMES}[{index}]" if request.strategy.reload_containers else _NAMES
            return f"{where} must name a container {why}"
        if name in names[:index]:
            return f"{_NAMES}[{index}] must not contain {shown(name)} twice"
    if tuple(each.name for each in request.containers) != names:
        return f"spec.containers must be left out, because the request is for a reload: use {_NAMES}"
    if request.strategy.grace_seconds not in (None, pod.grace_seconds):
        return "spec.strategy.terminationGracePeriodSeconds must be left out: no container is stopped for a reload"
    return ""


def undeclared_everywhere(pod: Pod) -> str:
    """Return a message about a pod without a declaration."""
    return f"no container of pod {shown(pod.name)} declares a reload (annotation reload.crrd.dev/CONTAINER of the pod)"


def _unfit(pod: Pod, name: str) -> str:
    """Return the rest of the sentence that begins with `must name a container`, "" if it can reload."""
    container, known = shown(name), pod.containers.get(name)
    if known is None:
        return f"of pod {shown(pod.name)}: container {container} not found"
    if not known.kind.recreatable:
        return f"or a native sidecar: {container} is an {known.kind}"
    if message := undeclared(pod, name):
        return f"that can reload: {message.text}"
    if not known.container_id:
        return f"that has started: {container} has no container ID yet, try later"
    error = container_id_error(known.container_id)
    return f"with a valid ID: the ID of {container} {error}" if error else ""
