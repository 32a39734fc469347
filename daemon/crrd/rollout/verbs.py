"""What can be done with runs: start one, go on with it, abort it, look at it.

Each verb begins from the requests in the API, whoever made them; what is shown is a View's, what is decided `plan`'s.
"""

import asyncio
import secrets
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from crrd.core.api.time import rfc3339
from crrd.core.api.types import RequestPhase
from crrd.core.rollout.plan import End, Plan, plan, seen_by_others, unfinished
from crrd.core.rollout.preview import Preview, preview
from crrd.core.rollout.run import ANNOTATION_ABORTED, LABEL_RUN, Amount, Options, Run
from crrd.core.rollout.standing import Stage, recreatable, tally
from crrd.core.rollout.state import RunRequest, World, read_run_request
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.resources import REQUESTS
from crrd.lib.errors import ConfigurationError, GoneError, OutputError
from crrd.lib.output import complain
from crrd.lib.plain import plain
from crrd.rollout.cluster import ClusterView
from crrd.rollout.events import WorkloadEvent, tell
from crrd.rollout.lines import View, summary
from crrd.rollout.runner import Outcome, Runner
from crrd.rollout.target import find_again, find_target

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""As Kubernetes makes up names: nothing that spells words."""


@dataclass(frozen=True, slots=True)
class Session:
    """Who works where, and who watches."""

    client: KubeClient
    clock: ServerClock
    """It hears of the client's answers."""
    namespace: str
    view: View
    command: str
    """As the user called it, for what is said to be typed next."""
    access: tuple[str, ...]
    """The flags that say which cluster, as they were given on the command line."""
    confirm: Callable[[str], Awaitable[bool]] | None = None
    """See Runner."""

    def line(self, verb: str, *run: str) -> str:
        """A command for a run, or for all, as it is typed: for the same namespace of the same cluster."""
        return f"{self.command} {shlex.join([verb, *run, '-n', self.namespace, *self.access])}"

    def end(self, outcome: str, words: str) -> None:
        """See View; on stderr where stdout takes nothing more."""
        try:
            self.view.end(outcome, words)
        except OutputError as error:
            complain(f"{self.command}: {error}; {outcome}: {plain(words)}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a run is to be: a new one, or the rest of one that there is."""

    words: tuple[str, ...]
    selector: str
    options: Options
    partition: Amount | None = None
    name: str = ""
    """"" to make one up, for a new one."""
    since: datetime | timedelta | None = None
    """What a new one is to have as Options.since, or how long before its start that is."""
    dry_run: bool = False
    seconds: int = 0
    """For the whole run; 0 for as long as it takes."""
    yes: bool = False


async def start(session: Session, wanted: Wanted) -> Outcome | Preview | None:
    """Begin a run and carry it out; a dry run's batches, or None where there is nothing to do.

    Raises:
        ConfigurationError: it cannot be done; nothing was begun.
        ApiUnavailableError, ApiRefusedError: see there.
    """
    aim = await find_target(session.client, session.namespace, list(wanted.words), wanted.selector)
    view = ClusterView(session.client, session.namespace, aim, zones=bool(wanted.options.max_per_zone))
    async with view:
        world, now = view.world(), session.clock.now()
        options = replace(wanted.options, since=_since(wanted.since, now))
        made_up = f"{(aim.target.name or 'pods')[:30].rstrip('-.').replace('.', '-')}-{_random(5)}"
        run = Run(session.namespace, wanted.name or made_up, aim.target, options, rfc3339(now))
        check(world, run)
        if (first := unfinished(world, run, now)) is not None and not wanted.dry_run:
            raise ConfigurationError(
                f"run {first.name} on {first.target.words} is not finished: "
                f"{session.line('status', first.name)}, or resume or abort in place of status"
            )
        begun = plan(world, run, now, confirmed=True)
        waiting = tally(begun.rows)[Stage.WAITING]
        if not waiting:
            _nothing(session, begun)
            return None
        if wanted.partition is not None:
            run = replace(run, options=replace(run.options, first=min(waiting, wanted.partition.of(waiting))))
        if wanted.dry_run:
            return preview(world, run, now)
        return await _drive(session, view, run, wanted, _words(run, waiting))


def _since(given: datetime | timedelta | None, now: datetime) -> str:
    """RFC 3339, by the API server's clock. Raises ConfigurationError."""
    if given is None:
        return ""
    moment = now - given if isinstance(given, timedelta) else given
    if moment > now:
        raise ConfigurationError(f"--since {rfc3339(moment)} lies in the future")
    return rfc3339(moment)


def _random(length: int) -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(length))


def check(world: World, run: Run) -> None:
    """Refuse what cannot be meant.

    Raises:
        ConfigurationError: no pod, or no such container that can be recreated.
    """
    if not world.members:
        owned = f"none is owned by {run.target.words}" if run.target.uid else f"there is no {run.target.words}"
        raise ConfigurationError(f"no pod matches in namespace {run.namespace!r}: {owned}")
    there = sorted({name for member in world.members for name in recreatable(member.pod)})
    if not run.options.containers:
        raise ConfigurationError(f"say which container: -c NAME; {run.target.words} has {', '.join(there)}")
    kinds = {name: each.kind for member in world.members for name, each in member.pod.containers.items()}
    for name in run.options.containers:
        if name not in there and name in kinds:
            only = "only app containers and native sidecars (restartPolicy: Always) can be recreated"
            raise ConfigurationError(f"{name} is an {kinds[name]}: {only}")
        if name not in there:
            raise ConfigurationError(f"{run.target.words} has no container {name!r}; it has {', '.join(there)}")


def _nothing(session: Session, found: Plan) -> None:
    """Say why no pod is recreated.

    Raises:
        ConfigurationError: for a reason that somebody has to see to.
    """
    odd = [row for row in found.rows if row.skip is not None and not row.skip.normal]
    if odd:
        pods = "" if len(odd) == 1 else f" ({len(odd)} pods)"
        raise ConfigurationError(f"nothing can be recreated: {odd[0].pod}: {odd[0].why}{pods}")
    session.view.show(found)
    session.view.end("done", "nothing to do: " + summary(found.rows))


def _words(run: Run, pods: int) -> str:
    options = run.options
    reason = f" ({options.reason})" if options.reason else ""
    what = f"{', '.join(options.containers)} of {run.target.words}"
    return f"{what}, {pods} pod{'s' * (pods != 1)}, at most {options.max_unavailable} unready{reason}"


async def resume(session: Session, wanted: Wanted, changes: Mapping[str, Any]) -> Outcome | Preview:
    """Go on with the run of this name, or show what is left of it; `changes` are options in place of its own.

    Raises:
        ConfigurationError: there is no such run, or it is another than what is wanted, or it has been aborted, or
            another one is under way.
        ApiUnavailableError, ApiRefusedError: see there.
    """
    name = wanted.name
    run = newest(await find_run(session, name))
    await _check_same(session, run, wanted)
    run = replace(run, options=replace(run.options, **changes))
    aim = await find_again(session.client, session.namespace, run.target)
    async with ClusterView(session.client, session.namespace, aim, zones=bool(run.options.max_per_zone)) as view:
        world, now = view.world(), session.clock.now()
        if name in world.aborted:
            raise ConfigurationError(f"run {name} was aborted: start a new one")
        if wanted.dry_run:
            return preview(world, run, now)
        if (first := unfinished(world, run, now)) is not None:
            raise ConfigurationError(f"run {first.name} on {first.target.words} is under way: abort one of the two")
        left = tally(plan(world, run, now, confirmed=True).rows)[Stage.WAITING]
        return await _drive(session, view, run, wanted, f"going on with {run.target.words}, {left} left to begin")


async def _check_same(session: Session, run: Run, wanted: Wanted) -> None:
    """Refuse to go on with a run on other pods or containers than are wanted; what is not given is as it was.

    Raises:
        ConfigurationError: it is another run, or what is wanted is not there.
    """
    differs = ""
    if wanted.words or wanted.selector:
        aim = await find_target(session.client, session.namespace, list(wanted.words), wanted.selector)
        if aim.target.words != run.target.words:
            differs = f"is on {run.target.words}, not on {aim.target.words}"
    given = wanted.options.containers
    if not differs and given and given != run.options.containers:
        differs = f"recreates {', '.join(run.options.containers)}, not {', '.join(given)}"
    if differs:
        again = session.line("resume", run.name)
        raise ConfigurationError(f"run {run.name} {differs}: give another --run NAME, or go on with it: {again}")


async def _drive(session: Session, view: ClusterView, run: Run, wanted: Wanted, begins: str) -> Outcome:
    """Carry it out, with events on the workload before and after. Interrupted, or read by nobody, it is left as it is.

    Raises CancelledError for both.
    """
    runner = Runner(
        session.client,
        view,
        session.clock,
        session.view,
        seconds=wanted.seconds,
        confirm=session.confirm,
        confirmed=wanted.yes,
    )
    try:
        session.view.begin(run, begins)
        message = f"run {run.name}: {_words(run, len(view.world().members))}"
        await tell(session.client, session.clock.now(), run, WorkloadEvent.RECREATING, message)
        outcome = await runner.run(run)
    except (asyncio.CancelledError, OutputError) as error:
        rows = plan(view.world(), run, session.clock.now()).rows
        begun = any(row.request is not None for row in rows)
        again = f"what has begun ends by itself; go on with: {session.line('resume', run.name)}"
        session.end("interrupted", f"{summary(rows)}; {again if begun else 'nothing was begun'}")
        raise asyncio.CancelledError from error
    told = summary(outcome.plan.rows)
    if outcome.plan.end is End.DONE and not tally(outcome.plan.rows)[Stage.FAILED]:
        await tell(session.client, session.clock.now(), run, WorkloadEvent.RECREATED, f"run {run.name}: {told}")
    elif outcome.plan.end in (End.DONE, End.FAILED):
        message = f"run {run.name}: {told}: {failures(outcome.plan)}"
        await tell(session.client, session.clock.now(), run, WorkloadEvent.FAILED, message)
    return outcome


def failures(found: Plan) -> str:
    """What has failed, in a sentence."""
    return "; ".join(f"{row.pod}: {row.why}" for row in found.rows if row.stage is Stage.FAILED)


async def find_run(session: Session, name: str) -> list[RunRequest]:
    """The requests of a run.

    Raises:
        ConfigurationError: there are none.
    """
    found = await _requests(session, f"{LABEL_RUN}={name}")
    if not found:
        where = f"namespace {session.namespace!r}"
        raise ConfigurationError(f"there is no run {name!r} in {where}; {session.line('status')} shows which there are")
    return found


async def _requests(session: Session, selector: str) -> list[RunRequest]:
    listing = await session.client.list_all(
        REQUESTS, read_run_request, namespace=session.namespace, label_selector=selector
    )
    return [each for each in listing.items if each is not None]


def newest(requests: list[RunRequest]) -> Run:
    """The run as its last request has it: options may have changed on the way."""
    return max(requests, key=lambda each: (each.request.created, each.request.name)).mark.run


@dataclass(frozen=True, slots=True)
class Aborted:
    """What has become of the requests of a run that was aborted."""

    gone: int
    """How many were taken back."""
    going: int
    """How many go on because they had begun."""
    kept: str = ""
    """The name of one that had not begun and was left, "" where there is none: see `abort`."""


async def abort(session: Session, name: str) -> Aborted:
    """Begin nothing more of a run.

    That it was aborted stands on one of its requests alone, so one has to stay: without any, a process that has missed
    the mark, or a Job that names the run, would begin it anew. Where none has begun, it is the oldest, which may still
    be served: nothing that a user may write keeps the node from it.

    Raises as `resume` does.
    """
    found = sorted(await find_run(session, name), key=lambda each: (each.request.created, each.request.name))
    waiting = [each.request for each in found if not each.request.completed and not _begun(each)]
    under_way = [each for each in found if not each.request.completed and _begun(each)]
    # Whoever carries the run out has to know before anything is gone; the newest lives longest.
    marked = next((each for each in reversed(found) if each.request.completed or _begun(each)), found[0]).request
    mark = {"metadata": {"annotations": {ANNOTATION_ABORTED: rfc3339(session.clock.now())}}}
    await session.client.merge_patch(REQUESTS, session.namespace, marked.name, mark)
    kept = marked.name if marked in waiting else ""
    gone = 0
    for request in waiting:
        if request.name == kept:
            continue
        try:
            await session.client.delete(REQUESTS, session.namespace, request.name, uid=request.uid)
        except GoneError:
            continue
        gone += 1
    return Aborted(gone, len(under_way), kept)


def _begun(found: RunRequest) -> bool:
    return found.request.status.phase is RequestPhase.RECREATING


async def status(session: Session, name: str) -> tuple[Run, Plan]:
    """A run and how it stands. Raises as `resume` does."""
    run = newest(await find_run(session, name))
    aim = await find_again(session.client, session.namespace, run.target)
    async with ClusterView(session.client, session.namespace, aim, zones=bool(run.options.max_per_zone)) as view:
        return run, seen_by_others(view.world(), run, session.clock.now())


async def runs(session: Session) -> list[tuple[Run, list[RunRequest]]]:
    """All runs of the namespace with their requests, the newest first."""
    found: dict[str, list[RunRequest]] = {}
    for each in await _requests(session, LABEL_RUN):
        found.setdefault(each.mark.run.name, []).append(each)
    known = [(newest(requests), requests) for requests in found.values()]
    return sorted(known, key=lambda pair: (pair[0].started, pair[0].name), reverse=True)
