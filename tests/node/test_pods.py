"""What the watches saw last, and what a late or old message must not do to it."""

import asyncio
from dataclasses import replace

import pytest

from crrd.core.api.types import WHOLE_POD, Request, RequestPhase, StartTimes, Status
from crrd.core.recreate.observation import WorkKind
from crrd.core.recreate.request_view import RESTART_SECONDS
from crrd.kube.store import TOMBSTONES
from crrd.node.pods import Pods, note_second_sandbox, note_work
from crrd.node.records import RequestRecord
from tests.support.worlds import pin, pod, recreating, request

pytestmark = pytest.mark.virtual_time

DONE = Status(RequestPhase.COMPLETED, completion_time="2026-01-01T00:00:30Z")


def requests(made: Pods, pod_key: str = "default/web") -> list[Request]:
    """The requests of a pod that are there."""
    return [each.request for each in made.peek(pod_key).requests.values() if not each.left]


def cache() -> tuple[Pods, list[str]]:
    woken: list[str] = []
    return Pods(woken.append, lambda: 7.0), woken


def gone(made: Pods, pod_key: str) -> bool:
    return made.peek(pod_key).state.gone_at is not None


def there(made: Pods) -> list[RequestRecord]:
    return [each for pod in made for each in pod.requests.values() if not each.left]


def unpinned(made: Pods) -> set[str]:
    return {each.request.uid for each in there(made) if each.request.unpinned}


def first_seen(made: Pods) -> dict[str, float]:
    return {each.request.uid: each.first_seen for each in there(made)}


def unready_seen(made: Pods) -> dict[str, float | None]:
    return {each.request.uid: each.unready_seen for each in there(made) if each.unready_seen}


async def test_a_new_request_wakes_its_pod() -> None:
    made, woken = cache()
    made.requests.put(request())
    assert woken == ["default/web"]
    assert requests(made, "default/web") == [request()]
    assert made.any_live.is_set()
    assert not made.none_live.is_set()
    assert first_seen(made) == {"r1": 7.0}
    assert made.live_pods() == {"default/web"}


async def test_the_work_of_a_second_sandbox_counts_until_kubelet_has_restarted_its_pod() -> None:
    """Kubelet needs the grace period of the pod for that. Afterwards nothing is kept."""
    made, _ = cache()
    made.requests.put(request(status=DONE))
    pods = made.peek("default/web")
    record = RequestRecord(request(status=DONE), 0.0)
    note_work(made, record, "sandbox", name=WHOLE_POD, pod_grace=100.0, under_way=WorkKind.SANDBOX)
    note_second_sandbox(made, "default/web", "r1")
    note_work(made, record, "sandbox", under_way=None)
    assert (pods.worked, [*record.works]) == ({"r1": record}, ["sandbox"])
    assert (last := record.works["sandbox"].last_stop) is not None
    assert last.count == 1
    await asyncio.sleep(100 + RESTART_SECONDS - 0.1)
    assert [*record.works] == ["sandbox"]
    await asyncio.sleep(0.2)
    assert (record.works, pods.worked) == ({}, {})


async def test_what_becomes_of_a_pod_wakes_its_requests() -> None:
    made, woken = cache()
    made.requests.put(request())
    made.pod_changed(pod())
    made.pod_deleted(replace(pod(), uid="another"))
    assert woken == ["default/web"] * 2, "the deleted pod is an earlier one of that name"
    made.pod_deleted(pod())
    assert woken == ["default/web"] * 3
    assert gone(made, "default/web")


async def test_a_changed_request_keeps_its_times() -> None:
    """Waits count from them, and would not end while the request changes again and again."""
    times = iter((1.0, 2.0, 3.0))
    made = Pods(lambda _: None, lambda: next(times))
    made.requests.put(request(unready_acquired=True))
    made.requests.put(request(unready_acquired=True, resource_version="11", status=recreating()))
    assert (first_seen(made), unready_seen(made)) == ({"r1": 1.0}, {"r1": 1.0})


async def test_since_when_a_pod_is_known_is_not_moved_by_another_list() -> None:
    times = iter((1.0, 2.0, 3.0, 4.0, 5.0))
    made = Pods(lambda _: None, lambda: next(times))
    made.pod_listed("default/web", None)
    since = made.known_since("default/web")
    made.pod_listed("default/web", pod())
    assert made.known_since("default/web") == since


async def test_the_same_version_wakes_nobody() -> None:
    made, woken = cache()
    made.requests.put(request())
    made.requests.put(request())
    assert woken == ["default/web"]


async def test_a_request_that_is_for_another_pod_now_is_none_of_the_first_ones() -> None:
    made, woken = cache()
    made.requests.put(request())
    made.requests.put(request(resource_version="11", pod_name="other"))
    assert requests(made, "default/web") == []
    assert woken == ["default/web", "default/web", "default/other"]
    made.requests.delete(request(resource_version="12", pod_name="other"))
    assert requests(made, "default/other") == []
    assert made.none_live.is_set()


async def test_an_older_version_is_dropped() -> None:
    made, _ = cache()
    newer = request(resource_version="11", status=recreating())
    made.requests.put(newer)
    made.requests.put(request(resource_version="9"))
    assert requests(made)[0] == newer


async def test_pins_stay_whoever_changes_them() -> None:
    made, _ = cache()
    first, then, changed = "2026-01-01T00:00:00Z", "2026-01-01T00:00:05Z", "2027-01-01T00:00:00Z"
    pins, start_times = (
        {"app": pin("old"), "side": pin("one")},
        {"app": StartTimes(hook=first), "side": StartTimes(stop=first)},
    )
    made.requests.put(request(pinned=pins, start_times=start_times))
    said = {"app": StartTimes(changed, then), "side": StartTimes(stop=changed)}
    made.requests.put(request(resource_version="11", pinned={"app": pin("new")}, start_times=said))
    (known,) = requests(made, "default/web")
    assert (known.pinned, known.start_times) == (pins, start_times), "times of another instance are not this one's"
    assert unpinned(made) == {"r1"}
    made.requests.put(request(resource_version="12", pinned=pins, start_times=said))
    (known,) = requests(made, "default/web")
    assert (known.pinned, known.start_times) == (pins, {"app": StartTimes(first, then), "side": StartTimes(stop=first)})
    made.requests.put(request(resource_version="13", pinned={"app": pin("new")}, start_times=said), own=True)
    (known,) = requests(made, "default/web")
    assert (known.pinned, known.start_times) == ({"app": pin("new")}, said)
    assert unpinned(made) == set()


async def test_pins_stay_whoever_removes_them() -> None:
    made, woken = cache()
    pins, start_times = {"app": pin("old")}, {"app": StartTimes(stop="2026-01-01T00:00:00Z")}
    made.requests.put(request(pinned=pins, start_times=start_times))
    made.requests.put(request(resource_version="11"))
    (known,) = requests(made, "default/web")
    assert (known.pinned, known.start_times, known.resource_version) == (pins, start_times, "11")
    assert unpinned(made) == {"r1"}
    made.requests.put(request(resource_version="12", pinned={"side": pin("other")}))
    (known,) = requests(made, "default/web")
    assert known.pinned == {**pins, "side": pin("other")}
    assert len(woken) == 3
    made.requests.put(replace(known, resource_version="13"))
    assert unpinned(made) == set(), "they were written again"
    made.requests.put(request(resource_version="14"))
    made.requests.delete(request(resource_version="15"))
    assert unpinned(made) == set()


async def test_versions_that_are_no_numbers_all_count() -> None:
    made, _ = cache()
    made.requests.put(request(resource_version="b"))
    made.requests.put(request(resource_version="a", status=recreating()))
    assert requests(made)[0] == request(resource_version="a", status=recreating())


async def test_a_late_answer_does_not_revive_a_deleted_request() -> None:
    made, woken = cache()
    made.requests.put(request())
    made.requests.delete(request(resource_version="100"))
    made.requests.put(request(resource_version="99"))
    assert requests(made, "default/web") == []
    assert made.none_live.is_set()
    assert woken == ["default/web"] * 2


async def test_a_late_answer_does_not_revive_what_a_list_lacks() -> None:
    made, _ = cache()
    made.requests.put(request())
    made.requests.replace([], "100")
    made.requests.put(request(resource_version="99"))
    assert requests(made, "default/web") == []


async def test_a_request_that_left_the_selection_may_come_back() -> None:
    made, _ = cache()
    made.requests.put(request())
    made.requests.delete(request(resource_version="11"))
    made.requests.put(request(resource_version="12"))
    assert requests(made, "default/web") == [request(resource_version="12")]
    assert made.any_live.is_set()


async def test_a_request_without_its_label_may_get_it_back() -> None:
    made, _ = cache()
    made.requests.put(request())
    made.requests.put(request(resource_version="11", active=False))
    made.requests.put(request(resource_version="11", active=True))
    assert requests(made, "default/web") == []
    made.requests.put(request(resource_version="12"))
    assert made.live_pods() == {"default/web"}


async def test_the_deletion_of_an_earlier_pod_of_the_name_changes_nothing() -> None:
    made, _ = cache()
    made.pod_changed(pod(uid="later"))
    made.pod_deleted(pod())
    assert made.peek("default/web").state.pod == pod(uid="later")
    assert not gone(made, "default/web")


async def test_of_requests_that_went_only_so_many_are_remembered() -> None:
    made, _ = cache()
    for number in range(TOMBSTONES + 1):
        made.requests.delete(request(uid=f"r{number}", resource_version="50"))
    made.requests.put(request(uid="r0", resource_version="40"))
    made.requests.put(request(uid="r1", resource_version="40"))
    assert [known.uid for known in requests(made, "default/web")] == ["r0"]


async def test_deleting_what_was_never_seen_wakes_nobody() -> None:
    made, woken = cache()
    made.requests.delete(request())
    assert woken == []


async def test_losing_the_active_label_takes_a_request_down() -> None:
    made, _ = cache()
    made.requests.put(request())
    made.requests.put(request(resource_version="11", active=False))
    assert requests(made, "default/web") == []


async def test_a_list_replaces_everything() -> None:
    made, woken = cache()
    made.requests.put(request())
    made.requests.replace([request(uid="r2")], "12")
    assert [known.uid for known in requests(made, "default/web")] == ["r2"]
    assert woken == ["default/web"] * 3


async def test_completed_requests_do_not_keep_the_node_awake() -> None:
    made, _ = cache()
    made.requests.put(request())
    made.requests.put(request(resource_version="11", status=DONE))
    assert made.none_live.is_set()
    assert requests(made, "default/web")


async def test_the_mark_is_dated_when_it_is_first_seen() -> None:
    made, _ = cache()
    made.requests.put(request(unready_acquired=True))
    assert unready_seen(made) == {"r1": 7.0}
    made.requests.put(request(resource_version="11"))
    assert unready_seen(made) == {}, "taken away: the grace period begins anew with the next one"
    made.requests.delete(request(resource_version="11"))
    assert unready_seen(made) == {}
    assert first_seen(made) == {}


async def test_pods_wake_only_whoever_has_a_request() -> None:
    made, woken = cache()
    made.pod_changed(pod())
    assert woken == []
    made.requests.put(request())
    made.pod_changed(pod())
    made.pod_changed(pod(deleting=True))
    assert woken == ["default/web"] * 2


async def test_a_pod_that_goes_is_remembered_as_gone_until_it_comes_back() -> None:
    made, _ = cache()
    made.requests.put(request())
    made.pods_listed([pod(), replace(pod(), name="other")], "12")
    assert made.known_since("default/web") == made.known_since("default/other") == 7.0
    made.pods_listed([], "13")
    assert gone(made, "default/web")
    assert not gone(made, "default/other")  # nobody asks for it
    assert made.peek("default/web").state.pod is None
    made.pod_changed(pod())
    assert not gone(made, "default/web")
    made.pod_deleted(pod())
    made.pod_deleted(pod())
    assert gone(made, "default/web")
    made.requests.delete(request())
    assert not gone(made, "default/web")
    made.requests.put(request())
    made.pod_changed(pod())
    made.pod_deleted(pod())
    made.forget_pods()
    assert not gone(made, "default/web")
    assert made.known_since("default/web") is None


async def test_two_requests_of_one_pod_leave_one_by_one() -> None:
    made, _ = cache()
    made.requests.put(request())
    made.requests.put(replace(request(), uid="r2"))
    made.requests.delete(request())
    assert len(requests(made, "default/web")) == 1
    assert made.any_live.is_set()


async def test_who_waits_in_vain_for_a_pod_leaves_nothing_behind() -> None:
    made, _ = cache()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await made.wait_until_known("default/web")
    assert list(made) == []


async def test_what_has_gone_does_not_come_back_by_a_deletion_that_is_told_late() -> None:
    made, _ = cache()
    made.requests.put(request())
    made.requests.delete(request(resource_version="120"))
    made.requests.delete(request(resource_version="100"))
    made.requests.put(request(resource_version="110"))
    assert requests(made, "default/web") == []
