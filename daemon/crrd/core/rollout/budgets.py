"""Chooses the pods that start now, within all budgets, and says why each other pod waits."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

from crrd.core.api.pod import ContainerKind
from crrd.core.config.objects import missing
from crrd.core.rollout.kind import Kind
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.rows import Row
from crrd.core.rollout.state import Budget, Member, World
from crrd.core.rollout.waits import NO_WAIT, Wait, WaitReason, describe_pod
from crrd.lib.plain import and_more

_NAMED = 3  # Most pods that a message names; the others are counted
_STATUS_DELAY = timedelta(seconds=5)
"""How long the status of a PodDisruptionBudget may not count a pod that has become unready."""


@dataclass(slots=True)
class _Disruptions:
    """What a PodDisruptionBudget allows. Its status does not know yet of the pods that are just going down."""

    budget: Budget
    elsewhere: int  # Pods of other targets that it may select, and that have an open request
    left: int  # How many more of its pods may go down now
    serving: int  # Its busy pods that are still ready, before any pod is chosen
    while_other: str  # Which other run may have used it up, as the end of a sentence


class _Places:
    """How many pods count for the limit of each node, and of each zone."""

    def __init__(self, zones: Mapping[str, str], members: Iterable[Member]) -> None:
        self._zone_of, self.by_node, self.by_zone = zones, Counter[str](), Counter[str]()
        for member in members:
            self.add(member)

    def add(self, member: Member) -> None:
        """Count another pod."""
        node = member.pod.node_name
        self.by_node[node] += 1
        self.by_zone[self._zone_of.get(node, "")] += 1


class Budgets:
    """Chooses the pods to start now, within all budgets. The work is in proportion to the number of pods.

    A pod is busy while any run works on it. It is down while it is busy, unready, or not ready for long enough yet.
    Pods that are chosen count at once. What is known by pod has its UID as the key.
    """

    def __init__(self, kind: Kind, rows: tuple[Row, ...], now: datetime) -> None:
        world, run = kind.world, kind.run
        self._world, self._run, self._rows = world, run, rows
        self._rescues, self._min_ready = kind.rescues, kind.min_ready
        self._in_order = world.workload is not None and world.workload.in_order
        requests = [each for each in world.requests if not each.request.completed]
        self._busy = _busy_pods(kind, rows, requests)
        # One that is kept on its pod cannot be ended, and kubelet may be stopping a container for it.
        self._requested = {each.request.pod_uid for each in requests if each.on_pod or not run.replaces(each.run)}
        self._requested |= {each.pod.uid for each in world.members if each.due}
        counting = [member for member in world.members if member.counts]
        self._available_later = _available_later(counting, kind.min_ready, now)
        self._just_unready = _just_unready(counting, now)
        self._ready_soon = {row.uid for row in rows if row.is_ready_soon(now)}
        self._down = {each.pod.uid: each for each in counting if self._is_down(each)}
        desired = world.workload.desired if world.workload is not None else 0
        self._missing = max(0, desired - len(counting))
        self._limit = run.options.max_unavailable.of(max(desired, len(counting)))
        under_way = [row.member for row in rows if row.stage.under_way and row.member is not None]
        self._under_way = len(under_way)
        self._places_down = _Places(world.zones, self._down.values())
        self._places_under_way = _Places(world.zones, under_way)
        members = {member.pod.uid: member for member in world.members}
        busy = [members[uid] for uid in self._busy | self._just_unready.keys() if uid in members]
        elsewhere = [each for each in requests if each.request.pod_uid not in members]
        self._disruptions = [_disruptions(world, each, busy, elsewhere) for each in world.budgets]

    def _is_down(self, member: Member) -> bool:
        """Whether a pod is unready, or not ready for long enough yet, or a request for it is in progress."""
        uid = member.pod.uid
        return not member.ready or uid in self._busy or uid in self._available_later

    def _uses_budget(self, member: Member) -> bool:
        """Whether a restart of the pod uses PodDisruptionBudgets. They count each ready pod as healthy."""
        return (member.ready or member.pod.uid in self._ready_soon) and member.pod.uid not in self._busy

    def are_exceeded(self, member: Member) -> bool:
        """Whether a pod that has begun, but is still ready, must not go down now.

        What PodDisruptionBudgets allow now takes into account which pods are unready. Of the limit, it has its place.
        Whether pods of other targets with an open request are unready is not known here, so all of them count.
        This is asked before any pod is chosen.
        """
        return len(self._down) + self._missing > self._limit or any(
            each.budget.allowed < each.serving + each.elsewhere and each.budget.selects(member.labels)
            for each in self._disruptions
        )

    @property
    def next_time(self) -> datetime | None:
        """When a pod becomes available, or is done, or is known to budgets, if nothing changes."""
        settled = [row.settled_at for row in self._rows if row.settled_at is not None]
        return min([*settled, *self._available_later.values(), *self._just_unready.values()], default=None)

    def choose(self, most: int | None, beyond: Wait) -> tuple[list[Row], dict[str, Wait]]:
        """Return the pods that start now, at most `most` new ones (None: no limit), and why each other pod waits.

        Both are in the order in which the pods start. `beyond` is what the pods beyond `most` wait for.
        """
        chosen: list[Row] = []
        waits: dict[str, Wait] = {}
        blocked: Wait | None = None
        for row, member in self._candidates():
            is_beyond = most is not None and not row.failed and most < 1
            before = None if self._rescues and not self._uses_budget(member) else blocked
            wait = before or (beyond if is_beyond else next(self._reasons(row, member), None))
            if wait is None:
                chosen.append(row)
                most = most - 1 if most is not None and not row.failed else most
                self._take(member)
                continue
            waits[row.uid] = wait
            if self._in_order and blocked is None:
                why = WaitReason.IN_ORDER.say(pod=row.pod, why=wait.why)
                blocked = replace(wait, why=why)  # with the remedy of that pod's wait
        return chosen, waits

    def _candidates(self) -> list[tuple[Row, Member]]:
        """Return the pods that could start: by their ordinals if required, else unready and failed ones first.

        Of the others, those come first whose containers have run for longest. So each has its turn even if every run is
        replaced by the next one before its end.
        """

        def place(pair: tuple[Row, Member]) -> tuple[int, str, str]:
            row, member = pair
            if self._in_order:
                return -member.ordinal, "", row.pod
            started = min((member.pod.containers[name].started_at for name in row.containers), default="")
            return int(row.uid not in self._down and not row.failed), started, row.pod

        waiting = [(row, row.member) for row in self._rows if row.stage is Stage.WAITING and row.member is not None]
        return sorted(waiting, key=place)

    def _reasons(self, row: Row, member: Member) -> Iterator[Wait]:
        """Yield why a pod may not start now. A pod that is already unready costs no budget, only a place in the run.

        One that is ready, but not for long enough yet, counts as down, and costs budget, because it serves.
        """
        uid, options = member.pod.uid, self._run.options
        if uid in self._requested:
            yield Wait.of(WaitReason.OTHER_REQUEST)
        yield from (Wait.of(WaitReason.CONFIG_MISSING, missing=each) for each in self._missing_config(row, member))
        costs, itself = self._uses_budget(member), int(uid in self._down)
        if costs and len(self._down) - itself + self._missing >= self._limit:
            yield self._too_many_unready(member)
        if not costs and self._under_way >= self._limit:
            yield Wait.of(WaitReason.TOO_MANY_STARTED, pods=_pods_are(self._under_way), limit=self._limit)
        for each in self._disruptions if costs else ():
            budget = each.budget
            if not budget.selects(member.labels):
                continue
            command = f"kubectl describe pdb {budget.name} -n {member.pod.namespace}"
            if not budget.current:
                yield Wait.of(WaitReason.BUDGET_OUTDATED, command, budget=budget.name)
            elif each.left + int(uid in self._just_unready) < 1:  # it counts as one of those itself
                yield Wait.of(WaitReason.BUDGET_USED_UP, command, budget=budget.name, while_other=each.while_other)
        node, counted = member.pod.node_name, itself if costs else 0
        places = self._places_down if costs else self._places_under_way
        for reason, place, others, limit in (
            (WaitReason.NODE_LIMIT, node, places.by_node, options.max_per_node),
            (WaitReason.ZONE_LIMIT, self._world.zones.get(node, ""), places.by_zone, options.max_per_zone),
        ):
            if limit and place and others[place] - counted >= limit:  # one without a known name has no limit
                yield Wait.of(reason, place=place, limit=limit)

    def _missing_config(self, row: Row, member: Member) -> Iterator[str]:
        """Yield objects and keys that kubelet lacks to start the containers. The volumes of all containers count."""
        for name, uses in member.config.items():
            for use in uses:
                starts = name in row.containers or member.pod.containers[name].kind is ContainerKind.INIT
                if use.object in self._world.config and (starts or use.use.mounted):
                    yield from filter(None, [missing(use, self._world.config[use.object])])

    def _too_many_unready(self, member: Member) -> Wait:
        down, wait, first = self._unready
        if first is not None and self._in_order and first.ordinal < member.ordinal:
            values = {**wait.values, "pod": first.pod.name, "enough": down + 1}
            return Wait.of(WaitReason.UNREADY_IN_ORDER, wait.command, **values)
        return wait

    @cached_property
    def _unready(self) -> tuple[int, Wait, Member | None]:
        """Once the limit is reached: the number of unready pods, the wait of all others, and the first unready one.

        While the limit is reached, no pod is added.
        """
        waits = {row.uid: row.wait for row in self._rows if row.stage is Stage.PUT_OFF}
        by_name = sorted(self._down.values(), key=lambda each: each.pod.name)
        down = len(by_name) + self._missing
        names = [_with_reason(each, waits.get(each.pod.uid, NO_WAIT)) for each in by_name[:_NAMED]]
        named = and_more(names, len(by_name) - _NAMED)
        missing_pods = f"{self._missing} not created yet" if self._missing else ""
        named = ", ".join(filter(None, (named, missing_pods)))
        state = "unready or in progress" if any(each.ready for each in by_name) else "unready"
        if any(each.ready and each.pod.uid not in self._busy for each in by_name):
            state = f"not ready for {self._min_ready}s yet"
        first = next((each for each in by_name if not each.ready and each.pod.uid not in self._busy), None)
        command = "" if first is None else waits.get(first.pod.uid, NO_WAIT).command or describe_pod(first)
        values = {"pods": _pods_are(down), "state": state, "limit": self._limit, "names": named}
        return down, Wait.of(WaitReason.TOO_MANY_UNREADY, command, **values), first

    def _take(self, member: Member) -> None:
        """Count a pod that starts now."""
        for each in self._disruptions if self._uses_budget(member) else ():
            each.left -= int(each.budget.selects(member.labels))
        if member.pod.uid not in self._down:
            self._down[member.pod.uid] = member
            self._places_down.add(member)
        self._busy.add(member.pod.uid)
        self._under_way += 1
        self._places_under_way.add(member)


def _busy_pods(kind: Kind, rows: Iterable[Row], requests: Iterable[RunRequest]) -> set[str]:
    """Return the pods (UID) that any run works on. Kubelet may stop a container although its request has failed."""
    under_way = {row.uid for row in rows if row.stage.under_way}
    return under_way | {each.request.pod_uid for each in requests} | {uid for uid, _ in kind.unreplaced}


def _available_later(members: Iterable[Member], min_ready: int, now: datetime) -> dict[str, datetime]:
    """Return the pods that are ready, but not for long enough yet, and when they are."""
    times = {each.pod.uid: each.available_at(min_ready) for each in members} if min_ready else {}
    return {uid: at for uid, at in times.items() if at is not None and at > now}


def _just_unready(members: Iterable[Member], now: datetime) -> dict[str, datetime]:
    """Return the pods that PodDisruptionBudgets may not know to be unready, and until when that is."""
    times = {each.pod.uid: each.ready_since + _STATUS_DELAY for each in members if not each.ready and each.ready_since}
    return {uid: at for uid, at in times.items() if at > now}


def _disruptions(world: World, budget: Budget, busy: Iterable[Member], elsewhere: Iterable[RunRequest]) -> _Disruptions:
    """Return what a budget allows besides the target's busy pods, and open requests for pods of other targets.

    A pod with unknown labels counts, too.
    """
    labels = ((each, world.labels.get(each.request.pod_uid)) for each in elsewhere)
    requests = [each for each, known in labels if known is None or budget.selects(known)]
    pods = len({each.request.pod_uid or each.request.name for each in requests})
    selected = [member for member in busy if budget.selects(member.labels)]
    left, serving = budget.allowed - len(selected) - pods, sum(each.ready and each.counts for each in selected)
    first = min(requests, key=lambda each: each.request.name, default=None) if budget.allowed > 0 else None
    other = f" while run {first.run.name} restarts pod {first.request.pod_name}" if first is not None else ""
    return _Disruptions(budget, pods, left, serving, other)


def _with_reason(member: Member, wait: Wait) -> str:
    return f"{member.pod.name} ({wait.why})" if wait.why else member.pod.name


def _pods_are(count: int) -> str:
    return "1 pod is" if count == 1 else f"{count} pods are"
