"""Checks the invariants of every run at the moment at which they could be broken.

The truth is what the simulated runtime, kubelet and API server have done themselves. The daemon can know only what was
delivered to it. The first violation ends the run.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any

from crrd.core.api.reasons import Reason
from crrd.core.api.types import ANNOTATION_PINNED, LABEL_ACTIVE, LABEL_POD_UID, PLURAL
from crrd.kubelet.restart_rules import RESTART_ALL, RESTART_ALL_SINCE
from tests.simulation.containers import Container
from tests.simulation.network import Sent
from tests.simulation.schedule import NAMESPACE
from tests.simulation.store import Object, states

if TYPE_CHECKING:
    from tests.simulation.channel import Call
    from tests.simulation.daemon import Life
    from tests.simulation.pod import Pod
    from tests.simulation.world import SimulatedWorld

from tests.simulation.facts import Act, Known
from tests.simulation.pod_judge import PodJudge
from tests.simulation.verdicts import PERSISTED, reason_in

WINDOW = 10.0  # Window for rates, in seconds
WRITES = 40  # Limit for writes of one request by one life of the daemon in a window, in addition to CONTAINER_WRITES.
# Two outages of the API server fit in a window. In each, pins and status are tried five times, and sent twice
CONTAINER_WRITES = 8  # The same for each of its containers; a write whose connection breaks is sent twice
EVENTS = 60
CONTAINER_EVENTS = 12  # A hook that failed has two events. Each is tried three times, and sent twice
READS = 40  # Limit for lists and watches in a window, in addition to a list and a watch for each pod
MANAGER_READS = 60  # Limit for reads of one object by the manager in a window. Each policy may list its target's kind
RUNTIME_CALLS = 200  # Limit per daemon, pod and window: two calls a second, and ten times as many for events
LEFT_SECONDS = 60.0  # Least time for which the hook of a deleted request counts
MINIMUM_GRACE = 2
DEFAULT_GRACE = 30
LATE = 15.0  # Longest time in seconds that a late response of the runtime takes
AFTER_HOOK = 6.0  # Seconds after the grace period in which the stop after a hook of an ended request may still be sent


class Judge(PodJudge):
    """Sees all actions, and reports violations."""

    def __init__(self, world: "SimulatedWorld") -> None:
        super().__init__(world)
        self._rates: dict[str, deque[float]] = {}
        self._said: dict[str, str] = {}
        self._hook_told: dict[str, dict[str, float]] = {}
        """Container ID -> the request whose hook the log reported as started, and when."""
        self.foreign_pins: set[str] = set()  # Annotations that another client has written
        self.calls: Counter[str] = Counter()

    # Rates.

    def _rate(self, key: str, most: int, what: str) -> None:
        times = self._rates.setdefault(key, deque())
        times.append(self._now)
        while times[0] < self._now - WINDOW:
            times.popleft()
        if len(times) > most:
            self.broken(f"too many calls: more than {most} of {what} in {WINDOW:.0f} s")

    def called(self, life: "Life", sort: str, sent: Sent) -> None:
        self.calls[sort] += 1
        if sort == "write":
            path = sent.path.removesuffix("/status")
            name = path.rpartition("/")[2]
            containers = max((len(each.names) for each in self.known.values() if each.name == name), default=1)
            self._rate(f"{path} by {id(life)}", WRITES + CONTAINER_WRITES * containers, f"writes of {name}")
        elif sort == "events":
            containers = sum(len(each.names) for each in self.known.values())
            self._rate(sort, EVENTS + CONTAINER_EVENTS * containers, "events")
        else:
            most = READS + 2 * self._world.setup.size
            self._rate(sent.path, most, f"lists and watches of {sent.path.rpartition('/')[2]}")

    def manages(self, sent: Sent) -> None:
        """The manager makes a call."""
        if sent.method == "GET" and not sent.query.keys() & {"watch", "limit"}:
            self._rate(f"manager {sent.path}", MANAGER_READS, f"reads of {sent.path} by the manager")

    def runtime_called(self, call: "Call") -> None:
        self.calls[call.method] += 1
        if call.method == "ListContainers":
            self.looks(call)
        self._rate(f"cri by {id(call.life)}", RUNTIME_CALLS * self._world.setup.size, "calls to the runtime")

    def event(self, body: Mapping[str, Any]) -> None:
        self._world.say("event", f"{body.get('reason')}: {body.get('message')}")

    # The truth about requests and pods.

    def created(self, uid: str, obj: Object, pod: Object) -> None:
        meta = obj["metadata"]
        labelled = LABEL_POD_UID in meta["labels"]
        self.known[uid] = Known(
            uid, meta["name"], pod["metadata"]["name"], pod["metadata"]["uid"], obj["spec"], labelled, self._now
        )

    def created_at(self, uid: str) -> float:
        return self.known[uid].created

    def ended_by_manager(self, obj: Object) -> None:
        """The manager completes a request."""
        known, message = self.known[obj["metadata"]["uid"]], obj["status"].get("message", "")
        known.by_manager, known.ended = message, self._now
        if reason_in(obj["status"]) is Reason.NO_ANSWER and not self._world.deaf_since(known.created):
            self.broken(f'the manager ended {known.name}: "{message}", though nothing kept the daemon from answering')

    def pod_changed(self, old: Object | None, new: Object | None) -> None:
        some = new or old
        assert some is not None
        seen = self.pods.setdefault(some["metadata"]["uid"], {})
        if new is None:
            seen.setdefault("gone", self._now)
            self._gone(some["metadata"]["uid"])
            return
        if new["metadata"].get("deletionTimestamp"):
            seen.setdefault("deleting", self._now)
        if new.get("status", {}).get("phase") in ("Failed", "Succeeded"):
            seen.setdefault("ended", self._now)

    def request_changed(self, old: Object | None, new: Object | None) -> None:
        some = new or old
        assert some is not None
        known = self.known[some["metadata"]["uid"]]
        if new is None:
            known.deleted = True
            return
        raw = new["metadata"].get("annotations", {}).get(ANNOTATION_PINNED)
        foreign = raw in self.foreign_pins
        known.unpinned = known.unpinned or foreign or (bool(known.pins) and not raw)
        self._follow_label(known, new)
        self._follow_unready(known, new)
        for name, pin in (json.loads(raw) if raw else {}).items():
            if isinstance(pin, dict) and "containerID" in pin:
                bare = str(pin["containerID"]).partition("://")[2]
                if foreign:
                    known.foreign_pins.add((name, bare))  # the daemon keeps those that do not concern its work
                elif bare not in known.pins.setdefault(name, []) and (name, bare) not in known.foreign_pins:
                    self._pins(known, name, bare)

    def _pins(self, known: Known, name: str, bare: str) -> None:
        """The daemon pins an instance. While it lives, it may not pin another one."""
        life, free = self._world.life, not (known.restored or known.away)
        if known.pins[name] and known.pinned_in.get(name) is life and free:
            self.broken(f"{known.name} means {bare} now, and it meant {known.pins[name]}")
        known.pinned_in.setdefault(name, life)
        known.pins[name].append(bare)

    def request_restored(self, old: Object | None, new: Object | None) -> None:
        """Etcd was restored."""
        some = new or old
        assert some is not None
        known = self.known[some["metadata"]["uid"]]
        known.restored = known.unpinned = True
        known.deleted = new is None
        if new is not None and new.get("status", {}).get("phase") != "Completed":
            known.ended = None

    def _follow_label(self, known: Known, new: Object) -> None:
        out = known.ended is None and LABEL_ACTIVE not in new["metadata"]["labels"]
        was_out = bool(known.away) and known.away[-1][1] == inf
        if out and not was_out:
            known.away.append((self._now, inf))
        elif was_out and not out:
            known.away[-1] = (known.away[-1][0], self._now)

    # Stops and hooks.

    def _owners(self, life: "Life", container: Container) -> frozenset[str]:
        """Return the UIDs of the requests that the daemon must consider live and that mean this instance."""
        found = []
        for uid in life.live_requests():
            if (known := self.known.get(uid)) is None:  # of the shop, where nothing is stopped
                continue
            pod = self._world.kubelet.pods[container.pod_uid]
            uids = (pod.uid, *self._world.mirrors.get(pod.runtime_uid, ()))
            meant = known.pod_name == pod.name and (not known.labelled or known.pod_uid in uids)
            if meant and container.id in known.means(container.name):
                found.append(uid)
        said = self._said.get(container.id)
        return frozenset({said} if said in found else found)

    def _hooked(self, container: Container) -> frozenset[str]:
        """Return the requests whose hooks the log reported as started within their grace periods. The stop follows.

        This holds even if another client has ended the request since.
        """
        told, pod = self._hook_told.get(container.id, {}), self._world.kubelet.pods[container.pod_uid]
        late = {uid: began + self._grace(self.known[uid], pod) + AFTER_HOOK for uid, began in told.items()}
        return frozenset(uid for uid in told if self._now <= late[uid])

    def said(self, event: Mapping[str, Any], life: "Life") -> None:
        """Read from the daemon's log for which request it is about to act."""
        if event.get("event") == "request write failed":
            self.write_failed(event, life)
        if "request_uid" in event and "container_id" in event:
            self._said[event["container_id"]] = event["request_uid"]
            if event.get("event") == "preStop hook started":
                self._hook_told.setdefault(event["container_id"], {})[event["request_uid"]] = self._now
                self._begins(self.known[event["request_uid"]], event["container"], life)
                self._starts(event["request_uid"], self._world.containers.all[event["container_id"]], life)

    def acts(self, call: "Call") -> None:
        """The daemon calls StopContainer or ExecSync."""
        container = self._world.containers.all.get(call.message.container_id)
        timeout = call.message.timeout
        self._world.say("daemon", f"{call.method} {call.message.container_id} timeout={timeout}")
        if container is None:
            self.broken(f"{call.method} of {call.message.container_id}, which never was")
            return
        if self._world.changes.judges(container):
            return
        owners = self._owners(call.life, container)
        if call.method == "StopContainer":
            hooked, said = self._hooked(container), self._said.get(container.id)
            if said in hooked - owners:
                owners = frozenset({said})
            elif not owners:
                owners = hooked
        if not owners:
            self.broken(f"{call.method} of {container.id} ({container.name}), which no live request means")
        if call.method == "ExecSync":
            self._hook(container, call.life, owners)
        else:
            self._stop(container, call.life, owners, timeout)

    def _killed(self, owners: frozenset[str], name: str) -> frozenset[str]:
        return frozenset(
            obj["metadata"]["uid"]
            for obj in self._world.store.all(PLURAL)
            if obj["metadata"]["uid"] in owners
            and any(state["name"] == name and state.get("isKilled") for state in states(obj))
        )

    def _hook(self, container: Container, life: "Life", owners: frozenset[str]) -> None:
        self._is_looked_at(container, life, owners)
        earlier = self._hooks.setdefault(container.id, [])
        killed = self._killed(owners, container.name)
        for act in earlier:
            if not act.owners & owners or any(self.known[uid].restored for uid in act.owners):
                continue
            if act.life is life and act.outcome is None:
                self.broken(f"the hook of {container.id} is started again while it runs")
            if act.life is life and not self._may_be_forgotten(act, container):
                self.broken(f"the hook of {container.id} is run twice")
            after = act.life is not life and act.life.died <= life.born  # else its list may be older than isKilled
            if act.outcome == "" and owners and owners <= killed and after:
                self.broken(f"the hook of {container.id} is run again, though the request says isKilled")
            if act.outcome == "" and self._could_tell(act, life, act.ended):
                self.broken(
                    f"the hook of {container.id} is run again, though there was time to write that it had ended"
                )
        earlier.append(Act(self._now, life, owners, killed_before=killed))

    def _may_be_forgotten(self, act: Act, container: Container) -> bool:
        """Whether a hook may be forgotten, because its request left the selection (as if deleted) long enough ago."""
        grace = self._longest(self._world.kubelet.pods[container.pod_uid], act)
        left = any(self.known[uid].was_away(act.at, self._now) for uid in act.owners)
        return left and self._now > act.at + max(grace, LEFT_SECONDS)

    def hook_runs(self, container: Container, life: "Life") -> None:
        """A hook really runs now."""
        self._hook_of_kubelet(container)
        self._world.say("node", f"hook of {container.id} runs")

    def http_hook(self, container: Container, life: "Life") -> Callable[[], None]:
        """A hook's GET has arrived. Return the function to call when it is answered."""
        owners = self._owners(life, container)
        before = self._world.containers.history(container.pod_uid, container.name)[-2:-1]
        unseen = (container.started or 0.0) > life.looked_at(container) - self._world.setup.list_lag
        if not owners and before and unseen:  # no look has shown yet that another instance has the address now
            owners = self._hooked(before[0])
        if not owners:
            self.broken(f"httpGet hook of {container.id} ({container.name}), which no live request means")
        self._hook(container, life, owners)
        self._hook_of_kubelet(container)
        self.hook_runs(container, life)
        act = self._hooks[container.id][-1]

        def answered() -> None:
            act.ended, act.outcome = self._now, ""

        return answered

    def _stop(self, container: Container, life: "Life", owners: frozenset[str], timeout: int) -> None:
        earlier = self._stops.setdefault(container.id, [])
        pod = self._world.kubelet.pods[container.pod_uid]
        for act in earlier:
            if act.life is not life:
                continue
            if act.outcome is None and not owners - act.owners:
                self.broken(f"a second stop of {container.id} while the first is under way")
            lag = self._world.setup.list_lag  # another request trusts a list that lags, which may have arrived late
            shown = lag > 0 and self._now <= (container.ended or self._now) + lag + LATE and not act.owners & owners
            if act.outcome == "" and not shown:
                self.broken(f"a stop of {container.id}, which was stopped already")
        if container.shape.policy == "Never":
            self.broken(f"a stop of {container.id}, which kubelet would not start again (restartPolicy Never)")
        if life.knows_deleting(f"{NAMESPACE}/{pod.name}", pod.uid):
            self.broken(f"a stop of {container.id}, whose pod is being deleted")
        if life.knows_restarting(pod.uid):
            self.broken(f"a stop of {container.id}, and kubelet is about to restart all containers of its pod")
        restarts = container.shape.action == RESTART_ALL and self._world.setup.kubelet >= RESTART_ALL_SINCE
        if restarts and not any(self.known[uid].spec["strategy"].get("allowPodRestart") for uid in owners):
            self.broken(f"a stop of {container.id}, which may restart its whole pod")
        graces = [self._grace(self.known[uid], pod) for uid in owners]
        hooks = self._hooks.get(container.id, [])
        wants_hook = container.shape.hook in ("exec", "httpGet") and all(grace > 0 for grace in graces)
        tried = bool(hooks) or container.id in self._hook_told  # one with an old address reached no container
        if wants_hook and not tried and container.state == "running":
            self.broken(f"a stop of {container.id} without its hook")
        self._is_looked_at(container, life, owners)
        self._conduct(container, life, owners, max(graces, default=0))
        if len(owners) == 1:
            self._only_one(container, pod, owners, timeout, life)
        earlier.append(Act(self._now, life, owners))

    def _longest(self, pod: "Pod", act: Act) -> int:
        return max((self._grace(self.known[uid], pod) for uid in act.owners), default=0)

    def _only_one(self, container: Container, pod: "Pod", owners: frozenset[str], timeout: int, life: "Life") -> None:
        """Check a stop that belongs to a single request: its timeout, and that no other instance was stopped before."""
        (uid,) = owners
        known = self.known[uid]
        self._begins(known, container.name, life)
        self._starts(uid, container, life)
        grace = self._grace(known, pod)
        stopped = known.stopped.setdefault(container.name, set())
        stopped.add(container.id)
        others = [act for each in stopped - {container.id} for act in self._stops[each] if uid in act.owners]
        # a stop is forgotten if its daemon died at once and another client has then removed the pins
        told_of = any(act.life is life or self._could_tell(act, life, act.at) for act in others)
        lost = known.restored or (known.unpinned and not told_of)
        if others and not lost:
            self.broken(f"{known.name} stops a second instance of {container.name}: {sorted(stopped)}")
        hooks, stops = self._hooks.get(container.id, ()), self._stops.get(container.id, ())
        acts = (*hooks, *stops)
        begun = min((act.at for act in acts if uid in act.owners), default=self._now)
        # the time of an earlier request's hook counts for that request's grace period, from the start that an earlier
        # life has recorded
        recent = [act.at for act in hooks if act.life is not life or self._now - act.at <= self._longest(pod, act)]
        begun = min((begun, *recent))
        if container.shape.hook == "sleep":  # only the daemon knows of it, in any of its lives
            begun = 0.0 if self._world.deaths else begun - container.shape.hook_seconds
        least = max(MINIMUM_GRACE, grace - (self._now - begun))
        two = sum(not each.dead for each in self._world.lives) > 1
        if two or (self._world.stepped and self._world.deaths):
            least = MINIMUM_GRACE  # another life's time, or across a death, only the wall clock shows
        if timeout < least - 1.01:
            self.broken(f"{container.id} gets {timeout} s to end, {least:.0f} s are left of its grace period")
        # Of earlier lives, only what they could record counts: hooks and the time since the first stop, but not the
        # wait between the two. Of this life, hooks count.
        told = [act for act in acts if uid in act.owners and self._could_tell(act, life, act.at)]
        stopped_at = min((act.at for act in stops if act in told), default=life.born)
        counted = (act for act in hooks if act.life is life or (act in told and act.at <= stopped_at))
        spent = sum(min(act.ended or self._now, act.life.died) - act.at for act in counted) + life.born - stopped_at
        own = sum(act.ended - act.at for act in hooks if act.life is life and uid in act.owners and act.ended)
        if timeout > max(MINIMUM_GRACE, grace - own) + 1.01:
            self.broken(f"{container.id} gets {timeout} s to end, its hook took {own:.0f} of {grace} s")
        # after a clock change or a removed annotation, the knowledge of an earlier life is lost
        one_at_a_time = all(act.life.died <= life.born for act in told)  # what two of them did at once counts once
        known_still = told and one_at_a_time and not (self._world.stepped or known.unpinned)
        if known_still and timeout > max(MINIMUM_GRACE, grace - spent) + PERSISTED:
            ago = self._now - told[0].at
            self.broken(f"{container.id} gets {timeout} s after a restart, it was told to end {ago:.0f} s ago")
        if timeout > max(MINIMUM_GRACE, grace):
            self.broken(f"{container.id} gets {timeout} s to end, its grace period is {grace} s")

    @staticmethod
    def _grace(known: Known, pod: "Pod") -> int:
        own = known.spec["strategy"].get("terminationGracePeriodSeconds")
        grace = own if own is not None else pod.shape.grace
        return DEFAULT_GRACE if grace is None else int(grace)

    def acted(self, call: "Call", outcome: str | None) -> None:
        """A stop or hook of the daemon has ended: gRPC's code, "" for success, None if it was given up."""
        if call.method == "ListContainers" and outcome == "":
            self.looked(call)
        if call.method == "ListPodSandbox" and outcome == "":
            self.sandboxes_listed(call)
        if call.method == "RunPodSandbox":
            self.pod_restart_answered(call, outcome)
        if call.life.dead or call.method not in ("StopContainer", "ExecSync"):
            return
        if outcome:
            self._world.say("cri", f"{call.method} {call.message.container_id} -> {outcome}")
        acts = (self._stops if call.method == "StopContainer" else self._hooks).get(call.message.container_id, [])
        for act in reversed(acts):
            if act.life is call.life and act.outcome is None:
                act.ended = self._now
                act.outcome = "CANCELLED" if outcome is None else "" if outcome == "NOT_FOUND" else outcome
                if call.method == "StopContainer":
                    self._stopped(act, self._world.containers.all[call.message.container_id])
                return

    # The end.

    def unfinished(self) -> None:
        """The time limit has passed."""
        waiting = [known for known in self.known.values() if known.ended is None and not known.deleted]
        for known in waiting:
            obj = self._world.store.get(PLURAL, f"{NAMESPACE}/{known.name}")
            if obj is not None and LABEL_ACTIVE in obj["metadata"]["labels"]:
                self.broken(f"{known.name} does not end: {obj.get('status')}")

    @property
    def finished(self) -> bool:
        """Whether every request has ended."""
        return all(known.ended is not None or known.deleted for known in self.known.values())
