"""Files of pods are refreshed before their containers are restarted: the calls, their order and their time."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from crrd.core.api.types import ANNOTATION_REFRESH
from crrd.core.rollout.phases import Stage
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.restart import FileActions
from crrd.core.rollout.rows import Row
from crrd.kube.client import KubeClient
from crrd.kube.resources import CONFIG_MAPS
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, GoneError
from crrd.rollout.cluster import Cluster
from crrd.rollout.refresher import FileObjects, FileRefresher
from crrd.rollout.text import TextLines
from crrd_localnode.api.admission import AdmissionRequest
from crrd_localnode.api.errors import forbidden
from tests.support.faulty_api import Call
from tests.support.played_cluster import NAMESPACE, PlayedCluster, played
from tests.support.rollouts import member, run
from tests.support.sessions import recreated

MOUNTED: dict[str, Any] = {
    "volumes": [{"name": "cfg", "configMap": {"name": "cfg"}}],
    "volumeMounts": [{"name": "cfg", "mountPath": "/etc/cfg"}],
}
TOKEN = "0123456789abcdef"
PLAN = Plan((), actions=FileActions(((Row("web-0", "uid-web-0", Stage.WAITING, member=member("web-0")), TOKEN),)))
PATCH, CREATE = ("patch", "pods"), ("create", "containerrecreaterequests")
FORBIDDEN = 'pods "web-0" is forbidden: User "ann" cannot patch resource "pods"'


class Api:
    """Answers patches with these errors, then with success."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.written: list[Mapping[str, Any]] = []

    async def merge_patch(self, resource: object, namespace: str, name: str, body: Mapping[str, Any]) -> None:
        assert (str(getattr(resource, "plural", "")), namespace, name) == ("pods", "default", "web-0")
        self.written.append(body)
        if self.errors:
            raise self.errors.pop(0)


class Lines(TextLines):
    """Keeps the printed lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def print_line(self, message: str, details: object = ()) -> None:
        self.lines.append(message)


async def refreshed(api: Api, display: Lines, plan: Plan = PLAN) -> list[tuple[str, str, str]]:
    """Carry out a plan. Return the refreshes that are known then: pod, token, and problem."""
    changed = asyncio.Event()
    known, cluster = FileObjects(changed.set), cast("Cluster", SimpleNamespace(changed=changed))
    await FileRefresher(cast("KubeClient", api), cluster, known, display).carry_out(run(), plan)
    await changed.wait()
    return [(uid, each.token, each.problem) for uid, each in known.state().refreshes.items()]


@pytest.mark.parametrize("plan", [PLAN, Plan((), actions=FileActions(starting=cast("FileActions", PLAN.actions).due))])
async def test_one_annotation_is_written(plan: Plan) -> None:
    api, display = Api(), Lines()
    assert await refreshed(api, display, plan) == [("uid-web-0", TOKEN, "")]
    assert api.written == [{"metadata": {"uid": "uid-web-0", "annotations": {ANNOTATION_REFRESH: TOKEN}}}]
    assert display.lines == []


async def test_a_pod_that_has_the_token_is_not_written_again() -> None:
    api = Api(AssertionError("written"))
    marked = member("web-0", refresh_token=TOKEN)
    plan = Plan((), actions=FileActions(((Row("web-0", "uid-web-0", Stage.WAITING, member=marked), TOKEN),)))
    assert await refreshed(api, Lines(), plan) == [("uid-web-0", TOKEN, "")]


async def test_a_pod_that_is_gone_is_no_problem() -> None:
    assert await refreshed(Api(GoneError("not found", status=404)), Lines()) == [("uid-web-0", TOKEN, "")]


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        (FORBIDDEN, "; to allow it, bind the ClusterRole crrd-read-config"),
        ('admission webhook "pods.example" denied the request: no', ""),
    ],
)
async def test_the_user_is_told_once_why_files_may_be_old(message: str, remedy: str) -> None:
    api, display = Api(*(ApiRefusedError(message, status=403) for _ in range(2))), Lines()
    assert await refreshed(api, display) == [("uid-web-0", TOKEN, message)]
    assert await refreshed(api, display) == [("uid-web-0", TOKEN, message)]
    old = "restarted containers can read a file that is up to a minute old, because pods cannot be patched"
    assert display.lines == [f"{old}: {message}{remedy}"]


@pytest.mark.virtual_time
async def test_an_api_server_that_fails_is_asked_again_for_some_time() -> None:
    api, display = Api(ApiUnavailableError("busy", retry_after=3), ApiUnavailableError("busy")), Lines()
    begin = asyncio.get_running_loop().time()
    assert await refreshed(api, display) == [("uid-web-0", TOKEN, "")]
    assert (len(api.written), display.lines) == (3, [])
    assert asyncio.get_running_loop().time() >= begin + 3
    api = Api(*(ApiUnavailableError("a webhook does not answer") for _ in range(5)))
    assert await refreshed(api, display) == [("uid-web-0", TOKEN, "a webhook does not answer")]
    assert (api.errors, len(display.lines)) == ([], 1)


def is_touch(call: Call) -> bool:
    """Whether it patches a pod, and not its status."""
    return (call.verb, call.resource, call.subresource) == ("patch", "pods", "")


class Watched:
    """A cluster with two pods that mount a ConfigMap, and the writes to its pods and requests."""

    def __init__(self, cluster: PlayedCluster, calls: list[tuple[float, Call]]) -> None:
        self.cluster, self._calls = cluster, calls

    def writes(self) -> list[tuple[float, str, str]]:
        """Time, verb and kind of the writes of runs."""
        found = [(at, call) for at, call in self._calls if is_touch(call) or (call.verb, call.resource) == CREATE]
        return [(at, call.verb, call.resource) for at, call in found if call.status < 300]

    async def tokens(self) -> set[str]:
        return {pod["metadata"].get("annotations", {}).get(ANNOTATION_REFRESH, "") for pod in await self.cluster.pods()}

    async def touched(self) -> None:
        """Return once a pod is patched."""
        async with asyncio.timeout(20):
            while not any(verb == "patch" for _, verb, _ in self.writes()):
                await asyncio.sleep(0.01)


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    calls: list[tuple[float, Call]] = []
    async with played(tmp_path, log=lambda call: calls.append((time.monotonic(), call))) as cluster:
        await cluster.client.create(CONFIG_MAPS, NAMESPACE, {"metadata": {"name": "cfg"}, "data": {"key": "old"}})
        await cluster.workload("Deployment", "web", 2, "app", **MOUNTED)
        yield Watched(cluster, calls)


async def test_each_batch_is_refreshed_and_restarted_two_seconds_later(watched: Watched) -> None:
    assert await recreated(watched.cluster, "deployment/web", "--stale") == 0
    times, writes = zip(*((at, (verb, kind)) for at, verb, kind in watched.writes()), strict=True)
    assert writes == (PATCH, CREATE, PATCH, CREATE)
    assert min(times[1] - times[0], times[3] - times[2]) >= 1.9, "the clock of the test is not that of the run"
    (token,) = await watched.tokens()
    assert len(token) == 16
    assert len(watched.cluster.stops) == 2


async def test_pods_of_one_batch_wait_together(watched: Watched) -> None:
    assert await recreated(watched.cluster, "deployment/web", "--stale", "--max-unavailable", "2") == 0
    assert [(verb, kind) for _, verb, kind in watched.writes()] == [PATCH, PATCH, CREATE, CREATE]


async def test_a_process_that_continues_the_run_patches_no_pod_twice_but_waits_again(watched: Watched) -> None:
    words = ("deployment/web", "--stale", "--max-unavailable", "2", "--run", "mine")
    killed = asyncio.create_task(recreated(watched.cluster, *words))
    await watched.touched()
    await asyncio.sleep(0.5)
    killed.cancel()
    await asyncio.gather(killed, return_exceptions=True)
    again = time.monotonic()
    assert await recreated(watched.cluster, *words) == 0
    writes = watched.writes()
    assert [(verb, kind) for _, verb, kind in writes] == [PATCH, PATCH, CREATE, CREATE]
    assert writes[2][0] >= again + 2
    assert len(watched.cluster.stops) == 2


async def test_without_the_right_the_run_goes_on_and_says_so_once(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    watched.cluster.api.fail_next(9, status=403, match=is_touch)
    assert await recreated(watched.cluster, "deployment/web", "--stale") == 0
    assert [(verb, kind) for _, verb, kind in watched.writes()] == [CREATE, CREATE]
    out = capsys.readouterr().out
    assert out.count("can read a file that is up to a minute old") == 1
    assert "to allow it, bind the ClusterRole crrd-read-config" in out
    assert len(watched.cluster.stops) == 2


async def test_a_webhook_that_denies_the_patch_costs_no_restart(watched: Watched) -> None:
    async def deny(asked: AdmissionRequest) -> None:
        if asked.kind.plural == "pods" and not asked.subresource:
            raise forbidden("", "pods", asked.name, "this pod is not to be touched")

    watched.cluster.api.admission.mutating.append(deny)
    assert await recreated(watched.cluster, "deployment/web", "--stale") == 0
    assert len(watched.cluster.stops) == 2


async def test_a_dry_run_patches_nothing(watched: Watched) -> None:
    assert await recreated(watched.cluster, "deployment/web", "--stale", "--dry-run=server") == 0
    assert await watched.tokens() == {""}
