"""The requests of a typical day: successes, failures, a denial, and one that is stuck."""

from contextlib import suppress

from crrd.core.api import types as model
from crrd.kube.resources import REQUESTS
from crrd.lib.errors import ApiRefusedError
from tests.support.cluster import Cluster, Json, condition, container, container_status, states

STUCK = "stuck"


def _hook(script: str) -> Json:
    return {"preStop": {"exec": {"command": ["/bin/sh", "-c", script]}}}


def _request(name: str, pod: str, containers: list[str], **spec: object) -> Json:
    """Return a request as a user writes it."""
    return {
        "apiVersion": model.API_VERSION,
        "kind": model.KIND,
        "metadata": {"name": name},
        "spec": {"podName": pod, "containers": [{"name": each} for each in containers], **spec},
    }


async def start_pods(cluster: Cluster) -> None:
    """Create the pods for `send_requests`."""
    await cluster.run_pod("plain", [container("app"), container("side")])
    await cluster.run_pod("polite", [container("app", lifecycle=_hook("sleep 1"))])
    await cluster.run_pod("careless", [container("app", lifecycle=_hook("echo no luck >&2; exit 7"))])
    quitter = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
    await cluster.run_pod("quitter", [container("app", quitter)], restartPolicy="OnFailure")
    await cluster.run_pod("never", [container("app")], restartPolicy="Never")
    probe = {
        "exec": {"command": ["/bin/sh", "-c", "test ! -e /shared/sick"]},
        "periodSeconds": 1,
        "failureThreshold": 1,
    }
    await cluster.run_pod(STUCK, [container("app", readinessProbe=probe)])


async def send_requests(cluster: Cluster, turn: str = "") -> set[str]:
    """Create one request of each kind except the stuck one. Return their UIDs when they have ended."""
    namespace = cluster.namespace
    ended = {
        f"plain{turn}": _request(f"plain{turn}", "plain", ["app", "side"]),
        f"polite{turn}": _request(f"polite{turn}", "polite", ["app"]),
        f"careless{turn}": _request(f"careless{turn}", "careless", ["app"]),
        f"quitter{turn}": _request(f"quitter{turn}", "quitter", ["app"]),
    }
    created = [await cluster.client.create(REQUESTS, namespace, body) for body in ended.values()]
    try:
        await cluster.client.create(REQUESTS, namespace, _request("never", "never", ["app"]))
    except ApiRefusedError:
        pass
    else:
        raise AssertionError("admission let in a request that would end its pod")
    for name in ended:
        await cluster.wait_completed(name)
    brief = _request(f"brief{turn}", "plain", ["side"], ttlSecondsAfterFinished=0)
    created.append(await cluster.client.create(REQUESTS, namespace, brief))
    await cluster.wait_gone(REQUESTS, f"brief{turn}")
    return {made["metadata"]["uid"] for made in created}


async def send_plain_requests(cluster: Cluster, turn: str) -> None:
    """Create requests that succeed, for pods with and without a hook, and one for a container that does not exist."""
    bodies = [
        _request(f"hooked{turn}", "polite", ["app"]),
        _request(f"light{turn}", "plain", ["app"], ttlSecondsAfterFinished=60),
    ]
    for body in bodies:
        await cluster.client.create(REQUESTS, cluster.namespace, body)
    with suppress(ApiRefusedError):
        await cluster.client.create(REQUESTS, cluster.namespace, _request("typo", "plain", ["ap"]))
    for body in bodies:
        await cluster.wait_completed(body["metadata"]["name"], 120)


async def send_stuck_request(cluster: Cluster) -> None:
    """Create a request whose container is restarted and does not become ready."""
    (cluster.shared(STUCK) / "sick").touch()
    await cluster.wait_pod(STUCK, lambda pod: condition(pod, "Ready") == "False", "not ready")
    await cluster.client.create(REQUESTS, cluster.namespace, _request(STUCK, STUCK, ["app"]))
    await cluster.wait_pod(STUCK, lambda pod: container_status(pod, "app")["restartCount"] == 1, "restarted")
    await cluster.wait_request(STUCK, lambda found: states(found) == {"app": "Recreating"}, "Recreating")
