"""`crrd recreate` by patches, in virtual time: what stops a patch, and what becomes of the run."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from crrd.core.api.time import rfc3339
from crrd.core.api.types import ANNOTATION_ABORTED, MANAGERS
from crrd.core.rollout.patched import read_patched
from crrd.kube.client import KubeClient
from crrd.kube.resources import NODES, PODS, Page
from crrd.lib.errors import (
    ApiRefusedError,
    ApiUnavailableError,
    ConfigurationError,
    ConflictError,
    ExpiredError,
    GoneError,
)
from crrd.lib.supervise import cancel
from crrd.rollout.kept import annotate
from tests.support.patch_cluster import PatchCluster
from tests.support.spelled import image_of, started, with_image

pytestmark = pytest.mark.virtual_time

WEB = ("statefulset/web", "-c", "app", "--run", "r")
NAMES = ["web-0002", "web-0001", "web-0000"]


def world(*containers: str, in_order: bool = True) -> PatchCluster:
    api = PatchCluster(3, containers or ("app",))
    api.stateful_set(3, in_order=in_order)
    return api


def images(api: PatchCluster) -> list[str]:
    return [image_of(api.now(name), "app") for name in NAMES]


async def until(holds: Callable[[], bool]) -> None:
    """Wait until this holds."""
    async with asyncio.timeout(600):
        while not holds():
            await asyncio.sleep(0.01)


async def test_the_next_run_has_other_spellings(capsys: pytest.CaptureFixture[str]) -> None:
    api, seen = world(), []
    for name in ("r", "s", "t"):
        assert await api.recreate(*WEB[:-1], name) == 0
        seen.append(images(api))
    assert (api.created, api.most_away) == (3 * NAMES, 1)
    assert api.restarts == dict.fromkeys(NAMES, 3)
    assert all(len({*some}) == 3 for some in zip(*seen, strict=True)) or seen[0] == seen[2] != seen[1]
    assert await api.recreate("status", "t") == 0
    assert "3 of 3 pods recreated" in capsys.readouterr().out.splitlines()[-5]


async def test_a_patch_whose_response_is_lost_is_not_sent_again() -> None:
    api = world()
    api.lost = {*NAMES}
    assert await api.recreate(*WEB) == 0
    assert (api.restarts, api.created) == (dict.fromkeys(NAMES, 1), NAMES)


async def test_a_container_that_kubelet_has_just_restarted_is_left_alone() -> None:
    """The watch has yet to report it."""
    api = world()

    def crash(name: str) -> None:
        if name == "web-0001" and not api.restarts[name]:
            api.restarts[name] += 1
            api.put(PODS, started(api.now(name), "app", "2026-01-01T00:20:00Z"))

    api.before = crash
    assert await api.recreate(*WEB) == 0
    assert (api.restarts, api.created) == (dict.fromkeys(NAMES, 1), ["web-0002", "web-0000"])


async def test_a_policy_that_denies_a_patch(capsys: pytest.CaptureFixture[str]) -> None:
    api = world()
    api.denies = lambda pod: ApiRefusedError("denied by policy", status=403) if pod == "web-0001" else None
    assert await api.recreate(*WEB) == 1
    assert (api.created, api.restarts["web-0001"]) == (["web-0002"], 0)
    assert "denied by policy" in capsys.readouterr().out


async def test_a_webhook_that_changes_the_image_is_noticed_before_the_first_patch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    api, before = world(), images(world())
    api.mutates = lambda pod: with_image(pod, "app", f"mirror.local/{image_of(pod, 'app')}", "2026-01-01T00:20:00Z")
    assert await api.recreate(*WEB) == 1
    assert (api.created, images(api)) == ([], before)
    assert "a webhook changes the image of container app to mirror.local/" in capsys.readouterr().out


@pytest.mark.parametrize("writes", [1, 2, 3])
@pytest.mark.parametrize("in_order", [True, False])
async def test_killed_after_each_write_and_resumed(writes: int, *, in_order: bool) -> None:
    api = world(in_order=in_order)
    api.hangs = {writes}
    killed = asyncio.create_task(api.recreate(*WEB))
    await until(lambda: len(api.created) == writes)
    await cancel([killed])
    assert await api.recreate("resume", "r") == 0
    assert api.restarts == dict.fromkeys(NAMES, 1)
    assert (api.most_away, len(api.created)) == (1, 3)


async def test_an_abort_from_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    api = world()
    running = asyncio.create_task(api.recreate(*WEB))
    await until(lambda: api.created == NAMES[:2])
    assert await api.recreate("abort", "r") == 0
    assert await running == 1
    await until(lambda: not api.away)
    assert (api.created, api.restarts) == (NAMES[:2], dict.fromkeys(NAMES[:2], 1))
    assert all(ANNOTATION_ABORTED in api.now(name)["metadata"]["annotations"] for name in NAMES[:2])
    capsys.readouterr()
    assert await api.recreate("status", "r") == 0
    assert "aborted" in capsys.readouterr().out
    with pytest.raises(ConfigurationError, match="was aborted"):
        await api.recreate("resume", "r")


async def test_a_pod_that_is_replaced_while_it_restarts() -> None:
    api = world()
    running = asyncio.create_task(api.recreate(*WEB))
    await until(lambda: "web-0001" in api.away)
    api.remove(PODS, "web-0001")
    api.pod("web-0001", "node-0", uid="another", creationTimestamp="2026-01-01T01:00:00Z")
    assert await running == 0
    assert api.created == NAMES
    assert image_of(api.now("web-0001"), "app") == "app:1"


async def test_a_pod_that_is_deleted_just_before_its_patch() -> None:
    """As in a drain, or when its workload is scaled down."""
    api = world()

    def deleted(name: str) -> None:
        if name == "web-0001":
            api.remove(PODS, name)
            asyncio.get_running_loop().call_later(5, made, name)

    def made(name: str) -> None:
        api.pod(name, "node-0", uid="another", creationTimestamp="2026-01-01T01:00:00Z")

    api.before = deleted
    assert await api.recreate(*WEB) == 0
    assert (api.created, image_of(api.now("web-0001"), "app")) == (["web-0002", "web-0000"], "app:1")


async def test_an_image_that_kubelet_does_not_find_is_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    api = world(in_order=False)
    api.missing = {*NAMES}
    assert await api.recreate(*WEB, "--max-unavailable", "2") == 1
    await until(lambda: not api.away)
    assert {*images(api)} == {"app:1"}
    assert sorted(api.restarts.values()) == [1, 1], "they run again, and the third one was not begun"
    assert "ErrImageNeverPull" in capsys.readouterr().out
    assert await api.recreate("resume", "r") == 1
    assert sorted(api.restarts.values()) == [1, 1]


async def test_a_run_by_requests_does_not_begin_beside_one_by_patches() -> None:
    api = world()
    api.crds = True
    running = asyncio.create_task(api.recreate(*WEB, "--via", "patch"))
    await until(lambda: bool(api.away))
    with pytest.raises(ConfigurationError, match=r"run r on statefulset\.apps/web is not finished"):
        await api.recreate(*WEB[:-1], "s", "--via", "daemon")
    assert await running == 0
    assert api.restarts == dict.fromkeys(NAMES, 1)


async def test_a_run_by_patches_does_not_begin_beside_one_by_requests() -> None:
    api = world()
    api.crds = True
    running = asyncio.create_task(api.recreate(*WEB))
    await until(lambda: bool(api.away))
    with pytest.raises(ConfigurationError, match=r"run r on statefulset\.apps/web is not finished"):
        await api.recreate(*WEB[:-1], "s", "--via", "patch")
    assert await running == 0
    assert images(api) == ["app:1"] * 3


@pytest.mark.parametrize(
    ("words", "crds", "daemons", "why"),
    [
        ((), False, True, "crrd is not installed in this cluster"),
        ((), True, True, ""),
        ((), True, False, ""),  # another program serves the requests
        (("--via", "patch"), True, True, "as --via says"),
        (("--via", "daemon"), True, False, ""),
    ],
)
async def test_the_way(
    words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str], *, crds: bool, daemons: bool
) -> None:
    api = world()
    api.crds = crds
    if not daemons:
        api.remove(PODS, "crrd-node-0")
    assert await api.recreate(*WEB[:-2], "--dry-run", *words, "-o", "json") == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert notes == ([f"restarts by patches: {why}"] if why else [])
    assert await api.recreate(*WEB[:-2], "--dry-run", *words) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.partition(": ")[2] == why if why else "by patches" not in first


async def test_a_manager_that_needs_no_node_daemons(capsys: pytest.CaptureFixture[str]) -> None:
    api = world()
    api.crds = True
    api.remove(PODS, "crrd-node-0")
    labels = dict(each.split("=") for each in MANAGERS.split(","))
    manager = {"name": "crrd", "env": [{"name": "CRRD_VIA", "value": "patch"}]}
    meta = {"name": "crrd-manager", "namespace": "crrd-system", "uid": "manager", "labels": labels}
    api.put(PODS, {"metadata": meta, "spec": {"containers": [manager]}})
    assert await api.recreate(*WEB[:-2], "--dry-run") == 0
    assert "restarts by patches: crrd has no node daemons in this" in capsys.readouterr().out


async def test_a_node_without_a_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    api = world()
    api.crds = True
    api.pod("web-0002", "node-7")
    assert await api.recreate(*WEB[:-2], "--dry-run") == 0
    assert "by patches" not in capsys.readouterr().out, "the others have one, and this one may be away for a moment"
    assert await api.recreate("pod/web-0002", "-c", "app", "--dry-run") == 0
    assert "no node of its pods has a node daemon, for example node-7" in capsys.readouterr().out


async def test_one_page_of_pods_is_enough_to_find_a_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    api = world()
    api.crds = True
    assert await api.recreate(*WEB[:-2], "--dry-run") == 0
    pages = [each for each in api.calls if each[1:3] == ("list", "pods")]
    api.calls.clear()
    for number in range(10, 20):
        api.pod(f"web-{number:04}", "node-7")
    assert await api.recreate(*WEB[:-2], "--dry-run") == 0
    assert [each[1:3] for each in api.calls].count(("list", "pods")) == len(pages)
    assert "by patches" not in capsys.readouterr().out


async def test_a_list_of_pods_that_expires_before_a_daemon_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list begins again, as every other."""

    async def expiring(*_: Any, **__: Any) -> AsyncIterator[Page]:
        yield Page([{"spec": {"nodeName": "node-7"}}], "1000")
        raise ExpiredError("too old resource version")

    api = world()
    api.crds = True
    api.pod("web-0002", "node-7")
    monkeypatch.setattr(api, "list_pages", expiring)
    assert await api.recreate(*WEB[:-2], "--dry-run") == 0
    assert "by patches" not in capsys.readouterr().out
    assert await api.recreate("pod/web-0002", "-c", "app", "--dry-run") == 0
    assert "no node of its pods has a node daemon, for example node-7" in capsys.readouterr().out


async def test_what_only_a_daemon_can_do() -> None:
    with pytest.raises(ConfigurationError, match="--unready-grace needs the node daemon"):
        await world().recreate(*WEB, "--via", "patch", "--unready-grace", "5")


@pytest.mark.parametrize("in_order", [True, False])
async def test_two_processes_carry_out_one_run(*, in_order: bool) -> None:
    api = world(in_order=in_order)
    first = asyncio.create_task(api.recreate(*WEB))
    await until(lambda: bool(api.created))
    assert {*await asyncio.gather(first, api.recreate("resume", "r"), api.recreate("resume", "r"))} == {0}
    assert (api.restarts, api.most_away, len(api.created)) == (dict.fromkeys(NAMES, 1), 1, 3)


async def test_a_kubelet_that_is_too_slow_does_not_restart_a_pod_after_the_end() -> None:
    api = world()
    api.STOP_SECONDS = 100.0
    assert await api.recreate(*WEB, "--pod-timeout", "70") == 1
    await asyncio.sleep(500.0)
    assert (api.created, images(api), api.restarts) == (["web-0002", "web-0002"], ["app:1"] * 3, {})


@pytest.mark.parametrize("seconds", [15.0, 30.0])  # kubelet looks for the image before the abort, and after it
async def test_an_abort_gives_images_back_if_no_process_is_left(seconds: float) -> None:
    api = world()
    api.missing, api.STOP_SECONDS = {*NAMES}, seconds
    api.hangs = {1}
    killed = asyncio.create_task(api.recreate(*WEB))
    await until(lambda: bool(api.created))
    await cancel([killed])
    await asyncio.sleep(30.0)
    assert await api.recreate("abort", "r") == 0
    await until(lambda: not api.kubelets)
    assert (images(api), api.restarts) == (["app:1"] * 3, {"web-0002": 1})


TWO = ("app", "log")
ORDERED = ("statefulset/web", "-c", "app", "-c", "log", "--ordered", "--run", "r")
FAULTS = (
    ApiUnavailableError("it is starting"),
    ConflictError("it has changed", status=409),
    ApiRefusedError("denied by policy", status=403),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
async def test_the_next_container_is_patched_once_the_api_server_accepts_it(fault: Exception) -> None:
    api, left = world(*TWO), iter(range(4))

    def denies(pod: str) -> Exception | None:
        begun = api.restarts[pod] and not api.restarts[f"{pod}/log"]
        return fault if begun and next(left, None) is not None else None

    api.denies = denies
    assert await api.recreate(*ORDERED) == 0
    assert api.restarts == {**dict.fromkeys(NAMES, 1), **dict.fromkeys([f"{each}/log" for each in NAMES], 1)}


async def test_a_container_whose_patch_is_denied_for_good_fails_its_pod(capsys: pytest.CaptureFixture[str]) -> None:
    api = world(*TWO)
    api.denies = lambda pod: ApiRefusedError("denied by policy", status=403) if api.restarts[pod] else None
    assert await api.recreate(*ORDERED, "--pod-timeout", "120") == 1
    assert api.created == NAMES[:1]
    assert "cannot patch the pod, retrying: denied by policy" in capsys.readouterr().out


@pytest.mark.parametrize("fault", FAULTS[:2], ids=lambda fault: type(fault).__name__)
async def test_an_image_is_given_back_once_the_api_server_answers(fault: Exception) -> None:
    api, left = world(), iter(range(5))
    api.missing = {NAMES[0]}
    api.denies = lambda _: fault if api.created and next(left, None) is not None else None
    assert await api.recreate(*WEB) == 1
    await until(lambda: not api.kubelets)
    assert (images(api), api.restarts) == (["app:1"] * 3, {NAMES[0]: 1})


async def test_an_abort_begins_no_further_container() -> None:
    api = world(*TWO)
    running = asyncio.create_task(api.recreate(*ORDERED))
    await until(lambda: bool(api.away))
    assert await api.recreate("abort", "r") == 0
    assert await running == 1
    await until(lambda: not api.kubelets)
    assert api.restarts == {NAMES[0]: 1}


async def test_a_record_that_somebody_removes(capsys: pytest.CaptureFixture[str]) -> None:
    """Its container has restarted, which the pod's status says, too."""
    api = world()
    running = asyncio.create_task(api.recreate(*WEB))
    await until(lambda: bool(api.away))
    pod = api.now(NAMES[0])
    api.put(PODS, {**pod, "metadata": {**pod["metadata"], "annotations": {}}})
    assert await running == 0, capsys.readouterr().out
    assert api.restarts == dict.fromkeys(NAMES, 1)


async def test_a_node_that_goes_down_during_a_restart(capsys: pytest.CaptureFixture[str]) -> None:
    """The pod is restarted again once its node is back, also by another process."""
    api = world(in_order=False)
    away = api.pod(NAMES[0], "node-7")

    def node_is(status: str) -> None:
        condition = {"type": "Ready", "status": status, "lastTransitionTime": rfc3339(api.clock.now())}
        api.put(NODES, {"metadata": {"name": "node-7"}, "status": {"conditions": [condition]}})
        pod = api.now(NAMES[0])
        ready = {**pod["status"]["conditions"][0], **condition, "status": str(status == "True")}
        api.put(PODS, {**pod, "status": {**pod["status"], "conditions": [ready]}})

    api.frozen = {away["metadata"]["name"]}
    running = asyncio.create_task(api.recreate(*WEB, "--pod-timeout", "90", "--max-unavailable", "2"))
    await until(lambda: NAMES[0] in api.created)
    node_is("Unknown")
    assert await running == 4, capsys.readouterr().out
    assert api.restarts == dict.fromkeys(NAMES[1:], 1)
    api.frozen = set()
    node_is("True")
    assert await api.recreate("resume", "r") == 0, capsys.readouterr().out
    assert api.restarts == dict.fromkeys(NAMES, 1)


async def test_a_webhook_that_changes_another_container(capsys: pytest.CaptureFixture[str]) -> None:
    """Kubelet would restart that one, too."""
    api = world(*TWO)

    def mirrored(pod: dict[str, Any]) -> dict[str, Any]:
        return with_image(pod, "log", "mirror.local/log:1", "2026-01-01T00:20:00Z")

    api.mutates = mirrored
    assert await api.recreate(*WEB) == 1
    assert (api.created, images(api)) == ([], ["app:1"] * 3)
    assert "a webhook changes the image of container log to mirror.local/log:1" in capsys.readouterr().out


async def test_two_containers_stop_one_after_the_other() -> None:
    """Both have the pod's whole grace period, and kubelet starts none before that."""
    api = world(*TWO)
    with pytest.raises(ConfigurationError, match="may take longer to stop than the time limit"):
        await api.recreate(*ORDERED[:5], "--pod-timeout", "80")  # 60 s, and 30 s to start
    api.STOP_SECONDS = 30.0
    assert await api.recreate(*ORDERED[:5], "--pod-timeout", "95") == 0
    assert api.restarts == {**dict.fromkeys(NAMES, 1), **dict.fromkeys([f"{each}/log" for each in NAMES], 1)}


async def test_a_webhook_for_some_of_the_pods() -> None:
    api = world()

    def mirrored(pod: dict[str, Any]) -> dict[str, Any]:
        mine, image = pod["metadata"]["name"] == "web-0001", image_of(pod, "app")
        return with_image(pod, "app", f"mirror.local/{image}", "2026-01-01T00:20:00Z") if mine and "@" in image else pod

    api.mutates = mirrored
    assert await api.recreate(*WEB) == 1
    assert api.created == NAMES[:1]


async def test_a_second_abort_gives_images_back_that_cannot_be_started_later() -> None:
    api = world()
    api.STOP_SECONDS = 100.0  # a long preStop hook
    api.missing = {NAMES[0]}
    running = asyncio.create_task(api.recreate(*WEB))
    await until(lambda: len(api.created) == 1)
    await cancel([running])
    assert await api.recreate("abort", "r") == 0
    await asyncio.sleep(300)
    assert await api.recreate("abort", "r") == 0
    assert image_of(api.now(NAMES[0]), "app") == "app:1"


async def test_what_is_written_for_a_run_is_not_written_on_the_next_one() -> None:
    api = world()
    assert await api.recreate(*WEB) == 0
    first = read_patched(api.now(NAMES[0]))
    assert first is not None
    await asyncio.sleep(60)
    assert await api.recreate("statefulset/web", "-c", "app", "--run", "s") == 0
    with pytest.raises(GoneError):
        await annotate(cast("KubeClient", api), first, {ANNOTATION_ABORTED: "now"})
    assert ANNOTATION_ABORTED not in api.now(NAMES[0])["metadata"]["annotations"]
