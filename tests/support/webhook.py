"""A webhook server with real TLS, a client that verifies its CA, and a table of pods for its lookups."""

import io
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import aiohttp

from crrd.kube.resources import ObjectReader, Resource
from crrd.lib.connections import CloseObserver
from crrd.lib.errors import GoneError
from crrd.lib.health import Health
from crrd.manager.certificates.pki import CERTIFICATE, KEY, Certificates, renew, to_data
from crrd.manager.certificates.rotation import Lifetimes, Renewal
from crrd.manager.certificates.tls import ServingTls
from crrd.manager.webhook.handler import NodeCheck
from crrd.manager.webhook.server import AdmissionObserver, Limits, ReviewObserver, WebhookServer
from tests.support.admission import JsonObject

NAMES = ("127.0.0.1", "localhost")
QUICK = Limits(drain_seconds=0.0, linger_seconds=0.0)
FIRST = Renewal(new_authority=True, new_serving=True)


async def _at_once() -> None:
    """Return at once."""


@dataclass
class Pods:
    """Pods by namespace and name. `before` runs before each response."""

    pods: dict[tuple[str, str], JsonObject] = field(default_factory=dict)
    before: Callable[[], Awaitable[None]] = _at_once
    asked: list[tuple[str, str]] = field(default_factory=list)
    kubelet: str = "v1.36.0"

    def put(self, pod: JsonObject) -> None:
        self.pods["shop", "web-0"] = pod

    async def get(self, resource: Resource, namespace: str, name: str) -> Mapping[str, Any]:
        if resource.plural == "nodes":
            return {"status": {"nodeInfo": {"kubeletVersion": self.kubelet}}}
        assert resource.plural == "pods"
        self.asked.append((namespace, name))
        await self.before()
        if (namespace, name) not in self.pods:
            raise GoneError(f'pods "{name}" not found', status=404)
        return self.pods[namespace, name]


def new_certificates(found: Certificates | None = None, due: Renewal = FIRST) -> Certificates:
    return renew(found or Certificates(), due, NAMES, datetime.now(UTC), Lifetimes())


def load(tls: ServingTls, certificates: Certificates) -> None:
    data = to_data(certificates)
    tls.load(data[CERTIFICATE], data[KEY])


def trusting(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=certificates.bundle.decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


@dataclass
class Served:
    """A running webhook, and methods to call it."""

    server: WebhookServer
    tls: ServingTls
    health: Health
    certificates: Certificates
    address: str
    session: aiohttp.ClientSession

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    async def post(
        self, path: str, body: bytes | JsonObject, *, content_type: str = "application/json", query: str = ""
    ) -> tuple[int, bytes]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        url = f"https://{self.address}{path}{query}"
        async with self.session.post(url, data=io.BytesIO(raw), headers={"Content-Type": content_type}) as response:
            return response.status, await response.read()

    async def ask(self, path: str, review: JsonObject, query: str = "") -> JsonObject:
        """Send a valid review, and return the `response`."""
        status, raw = await self.post(path, review, query=query)
        assert status == 200, raw
        answer: JsonObject = json.loads(raw)
        assert answer["apiVersion"] == "admission.k8s.io/v1"
        assert answer["kind"] == "AdmissionReview"
        response: JsonObject = answer["response"]
        assert response["uid"] == review["request"]["uid"]
        return response

    async def page(self, path: str) -> tuple[int, str]:
        async with self.session.get(f"https://{self.address}{path}") as response:
            return response.status, await response.text()


@asynccontextmanager
async def webhook(
    pods: ObjectReader,
    *,
    served: NodeCheck | None = None,
    lacking: Callable[[str], bool] = lambda _: False,
    deny: bool = False,
    certificates: Certificates | None = None,
    limits: Limits = QUICK,
    on_review: ReviewObserver = lambda *_: None,
    on_admitted: AdmissionObserver = lambda _: None,
    on_close: CloseObserver | None = None,
) -> AsyncIterator[Served]:
    certificates = certificates or new_certificates()
    tls, health = ServingTls(), Health()
    load(tls, certificates)
    server = WebhookServer(
        "127.0.0.1:0",
        tls,
        pods,
        health,
        served=served,
        lacking=lacking,
        deny=deny,
        limits=limits,
        on_review=on_review,
        on_admitted=on_admitted,
        on_close=on_close,
    )
    address = await server.start()
    connector = aiohttp.TCPConnector(ssl=trusting(certificates))
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Served(server, tls, health, certificates, address, session)
    await server.drain()
