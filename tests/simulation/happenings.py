"""The events of a schedule, and how each of them ends."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from crrd.core.api.types import PLURAL
from tests.simulation.apiserver import ApiServer
from tests.simulation.changes import Changing
from tests.simulation.clock import SimulatedLoop
from tests.simulation.containers import Containers
from tests.simulation.cri import Cri
from tests.simulation.daemon import Life, Manager
from tests.simulation.judge import Judge
from tests.simulation.kubelet import SimulatedKubelet
from tests.simulation.manager import SimulatedUsers
from tests.simulation.pod import Pod
from tests.simulation.sandboxes import Sandboxes
from tests.simulation.schedule import NAMESPACE, Event, Setup
from tests.simulation.shop import Shop
from tests.simulation.store import Store
from tests.simulation.teams import Teams

HALF_OPEN = 170.0  # Longest time in seconds until a connection whose other end has disappeared is given up


class Happenings:
    """The parts of the world that a schedule changes."""

    loop: SimulatedLoop
    setup: Setup
    story: list[str]
    judge: Judge
    kubelet: SimulatedKubelet
    cri: Cri
    containers: Containers
    sandboxes: Sandboxes
    cluster: SimulatedUsers
    teams: Teams
    shop: Shop
    changes: Changing
    api: ApiServer
    life: Life | None
    manager: Manager
    stepped: bool  # Whether the node's wall clock was ever set
    mirrors: dict[str, list[str]]  # Static pod -> UIDs of its earlier mirrors
    no_credentials: bool
    faults: Counter[str]
    """Faults that had an effect: a call was disturbed, an object was changed, the daemon was killed."""
    scheduled: Counter[str]  # Faults of the schedule, with or without an effect
    _traps: list[list[Any]]
    _deaf: list[tuple[float, float]]
    _unwritten: list[tuple[float, float]]
    _unlooked: list[tuple[float, float]]
    _successors: set[str]
    lives: list[Life]

    def say(self, who: str, what: str) -> None:
        raise NotImplementedError

    def kill(self, away: float) -> None:
        raise NotImplementedError

    def lead(self, *, beside: bool = False) -> None:
        raise NotImplementedError

    def double(self, seconds: float) -> bool:
        raise NotImplementedError

    @property
    def store(self) -> Store:
        return self.api.store

    # What happens.

    def happen(self, event: Event) -> None:
        """Carry out one event of the schedule."""
        about = event.about
        self.say("fault" if event.kind != "create" else "user", str(event)[9:])
        self.scheduled[event.kind] += event.kind != "create"
        seconds = float(about.get("seconds", 0.0))
        kind = event.kind
        if kind.startswith("api_") or kind in ("credentials", "conflict", "half_open", "stale", "prune", "restore"):
            silent = HALF_OPEN if kind == "half_open" else 30.0
            self._deaf.append((self.loop.time(), self.loop.time() + seconds + silent))
            self._unwritten.append((self.loop.time(), self.loop.time() + seconds + 30.0))
        if kind.startswith("cri_") or kind in ("reboot", "unknown"):
            self._unlooked.append((self.loop.time(), self.loop.time() + seconds + 15.0))
        if kind.startswith("api_") or kind == "conflict":
            self.api.rule(kind, about)
        elif kind in ("cri_error", "cri_hang", "cri_slow", "cri_late", "cri_lost"):
            self.cri.rule(kind, about)
        elif kind.startswith("shop_"):
            self.faults[kind] += self.shop.happen(kind.removeprefix("shop_"), about)
        elif kind.startswith("change_"):
            self.faults[kind] += self.changes.happen(kind.removeprefix("change_"), about)
        elif getattr(self, f"_do_{kind}")(about) is not False and kind not in ("create", "kill"):
            self.faults[kind] += 1

    def count_hit(self, rule: Any) -> None:
        """Count a rule that has disturbed a call, once."""
        self.faults[rule.kind] += not rule.hit
        rule.hit = True

    def _for(self, seconds: float, undo: Any, *arguments: Any) -> None:
        self.loop.call_later(seconds, undo, *arguments)

    def _do_create(self, about: Mapping[str, Any]) -> None:
        self.cluster.create(dict(about))

    def _there(self, about: Mapping[str, Any]) -> bool:
        """Whether the request exists."""
        return self.store.get(PLURAL, f"{NAMESPACE}/{about['request']}") is not None

    def _do_delete(self, about: Mapping[str, Any]) -> bool:
        there = self._there(about)
        self.cluster.delete(about["request"])
        return there

    def _do_relabel(self, about: Mapping[str, Any]) -> bool:
        there = self._there(about)
        self.cluster.label(about["request"], active=False)
        self._for(about["seconds"], partial(self.cluster.label, about["request"], active=True))
        return there

    def _do_unpin(self, about: Mapping[str, Any]) -> bool:
        there = self._there(about)
        if not (int(self.loop.time() * 1000) % 2 and self.cluster.repin(about["request"])):
            self.cluster.unpin(about["request"])
        return there

    def _do_repin(self, about: Mapping[str, Any]) -> bool:
        return self.cluster.repin(about["request"])

    def _do_touch(self, about: Mapping[str, Any]) -> bool:
        there = self._there(about)
        self.cluster.annotate(about["request"], "note", str(self.loop.time()))
        return there

    def _of(self, about: Mapping[str, Any]) -> Pod | None:
        return self.kubelet.of(about["pod"])

    def _do_crash(self, about: Mapping[str, Any]) -> bool:
        pod = self._of(about)
        if pod is not None:
            self.kubelet.crash(pod, about["container"], about["code"])
        return pod is not None

    def _do_update(self, about: Mapping[str, Any]) -> bool:
        pod = self._of(about)
        if pod is not None:
            self.kubelet.update(pod, about["container"])
        return pod is not None

    def _do_hold(self, about: Mapping[str, Any]) -> bool:
        pod = self._of(about)
        if pod is not None:
            pod.held[about["container"]] = self.loop.time() + about["seconds"], about["reason"]
        return pod is not None

    def _do_unstartable(self, about: Mapping[str, Any]) -> bool:
        pod = self._of(about)
        if pod is not None:
            pod.unstartable[about["container"]] = self.loop.time() + about["seconds"]
        return pod is not None

    def _do_unknown(self, about: Mapping[str, Any]) -> bool:
        pod = self._of(about)
        found = self.containers.of(pod.runtime_uid, about["container"]) if pod is not None else []
        if found:
            self.containers.lose(found[-1])
        return bool(found)

    def _do_sandbox(self, about: Mapping[str, Any]) -> bool:
        pod = self._of(about)
        if pod is not None:
            self.kubelet.lose_sandbox(pod)
        return pod is not None

    def _do_evict(self, about: Mapping[str, Any]) -> bool:
        pod = self._of(about)
        if pod is not None:
            self.kubelet.evict(pod)
        return pod is not None

    def _do_delete_pod(self, about: Mapping[str, Any]) -> bool:
        pod = self._of(about)
        if pod is None or pod.deleting:
            return False
        if pod.shape.static:
            if self.store.get("pods", pod.key) is None:
                return False
            self.mirrors.setdefault(pod.runtime_uid, []).append(pod.uid)
            self.store.remove("pods", pod.key)
            pod.uid = f"{pod.runtime_uid}m{len(self.mirrors[pod.runtime_uid])}"
            self._for(1.0, self._mirror, pod)
            return True
        if about["successor"]:
            self._successors.add(pod.runtime_uid)
        if about["force"]:
            self.store.remove("pods", pod.key)
            self.pod_gone(pod)
        else:
            self.store.delete("pods", pod.key, 30 if pod.shape.grace is None else max(1, pod.shape.grace))
        self.kubelet.delete(pod)
        return True

    def _mirror(self, pod: Pod) -> None:
        self.kubelet.mirror(pod)
        self.kubelet.wake()

    def pod_gone(self, pod: Pod) -> None:
        """The pod's object was deleted. Its owner may create one with the same name."""
        if pod.runtime_uid in self._successors:
            self._successors.discard(pod.runtime_uid)
            self._for(0.5, self.kubelet.add, pod.shape)

    def _do_collect(self, _: Mapping[str, Any]) -> None:
        self.kubelet.collect()

    def _set(self, whose: Any, name: str, value: bool, seconds: float, then: Any = None) -> None:
        setattr(whose, name, value)

        def undo() -> None:
            setattr(whose, name, not value)
            if then is not None:
                then()

        self._for(seconds, undo)

    def _do_kubelet_down(self, about: Mapping[str, Any]) -> None:
        self.kubelet.refuses, self.kubelet.down_since = about["refuses"], self.loop.time()
        self._set(self.kubelet, "down", True, about["seconds"], self.kubelet.wake)

    def _do_kubelet_mute(self, about: Mapping[str, Any]) -> None:
        self._set(self.kubelet, "mute", True, about["seconds"], self.kubelet.wake)

    def _do_prune(self, about: Mapping[str, Any]) -> None:
        self._set(self.api, "pruning", True, about["seconds"])

    def _do_credentials(self, about: Mapping[str, Any]) -> None:
        self._set(self, "no_credentials", True, about["seconds"])

    def _do_cri_down(self, about: Mapping[str, Any]) -> None:
        self.cri.go_down()
        self._set(self.cri, "down", True, about["seconds"], self.kubelet.wake)

    def _do_network_down(self, about: Mapping[str, Any]) -> None:
        self.cri.network_down_since = self.loop.time()
        self._set(self.cri, "network_down", True, about["seconds"], self.kubelet.wake)

    def _do_reboot(self, about: Mapping[str, Any]) -> None:
        """The node is off for a while: all its processes end."""
        self.kill(about["seconds"] + 1.0)
        self._do_cri_down(about)
        self.kubelet.refuses, self.kubelet.down_since = True, self.loop.time()
        self._set(self.kubelet, "down", True, about["seconds"], self.kubelet.wake)
        for pod in self.kubelet.pods.values():
            self.kubelet.lose_sandbox(pod, all_of_them=True)

    def _do_restore(self, about: Mapping[str, Any]) -> None:
        """Restore etcd from a backup that is `back` seconds old."""
        gone = {pod.uid for pod in self.kubelet.pods.values() if pod.removed}
        for old, new in self.store.restore(self.store.version_at(self.loop.time() - about["back"]), gone):
            self.judge.request_restored(old, new)
        for life in self.lives:
            life.starts_over()
        self.api.catch_up()
        self.api.drop_watches()
        self.kubelet.wake()

    def _do_stale(self, about: Mapping[str, Any]) -> None:
        self.api.stand_still(about["back"], about.get("open_too", False))
        self._for(about["seconds"], self.api.catch_up)

    def _do_expire(self, _: Mapping[str, Any]) -> None:
        self.store.expire()
        self.api.drop_watches(gone=self.setup.gone_in_stream)

    def _do_drop_watches(self, _: Mapping[str, Any]) -> None:
        self.api.drop_watches()

    def _do_half_open(self, about: Mapping[str, Any]) -> None:
        self.api.half_open()
        self.api.rule("half_open", about)

    def _do_leader(self, about: Mapping[str, Any]) -> None:
        """The manager's leader dies, and another one takes over after a while."""
        self.manager.end()
        self._for(about["seconds"], self.lead)

    def _do_kill(self, about: Mapping[str, Any]) -> None:
        if about["call"]:
            self._traps.append([about["call"], about["when"], about["nth"], about["seconds"]])
        else:
            self.kill(about["seconds"])

    def _do_double(self, about: Mapping[str, Any]) -> bool:
        return self.double(about["seconds"])

    def _do_term(self, about: Mapping[str, Any]) -> bool:
        """SIGTERM, then kill -9 if it takes too long."""
        life = self.life
        if life is None:
            return False
        self._deaf.append((self.loop.time(), self.loop.time() + about["seconds"] + 5.0))
        life.stop.set()
        self._for(about["seconds"], lambda: self.kill(1.0) if self.life is life else None)
        return True

    def _do_team_hang(self, about: Mapping[str, Any]) -> None:
        self.teams.hang(about["calls"], about["seconds"])

    def _do_team_crowd(self, about: Mapping[str, Any]) -> None:
        self.teams.crowd(about["number"], policies=about["policies"])

    def _do_team_join(self, about: Mapping[str, Any]) -> None:
        self.teams.join(about["team"], labelled=about["labelled"], policy=about["policy"])

    def _do_team_ask(self, about: Mapping[str, Any]) -> None:
        self.teams.ask(about["team"], about["what"])

    def _do_team_edit(self, about: Mapping[str, Any]) -> None:
        self.teams.edit(about["team"])

    def _do_step(self, about: Mapping[str, Any]) -> None:
        self.loop.wall_offset += about["by"]
        self.stepped = True
