"""Makes a `Record` of what is seen: objects of the API, containers of the runtime, lines of the containers' files.

It does no calls. `observe` does them, and passes on what it gets.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from crrd.core.api.gate import USER_AGENT
from crrd.core.api.reasons import Reason
from crrd.core.api.types import ANNOTATION_PINNED, LABEL_POD_UID, READINESS_GATE
from crrd.core.rollout.run import LABEL_RUN
from tests.soak_cluster.record import (
    FAILED,
    SUCCEEDED,
    Exit,
    Fault,
    Instance,
    Line,
    Part,
    Pod,
    Policy,
    Record,
    Request,
    Word,
)

Json = Mapping[str, Any]
LABEL_WORKLOAD = "app"
HOOK_FAILED = Reason.HOOK_FAILED.sentence.partition("{")[0]


@dataclass(slots=True)
class Collector:
    """What was seen since the begin of a round, and what was still there from before."""

    most_unready: Mapping[str, int]
    hooks: frozenset[str]
    container: str  # The one that uses the ConfigMap
    requests: dict[str, Request] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    instances: dict[str, Instance] = field(default_factory=dict)
    policies: dict[str, Policy] = field(default_factory=dict)
    edits: list[tuple[float, str]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    audited: set[str] | None = None
    deleted: set[str] = field(default_factory=set)  # Names of requests that the soak has deleted
    began: float = 0.0
    _lines: dict[str, list[Line]] = field(default_factory=dict)  # By `Seen.key`
    _keys: dict[str, str] = field(default_factory=dict)  # Container ID -> `Seen.key`

    # Objects of the API. `obj` is None once it is gone.

    def request(self, uid: str, obj: Json | None, at: float) -> None:
        """A request was created, has changed or is gone."""
        known = self.requests.get(uid)
        if obj is None:
            if known is not None:
                self.requests[uid] = replace(known, gone=at, deleting=known.deleting or (None if known.over else at))
            return
        meta, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
        if known is None:
            known = Request(
                uid,
                meta["name"],
                (meta.get("labels") or {}).get(LABEL_POD_UID, ""),
                at,
                tuple(each["name"] for each in spec["containers"]),
                datetime.fromisoformat(meta["creationTimestamp"]).timestamp(),
                deadline=spec.get("activeDeadlineSeconds"),
                ttl=spec.get("ttlSecondsAfterFinished"),
                run=(meta.get("labels") or {}).get(LABEL_RUN, ""),
                image=spec["containers"][0].get("image", ""),
            )
        states = status.get("containerRecreateStates") or ()
        final = {each["name"]: each["phase"] for each in states if each.get("phase") in (SUCCEEDED, FAILED)}
        killed = (each["name"] for each in states if each.get("isKilled"))
        failed_hooks = (each["name"] for each in states if HOOK_FAILED in each.get("message", ""))
        self.requests[uid] = replace(
            known,
            targets=_targets(spec, (meta.get("annotations") or {}).get(ANNOTATION_PINNED), known.targets),
            killed={**dict.fromkeys(killed, at), **known.killed},
            failed_hooks=known.failed_hooks.union(failed_hooks),
            phases={**{name: (phase, at) for name, phase in final.items()}, **known.phases},
            completed=known.completed or (at if status.get("phase") == "Completed" else None),
            deleting=known.deleting or (at if meta.get("deletionTimestamp") else None),
            by_user=meta["name"] in self.deleted,
        )

    def pod(self, uid: str, obj: Json | None, at: float) -> None:
        """A pod was created, has changed or is gone."""
        known = self.pods.get(uid)
        if obj is None:
            if known is not None:
                self.pods[uid] = replace(known, deleting=known.deleting or at, holders=())
            return
        meta, conditions = obj["metadata"], (obj.get("status") or {}).get("conditions") or ()
        if known is None:
            known = Pod(uid, meta["name"], (meta.get("labels") or {}).get(LABEL_WORKLOAD, ""))
        images = {container: image for _, container, image in known.images}
        new = [(each["name"], each["image"]) for each in obj["spec"]["containers"]]
        self.pods[uid] = replace(
            known,
            ready=_followed(known.ready, next((each for each in conditions if each["type"] == "Ready"), {}), at),
            images=(*known.images, *((at, *each) for each in new if images.get(each[0]) != each[1])),
            holders=tuple(_holders(conditions)),
            deleting=known.deleting or (at if meta.get("deletionTimestamp") else None),
        )

    def policy(self, uid: str, obj: Json | None, _: float) -> None:
        """A policy was created, has changed or is gone."""
        if obj is None:
            self.policies.pop(uid, None)
            return
        conditions = (obj.get("status") or {}).get("conditions") or ()
        found = {each["type"]: (each["status"], each.get("reason", "")) for each in conditions}
        name = obj["metadata"]["name"]
        self.policies[uid] = Policy(name, obj["spec"]["targetRef"]["name"], self.container, (), found)

    # The runtime and the containers

    def seen(self, instance: Instance, key: str) -> None:
        """A container is in the runtime. `key` is how it names itself in its file."""
        self._keys[instance.id] = key
        known = self.instances.get(instance.id, instance)
        self.instances[instance.id] = replace(known, ended=known.ended or instance.ended)

    def absent(self, ids: Iterable[str], at: float) -> None:
        """These containers are not in the runtime any more, or have ended there."""
        for each in ids:
            if self.instances[each].ended is None:
                self.instances[each] = replace(self.instances[each], ended=at)

    @property
    def running(self) -> set[str]:
        """IDs of the containers whose end was not seen yet."""
        return {each.id for each in self.instances.values() if each.ended is None}

    def line(self, text: str, boot: float) -> None:
        """A container has written a line: seconds since boot, its key, a word and perhaps a value."""
        at, key, word, *value = text.split()
        self._lines.setdefault(key, []).append(Line(boot + float(at), Word(word), " ".join(value)))

    # Rounds

    def record(self, quiet: float, ended: float, *, settled: bool) -> Record:
        """Return the record of the round."""
        instances = (
            replace(each, lines=tuple(self._lines.get(self._keys[each.id], ()))) for each in self.instances.values()
        )
        return Record(
            self.began,
            quiet,
            ended,
            settled,
            requests=tuple(self.requests.values()),
            instances=tuple(instances),
            pods=tuple(self.pods.values()),
            faults=tuple(self.faults),
            policies=tuple(replace(each, edits=tuple(self.edits)) for each in self.policies.values()),
            exits=tuple(self.exits),
            most_unready=self.most_unready,
            hooks=self.hooks,
            audited=None if self.audited is None else frozenset(self.audited),
        )

    def next_round(self, at: float) -> None:
        """Forget what has ended."""
        self.began = at
        self.faults, self.exits, self.edits = [], [], self.edits[-1:]
        self.requests = {uid: each for uid, each in self.requests.items() if each.over is None}
        self.pods = {uid: each for uid, each in self.pods.items() if each.deleting is None}
        self.instances = {each.id: each for each in self.instances.values() if each.ended is None}
        self._keys = {each: self._keys[each] for each in self.instances}
        kept = set(self._keys.values())
        self._lines = {key: lines for key, lines in self._lines.items() if key in kept}
        if self.audited is not None:
            self.audited = set()

    def exit(self, part: Part, code: int, last_line: str, at: float) -> None:
        """A daemon of crrd has ended by itself."""
        self.exits.append(Exit(at, part, code, last_line))


def _targets(spec: Json, pins: str | None, known: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    """Return the instances that a request means: those pinned, which the daemon reads first, and those of admission."""
    forced = (spec.get("strategy") or {}).get("forceRecreate")
    found = dict(known)
    for each in spec["containers"]:
        if (given := (each.get("statusContext") or {}).get("containerID")) and not forced:
            found.setdefault(each["name"], (_bare(given),))
    for name, pin in json.loads(pins or "{}").items():
        pinned = _bare(pin.get("containerID", ""))
        if pinned and pinned not in found.get(name, ()):
            found[name] = (*found.get(name, ()), pinned)
    return found


def _followed(ready: tuple[tuple[float, bool], ...], condition: Json, at: float) -> tuple[tuple[float, bool], ...]:
    """Return the changes of a pod's readiness with this one, by the time that the condition has.

    A watch can be late, and can miss changes: then the time has changed, but not the state.
    """
    now = condition.get("status") == "True"
    stamp = condition.get("lastTransitionTime")
    when = datetime.fromisoformat(stamp).timestamp() if stamp else at
    if ready and ready[-1][1] is now:
        if not stamp or when <= ready[-1][0]:
            return ready
        return (*ready, (when, not now), (when, now))
    return (*ready, (max(when, ready[-1][0]) if ready else when, now))


def _bare(container_id: str) -> str:
    return container_id.rpartition("://")[2]


def _holders(conditions: Iterable[Json]) -> Iterable[str]:
    for each in conditions:
        if each["type"] == READINESS_GATE and each["status"] == "False":
            for entry in json.loads(each.get("message") or "[]"):
                if entry.get("userAgent") == USER_AGENT:
                    yield str(entry["key"]).rpartition("/")[2]
