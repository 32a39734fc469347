"""The next step of a run: which pods get their request now, why no more pods may start, or how the run has ended.

`make_plan` keeps no state: after a crash at any moment, the same objects give the rest of the run. Property tests check
at every step that no pod gets two requests of one run, and that the run takes no more pods down than its budgets allow.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from crrd.core.api.time import after
from crrd.core.rollout.adoption import Adoption, changed_by_others, is_held, next_adoption, starting
from crrd.core.rollout.following import next_following, released_meanwhile
from crrd.core.rollout.image_steps import NO_STEPS, ImageSteps, given_up, image_rows, late_pods, sort_by_image
from crrd.core.rollout.refresh import sort_refreshes
from crrd.core.rollout.requests import last_progress
from crrd.core.rollout.rivals import age_of, first_rival, with_open_requests
from crrd.core.rollout.round import Round
from crrd.core.rollout.run import Run
from crrd.core.rollout.standing import Row, RowMemo, Stage, barred_containers, make_rows, tally
from crrd.core.rollout.state import World
from crrd.core.rollout.waits import NO_WAIT, Remedies, Skip, Wait, WaitReason

_MOST_NAMED = 10  # Pods that the end of a run names


class End(StrEnum):
    """How a run ends, or stops until a user acts."""

    DONE = "done"
    FAILED = "failed"  # The limit of failed pods is reached
    PAUSED = "paused"  # The first part is done; a user must confirm the rest
    RIVAL = "rival"  # Another run on the same target started first
    ABORTED = "aborted"
    INCOMPLETE = "incomplete"  # Only pods are left whose nodes are down, or the workload is gone


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, and the state of all pods."""

    rows: tuple[Row, ...]
    create: tuple[Row, ...] = ()  # Pods that get their request now
    refresh: tuple[tuple[Row, str], ...] = ()  # Pods whose files are refreshed now, each with its token
    wait: Wait = NO_WAIT  # Why the run cannot go on; empty while a pod is under way or none waits. Rows have their own.
    end: End | None = None
    message: str = ""  # Details about the end
    awaits: Wait = NO_WAIT  # If it ends: what lets it go on if it comes soon, so that the end must not be hasty
    wake_at: datetime | None = None  # When to plan again if nothing changes
    image: ImageSteps = NO_STEPS  # If the run sets an image: what to do for that

    @property
    def outcome(self) -> End | None:
        """How the run ends. It has failed if any pod has failed, even below the limit."""
        over = self.end in (End.DONE, End.PAUSED, End.INCOMPLETE)
        return End.FAILED if over and tally(self.rows)[Stage.FAILED] else self.end

    @property
    def waits(self) -> list[str]:
        """What the run waits for: why it makes no progress, or else each pod that is under way."""
        if self.wait.why:
            return [self.wait.with_command]
        return [f"{row.pod} {row.wait.with_command or row.stage.value}" for row in self.rows if row.stage.under_way]

    def worded(self, remedies: Remedies) -> "Plan":
        """Return the plan with remedies in what the run and its pods wait for."""
        rows = tuple(
            replace(row, wait=row.wait.worded(remedies)) if row.wait.reason in remedies else row for row in self.rows
        )
        return replace(self, rows=rows, wait=self.wait.worded(remedies))


def make_plan(world: World, run: Run, now: datetime, *, confirmed: bool = False, memo: RowMemo | None = None) -> Plan:
    """Decide the next step from the present state.

    `world` must contain all requests created so far. `now` is the API server's time. `confirmed` means that the user
    has allowed the rest after the first part. Plans that follow each other are quicker with the same `memo`.
    """
    rows, min_ready = image_rows(world, run, make_rows(world, run, now, memo), now), world.min_ready(run)
    available = (each.available_at(min_ready) for each in world.members if each.counts) if min_ready else ()
    times = [row.settled_at for row in rows if row.settled_at is not None]
    wake = min([*times, *(at for at in available if at is not None and at > now)], default=None)
    end, message = _end(world, run, rows)
    if (adoption := _adoption(world, run, rows, end)) is not None:
        if adoption.problem:
            failed = End.ABORTED if end is End.ABORTED else End.FAILED
            return Plan(rows, end=failed, message="; ".join(filter(None, (message, adoption.problem))))
        wait = Wait.of(WaitReason.ADOPTING, message=adoption.wait) if adoption.wait else NO_WAIT
        return Plan(rows, wait=wait, image=ImageSteps(adoption=adoption))
    if end is not None:
        end, message = _with_left_out(run, rows, end, message)
        awaits = _awaits(world, run, rows, end, message)
        return Plan(rows, end=end, message=message, awaits=awaits, image=ImageSteps(give_up=given_up(rows)))
    (old, risen), budgets = late_pods(run, rows, now), Round(world, run, rows, now)
    risen = {uid: member for uid, member in risen.items() if budgets.are_exceeded(member)}
    if held := _wait_of_all(world, run):
        waiting = _with_reasons(rows, {row.uid: held for row in rows})
        begun = sort_by_image(world, run, rows, late=old | risen)
        return Plan(waiting, wait=held, wake_at=wake, image=begun.steps)
    left = _left_of_first(run, rows, confirmed=confirmed)
    under_way = any(row.stage.under_way for row in rows)
    if left == 0 and not under_way and not any(row.failed for row in rows):
        message = f"the first part of the run is done, {tally(rows)[Stage.WAITING]} left"
        return Plan(rows, end=End.PAUSED, message=message)
    late = risen | {uid: member for uid, member in old.items() if budgets.are_exceeded(member)}
    chosen, waits = budgets.choose(left)
    wait = NO_WAIT if chosen or under_way else next(iter(waits.values()), NO_WAIT)
    by_image = sort_by_image(world, run, rows, chosen, waits, late=late)
    waits |= by_image.waits
    if by_image.waits and not by_image.ready and not under_way:
        wait = next(iter(by_image.waits.values()))
    files = sort_refreshes(world, run, by_image.ready, now)
    waits |= {row.uid: Wait.of(WaitReason.FILES) for row in (*files.waiting, *(row for row, _ in files.due))}
    wake = min((moment for moment in (wake, files.until) if moment is not None), default=None)
    return Plan(_with_reasons(rows, waits), files.ready, files.due, wait, wake_at=wake, image=by_image.steps)


def _adoption(world: World, run: Run, rows: tuple[Row, ...], end: End | None) -> Adoption | None:
    """Return the next step of the adoption, None if there is none, or nothing is left to do.

    It begins after the last pod. A run that is aborted in the middle of it finishes it, because that replaces no pod.
    """
    change, begins = run.options.image, end is End.DONE and not tally(rows)[Stage.FAILED]
    if change is None or not change.adopt or not (begins or (end is End.ABORTED and is_held(world, run))):
        return None
    adoption = (next_following if change.follow else next_adoption)(world, run)
    return None if adoption.done else adoption


def seen_by_others(world: World, run: Run, now: datetime) -> Plan:
    """Return the plan as other processes see it: the run is done once no more pods will start.

    What is recorded as done is done. The pods that a run has skipped are not judged again by today's objects: their
    node may have a daemon by now, or their configuration may have changed again, and that is for the next run.

    Other processes do not wait until pods are ready, because they cannot know whether an unready pod was ready before.
    The run only counts as going on for `min_ready` seconds after a request's completion (by the node's clock).
    """
    if world.image is not None and run.options.containers != (world.image.container,):
        world = replace(world, image=None)  # it has the template as another container's run sees it
    own = world.requests_of(run)
    last, unsettled = last_progress(own), any(each.request.aborted or not each.request.completed for each in own)
    if run.options.image is not None and last.state == End.DONE and not unsettled:
        return Plan(tuple(_at_the_end(row, done=True) for row in make_rows(world, run, now)), end=End.DONE)
    plan = make_plan(world, run, now)
    if plan.end is End.DONE and plan.awaits.why and last.is_live(now):
        return replace(plan, end=None, wait=plan.awaits)  # its process waits for the pods
    if plan.image.adoption is not None or unsettled or plan.end in (End.FAILED, End.ABORTED):
        return plan
    handled = [row for row in plan.rows if row.request is not None and (row.is_recreated or row.stage is Stage.DONE)]
    done = last.state == End.DONE or (last.state != End.INCOMPLETE and 0 < last.total <= len(handled))
    if not done and plan.end not in (None, End.INCOMPLETE):
        return plan
    if any(_goes_on(row, world.min_ready(run), now, done=done) for row in plan.rows):
        return plan
    rows = tuple(_at_the_end(row, done=done) for row in plan.rows)
    end, message = _with_left_out(run, rows, *_end(world, run, rows))
    if end is End.INCOMPLETE and not done:
        return Plan(rows, end=end, message=message)
    return Plan(rows, end=End.DONE)


def _at_the_end(row: Row, *, done: bool) -> Row:
    """Return the row of a run that does not go on. If it is `done`, pods that have not started were skipped."""
    if row.is_recreated:
        return replace(row, stage=Stage.DONE)
    if row.stage is Stage.WAITING or (row.stage is Stage.PUT_OFF and done):
        return replace(row, stage=Stage.SKIPPED, skip=Skip.BEFORE, wait=Wait.of(Skip.BEFORE))
    return row


def _goes_on(row: Row, min_ready: int, now: datetime, *, done: bool) -> bool:
    if row.stage is Stage.SETTLING and row.request is not None:
        until = after(row.request.request.status.completion_time, min_ready)
        return until is not None and now < until
    return row.stage.under_way or (row.stage is Stage.WAITING and not done)


def _end(world: World, run: Run, rows: tuple[Row, ...]) -> tuple[End | None, str]:
    counts = tally(rows)
    if run.name in world.aborted:
        return End.ABORTED, "the run was aborted"
    rival = first_rival(world, run)
    if rival is not None:
        return End.RIVAL, f"run {rival.name} on {rival.target.words} started first: wait for it, or abort it"
    template, change = world.image.template if world.image is not None else None, run.options.image
    if template is not None and change is not None:
        changed = released_meanwhile(run, template) if change.follow else changed_by_others(run, template)
        if changed:
            return End.FAILED, changed
    if counts[Stage.FAILED] >= run.options.max_failures:
        return End.FAILED, f"{counts[Stage.FAILED]} failed, {counts[Stage.WAITING]} not started"
    if any(row.stage is Stage.WAITING or row.stage.under_way for row in rows):
        return None, ""
    if _has_lost_pods(world, run):
        return End.INCOMPLETE, f"{run.target.words} was deleted, or owns no pods any more"
    if counts[Stage.PUT_OFF]:
        return End.INCOMPLETE, put_off_pods(rows)
    if not run.target.uid and counts[Stage.GONE] and not counts[Stage.DONE]:  # nobody says that new pods replace them
        return End.INCOMPLETE, "; ".join(f"{row.pod}: {row.wait.why}" for row in rows if row.stage is Stage.GONE)
    return End.DONE, ""


def _with_left_out(run: Run, rows: tuple[Row, ...], end: End | None, message: str) -> tuple[End | None, str]:
    """Return how a run ends. A run that is done is INCOMPLETE if it left pods or containers out.

    A run with an image leaves out pods that cannot get it now, for example because they are starting. Each run leaves
    out chosen containers that can never be restarted in place.
    """
    if end is not End.DONE:
        return end, message
    odd = [row for row in rows if row.skip is not None and not row.skip.normal and row.skip is not Skip.NO_CONTAINER]
    left = [f"{row.pod}: {row.wait.why}" for row in odd] if run.options.image is not None else []
    left += barred_containers(run, (row for row in rows if row.skip is None)) if run.options.containers else []
    more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
    return (End.INCOMPLETE, "; ".join(left[:_MOST_NAMED]) + more) if left else (end, message)


def _has_lost_pods(world: World, run: Run) -> bool:
    """Whether pods may have left the run before they were done, because their workload is deleted, maybe without them.

    Another workload may own them by now, with the old data.
    """
    if not run.target.uid:
        return False
    there = world.workload
    return (there is not None and there.deleting) or (not world.members and (there is None or there.desired > 0))


def _awaits(world: World, run: Run, rows: tuple[Row, ...], end: End | None, message: str) -> Wait:
    """Return what a run waits for, for a limited time, before this end: nodes, or pods that are just being recreated.

    With an image, those belong to the run. A template that was adopted gives it to them, and they were waited for.
    """
    change, there = run.options.image, world.workload
    if end is End.INCOMPLETE and tally(rows)[Stage.PUT_OFF]:
        return Wait(message)
    if change is None or there is None or there.deleting or end not in (End.DONE, End.INCOMPLETE):
        return NO_WAIT
    adopted, count = end is End.DONE and change.adopt and not change.follow, sum(each.counts for each in world.members)
    if adopted or count >= there.desired:
        return Wait(starting(world, run, change))
    target, values = run.target.words, {"count": count, "desired": there.desired}
    return Wait.of(WaitReason.MISSING_PODS, f"kubectl describe {target} -n {run.namespace}", target=target, **values)


def put_off_pods(rows: Iterable[Row]) -> str:
    """Return the pods that are put off, each with the reason, or ""."""
    return "; ".join(f"{row.pod}: {row.wait.with_command}" for row in rows if row.stage is Stage.PUT_OFF)


def _wait_of_all(world: World, run: Run) -> Wait | None:
    """Return why no pod at all may start, None if pods may."""
    template, change = world.image.template if world.image is not None else None, run.options.image
    held = template is not None and (template.holder or (template.paused and change is not None and change.follow))
    if world.workload is None or not world.workload.rolling or run.options.force or held:
        return None
    lost = sum(each.pod.node_name in world.down for each in world.members)
    if 0 < world.workload.behind <= lost:
        return None  # a DaemonSet's controller does not update the pods of nodes that are down
    target, state = run.target.words, world.workload.rolling
    return Wait.of(WaitReason.ROLLOUT, f"kubectl describe {target} -n {run.namespace}", target=target, state=state)


def unfinished(world: World, run: Run, now: datetime, over: Collection[str] = ()) -> Run | None:
    """Return another unfinished run on the same target, with or without open requests. A new run must wait for it.

    One that this run replaces is not waited for, unless it holds the controller of the workload: it must release it.
    `over` are names of runs that are known to be over. The end of a run that adopts is known only with its template.
    """
    ending = [each.run for each in world.requests if run.replaces(each.run) and not is_held(world, each.run)]
    names = {run.name, *over, *(each.name for each in ending)}
    if others := [each for each in with_open_requests(world, run) if each.name not in names]:
        return min(others, key=age_of)
    same = {each.run.name: each.run for each in world.requests if each.run.target.identity == run.target.identity}
    return next((each for name, each in same.items() if name not in names and is_unfinished(world, each, now)), None)


def is_unfinished(world: World, run: Run, now: datetime) -> bool:
    """Whether a run is not over, as other processes see it."""
    own, over = world.requests_of(run), (End.DONE, End.FAILED, End.ABORTED, End.INCOMPLETE)
    if any(not each.request.completed for each in own):
        return True
    if last_progress(own).state in over:
        return False
    end = seen_by_others(world, run, now).end
    unknown = run.options.stale and not world.config  # which of its containers are stale
    return end not in over or (unknown and end is End.DONE)


def _left_of_first(run: Run, rows: tuple[Row, ...], *, confirmed: bool) -> int | None:
    """Return how many pods of the first part are left to start; None if there is no first part, or it is over.

    A pod that is restarted again has been started before. A pod that was deleted or is put off does not count, because
    it does not show whether the restart works.
    """
    first = run.options.first
    if confirmed or not first:
        return None
    odd = (Stage.SKIPPED, Stage.GONE, Stage.PUT_OFF)
    started = sum(1 for row in rows if row.has_started and row.stage not in odd)
    return None if started > first else first - started


def _with_reasons(rows: tuple[Row, ...], waits: Mapping[str, Wait]) -> tuple[Row, ...]:
    return tuple(replace(row, wait=waits.get(row.uid, NO_WAIT)) if row.stage is Stage.WAITING else row for row in rows)
