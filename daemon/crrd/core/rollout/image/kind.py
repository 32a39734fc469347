"""The kind of run that gives a container another image. See Kind for what its methods return."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import ClassVar

from crrd.core.api.pod import ContainerKind, PodContainer
from crrd.core.rollout.change import TemplateMode
from crrd.core.rollout.image.adoption import changed_by_others, next_adoption
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.following import planned_writes, released_meanwhile
from crrd.core.rollout.image.invariant import replaces_pods
from crrd.core.rollout.image.report import image_report
from crrd.core.rollout.image.rows import image_rows
from crrd.core.rollout.image.steps import (
    ImageActions,
    failed_and_open,
    pods_over_budget,
    prepare_pods,
)
from crrd.core.rollout.kind import Actions, Choice, Kind, LastStep, Prepared
from crrd.core.rollout.phases import End, Stage
from crrd.core.rollout.requests import GivenImage, RunRequest
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import Run
from crrd.core.rollout.skips import barred
from crrd.core.rollout.state import Member, World
from crrd.core.rollout.waits import NO_WAIT, Skip, Wait
from crrd.kubelet.restart_rules import RestartPolicy, keeps_sidecars


class NewImage(Kind):
    """See Kind."""

    takes_new_pods: ClassVar[bool] = True  # a new pod has the present configuration, but maybe another image
    leaves_objects: ClassVar[bool] = True

    def __init__(self, world: World, run: Run) -> None:
        super().__init__(world, run)
        self.facts = ImageRun.of(world, run)
        change, template = self.facts.change, self.facts.template
        self.rescues, self.needs_workload, self.holder = bool(change.undoes), change.adopt, template.holder
        self.holds_rollout = bool(template.holder) or (template.paused and change.follow)

    def skip(self, member: Member, container: PodContainer, failed: RunRequest | None) -> Skip | None:
        """See Kind. One that crashes or has never run gets the image, too, because it may help."""
        minor = self.minor_of(member)
        why_not = barred(member.pod, container, minor, allow_pod_restart=self.run.options.allow_pod_restart)
        if self.facts.image_of(member) == self.facts.image:
            return Skip.HAS_IMAGE
        if container.kind is ContainerKind.SIDECAR and keeps_sidecars(minor):
            return Skip.KEPT
        if why_not is not Skip.NEVER and container.policy(minor) is not RestartPolicy.ALWAYS:
            return Skip.NOT_ALWAYS
        return Skip.NOT_RUNNING if why_not is not Skip.NEVER and self.facts.is_starting(member) else why_not

    def rows(self, rows: tuple[Row, ...], now: datetime) -> tuple[Row, ...]:
        """See Kind."""
        return image_rows(self, self.facts, rows, now)

    @property
    def given(self) -> Iterable[GivenImage]:
        """See Kind."""
        return self.facts.given

    def over_budget(
        self, rows: Iterable[Row], now: datetime, exceeds: Callable[[Member], bool], *, held: bool
    ) -> Collection[str]:
        """See Kind."""
        return pods_over_budget(rows, now, exceeds, held=held)

    def prepare(self, rows: tuple[Row, ...], choice: Choice, now: datetime) -> Prepared:
        """See Kind. Pods start once their node has the image."""
        return prepare_pods(self.facts, rows, choice)

    @cached_property
    def obstacle(self) -> str:
        """See Kind."""
        if not self.facts.template.uid:
            return ""
        return released_meanwhile(self.facts) if self.facts.change.follow else changed_by_others(self.facts)

    def last_step(self, rows: tuple[Row, ...], end: End | None) -> LastStep | None:
        """See Kind. A run that is aborted in the middle of its adoption finishes it, because that replaces no pod."""
        begins = end is End.DONE and all(row.stage is not Stage.FAILED for row in rows)
        ends_hold = end is End.ABORTED and self.facts.is_marked
        if not self.facts.change.adopt or not (begins or ends_hold):
            return None
        adoption = next_adoption(self.facts)
        if adoption.done:
            return None
        why = next(filter(None, (replaces_pods(self.facts, write) for write in adoption.writes)), "")
        if why:  # a mistake of crrd
            problem = f"a write was not sent, because a controller would replace pods after it: {why}; report this"
            by_hand = f", and finish by hand: {self.facts.release_command}" if self.facts.is_held else ""
            return LastStep(problem=f"{problem}{by_hand}")
        return LastStep(adoption.phase, ImageActions(adoption=adoption), adoption.wait, adoption.problem)

    def actions_before_end(self, rows: tuple[Row, ...]) -> Actions:
        """See Kind."""
        return ImageActions(stop=failed_and_open(rows))

    def left_out(self, rows: Iterable[Row]) -> list[str]:
        """See Kind. These pods cannot get the image now, for example because they are starting."""
        odd = (row for row in rows if row.is_odd and row.skip is not Skip.NO_CONTAINER)
        return [f"{row.pod}: {row.wait.why}" for row in odd]

    def wait_before_end(self, rows: tuple[Row, ...], end: End) -> Wait:
        """See Kind. Pods that are just being recreated belong to the run.

        A template that was adopted gives it to them, and they were waited for.
        """
        there = self.world.workload
        if there is None or there.deleting or not (end is End.DONE or end.incomplete):
            return NO_WAIT
        adopted = (
            end is End.DONE
            and self.facts.change.adopt
            and not (self.facts.change.follow or self.facts.change.of_template)
        )
        count = len(self.facts.members)
        return Wait(self.facts.starting) if adopted or count >= there.desired else self.wait_for_pods(count)

    def completed(self) -> Run:
        """See Kind."""
        return self.facts.with_min_ready()

    def shown(self) -> tuple[World, Run]:
        """See Kind."""
        change = replace(self.facts.change, pulls=False, mode=TemplateMode.KEEP)
        return self.world, self.facts.with_change(change).run

    def planned_writes(self) -> tuple[str, ...]:
        """See Kind."""
        return planned_writes(self.facts)

    def report(self) -> str:
        """See Kind."""
        return image_report(self, self.facts)
