"""Carries out a run for the user, with events on the workload; the last line says how to go on."""

import asyncio
from contextlib import suppress

from crrd.core.rollout.image_report import image_report
from crrd.core.rollout.plan import End, Plan, make_plan
from crrd.core.rollout.run import STOPPED, Run
from crrd.core.rollout.standing import Stage, tally
from crrd.kube.events import write_event
from crrd.kube.resources import REQUESTS
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, CrrdError, OutputError
from crrd.lib.output import complain
from crrd.lib.plain import plain, with_flags
from crrd.rollout.clean_up import CleanUp, attempt, unknown_holder
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import failures, summary
from crrd.rollout.events import WorkloadEvent, workload_event
from crrd.rollout.refusals import describe
from crrd.rollout.remedies import FLAGS
from crrd.rollout.runner import ANSWER_SECONDS, Runner
from crrd.rollout.session import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INCOMPLETE, EXIT_TIMED_OUT, Session

_FINAL_WRITES_SECONDS = 5.0  # Time limit for an event, and after Ctrl-C for cleaning up, because the user waits


async def carry_out(session: Session, run: Run, cluster: Cluster, begins: str) -> tuple[int, bool]:
    """Carry out the run, with events on the workload before and after.

    Return the exit code, and whether a run on another target may follow: only pods on nodes that are down are left.

    Raises CancelledError if it is interrupted or the output is closed, and the error that stops it, for example a right
    that was lost. Each way out has its last line and its event, and leaves the run to be continued.
    """
    command = session.command
    parts = session.client, cluster, session.clock, session.display
    runner = Runner(*parts, timeout=command.timeout, confirmed=command.yes, remedies=FLAGS)
    try:
        session.display.begin(run, begins)
        await _record(session, run, WorkloadEvent.RECREATING, run.describe(len(cluster.world().members)))
        plan, timed_out = await runner.run(run)
    except (asyncio.CancelledError, OutputError) as error:
        await _leave(session, runner, run, cluster, "")
        raise asyncio.CancelledError from error
    except Exception as error:
        await _leave(session, runner, run, cluster, describe(error))
        raise
    outcome, message, exit_code = conclude(plan, session.command_line("resume", run.name), timed_out=timed_out)
    clean_up = CleanUp(session.client, run, session.display)
    left = clean_up.unfinished
    try:
        left = await clean_up.finish()
        if outcome == "failed":
            with suppress(OutputError):  # the last line is still printed
                await _print_failures(session, plan)
    finally:
        sentences = message, image_report(cluster.world(), run), _undo(session, run, plan), left
        message = "; ".join(filter(None, sentences))
        _end(session, outcome, message)
    await _record_end(session, run, plan, message if timed_out else "")
    return exit_code, plan.outcome in (End.DONE, End.INCOMPLETE)


async def _leave(session: Session, runner: Runner, run: Run, cluster: Cluster, error: str) -> None:
    """Show that the run stops before its end, and record it. `error` is "" if the user has interrupted it."""
    plan = make_plan(cluster.world(), run, session.clock.now()).worded(FLAGS)
    parts = [summary(plan.rows), *filter(None, [error])]
    if has_started(plan):
        parts += [f"last waited for: {'; '.join(plan.waits)}"] if plan.waits else []
        again = f"to continue: {session.command_line('resume', run.name)}"
        rest = "requests in progress will finish" if run.options.image is None else "pods without the image keep theirs"
        parts += [rest, f"after fixing the cause, {again}" if error else again]
    else:
        parts.append("no pod was restarted")
    clean_up = CleanUp(session.client, run, session.display)
    left, unknown = clean_up.unfinished, ""
    try:
        left, unknown = await asyncio.gather(
            clean_up.finish(_FINAL_WRITES_SECONDS), _look_at_workload(session, run, cluster, plan)
        )  # `resume` does the rest
    finally:
        unanswered = _unanswered(session, run) if runner.is_unanswered else ""
        parts += [image_report(cluster.world(), run), left, unknown, unanswered]
        message = "; ".join(filter(None, parts))
        _end(session, STOPPED if error else "interrupted", message)
    with suppress(TimeoutError):
        async with asyncio.timeout(_FINAL_WRITES_SECONDS):
            await runner.write_progress(run, plan, STOPPED)
            await _record(session, run, WorkloadEvent.STOPPED if error else WorkloadEvent.INTERRUPTED, message)


async def _look_at_workload(session: Session, run: Run, cluster: Cluster, plan: Plan) -> str:
    """Read the workload in the middle of an adoption: a write may have arrived without its response.

    Return what is not known, "" for nothing.
    """
    if plan.image.adoption is None or cluster.images is None:
        return ""
    error = await attempt(cluster.images.read_workload, _FINAL_WRITES_SECONDS, session.display)
    return unknown_holder(run, error) if error else ""


def _unanswered(session: Session, run: Run) -> str:
    """Return what to say about a write that may still be carried out."""
    why = f"the API server has not answered a write within {ANSWER_SECONDS:.0f}s, and may still carry it out"
    status, abort = session.command_line("status", run.name), session.command_line("abort", run.name)
    return f"{why}; to see what became of it: {status}; to end it: {abort}"


async def _record_end(session: Session, run: Run, plan: Plan, timed_out: str) -> None:
    """Record how the run ended. `timed_out` is the message of a run that timed out first."""
    if plan.outcome is End.DONE:
        await _record(session, run, WorkloadEvent.RECREATED, summary(plan.rows))
    elif plan.outcome is End.FAILED:
        await _record(session, run, WorkloadEvent.FAILED, f"{summary(plan.rows)}: {failures(plan.rows)}")
    elif plan.outcome is End.INCOMPLETE:
        await _record(session, run, WorkloadEvent.INCOMPLETE, f"{summary(plan.rows)}: {plan.message}")
    if timed_out:
        await _record(session, run, WorkloadEvent.TIMED_OUT, timed_out)


async def _record(session: Session, run: Run, reason: WorkloadEvent, message: str) -> None:
    if (event := workload_event(run, reason, message, session.clock.now())) is not None:
        with suppress(ApiRefusedError, ApiUnavailableError, TimeoutError):  # optional: the requests have all state
            async with asyncio.timeout(_FINAL_WRITES_SECONDS):
                await write_event(session.client, event.body())


async def _print_failures(session: Session, plan: Plan) -> None:
    """Print why pods failed, and the state of their requests."""
    for row in plan.rows:
        if row.stage is not Stage.FAILED:
            continue
        explanation = ""
        if row.request is not None:
            with suppress(CrrdError):  # deleted or not readable; the failure itself is known
                request = await session.client.get(REQUESTS, session.namespace, row.request.request.name)
                parts = session.client, session.clock, request, session.command.access_flags
                explanation = await session.explainer(*parts)
        session.display.print_line(f"{row.pod} failed: {row.wait.with_command}", explanation.splitlines())


def _undo(session: Session, run: Run, plan: Plan) -> str:
    """Return how to give pods of a failed run their image back, or ""."""
    change = run.options.image
    if change is None or change.undoes or plan.outcome is not End.FAILED or not has_started(plan):
        return ""
    return f"to give the pods the image back that they had: {session.command_line('undo', run.name)}"


def _end(session: Session, outcome: str, message: str) -> None:
    """Show the end, or print it on stderr if stdout fails."""
    try:
        session.display.end(outcome, message)
    except OutputError as error:
        shown = plain(with_flags(message, session.command.access_flags))
        complain(f"{session.command.called}: {error}; {outcome}: {shown}")


def conclude(plan: Plan, resume_command: str, *, timed_out: bool) -> tuple[str, str, int]:
    """Return how a run ended for this process, by its last plan: one word for programs, a sentence, and the exit code.

    `timed_out` means that the time limit of the whole run was reached first.
    """
    message, started = summary(plan.rows), has_started(plan)
    again = f"to continue: {resume_command}" if started else "no pod was restarted"
    if timed_out:
        waits = "; ".join(plan.waits) or "nothing"
        return "timed out", f"{message}; last waited for: {waits}; {again}", EXIT_TIMED_OUT
    match plan.outcome:
        case End.PAUSED:
            return "paused", f"{message}; {plan.message}; {again}{' --yes' * started}", 0
        case End.RIVAL:
            return "stopped", f"{message}; {plan.message}; {again}", EXIT_BAD_INPUT
        case End.ABORTED:
            return "aborted", f"{message}; {plan.message}; to restart the rest, start a new run", EXIT_FAILED
        case End.INCOMPLETE if not tally(plan.rows)[Stage.PUT_OFF]:
            return "incomplete", f"{message}; {plan.message}; to restart the rest, start a new run", EXIT_INCOMPLETE
        case End.INCOMPLETE:
            back = "once the node is back, " if started else ""
            return "incomplete", f"{message}; {plan.message}; {back}{again}", EXIT_INCOMPLETE
        case End.FAILED:
            cause = "after fixing the cause, " if started else ""
            retry = " --retry-failed" if started and "--retry-failed" not in resume_command else ""
            why = f"{plan.message}; " if not tally(plan.rows)[Stage.FAILED] else ""
            return "failed", f"{message}; {why}{cause}{again}{retry}", EXIT_FAILED
    return "done", message, 0


def has_started(plan: Plan) -> bool:
    """Whether any request of the run was created."""
    return any(row.request is not None for row in plan.rows)
