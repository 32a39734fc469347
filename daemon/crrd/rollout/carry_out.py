"""Carries out a run for the user, with events on the workload; the last line says how to go on."""

import asyncio
import os
from contextlib import suppress
from dataclasses import replace

from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.limits import Times
from crrd.core.rollout.phases import End, GoOn, Stage
from crrd.core.rollout.plan import Plan, make_plan
from crrd.core.rollout.requests import last_progress
from crrd.core.rollout.rows import tally
from crrd.core.rollout.run import Run
from crrd.kube.events import write_event
from crrd.kube.resources import REQUESTS
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, CrrdError, OutputError
from crrd.lib.output import complain
from crrd.lib.plain import plain, with_flags
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import failures, summary
from crrd.rollout.events import BEGUN, workload_event
from crrd.rollout.judge import MetricsJudge
from crrd.rollout.kinds import make_writer
from crrd.rollout.metrics import Prometheus, token_of_file
from crrd.rollout.refusals import describe
from crrd.rollout.remedies import FLAGS
from crrd.rollout.runner import ANSWER_SECONDS, CLEAN_UP_SECONDS, Runner
from crrd.rollout.session import Session

_FINAL_WRITES_SECONDS = 5.0  # Time limit for an event, and after Ctrl-C for cleaning up, because the user waits


async def carry_out(session: Session, run: Run, cluster: Cluster, begins: str, *, resumed: bool = False) -> End:
    """Carry out the run, with events on the workload before and after. Return how it ended. `resumed`: see Runner.

    Raises CancelledError if it is interrupted or the output is closed, and the error that stops it, for example a right
    that was lost. Each way out has its last line and its event, and leaves the run to be continued.
    """
    command, writer = session.command, make_writer(session.client, cluster, run, session.display, session.clock)
    parts = session.client, cluster, session.clock, session.display, writer
    ask = Prometheus(token_of_file, None, os.environ).ask
    judge = MetricsJudge(command.metrics, ask, session.clock.now)
    times, yes = Times(command.timeout), command.yes
    runner = Runner(*parts, times=times, remedies=FLAGS, yes=yes, resumed=resumed, judge=judge)
    is_known = _has_told(session, run, cluster)
    try:
        session.display.begin(run, begins)
        if not is_known:
            await _record(session, run, BEGUN, run.describe(len(cluster.world().members)))
        plan = await runner.run(run)
    except (asyncio.CancelledError, OutputError) as error:
        await _leave(session, runner, run, cluster)
        raise asyncio.CancelledError from error
    except Exception as error:
        await _leave(session, runner, run, cluster, describe(error))
        raise
    assert plan.end is not None  # noqa: S101 - as the runner promises
    left = writer.unfinished
    try:
        left = await runner.finish(run, plan, CLEAN_UP_SECONDS)
        if plan.end is End.FAILED:
            with suppress(OutputError):  # the last line is still printed
                await _print_failures(session, plan)
    finally:
        sentences = kind_of(cluster.world(), run).report(), _undo(session, run, plan), left
        message = "; ".join([conclude(plan, session.resume_line(run)), *filter(None, sentences)])
        _end(session, plan.end, message)
    if not (is_known and plan.end is End.DONE):
        await _record_end(session, run, plan, message)
    return plan.end


def _has_told(session: Session, run: Run, cluster: Cluster) -> bool:
    """Whether the run is done, and one of its earlier processes has recorded that, with its events."""
    world = cluster.world()
    last = last_progress(each for each in world.requests if each.run.name == run.name)
    is_recorded = last is not None and last.end is End.DONE
    return is_recorded and make_plan(world, run, session.clock.now()).end is End.DONE


async def _leave(session: Session, runner: Runner, run: Run, cluster: Cluster, error: str = "") -> None:
    """Show that the run stops before its end, and record it. `error` is "" if the user has interrupted it."""
    end = End.STOPPED if error else End.INTERRUPTED
    plan = runner.plan(run)
    plan = replace(plan if plan.end is End.PAUSED else plan.going_on(), end=end)
    parts = [summary(plan.rows), *filter(None, [error])]
    if plan.started:
        parts += [f"last waited for: {'; '.join(plan.waits)}"] if plan.waits else []
        leaves = kind_of(cluster.world(), run).leaves_objects
        parts += ["pods without the image keep theirs" if leaves else "requests in progress will finish"]
        parts.append(end.go_on.say(session.resume_line(run)))
    else:
        parts.append(_NONE)
    left, unknown = runner.writer.unfinished, ""
    try:
        left, unknown = await asyncio.gather(
            runner.writer.clean_up(_FINAL_WRITES_SECONDS), runner.writer.look_back(run, plan, _FINAL_WRITES_SECONDS)
        )  # `resume` does the rest
    finally:
        unanswered = _unanswered(session, run) if runner.is_unanswered else ""
        parts += [kind_of(cluster.world(), run).report(), left, unknown, unanswered]
        message = "; ".join(filter(None, parts))
        _end(session, end, message)
    with suppress(TimeoutError):
        async with asyncio.timeout(_FINAL_WRITES_SECONDS):
            await runner.write_progress(run, plan)
            await _record(session, run, end, message)


def _unanswered(session: Session, run: Run) -> str:
    """Return what to say about a write that may still be carried out."""
    why = f"the API server has not answered a write within {ANSWER_SECONDS:.0f}s, and may still carry it out"
    status, abort = session.command_line("status", run.name), session.command_line("abort", run.name)
    return f"{why}; to see what became of it: {status}; to end it: {abort}"


async def _record_end(session: Session, run: Run, plan: Plan, message: str) -> None:
    """Record how the run ended."""
    details = "" if plan.end is End.DONE else failures(plan.rows) or plan.message
    short = ": ".join(filter(None, (summary(plan.rows), details)))
    await _record(session, run, plan.end, message if plan.end is End.TIMED_OUT else short)


async def _record(session: Session, run: Run, end: End | None, message: str) -> None:
    if (event := workload_event(run, end, message, session.clock.now())) is not None:
        with suppress(ApiRefusedError, ApiUnavailableError, TimeoutError):  # optional: the requests have all state
            async with asyncio.timeout(_FINAL_WRITES_SECONDS):
                await write_event(session.client, event.body())


async def _print_failures(session: Session, plan: Plan) -> None:
    """Print why pods failed, and the state of their requests."""
    for row in plan.rows:
        if row.stage is not Stage.FAILED:
            continue
        explanation = ""
        if row.request is not None and not row.request.on_pod:
            with suppress(CrrdError):  # deleted or not readable; the failure itself is known
                request = await session.client.get(REQUESTS, session.namespace, row.request.request.name)
                parts = session.client, session.clock, request, session.command.access_flags
                explanation = await session.explainer(*parts)
        session.display.print_line(f"{row.pod} failed: {row.wait.with_command}", explanation.splitlines())


def _undo(session: Session, run: Run, plan: Plan) -> str:
    """Return how to take a failed run back, or ""."""
    can = run.options.change.image_back and not run.options.change.undoes
    if not can or plan.end not in (End.FAILED, End.HALTED) or not plan.started:
        return ""
    return f"to give the pods the image back that they had: {session.command_line('undo', run.name)}"


def _end(session: Session, end: End, message: str) -> None:
    """Show the end, or print it on stderr if stdout fails."""
    try:
        session.display.end(end.word, message)
    except OutputError as error:
        shown = plain(with_flags(message, session.command.access_flags))
        complain(f"{session.command.called}: {error}; {end.word}: {shown}")


_NONE = "no pod was restarted"


def conclude(plan: Plan, resume: str) -> str:
    """Return the last line of a run that has ended: its pods, the cause, and how to go on. `resume` is that command."""
    end, details = plan.end or End.DONE, plan.message
    if end is End.FAILED and tally(plan.rows)[Stage.FAILED]:
        details = ""  # the pods and their causes are shown anyway
    if end is End.TIMED_OUT:
        details = f"last waited for: {'; '.join(plan.waits) or 'nothing'}"
    go_on = end.go_on.say(resume) if plan.started or end.go_on in (GoOn.NOT, GoOn.NEW_RUN) else _NONE
    return "; ".join(filter(None, (summary(plan.rows), details, go_on)))
