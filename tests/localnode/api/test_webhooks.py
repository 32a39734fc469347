"""The local API server as a caller of admission webhooks."""

import base64

from tests.support.local_api import PODS, pod, running
from tests.support.webhook import Pods, webhook

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


async def test_a_connection_is_kept_from_one_call_to_the_next() -> None:
    """As kube-apiserver does: its client for a webhook's configuration stays."""
    async with webhook(Pods()) as served, running() as api:
        bundle = base64.b64encode(served.certificates.bundle).decode()
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
        asked = {
            "name": "pods.example.org",
            "clientConfig": {"url": f"https://{served.address}/mutate-pod", "caBundle": bundle},
            "rules": [rule],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        assert (await api.post(CONFIGURATIONS, {"metadata": {"name": "crrd"}, "webhooks": [asked]})).status == 201
        for number in range(3):
            made = await api.post(PODS, pod(f"web-{number}"))
            assert made.body["spec"]["readinessGates"]
        assert len(served.server.connections) == 1
