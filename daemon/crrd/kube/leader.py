"""Leader election by a Lease, as in client-go: one of several managers works, and another takes over when it dies.

The clocks of other machines do not matter: a lease has expired if it has not changed for its duration, measured
locally. Every write is bound to the version that was read, so only one of two candidates wins. The leader renews with
single writes. The other candidates watch the lease, and try to take it when it seems to be free.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

import structlog

from crrd.kube.client import KubeClient
from crrd.kube.resources import LEASES
from crrd.lib.backoff import Backoff
from crrd.lib.errors import ConflictError, CrrdError, GoneError
from crrd.lib.heartbeat import Heartbeat
from crrd.lib.jsonfields import mapping, text, value_at
from crrd.lib.looptime import loop_time

LEASE_NAME = "crrd-manager"
_ATTEMPT_SECONDS = 120.0  # Longest time of one attempt to take the lease, with the renewal of credentials
_LEASE_MARGIN_SECONDS = 15.0  # How late a step may be before the election counts as hanging
_RELEASE_SECONDS = 3.0  # How long a shutdown waits for the release of the lease

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Seconds; client-go's defaults (k8s.io/component-base/config/v1alpha1, LeaderElectionConfiguration)."""

    duration: float = 15.0
    """After this time others may take an unchanged lease. Written to the Lease in whole seconds, rounded up."""
    renew_deadline: float = 10.0  # A leader that cannot renew for this long stops its work, well before `duration`
    retry: float = 2.0  # Between two tries to take or renew the lease


DEFAULT_TIMING = LeaseTiming()


@dataclass(frozen=True, slots=True)
class _ObservedLease:
    """The lease as last read, and when it expires unless it changes."""

    version: str = "unread"
    holder: str = ""
    transitions: int = 0
    expires: float = 0.0  # In the event loop's time


class LeaderElection:
    """One candidate of the election. The constructor starts nothing."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,  # The Lease's namespace
        identity: str,  # The candidate's unique name, e.g. of its pod
        *,
        now: Callable[[], datetime],  # The API server's time, for the Lease; no decision depends on it
        timing: LeaseTiming = DEFAULT_TIMING,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._identity = identity
        self._now = now
        self._timing = timing
        self._retry = Backoff(initial=timing.retry, factor=1.0, maximum=timing.retry, jitter=0.2)
        self._observed = _ObservedLease()
        self._renewed: float | None = None
        """The event loop's time at which the last successful renewal was sent; None if not the leader."""
        self._failing = False
        self.heartbeat = Heartbeat()

    @property
    def leading(self) -> bool:
        """Whether this candidate holds the lease, and no other candidate can have taken it."""
        return self._renewed is not None and loop_time() < self._renewed + self._timing.duration

    @property
    def leader(self) -> str:
        """Identity of the lease's holder as last seen, "" for none."""
        return self._observed.holder

    def check_alive(self) -> str:
        """For the liveness probe: return an error if the work still runs although the lease has expired, else ""."""
        if self._renewed is None or self.leading:
            return ""
        lease = f"{self._namespace}/{LEASE_NAME}"
        return f"{self._identity} no longer holds the lease {lease}, but has not stopped its work as the leader"

    async def run(self, work: Callable[[], Coroutine[Any, Any, object]]) -> NoReturn:
        """Wait for the lease, run the work while holding it, then wait again; until cancelled.

        The work is cancelled if the lease cannot be renewed in time. If `run` is cancelled or the work fails, the lease
        is released after the work has stopped, so the next candidate need not wait until it expires.
        """
        try:
            while True:
                await self._acquire()
                log.info("became leader", lease=LEASE_NAME, identity=self._identity)
                await self._lead(work)
                await self._release()
        finally:
            await self._release()

    async def _acquire(self) -> None:
        """Try until this candidate holds the lease. Two short attempts in a row are followed by a pause."""
        hasty = False
        for delay in self._retry.delays():
            began = loop_time()
            self.heartbeat.within(_ATTEMPT_SECONDS, "reading the lease")
            if await self._attempt():
                return
            if await self._follow():
                before, hasty = hasty, loop_time() - began < self._timing.retry
                if not (before and hasty):
                    continue
            self.heartbeat.within(delay + _LEASE_MARGIN_SECONDS, "waiting to read the lease again")
            await asyncio.sleep(delay)

    async def _follow(self) -> bool:
        """Watch the lease while another candidate holds it. Return whether to try to take it at once."""
        observed = self._observed
        if not observed.holder or loop_time() >= observed.expires:
            return False
        where = f"metadata.name={LEASE_NAME}"
        watch = self._client.watch(LEASES, observed.version, namespace=self._namespace, field_selector=where)
        try:
            async with asyncio.timeout_at(observed.expires) as limit, watch as events:
                self._extend_heartbeat()
                async for event in events:
                    if event.kind == "DELETED":
                        return True
                    if event.kind != "BOOKMARK":
                        self._observe(event.object)
                        self._extend_heartbeat()
                    if not self.leader:
                        return True
                    limit.reschedule(self._observed.expires)
        except TimeoutError:
            return True
        except CrrdError as error:
            log.debug("lease watch failed", lease=LEASE_NAME, error=str(error))
            return False
        return True

    def _extend_heartbeat(self) -> None:
        left = self._observed.expires - loop_time()
        self.heartbeat.within(max(0.0, left) + _LEASE_MARGIN_SECONDS, "watching the lease")

    async def _lead(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run the work and renew the lease, until the lease is lost or the work ends. Raises the work's exception."""
        worker = asyncio.create_task(work(), name="lead")
        try:
            while True:
                self.heartbeat.within(self._timing.retry + _LEASE_MARGIN_SECONDS, "waiting before it renews the lease")
                if (await asyncio.wait({worker}, timeout=self._timing.retry))[0]:
                    break
                self.heartbeat.within(self._timing.renew_deadline + _LEASE_MARGIN_SECONDS, "renewing the lease")
                if not await self._renew():
                    log.error("lease lost", lease=LEASE_NAME, identity=self._identity, leader=self.leader)
                    return
            worker.result()
        finally:
            self.heartbeat.within(_LEASE_MARGIN_SECONDS, "stopping the leader's work")
            worker.cancel()
            await asyncio.wait({worker})

    async def _renew(self) -> bool:
        """Renew the lease once. Return whether this candidate still holds it."""
        left = (self._renewed or 0.0) + self._timing.renew_deadline - loop_time()
        if left <= 0:  # `timeout` does not stop an attempt that fails without waiting, so this could go on for ever
            return False
        try:
            async with asyncio.timeout(left):
                return await self._attempt() or self.leader == self._identity
        except TimeoutError:
            return False

    async def _attempt(self) -> bool:
        """Take or renew the lease unless another candidate holds it. Return whether it worked. Failures are logged."""
        for again in (False, True):  # after a conflict, read the lease again to see who holds it now
            try:
                held = await self._take(again=again)
            except ConflictError:
                continue
            except CrrdError as error:
                if not self._failing:
                    log.warning("lease update failed", lease=LEASE_NAME, error=str(error))
                self._failing = True
                return False
            self._failing = False
            return held
        return False

    async def _take(self, *, again: bool) -> bool:
        """Take or renew the lease; read it first unless it is our own. Return False if another candidate holds it."""
        began = loop_time()
        if not again and self._renewed is not None and self.leader == self._identity:
            try:
                await self._patch(self._spec(self._observed.transitions, taken=False))
            except GoneError:
                return await self._take(again=True)
            self._renewed = began
            return True
        try:
            self._observe(await self._client.get(LEASES, self._namespace, LEASE_NAME))
        except GoneError:
            shape = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"namespace": self._namespace, "name": LEASE_NAME},
                "spec": self._spec(transitions=0, taken=True),
            }
            self._observe(await self._client.create(LEASES, self._namespace, shape))
        else:
            observed = self._observed
            own = observed.holder == self._identity
            if observed.holder and not own and loop_time() < observed.expires:
                return False
            await self._patch(self._spec(observed.transitions + (not own), taken=not own or self._renewed is None))
        self._renewed = began
        return True

    async def _release(self) -> None:
        """Release the lease if this candidate holds it. If that fails, the lease expires by itself."""
        if self._renewed is None:
            return
        self._renewed = None
        self.heartbeat.within(_RELEASE_SECONDS + _LEASE_MARGIN_SECONDS, "releasing the lease")
        if self.leader != self._identity:
            return
        stamp = self._micro_time()
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": stamp, "acquireTime": stamp}
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                try:
                    await self._patch(spec)
                except ConflictError:  # a renewal was stored, but its response was lost
                    self._observe(await self._client.get(LEASES, self._namespace, LEASE_NAME))
                    if self.leader == self._identity:
                        await self._patch(spec)
        except (CrrdError, TimeoutError) as error:
            log.warning("lease release failed", lease=LEASE_NAME, error=str(error))

    async def _patch(self, spec: Mapping[str, Any]) -> None:
        """Write the lease, bound to the version last seen. ConflictError if it has changed since."""
        body = {"metadata": {"resourceVersion": self._observed.version}, "spec": spec}
        self._observe(await self._client.merge_patch(LEASES, self._namespace, LEASE_NAME, body))

    def _spec(self, transitions: int, *, taken: bool) -> dict[str, Any]:
        stamp, duration = self._micro_time(), math.ceil(self._timing.duration)
        spec = {"holderIdentity": self._identity, "leaseDurationSeconds": duration, "renewTime": stamp}
        return spec | {"leaseTransitions": transitions} | ({"acquireTime": stamp} if taken else {})

    def _observe(self, lease: Mapping[str, Any]) -> None:
        """Record the lease. If its version has not changed, its expiry stays the same."""
        version = text(value_at(lease, "metadata.resourceVersion"))
        if self._observed.version == version:
            return
        spec = mapping(lease.get("spec"))
        duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
        expires = loop_time() + (duration if isinstance(duration, int) else self._timing.duration)
        count = transitions if isinstance(transitions, int) else 0
        self._observed = _ObservedLease(version, text(spec.get("holderIdentity")), count, expires)

    def _micro_time(self) -> str:
        """The current time in the format of metav1.MicroTime."""
        return self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
