"""The whole admission path: the local API server calls a real `crrd manager` over TLS, with the caBundle it wrote."""

import asyncio
import json
import shutil
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from crrd.core.api import types as model
from crrd.kube.resources import PODS, REQUESTS, WEBHOOKS, Resource
from crrd.lib.errors import ApiRefusedError
from crrd_localnode.daemons import Daemon, running_manager
from tests.support.cluster import CRDS, Cluster, Json, container, container_id, states
from tests.support.daemons import NodeDaemon


@pytest.fixture
async def manager(cluster: Cluster) -> AsyncIterator[Daemon]:
    async with running_manager(cluster.local) as found:
        yield found


def plain(cluster: Cluster, name: str, pod: str, *containers: str, **spec: object) -> Json:
    return {
        "apiVersion": model.API_VERSION,
        "kind": model.KIND,
        "metadata": {"name": name, "namespace": cluster.namespace},
        "spec": {"podName": pod, "containers": [{"name": each} for each in containers], **spec},
    }


@pytest.mark.usefixtures("manager")
async def test_what_a_user_writes_is_completed_and_served(cluster: Cluster, node_daemon: NodeDaemon) -> None:
    pod = await cluster.run_pod("web", [container("app"), container("side")])
    created = await cluster.create_request(plain(cluster, "one", "web", "app"))
    assert created["spec"]["containers"][0]["statusContext"]["containerID"] == container_id(pod, "app")
    assert created["spec"]["strategy"]["failurePolicy"] == "Fail"
    assert created["metadata"]["labels"] == {
        model.LABEL_POD_NAME: "web",
        model.LABEL_POD_UID: pod["metadata"]["uid"],
        model.LABEL_NODE_NAME: cluster.node_name,
        model.LABEL_ACTIVE: "true",
    }
    assert states(await cluster.wait_completed("one")) == {"app": "Succeeded"}
    assert node_daemon.pid

    def inactive(request: Json) -> bool:
        return model.LABEL_ACTIVE not in request["metadata"]["labels"]

    await cluster.wait_request("one", inactive, "the manager takes the label active away")


@pytest.mark.parametrize("served", [model.VERSIONS, model.VERSIONS[1:]], ids=["both", "one"])
async def test_a_request_in_another_version_from_admission_to_completed(
    cluster: Cluster, node_daemon: NodeDaemon, served: tuple[str, ...]
) -> None:
    """Also where the daemons' usual version is not served: they take the other one."""
    name = f"{model.PLURAL}.{model.GROUP}"
    crd = await cluster.client.get(CRDS, "", name)
    versions = [{**version, "served": version["name"] in served} for version in crd["spec"]["versions"]]
    await cluster.client.merge_patch(CRDS, "", name, {"spec": {"versions": versions}})
    await node_daemon.restart()
    async with running_manager(cluster.local):
        await cluster.run_pod("web", [container("app")])
        beta = Resource(model.PLURAL, model.GROUP, "v1beta1")
        body = {
            **plain(cluster, "one", "web", "app", ttlSecondsAfterFinished=1),
            "apiVersion": f"{model.GROUP}/v1beta1",
        }
        created = await cluster.client.create(beta, cluster.namespace, body)
        assert created["metadata"]["labels"][model.LABEL_NODE_NAME] == cluster.node_name
        ended = await cluster.wait_completed("one")
        assert states(ended) == {"app": "Succeeded"}
        assert ended["apiVersion"] == f"{model.GROUP}/{served[0]}"
        await cluster.wait_gone(REQUESTS, "one")


@pytest.mark.parametrize(("policy", "completed"), [("Equivalent", True), ("Exact", False)])
async def test_a_version_that_no_rule_names_is_converted_for_admission(
    cluster: Cluster, policy: str, completed: bool
) -> None:
    async with running_manager(cluster.local):
        (stored,) = (await cluster.client.list_all(WEBHOOKS, dict)).items
        (webhook,) = stored["webhooks"]
        rules = [{**rule, "apiVersions": [model.VERSION]} for rule in webhook["rules"]]
        changed = {**webhook, "rules": rules, "matchPolicy": policy}
        await cluster.client.merge_patch(WEBHOOKS, "", stored["metadata"]["name"], {"webhooks": [changed]})
        await cluster.run_pod("web", [container("app")])
        beta = Resource(model.PLURAL, model.GROUP, "v1beta1")
        body = {**plain(cluster, "one", "web", "app"), "apiVersion": f"{model.GROUP}/v1beta1"}
        created = await cluster.client.create(beta, cluster.namespace, body)
        assert created["apiVersion"] == f"{model.GROUP}/v1beta1"
        assert (model.LABEL_NODE_NAME in created["metadata"].get("labels", {})) is completed


@pytest.mark.usefixtures("manager")
async def test_what_cannot_be_served_is_denied_in_one_sentence(cluster: Cluster) -> None:
    await cluster.run_pod("web", [container("app")])
    for body, words in (
        (plain(cluster, "bad", "nowhere", "app"), "nowhere"),
        (plain(cluster, "bad", "web", "nope"), "nope"),
        (plain(cluster, "bad", "web", "app", activeDeadlineSeconds=1), "activeDeadlineSeconds"),
    ):
        with pytest.raises(ApiRefusedError, match=words):
            await cluster.create_request(body)


@pytest.mark.usefixtures("manager")
async def test_the_spec_stays_as_it_is(cluster: Cluster) -> None:
    await cluster.run_pod("web", [container("app"), container("side")])
    await cluster.create_request(plain(cluster, "one", "web", "app"))
    with pytest.raises(ApiRefusedError, match="the spec cannot be changed"):
        await cluster.client.merge_patch(REQUESTS, cluster.namespace, "one", {"spec": {"podName": "other"}})


@pytest.mark.usefixtures("manager")
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here")
async def test_the_same_file_can_be_applied_again(cluster: Cluster, tmp_path: Path) -> None:
    """As GitOps tools do for ever; a change is refused in one sentence."""
    await cluster.run_pod("web", [container("app"), container("side")])
    file = tmp_path / "request.json"
    kubeconfig = cluster.local.kubeconfig

    async def kubectl(verb: str, **spec: object) -> tuple[int, str]:
        file.write_text(json.dumps(plain(cluster, "one", "web", "app", **spec)))
        command = ["kubectl", "--kubeconfig", str(kubeconfig), verb, "-f", str(file)]
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
        said, _ = await process.communicate()
        return process.returncode or 0, said.decode()

    assert (await kubectl("apply"))[0] == 0
    first = await cluster.client.get(REQUESTS, cluster.namespace, "one")
    for verb in ("apply", "replace"):
        code, said = await kubectl(verb)
        assert code == 0, said
        found = await cluster.client.get(REQUESTS, cluster.namespace, "one")
        assert found["spec"] == first["spec"]
        assert found["metadata"]["labels"] == first["metadata"]["labels"]
    code, said = await kubectl("apply", activeDeadlineSeconds=60)
    assert code != 0
    assert said.count("create another request instead") == 1, said


async def test_a_webhook_that_is_away_refuses_or_is_left_out(cluster: Cluster) -> None:
    await cluster.run_pod("web", [container("app")])
    shape: Json = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "away"},
        "webhooks": [
            {
                "name": "away.example",
                "clientConfig": {"url": "https://127.0.0.1:1/x"},
                "rules": [
                    {
                        "apiGroups": [model.GROUP],
                        "apiVersions": ["*"],
                        "resources": [model.PLURAL],
                        "operations": ["CREATE"],
                    }
                ],
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }
    await cluster.client.create(WEBHOOKS, "", shape)
    with pytest.raises(Exception, match="failed calling webhook"):
        await cluster.create_request(plain(cluster, "one", "web", "app"))
    shape["webhooks"][0]["failurePolicy"] = "Ignore"
    await cluster.client.merge_patch(WEBHOOKS, "", "away", {"webhooks": shape["webhooks"]})
    await cluster.create_request(plain(cluster, "one", "web", "app"))
    for selector, asked in (
        ({"matchLabels": {"no": "such"}}, False),
        ({"matchExpressions": [{"key": "no", "operator": "DoesNotExist"}]}, True),
    ):
        shape["webhooks"][0] |= {"failurePolicy": "Fail", "namespaceSelector": selector}
        await cluster.client.merge_patch(WEBHOOKS, "", "away", {"webhooks": shape["webhooks"]})
        if asked:
            with pytest.raises(Exception, match="failed calling webhook"):
                await cluster.create_request(plain(cluster, "two", "web", "app"))
        else:
            await cluster.create_request(plain(cluster, f"free-{asked}".lower(), "web", "app"))
    assert await cluster.client.get(PODS, cluster.namespace, "web")
