"""`crrd doctor` tries what a user's create needs: the manager's own webhook over TLS, and the manifests' policies."""

import base64
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from crrd.cli.doctor import Reader
from crrd.core.api.types import PLURAL
from crrd.core.doctor.checks import examine
from crrd.core.doctor.findings import Check, Finding, State, Topic
from crrd.kube.clock import ServerClock
from crrd.kube.resources import WEBHOOKS, Resource
from crrd_localnode.api.admission import AdmissionRequest
from crrd_localnode.api.errors import ApiError
from tests.support.manifests import needs_kubectl, one, rendered
from tests.support.played_cluster import NAMESPACE, PlayedCluster, played
from tests.support.policies import Rules, Who, Write
from tests.support.webhook import new_certificates, webhook

Json = dict[str, Any]
pytestmark = needs_kubectl
DAEMON = {"app.kubernetes.io/name": "crrd", "app.kubernetes.io/component": "node"}
NOWHERE = {"matchLabels": {"nowhere": "true"}}
DENIES_ALL: list[Json] = [
    {
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "in-the-way"},
        "spec": {
            "matchConstraints": {
                "resourceRules": [{"apiGroups": ["apps.kruise.io"], "resources": [PLURAL], "operations": ["CREATE"]}]
            },
            "validations": [{"expression": "false", "message": "not in this cluster"}],
        },
    },
    {
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "in-the-way"},
        "spec": {"policyName": "in-the-way", "validationActions": ["Deny"]},
    },
]


@dataclass
class Installed:
    """A cluster with the manager's webhook and the manifests' policies, which a test may damage."""

    cluster: PlayedCluster
    hook: Json
    policies: list[Json]

    async def validate(self, asked: AdmissionRequest) -> None:
        """Deny what a policy denies, with the API server's message and status."""
        if asked.kind.plural != PLURAL or asked.new is None:
            return
        write = Write(asked.old, dict(asked.new))
        if message := Rules(self.policies).refused(Who(asked.user.name), write):
            what = f'{PLURAL}.apps.kruise.io "{asked.name}" is forbidden'
            raise ApiError(422, f"{what}: ValidatingAdmissionPolicy 'x' with binding 'x' denied request: {message}")

    async def admission(self, namespace: str = NAMESPACE) -> Finding:
        """What doctor finds about admission."""
        body = {"metadata": {"name": "crrd"}, "webhooks": [self.hook]}
        await self.cluster.client.create(WEBHOOKS, "", body)
        client = self.cluster.client
        facts = await Reader(client).facts({}, namespace, ServerClock())
        (finding,) = [each for each in examine(facts) if each.check is Check.ADMISSION]
        assert not await self.cluster.requests()
        return finding


@pytest.fixture
async def installed(tmp_path: Path) -> AsyncIterator[Installed]:
    async with installing(tmp_path) as found:
        yield found


@asynccontextmanager
async def installing(folder: Path) -> AsyncIterator[Installed]:
    async with played(folder, admission=False) as cluster, webhook(cluster.client) as served:
        objects = copy.deepcopy(rendered("default"))
        hook = one(objects, "MutatingWebhookConfiguration", "crrd")["webhooks"][0]
        bundle = base64.b64encode(served.certificates.bundle).decode()
        hook["clientConfig"] = {"url": f"https://{served.address}/mutate-crr", "caBundle": bundle}
        found = Installed(cluster, hook, objects)
        cluster.api.admission.validating.append(found.validate)
        await cluster.client.create(Resource("namespaces"), "", {"metadata": {"name": "empty"}})
        yield found


def without_policies(found: Installed) -> None:
    found.policies.clear()
    found.hook["namespaceSelector"] = NOWHERE


def wrong_path(found: Installed) -> None:
    found.hook["clientConfig"]["url"] = found.hook["clientConfig"]["url"].replace("mutate-crr", "mutate")


def ignored(found: Installed) -> None:
    wrong_path(found)
    found.hook["failurePolicy"] = "Ignore"


def wrong_authority(found: Installed) -> None:
    other = base64.b64encode(new_certificates().bundle).decode()
    found.hook["clientConfig"]["caBundle"] = other
    found.hook["failurePolicy"] = "Ignore"


def unreachable(found: Installed) -> None:
    found.hook["clientConfig"]["url"] = "https://127.0.0.1:1/mutate-crr"


DAMAGES: dict[str, tuple[Callable[[Installed], object], Topic]] = {
    "namespaceSelector": (lambda found: found.hook.update(namespaceSelector=NOWHERE), Topic.WEBHOOK_NOT_ASKED),
    "objectSelector": (lambda found: found.hook.update(objectSelector=NOWHERE), Topic.WEBHOOK_NOT_ASKED),
    "operations": (lambda found: found.hook["rules"][0].update(operations=["UPDATE"]), Topic.WEBHOOK_NOT_ASKED),
    "apiVersions": (lambda found: found.hook["rules"][0].update(apiVersions=["v9"]), Topic.WEBHOOK_NOT_ASKED),
    "resources": (lambda found: found.hook["rules"][0].update(resources=["pods"]), Topic.WEBHOOK_NOT_ASKED),
    "subresource": (
        lambda found: found.hook["rules"][0].update(resources=[f"{PLURAL}/status"]),
        Topic.WEBHOOK_NOT_ASKED,
    ),
    "scope": (lambda found: found.hook["rules"][0].update(scope="Cluster"), Topic.WEBHOOK_NOT_ASKED),
    "path": (wrong_path, Topic.ADMISSION_FAILED),
    "service": (unreachable, Topic.ADMISSION_FAILED),
    "path, ignored": (ignored, Topic.WEBHOOK_NOT_ASKED),
    "caBundle, ignored": (wrong_authority, Topic.WEBHOOK_NOT_ASKED),
    "another policy": (lambda found: found.policies.extend(DENIES_ALL), Topic.REQUEST_DENIED),
    "no policies": (without_policies, Topic.NOT_ADMITTED),
}
"""What makes the API server refuse every create of a user, or store requests that no daemon serves."""


@pytest.mark.parametrize("namespace", [NAMESPACE, "empty"])
@pytest.mark.parametrize("damage", DAMAGES)
async def test_what_refuses_every_create_is_a_problem(installed: Installed, damage: str, namespace: str) -> None:
    """Tried with a pod of the namespace, or with one of crrd's own."""
    await installed.cluster.pod("crrd-node-x", DAEMON)
    apply, topic = DAMAGES[damage]
    apply(installed)
    finding = await installed.admission(namespace)
    assert (finding.state, finding.topic) == (State.PROBLEM, topic), finding
    assert finding.advice


async def test_a_valid_request_is_admitted(installed: Installed) -> None:
    await installed.cluster.pod("web", {"app": "web"})
    finding = await installed.admission()
    assert (finding.topic, "default/web" in finding.message) == (Topic.ADMISSION, True)


async def test_without_a_pod_the_webhook_itself_has_to_deny(installed: Installed) -> None:
    finding = await installed.admission("empty")
    assert (finding.topic, finding.state) == (Topic.ONLY_DENIES, State.OK)


@pytest.mark.parametrize("damage", [each for each in DAMAGES if each not in ("another policy", "resources")])
async def test_without_a_pod_another_denial_is_no_proof(installed: Installed, damage: str) -> None:
    DAMAGES[damage][0](installed)
    assert (await installed.admission("empty")).state is State.PROBLEM


async def test_pods_that_cannot_be_recreated_are_not_tried(installed: Installed) -> None:
    cluster = installed.cluster
    await cluster.client.create(Resource("pods"), NAMESPACE, {
        "metadata": {"name": "a-pending"}, "spec": {"containers": [{"name": "app", "image": "i"}]},
    })  # fmt: skip
    await cluster.pod("web", {"app": "web"})
    assert "default/web" in (await installed.admission()).message
