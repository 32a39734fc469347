"""Checks how the daemon makes its calls: one write of a request at a time, few stops at once, no endless retries."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from crrd.core.api.types import LABEL_ACTIVE, PLURAL
from crrd.node.slots import SLOT_SECONDS
from tests.simulation.containers import Container
from tests.simulation.facts import Act
from tests.simulation.network import Reply, Sent
from tests.simulation.promises import Promises
from tests.simulation.schedule import NAMESPACE
from tests.simulation.store import Object, states

if TYPE_CHECKING:
    from tests.simulation.daemon import Life

NOTICED = 3.0  # Seconds after which a kubelet that has stopped responding is known to be down
MOVED = 110.0  # Seconds after which a kubelet that refuses connections may count as having moved its health endpoint
TOLD = 20.0
"""Seconds after a stop's response within which a status reports it. Before, the runtime may take ten for a list."""
TRIES = 30  # Stops of one container for one request
TRIED_SECONDS = 300.0  # How long failing stops are retried, in addition to the grace period
ROUNDING = 1e-6  # Seconds by which a difference of two times may be too small


class Conduct(Promises):
    """Checks calls in progress."""

    def sends(self, life: "Life", sent: Sent, reply: Reply) -> None:
        """The daemon sends a write of a request."""
        path = sent.path.removesuffix("/status")
        before = life.writes.get(path)
        if before is not None and not before[0].future.done():
            self.broken(f"two writes of {path.rpartition('/')[2]} at once")
        meta = json.loads(sent.body or b"{}").get("metadata", {})
        if not (meta.get("uid") and meta.get("resourceVersion")):
            self.broken(f"a write of {path.rpartition('/')[2]} is bound to no UID or no version: {meta}")
        life.writes[path] = reply, sent.body or b""

    def conflicts(self, life: "Life", sent: Sent) -> None:
        """Check a write of an old version whose sender still waits for the response."""
        name = sent.path.removesuffix("/status").rpartition("/")[2]
        obj = self._world.store.get(PLURAL, f"{NAMESPACE}/{name}")
        meta = obj["metadata"] if obj is not None else {"uid": "", "resourceVersion": ""}
        known = self.known.get(meta["uid"])
        if known is not None and known.restored:  # it may have seen a version that does not exist any more
            return
        if not life.dead and life.answered.get(meta["uid"]) == meta["resourceVersion"]:
            self.broken(f"a write of {meta['name']} conflicts with the one before, which was answered")

    def _conduct(self, container: Container, life: "Life", owners: frozenset[str], grace: float) -> None:
        """A stop is about to be sent."""
        self._stops_at_once(life)
        earlier = [act for act in self._stops.get(container.id, ()) if act.life is life and act.owners & owners]
        kubelet, now = self._world.kubelet, self._now
        silent = life.looked_at(container) - kubelet.down_since if kubelet.down else 0.0  # kubelet was asked then, too
        if not earlier and life.knows_kubelet and silent > NOTICED and not (kubelet.refuses and silent > MOVED):
            self.broken(f"a stop of {container.id}, and kubelet does not answer since {silent:.0f} s")
        of_host = kubelet.pods[container.pod_uid].shape.host
        if not (earlier or of_host) and self._world.cri.is_told(life):
            self.broken(f"a stop of {container.id}, and the runtime says that its network is not ready")
        if earlier and (len(earlier) > TRIES or now - earlier[0].at > grace + TRIED_SECONDS):
            ago = now - earlier[0].at
            self.broken(f"{container.id} is stopped again: {len(earlier)} times since {ago:.0f} s")
        if len(owners) == 1:
            (uid,) = owners
            obj = self._active(uid)
            begun = self._hooks.get(container.id, ())
            hooks = [act for act in begun if act.life is life and uid in act.owners]
            # The record is waited for until the grace period is over. What an earlier daemon has used of it counts.
            least = 0 if any(act.life is not life for act in begun) else grace
            over = uid in life.live_requests() and any(act.outcome == "" and now < act.at + least for act in hooks)
            if obj is not None and over and not self.known[uid].restored and not self._is_told(obj, container.name):
                self.broken(f"a stop of {container.id}, and its request does not say yet that the hook has run")

    def _stops_at_once(self, life: "Life") -> None:
        acts = (act for acts in self._stops.values() for act in acts if act.life is life and act.outcome is None)
        sent = sum(self._now - act.at < SLOT_SECONDS - ROUNDING for act in acts)
        if sent > self._world.setup.stops_at_once:  # in addition to one after the hook of an ended request
            self.broken(f"{sent + 1} stops at once, {self._world.setup.stops_at_once} are allowed")

    def _starts(self, uid: str, container: Container, life: "Life") -> None:
        """A hook or the first stop of a container starts, only for this request."""
        name = f"/{self.known[uid].name}"
        for path, (reply, body) in life.writes.items():
            if path.endswith(name) and not reply.future.done() and b'"phase":"Completed"' in body.replace(b" ", b""):
                self.broken(f"work for {container.id} starts while the write that completes its request is under way")

    def _active(self, uid: str) -> Object | None:
        """Return the request if it has not ended."""
        obj = self._world.store.get(PLURAL, f"{NAMESPACE}/{self.known[uid].name}")
        if obj is None or obj["metadata"]["uid"] != uid or obj["metadata"].get("deletionTimestamp"):
            return None
        over = obj.get("status", {}).get("phase") == "Completed" or LABEL_ACTIVE not in obj["metadata"]["labels"]
        return None if over else obj

    def _is_told(self, obj: Object, name: str) -> bool:
        """Whether a request reports that a container is being stopped, as far as its CRD allows."""
        state: Mapping[str, Any] = next((state for state in states(obj) if state["name"] == name), {})
        final = state.get("phase") in ("Succeeded", "Failed")
        return final or bool(state.get("isKilled")) or bool(self._world.faults["prune"])

    def _stopped(self, act: Act, container: Container) -> None:
        """A stop has returned: check that it is recorded soon."""
        if act.outcome == "" and len(act.owners) == 1:
            self._world.loop.call_later(TOLD, self._look_whether_told, act, container.name)

    def _look_whether_told(self, act: Act, name: str) -> None:
        (uid,) = act.owners
        known, obj, since = self.known[uid], self._active(uid), self._now - TOLD
        free = self._world.life is act.life and self._world.could_write(since - 30.0, self._now)
        if obj is None or not free or known.restored or known.was_away(since - 30.0, self._now):
            return
        if not self._is_told(obj, name):
            self.broken(f"{known.name}/{name} was stopped {TOLD:.0f} s ago, and its status does not say so")
