"""The local API server as a caller of admission webhooks."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from crrd.manager.certificates.tls import ServingTls
from tests.support.local_api import PODS, Api, pod, running
from tests.support.webhook import Pods, load, new_certificates, webhook

Json = dict[str, Any]

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


@asynccontextmanager
async def asked(status: Json | None, **changes: Any) -> AsyncIterator[Api]:
    """A server that asks a webhook about pods, which denies them with this status. None: it is never asked."""

    async def answer(request: web.Request) -> web.Response:
        assert status is not None, "it was asked"
        uid = (await request.json())["request"]["uid"]
        decision = {"uid": uid, "allowed": bool(warnings), "status": status, "warnings": warnings}
        return web.json_response({"response": decision})

    warnings: list[str] = changes.pop("warnings", [])
    app = web.Application()
    app.router.add_post("/", answer)
    certificates = new_certificates()
    tls = ServingTls()
    load(tls, certificates)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls.context)
    await site.start()
    address = runner.addresses[0]
    bundle = base64.b64encode(certificates.bundle).decode()
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    hook = {
        "name": "pods.example.org",
        "clientConfig": {"url": f"https://{address[0]}:{address[1]}/", "caBundle": bundle},
        "rules": [{**rule, **changes.pop("rule", {})}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        **changes,
    }
    try:
        async with running() as api:
            assert (await api.post(CONFIGURATIONS, {"metadata": {"name": "one"}, "webhooks": [hook]})).status == 201
            yield api
    finally:
        await runner.cleanup()


DENIED = 'admission webhook "pods.example.org" denied the request'


@pytest.mark.parametrize(
    ("status", "code", "reason", "message"),
    [
        ({"code": 422, "message": "no", "reason": "Invalid"}, 422, "Invalid", f"{DENIED}: no"),
        ({"code": 200, "reason": "Because"}, 400, "Because", f"{DENIED}: Because"),
        ({}, 400, "BadRequest", f"{DENIED} without explanation"),
    ],
)
async def test_a_denial_is_passed_on_as_the_api_server_does(status: Json, code: int, reason: str, message: str) -> None:
    details = {"causes": [{"reason": "Odd", "message": "x"}]}
    async with asked({**status, "details": details}) as api:
        answer = await api.post(PODS, pod("web"))
        assert (answer.status, answer.body["reason"], answer.body["message"]) == (code, reason, message)
        assert answer.body["details"] == details


async def test_warnings_reach_the_client() -> None:
    async with asked({}, warnings=["it is late", 'say "when"']) as api:
        made = await api.post(PODS, pod("web"))
        assert made.status == 201
        assert made.headers.getall("Warning") == ['299 - "it is late"', '299 - "say \\"when\\""']


@pytest.mark.parametrize(("scope", "code"), [("Cluster", 201), ("Namespaced", 403), ("*", 403)])
async def test_a_rule_counts_for_its_scope(scope: str, code: int) -> None:
    async with asked({"code": 403}, rule={"scope": scope}) as api:
        assert (await api.post(PODS, pod("web"))).status == code


@pytest.mark.parametrize(("effects", "code"), [("None", 403), ("NoneOnDryRun", 403), ("Some", 400), ("Unknown", 400)])
async def test_a_webhook_with_side_effects_allows_no_dry_run(effects: str, code: int) -> None:
    async with asked({"code": 403}, sideEffects=effects) as api:
        answer = await api.post(f"{PODS}?dryRun=All", pod("web"))
        assert answer.status == code
        assert (answer.body["message"] == "admission webhook pods.example.org does not support dry run") is (
            code == 400
        )
