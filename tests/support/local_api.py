"""A local API server with a plain HTTP client, for tests of the server itself."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from multidict import CIMultiDict

from crrd.kube.access.config import Access
from tests.support.faulty_api import FaultyApiServer

CRRS = "/apis/apps.kruise.io/v1alpha1/namespaces/default/containerrecreaterequests"
ALL_CRRS = "/apis/apps.kruise.io/v1alpha1/containerrecreaterequests"
PODS = "/api/v1/namespaces/default/pods"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


class LocalAccess:
    """Access to a local API server by plain HTTP, without credentials."""

    description = "no credentials"

    def __init__(self, url: str) -> None:
        self._access = Access(url)

    async def current(self) -> Access:
        """Return the access, which never changes."""
        return self._access

    async def renew(self, refused: Access) -> Access:
        """There is nothing to renew."""
        return refused


@dataclass(frozen=True)
class Reply:
    """One response with its body."""

    status: int
    body: Any
    headers: CIMultiDict[str]

    @property
    def version(self) -> str:
        """The resourceVersion of the object or list."""
        return str(self.body["metadata"]["resourceVersion"])


class Watch:
    """The events of one watch stream, with a time limit for each."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def event(self) -> Any:
        """Return the next event, or None at the end of the stream."""
        async with asyncio.timeout(10):
            line = await self.response.content.readline()
        return json.loads(line) if line else None

    async def seen(self) -> tuple[str, str]:
        """Return the type of the next event, and the name of its object."""
        event = await self.event()
        return event["type"], event["object"]["metadata"]["name"]


class Api:
    """HTTP calls to one server."""

    def __init__(self, server: FaultyApiServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        if data is not None:
            named.setdefault("Content-Type", "application/json")
        stream = None if data is None else io.BytesIO(data)
        async with self.session.request(method, self.server.url + path, data=stream, headers=named) as response:
            text = await response.text()
            is_json = response.content_type == "application/json"
            return Reply(response.status, json.loads(text) if is_json else text, response.headers.copy())

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.call("GET", path, **headers)

    async def post(self, path: str, body: Any, **headers: str) -> Reply:
        return await self.call("POST", path, body, **headers)

    async def put(self, path: str, body: Any) -> Reply:
        return await self.call("PUT", path, body)

    async def patch(self, path: str, body: Any, kind: str = MERGE) -> Reply:
        return await self.call("PATCH", path, body, **{"Content-Type": kind})

    async def delete(self, path: str, body: Any = None) -> Reply:
        return await self.call("DELETE", path, body)

    @asynccontextmanager
    async def watch(self, path: str, query: str = "", **headers: str) -> AsyncIterator[Watch]:
        async with self.session.get(f"{self.server.url}{path}?watch=true&{query}", headers=headers) as response:
            yield Watch(response)


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Api]:
    """Yield a client of a server with these options."""
    async with FaultyApiServer(**options) as server, aiohttp.ClientSession() as session:
        yield Api(server, session)


def crr(name: str = "r", pod: str = "web", **metadata: Any) -> dict[str, Any]:
    """Return a small request."""
    spec = {"podName": pod, "containers": [{"name": "app"}, {"name": "log"}]}
    return {"metadata": {"name": name, **metadata}, "spec": spec}


def pod(name: str = "web", node: str = "n1", **metadata: Any) -> dict[str, Any]:
    """Return a small pod."""
    spec = {"containers": [{"name": "app", "image": "busybox"}], **({"nodeName": node} if node else {})}
    return {"metadata": {"name": name, **metadata}, "spec": spec}


async def until(condition: Callable[[], bool]) -> None:
    """Poll until a condition is met."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)
