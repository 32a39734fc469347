"""From words and owner references to resources, as the API server has them."""

from collections.abc import AsyncIterator

import pytest

from crrd.kube.client import KubeClient
from crrd.kube.discovery import find_kind, kind_of
from crrd.kube.resources import PODS, Resource
from crrd.lib.errors import ApiUnavailableError, ConfigurationError
from tests.support.faulty_api import FaultyApiServer
from tests.support.local_api import LocalAccess

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
