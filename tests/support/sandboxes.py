"""The sandboxes of a node in memory: a second one that is ready makes its kubelet restart the whole pod."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from crrd.core.recreate.observation import Instance, Sandbox
from crrd.kubelet.runtime_status import ContainerState
from crrd.lib.errors import RuntimeCallError
from tests.support.worlds import POD_UID, RUNTIME


@dataclass
class Sandboxes:
    """The sandboxes of pod default/web, and what kubelet does when there are two."""

    instances: Callable[[], dict[str, Instance]]
    create: Callable[[str], None]  # Starts the next instance of a container
    report: Callable[[], None]  # The watch reports the pod
    known: dict[str, Sandbox] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)  # UIDs of the requests for which RunPodSandbox was called
    removed: list[str] = field(default_factory=list)
    hooks: list[str] = field(default_factory=list)  # Instances whose preStop hook kubelet has run
    seconds: float = 0.2  # Duration of RunPodSandbox
    hook_seconds: float = 1.0
    errors: list[Exception] = field(default_factory=list)  # Of the next calls, which make nothing
    lost_answers: int = 0  # This many of the next calls succeed, but their answers are lost
    restarts: int = 0  # Of the whole pod
    restarting: bool = False
    kubelet_up: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.kubelet_up.set()
        self.add(0)

    def add(self, attempt: int, request_uid: str = "") -> Sandbox:
        """Create a sandbox."""
        made = Sandbox(
            f"sandbox-{attempt}", RUNTIME, "default", "web", POD_UID, True, time.time_ns(), attempt, request_uid
        )
        self.known[made.id] = made
        return made

    @property
    def ready(self) -> list[Sandbox]:
        """Those that are ready."""
        return [each for each in self.known.values() if each.ready]

    @property
    def newest(self) -> Sandbox:
        """The latest one, whoever made it."""
        return max(self.known.values(), key=lambda each: each.attempt)

    @property
    def changed(self) -> bool:
        """Whether kubelet restarts the pod (its PodSandboxChanged)."""
        return len(self.ready) != 1 or not self.newest.ready

    async def run(self, first: Sandbox, request_uid: str) -> None:
        """Make the next sandbox. The runtime refuses a number that exists."""
        self.asked.append(request_uid)
        await asyncio.sleep(self.seconds)
        if self.errors:
            raise self.errors.pop(0)
        if any(each.attempt == first.attempt + 1 for each in self.known.values()):
            raise RuntimeCallError("the name of the sandbox is reserved", code="UNKNOWN")
        self.add(first.attempt + 1, request_uid)
        if self.lost_answers:
            self.lost_answers -= 1
            raise RuntimeCallError("no answer in time", code="DEADLINE_EXCEEDED")

    async def remove(self, sandbox: Sandbox) -> None:
        """Remove a sandbox."""
        await asyncio.sleep(self.seconds)
        if self.known.pop(sandbox.id, None) is not None:
            self.removed.append(sandbox.id)

    def lose(self) -> None:
        """The process of every sandbox dies."""
        self.known = {each.id: replace(each, ready=False) for each in self.known.values()}

    def collect(self) -> None:
        """Kubelet removes those that are not ready and have no containers, except the latest."""
        used = {each.sandbox for each in self.instances().values()} | {self.newest.id}
        self.known = {each.id: each for each in self.known.values() if each.ready or each.id in used}

    async def sync(self, seconds: float) -> None:
        """Kubelet looks at the pod after this time, and restarts it if its sandbox has changed."""
        await asyncio.sleep(seconds)
        await self.kubelet_up.wait()
        if not self.changed or self.restarting:
            return
        self.restarting = True
        self.restarts += 1
        running = [each for each in self.instances().values() if each.state is ContainerState.RUNNING]
        self.hooks += [each.id for each in running]
        await asyncio.sleep(self.hook_seconds)
        for each in running:
            self.instances()[each.id] = replace(each, state=ContainerState.EXITED)
        self.lose()
        self.report()
        await asyncio.sleep(seconds)
        self.add(self.newest.attempt + 1)
        for name in dict.fromkeys(each.name for each in self.instances().values()):
            self.create(name)
        self.restarting = False
        self.report()
