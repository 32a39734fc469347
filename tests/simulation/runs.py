"""The runs of `kubectl recreate --image` on the shop's workload: the real command, killed and resumed.

Each process is a `Life`, like the daemon's: its calls go over the same network. How a run has ended is checked when its
process ends: the state is the one that was asked for, or the last line says what is not.
"""

import argparse
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from crrd.cli import recreate
from crrd.core.rollout.image.pull import LABEL_PULL
from crrd.core.rollout.run import LABEL_RUN, Run
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError
from crrd.rollout.session import Session
from crrd.rollout.text import TextLines
from tests.simulation.daemon import Credentials, Life
from tests.simulation.images import NEW, OLD, OTHER
from tests.simulation.network import Sent
from tests.simulation.schedule import SHOP
from tests.simulation.schedule import Shop as Shape
from tests.simulation.store import Object

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from tests.simulation.world import SimulatedWorld

RUN_SECONDS = 300  # Time limit of each process, after which a later one continues
AGAIN_SECONDS = 30.0  # From the end of a run that is to be continued until the next process
TRIES = 5  # Processes that continue a run after all faults
SETTLES = 30.0  # Seconds until the last pod's state is looked at


class Process(Life):
    """One process of the command."""

    on_node = False
    judged = False
    shops = True

    def __init__(self, world: "SimulatedWorld", number: int, words: "Sequence[str]") -> None:
        super().__init__(world, number)
        self.words = words
        self.code: int | None = None
        self.lines: list[str] = []
        self.traps: list[list[Any]] = []  # How many writes are left, and whether to kill before or after the next one

    def trapped(self, sent: Sent, when: str) -> bool:
        """See Life."""
        if sent.method == "GET" or "dryRun" in sent.query or "accessreviews" in sent.path or self.dead:
            return False
        for trap in self.traps:
            if trap[1] == when:
                trap[0] -= 1
                if trap[0] == 0:
                    self.world.say("fault", f"the run is killed {when} its {sent.method}")
                    self.world.shop.kill(trap[2])
                    return True
        return False

    def logged(self, method: str, event: "MutableMapping[str, Any]") -> None:
        """See Life."""
        self.world.say("run", str(event))

    async def product(self) -> None:
        """See Life."""
        parser = argparse.ArgumentParser("kubectl recreate")
        recreate.configure(parser)
        args = parser.parse_args(recreate.arranged([*self.words, "-n", SHOP]))
        clock = ServerClock()
        async with KubeClient(Credentials(lambda: False), on_date=clock.observe) as client:
            session = Session(client, clock, SHOP, _Lines(self), recreate.requested(args), _unexplained)
            try:
                self.code = await args.work(session)
            except (ApiRefusedError, ApiUnavailableError, ConfigurationError) as error:
                self.lines.append(f"{type(error).__name__}: {error}")
                self.code = 2 if isinstance(error, ConfigurationError) else 1
        self.world.say("run", f"exit code {self.code}: {self.lines[-1] if self.lines else ''}")


class _Lines(TextLines):
    """The command's output."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def begin(self, run: Run, message: str) -> None:
        self._process.world.shop.named(run.name)
        super().begin(run, message)

    def print_line(self, message: str, details: "Sequence[str]" = ()) -> None:
        self._process.lines.append(message)
        self._process.world.say("run", "; ".join((message, *details)))

    async def ask(self, question: str) -> bool:
        self.print_line(question)
        return False


async def _unexplained(client: KubeClient, clock: ServerClock, request: Mapping[str, Any], flags: str) -> str:
    return ""


class Runs:
    """The runs of the shop, one after the other: the one that sets the image, and perhaps its undo."""

    pods: Callable[[], list[Object]]
    requests: Callable[[], list[Object]]
    pull_pods: Callable[[], list[Object]]
    is_held: Callable[[], bool]
    template_image: Callable[[], str]
    wrong_pods: Callable[[str], list[str]]
    running_wrong: Callable[[], list[str]]
    played: Any

    def __init__(self, world: "SimulatedWorld") -> None:
        self._world = world
        self.shop: Shape | None = world.setup.shop
        self.process: Process | None = None  # The one that works, if there is one
        self.ended: list[Process] = []  # All whose end was seen
        self._number = 0
        self._begun = False
        self._run = ""  # Name of the present run, once it has begun
        self._undoes = False  # Whether the present run is the undo
        self._tries = 0
        self._over = world.setup.shop is None  # Whether no process follows
        self._aborted = False
        self._meddled: list[str] = []  # What other writers have done that the run must not fight
        self._traps: list[list[Any]] = []

    @property
    def by_run(self) -> bool:
        """Whether a call of a run is being carried out."""
        writer = self._world.api.writer
        return writer is not None and writer.shops

    def meddled(self, what: str) -> None:
        """Note that somebody has changed what the run works on."""
        self._meddled.append(what)

    def named(self, name: str) -> None:
        """A run has begun."""
        self._run = name

    # Processes.

    def _do_run(self, _: Mapping[str, Any]) -> bool:
        """The user starts the run."""
        self._begun = True
        self.played.rollouts.clear()  # without that of the workload's creation
        self._spawn()
        return True

    def _do_run_kill(self, about: Mapping[str, Any]) -> bool:
        """The run's process is killed at one of its next writes."""
        self._traps.append([about["nth"], about["when"], about["seconds"]])
        if self.process is not None:
            self.process.traps.append(self._traps[-1])
        return True

    def _do_abort(self, _: Mapping[str, Any]) -> bool:
        """Another process aborts the run."""
        if not self._asked():
            return False
        self._aborted = True
        self._start(["abort", self._run])
        return True

    def _asked(self) -> bool:
        """Whether a request of the present run exists."""
        names = [each["metadata"]["labels"].get(LABEL_RUN) for each in self.requests()]
        return bool(self._run) and self._run in names

    def _spawn(self) -> None:
        """Start the process that the present run needs."""
        if self.process is not None or self._over:
            return
        if self._asked():
            words = ["resume", self._run, "--yes", "--retry-failed", "--timeout", f"{RUN_SECONDS}s"]
        elif self._undoes:
            words = ["undo", self._first, "--yes", "--timeout", f"{RUN_SECONDS}s"]
        else:
            words = self._command()
        self.process = self._start(words)
        self.process.traps = self._traps

    def _command(self) -> list[str]:
        shop = self.shop
        assert shop is not None
        words = [f"{shop.kind.lower()}/web", "-c", "proxy", "--image", NEW, "--timeout", f"{RUN_SECONDS}s"]
        words += ["--template", "adopt" if shop.adopt else "keep", "--max-unavailable", str(shop.max_unavailable)]
        words += ["--pod-timeout", "120s", "--min-ready", f"{shop.min_ready}s"]
        words += ["--unready-grace", f"{shop.grace}s"] if shop.grace is not None else []
        words += ["--partition", str(shop.partition)] if shop.partition else []
        return words

    def _start(self, words: list[str]) -> Process:
        self._number += 1
        self._world.say("user", f"kubectl recreate {' '.join(words)}")
        made = Process(self._world, self._number, words)
        made.run().add_done_callback(lambda task: self._ended(made, task))
        return made

    def kill(self, away: float) -> None:
        """kill -9 of the run's process. Another one continues after a while."""
        if (process := self.process) is None:
            return
        self._world.faults["run_kill"] += 1
        self.process = None
        process.end()
        self._world.loop.call_later(away, self._spawn)

    def _ended(self, process: Process, task: Any) -> None:
        if process.dead:
            return
        process.dead = True
        self._world.api.forget(process)
        if task.cancelled() or task.exception() is not None:
            self._world.broken(f"the run did not foresee this: {task.exception()!r}")
            return
        self.ended.append(process)
        if process is not self.process:
            return
        self.process = None
        self._check_end(process)
        if process.code == 0 and process.lines[-1].startswith("paused"):
            self._world.loop.call_later(1.0, self._spawn)
        elif process.code == 0:
            self._next()

    def _next(self) -> None:
        """The present run is done."""
        unknown = not self._asked()  # it has restarted nothing, or a user has deleted its requests
        if self._undoes or self.shop is None or not self.shop.undo or self._aborted or unknown:
            self._over = True
            return
        self._undoes, self._first, self._run = True, self._run, ""
        self._world.loop.call_later(5.0, self._spawn)

    # The end.

    @property
    def finished(self) -> bool:
        """Whether no run is left. All faults are over: a run that has not ended well is continued."""
        if self._over:
            return True
        if not self._begun:  # shrunk away
            return True
        if self.process is None:
            if self._aborted or self._tries >= TRIES:
                self._over = True
                self._world.loop.call_later(0.0, self._look_at_rest)
                return False
            self._tries += 1
            self._spawn()
        return False

    def _look_at_rest(self) -> None:
        """No process could bring the run to an end. That needs a reason."""
        shop = self.shop
        excuse = self._aborted or self._meddled or (shop is not None and (shop.missing or self._missed_webhook()))
        if not excuse:
            last = self.ended[-1].lines[-1] if self.ended and self.ended[-1].lines else ""
            self._world.broken(f"the run does not get on, and nobody has meddled: {last}")

    def _missed_webhook(self) -> bool:
        """Whether a webhook rewrites images, which a run notices by its pods, and it had none at its start."""
        lines = [line for each in self.ended for line in each.lines]
        return self.shop is not None and self.shop.rewrites and any(", 0 pods, at most" in line for line in lines)

    def _check_end(self, process: Process) -> None:
        """The state is the one that was asked for, or it is reported."""
        shop, last = self.shop, process.lines[-1] if process.lines else ""
        assert shop is not None
        if not last:
            self._world.broken(f"the run ends with {process.code} and says nothing")
        if process.code != 0 or last.startswith("paused"):
            return
        wanted = OLD if self._undoes else NEW
        if self.is_held():
            self._world.broken("the run is done, and its workload is still held")
        if self._run in [each["metadata"]["labels"][LABEL_PULL] for each in self.pull_pods()]:
            self._world.broken("the run is done, and has left pull pods")
        if self._meddled and (said := re.search(r"(\d+) of (\d+) pods have", last)) and said[1] != said[2]:
            return  # somebody has changed pods after the run was done, and before its last line
        wrong = self.wrong_pods(wanted)
        if self._undoes and "edit_pod" in self._meddled:  # an undo gives back what a pod had before the run
            wrong = [each for each in wrong if not each.endswith(f" has {OTHER}")]
        if wrong:
            self._world.broken(f"the run is done, and {', '.join(wrong)}")
        if wrong := self.running_wrong():
            self._world.broken(f"the run is done, and does not run or is not ready: {', '.join(wrong)}")
        image = wanted if shop.adopt else OLD
        if self.template_image() != image:
            self._world.broken(f"the run is done, and the template has {self.template_image()}")

    def close(self) -> None:
        """Nothing is left to do, and every fault is over."""
        if self.shop is None or not self._begun:
            return
        if self.played.rollouts and not self._meddled:
            self._world.broken(f"pods were replaced: {self.played.rollouts}")
        if (wrong := self.running_wrong()) and not (self._meddled or self.shop.missing):
            self._world.broken(f"in the end these pods are not ready, or run another image: {', '.join(wrong)}")
        held_by_abort = self._aborted and any("held" in line for each in self.ended for line in each.lines)
        if self.is_held() and not (self._meddled or held_by_abort):
            self._world.broken("in the end the workload is still held, and no line says so")
