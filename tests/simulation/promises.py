"""Checks what a request's strategy promises about its stops: order, failure policy, and the unready grace period.

All are checked when the first hook or stop of a container begins for a request.
"""

from typing import TYPE_CHECKING

from crrd.core.api.gate import readiness_of
from crrd.core.api.types import ANNOTATION_UNREADY_ACQUIRED, PLURAL
from tests.simulation.facts import Known
from tests.simulation.schedule import NAMESPACE
from tests.simulation.store import Object, states
from tests.simulation.verdicts import Verdicts

if TYPE_CHECKING:
    from tests.simulation.daemon import Life


class Promises(Verdicts):
    """Checks hooks and stops when they begin."""

    def _is_asked_once(self, known: Known, name: str, life: "Life") -> None:
        raise NotImplementedError

    def _begins(self, known: Known, name: str, life: "Life") -> None:
        """A hook or a stop of this container begins for this request, and perhaps for others."""
        if name in known.begun:
            return
        if not known.begun:
            self._is_unready(known)
            self._is_asked_once(known, name, life)
        known.begun.add(name)
        if not known.ignores_failures:
            failed = [state["name"] for state in states(life.request(known.uid)) if state["phase"] == "Failed"]
            if failed:
                self.broken(f"{known.name}/{name} begins after the failure of {failed}, and failurePolicy is Fail")
        for earlier in known.names[: known.names.index(name)]:
            if not self._is_over(known, earlier):
                self.broken(f"{known.name}/{name} begins before it is the turn: {earlier} goes first")

    def _is_over(self, known: Known, name: str) -> bool:
        """Step 8: whether the next container of the request may begin after this one."""
        obj = self._world.store.get(PLURAL, f"{NAMESPACE}/{known.name}")
        written = {state["name"]: state["phase"] for state in states(obj)}.get(name)
        if written in ("Succeeded", "Failed") or (known.ignores_failures and any(self._excuses(known, name))):
            return True
        if known.spec["strategy"].get("orderedRecreate"):
            return self._recreated(known, name)
        return any(map(self._has_stopped, known.means(name)[-1:])) or known.unpinned

    def _has_stopped(self, container_id: str) -> bool:
        container = self._world.containers.all.get(container_id)
        answered = any(act.outcome == "" for act in self._stops.get(container_id, ()))
        return answered or container is None or container.state != "running"

    def _is_unready(self, known: Known) -> None:
        """Step 7: check that the pod was unready for as long as the request requires."""
        grace, pod = known.spec["strategy"].get("unreadyGracePeriodSeconds"), self._pod(known)
        if grace is None or pod is None or not pod.shape.gate:
            return
        since = known.unready_at
        if since is None or self._now < since + grace:
            ago = "never" if since is None else f"{self._now - since:.1f} s ago"
            self.broken(f"{known.name} begins, and its pod was made unready {ago}; it wants {grace} s")

    def _follow_unready(self, known: Known, obj: Object) -> None:
        """Check that a pod is unready before the request reports it."""
        if known.unready_at is not None or ANNOTATION_UNREADY_ACQUIRED not in obj["metadata"].get("annotations", {}):
            return
        known.unready_at = self._now
        pod = self._world.store.get("pods", f"{NAMESPACE}/{known.pod_name}")
        own = pod is not None and pod["metadata"]["uid"] == known.pod_uid
        if own and pod is not None and not readiness_of(pod).acquired_by(f"{NAMESPACE}/{known.name}"):
            self.broken(f"{known.name} says that its pod is unready, which it is not")
