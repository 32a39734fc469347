"""One call of `crrd recreate`: the parsed command, and a connection to the cluster that its verb works with.

The verbs are functions of a Session: `status`, `abort`, and `start` with `resume`.
"""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from crrd.core.api.time import rfc3339
from crrd.core.api.types import ANNOTATION_ABORTED
from crrd.core.judge.metrics import Metric
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.run import LABEL_RUN, Amount, Options, Run
from crrd.kube.access.config import Access, find_access
from crrd.kube.access.kubeconfig import Overrides
from crrd.kube.client import Deadlines, KubeClient
from crrd.kube.clock import ServerClock
from crrd.lib.errors import ApiRefusedError, ConfigurationError
from crrd.lib.formats import Format
from crrd.lib.plain import with_flags
from crrd.rollout.display import Display
from crrd.rollout.jsonlines import JsonLines
from crrd.rollout.kept import annotate, list_requests
from crrd.rollout.refusals import describe
from crrd.rollout.target import split_targets
from crrd.rollout.text import TextLines

Explainer = Callable[[KubeClient, ServerClock, Mapping[str, Any], str], Awaitable[str]]
"""Explains the state of a request in a few lines. The last argument are flags for the commands in them."""


class Via(StrEnum):
    """How a new run restarts containers."""

    AUTO = "auto"  # By requests where node daemons serve them, else by patches
    DAEMON = "daemon"  # By ContainerRecreateRequests
    PATCH = "patch"  # By patches of the pods


@dataclass(frozen=True, slots=True)
class Command:
    """The parsed command line. A verb has only some of the flags; the others have their defaults."""

    called: str  # The command as the user called it, for messages that suggest commands
    output: Format
    namespace: str
    kubeconfig: str
    overrides: Overrides  # What the flags for the connection replace in the kubeconfig
    access_flags: str  # The flags that select the cluster, for the commands in the output
    resume_flags: tuple[str, ...]  # Those of the process that `resume` accepts, for the same purpose
    options: Options
    changed_options: Mapping[str, Any] = field(default_factory=dict)  # Options that replace those of a resumed run
    targets: tuple[str, ...] = ()  # TYPE/NAME, or TYPE and NAME; may be several
    selector: str = ""
    via: Via = Via.AUTO  # Of a new run
    run_name: str = ""  # "" to generate a name, or for `status` of all runs
    retry_failed: bool = False  # Restart the pods of failed requests again
    partition: Amount | None = None
    parts: tuple[Amount, ...] = ()  # The steps of a new run
    step_pause: int | None = 0  # Seconds between its steps; None to wait for a user
    metrics: tuple[Metric, ...] = ()  # What the judgement asks
    metrics_file: str = ""  # Where they were read
    undo_on_failure: bool = False  # Whether a run with an image is undone if its judgement is no
    since: datetime | timedelta | None = None  # Options.since of a new run, or the time before its start
    dry_run: str = ""
    """Empty to make changes, else `client`, or `server` to check whether the API server accepts the requests."""
    request_timeout: int | None = None  # Seconds for each call, except watches. 0 for no limit, None for the default
    watch: bool = False  # With `status`: keep showing it
    timeout: int | None = None  # Seconds for the whole run. 0 for no limit, None for the default
    yes: bool = False  # Do not ask after the first part
    template: str = ""  # With an image: `adopt`, `keep`, or "" if the user has not decided
    follows_template: bool = False  # The image is that of the workload's template
    allow_mutable_tag: bool = False  # With an image: accept one without a tag, or with `latest`


@dataclass(frozen=True, slots=True)
class Session:
    """A connection to one cluster, for one command. For the errors of its methods see `execute`."""

    client: KubeClient
    clock: ServerClock  # Set by the responses to the client
    namespace: str
    display: Display
    command: Command
    explainer: Explainer

    async def requests_of(self, name: str) -> list[RunRequest]:
        """Return the requests of a run. Raises ConfigurationError if there are none."""
        requests = await self.requests(f"{LABEL_RUN}={name}")
        if not requests:
            where = f"namespace {self.namespace!r}"
            raise ConfigurationError(f"run {name!r} not found in {where}; to list runs: {self.command_line('status')}")
        return requests

    async def record_abort(self, asked: RunRequest) -> Mapping[str, Any]:
        """Record on a request that its run is aborted. Return the object on which it is kept. Raises GoneError."""
        return await annotate(self.client, asked, {ANNOTATION_ABORTED: rfc3339(self.clock.now())})

    async def requests(self, selector: str, *, strict: bool = True) -> list[RunRequest]:
        """Return the requests of runs that match a label selector. `strict` as in `list_requests`."""
        found = await list_requests(self.client, self.namespace, selector, strict=strict)
        return [each.at(self.clock.now()) for each in found]

    def command_line(self, verb: str, *run: str) -> str:
        """Return a command for one or all runs. Displays add the flags for the cluster."""
        return f"{self.command.called} {shlex.join([verb, *run, '-n', self.namespace])}"

    def resume_line(self, run: Run) -> str:
        """Return the command that continues a run, with the flags that were given and that the run does not store."""
        flags = [*self.command.resume_flags]
        if run.options.metrics_digest:
            flags += ["--metrics", self.command.metrics_file or "FILE"]
        if self.command.undo_on_failure and run.options.change.image_back:
            flags += ["--undo-on-failure"]
        return f"{self.command_line('resume', run.name)} {shlex.join(flags)}".rstrip()


async def execute(verb: Callable[[Session], Awaitable[int]], command: Command, explainer: Explainer) -> int:
    """Connect to the API server and carry out the verb. Return the exit code.

    Raises ConfigurationError if it cannot be done and nothing was started, or was refused, and ApiUnavailableError.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if task is not None and signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
            loop.add_signal_handler(number, task.cancel)
    clock = ServerClock()
    access = find_access(command.kubeconfig, os.environ, command.overrides)
    deadlines = Deadlines().limited(command.request_timeout)
    async with KubeClient(access, deadlines=deadlines, on_date=clock.observe) as client:
        first = await access.current()
        flags = _with_context(command, first)
        display = _make_display(clock.now, flags, first.context, command)
        command = replace(command, access_flags=flags)
        namespace = command.namespace or first.namespace or "default"
        try:
            code = await verb(Session(client, clock, namespace, display, command, explainer))
        except (ConfigurationError, ApiRefusedError) as error:
            raise ConfigurationError(with_flags(describe(error), flags)) from error
        display.close()
        return code


def _with_context(command: Command, access: Access) -> str:
    """Return the flags that select the cluster, also after another context has become the current one."""
    if command.overrides.context or not access.context or access.is_only_context:
        return command.access_flags
    return f"--context {shlex.quote(access.context)} {command.access_flags}".rstrip()


def _make_display(now: Callable[[], datetime], access_flags: str, context: str, command: Command) -> Display:
    if not command.output.is_text:
        several = len(split_targets(command.targets)) > 1
        dry_run = bool(command.dry_run)
        return JsonLines(now, access_flags, context, command.output, dry_run=dry_run, of_several=several)
    if sys.stdout.isatty():
        with suppress(ImportError):
            from crrd.rollout.table import Terminal  # noqa: PLC0415 - without rich, plain lines are shown

            if not (terminal := Terminal(access_flags, context)).is_dumb:
                return terminal
    return TextLines(access_flags, context)
