"""The pod of PodWorld with an init container, to which somebody gives another image, and one request for that.

See `tests.support.pod_world`. What must hold is asserted at the moment at which it could be broken.
"""

from dataclasses import replace

from crrd.core.api.pod import ContainerKind, PodContainer
from crrd.core.api.reasons import Reason
from crrd.core.api.types import RequestedContainer, StatePhase, Strategy
from crrd.core.recreate.actions import WriteStatus
from crrd.core.recreate.init_image import SEEN_SECONDS
from crrd.core.recreate.observation import Observation
from tests.support.pod_world import PodWorld
from tests.support.simulation import NAMES
from tests.support.worlds import exited

OLD, NEW, INIT = "render:1", "render:2", "init"


class InitWorld(PodWorld):
    """One pod, and one request for another image of its init container."""

    def __init__(self, *, hooks: bool, fails: bool = False) -> None:
        """`fails`: whether the init container fails with its present image, so that the pod is not ready."""
        self.spec = self.seen = OLD  # The image in the API, and the one that kubelet has seen
        self.changed_at = 0.0  # When the pod got the image
        self.bad = {OLD} if fails else set()
        self.runs: list[str] = []  # Images of the init container, in order
        super().__init__([(Strategy(), True)], hooks=hooks, contexts=True)
        self.run_init()
        self.kubelet_reports(INIT)
        context = None if fails else self.newest(INIT).pin
        request = self.requests["r0"]
        others = tuple(replace(each, context=None) if fails else each for each in request.containers)
        self.requests["r0"] = replace(request, containers=(RequestedContainer(INIT, context, NEW), *others))

    @property
    def failing(self) -> bool:
        """Whether the init container has failed, so that kubelet tries it again and starts nothing else."""
        newest = max((each for each in self.instances.values() if each.name == INIT), key=lambda each: each.created_at)
        return newest.sandbox == self.latest.id and self.codes[newest.id] != 0

    # Kubelet, and somebody who sets the image.

    def run_init(self) -> bool:
        """Kubelet runs the init container in the latest sandbox. Return whether the other containers start after it."""
        self.made += 1
        self.runs.append(self.seen)
        made = exited(f"{INIT}{self.made}", INIT, created_at=self.made, image=self.seen, sandbox=self.latest.id)
        self.instances[made.id], self.codes[made.id] = made, int(self.seen in self.bad)
        if self.failing:
            fresh = [each for each in self.running() if each.sandbox == self.latest.id]
            self.instances = {key: each for key, each in self.instances.items() if each not in fresh}
        return not self.failing

    def kubelet_stops(self, which: int) -> None:
        """See PodWorld. The init container runs first in the new sandbox."""
        before = self.restarts
        super().kubelet_stops(which)
        if self.restarts > before:
            self.run_init()

    def kubelet_tries_again(self) -> None:
        """Kubelet runs the init container again if it has failed."""
        if self.killing is None and not self.changed and self.failing:
            for name in NAMES if self.run_init() else ():
                self.kubelet_creates(name)

    def kubelet_restarts(self, name: str) -> None:
        """See PodWorld."""
        if not self.failing:
            super().kubelet_restarts(name)

    def kubelet_reports(self, name: str) -> None:
        """See SmallWorld. A container that has never started in this pod has no instance."""
        if not any(each.name == name for each in self.instances.values()):
            self.statuses[name] = PodContainer(name)
            return
        super().kubelet_reports(name)
        if name == INIT:
            shown = replace(self.statuses[INIT], kind=ContainerKind.INIT, image=self.spec)
            trouble = "CrashLoopBackOff" if self.failing else ""
            self.statuses[INIT] = replace(shown, ready=not self.failing, waiting_reason=trouble)

    def kubelet_sees(self) -> None:
        """Kubelet's watch reports the image."""
        self.seen = self.spec

    def somebody_sets_it(self) -> None:
        """The client of the request gives the pod the image, once the node has it."""
        state = self.requests["r0"].status.state(INIT) if "r0" in self.requests else None
        if self.spec == OLD and state is not None and state.reason is Reason.IMAGE_PRESENT:
            self.spec, self.changed_at = NEW, self.now
            self.statuses[INIT] = replace(self.statuses[INIT], image=NEW)

    def passes(self, seconds: float) -> None:
        """Time passes. Kubelet's watch is not later than the daemon supposes."""
        self.now += seconds
        if self.now >= self.changed_at + SEEN_SECONDS:
            self.kubelet_sees()

    # The daemon.

    def observe(self) -> Observation:
        """See PodWorld. The node has the image."""
        seen = super().observe()
        return replace(seen, pod=replace(seen.pod, images={NEW: True}, pod_at=self.changed_at))

    def make(self, uid: str) -> str:
        """See PodWorld. Only a pod that has the image, and has not run it, restarts."""
        error = super().make(uid)
        if not error:
            assert self.spec == NEW, "a restart without the image"
            assert NEW not in self.runs, "a restart too many"
        return error

    def write(self, action: WriteStatus) -> None:
        """See SmallWorld."""
        if action.status.state(INIT).phase is StatePhase.SUCCEEDED:
            assert NEW in self.runs, "succeeded without the image"
        super().write(action)

    def turn(self) -> None:
        """See PodWorld."""
        self.somebody_sets_it()
        self.passes(0.0)
        self.kubelet_tries_again()
        self.kubelet_reports(INIT)
        super().turn()

    def check_success(self) -> None:
        """The init container has run with the image, and all others run after it. Nothing restarts any more."""
        for _ in range(9):
            self.turn()
            for name in NAMES:
                self.kubelet_restarts(name)
        assert self.runs[-1] == NEW
        assert [each.id for each in self.sandboxes.values() if each.ready] == [self.latest.id]
        assert {each.name for each in self.running() if each.sandbox == self.latest.id} == set(NAMES)
        (request,) = self.requests.values()
        assert {state.phase for state in request.status.states} == {StatePhase.SUCCEEDED}, request.status
