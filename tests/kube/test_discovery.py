"""From words and owner references to resources, as the API server has them."""

from collections.abc import AsyncIterator

import pytest

from crrd.kube.client import KubeClient
from crrd.kube.discovery import find_kind, kind_of
from crrd.kube.resources import PODS, Resource
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError
from tests.support.faulty_api import FaultyApiServer
from tests.support.local_api import LocalAccess
from tests.support.scripted_api import Reply, refuse, reply, scripted_api, vanish

REQUESTS = Resource("containerrecreaterequests", "apps.kruise.io", "v1alpha1")
PREFERRED = Resource("containerrecreaterequests", "apps.kruise.io", "v1beta1")


@pytest.fixture
async def server() -> AsyncIterator[FaultyApiServer]:
    async with FaultyApiServer() as api:
        yield api


@pytest.fixture
async def client(server: FaultyApiServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(LocalAccess(server.url)) as found:
        yield found


@pytest.mark.parametrize(
    ("word", "resource"),
    [
        ("po", PODS),
        ("Pods", PODS),
        ("deploy", Resource("deployments", "apps")),
        ("deployments.apps", Resource("deployments", "apps")),
        ("statefulset.v1.apps", Resource("statefulsets", "apps")),
        ("job", Resource("jobs", "batch")),
        ("cm", Resource("configmaps")),
        ("lease", Resource("leases", "coordination.k8s.io")),
        ("crr", PREFERRED),
        ("crr.apps.kruise.io", PREFERRED),
        ("containerrecreaterequest.v1alpha1.apps.kruise.io", REQUESTS),
    ],
)
async def test_words(client: KubeClient, word: str, resource: Resource) -> None:
    found = await find_kind(client, word)
    assert found.resource == resource
    assert found.namespaced


@pytest.mark.parametrize("word", ["thing", "deployments.apps.kruise.io", "crr.apps", "crr.v9.apps.kruise.io", ""])
async def test_words_that_name_nothing(client: KubeClient, word: str) -> None:
    with pytest.raises(ConfigurationError, match="the API server has no resource type"):
        await find_kind(client, word)


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        (refuse(503, "service unavailable"), "service unavailable (503)"),
        (refuse(403, "not yours"), "not yours (403)"),
        (reply(b"<html>"), "the response is not JSON (6 bytes)"),
    ],
)
async def test_a_broken_group_hides_no_other(failure: Reply, why: str) -> None:
    """As of an aggregated API whose server is down: kubectl goes on with the rest, too."""
    names = ("broken.example/v1", "argoproj.io/v1")
    groups = [{"name": name.partition("/")[0], "versions": [{"groupVersion": name}]} for name in names]
    rollouts = {"resources": [{"name": "rollouts", "singularName": "rollout", "kind": "Rollout", "namespaced": True}]}
    async with scripted_api() as api, KubeClient(LocalAccess(api.url)) as client:
        for word, found in (("rollout", True), ("typo", False)):
            api.then(reply({"resources": []}), reply({"groups": groups}), failure, reply(rollouts))
            if found:
                assert (await find_kind(client, word)).resource == Resource("rollouts", "argoproj.io")
                continue
            with pytest.raises(
                ConfigurationError, match=r"^resource type 'typo' not found, and .*broken.example"
            ) as caught:
                await find_kind(client, word)
            assert str(caught.value).endswith(why)
        for ends, error in ((refuse(401), ApiRefusedError), (vanish(), ApiUnavailableError)):
            api.script.clear()
            api.then(reply({"resources": []}), reply({"groups": groups}), ends, *[vanish()] * 5)
            with pytest.raises(error):
                await find_kind(client, "rollout")


async def test_owner_references(client: KubeClient) -> None:
    assert (await kind_of(client, "apps/v1", "ReplicaSet")).resource == Resource("replicasets", "apps")
    assert (await kind_of(client, "v1", "Node")).namespaced is False
    found = await kind_of(client, "apps.kruise.io/v1alpha1", "ContainerRecreateRequest")
    assert (found.resource, found.word) == (REQUESTS, "containerrecreaterequest.apps.kruise.io")
    for odd in (("apps/v1", "Nothing"), ("nowhere/v1", "Thing")):
        with pytest.raises(ConfigurationError, match=f"the API server has no kind {odd[1]} in {odd[0]}"):
            await kind_of(client, *odd)


@pytest.mark.parametrize(
    "api_version", ["apps.kruise.io/v1alpha1/containerrecreaterequests", "apps/v1?watch=1", "../api/v1/secrets", ""]
)
async def test_an_owner_reference_names_no_other_path(
    server: FaultyApiServer, client: KubeClient, api_version: str
) -> None:
    """Whoever may write an object, or a policy, would choose what is read with the manager's rights."""
    await server.stop()
    with pytest.raises(ConfigurationError, match="the API server has no kind Thing in"):
        await kind_of(client, api_version, "Thing")


async def test_what_every_cluster_has_costs_no_call(server: FaultyApiServer, client: KubeClient) -> None:
    await server.stop()
    assert (await find_kind(client, "sts")).kind == "StatefulSet"
    with pytest.raises(ApiUnavailableError):
        await find_kind(client, "thing")
