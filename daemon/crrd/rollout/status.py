"""`status`: shows the state of one run, follows it, or lists all runs."""

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from crrd.core.rollout.overview import RunStatus, run_status, undone_by, unstarted
from crrd.core.rollout.phases import End, Stage
from crrd.core.rollout.plan import Plan, make_plan
from crrd.core.rollout.requests import RunRequest, newest_run
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import LABEL_RUN, Run
from crrd.core.rollout.standing import recorded_rows
from crrd.core.rollout.waits import Skip, Wait
from crrd.lib.jsonfields import INT32_MAX, decimal
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import summary
from crrd.rollout.kinds import cluster_of, find_pulls
from crrd.rollout.remedies import FLAGS
from crrd.rollout.session import Session
from crrd.rollout.target import TargetGoneError

_LOOK_SECONDS = 1.0  # Between two looks at the requests of a run that goes on although its workload is gone


async def status(session: Session) -> int:
    """Show the status of a run, or list all runs, the newest first, if no name is given. Return the exit code."""
    if not session.command.run_name:
        by_run, known = dict[str, list[RunRequest]](), await session.requests(LABEL_RUN)
        for each in known:
            by_run.setdefault(each.run.name, []).append(each)
        pulls, now = await find_pulls(session), session.clock.now()
        runs = [run_status(newest_run(requests), requests, now, is_gone) for requests in by_run.values()]
        backs = [each for each in known if each.run.options.change.undoes]
        runs = [replace(each, undone_by=undone_by(each.run, backs)) for each in runs]
        runs = [_with_pulls(session, each, pulls) for each in runs]
        runs += [_unstarted(session, name, pulls) for name in pulls if name not in by_run]
        session.display.print_runs(sorted(runs, key=lambda each: (each.run.started, each.run.name), reverse=True))
        return 0
    name = session.command.run_name
    pulls, requests = await find_pulls(session, name), await session.requests(f"{LABEL_RUN}={name}")
    if name in pulls and not requests:
        session.display.print_status(_unstarted(session, name, pulls), Plan(()), "")
        return End.FAILED.exit_code if session.command.watch else 0
    run = newest_run(requests or await session.requests_of(name))
    try:
        cluster = await cluster_of(session, run)
    except TargetGoneError:
        return await _show_recorded(session, run, pulls)
    async with cluster:
        if session.command.watch:
            return await _follow(session, run, cluster)
        status, plan = await _status_of(session, run, cluster)
    session.display.print_status(_with_pulls(session, status, pulls), plan, _again(session, status))
    return 0


async def _show_recorded(session: Session, run: Run, pulls: Mapping[str, Sequence[datetime]]) -> int:
    """Show a run whose workload is gone, as its requests have recorded it. Return the exit code.

    Nothing can continue it. Its process notices that, and records the end.
    """
    gone = f"{run.target.words} was deleted"
    while True:
        requests = await session.requests_of(run.name)
        status, plan = run_status(run, requests, session.clock.now(), is_gone), Plan(recorded_rows(requests))
        if not session.command.watch:
            undo = undone_by(run, await session.requests(LABEL_RUN))
            is_over = status.end is not None and status.end.over
            waits = status.waits or ("" if is_over else f"nothing, because {gone}")
            status = replace(status, undone_by=undo, waits=waits)
            session.display.print_status(_with_pulls(session, status, pulls), plan, "")
            return 0
        if status.end is not None:
            session.display.begin(run, run.describe(status.total))
            session.display.end(status.word, f"{summary(plan.rows)}; {gone}")
            return status.end.watch_code
        await asyncio.sleep(_LOOK_SECONDS)


def _with_pulls(session: Session, status: RunStatus, pulls: Mapping[str, Sequence[datetime]]) -> RunStatus:
    """Return the state of a run with what is known of its pull pods."""
    name = status.run.name
    return status.with_pulls(len(pulls.get(name, ())), session.command_line("abort", name))


def _unstarted(session: Session, name: str, pulls: Mapping[str, Sequence[datetime]]) -> RunStatus:
    """Return the state of a run that has only pull pods."""
    parts = session.namespace, name, pulls[name], session.clock.now()
    return unstarted(*parts, session.command_line("abort", name))


async def _follow(session: Session, run: Run, cluster: Cluster) -> int:
    """Show a run until it ends or its process has stopped. Return the exit code of its end."""
    session.display.begin(run, run.describe(len(cluster.world().members)))
    trouble = ""
    while True:
        cluster.changed.clear()
        before, trouble = trouble, await cluster.refresh()
        outdated = trouble or before  # the first changes after a trouble may still be on their way
        status, plan = await _status_of(session, run, cluster)
        session.display.show(replace(plan, wait=Wait(outdated)) if outdated else plan)
        if not outdated and status.end is not None:
            again = _again(session, status)
            parts = summary(plan.rows), status.undone_by and f"undone by run {status.undone_by}"
            session.display.end(status.word, "; ".join(filter(None, (*parts, again and f"to continue: {again}"))))
            return status.end.watch_code
        await cluster.wait(1.0)


async def _status_of(session: Session, run: Run, cluster: Cluster) -> tuple[RunStatus, Plan]:
    """Return the state of a run, and its pods."""
    world, now = cluster.world(), session.clock.now()
    run = world.latest(run)
    requests = world.requests_of(run)
    status = replace(run_status(run, requests, now, is_gone), undone_by=undone_by(run, world.requests))
    plan = make_plan(world, run, now)
    if await cluster.probes.learn(plan):
        plan = make_plan(cluster.world(), run, now)
    plan = plan.worded(FLAGS)
    if status.between_turns:  # what is recorded says more: the run may wait for its turn, or for its window
        return status, plan
    if status.end is None:
        return replace(status, waits="; ".join(plan.waits)), plan
    rows = [_after_the_end(row, status.end) for row in plan.rows] if status.end.over else plan.rows
    if status.undone_by:
        recorded = {row.uid: row for row in recorded_rows(requests)}
        rows = [recorded.get(row.uid, row) for row in rows]
    return status, replace(plan, rows=tuple(rows))


def _after_the_end(row: Row, end: End) -> Row:
    """Return the row of a pod of a run that is over. What has become due since is for the next run."""
    if row.request is not None and row.request.succeeded and row.stage in (Stage.SETTLING, Stage.PUT_OFF):
        return replace(row, stage=Stage.DONE)
    if end is End.DONE and row.request is None and row.stage in (Stage.WAITING, Stage.PUT_OFF):
        return replace(row, stage=Stage.SKIPPED, skip=Skip.BEFORE, wait=Wait.of(Skip.BEFORE))
    return row


def _again(session: Session, status: RunStatus) -> str:
    """Return the command that continues a run, or "" if it goes on, is over or was undone."""
    if status.end is None or status.undone_by:
        return ""
    return status.end.go_on.command(session.resume_line(status.run))


def is_gone(by: str) -> bool:
    """Whether the process of a run has certainly ended. Known only for processes of this host."""
    host, _, process = by.rpartition("/")
    number = decimal(process, INT32_MAX)  # others may write anything there
    if host != socket.gethostname() or number is None:
        return False
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False
