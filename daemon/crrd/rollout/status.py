"""`status`: shows the state of one run, follows it, or lists all runs."""

import os
import socket
from dataclasses import replace

from crrd.core.rollout.overview import RunStatus, run_status
from crrd.core.rollout.plan import End, Plan, seen_by_others
from crrd.core.rollout.requests import RunRequest, newest_run
from crrd.core.rollout.run import LABEL_RUN, RUNNING, STOPPED, WAITING, Run
from crrd.core.rollout.waits import Wait
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import summary
from crrd.rollout.remedies import FLAGS
from crrd.rollout.session import EXIT_FAILED, EXIT_INCOMPLETE, Session


async def status(session: Session) -> int:
    """Show the status of a run, or list all runs, the newest first, if no name is given. Return the exit code."""
    if not session.command.run_name:
        by_run: dict[str, list[RunRequest]] = {}
        for each in await session.requests(LABEL_RUN):
            by_run.setdefault(each.run.name, []).append(each)
        now = session.clock.now()
        runs = [run_status(newest_run(requests), requests, now, is_gone) for requests in by_run.values()]
        session.display.print_runs(sorted(runs, key=lambda each: (each.run.started, each.run.name), reverse=True))
        return 0
    run = newest_run(await session.requests_of(session.command.run_name))
    async with await session.cluster_of(run) as cluster:
        if session.command.watch:
            return await _follow(session, run, cluster)
        status, plan = await status_of(session, run, cluster)
    session.display.print_status(status, plan, _again(session, status, plan))
    return 0


async def _follow(session: Session, run: Run, cluster: Cluster) -> int:
    """Show a run until it ends or its process has stopped. Return 0 if it is done."""
    session.display.begin(run, run.describe(len(cluster.world().members)))
    trouble = ""
    while True:
        cluster.changed.clear()
        before, trouble = trouble, await cluster.refresh()
        outdated = trouble or before  # the first changes after a trouble may still be on their way
        status, plan = await status_of(session, run, cluster)
        session.display.show(replace(plan, wait=Wait(outdated)) if outdated else plan)
        if not outdated and status.state not in (RUNNING, WAITING):
            again = _again(session, status, plan)
            session.display.end(status.state, summary(plan.rows) + (f"; to continue: {again}" if again else ""))
            if plan.outcome is End.DONE:
                return 0
            return EXIT_INCOMPLETE if plan.outcome is End.INCOMPLETE else EXIT_FAILED
        await cluster.wait(1.0)


async def status_of(session: Session, run: Run, cluster: Cluster) -> tuple[RunStatus, Plan]:
    """Return the state of a run, and its plan as other processes see it."""
    world, now = cluster.world(), session.clock.now()
    run = world.latest(run)
    plan = seen_by_others(world, run, now)
    if await cluster.probes.learn(plan):
        plan = seen_by_others(cluster.world(), run, now)
    plan = plan.worded(FLAGS)
    return run_status(run, world.requests_of(run), now, is_gone, plan), plan


def _again(session: Session, status: RunStatus, plan: Plan) -> str:
    """Return the command that continues a run, or "" if it is running or over."""
    line = session.command_line("resume", status.run.name)
    if plan.end is End.PAUSED:
        return f"{line} --yes"
    return {STOPPED: line, str(End.INCOMPLETE): line, str(End.FAILED): f"{line} --retry-failed"}.get(status.state, "")


def is_gone(by: str) -> bool:
    """Whether the process of a run has certainly ended. Known only for processes of this host."""
    host, _, number = by.rpartition("/")
    if host != socket.gethostname() or not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    return False
