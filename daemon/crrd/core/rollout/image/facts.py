"""One run with an image, in one world: all that its decisions are based on, and nothing of it can be missing."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from crrd.core.api.pod import ContainerKind, PodContainer
from crrd.core.rollout.change import ImageChange
from crrd.core.rollout.image.pull import PullPod
from crrd.core.rollout.image.reasons import AdoptionWait
from crrd.core.rollout.image.state import ImageState
from crrd.core.rollout.image.template import LABEL_ADOPTING, Template
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.requests import GivenImage
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import Run
from crrd.core.rollout.state import Member, World
from crrd.kubelet.waiting import ORDINARY

UNPROBED_SECONDS = 10
"""How long a pod must be ready by default, if its container gets another image and has no readiness probe."""


@dataclass(frozen=True)
class ImageRun:
    """A run, and what is known of pull pods and template."""

    world: World
    run: Run
    state: ImageState

    @classmethod
    def of(cls, world: World, run: Run) -> Self:
        """Return a run with an image in a world."""
        return cls(world, run, world.extra if isinstance(world.extra, ImageState) else ImageState())

    def with_change(self, change: ImageChange) -> "ImageRun":
        """Return the run with another change, while it is being made."""
        return replace(self, run=replace(self.run, options=replace(self.run.options, image=change)))

    @property
    def change(self) -> ImageChange:
        """What the run changes."""
        assert self.run.options.image is not None  # noqa: S101 - the caller has a run with an image
        return self.run.options.image

    @property
    def image(self) -> str:
        """The image that the pods get."""
        return self.change.image

    @property
    def container(self) -> str:
        """The only container of the run."""
        return self.run.options.containers[0]

    @property
    def target(self) -> str:
        """The target, for messages."""
        return self.run.target.words

    @property
    def template(self) -> Template:
        """The workload's template."""
        return self.state.template

    @property
    def release_command(self) -> str:
        """How to have the controller roll out the template as it is, with new pods."""
        target, where, template = self.target, f"-n {self.run.namespace}", self.template
        if template.kind == "Deployment":
            return f"to roll it out with new pods: kubectl rollout resume {target} {where}"
        if not template.held:
            return f"to let it go: kubectl label {target} {where} {LABEL_ADOPTING}-"
        field = "type" if template.kind == "DaemonSet" else "rollingUpdate.partition"
        return f"to roll it out with new pods, set its spec.updateStrategy.{field} back to {template.held}"

    @property
    def is_held(self) -> bool:
        """Whether the run holds the controller of its workload."""
        return self.template.holder == self.run.name

    @property
    def has_left_label(self) -> bool:
        """Whether somebody else has released the controller that the run held. A later pause is not the run's hold."""
        return self.template.left_by == self.run.name

    @property
    def is_marked(self) -> bool:
        """Whether the workload has the label of the run: it is held, or somebody else has released it since."""
        return self.is_held or self.has_left_label

    @property
    def is_aborted(self) -> bool:
        """Whether the run was aborted."""
        return self.run.name in self.world.aborted

    @cached_property
    def members(self) -> list[Member]:
        """The workload's active pods."""
        return [each for each in self.world.members if each.counts]

    @cached_property
    def examples(self) -> Collection[Member]:
        """Pods like those that the run begins with. If it has none yet, one that is being replaced is like the next."""
        return self.members or self.world.members

    @cached_property
    def pulls(self) -> Mapping[str, PullPod]:
        """The run's pull pod of each node."""
        return {each.node: each for each in self._own_pulls if each.image in ("", self.image)}

    @property
    def stray_pulls(self) -> Iterator[PullPod]:
        """Pull pods of another image, which an earlier run of the same name has left."""
        return (each for each in self._own_pulls if each.image not in ("", self.image))

    @property
    def _own_pulls(self) -> Iterator[PullPod]:
        return (each for each in self.state.pulls if each.run == self.run.name)

    def container_of(self, member: Member | None) -> PodContainer | None:
        """Return the container in a pod, None if it is not there."""
        return member.pod.containers.get(self.container) if member is not None else None

    def image_of(self, member: Member | None) -> str:
        """Return the image that the pod's spec has, "" if it does not have the container.

        Restarts by a patch give it other names. So it is by the first name that run, template, revisions or other pods
        have for the same image. A webhook may pin the tag of a template, in pods that follow it, and in those that were
        created since the run began. Other pods have the image of the run only by its own name.
        """
        found = self.container_of(member)
        if member is None or found is None:
            return ""
        of_template = self.change.follow or member.created_after(self.run.started)
        names = (
            *filter(found.has_image, self._names),
            *(filter(found.pins, self._names) if of_template else ()),
            *filter(found.has_image, self._names_in_pods),
        )
        return next(iter(names), found.plain_image)

    @cached_property
    def _names(self) -> Sequence[str]:
        """The names by which images are known to the run."""
        change = self.change
        contents = self.template.content, *(each.content for each in self.state.own_revisions)
        known = (change.image, change.template_image, *change.before, *(each.image for each in contents))
        return tuple(filter(None, dict.fromkeys((*known, *self._given_by_runs))))

    @cached_property
    def _given_by_runs(self) -> Sequence[str]:
        """Each of them means only itself, also if it looks like a tag that a webhook has pinned."""
        return [each.image for request in self.world.requests for each in request.given]

    @cached_property
    def _names_in_pods(self) -> Sequence[str]:
        """The names of images in pods, the plain ones first."""
        there = filter(None, map(self.container_of, self.examples))
        return sorted({each.plain_image for each in there}, key=lambda each: ("@" in each, each))

    def is_foreign(self, member: Member) -> bool:
        """Whether somebody has given the container an image since the run began. One that a webhook pins is known."""
        change, found = self.change, self.container_of(member)
        known = change.image, change.template_image, *change.before
        return found is not None and found.image_among((*known, *self._given_by_runs)) not in known

    def has_image(self, row: Row) -> bool:
        """Whether the pod's spec has the image."""
        return self.image_of(row.member) == self.image

    @property
    def given(self) -> Iterator[GivenImage]:
        """What this process has given to pods."""
        return (GivenImage(uid, self.container, self.image, old) for uid, old in self.state.sent.items())

    def has_run(self, member: Member | None) -> bool:
        """Whether the container was started since it got its image. Kubelet sees to that, except for init containers.

        The requests of runs say it, as long as they exist, or else the times in the pod.
        """
        found = self.container_of(member)
        if member is None or found is None or found.kind is not ContainerKind.INIT:
            return True
        uid, name = member.pod.uid, found.name
        if (uid, name) in self._unreplaced:
            return False
        changed, started = member.image_changes.get(name), member.started(name)
        times = changed is None or (started is not None and started > changed)
        return times or any((uid, name) == (each.pod_uid, each.container) for each in self._done)

    @cached_property
    def _unreplaced(self) -> Collection[tuple[str, str]]:
        return self.world.unreplaced(self.given)

    @cached_property
    def _done(self) -> Collection[GivenImage]:
        asked = (each for request in self.world.requests if request.succeeded for each in request.given)
        return [each for each in asked if each.image == self.image]

    def is_left(self, row: Row) -> bool:
        """Whether the pod still has to get the image, or to restart with it."""
        return not (self.has_image(row) and self.has_run(row.member))

    def lacks_image(self, row: Row) -> bool:
        """Whether the container has another image. It may have been removed from the pod."""
        return self.image_of(row.member) not in ("", self.image)

    def needs_step(self, row: Row) -> bool:
        """Whether the pod has no image yet, and a request that may keep it unready until its deadline.

        A request that is just being created may exist.
        """
        if row.request is None:
            return row.stage is Stage.REQUESTED
        return row.stage.under_way and row.has_open_request and not self.has_image(row)

    def with_min_ready(self) -> Run:
        """Return the run with its default of `Options.min_ready`.

        Without a readiness probe, a container is ready at once, and may crash a moment later because of its image. An
        init container is done before its pod is ready.
        """
        run, containers = self.run, filter(None, map(self.container_of, self.examples))
        unprobed = any(each.kind.recreatable and not each.readiness_probe for each in containers)
        if run.options.min_ready is not None or self.world.min_ready(run) or not unprobed:
            return run
        return replace(run, options=replace(run.options, min_ready=UNPROBED_SECONDS))

    def is_starting(self, member: Member) -> bool:
        """Whether the pod has just been created, so that its container is about to start, and gets the image then.

        If kubelet says that it cannot start it, or has had the time since before the run, it gets the image at once.
        """
        container = self.container_of(member)
        if container is None or container.container_id:
            return False
        is_new = member.created_after(self.run.started) and container.waiting_reason in ORDINARY
        return is_new or not member.pod.node_name

    @cached_property
    def starting(self) -> str:
        """What to wait for if a pod has just been created, or ""."""
        pods = (each for each in self.members if self.image_of(each) not in ("", self.image))
        found = next((each.pod for each in pods if self.is_starting(each)), None)
        return AdoptionWait.STARTING.say(container=self.container, pod=found.name) if found is not None else ""
