"""What a kind of run has to bring. The planner knows no kind, and asks these questions of each.

A kind is made for one run and one world (`kinds.kind_of`), so that all it needs is there. The plain restart is in
`restart`; runs that give a container another image are in `image`. docs/architecture.md says how to add one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import ClassVar

from crrd.core.api.pod import ContainerKind, PodContainer
from crrd.core.api.time import parse_time
from crrd.core.rollout.phases import End, RunPhase
from crrd.core.rollout.requests import GivenImage, RunRequest
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import Run
from crrd.core.rollout.state import Member, World
from crrd.core.rollout.waits import NO_WAIT, Skip, Wait, WaitReason
from crrd.kubelet.version import known_minor


@dataclass(frozen=True, slots=True)
class Actions:
    """What to do now, besides new requests. A kind has its own subclass, and its executor carries it out."""

    @property
    def begins_with(self) -> tuple[str, ...]:
        """The pods (UID) that these actions begin with, before they get their request."""
        return ()

    def for_started(self) -> "Actions":
        """Return the actions for the pods that have started already."""
        return self


NO_ACTIONS = Actions()


@dataclass(frozen=True, slots=True)
class Choice:
    """What the budgets allow now."""

    chosen: Sequence[Row] = ()  # Pods that may start
    later: Sequence[str] = ()  # The UIDs of those that start after them, in their order
    over_budget: Collection[str] = ()  # As `Kind.over_budget`


@dataclass(frozen=True, slots=True)
class Prepared:
    """The chosen pods of a plan: those that get their request now, and what the others wait for (by UID)."""

    ready: tuple[Row, ...]
    waits: Mapping[str, Wait] = field(default_factory=dict)
    actions: Actions = NO_ACTIONS
    wait: Wait = NO_WAIT  # Why none of the chosen pods starts, if the run makes no progress because of it
    phase: RunPhase = RunPhase.RESTARTING
    wake_at: datetime | None = None  # When one of those that wait is ready


@dataclass(frozen=True, slots=True)
class LastStep:
    """What a run does after its last pod."""

    phase: RunPhase = RunPhase.ADOPTING
    actions: Actions = NO_ACTIONS
    wait: str = ""
    problem: str = ""  # Why it cannot go on, and what to do


class Kind(ABC):
    """One run in one world."""

    takes_new_pods: ClassVar[bool] = False  # Whether pods that were created after the run's start belong to it
    needs_daemon: ClassVar[bool] = True  # Whether a node daemon carries out its requests
    beside: ClassVar[Collection[ContainerKind]] = ()
    """Kinds of containers that restart with the others, so that `skip` is asked about them, too."""
    leaves_objects: ClassVar[bool] = False  # Whether something must be cleaned up after the end
    rescues: bool = False  # Whether the run is for broken pods, so that those that are unready start out of order
    needs_workload: bool = False  # Whether it is not done without its workload, which has to follow the pods
    holder: str = ""  # The run that holds the controller of the workload
    holds_rollout: bool = False
    """Whether the workload's rollout stands still because it is held, so that the run need not wait for it."""

    def __init__(self, world: World, run: Run) -> None:
        self.world, self.run = world, run
        self.min_ready = world.min_ready(run)

    @abstractmethod
    def skip(self, member: Member, container: PodContainer, failed: RunRequest | None) -> Skip | None:
        """Return why a container is skipped, by the rules of its kubelet's version; None if it is to be recreated.

        One that the request `failed` could not recreate is recreated again, even if it has started since.
        """

    def minor_of(self, member: Member) -> int | None:
        """Return the minor version of a pod's kubelet, None if it is not known."""
        return known_minor(self.world.kubelets.get(member.pod.node_name, ""))

    @cached_property
    def since(self) -> datetime | None:
        """What has started later than this has what the run brings."""
        return parse_time(self.run.options.since or self.run.started)

    def rows(self, rows: tuple[Row, ...], now: datetime) -> tuple[Row, ...]:
        """Return the rows, with what this kind knows of them in addition."""
        return rows

    @property
    def given(self) -> Iterable[GivenImage]:
        """What this process has given to pods."""
        return ()

    @cached_property
    def unreplaced(self) -> Collection[tuple[str, str]]:
        """See `World.unreplaced`."""
        return self.world.unreplaced(self.given)

    def over_budget(
        self, rows: Iterable[Row], now: datetime, exceeds: Callable[[Member], bool], *, held: bool
    ) -> Collection[str]:
        """Return pods (UID) that have begun, and must not go down now.

        `exceeds` tells whether a budget is used up for a pod. `held` means that no pod may start now.
        """
        return ()

    @abstractmethod
    def prepare(self, rows: tuple[Row, ...], choice: Choice, now: datetime) -> Prepared:
        """Return which of the chosen pods get their request now, and the actions before and after it."""

    @property
    def obstacle(self) -> str:
        """Why the run must not go on, because somebody else has changed the workload; "" if it may."""
        return ""

    def last_step(self, rows: tuple[Row, ...], end: End | None) -> LastStep | None:
        """Return what is next after the last pod, None if nothing is left to do. `end` is how the run would end."""
        return None

    def actions_before_end(self, rows: tuple[Row, ...]) -> Actions:
        """Return what to do while the run waits before its end (`wait_before_end`)."""
        return NO_ACTIONS

    def left_out(self, rows: Iterable[Row]) -> list[str]:
        """Return the pods that a run left out, each with the reason."""
        return []

    def wait_before_end(self, rows: tuple[Row, ...], end: End) -> Wait:
        """Return what a run waits for, for a limited time, before this end.

        If the workload has no pods, its controller may be creating the next ones. They have the present configuration.
        """
        has_none = end is End.LEFT_OUT and not self.world.members
        return self.wait_for_pods(0) if has_none else NO_WAIT

    def wait_for_pods(self, count: int) -> Wait:
        """Return the wait for the pods that the workload lacks. `count` is how many it has."""
        there, target = self.world.workload, self.run.target.words
        if there is None or there.deleting:
            return NO_WAIT
        command = f"kubectl describe {target} -n {self.run.namespace}"
        return Wait.of(WaitReason.MISSING_PODS, command, target=target, count=count, desired=there.desired)

    def completed(self) -> Run:
        """Return the run with the defaults that depend on the world."""
        return self.run

    def shown(self) -> tuple[World, Run]:
        """Return world and run for a preview: without what does not change the order of the pods."""
        return self.world, self.run

    def planned_writes(self) -> tuple[str, ...]:
        """Return sentences about what the run writes after the last pod."""
        return ()

    def report(self) -> str:
        """Return what the last line of the run says in addition, or ""."""
        return ""
