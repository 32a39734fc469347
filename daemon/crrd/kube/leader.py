"""Leader election by a Lease, as client-go does it: of several managers one works, another takes over when it dies.

Times of other machines are never compared with local ones: a lease has expired when it has not changed for its
duration as measured here. All writes are bound to the version that was read, so that of two candidates one wins. The
leader's renewals are single writes; who does not lead watches the lease, and asks for it when it seems to be free.
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

LEASE_NAME = "crrd-manager"
_ATTEMPT_SECONDS = 120.0  # The longest that one look at the lease takes, credentials and all
_LEASE_MARGIN_SECONDS = 15.0  # By how much a step may be later than it said before the election counts as hanging
_RELEASE_SECONDS = 3.0  # How long a shutdown waits for the lease to be given back

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Seconds; client-go's defaults (k8s.io/component-base/config/v1alpha1, LeaderElectionConfiguration)."""

    duration: float = 15.0
    """After which others may take a lease that does not change. The Lease says it in whole seconds, rounded up."""
    renew_deadline: float = 10.0  # After which a leader that cannot renew stops its work: well before others follow it
    retry: float = 2.0  # Between two tries to get or to renew it


DEFAULT_TIMING = LeaseTiming()


@dataclass(frozen=True, slots=True)
class _ObservedLease:
    """The lease as it was last read, and when it expires unless it changes."""

    version: str = "unread"
    holder: str = ""
    transitions: int = 0
    expires: float = 0.0  # The loop's time


class LeaderElection:
    """One candidate. The constructor starts nothing."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,  # Where the Lease lies
        identity: str,  # Who this candidate is, e.g. the name of its pod; no two may have the same
        *,
        now: Callable[[], datetime],  # The time to write into the Lease, which nothing is decided on
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
        """The loop's time at which the last renewal was sent, None for a candidate that does not lead."""
        self._failing = False
        self.heartbeat = Heartbeat()

    @property
    def leading(self) -> bool:
        """Whether this candidate holds the lease, and nobody else can have taken it."""
        return self._renewed is not None and _loop_time() < self._renewed + self._timing.duration

    @property
    def leader(self) -> str:
        """Who holds the lease as far as is known, "" for nobody."""
        return self._observed.holder

    def check_alive(self) -> str:
        """For liveness pages: work that outlives the lease is stuck."""
        if self._renewed is None or self.leading:
            return ""
        lease = f"{self._namespace}/{LEASE_NAME}"
        return f"{self._identity} no longer holds the lease {lease}, but has not stopped its work as the leader"

    async def run(self, work: Callable[[], Coroutine[Any, Any, object]]) -> NoReturn:
        """Wait for the lease, do the work while it is held, wait again; until cancelled.

        The work is cancelled when the lease cannot be renewed in time. When `run` is cancelled or the work fails, the
        lease is given back after the work has stopped, so that the next candidate need not wait for it to expire.
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
        """Try until the lease is held; two looks in a row that end at once are followed by a pause."""
        hasty = False
        for delay in self._retry.delays():
            began = _loop_time()
            self.heartbeat.within(_ATTEMPT_SECONDS, "reading the lease")
            if await self._attempt():
                return
            if await self._follow():
                before, hasty = hasty, _loop_time() - began < self._timing.retry
                if not (before and hasty):
                    continue
            self.heartbeat.within(delay + _LEASE_MARGIN_SECONDS, "waiting to read the lease again")
            await asyncio.sleep(delay)

    async def _follow(self) -> bool:
        """Watch somebody else's lease while it is held; whether to look at it at once."""
        observed = self._observed
        if not observed.holder or _loop_time() >= observed.expires:
            return False
        where = f"metadata.name={LEASE_NAME}"
        watch = self._client.watch(LEASES, observed.version, namespace=self._namespace, field_selector=where)
        try:
            async with asyncio.timeout_at(observed.expires) as limit, watch as events:
                self._followed()
                async for event in events:
                    if event.kind == "DELETED":
                        return True
                    if event.kind != "BOOKMARK":
                        self._observe(event.object)
                        self._followed()
                    if not self.leader:
                        return True
                    limit.reschedule(self._observed.expires)
        except TimeoutError:
            return True
        except CrrdError as error:
            log.debug("lease watch failed", lease=LEASE_NAME, error=str(error))
            return False
        return True

    def _followed(self) -> None:
        left = self._observed.expires - _loop_time()
        self.heartbeat.within(max(0.0, left) + _LEASE_MARGIN_SECONDS, "watching the lease")

    async def _lead(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Work, and renew meanwhile; returns when the lease is lost or the work is done. Raises what the work does."""
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
        """Renew once; whether the lease is still held."""
        left = (self._renewed or 0.0) + self._timing.renew_deadline - _loop_time()
        if left <= 0:  # `timeout` would let an attempt end that fails at once, over and over
            return False
        try:
            async with asyncio.timeout(left):
                return await self._attempt() or self.leader == self._identity
        except TimeoutError:
            return False

    async def _attempt(self) -> bool:
        """Take or renew the lease if nobody else has it; whether that succeeded. Failures are logged."""
        for again in (False, True):  # where somebody else was quicker, one look tells whether the lease is theirs now
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
        """Read the lease unless it is our own, and write it unless somebody else holds it."""
        began = _loop_time()
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
            if observed.holder and not own and _loop_time() < observed.expires:
                return False
            await self._patch(self._spec(observed.transitions + (not own), taken=not own or self._renewed is None))
        self._renewed = began
        return True

    async def _release(self) -> None:
        """Give the lease back, if it is held; what fails here, expiry heals."""
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
                except ConflictError:  # a renewal was written whose answer has not come
                    self._observe(await self._client.get(LEASES, self._namespace, LEASE_NAME))
                    if self.leader == self._identity:
                        await self._patch(spec)
        except (CrrdError, TimeoutError) as error:
            log.warning("lease release failed", lease=LEASE_NAME, error=str(error))

    async def _patch(self, spec: Mapping[str, Any]) -> None:
        """Write the lease as it was last seen; ConflictError where somebody else has written it since."""
        body = {"metadata": {"resourceVersion": self._observed.version}, "spec": spec}
        self._observe(await self._client.merge_patch(LEASES, self._namespace, LEASE_NAME, body))

    def _spec(self, transitions: int, *, taken: bool) -> dict[str, Any]:
        stamp, duration = self._micro_time(), math.ceil(self._timing.duration)
        spec = {"holderIdentity": self._identity, "leaseDurationSeconds": duration, "renewTime": stamp}
        return spec | {"leaseTransitions": transitions} | ({"acquireTime": stamp} if taken else {})

    def _observe(self, lease: Mapping[str, Any]) -> None:
        """Note the lease; one that has not changed goes on expiring."""
        version = text(value_at(lease, "metadata.resourceVersion"))
        if self._observed.version == version:
            return
        spec = mapping(lease.get("spec"))
        duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
        expires = _loop_time() + (duration if isinstance(duration, int) else self._timing.duration)
        count = transitions if isinstance(transitions, int) else 0
        self._observed = _ObservedLease(version, text(spec.get("holderIdentity")), count, expires)

    def _micro_time(self) -> str:
        """The time of now as metav1.MicroTime writes it."""
        return self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
