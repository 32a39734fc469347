"""What a run is doing, in which stage each of its pods is, and how it ends: one table for each.

The tables drive the plans, the executor, `status`, events, exit codes, and what is recorded on requests. The diagram in
docs/recreate.md and its tables are generated from them: `python -m tests.tools.phase_diagram`.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Self


class RunPhase(StrEnum):
    """What a run is doing. Each plan has one. What is recorded on a request, and shown to others, is `phase_of`."""

    PULLING = "Pulling"  # No pod is in progress, and the next ones wait until their nodes have the image
    RESTARTING = "Restarting"  # Pods are in progress, or wait for their turn
    JUDGING = "Judging"  # The pods of a step are done, and they are watched
    PAUSED = "Paused"  # The first part or a step is over, and the next one begins later, or once a user allows it
    ADOPTING = "Adopting"  # All pods are done, and the workload follows them, while its controller is held
    RELEASING = "Releasing"  # The controller of the workload is released
    CLEANING_UP = "CleaningUp"  # It is known how the run ends, and what it would leave behind is deleted
    OVER = "Over"  # The end is recorded


_RELEASED = "no pod is left, and the template has the image already"

RUN_MOVES: Mapping[tuple[RunPhase, RunPhase], str] = MappingProxyType(
    {
        (RunPhase.PULLING, RunPhase.RESTARTING): "a node has the image",
        (RunPhase.PULLING, RunPhase.PAUSED): "what is left of the step cannot start",
        (RunPhase.PULLING, RunPhase.ADOPTING): "the pods that were left have gone, or have the image",
        (RunPhase.PULLING, RunPhase.RELEASING): _RELEASED,
        (RunPhase.RESTARTING, RunPhase.PULLING): "the nodes of the next pods do not have the image yet",
        (RunPhase.PULLING, RunPhase.JUDGING): "what is left of the step cannot start",
        (RunPhase.RESTARTING, RunPhase.JUDGING): "the pods of a step are done",
        (RunPhase.JUDGING, RunPhase.RESTARTING): "a pod is unready or new, or the next step begins",
        (RunPhase.JUDGING, RunPhase.PULLING): "the next step begins, and its nodes do not have the image yet",
        (RunPhase.JUDGING, RunPhase.PAUSED): "the judgement is yes",
        (RunPhase.JUDGING, RunPhase.ADOPTING): "the judgement of the last step is yes",
        (RunPhase.JUDGING, RunPhase.RELEASING): _RELEASED,
        (RunPhase.PAUSED, RunPhase.JUDGING): "the pod that was unready is done again",
        (RunPhase.RESTARTING, RunPhase.PAUSED): "the first part or a step is done",
        (RunPhase.PAUSED, RunPhase.RESTARTING): "the pause is over, or a user has allowed what follows",
        (RunPhase.PAUSED, RunPhase.PULLING): "the pause is over, or a user has allowed what follows",
        (RunPhase.PAUSED, RunPhase.ADOPTING): "the pods that were left have gone",
        (RunPhase.PAUSED, RunPhase.RELEASING): _RELEASED,
        (RunPhase.RESTARTING, RunPhase.ADOPTING): "all pods have the image",
        (RunPhase.RESTARTING, RunPhase.RELEASING): _RELEASED,
        (RunPhase.ADOPTING, RunPhase.RESTARTING): "a new pod needs the image",
        (RunPhase.ADOPTING, RunPhase.PULLING): "a new pod needs the image",
        (RunPhase.ADOPTING, RunPhase.RELEASING): "the workload and its pods agree",
        (RunPhase.RELEASING, RunPhase.ADOPTING): "the controller has not seen all of it yet",
        (RunPhase.RELEASING, RunPhase.RESTARTING): "a new pod needs the image",
        (RunPhase.RELEASING, RunPhase.PULLING): "a new pod needs the image",
        **{
            (phase, RunPhase.CLEANING_UP): "the run ends"
            for phase in (
                RunPhase.PULLING,
                RunPhase.RESTARTING,
                RunPhase.JUDGING,
                RunPhase.PAUSED,
                RunPhase.ADOPTING,
                RunPhase.RELEASING,
            )
        },
        (RunPhase.CLEANING_UP, RunPhase.OVER): "the end is recorded",
    }
)
"""From one plan of a process to the next. A run that is continued begins in any phase, because all of it is read from
the cluster's objects."""


class Stage(StrEnum):
    """The stages of a pod in a run, in order of time. The last four are final."""

    WAITING = "waiting"  # Not started yet
    PUT_OFF = "put off"  # Its node is down, so the run goes on without it, and restarts it when the node is back
    REQUESTED = "requested"  # Its request exists, but the node has not started it
    RECREATING = "recreating"
    SETTLING = "getting ready"  # Recreated, but not ready for long enough
    DONE = "done"
    SKIPPED = "skipped"
    GONE = "deleted"  # The pod was deleted or evicted before it was done
    FAILED = "failed"

    under_way: bool  # Whether the run is working on the pod now

    def __init__(self, word: str) -> None:
        self.under_way = word in ("requested", "recreating", "getting ready")


class GoOn(Enum):
    """What a user can do after an end: a sentence, and the flag of the command in it, None if it has no command."""

    NOT = "", None
    RESUME = "to continue: {resume}", ""
    CONFIRM = "to continue: {resume}", " --yes"
    RETRY = "after fixing the cause, to continue: {resume}", " --retry-failed"
    OVERRULE = "to continue in spite of it: {resume}", " --yes"
    AFTER_FIX = "after fixing the cause, to continue: {resume}", ""
    NODE_BACK = "once the node is back, to continue: {resume}", ""
    NEW_RUN = "to restart the rest, start a new run", None

    def __init__(self, sentence: str, flag: str | None) -> None:
        self.sentence, self.flag = sentence, flag

    def command(self, resume: str) -> str:
        """Return the command that continues the run, "" if none does. `resume` may have its flag already."""
        return "" if self.flag is None else f"{resume.replace(self.flag, '')}{self.flag}"

    def say(self, resume: str) -> str:
        """Return the sentence, with the command."""
        return self.sentence.format(resume=self.command(resume))


class End(StrEnum):
    """How a run ends for a process, or how it stops until somebody continues it.

    A row has its word (for programs and `status`), its cause (for the docs), the exit code, the reason of its event (""
    for no event), how a policy counts it, whether the run on the next target of the command may follow, and what a user
    can do. Its name is what is recorded: it is unique, and several rows may share a word.

    These are all places in which a run gets an end:

    - The planner (`plan`): `ENDS` has the causes, and the first one counts. `_ended` makes FAILED or LEFT_OUT of an
      end after which pods have failed or are left, and `_with_last_step` ends a run whose last step cannot be done.
    - The time (`Limits.apply`): TIMED_OUT after `--timeout`, or too long without progress. If the process has only a
      turn of the run (`Times.is_turn`), that is YIELDED, and the run goes on in another turn. `apply` also takes ends
      away: all but ABORTED while the known state may be out of date, and those before which the run waits
      (`Plan.wait_before_end`).
    - The command (`rollout/carry_out`): INTERRUPTED by Ctrl-C, a signal or a closed stdout, STOPPED by any other
      error. An interrupted command waits a moment for the responses to its writes (`Runner.run`). A turn
      (`Times.is_turn`) ends at once, because others need its place.
    - The task of a policy's run (`manager/policies/run_task`): a missing right ends a run with an image as LEFT_OUT,
      and so does `Pace.after` a run that gets nowhere. After an end of `GOES_ON`, also because the window has closed,
      the run has not ended, and YIELDED is recorded. `core/policy/outcome` says how an end counts for the policy.
    - The policy (`core/policy/course`): `next_run` ends a run that does not fit the policy any more, or that a newer
      one replaces. Its task is cancelled. So it is if the policy is suspended or deleted, or another manager leads.
      No end is recorded on the requests of a cancelled task.
    - `abort` and `undo` record an abort on the requests of the run, and those of the undo name the run that they end
      (`RunRequest.ended_runs`). The process of the run finds it by `_aborted`.
    - Those who look at the run (`overview.run_status`): an abort counts without a process, too, and a run is STOPPED
      if its process is gone and has recorded no end. YIELDED counts once no turn has followed for QUEUED_SECONDS.
    """

    word: str
    cause: str
    exit_code: int
    event: str
    metric: str
    next_follows: bool
    go_on: GoOn

    DONE = ("Done", "done", "no pod is left", 0, "ContainersRecreated", "succeeded", True, GoOn.NOT)
    LEFT_OUT = (
        *("LeftOut", "incomplete", "pods or containers are left that the run cannot restart", 4),
        *("ContainersRecreateIncomplete", "incomplete", True, GoOn.NEW_RUN),
    )
    PUT_OFF = (
        *("PutOff", "incomplete", "only pods are left whose nodes are down", 4),
        *("ContainersRecreateIncomplete", "incomplete", True, GoOn.NODE_BACK),
    )
    FAILED = (
        *("Failed", "failed", "a pod has failed, or somebody else has changed the workload", 1),
        *("ContainersRecreateFailed", "failed", False, GoOn.RETRY),
    )
    HALTED = (
        *("Halted", "halted", "the judgement of a step is no", 1),
        *("ContainersRecreateHalted", "halted", False, GoOn.OVERRULE),
    )
    ABORTED = ("Aborted", "aborted", "`abort`, or `undo`", 1, "", "failed", False, GoOn.NEW_RUN)
    PAUSED = (
        *("Paused", "paused", "the part of `--partition` is done, or a step with `--step-pause wait`", 0),
        *("", "failed", False, GoOn.CONFIRM),
    )
    RIVAL = ("Rival", "stopped", "another run on the same pods started first", 2, "", "failed", False, GoOn.RESUME)
    TIMED_OUT = (
        *("TimedOut", "timed out", "`--timeout`, or an hour without progress", 3),
        *("ContainersRecreateTimedOut", "failed", False, GoOn.RESUME),
    )
    INTERRUPTED = (
        *("Interrupted", "interrupted", "Ctrl-C, a signal, or stdout was closed", 130),
        *("ContainersRecreateInterrupted", "failed", False, GoOn.RESUME),
    )
    STOPPED = (
        *("Stopped", "stopped", "an error, for example a right that was lost", 2),
        *("ContainersRecreateStopped", "failed", False, GoOn.AFTER_FIX),
    )
    YIELDED = ("Yielded", "stopped", "the turn of a policy's run is over", 0, "", "", False, GoOn.RESUME)

    def __new__(cls, name: str, *_: object) -> Self:
        """Create a row."""
        row = str.__new__(cls, name)
        row._value_ = name
        return row

    def __init__(  # noqa: PLR0917 - a row has its columns
        self, _: str, word: str, cause: str, exit_code: int, event: str, metric: str, next_follows: bool, go_on: GoOn
    ) -> None:
        self.word, self.cause, self.exit_code, self.event = word, cause, exit_code, event
        self.metric, self.next_follows, self.go_on = metric, next_follows, go_on

    @property
    def watch_code(self) -> int:
        """The exit code of `status --watch`. A run that was interrupted, timed out or stopped has failed so far."""
        return self.exit_code if self.over or self is End.PAUSED else End.FAILED.exit_code

    @classmethod
    def named(cls, name: str) -> Self | None:
        """Return the row of this name, None if there is none."""
        return next((each for each in cls if each.value == name), None)

    @property
    def incomplete(self) -> bool:
        """Whether no pod has failed, but some are left."""
        return self in (End.LEFT_OUT, End.PUT_OFF)

    @property
    def has_failed(self) -> bool:
        """Whether the run of a policy has failed with it."""
        return self.metric in ("failed", "halted")

    @property
    def over(self) -> bool:
        """Whether other runs may follow. What is left can only be done by a user, who may still continue the run."""
        return self in (End.DONE, End.LEFT_OUT, End.PUT_OFF, End.FAILED, End.HALTED, End.ABORTED)


def phase_of(end: End | None, phase: RunPhase) -> RunPhase:
    """Return the phase of a run as it is recorded, from that of its last plan.

    It is OVER in place of CLEANING_UP, because how a run has ended is recorded after the cleaning up.
    """
    return RunPhase.OVER if end is not None and end.over else phase


GOES_ON: Mapping[End, str] = MappingProxyType(
    {
        End.YIELDED: "its next turn",
        End.TIMED_OUT: "the window of its policy",
        End.RIVAL: "{message}",
        End.PAUSED: "{message}; the condition Ready of its policy has the command to continue",
    }
)
"""Ends of a turn after which the run of a policy goes on, and what it waits for: the turn is over, the policy's window
has closed, another run on the same pods is first, or the owner must allow the next step. With any other end, the run
has ended. `{message}` is that of the plan."""
