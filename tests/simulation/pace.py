"""Checks how soon the daemon acts: recent observations without superfluous calls, pauses, and timely statuses.

Nothing counts as late if a fault was in the way, which each check verifies first.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from crrd.kubelet.labels import LABEL_POD_UID
from crrd.node.records import WRITE_RETRY
from tests.simulation.conduct import Conduct
from tests.simulation.containers import Container
from tests.simulation.facts import Act, Known
from tests.simulation.network import Reply, Sent
from tests.simulation.store import states

if TYPE_CHECKING:
    from tests.simulation.channel import Call
    from tests.simulation.daemon import Life

SLOW_API = 0.004
"""Above this latency, the API server's answer about a pod takes so long that the runtime is asked again afterwards."""
DOWN = 8.0
"""Seconds after the runtime shows a stopped container as ended within which the status says what it waits for. Step 10
says 5; a kubelet that hangs delays the first round and the last one by 1 each."""
GONE = 40.0
"""Seconds within which a request ends after its pod was deleted, if no fault keeps the daemon from learning it."""
GONE_LOOKS = 6  # How often that is checked, if a fault does
MANY = 1000  # Failures after which a write may wait for the longest delay, because the server may have requested it


class Pace(Conduct):
    """Checks durations."""

    # Calls to the runtime.

    def looks(self, call: "Call") -> None:
        """The daemon lists the containers of a pod, or all."""
        if not call.message.filter.id:
            call.life.looks.append((self._now, call.runtime, call.message.filter.label_selector.get(LABEL_POD_UID, "")))

    def looked(self, call: "Call") -> None:
        """The response has arrived."""
        if not call.message.filter.id:
            key = call.runtime, call.message.filter.label_selector.get(LABEL_POD_UID, "")
            call.life.looked[key] = max(call.began, call.life.looked.get(key, call.began))

    def _is_looked_at(self, container: Container, life: "Life", owners: frozenset[str]) -> None:
        """Step 4: an action on an instance is based on a list that began after its request was known."""
        came = min((life.came[uid] for uid in owners if uid in life.came), default=0.0)
        if life.looked_at(container) < came:
            self.broken(f"work for {container.id}, and the runtime was not asked since its request came")

    def _is_asked_once(self, known: Known, name: str, life: "Life") -> None:
        """If no fault is in the way, one list of the runtime is enough for the first stop of a request."""
        world, pod = self._world, self._pod(known)
        if pod is None or len(self.known) > 1 or world.faults.total() or world.setup.latency > SLOW_API:
            return
        shape = next(each for each in pod.shape.containers if each.name == name)
        waits = shape.hook == "httpGet" and world.setup.late_ip
        if pod.shape.static:  # the runtime knows it by another UID than the request
            return
        matters = any(each.own or each.action for each in pod.shape.containers)  # kubelet's version is read
        strategy = known.spec["strategy"]
        pinned = known.context(name) is None or strategy.get("forceRecreate")
        if waits or matters or pinned or "unreadyGracePeriodSeconds" in strategy or known.names[0] != name:
            return
        seen = [at for at, runtime, _ in life.looks if runtime == pod.shape.runtime and at >= life.came[known.uid]]
        if len(seen) > 1:
            self.broken(f"{known.name}/{name} begins after {len(seen)} looks at the runtime, and one was enough")

    # Writes.

    def sends(self, life: "Life", sent: Sent, reply: Reply) -> None:
        """See Conduct. Also count failures."""
        super().sends(life, sent, reply)
        key = sent.path.removesuffix("/status").rpartition("/")[2], sent.path.endswith("/status")

        def answered(_: object) -> None:
            life.failures[key] = 0 if reply.whole else life.failures.get(key, 0) + 1
            life.failed_at[key[0]] = self._now
            future = reply.future
            plain = not future.cancelled() and future.exception() is None
            if plain and (future.result().status == 404 or "Retry-After" in future.result().headers):
                life.failures[key] = max(life.failures[key], MANY)

        reply.future.add_done_callback(answered)

    def write_failed(self, event: Mapping[str, Any], life: "Life") -> None:
        """Check the delay in the log after a failed write, which depends on the number of failures in a row."""
        name = event["request"].partition("/")[2]
        both = [(name, False), (name, True)]
        if life.failed_at.get(name) != self._now:  # it was never sent
            for key in both:
                life.failures[key] = life.failures.get(key, 0) + 1
        failures = max(life.failures.get(key, 0) for key in both)
        most = WRITE_RETRY.maximum if failures >= MANY else WRITE_RETRY.initial * WRITE_RETRY.factor ** (failures - 1)
        most = min(most, WRITE_RETRY.maximum) * (1 + WRITE_RETRY.jitter) + 0.1
        if not self._world.faults["prune"] and event["retry_in"] > most:
            self.broken(f"a write of {event['request']} waits {event['retry_in']} s after {failures} failures in a row")

    # Timely statuses.

    def _stopped(self, act: Act, container: Container) -> None:
        """See Conduct. Also check that the status says what is awaited if no next instance follows."""
        super()._stopped(act, container)
        if act.outcome == "" and len(act.owners) == 1:
            wait = self._world.setup.list_lag + DOWN
            self._world.loop.call_later(wait, self._look_whether_waiting, act, container, self._now)

    def _look_whether_waiting(self, act: Act, container: Container, since: float) -> None:
        (uid,) = act.owners
        known, obj = self.known[uid], self._active(uid)
        pod = self._world.kubelet.pods[container.pod_uid]
        newest = self._world.containers.history(pod.runtime_uid, container.name)[-1]
        down = newest is container and container.shown_ended
        if obj is None or not down or pod.deleting or pod.ended or pod.restarting or self.pods.get(pod.uid):
            return
        if not self._was_free(act.life, known, since) or not self._world.could_look(since - 5.0) or known.unpinned:
            return
        # Another request that was served before, and got its label back, may be served instead.
        others = (each for each in self.known.values() if each.pod_uid == known.pod_uid and each is not known)
        if any(each.away and self._active(each.uid) is not None for each in others):
            return
        state: Mapping[str, Any] = next((each for each in states(obj) if each["name"] == container.name), {})
        told = state.get("message") or obj["status"].get("message")
        if state.get("phase") not in ("Succeeded", "Failed") and not told:
            self.broken(f"{known.name}/{container.name} is down for {DOWN:.0f} s, and its status does not say why")

    def _was_free(self, life: "Life", known: Known, since: float) -> bool:
        """Whether no fault kept this life of the daemon from receiving and writing."""
        world = self._world
        free = world.life is life and life.born < since and not (known.restored or known.was_away(since, self._now))
        return free and not world.deaf_since(since) and world.could_write(since - 30.0, self._now)

    def _gone(self, pod_uid: str) -> None:
        """A pod's object was deleted."""
        self._world.loop.call_later(GONE, self._look_whether_gone, pod_uid, GONE_LOOKS)

    def _look_whether_gone(self, pod_uid: str, left: int) -> None:
        """Step 6: the pod's requests end, whether or not the watch was connected when it was deleted."""
        of_pod = [each for each in self.known.values() if each.pod_uid == pod_uid and each.labelled]
        for known in [each for each in of_pod if each.ended is None and not (each.deleted or each.restored)]:
            life, since = self._world.life, self._now - GONE
            if life is not None and self._was_free(life, known, since) and self._world.could_look(since):
                self.broken(f"{known.name} goes on, and its pod has gone at least {GONE:.0f} s ago")
            elif left > 1:
                self._world.loop.call_later(GONE, self._look_whether_gone, pod_uid, left - 1)
