"""Creates the requests of the pods that the newest plan has chosen, side by side.

What the API server refuses fails the pod. The run of a policy waits instead, and tries again, because nobody would
resume it: quotas are raised, and webhooks are repaired. No container was stopped.

A pod is read again before its request is created, because the watch may lag. Otherwise a pod could be restarted twice
if its first request has ended and was deleted. The request is created only if the newest plan has chosen the pod, and
has seen it as it is now; otherwise the next plan decides. While its request is being created, a pod counts as started.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from crrd.core.api.time import rfc3339
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.rivals import taken_over
from crrd.core.rollout.rows import Row
from crrd.core.rollout.run import Run
from crrd.core.rollout.standing import make_rows
from crrd.core.rollout.state import World
from crrd.kube.clock import ServerClock
from crrd.lib.backoff import retry_delay
from crrd.lib.errors import (
    ApiRefusedError,
    ApiUnavailableError,
    ConfigurationError,
    ConflictError,
)
from crrd.lib.looptime import loop_time
from crrd.rollout.cluster import Cluster
from crrd.rollout.kind import Maker
from crrd.rollout.refusals import ends_run
from crrd.rollout.side_by_side import SideBySide

_VALID_SECONDS = 2.0  # How long a plan is used. Usually the next one is there after a second
_FIRST = 4  # The first refusal in a row waits as long as the fourth, because each turn of a run counts anew
_REFUSED = ""  # In `RequestWriter.problems`: not about one pod


@dataclass(frozen=True, slots=True)
class _Choice:
    """The pods that the newest plan has chosen and that have not started, and what the plan is based on."""

    run: Run
    world: World
    rows: dict[str, Row]  # By UID, in the plan's order
    progress: Mapping[str, str]
    created: Callable[[], None]
    until: float  # The loop's time after which the plan is too old
    taken_over: Mapping[str, list[RunRequest]]

    @property
    def in_order(self) -> bool:
        """Whether a pod starts only when the request of the one before exists."""
        return self.world.workload is not None and self.world.workload.in_order


class RequestWriter:
    """Creates the requests of one run. The constructor starts nothing."""

    def __init__(self, maker: Maker, cluster: Cluster, clock: ServerClock) -> None:
        self._maker, self._cluster, self._clock = maker, cluster, clock
        self._choice: _Choice | None = None
        self._work = SideBySide(cluster.changed.set)
        self._failures: dict[str, int] = {}  # By pod (UID): attempts that have failed in a row
        self._ending = asyncio.Event()
        self._refusals, self._pause_until = 0, 0.0  # How many in a row, and the loop's time until which nothing starts
        self.problems: dict[str, str] = {}  # By pod (UID): why its last attempt has failed, until the next one

    def carry_out(
        self, run: Run, world: World, plan: Plan, progress: Mapping[str, str], created: Callable[[], None]
    ) -> None:
        """Start the pods that this plan has chosen, and no others.

        Requests get the annotations `progress`; `created` is called when one was created. Raises the error that has
        ended a start.
        """
        self._work.raise_error()
        rows, until = {row.uid: row for row in plan.create}, loop_time() + _VALID_SECONDS
        self._choice = _Choice(run, world, rows, progress, created, until, taken_over(world, run))
        self._begin()

    async def end(self) -> None:
        """Start no more pods. Return when it is known which requests were created."""
        self._choice = None
        self._ending.set()
        await self._work.stop(but=self._cluster.claims)

    async def cancel(self) -> None:
        """Stop at once, even if it is not known whether the last requests were created."""
        await self._work.stop()

    def _begin(self) -> None:
        choice = self._choice
        paused = loop_time() < self._pause_until
        if choice is not None and not paused and not (choice.in_order and self._cluster.claims):
            for uid in tuple(choice.rows)[: 1 if choice.in_order or self._refusals else None]:
                self._work.begin(uid, partial(self._start, uid))

    def _chosen(self, uid: str) -> tuple[_Choice, Row] | None:
        """Return the newest plan and its row of a pod. None if the pod may not start."""
        choice = self._choice
        if choice is None or uid not in choice.rows or not self._pause_until <= loop_time() <= choice.until:
            return None
        may_start = not choice.in_order or (uid == next(iter(choice.rows)) and not self._cluster.claims)
        return (choice, choice.rows[uid]) if may_start else None

    async def _start(self, uid: str) -> None:
        """Start a pod, or leave it to the next plan."""
        try:
            if (found := self._chosen(uid)) is None:
                return
            await self._cluster.look_again(found[1].pod, uid)
            if (found := self._chosen(uid)) is not None and self._cluster.is_as_in(found[0].world, found[1].member):
                await self._create(*found)
            self._failures.pop(uid, None)
        except (ApiUnavailableError, ConflictError) as error:
            await self._back_off(uid, error)
        except (ApiRefusedError, ConfigurationError) as error:
            self._choice = None
            raise ConfigurationError(str(error)) from error
        finally:
            self._cluster.claims.pop(uid, None)
        self._begin()  # the next one of those that start in order

    async def _back_off(self, uid: str, error: ApiUnavailableError | ConflictError) -> None:
        """Wait before the next attempt. The pod counts as started, because its request may have been created."""
        failures = self._failures[uid] = self._failures.get(uid, 0) + 1
        self.problems[uid] = f"cannot {self._maker.what}, retrying: {error}"
        self._cluster.changed.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(retry_delay(error, failures)):
                await self._ending.wait()
        del self.problems[uid]

    async def _create(self, choice: _Choice, row: Row) -> None:
        """Create the request. Return when it is known whether it exists, or that it was refused."""
        run = choice.run
        body = run.request(row.pod, row.uid, row.containers, row.failed)
        body["metadata"]["annotations"] |= choice.progress
        assert row.member is not None  # noqa: S101 - the pod is there
        self._cluster.claim(row.member, RunRequest(replace(parse_request(body), pod_uid=row.uid), run))
        del choice.rows[row.uid]
        try:
            made = await self._maker.make(
                run, row, body, rfc3339(self._clock.now()), choice.taken_over.get(row.uid, ())
            )
        except ConflictError:
            raise  # for another attempt
        except ApiRefusedError as error:
            await self._handle_denial(run, row, error)
        else:
            if made:
                choice.created()
                self._refusals = 0
                self.problems.pop(_REFUSED, None)

    async def _handle_denial(self, run: Run, row: Row, error: ApiRefusedError) -> None:
        """Handle a rejection by admission: the pod or a container was removed (which is normal), or it is final."""
        self._choice = None  # the rejection may end the run
        if error.status == 404 or ends_run(error):
            raise error
        await self._cluster.look_again(row.pod, row.uid)
        self._cluster.claims.pop(row.uid)
        again = make_rows(kind_of(self._cluster.world(), run), self._clock.now())
        asks_same = (each for each in again if (each.uid, each.containers) == (row.uid, row.containers))
        if not any(each.stage is Stage.WAITING for each in asks_same):
            return
        if not run.options.policy:
            self._cluster.refused(row.uid, str(error))
        elif loop_time() >= self._pause_until:  # else it was sent before the last one was refused
            self._pause_until = loop_time() + retry_delay(error, _FIRST + self._refusals)
            self._refusals += 1
            self.problems[_REFUSED] = f"cannot {self._maker.what}, retrying: {error}"
