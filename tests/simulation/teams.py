"""Other teams of the cluster, on a node without a daemon: the manager serves them. Calls for one of them may hang.

Checks that the trouble of this team delays no other: what the manager has to do for them is done OTHERS_WAIT seconds
after it is due, whatever hangs.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from crrd.core.api.gate import readiness_of
from crrd.core.api.types import (
    ANNOTATION_UNREADY_ACQUIRED,
    API_VERSION,
    KIND,
    LABEL_ACTIVE,
    LABEL_NODE_NAME,
    LABEL_POD_UID,
    LABEL_READINESS_GATE,
    PLURAL,
    POLICY_PLURAL,
    READINESS_GATE,
)
from tests.simulation.network import Sent
from tests.simulation.store import Object, key_of, merged

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld

NOISY = "noisy"  # The team whose calls hang
ELSEWHERE = "node-2"
OTHERS_WAIT = 5.0
"""Seconds after which what is due for a team is done. docs/operations.md promises this."""
SETTLE_SECONDS = 3
RUN_SECONDS = 2.0  # For the first creation of a run, which waits for the next second
SERVED_SECONDS = 0.5  # For the recreation of a container on that node


class Teams:
    """The teams' objects."""

    def __init__(self, world: "SimulatedWorld") -> None:
        self._world = world
        self._made = 0
        self._hanging: tuple[float, str] = (0.0, "")

    # Calls of the manager.

    def hang(self, calls: str, seconds: float) -> None:
        """Let calls for the noisy team get no answer for a while: `writes`, or the GETs of its `workloads`."""
        self._hanging = self._world.loop.time() + seconds, calls

    def hangs(self, sent: Sent) -> bool:
        """Whether a call of the manager gets no answer."""
        until, calls = self._hanging
        if self._world.loop.time() >= until or f"/namespaces/{NOISY}/" not in sent.path:
            return False
        return sent.method != "GET" if calls == "writes" else "/deployments/" in sent.path

    def admit(self, body: Object, namespace: str) -> Object:
        """Create a request of a policy's run, which the team's node serves soon."""
        pod = self._world.store.get("pods", f"{namespace}/{body['spec']['podName']}")
        assert pod is not None
        labels = {LABEL_NODE_NAME: ELSEWHERE, LABEL_ACTIVE: "true", LABEL_POD_UID: pod["metadata"]["uid"]}
        made = self._create(PLURAL, namespace, merged(body, {"metadata": {"labels": labels}}))
        self._world.loop.call_later(SERVED_SECONDS, self._serve, key_of(made), key_of(pod))
        return made

    def _serve(self, key: str, pod_key: str) -> None:
        store = self._world.store
        if store.get(PLURAL, key) is None or (pod := store.get("pods", pod_key)) is None:
            return
        (status,) = pod["status"]["containerStatuses"]
        at = self._world.loop.true_utc()
        again = {"containerID": f"{status['containerID']}x", "state": {"running": {"startedAt": at}}}
        store.patch("pods", pod_key, {"status": {"containerStatuses": [{**status, **again}]}})
        states = [{"name": "app", "phase": "Succeeded"}]
        done = {"phase": "Completed", "completionTime": at, "containerRecreateStates": states}
        store.patch(PLURAL, key, {"status": done})

    # What the teams do.

    def crowd(self, number: int, *, policies: bool) -> None:
        """The noisy team creates many requests that keep their pods unready, or policies for its workloads."""
        for _ in range(number):
            name = self._name()
            if policies:
                target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
                self._policy(NOISY, name, targetRef=target)
            else:
                self._pod(NOISY, name)
                self._request(NOISY, name, "Recreating", 3600)

    def join(self, team: str, *, labelled: bool, policy: bool) -> None:
        """A team gets a namespace, perhaps with a policy for its pod."""
        labels = {LABEL_READINESS_GATE: "enabled"} if labelled else {}
        self._world.store.create("namespaces", {"metadata": {"name": team, "uid": team, "labels": labels}})
        if policy:
            self._pod(team, team)
            self._create("configmaps", team, {"metadata": {"name": team}, "data": {"key": "value"}})
            self._policy(team, team, selector={"matchLabels": {"app": team}})

    def ask(self, team: str, what: str) -> None:
        """A team needs something of the manager."""
        name, seconds = self._name(), OTHERS_WAIT
        self._pod(team, name)
        if what == "unready":
            self._request(team, name, "Recreating", 600)
            done: Callable[[str], bool] = self._is_unready
        elif what == "ended":
            self._request(team, name, "Completed", 600)
            done = self._is_inactive
        else:
            self._request(team, name, "Recreating", None, activeDeadlineSeconds=20)
            done, seconds = self._is_completed, 20 + OTHERS_WAIT
        self._expect(f"{team}/{name}", what, done, seconds)

    def edit(self, team: str) -> None:
        """A team edits the ConfigMap that its pod uses."""
        key = f"{team}/{team}"
        self._world.store.patch("configmaps", key, {"data": {"key": self._name()}})
        self._expect(key, "edited", self._is_asked_for, SETTLE_SECONDS + RUN_SECONDS + OTHERS_WAIT)

    def leave(self) -> None:
        """All teams delete their objects."""
        for kind in (POLICY_PLURAL, PLURAL, "configmaps"):
            for obj in self._world.store.all(kind):
                self._world.store.delete(kind, key_of(obj))

    # What is checked.

    def _expect(self, key: str, what: str, done: Callable[[str], bool], seconds: float) -> None:
        """Check in so many seconds that something is done for an object, unless another fault was in the way."""
        since, leader = self._world.loop.time(), self._world.manager

        def check() -> None:
            world = self._world
            free = world.manager is leader and not leader.dead and leader.born + OTHERS_WAIT < since
            if free and world.could_write(since - 30.0, world.loop.time()) and not done(key):
                world.broken(f"{what}: the manager has not done it for another team in {seconds:.0f} s: {key}")

        self._world.loop.call_later(seconds, check)

    def _is_unready(self, key: str) -> bool:
        request, pod = self._world.store.get(PLURAL, key), self._world.store.get("pods", key)
        assert request is not None
        assert pod is not None
        marked = ANNOTATION_UNREADY_ACQUIRED in request["metadata"].get("annotations", {})
        return marked and readiness_of(pod).status == "False"

    def _is_inactive(self, key: str) -> bool:
        request = self._world.store.get(PLURAL, key)
        return request is None or LABEL_ACTIVE not in request["metadata"]["labels"]

    def _is_completed(self, key: str) -> bool:
        request = self._world.store.get(PLURAL, key)
        return request is not None and request["status"]["phase"] == "Completed"

    def _is_asked_for(self, key: str) -> bool:
        requests = self._world.store.all(PLURAL)
        return any(f"{each['metadata']['namespace']}/{each['spec']['podName']}" == key for each in requests)

    # Objects.

    def _name(self) -> str:
        self._made += 1
        return f"x{self._made}"

    def _create(self, kind: str, team: str, obj: Mapping[str, Any]) -> Object:
        meta = {**obj["metadata"], "namespace": team, "uid": f"{kind}-{obj['metadata']['name']}"}
        return self._world.store.create(kind, {**obj, "metadata": meta})

    def _pod(self, team: str, name: str) -> None:
        gates = [{"conditionType": READINESS_GATE}]
        uses = [{"configMapRef": {"name": name}}] if name == team else []
        spec = {"nodeName": ELSEWHERE, "containers": [{"name": "app", "envFrom": uses}], "readinessGates": gates}
        running = {"state": {"running": {"startedAt": "2025-01-01T00:00:00Z"}}, "ready": True, "started": True}
        status = {"name": "app", "containerID": f"simulated://{name}", "restartCount": 0, **running}
        ready = [{"type": each, "status": "True"} for each in ("Ready", READINESS_GATE)]
        whole = {"phase": "Running", "conditions": ready, "containerStatuses": [status]}
        meta = {"name": name, "labels": {"app": name}, "creationTimestamp": "2025-01-01T00:00:00Z"}
        self._create("pods", team, {"metadata": meta, "spec": spec, "status": whole})

    def _request(self, team: str, name: str, phase: str, grace: int | None, **spec: Any) -> None:
        meta = {"name": name, "labels": {LABEL_NODE_NAME: ELSEWHERE, LABEL_ACTIVE: "true"}}
        strategy = {} if grace is None else {"unreadyGracePeriodSeconds": grace}
        spec |= {"podName": name, "containers": [{"name": "app"}], "strategy": strategy}
        head = {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta}
        self._create(PLURAL, team, {**head, "spec": spec, "status": {"phase": phase}})

    def _policy(self, team: str, name: str, **spec: Any) -> None:
        spec["triggers"] = {"configChange": {"settle": f"{SETTLE_SECONDS}s"}}
        self._create(POLICY_PLURAL, team, {"metadata": {"name": name, "generation": 1}, "spec": spec})
