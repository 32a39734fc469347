"""A request with an image, and a daemon that is killed at any moment of it: it stops nothing, and says how it ended."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from crrd.core.api.pod import Pod
from crrd.core.api.reasons import Reason
from crrd.core.api.types import RecreateState, Request, RequestedContainer, StatePhase
from crrd.core.recreate.observation import Instance
from crrd.kubelet.image_hash import hash_of_name_and_image
from crrd.kubelet.runtime_status import ContainerState
from tests.support.standins import MemoryNode
from tests.support.worlds import pin, request

pytestmark = pytest.mark.virtual_time

OLD, NEW, DIGEST = "app:1", "app:2", f"app@sha256:{'a' * 64}"


@dataclass(frozen=True)
class Versions:
    """What runtime and kubelet say of an instance's image."""

    kubelet: int
    tells_image: bool

    def hash(self, image: str) -> str:
        """Return kubelet's hash. That of an old kubelet is one of the whole container."""
        return hash_of_name_and_image("app", image) if self.kubelet >= 31 else f"old-{image}"


VERSIONS = {"by name": Versions(36, True), "by hash": Versions(36, False), "by an old hash": Versions(30, False)}


class ImageNode(MemoryNode):
    """The pod's container can get another image; kubelet replaces it when `kubelet_acts` is called."""

    def __init__(self, versions: Versions) -> None:
        super().__init__()
        self.versions, self.kubelet_minor, self.image, self.has_container = versions, versions.kubelet, OLD, True
        self.known["old"] = self._of_image(self.known["old"])
        self.images = {OLD, NEW, DIGEST}

    def _of_image(self, made: Instance) -> Instance:
        name = self.image if self.versions.tells_image else ""
        return replace(made, image=name, hash=self.versions.hash(self.image))

    def view(self) -> Pod:
        shown = super().view()
        changed = {name: replace(each, image=self.image) for name, each in shown.containers.items()}
        return replace(shown, containers=changed if self.has_container else {})

    def set_image(self, image: str) -> None:
        """Somebody changes the pod."""
        self.image = image
        self.report()

    @property
    def current(self) -> Instance:
        return max(self.known.values(), key=lambda each: each.created_at)

    def ends(self) -> None:
        """The current instance ends: kubelet stops it, or it crashes."""
        self.known[self.current.id] = replace(self.current, state=ContainerState.EXITED)

    def starts(self) -> None:
        """Kubelet starts the next instance, and reports it later."""
        made = len(self.known)
        self._create("app", f"app-{made}")
        self.known[f"app-{made}"] = self._of_image(self.known[f"app-{made}"])

    def collect(self) -> None:
        """Kubelet removes all ended instances."""
        self.known = {each.id: each for each in self.known.values() if each.state is not ContainerState.EXITED}

    @property
    def state(self) -> RecreateState:
        return self.status().state("app")

    async def settled(self) -> None:
        """Wait until the daemon has seen everything."""
        await asyncio.sleep(1.5)


def asked(image: str = NEW) -> Request:
    return request(containers=(RequestedContainer("app", pin("old"), image),))


Step = Callable[[ImageNode], None]


def gets(image: str = NEW) -> Step:
    return lambda node: node.set_image(image)


def ends(node: ImageNode) -> None:
    node.ends()


def starts(node: ImageNode) -> None:
    node.starts()


def report(node: ImageNode) -> None:
    node.report()


def collect(node: ImageNode) -> None:
    node.collect()


def loses_container(node: ImageNode) -> None:
    node.has_container = False
    node.report()


REPLACED = [ends, starts, report]
STORIES: dict[str, tuple[str, list[Step], Reason]] = {
    "replaced": (NEW, [gets(), *REPLACED], Reason.NONE),
    "with a digest": (DIGEST, [gets(DIGEST), *REPLACED], Reason.NONE),
    "crashed before": (NEW, [ends, starts, report, gets(), *REPLACED], Reason.NONE),
    "put back and given again": (NEW, [gets(), gets(OLD), gets(), *REPLACED], Reason.NONE),
    "replaced, put back and given again": (NEW, [gets(), *REPLACED[:2], gets(OLD), *REPLACED[:2], gets(), *REPLACED],
                                           Reason.NONE),
    "ended once, and removed": (NEW, [gets(), *REPLACED[:2], ends, starts, collect, report], Reason.NONE),
    "a container that leaves its pod": (NEW, [gets(), ends, loses_container], Reason.CONTAINER_NOT_FOUND),
}  # fmt: skip


@pytest.mark.parametrize("versions", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.parametrize("story", STORIES)
async def test_a_daemon_that_is_killed_in_each_state(story: str, versions: Versions) -> None:
    image, steps, reason = STORIES[story]
    for moment in range(-1, len(steps) + 1):
        node = ImageNode(versions)
        async with node:
            node.post(asked(image))
            for number, step in enumerate((lambda _: None, *steps)):
                await node.settled()
                if number == moment:
                    await node.kill()
                    await node.settled()
                step(node)
            status = await node.completed()
            phase = StatePhase.SUCCEEDED if reason is Reason.NONE else StatePhase.FAILED
            assert (status.states[0].phase, status.states[0].reason) == (phase, reason), moment
            assert (node.stops, node.hooks_run) == ([], [])


@pytest.mark.parametrize("versions", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.parametrize("killed", [True, False])
async def test_a_crash_loop_is_no_success(versions: Versions, *, killed: bool) -> None:
    node = ImageNode(versions)
    async with node:
        node.post(asked())
        await node.settled()
        node.set_image(NEW)
        for _ in range(4):
            node.ends()
            node.report()
            await node.settled()
            node.starts()
            if killed:
                await node.kill()
        node.ends()
        node.report()
        await asyncio.sleep(30)
        assert node.state.phase is StatePhase.RECREATING
        assert node.state.reason is Reason.NOT_STARTED_AGAIN


@pytest.mark.parametrize("versions", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.parametrize("killed", [True, False])
async def test_an_image_that_was_put_back_is_waited_for(versions: Versions, *, killed: bool) -> None:
    node = ImageNode(versions)
    async with node:
        node.post(asked())
        for step in (gets(), *REPLACED[:2], gets(OLD), *REPLACED):
            step(node)
        if killed:
            await node.kill()
        await asyncio.sleep(30)
        assert node.state.phase in (StatePhase.PENDING, StatePhase.RECREATING)
        assert node.state.reason is Reason.IMAGE_PRESENT
