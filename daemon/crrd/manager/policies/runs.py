"""The runs of policies that this process carries out: one task for each."""

import asyncio
from collections.abc import Callable
from datetime import datetime

from crrd.core.policy.types import Policy, RunRecord
from crrd.lib.looptime import loop_time
from crrd.manager.policies.run_task import RunTask, Shared
from crrd.rollout.target import Aim


class PolicyRuns:
    """The active runs, by policy. The constructor starts nothing.

    `on_stop` is called with the policy of a run that is not carried out any more.
    """

    def __init__(self, shared: Shared, *, on_stop: Callable[[Policy], None]) -> None:
        self._shared, self._on_stop = shared, on_stop
        self._active: dict[str, tuple[RunTask, asyncio.Task[None]]] = {}

    def active(self, key: str) -> RunTask | None:
        """Return the active run of a policy."""
        return self._active[key][0] if key in self._active else None

    def progress(self, key: str) -> str:
        """Return what the active run of a policy waits for, "" for nothing."""
        return active.progress if (active := self.active(key)) else ""

    def idle_for(self, key: str) -> float:
        """Return how many seconds ago the active run of a policy has made progress, 0 if there is none."""
        return loop_time() - active.pace.moved_at if (active := self.active(key)) else 0.0

    def stop_others(self, policy: Policy, wanted: RunRecord | None, aim: Aim | None) -> None:
        """Stop the active run of a policy, unless it is this one, of the same generation and target."""
        active = self.active(policy.key)
        identity = (wanted.name, policy.generation, aim.target) if wanted is not None and aim is not None else None
        if active is not None and active.identity != identity:
            self.stop(policy.key)

    def follow(
        self,
        policy: Policy,
        wanted: RunRecord | None,
        aim: Aim | None,
        until: datetime | None,
        *,
        only: frozenset[str] = frozenset(),
    ) -> None:
        """Carry out this run of a policy, and stop any other. `until` and `only` are those of RunTask."""
        self.stop_others(policy, wanted, aim)
        if (active := self.active(policy.key)) is not None:
            active.until = until  # another window may have opened before the first one closes
        if active is not None or wanted is None or aim is None:
            return
        made = RunTask(self._shared, policy, wanted, aim, until, only=only)
        self._active[policy.key] = made, asyncio.create_task(self._carry_out(made), name=f"run {wanted.name}")

    def stop(self, key: str) -> None:
        """Begin no more pods of the policy's run. Requests under way continue."""
        if key in self._active:
            active, task = self._active.pop(key)
            task.cancel()
            self._on_stop(active.policy)

    def stop_all(self) -> None:
        """Stop everything at once. The next leader continues."""
        for key in tuple(self._active):
            self.stop(key)

    async def _carry_out(self, active: RunTask) -> None:
        await active.carry_out()
        del self._active[active.policy.key]
        self._on_stop(active.policy)
        self._shared.wake_at(active.policy.key, loop_time())
