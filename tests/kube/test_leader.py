"""The election by a Lease against the local API server: one candidate works at a time, whatever gets lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from crrd.kube.client import KubeClient
from crrd.kube.leader import LEASE_NAME, LeaderElection, LeaseTiming
from crrd.kube.resources import LEASES, Resource, WatchEvent
from crrd.lib.errors import ApiRefusedError, ConfigurationError
from tests.support.faulty_api import Call
from tests.support.lifecycle_cluster import LifecycleCluster, Wire, lifecycle_cluster
from tests.support.silent_api import SilentApi

QUICK = LeaseTiming(duration=1.0, renew_deadline=0.5, retry=0.05)
LASTING = LeaseTiming(duration=1000.0, renew_deadline=900.0, retry=0.05)
"""No test lives to see it expire."""


def lease_write(call: Call) -> bool:
    return call.resource == "leases" and call.verb in ("create", "patch")


class Candidate:
    """One election, whose work says in `working` that it is done."""

    def __init__(self, cluster: LifecycleCluster, name: str, timing: LeaseTiming, working: list[str]) -> None:
        self.name = name
        self.wire = Wire(cluster.server.url)
        self.calls: list[str] = []
        """Verbs of its calls."""
        self.client = KubeClient(self.wire, on_call=lambda verb, *_: self.calls.append(verb))
        self.election = LeaderElection(self.client, "default", name, now=cluster.now, timing=timing)
        self.working = working
        self.terms = 0
        self.fail: Exception | None = None
        self.finish = asyncio.Event()
        self.task = asyncio.create_task(self.election.run(self.work), name=name)

    async def work(self) -> None:
        assert self.working == [], "two of them work at once"
        assert self.election.leading
        self.working.append(self.name)
        self.terms += 1
        try:
            await self.finish.wait()
        finally:
            self.working.remove(self.name)
        if self.fail is not None:
            raise self.fail
        self.finish.clear()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})

    async def kill(self) -> None:
        """It dies without a word."""
        self.wire.cut = True
        await self.stop()


class Election:
    """The candidates of one test, and the lease they want."""

    def __init__(self, cluster: LifecycleCluster) -> None:
        self.cluster = cluster
        self.working: list[str] = []
        self.candidates: list[Candidate] = []

    def candidate(self, name: str, timing: LeaseTiming = LASTING) -> Candidate:
        made = Candidate(self.cluster, name, timing, self.working)
        self.candidates.append(made)
        return made

    async def works(self, *names: str) -> None:
        await self.cluster.until(f"{names} work", lambda: self.working == list(names))

    async def lease(self) -> dict[str, Any]:
        return dict((await self.cluster.client.get(LEASES, "default", "crrd-manager"))["spec"])

    async def renewals(self, number: int) -> None:
        """Wait for so many renewals of the lease."""
        for _ in range(number):
            before = (await self.lease()).get("renewTime")
            async with asyncio.timeout(30):
                while (await self.lease()).get("renewTime") == before:
                    await asyncio.sleep(0.005)

    async def edit(self, **spec: Any) -> None:
        """Somebody writes the lease by hand."""
        await self.cluster.client.merge_patch(LEASES, "default", "crrd-manager", {"spec": spec})


@pytest.fixture
async def election() -> AsyncIterator[Election]:
    async with running_election() as made:
        yield made


@asynccontextmanager
async def running_election() -> AsyncIterator[Election]:
    async with lifecycle_cluster() as cluster:
        made = Election(cluster)
        try:
            yield made
        finally:
            cluster.server.resume()
            for candidate in made.candidates:
                await candidate.stop()
                await candidate.client.close()


async def test_one_leads_and_keeps_leading(election: Election) -> None:
    first = election.candidate("a")
    await election.works("a")
    taken = await election.lease()
    second = election.candidate("b")
    await election.renewals(4)
    assert election.working == ["a"]
    assert (first.election.leader, second.election.leader) == ("a", "a")
    assert (first.election.leading, second.election.leading) == (True, False)
    lease = await election.lease()
    assert lease["acquireTime"] == taken["acquireTime"]
    assert (lease["holderIdentity"], lease["leaseTransitions"], lease["leaseDurationSeconds"]) == ("a", 0, 1000)
    assert (first.election.check_alive(), second.election.check_alive()) == ("", "")


async def test_a_leader_that_shuts_down_hands_over_at_once(election: Election) -> None:
    first = election.candidate("a")
    await election.works("a")
    election.candidate("b")
    await first.stop()
    await election.works("b")
    lease = await election.lease()
    assert (lease["holderIdentity"], lease["leaseTransitions"]) == ("b", 1)
    assert not first.election.leading


async def test_a_killed_leader_is_followed_when_its_lease_has_expired(election: Election) -> None:
    first = election.candidate("a", QUICK)
    await election.works("a")
    election.candidate("b", QUICK)
    await first.kill()
    await election.works("b")


async def test_a_leader_that_cannot_renew_stops_before_others_may_follow(election: Election) -> None:
    """Cut off from the API server it goes on living; two that work at once would fail the work itself."""
    first = election.candidate("a", QUICK)
    await election.works("a")
    election.candidate("b", QUICK)
    await election.renewals(1)
    with capture_logs() as logs:
        first.wire.cut = True
        await election.works("b")
    assert not first.election.leading
    assert [entry["log_level"] for entry in logs if entry["event"] == "lease lost"] == ["error"]
    assert sum(entry["event"] == "lease update failed" for entry in logs) == 1  # not once a try
    first.wire.cut = False
    await election.renewals(2)
    assert election.working == ["b"]


async def test_an_api_server_that_hangs(election: Election) -> None:
    """A renewal without an answer is given up at the deadline; when the server is back, somebody leads again."""
    first = election.candidate("a", QUICK)
    await election.works("a")
    election.cluster.server.pause()
    await election.works()
    election.cluster.server.resume()
    await election.works("a")
    assert first.terms == 2


@pytest.mark.parametrize("count", [1, 2])
async def test_a_lost_answer_or_two_do_not_end_a_term(election: Election, count: int) -> None:
    """The write was carried out, so the version in hand is old: what follows is a conflict with oneself."""
    first = election.candidate("a")
    await election.works("a")
    election.cluster.server.fail_next(count, None, match=lease_write, after=True)
    await election.renewals(4)
    assert (election.working, first.terms) == (["a"], 1)


async def test_conflicts_in_a_row_do_not_end_a_term(election: Election) -> None:
    first = election.candidate("a")
    await election.works("a")
    election.cluster.server.fail_next(5, 409, match=lease_write)
    await election.renewals(2)
    assert (election.working, first.terms) == (["a"], 1)


async def test_a_lease_that_somebody_takes_by_hand(election: Election) -> None:
    first = election.candidate("a")
    await election.works("a")
    await election.edit(holderIdentity="operator")
    await election.works()
    await election.cluster.until("seen", lambda: first.election.leader == "operator")
    await election.edit(holderIdentity="")
    await election.works("a")
    assert (await election.lease())["leaseTransitions"] == 1


async def test_a_lease_that_somebody_deletes_is_made_again(election: Election) -> None:
    first = election.candidate("a")
    await election.works("a")
    await election.cluster.client.delete(LEASES, "default", "crrd-manager")
    store = election.cluster.server.store
    await election.cluster.until("made", lambda: store.objects("coordination.k8s.io/leases"))
    await election.renewals(1)
    assert (election.working, first.terms) == (["a"], 1)


async def test_both_make_the_lease_at_once(election: Election) -> None:
    election.candidate("a")
    election.candidate("b")
    await election.cluster.until("one works", lambda: election.working)
    await election.renewals(2)
    assert len(election.working) == 1


async def test_work_that_fails_gives_the_lease_back(election: Election) -> None:
    first = election.candidate("a")
    await election.works("a")
    first.fail = ConfigurationError("no such thing")
    first.finish.set()
    await asyncio.wait({first.task})
    with pytest.raises(ConfigurationError, match="no such thing"):
        await first.task
    assert (await election.lease())["holderIdentity"] == ""


async def test_work_that_ends_begins_again(election: Election) -> None:
    first = election.candidate("a")
    await election.works("a")
    first.finish.set()
    await election.cluster.until("a second term", lambda: first.terms == 2)
    assert (await election.lease())["holderIdentity"] == "a"


Lose = Callable[[Election], Awaitable[object]]


async def refuse(election: Election) -> None:
    election.cluster.server.fail_next(1, 403, match=lease_write)


async def hang(election: Election) -> None:
    election.cluster.server.pause()


@pytest.mark.parametrize("lose", [refuse, hang])
async def test_a_lease_that_cannot_be_given_back(election: Election, lose: Lose) -> None:
    """It is said and left to expire; the shutdown goes on."""
    first = election.candidate("a", LeaseTiming(duration=1000, renew_deadline=900, retry=60))
    await election.works("a")
    await lose(election)
    with capture_logs() as logs:
        await first.stop()
    assert first.task.cancelled()
    assert [entry["event"] for entry in logs] == ["lease release failed"]


async def test_a_lease_without_anything_in_it_is_free(election: Election) -> None:
    shape = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "crrd-manager"}}
    await election.cluster.client.create(LEASES, "default", shape)
    election.candidate("a")
    await election.works("a")


async def test_who_does_not_lead_watches_and_who_leads_only_writes(election: Election) -> None:
    first = election.candidate("a")
    await election.works("a")
    second = election.candidate("b")
    await election.cluster.until("it watches", lambda: "watch" in second.calls)
    before = len(first.calls), len(second.calls)
    await election.renewals(1)
    await election.cluster.until("many renewals", lambda: len(first.calls) > before[0] + 20)
    assert set(first.calls[before[0] :]) == {"patch"}
    assert second.calls[before[1] :] == []


@pytest.mark.parametrize("status", [403, 410, 503])
async def test_who_cannot_watch_asks_now_and_then(election: Election, status: int) -> None:
    first = election.candidate("a")
    await election.works("a")
    election.cluster.server.fail_next(1000, status, match=lambda call: call.verb == "watch")
    second = election.candidate("b")
    await election.cluster.until("it asks", lambda: second.calls.count("get") > 3)
    await first.stop()
    await election.works("b")


async def test_a_lease_that_was_written_meanwhile_is_given_back_all_the_same(election: Election) -> None:
    """As by a renewal that was under way when the leader ended."""
    first = election.candidate("a", LeaseTiming(duration=1000, renew_deadline=900, retry=60))
    await election.works("a")
    await election.cluster.client.merge_patch(LEASES, "default", "crrd-manager", {"metadata": {"labels": {"x": "y"}}})
    await first.stop()
    election.candidate("b")
    await election.works("b")


async def test_a_watch_that_is_cut_is_begun_anew(election: Election) -> None:
    election.candidate("a")
    await election.works("a")
    second = election.candidate("b")
    await election.cluster.until("it watches", lambda: "watch" in second.calls)
    election.cluster.server.end_watches()
    await election.cluster.until("it watches again", lambda: second.calls.count("watch") > 1)
    election.cluster.server.drop_connections()
    await election.cluster.until("and again", lambda: second.calls.count("watch") > 2)
    await election.cluster.client.delete(LEASES, "default", "crrd-manager")
    await election.cluster.until("it is there again", lambda: len(election.working) == 1)


class Fleeting(SilentApi):
    """Every watch of the lease ends at once: in good order, or with the lease's deletion."""

    def __init__(self, *events: WatchEvent) -> None:
        super().__init__()
        self._events = events
        self.calls: list[str] = []

    async def _answer(self, verb: str, resource: Resource) -> None:
        self.calls.append(verb)
        await super()._answer(verb, resource)

    @asynccontextmanager
    async def watch(self, resource: Resource, version: str, **_: Any) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        await self._answer("watch", resource)

        async def events() -> AsyncIterator[WatchEvent]:
            for event in self._events:
                yield event

        yield events()

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        await self._answer("create", resource)
        raise ApiRefusedError("the namespace is being terminated", status=403)


@pytest.mark.virtual_time
@pytest.mark.parametrize("deleted", [False, True])
async def test_watches_that_end_at_once_are_not_begun_anew_without_a_pause(*, deleted: bool) -> None:
    lease = {
        "metadata": {"name": LEASE_NAME, "resourceVersion": "1"},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 1000},
    }
    api = Fleeting(*[WatchEvent("DELETED", lease)] * deleted)
    api.put(LEASES, lease)
    election = LeaderElection(cast("KubeClient", api), "default", "b", now=lambda: datetime.now(UTC))
    task = asyncio.create_task(election.run(asyncio.Event().wait))
    await asyncio.sleep(1)
    assert api.calls == ["get", "watch"] * 2, "the first end is followed at once"
    if deleted:
        api.objects.clear()
    await asyncio.sleep(60)
    task.cancel()
    await asyncio.wait({task})
    assert 2 * 20 < len(api.calls) < 3 * 45, "one look for each pause of 2 s, more or less"
