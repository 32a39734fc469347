"""How a run ended for this process: one word, a sentence, and the exit code. Nothing here waits or writes."""

from dataclasses import dataclass

from crrd.core.rollout.plan import End, Plan
from crrd.rollout.display import summary

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_TIMED_OUT = 3
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Ending:
    """The last line of a run."""

    outcome: str  # One word, for machines
    message: str
    exit_code: int


def conclude(plan: Plan, resume_command: str, *, timed_out: bool) -> Ending:
    """The ending of a run, by its last plan; `timed_out` says that the time for the whole run was over first."""
    message, started = summary(plan.rows), has_started(plan)
    again = f"to continue: {resume_command}" if started else "no pod was restarted"
    if timed_out:
        return Ending(
            "timed out", f"{message}; last waited for: {'; '.join(plan.waits) or 'nothing'}; {again}", EXIT_TIMED_OUT
        )
    match plan.outcome:
        case End.ASK:
            return Ending("paused", f"{message}; {plan.message}; {again}{' --yes' * started}", 0)
        case End.RIVAL:
            return Ending("stopped", f"{message}; {plan.message}", EXIT_BAD_INPUT)
        case End.ABORTED:
            return Ending("aborted", f"{message}; {plan.message}", EXIT_FAILED)
        case End.FAILED:
            cause = "after fixing the cause, " if started else ""
            retry = " --retry-failed" if started and "--retry-failed" not in resume_command else ""
            return Ending("failed", f"{message}; {cause}{again}{retry}", EXIT_FAILED)
    return Ending("done", message, 0)


def has_started(plan: Plan) -> bool:
    """Whether any request of the run was created."""
    return any(row.request is not None for row in plan.rows)
