"""ContainerRecreatePolicies through the local API server: an edit of a ConfigMap goes live, without a new pod."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from crrd.core.api.time import rfc3339
from crrd.core.config.parts import Part
from crrd.core.config.references import Kind
from crrd.core.policy.observed import Observed
from crrd.core.policy.types import API_VERSION, KIND
from crrd.core.policy.v1alpha1 import read_policy
from crrd.core.rollout.run import LABEL_RUN
from crrd.kube.access.config import AccessSource, find_access
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.events import KubeEventSink
from crrd.kube.resources import CONFIG_MAPS, EVENTS, NODES, PODS, POLICIES, SECRETS, Resource
from crrd.lib.backoff import REFUSED
from crrd.lib.errors import ApiRefusedError, ConflictError
from crrd.lib.health import Health
from crrd.lib.supervise import cancel
from crrd.manager.policies.controller import PolicyController
from crrd.manager.policies.look import UNUSED_SECONDS, Memory, TargetObserver
from crrd.manager.policies.obstacles import Obstacle
from crrd.manager.policies.watches import NamespaceWatches, Scope
from crrd_localnode.api.crds import load_crd
from tests.support.faulty_api import Call
from tests.support.local_api import LocalAccess
from tests.support.played_cluster import NAMESPACE, PlayedCluster, played

CRDS = Resource("customresourcedefinitions", "apiextensions.k8s.io")
ENV_FROM = [{"configMapRef": {"name": "cfg"}}]
FORBIDDEN = "kubectl create rolebinding crrd-read-config -n default --clusterrole=crrd-read-config"


NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Managed:
    """A cluster with policies, and the controller of a manager that leads."""

    def __init__(self, cluster: PlayedCluster, access: AccessSource) -> None:
        self.cluster, self._access = cluster, access
        self.ended: list[tuple[str, str]] = []
        self.controller: PolicyController | None = None
        self._task: asyncio.Future[Any] | None = None
        self._events: KubeEventSink | None = None
        self._client: KubeClient | None = None

    async def lead(self, **options: Any) -> None:
        """A manager begins to lead."""
        clock = ServerClock()
        self._client = KubeClient(self._access, on_date=clock.observe)
        self._events = KubeEventSink(self._client, "manager-1", "crrd-manager")
        account = "crrd-system:crrd-manager"
        self.controller = PolicyController(
            self._client,
            self._events,
            clock,
            account=account,
            on_run=lambda *ended: self.ended.append(ended),
            **options,
        )
        self._task = asyncio.gather(self.controller.run(Health()), self._events.run())

    async def die(self) -> None:
        """It is gone between any two lines."""
        if self._task is not None and self._client is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            await self._client.close()

    async def config(self, **values: str) -> None:
        """The ConfigMap that the containers use has this data."""
        body = {"metadata": {"name": "cfg"}, "data": values}
        client = self.cluster.client
        try:
            await client.create(CONFIG_MAPS, NAMESPACE, body)
        except ConflictError:
            await client.merge_patch(CONFIG_MAPS, NAMESPACE, "cfg", {"data": values})

    async def begin_run(self) -> None:
        """Change the data under a policy. Its run has stopped the first container, which has not started again."""
        await self.policy()
        await self.lead()
        await self.until(is_idle)
        self.cluster.goes_on.clear()
        await self.config(LOG="debug")
        await self.until(lambda _: len(self.cluster.stops) == 1)

    async def fail_run(self) -> tuple[str, str]:
        """Change the data under a policy, whose run fails at the first pod. Return that pod, and the condition."""
        first, _ = [pod["metadata"]["name"] for pod in await self.cluster.pods()]
        await self.policy()
        await self.lead()
        await self.until(is_idle)
        self.cluster.fails[first] = ("PreStopFailed", "it broke")
        await self.config(LOG="debug")
        status = await self.until(lambda status: ready(status).get("reason") == "RunFailed")
        return first, str(ready(status)["message"])

    async def policy(self, name: str = "web", **spec: Any) -> None:
        """A policy for Deployment web."""
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
        plain = {"targetRef": target, "triggers": {"configChange": {"settle": "1s"}}}
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": {**plain, **spec}}
        await self.cluster.client.create(POLICIES, NAMESPACE, body)

    async def events(self) -> list[str]:
        """The reasons of the events on policies."""
        return [each["reason"] for each in await self.all_events() if each["involvedObject"]["kind"] == KIND]

    async def all_events(self) -> list[dict[str, Any]]:
        """All events, once those that wait are written."""
        assert self._events is not None
        assert await self._events.flush(20)
        return list((await self.cluster.client.list_all(EVENTS, dict, namespace=NAMESPACE)).items)

    async def until(self, holds: Callable[[dict[str, Any]], bool], name: str = "web") -> dict[str, Any]:
        """The policy's status, once this holds of it."""
        status: dict[str, Any] = {}
        try:
            async with asyncio.timeout(20):
                while True:
                    status = dict((await self.cluster.client.get(POLICIES, NAMESPACE, name)).get("status") or {})
                    if status.get("conditions") and holds(status):
                        return status
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"not in 20 s: {status}, {self.cluster.stops}") from None


def ready(status: dict[str, Any]) -> dict[str, Any]:
    return next((each for each in status.get("conditions", []) if each["type"] == "Ready"), {})


def is_idle(status: dict[str, Any]) -> bool:
    return ready(status).get("reason") == "Idle"


def effective(status: dict[str, Any]) -> str:
    return next((str(each["status"]) for each in status.get("conditions", []) if each["type"] == "Effective"), "")


def is_done(status: dict[str, Any]) -> bool:
    return is_idle(status) and bool(status.get("run", {}).get("finished"))


@pytest.fixture
async def managed(tmp_path: Path) -> AsyncIterator[Managed]:
    async with managing(tmp_path) as found:
        yield found


@asynccontextmanager
async def managing(folder: Path, token: str = "", **options: Any) -> AsyncIterator[Managed]:
    """Yield a cluster with a Deployment. The manager has this token. `options` are those of FaultyApiServer."""
    async with played(folder, **options) as cluster:
        access: AccessSource = LocalAccess(cluster.api.url)
        if token:
            access = find_access(str(cluster.api.kubeconfig(folder / "manager.kubeconfig", token=token)), {})
        found = Managed(cluster, access)
        await found.config(LOG="info")
        await cluster.workload("Deployment", "web", 2, envFrom=ENV_FROM)
        try:
            yield found
        finally:
            await found.die()


async def test_an_edit_goes_live_pod_by_pod(managed: Managed) -> None:
    cluster = managed.cluster
    pods = [pod["metadata"]["name"] for pod in await cluster.pods()]
    await managed.policy()
    await managed.lead()
    status = await managed.until(is_idle)
    assert [(each["container"], each["kind"], each["name"]) for each in status["config"]] == [
        ("app", "ConfigMap", "cfg")
    ]
    assert cluster.stops == [], "what changed before the policy was created is not its concern"
    await managed.config(LOG="debug")
    status = await managed.until(is_done)
    assert cluster.stops == [(pod, "app") for pod in pods], "the sidecar does not use it"
    run = status["run"]
    assert (run["trigger"], run["containers"], run["failed"]) == ("configChange", ["app"], False)
    assert run["message"] == "2 of 2 pods recreated"
    requests = await cluster.requests()
    assert {each["metadata"]["labels"][LABEL_RUN] for each in requests} == {run["name"]}
    assert managed.ended == [("configChange", "succeeded")]
    events = await managed.all_events()
    assert [(each["reason"], each["involvedObject"]["kind"]) for each in events] == [
        ("ContainersRecreating", "Deployment"),
        ("ContainersRecreating", KIND),
        ("ContainersRecreated", "Deployment"),
        ("ContainersRecreated", KIND),
    ]
    assert managed.controller is not None
    assert managed.controller.states() == {"Idle": 1}


async def test_an_edit_of_what_only_new_pods_use_goes_live_at_once(managed: Managed) -> None:
    """No pod used the object when the policy was looked at last."""
    cluster = managed.cluster
    await managed.policy(selector={"matchLabels": {"app": "late"}}, targetRef=None)
    await managed.lead()
    await managed.until(is_idle)
    await cluster.workload("Deployment", "late", 2, envFrom=ENV_FROM)
    created = (await cluster.client.get(POLICIES, NAMESPACE, "web"))["metadata"]["creationTimestamp"]
    while rfc3339(datetime.now(UTC)) <= created:  # a change in the second of the policy's creation is older than it
        await asyncio.sleep(0.05)
    await managed.config(LOG="debug")
    await managed.until(is_done)
    assert sorted(container for _, container in cluster.stops) == ["app", "app"]


def test_an_unused_object_is_checked_now_and_then() -> None:
    memory, policy = Memory(), read_policy({"spec": {"triggers": {"configChange": {"secrets": True}}}})
    times = (0.0, 1.0, UNUSED_SECONDS - 1, UNUSED_SECONDS, UNUSED_SECONDS + 1)
    config_maps, secrets, pods = (Scope("", resource) for resource in (CONFIG_MAPS, SECRETS, PODS))
    seen = [memory.should_observe(policy, config_maps, "noisy", now) for now in times]
    assert seen == [True, False, False, True, False]
    assert memory.should_observe(policy, secrets, "noisy", UNUSED_SECONDS + 1)
    assert not memory.should_observe(policy, pods, "", 0.0), "it needs no watch of pods"


def test_changes_that_follow_each_other_share_a_look() -> None:
    memory = Memory()
    looks = {memory.when_to_look(each / 10) for each in range(600)}
    assert sorted(looks) == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 25.5, 35.5, 45.5, 55.5, 65.5]
    assert max(looks) >= 59.9, "the last change is looked at, too"
    assert memory.when_to_look(200.0) == 200.0, "at once after a quiet time"


async def test_metadata_and_a_change_that_is_taken_back_restart_nothing(managed: Managed) -> None:
    await managed.policy(triggers={"configChange": {"settle": "2s"}})
    await managed.lead()
    await managed.until(is_idle)
    await managed.cluster.client.merge_patch(CONFIG_MAPS, NAMESPACE, "cfg", {"metadata": {"labels": {"a": "b"}}})
    await managed.config(LOG="debug")
    await managed.until(lambda status: ready(status).get("reason") == "Settling")
    await managed.config(LOG="info")
    status = await managed.until(is_idle)
    assert "run" not in status
    await asyncio.sleep(2.5)  # longer than it would settle
    assert managed.cluster.stops == []


async def test_a_change_without_a_leader_is_seen(managed: Managed) -> None:
    await managed.policy()
    await managed.lead()
    await managed.until(is_idle)
    await managed.die()
    await managed.config(LOG="debug")
    await managed.lead()
    await managed.until(is_done)
    assert len(managed.cluster.stops) == 2


async def test_a_manager_that_dies_in_the_middle_is_followed_by_one_that_goes_on(managed: Managed) -> None:
    cluster = managed.cluster
    await managed.begin_run()
    await managed.die()
    await managed.lead()
    cluster.goes_on.set()
    status = await managed.until(is_done)
    assert len(cluster.stops) == len({*cluster.stops}) == 2, "each once"
    assert len({each["metadata"]["labels"][LABEL_RUN] for each in await cluster.requests()}) == 1
    assert status["run"]["failed"] is False


@pytest.mark.parametrize("resource", ["configmaps", "deployments"])
async def test_a_namespace_that_does_not_allow_it_says_how_to(
    managed: Managed, resource: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Obstacle.RIGHT, "_value_", replace(Obstacle.RIGHT.value, initial=0.5))

    def refused(call: Call) -> bool:
        return call.resource == resource

    managed.cluster.api.fail_next(1000, status=403, match=refused)
    await managed.policy()
    await managed.lead()
    status = await managed.until(lambda status: ready(status).get("reason") == "ConfigNotReadable")
    (readable,) = [each for each in status["conditions"] if each["type"] == "ConfigReadable"]
    assert readable["status"] == "False"
    assert FORBIDDEN in readable["message"]
    assert "--serviceaccount=crrd-system:crrd-manager" in readable["message"]
    managed.cluster.api.clear_faults()
    await managed.until(is_idle)


def test_a_kind_that_no_role_includes_needs_one_of_its_own() -> None:
    """Binding the role once more would change nothing."""
    observer, error = (
        TargetObserver(cast("Any", None), cast("Any", None), "crrd-system:m"),
        ApiRefusedError("no", status=403),
    )
    error.resource = "rollouts.argoproj.io"
    assert observer._unreadable(error, "shop", "crrd-read-config").message == (
        "the manager may not read rollouts.argoproj.io, which crrd-read-config does not allow: bind a Role with get, "
        "list and watch of rollouts.argoproj.io to the ServiceAccount crrd-system:m in shop"
    )


async def test_a_key_that_vanishes_restarts_nothing(managed: Managed) -> None:
    cluster = managed.cluster
    env = [{"name": "LOG", "valueFrom": {"configMapKeyRef": {"name": "cfg", "key": "LOG"}}}]
    await cluster.workload("Deployment", "api", 1, "app", env=env)
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "api"}
    await managed.policy(targetRef=target)
    await managed.lead()
    await managed.until(is_idle)
    await cluster.client.merge_patch(CONFIG_MAPS, NAMESPACE, "cfg", {"data": {"LOG": None, "OTHER": "x"}})
    status = await managed.until(lambda status: ready(status).get("reason") == "ConfigMissing")
    assert ready(status)["message"].startswith("ConfigMap cfg has no key LOG; not restarting containers")
    assert cluster.stops == []
    await managed.config(LOG="debug")
    await managed.until(is_done)
    assert [container for _, container in cluster.stops] == ["app"]


async def test_an_edit_that_only_removes_a_key_goes_live(tmp_path: Path) -> None:
    ago = timedelta(hours=1)
    async with managing(tmp_path, clock=lambda: datetime.now(UTC) - ago) as managed:
        cluster = managed.cluster
        await managed.config(LOG="info", DEBUG="1")
        ago = timedelta(minutes=30)
        for pod in await cluster.pods():
            await cluster.run(pod, started=rfc3339(cluster.api.now()))
        ago = timedelta()
        await managed.policy()
        await managed.lead()
        await managed.until(is_idle)
        await cluster.client.merge_patch(CONFIG_MAPS, NAMESPACE, "cfg", {"data": {"DEBUG": None}})
        await managed.until(is_done)
        assert [container for _, container in cluster.stops] == ["app", "app"]


class Looks:
    """A TargetObserver of policy web, with the watches that it needs."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._changed, self._memory = asyncio.Event(), Memory()
        watches = NamespaceWatches(client, lambda *_: self._changed.set(), lambda *_: None)
        self._observer = TargetObserver(client, watches, "crrd-system:crrd-manager")
        self._watching = asyncio.create_task(watches.run())

    async def look(self) -> Observed | None:
        policy = read_policy(await self._client.get(POLICIES, NAMESPACE, "web"))
        return (await self._observer.look(policy, self._memory, NOW))[1]

    async def after(self, patch: dict[str, Any]) -> datetime | None:
        """The time of the change, as seen after this patch of the ConfigMap."""
        self._changed.clear()
        await self._client.merge_patch(CONFIG_MAPS, NAMESPACE, "cfg", patch)
        await self._changed.wait()
        found = await self.look()
        assert found is not None
        (data,) = found.data.values()
        return data.changed

    async def __aenter__(self) -> "Looks":
        await asyncio.sleep(0)  # the watches begin
        await self.look()
        await self._changed.wait()  # for the list
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel([self._watching])


async def test_a_deleted_optional_object_is_a_change(managed: Managed) -> None:
    """The container would start without it."""
    cluster = managed.cluster
    optional = [{"configMapRef": {"name": "cfg", "optional": True}}]
    await cluster.workload("Deployment", "api", 1, "app", envFrom=optional)
    await managed.policy(targetRef={"apiVersion": "apps/v1", "kind": "Deployment", "name": "api"})
    await managed.lead()
    await managed.until(is_idle)
    await cluster.client.delete(CONFIG_MAPS, NAMESPACE, "cfg")
    await managed.until(is_done)
    assert [container for _, container in cluster.stops] == ["app"]


async def test_a_replaced_immutable_object_restarts_nothing_and_is_shown(tmp_path: Path) -> None:
    """A new pod beside an old one gets the old data, too. Once no pod was there for a moment, new pods get the new."""
    ago = timedelta(hours=1)
    async with managing(tmp_path, clock=lambda: datetime.now(UTC) - ago) as managed:
        cluster, immutable = managed.cluster, {"metadata": {"name": "cfg"}, "immutable": True}
        client = cluster.client
        for pod in await cluster.pods():
            await client.delete(PODS, NAMESPACE, pod["metadata"]["name"], grace_seconds=0)
        await cluster.pod("web-old", {"app": "agent"}, config={"envFrom": ENV_FROM})
        ago = timedelta()
        await managed.policy(selector={"matchLabels": {"app": "agent"}}, targetRef=None)
        await managed.lead()
        await managed.until(is_idle)
        await client.merge_patch(CONFIG_MAPS, NAMESPACE, "cfg", immutable)
        recorded = await managed.until(lambda status: status["config"][0].get("immutable"))
        await client.delete(CONFIG_MAPS, NAMESPACE, "cfg")
        await managed.until(lambda status: ready(status)["reason"] == "ConfigMissing")
        await client.create(CONFIG_MAPS, NAMESPACE, {**immutable, "data": {"LOG": "other"}})
        shown = await managed.until(lambda status: ready(status)["reason"] == "ImmutableReplaced")
        assert shown["config"][0]["done"] == recorded["config"][0]["done"], "it is not recorded as done"
        created = shown["config"][0]["replaced"]
        while rfc3339(cluster.api.now()) <= created:
            await asyncio.sleep(0.05)
        started = rfc3339(cluster.api.now())
        await cluster.run(await cluster.pod("web-new", {"app": "agent"}, config={"envFrom": ENV_FROM}), started=started)
        await client.delete(PODS, NAMESPACE, "web-old")
        await client.delete(PODS, NAMESPACE, "web-old", grace_seconds=0)
        await managed.die()
        await managed.lead()  # it has only the status
        await asyncio.sleep(1)
        status = await managed.until(lambda status: bool(ready(status)))
        assert (ready(status)["reason"], status["config"][0]["nodes"]) == ("ImmutableReplaced", ["node-a"])
        await client.delete(PODS, NAMESPACE, "web-new", grace_seconds=0)
        await managed.until(is_idle)
        changed = datetime.fromisoformat(shown["config"][0]["since"])
        while cluster.api.now() < changed + timedelta(seconds=2):  # the next one starts after `settle`
            await asyncio.sleep(0.05)
        spec = {"nodeName": "node-a", "containers": [{"name": "app", "image": "i:1", "envFrom": ENV_FROM}]}
        body = {"metadata": {"name": "web-next", "labels": {"app": "agent"}}, "spec": spec}
        pod = dict(await client.create(PODS, NAMESPACE, body))
        await cluster.run(pod, started=rfc3339(cluster.api.now()))
        await managed.die()
        await managed.lead()  # no watch tells of a new pod
        await managed.until(lambda status: is_idle(status) and effective(status) == "True")
        assert cluster.stops == []


async def test_a_crd_that_drops_what_a_policy_records_starts_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An immutable object is replaced meanwhile. With the present CRD, its old data is still suspected."""
    monkeypatch.setattr(Obstacle.RIGHT, "_value_", replace(Obstacle.RIGHT.value, initial=0.1))
    ago, old = timedelta(hours=1), load_crd("policies-crd.yaml")
    record = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["config"]
    new = {name: record["items"]["properties"].pop(name) for name in ("immutable", "nodes", "kept", "replaced")}
    async with managing(tmp_path, clock=lambda: datetime.now(UTC) - ago, crds=[load_crd("crd.yaml"), old]) as managed:
        cluster, immutable = managed.cluster, {"metadata": {"name": "cfg"}, "immutable": True}
        await cluster.client.merge_patch(CONFIG_MAPS, NAMESPACE, "cfg", immutable)
        for pod in await cluster.pods():
            await cluster.run(pod, started=rfc3339(cluster.api.now() + timedelta(minutes=5)))
        await managed.policy(triggers={"configChange": {"settle": "0s"}})
        await managed.lead()
        status = await managed.until(lambda status: ready(status).get("reason") == "StatusFieldsDropped")
        assert "the CRD of policies lacks: status.config[].immutable: install crrd again" in ready(status)["message"]
        ago = timedelta()
        await cluster.client.delete(CONFIG_MAPS, NAMESPACE, "cfg")
        await cluster.client.create(CONFIG_MAPS, NAMESPACE, {**immutable, "data": {"LOG": "debug"}})
        await asyncio.sleep(0.3)  # it settles at once
        assert ready(await managed.until(bool))["reason"] == "StatusFieldsDropped"
        record["items"]["properties"] |= new
        await cluster.client.merge_patch(CRDS, "", POLICIES.full_name, {"spec": old["spec"]})
        status = await managed.until(lambda status: ready(status)["reason"] == "ImmutableReplaced")
        assert status["config"][0]["nodes"] == ["node-a"]
        assert cluster.stops == []


async def test_a_target_that_comes_is_found_at_once(managed: Managed) -> None:
    """No check by the clock: the first one would come after 15 s."""
    cluster = managed.cluster
    await managed.policy("late", targetRef={"apiVersion": "apps/v1", "kind": "Deployment", "name": "late"})
    await managed.lead()
    await managed.until(lambda status: ready(status)["reason"] == "TargetNotFound", "late")
    await cluster.workload("Deployment", "late", 1, envFrom=ENV_FROM)
    await managed.until(is_idle, "late")


async def test_a_container_name_that_no_pod_has_is_shown(managed: Managed) -> None:
    await managed.policy(containers=["ap"])
    await managed.lead()
    status = await managed.until(lambda status: ready(status)["reason"] == "ContainerNotFound")
    assert (ready(status)["status"], "that the pods have: app" in ready(status)["message"]) == ("False", True)


async def test_the_time_of_a_removed_key_is_not_the_time_of_the_write_before(managed: Managed) -> None:
    """The write before may be of a label, which the policy's status does not show."""
    await managed.policy()
    async with Looks(managed.cluster.client) as looks:
        assert await looks.after({"data": {"DEBUG": "1", "TRACE": "1"}}) is not None
        assert await looks.after({"metadata": {"labels": {"a": "b"}}}) is not None
        assert await looks.after({"data": {"DEBUG": None}}) is None
        assert await looks.after({"data": {"TRACE": None, "LOG": "warn"}}) is None
        assert await looks.after({"data": {"LOG": "info"}}) is not None


async def test_configuration_is_read_while_no_container_runs(managed: Managed) -> None:
    """Otherwise the policy would forget its record, and take the data at the next start for the first."""
    waiting = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    client = managed.cluster.client
    for pod in await managed.cluster.pods():
        statuses = [{**each, **waiting} for each in pod["status"]["containerStatuses"]]
        body = {"status": {"containerStatuses": statuses}}
        await client.merge_patch(PODS, NAMESPACE, pod["metadata"]["name"], body, subresource="status")
    await managed.policy()
    async with Looks(client) as looks:
        found = await looks.look()
    assert found is not None
    assert list(found.data) == [("app", Part(Kind.CONFIG_MAP, "cfg", ("data.*",)))]
    assert {each.started for each in found.running} == {NOW}, "they start later than this"


async def test_secrets_count_where_asked_for_and_leave_no_plain_hash(managed: Managed) -> None:
    cluster = managed.cluster
    await cluster.client.create(SECRETS, NAMESPACE, {"metadata": {"name": "pw"}, "stringData": {"pw": "1234"}})
    await cluster.workload("Deployment", "api", 1, "app", envFrom=[{"secretRef": {"name": "pw"}}])
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "api"}
    await managed.policy(targetRef=target, triggers={"configChange": {"settle": "1s", "secrets": True}})
    await managed.lead()
    before = (await managed.until(is_idle))["config"][0]
    assert (before["kind"], len(before["hash"])) == ("Secret", 32)
    await cluster.client.merge_patch(SECRETS, NAMESPACE, "pw", {"stringData": {"pw": "5678"}})
    after = (await managed.until(is_done))["config"][0]
    assert after["hash"] != before["hash"]
    assert len(cluster.stops) == 1


async def test_a_failed_run_stops_the_policy_and_says_why(managed: Managed) -> None:
    cluster = managed.cluster
    first, message = await managed.fail_run()
    assert f"{first}: app: it broke" in message
    assert managed.ended == [("configChange", "failed")]
    cluster.fails.clear()
    await managed.config(LOG="warn")
    await managed.until(is_done)
    assert len(cluster.stops) == 2


async def test_a_failed_run_that_a_user_resumes_no_longer_stops_the_policy(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crrd.core.policy.decide.FAILED_RETRY", timedelta(seconds=0.3))
    cluster = managed.cluster
    _, message = await managed.fail_run()
    cluster.fails.clear()
    command = message.partition("`kubectl recreate ")[2].partition("`")[0]
    assert (await cluster.recreate(*command.split(), "--yes")).code == 0
    status = await managed.until(is_done)
    assert status["run"]["failed"] is False
    assert len(cluster.stops) == 2
    await managed.config(LOG="warn")
    await managed.until(lambda _: len(cluster.stops) == 4)


async def test_a_run_that_cannot_go_on_is_announced_once(managed: Managed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crrd.lib.backoff.REFUSED", replace(REFUSED, initial=0.1))
    cluster, attempts = managed.cluster, 0

    def creates(call: Call) -> bool:
        nonlocal attempts
        found = call.verb == "create" and call.resource == "containerrecreaterequests"
        attempts += found
        return found

    await managed.policy()
    await managed.lead()
    await managed.until(is_idle)
    cluster.api.fail_next(1000, status=403, match=creates)
    await managed.config(LOG="debug")
    await managed.until(lambda _: attempts >= 3)
    cluster.api.clear_faults()
    await managed.until(is_done)
    assert await managed.events() == ["ContainersRecreating", "ContainersRecreated"]


async def test_the_end_of_a_run_does_not_claim_that_an_edit_was_seen(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools that wait for the manager would take the condition of before for that of the edit."""
    cluster = managed.cluster
    await managed.begin_run()
    held, look = asyncio.Event(), TargetObserver.look

    async def slow(*parts: Any) -> Any:
        await held.wait()
        return await look(*parts)

    monkeypatch.setattr(TargetObserver, "look", slow)
    budget = {"spec": {"budget": {"minReady": "1s"}}}
    await cluster.client.merge_patch(POLICIES, NAMESPACE, "web", budget)
    cluster.goes_on.set()
    status = await managed.until(lambda status: bool(status["run"].get("finished")))
    assert (status["observedGeneration"], ready(status)["reason"]) == (1, "Running")
    held.set()
    await managed.until(lambda status: is_done(status) and status["observedGeneration"] == 2)


async def test_a_run_whose_end_cannot_be_written_at_once_ends_once(managed: Managed) -> None:
    cluster = managed.cluster
    await managed.begin_run()

    def ends(call: Call) -> bool:
        return call.resource == "containerrecreatepolicies" and call.verb == "patch" and bool(managed.ended)

    cluster.api.fail_next(2, status=500, match=ends)
    cluster.goes_on.set()
    await managed.until(is_done)
    assert managed.ended == [("configChange", "succeeded")]
    assert await managed.events() == ["ContainersRecreating", "ContainersRecreated"]


async def test_a_run_that_another_leader_has_ended_is_not_ended_again(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process writes late, because its first write failed. Its next look comes later still."""
    cluster = managed.cluster
    await managed.begin_run()
    failed = asyncio.Event()
    monkeypatch.setattr(TargetObserver, "look", lambda *_: asyncio.Event().wait())
    (task,) = (each for each in asyncio.all_tasks() if each.get_name().startswith("run web-"))

    def ends(call: Call) -> bool:
        is_end = call.resource == "containerrecreatepolicies" and call.verb == "patch" and bool(managed.ended)
        if is_end:
            failed.set()
        return is_end

    cluster.api.fail_next(1, status=500, match=ends)
    cluster.goes_on.set()
    await failed.wait()
    other = {"finished": rfc3339(datetime.now(UTC)), "message": "ended by another leader"}
    await cluster.client.merge_patch(POLICIES, NAMESPACE, "web", {"status": {"run": other}}, subresource="status")
    await task
    policy = await cluster.client.get(POLICIES, NAMESPACE, "web")
    assert policy["status"]["run"]["message"] == "ended by another leader"


DAEMON = {"app.kubernetes.io/name": "crrd", "app.kubernetes.io/component": "node"}


async def test_a_node_without_daemon_is_waited_for(managed: Managed) -> None:
    """Containers there keep the old data: the policy must not call that done."""
    cluster = managed.cluster
    first, second = [pod["metadata"]["name"] for pod in await cluster.pods()]
    await cluster.pod("crrd-node-b", DAEMON, node="node-b")
    await managed.policy()
    await managed.lead()
    await managed.until(is_idle)
    await managed.config(LOG="debug")
    status = await managed.until(lambda status: ready(status).get("reason") == "WaitingForNodes")
    assert ready(status)["status"] == "False"
    assert ready(status)["message"] == (
        f"not restarted yet: {first}, {second} (the node has no node daemon): "
        "a run restarts them when their nodes are back"
    )
    await cluster.pod("crrd-node-a", DAEMON, node="node-a")
    assert (await managed.until(is_done))["run"]["message"] == "2 of 2 pods recreated"


async def test_a_dead_node_stops_no_run_and_is_restarted_when_it_is_back(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crrd.core.rollout.limits.NODE_SECONDS", 0.2)
    cluster = managed.cluster
    for name, node in (("dead", "node-b"), ("live-1", "node-a"), ("live-2", "node-a")):
        await cluster.pod(name, {"app": "agent"}, node=node, config={"envFrom": ENV_FROM})
    for node in ("node-a", "node-b"):
        await cluster.pod(f"crrd-{node}", DAEMON, node=node)
    for name in ("dead", "crrd-node-b"):
        await cluster.set_ready(name, ready=False)
    conditions = [{"type": "Ready", "status": "Unknown"}]
    await cluster.client.create(NODES, "", {"metadata": {"name": "node-b"}, "status": {"conditions": conditions}})
    selector = {"matchLabels": {"app": "agent"}}
    await managed.policy(targetRef=None, selector=selector, budget={"maxUnavailable": 2})
    await managed.lead()
    await managed.until(is_idle)
    await managed.config(LOG="debug")
    status = await managed.until(lambda status: bool(status.get("run", {}).get("finished")))
    assert sorted(cluster.stops) == [("live-1", "app"), ("live-2", "app")]
    assert status["run"]["message"].startswith("2 of 3 pods recreated, 1 put off: dead: node node-b is not ready")
    assert not status["run"].get("failed")
    status = await managed.until(lambda status: ready(status).get("reason") == "WaitingForNodes")
    assert "dead (node node-b is not ready)" in ready(status)["message"], "as the run says"
    assert managed.ended == [("configChange", "incomplete")]
    body = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await cluster.client.merge_patch(NODES, "", "node-b", body, subresource="status")
    await cluster.set_ready("crrd-node-b", ready=True)
    await managed.until(lambda status: is_idle(status) and len(cluster.stops) == 3)
    assert cluster.stops[-1] == ("dead", "app")
    assert managed.ended == [("configChange", "incomplete"), ("configChange", "succeeded")]
    begins = "ContainersRecreating"
    assert await managed.events() == [begins, "ContainersRecreateIncomplete", begins, "ContainersRecreated"]


async def test_a_run_of_a_user_that_started_first_is_waited_for(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crrd.manager.policies.run_task.RETRY_SECONDS", 0.2)
    monkeypatch.setattr("crrd.manager.policies.run_task.PROGRESS_SECONDS", 0.1)
    cluster = managed.cluster
    await managed.policy()
    await managed.lead()
    await managed.until(is_idle)
    cluster.goes_on.clear()
    user = asyncio.create_task(cluster.recreate("deploy/web", "-c", "app"))
    await managed.until(lambda _: len(cluster.stops) == 1)
    await managed.config(LOG="debug")
    await managed.until(lambda status: "started first" in ready(status)["message"])
    assert len(cluster.stops) == 1
    cluster.goes_on.set()
    assert (await user).code == 0
    await managed.until(is_done)


async def test_a_second_edit_takes_over_from_the_run_of_the_first(managed: Managed) -> None:
    """The first edit may be one with which the container never becomes ready; the second one repairs it."""
    cluster = managed.cluster
    first, second = [pod["metadata"]["name"] for pod in await cluster.pods()]
    await managed.begin_run()
    (replaced,) = await cluster.requests()
    await managed.config(LOG="warn")
    await managed.until(lambda _: cluster.stops == [(first, "app"), (first, "app")])
    (request,) = await cluster.requests()
    assert request["metadata"]["labels"][LABEL_RUN] != replaced["metadata"]["labels"][LABEL_RUN]
    cluster.goes_on.set()
    status = await managed.until(is_done)
    assert cluster.stops == [(first, "app"), (first, "app"), (second, "app")], (
        "the second pod once, and after the first"
    )
    events = await managed.all_events()
    begun = [
        each for each in events if each["reason"] == "ContainersRecreating" and each["involvedObject"]["kind"] == KIND
    ]
    assert len(begun) == 2, "one for each run"
    assert status["run"]["name"] in begun[1]["message"]


async def test_a_policy_whose_deletion_a_finalizer_delays_restarts_no_further_pod(managed: Managed) -> None:
    """As with `kubectl delete --cascade=foreground`."""
    await managed.begin_run()
    client = managed.cluster.client
    for finalizers in (["example.com/stuck"], None):
        await client.merge_patch(POLICIES, NAMESPACE, "web", {"metadata": {"finalizers": finalizers}})
        if finalizers:
            await client.delete(POLICIES, NAMESPACE, "web")
            status = await managed.until(lambda status: ready(status).get("reason") == "Suspended")
            assert ready(status)["message"] == "the policy is being deleted"
            managed.cluster.goes_on.set()
            await asyncio.sleep(3.0)
            assert len(managed.cluster.stops) == 1
    with pytest.raises(ApiRefusedError):
        await client.get(POLICIES, NAMESPACE, "web")


@pytest.mark.parametrize(
    ("spec", "reason", "message"),
    [
        ({"suspend": True}, "Suspended", "spec.suspend is true"),
        (
            {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "nope"}},
            "TargetNotFound",
            'deployment.apps "nope" not found in namespace "default"',
        ),
        (
            {"triggers": {"schedule": {"cron": "0 99 * * *"}}},
            "InvalidSpec",
            "spec.triggers.schedule must be valid: cron '0 99 * * *': bad hour",
        ),
        (
            {"triggers": {"schedule": {"cron": "0 0 */3 2 5#5"}}},
            "InvalidSpec",
            "spec.triggers.schedule must be valid: cron '0 0 */3 2 5#5' matches no time",
        ),
        (
            {"targetRef": {"apiVersion": "v1", "kind": "Service", "name": "web"}},
            "PodsNotOwned",
            (
                "Service web owns no pods; 2 pods match its selector, but other workloads own them: "
                "name the workload that owns the pods in spec.targetRef, or use spec.selector"
            ),
        ),
    ],
)
async def test_what_cannot_work_is_said(managed: Managed, spec: dict[str, Any], reason: str, message: str) -> None:
    service = {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}}}
    await managed.cluster.client.create(Resource("services"), NAMESPACE, service)
    await managed.policy(**spec)
    await managed.lead()
    status = await managed.until(lambda status: bool(ready(status)))
    assert (ready(status)["reason"], ready(status)["message"]) == (reason, message)


@pytest.mark.parametrize("window", [{}, {"window": {"cron": "* * * * *", "duration": "1h"}}])
async def test_runs_that_wait_let_others_run(
    managed: Managed, monkeypatch: pytest.MonkeyPatch, window: dict[str, Any]
) -> None:
    """A PodDisruptionBudget that allows nothing would hold a place for ever."""
    monkeypatch.setattr("crrd.manager.policies.run_task.PARALLEL_RUNS", 2)
    monkeypatch.setattr("crrd.core.policy.pace.TURN_SECONDS", 1.5)
    for name, value in {"RETRY_SECONDS": 0.2, "PROGRESS_SECONDS": 0.1}.items():
        monkeypatch.setattr(f"crrd.manager.policies.run_task.{name}", value)
    cluster = managed.cluster

    def target(name: str) -> dict[str, Any]:
        return {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}

    for name in ("one", "two"):
        await cluster.workload("Deployment", name, 1)
        await cluster.budget(name, {"app": name}, 0)
        await managed.policy(name, targetRef=target(name), triggers={"maxAge": "10m"}, **window)
    await cluster.workload("Deployment", "free", 1)
    await managed.lead()
    for name in ("one", "two"):
        await managed.until(lambda status: "PodDisruptionBudget" in ready(status).get("message", ""), name)
    await managed.policy("free", targetRef=target("free"), triggers={"maxAge": "10m"})
    await managed.until(lambda status: "waiting for its turn: 2 runs" in ready(status).get("message", ""), "free")
    await managed.until(is_done, "free")
    assert {pod.partition("-")[0] for pod, _ in cluster.stops} == {"free"}
    status = await managed.until(lambda status: "PodDisruptionBudget" in ready(status)["message"], "one")
    assert ready(status)["reason"] == "Running"


async def test_a_wait_names_fields_of_the_policy_and_no_flags(managed: Managed) -> None:
    """StatefulSet db is restarted from the highest ordinal, and db-0 has used up the budget."""
    await managed.cluster.workload("StatefulSet", "db", 2)
    await managed.cluster.set_ready("db-0", ready=False)
    target = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db"}
    await managed.policy("db", targetRef=target, triggers={"maxAge": "10m"})
    await managed.lead()
    status = await managed.until(lambda status: "comes later" in ready(status)["message"], "db")
    assert "--" not in ready(status)["message"]
    assert "restart pod db-0 first, or set spec.budget.maxUnavailable to 2" in ready(status)["message"]


async def test_the_workload_says_how_long_a_pod_must_be_ready(managed: Managed) -> None:
    client = managed.cluster.client
    await managed.policy()
    await client.merge_patch(Resource("deployments", "apps"), NAMESPACE, "web", {"spec": {"minReadySeconds": 30}})
    async with Looks(client) as looks:
        found = await looks.look()
        while found is None:  # its watches have not listed yet
            await asyncio.sleep(0.01)
            found = await looks.look()
        assert found.workload_min_ready == 30


async def test_a_selector_that_the_api_server_refuses_is_said(managed: Managed) -> None:
    def pods(call: Call) -> bool:
        return call.resource == "pods" and call.name == ""

    managed.cluster.api.fail_next(1000, status=400, match=pods)
    await managed.policy(selector={"matchLabels": {"app": "a b"}}, targetRef=None)
    await managed.lead()
    status = await managed.until(lambda status: bool(ready(status)))
    assert "400" in ready(status)["message"]
    assert effective(status) == "", "whether pods match it is not known"


async def test_the_last_policy_of_a_namespace_takes_its_watches_along(managed: Managed) -> None:
    """In a namespace that has gone they would be refused for ever."""

    def watches() -> int:
        return sum("configmaps" in task.get_name() for task in asyncio.all_tasks())

    await managed.policy()
    await managed.policy("other")
    await managed.lead()
    await managed.until(is_idle)
    await managed.until(is_idle, "other")
    both, client = watches(), managed.cluster.client
    await client.delete(POLICIES, NAMESPACE, "web")
    await asyncio.sleep(0.5)
    assert watches() == both
    await client.delete(POLICIES, NAMESPACE, "other")
    async with asyncio.timeout(10):
        while watches() == both:
            await asyncio.sleep(0.05)


async def test_a_policy_without_secrets_takes_their_watch_along(managed: Managed) -> None:
    def is_watched() -> bool:
        return any("secrets" in task.get_name() for task in asyncio.all_tasks())

    await managed.policy(triggers={"configChange": {"settle": "1s", "secrets": True}})
    await managed.lead()
    await managed.until(is_idle)
    assert is_watched()
    body = {"spec": {"triggers": {"configChange": {"secrets": False}}}}
    await managed.cluster.client.merge_patch(POLICIES, NAMESPACE, "web", body)
    async with asyncio.timeout(10):
        while is_watched():
            await asyncio.sleep(0.05)


async def test_a_policy_by_age_and_one_that_is_deleted(managed: Managed) -> None:
    cluster = managed.cluster
    await managed.policy(triggers={"maxAge": "10m"}, containers=["side"], budget={"maxUnavailable": "100%"})
    await managed.lead()
    await managed.until(is_done)
    assert sorted({container for _, container in cluster.stops}) == ["side"]
    assert len(cluster.stops) == 2
    cluster.goes_on.clear()
    await managed.policy("again", selector={"matchLabels": {"app": "web"}}, targetRef=None, triggers={"maxAge": "10m"})
    await managed.until(lambda status: len(cluster.stops) == 3, "again")
    await cluster.client.delete(POLICIES, NAMESPACE, "again")
    cluster.goes_on.set()
    await asyncio.sleep(1.5)
    assert len(cluster.stops) == 3, "what was in progress finishes, and nothing else begins"


async def test_a_change_that_settles_while_its_watch_reconnects_goes_live_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch continues where it ended, so nothing but the controller itself looks at the policy again."""
    monkeypatch.setattr(Obstacle.RIGHT, "_value_", replace(Obstacle.RIGHT.value, maximum=0.2))
    ahead = timedelta()
    async with managing(tmp_path, clock=lambda: datetime.now(UTC) + ahead) as managed:
        api, seen = managed.cluster.api, list[str]()
        await managed.policy(triggers={"configChange": {"settle": "1h"}})
        await managed.lead()
        await managed.until(is_idle)
        await managed.config(LOG="debug")
        await managed.until(lambda status: ready(status).get("reason") == "Settling")

        def is_watch(call: Call) -> bool:
            seen.extend([call.verb] * (call.resource == "configmaps"))
            return call.verb == "watch" and call.resource == "configmaps"

        api.fail_next(1000, status=500, match=is_watch)
        api.end_watches()  # the API server restarts
        async with asyncio.timeout(20):
            while "watch" not in seen:
                await asyncio.sleep(0.01)
            ahead = timedelta(hours=2)
            assert managed.controller is not None
            managed.controller.queue.wake(f"{NAMESPACE}/web")
            while "list" not in seen:  # the controller looks at the policy, and the watch has not reconnected
                await asyncio.sleep(0.01)
        api.clear_faults()
        await managed.until(is_done)


ROLLOUT = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "canary", "uid": "rollout-1"}


async def canary(cluster: PlayedCluster, **fields: Any) -> list[str]:
    """Another Deployment, whose pods have the labels that Deployment web selects."""
    pods = await cluster.workload("Deployment", "canary", 1, **fields)
    for pod in pods:
        await cluster.client.merge_patch(PODS, NAMESPACE, pod, {"metadata": {"labels": {"app": "web"}}})
    return pods


async def test_pods_of_another_workload_do_not_count(managed: Managed) -> None:
    cluster = managed.cluster
    await canary(cluster, envFrom=[{"configMapRef": {"name": "canary"}}])
    await managed.policy(triggers={"configChange": {"settle": "1s"}, "maxAge": "1h"})
    for pod in await cluster.pods():
        if pod["metadata"]["name"].startswith("web"):
            await cluster.run(pod, started=rfc3339(cluster.api.now()))
    await managed.lead()
    status = await managed.until(lambda status: bool(ready(status)))
    assert ready(status)["reason"] == "Idle", "the canary's ConfigMap is missing, and its container is old"
    await cluster.client.create(CONFIG_MAPS, NAMESPACE, {"metadata": {"name": "canary"}, "data": {"LOG": "debug"}})
    await managed.config(LOG="debug")
    status = await managed.until(is_done)
    assert [each["name"] for each in status["config"]] == ["cfg"]
    assert {pod.partition("-")[0] for pod, _ in cluster.stops} == {"web"}
    assert [each.rpartition(" ")[0] for each in status["run"]["objects"]] == ["ConfigMap cfg (data.*)"]


async def test_an_owner_that_cannot_be_read_is_another_workload(managed: Managed) -> None:
    cluster = managed.cluster
    await cluster.pod("web-canary", {"app": "web"}, ownerReferences=[{**ROLLOUT, "controller": True}])
    await managed.policy()
    await managed.lead()
    await managed.until(is_idle)
    await managed.config(LOG="debug")
    await managed.until(is_done)
    assert "web-canary" not in {pod for pod, _ in cluster.stops}
    assert len(cluster.stops) == 2
