"""`crrd explain pod/NAME`: what restarts by patches have done to a pod. Reads what `core.explain.pod` needs."""

from typing import Any

from crrd.core.api.types import ACTIVE_REQUESTS
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.explain.pod import PodExplanation, explain_pod
from crrd.kube.best_effort import BestEffortReader
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.errors import ResourceMissingError
from crrd.kube.resources import PODS, REQUESTS
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError
from crrd.lib.plain import plain, with_flags, wrapped

_NOTHING = "no container has another name of its image than its template because of a restart by a patch"


async def explained_pod(client: KubeClient, clock: ServerClock, namespace: str, name: str) -> PodExplanation:
    """Read a pod and its requests, as far as possible. Raises ApiRefusedError and ApiUnavailableError for the pod."""
    obj, reader = await client.get(PODS, namespace, name), BestEffortReader(client)
    work = reader.list(REQUESTS, parse_request, namespace=namespace, label_selector=ACTIVE_REQUESTS)
    requests = await reader.attempt("requests", work)  # a cluster without crrd has none
    error = reader.unread.get("requests")
    unread = "" if error is None or isinstance(error, ResourceMissingError) else shortly(error)
    return explain_pod(obj, requests or (), clock.now(), unread)


def render_pod_json(found: PodExplanation) -> dict[str, Any]:
    """Return an explanation as JSON. Times are in seconds, or null if unknown."""
    return {
        "pod": found.pod.key,
        "phase": found.pod.phase,
        "node": found.pod.node_name,
        "containers": [
            {
                "name": each.container,
                "reason": each.topic.value,
                "what": each.message,
                "image": each.image,
                "imageBefore": each.before,
                "run": each.run,
                "sinceSeconds": None if each.since is None else round(each.since, 1),
                "advice": [*each.advice],
            }
            for each in found.findings
        ],
        "notes": [*found.notes],
    }


def render_pod(found: PodExplanation, flags: str = "") -> str:
    """Return an explanation as text. `flags` as in `explain.render`."""
    pod = found.pod
    where = f", on node {pod.node_name}" if pod.node_name else ""
    lines = [plain(f"pod {pod.key}: {pod.phase}{where}"), ""]
    for each in found.findings:
        lines += wrapped(with_flags(f"container {each.container}: {each.message}", flags))
        for step in each.advice:
            lines += wrapped(with_flags(step, flags), first="  > ", others="    ")
    lines += [] if found.findings else wrapped(_NOTHING)
    lines += [""] * bool(found.notes)
    for note in found.notes:
        lines += wrapped(with_flags(note, flags), first="  - ", others="    ")
    return "\n".join(lines)


def shortly(error: ApiRefusedError | ApiUnavailableError) -> str:
    """Return why something could not be read, in few words."""
    return "forbidden" if isinstance(error, ApiRefusedError) and error.status == 403 else str(error)
