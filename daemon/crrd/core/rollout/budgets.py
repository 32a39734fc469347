"""Chooses the pods that start now, within all budgets, and says why each other pod waits."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property

from crrd.core.api.reasons import Reason
from crrd.core.config.objects import missing
from crrd.core.rollout.kind import Kind
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import attempt_of
from crrd.core.rollout.state import Budget, Member
from crrd.core.rollout.waits import NO_WAIT, Wait, WaitReason, describe_pod
from crrd.lib.plain import and_more

_NAMED = 3  # Most pods that a message names; the others are counted
_READY_SOON, _MOST_DOUBLINGS = timedelta(seconds=30), 9  # See `_is_ready_soon`


class Budgets:
    """Chooses the pods to start now, within all budgets. The work is in proportion to the number of pods."""

    def __init__(self, kind: Kind, rows: tuple[Row, ...], now: datetime) -> None:
        world, run = kind.world, kind.run
        self._world, self._run, self._rows = world, run, rows
        self._rescues, self._min_ready = kind.rescues, kind.min_ready
        self._in_order = world.workload is not None and world.workload.in_order
        requests = [each for each in world.requests if not each.request.completed]
        self._busy = {row.uid for row in rows if row.stage.under_way} | {each.request.pod_uid for each in requests}
        self._busy |= {uid for uid, _ in kind.unreplaced}  # kubelet stops them, also if their request has failed
        self._ready_soon = {row.uid for row in rows if row.member is not None and _is_ready_soon(row, row.member, now)}
        counting = [member for member in world.members if member.counts]
        self._others_busy = {each.request.pod_uid for each in requests if not run.replaces(each.run)}
        min_ready = kind.min_ready
        available = {each.pod.uid: each.available_at(min_ready) for each in counting} if min_ready else {}
        self._available_later = {uid: at for uid, at in available.items() if at is not None and at > now}
        self._down = {each.pod.uid: each for each in counting if self._is_down(each)}
        desired = world.workload.desired if world.workload is not None else 0
        self._missing = max(0, desired - len(counting))
        self._limit = run.options.max_unavailable.of(max(desired, len(counting)))
        under_way = [row.member for row in rows if row.stage.under_way and row.member is not None]
        self._under_way = len(under_way)
        self._places = {True: self._count_places(self._down.values()), False: self._count_places(under_way)}
        """By whether a pod costs budget: how many pods count for the limit of each node, and of each zone."""
        members = {member.pod.uid: member for member in world.members}
        at_work = [members[uid] for uid in self._busy if uid in members]
        # Open requests, of any run, for pods that do not belong to the target.
        elsewhere = [each for each in requests if each.request.pod_uid not in members]
        others = {budget.uid: self._requests_using(budget, elsewhere) for budget in world.budgets}
        self._elsewhere = {
            uid: len({each.request.pod_uid or each.request.name for each in some}) for uid, some in others.items()
        }
        self._beside = {budget.uid: _beside(budget, others[budget.uid]) for budget in world.budgets}
        self._left = {
            budget.uid: budget.allowed
            - sum(1 for member in at_work if _selects(budget, member.labels))
            - self._elsewhere[budget.uid]
            for budget in world.budgets
        }

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
        """
        at_work = [each for uid, each in self._down.items() if uid in self._busy and each.ready]
        return len(self._down) + self._missing > self._limit or any(
            _selects(budget, member.labels)
            and budget.allowed < sum(_selects(budget, each.labels) for each in at_work) + self._elsewhere[budget.uid]
            for budget in self._world.budgets
        )

    @property
    def left_of_first(self) -> int | None:
        """How many pods of the first part are left to start; None if there is no first part, or it is over.

        A pod that is restarted again has been started before. A pod that was deleted or is put off does not count,
        because it does not show whether the restart works.
        """
        first, odd = self._run.options.first, (Stage.SKIPPED, Stage.GONE, Stage.PUT_OFF)
        started = sum(1 for row in self._rows if row.has_started and row.stage not in odd)
        return None if not first or started > first else first - started

    @property
    def next_time(self) -> datetime | None:
        """When a pod becomes available, or is done, if nothing changes."""
        settled = [row.settled_at for row in self._rows if row.settled_at is not None]
        return min([*settled, *self._available_later.values()], default=None)

    def choose(self, most: int | None) -> tuple[list[Row], dict[str, Wait]]:
        """Return the pods that start now, at most `most` new ones (None: no limit), and why each other pod waits.

        Both are in the order in which the pods start.
        """
        chosen: list[Row] = []
        waits: dict[str, Wait] = {}
        first = Wait.of(WaitReason.FIRST_PODS, first=self._run.options.first)
        blocked: Wait | None = None
        for row, member in self._candidates():
            over_first = most is not None and not row.failed and most < 1
            before = blocked if member.ready or not self._rescues else None  # a broken pod costs no budget
            wait = before or (first if over_first else next(self._reasons(row, member), None))
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
        if uid in self._others_busy:
            yield Wait.of(WaitReason.OTHER_REQUEST)
        yield from (Wait.of(WaitReason.CONFIG_MISSING, missing=each) for each in self._missing_config(row, member))
        costs, itself = self._uses_budget(member), int(uid in self._down)
        if costs and len(self._down) - itself + self._missing >= self._limit:
            yield self._too_many_unready(member)
        if not costs and self._under_way >= self._limit:
            yield Wait.of(WaitReason.TOO_MANY_STARTED, pods=_pods_are(self._under_way), limit=self._limit)
        for budget in self._world.budgets if costs else ():
            if not _selects(budget, member.labels):
                continue
            command = f"kubectl describe pdb {budget.name} -n {member.pod.namespace}"
            if not budget.current:
                yield Wait.of(WaitReason.BUDGET_OUTDATED, command, budget=budget.name)
            elif self._left[budget.uid] < 1:
                other = self._beside[budget.uid]
                yield Wait.of(WaitReason.BUDGET_USED_UP, command, budget=budget.name, while_other=other)
        node = member.pod.node_name
        nodes, zones = self._places[costs]
        for reason, place, others, limit in (
            (WaitReason.NODE_LIMIT, node, nodes, options.max_per_node),
            (WaitReason.ZONE_LIMIT, self._world.zones.get(node, ""), zones, options.max_per_zone),
        ):
            if (
                limit and place and others[place] - (itself if costs else 0) >= limit
            ):  # one without a known name has no limit
                yield Wait.of(reason, place=place, limit=limit)

    def _missing_config(self, row: Row, member: Member) -> Iterator[str]:
        """Yield objects and keys that kubelet lacks to start the containers. The volumes of all containers count."""
        for name, uses in member.config.items():
            for use in uses:
                if use.object in self._world.config and (name in row.containers or use.use.mounted):
                    yield from filter(None, [missing(use, self._world.config[use.object])])

    def _requests_using(self, budget: Budget, elsewhere: Iterable[RunRequest]) -> list[RunRequest]:
        """Return the requests for other targets' pods that use up a budget. A pod with unknown labels counts, too."""
        known = self._world.labels
        pods = [(each, each.request.pod_uid) for each in elsewhere]
        return [each for each, uid in pods if uid not in known or _selects(budget, known[uid])]

    def _count_places(self, members: Iterable[Member]) -> tuple[Counter[str], Counter[str]]:
        """Return how many of these pods are on each node, and in each zone."""
        nodes = Counter(member.pod.node_name for member in members)
        zones = Counter[str]()
        for node, count in nodes.items():
            zones[self._world.zones.get(node, "")] += count
        return nodes, zones

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
        nodes, zones = self._count_places([member])
        for budget in self._world.budgets if self._uses_budget(member) else ():
            self._left[budget.uid] -= int(_selects(budget, member.labels))
        if member.pod.uid not in self._down:
            self._down[member.pod.uid] = member
            self._places[True][0].update(nodes)
            self._places[True][1].update(zones)
        self._busy.add(member.pod.uid)
        self._under_way += 1
        self._places[False][0].update(nodes)
        self._places[False][1].update(zones)


def _is_ready_soon(row: Row, member: Member, now: datetime) -> bool:
    """Whether an unready pod may be ready in a moment: it was, when its last request ended without the image.

    So it needs the budgets of a ready pod, until it has been unready for long. This time doubles with each request, so
    that a pod which comes and goes gets few of them.
    """
    if row.request is None or not row.failed or not row.has_reason(Reason.RUN_STOPPED):
        return False
    since, doublings = member.ready_since, min(attempt_of(row.failed) - 1, _MOST_DOUBLINGS)
    return since is None or now < since + _READY_SOON * 2**doublings


def _beside(budget: Budget, others: Iterable[RunRequest]) -> str:
    """Return, as the end of a sentence, which other run may have used up a budget; "" for none."""
    first = min(others, key=lambda each: each.request.name, default=None)
    if first is None or budget.allowed < 1:
        return ""
    return f" while run {first.run.name} restarts pod {first.request.pod_name}"


def _selects(budget: Budget, labels: Mapping[str, str]) -> bool:
    return budget.selector is not None and budget.selector.matches(labels)


def _with_reason(member: Member, wait: Wait) -> str:
    return f"{member.pod.name} ({wait.why})" if wait.why else member.pod.name


def _pods_are(count: int) -> str:
    return "1 pod is" if count == 1 else f"{count} pods are"
