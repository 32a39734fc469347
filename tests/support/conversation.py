"""Conversations with any API server, and its responses, in a form that is equal for equal behaviour.

Values that differ between runs are replaced: names of namespaces, UIDs, times, resourceVersions. Objects' versions are
numbered in order of appearance. Of lists' versions only whether they are as new as that is kept.
"""

import asyncio
import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from crrd.kube.access.config import Access

Json = Any
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
GROUP = "/apis/apps.kruise.io/v1alpha1"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_UID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_NUMBER = re.compile(r"\b\d{2,}\b")
_UNSAID = ("managedFields", "selfLink", "creationTimestamp")
_AGE = re.compile(r"\d+(ms|s|m)|<unknown>|<invalid>")
_EVENT_SECONDS = 10.0


@dataclass
class Conversation:
    """Requests to one server in a namespace of its own. `said` contains the responses."""

    access: Access
    session: aiohttp.ClientSession
    namespace: str = field(default_factory=lambda: f"crrd-test-x{secrets.token_hex(4)}")
    """Its last part never looks like a number, which would be replaced."""
    said: list[Json] = field(default_factory=list)
    _uids: dict[str, str] = field(default_factory=dict)
    _versions: dict[str, str] = field(default_factory=dict)

    @property
    def requests(self) -> str:
        return f"{GROUP}/namespaces/{self.namespace}/containerrecreaterequests"

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def begin(self) -> None:
        """Create the namespace with the ServiceAccount that pods need. Not part of the conversation."""
        made = await self._send("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}}, {}, {})
        assert made[0] == 201, made
        account = f"/api/v1/namespaces/{self.namespace}/serviceaccounts"
        made = await self._send("POST", account, {"metadata": {"name": "default"}}, {}, {})
        assert made[0] in (201, 409), made

    async def end(self) -> None:
        """Delete the namespace."""
        for path in (self.requests, self.pods):
            _, found, _ = await self._send("GET", path, None, {}, {})
            for item in found.get("items", ()):
                one = f"{path}/{item['metadata']['name']}"
                await self._send("PATCH", one, {"metadata": {"finalizers": None}}, {}, {"Content-Type": MERGE})
                await self._send("DELETE", one, {"gracePeriodSeconds": 0}, {}, {})
        await self._send("DELETE", f"/api/v1/namespaces/{self.namespace}", None, {}, {})

    async def ask(
        self, method: str, path: str, body: Json = None, content_type: str = "", accept: str = "", **query: str
    ) -> Json:
        """Send a request and record the response. Return it unchanged."""
        headers = {"Content-Type": content_type} if content_type else {}
        headers |= {"Accept": accept} if accept else {}
        status, answer, warnings = await self._send(method, path, body, query, headers)
        noted = {"asked": self._asked(method, path, query), "status": status, "answer": self._plain(answer)}
        self.said.append(noted | ({"warnings": warnings} if warnings and status < 300 else {}))
        return answer

    async def watch(
        self, path: str, doing: Callable[[], Any] | None = None, events: int = 0, accept: str = "", **query: str
    ) -> list[Json]:
        """Watch until this many events have arrived, or with 0 until the end. `doing` is called after the start."""
        found: list[Json] = []
        url, query = self.access.server + path, {"watch": "true", **query}
        headers = {**self.access.headers, **({"Accept": accept} if accept else {})}
        async with self.session.get(url, params=query, headers=headers, ssl=self.access.tls or True) as response:
            if response.status != 200:
                answer = {"status": response.status, "answer": self._plain(await response.json())}
                self.said.append({"asked": self._asked("WATCH", path, query), **answer})
                return []
            if doing is not None:
                await doing()
            async with asyncio.timeout(_EVENT_SECONDS):
                while not events or len(found) < events:
                    line = await response.content.readline()
                    if not line:
                        break
                    found.append(json.loads(line))
        self.said.append({"asked": self._asked("WATCH", path, query), "events": [self._plain(one) for one in found]})
        return found

    async def _send(
        self, method: str, path: str, body: Json, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> tuple[int, Json, list[str]]:
        given = {"Content-Type": "application/json"} if body is not None else {}
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        async with self.session.request(
            method, self.access.server + path, params=query, data=data, ssl=self.access.tls or True,
            headers={**given, **headers, **self.access.headers},
        ) as response:  # fmt: skip
            text = await response.text()
            warnings = [self._words(each) for each in response.headers.getall("Warning", [])]
            return response.status, json.loads(text) if "json" in response.content_type else text, warnings

    def _asked(self, method: str, path: str, query: Mapping[str, str]) -> str:
        shown = "&".join(
            f"{key}={self._versions.get(value, _NUMBER.sub('N', value))}" if key != "continue" else "continue=TOKEN"
            for key, value in query.items()
        )
        return self._words(f"{method} {path}{'?' + shown if shown else ''}")

    def _words(self, text: str) -> str:
        text = text.replace(self.namespace, "NAMESPACE").strip()
        text = _UID.sub(lambda found: self._uids.setdefault(found[0], f"UID-{len(self._uids) + 1}"), text)
        return _TIME.sub("TIME", text)

    def _plain(self, value: Json, key: str = "") -> Json:
        """Return a response with the replaced values."""
        if isinstance(value, dict):
            if value.get("kind") == "Status" and value.get("status") == "Failure":
                return self._refusal(value)
            if str(value.get("kind", "")).endswith("List") or value.get("kind") == "Table":
                return {name: self._list_part(name, each) for name, each in value.items()}
            if "containers" in value.get("spec", {}) and "podName" not in value["spec"]:
                value = {part: each for part, each in value.items() if part != "spec"}  # admission plugins change it
            return {
                name: self._plain(each, name)
                for name, each in value.items()
                if name not in _UNSAID and not (each is None and name != "object")
            }
        if isinstance(value, list):
            return [self._plain(each, key) for each in value]
        if not isinstance(value, str):
            return value
        if key == "resourceVersion":
            return self._versions.setdefault(value, f"VERSION-{len(self._versions) + 1}")
        return self._words(value)

    def _list_part(self, name: str, value: Json) -> Json:
        if name == "metadata":
            newest = max(map(int, self._versions), default=0)
            version = value.get("resourceVersion")
            said = {} if version is None else {"resourceVersion": "new" if int(version) >= newest else "old"}
            rest = {key: "TOKEN" if key == "continue" else each for key, each in value.items()
                    if key not in ("resourceVersion", "selfLink") and each != ""}  # fmt: skip
            return said | rest
        if name == "rows":
            return [self._row(row) for row in value]
        if name == "columnDefinitions":
            return [{key: each for key, each in column.items() if key != "description"} for column in value]
        return self._plain(value, name)

    def _refusal(self, status: Json) -> Json:
        """Return the parts of an error for programs. The texts are for people, and change with versions."""
        details = dict(status.get("details") or {})
        causes = {(each.get("field", ""), each.get("reason", "")) for each in details.pop("causes", ())}
        return {
            "reason": status.get("reason", ""),
            "code": status.get("code", 0),
            "details": self._plain(details),
            "causes": sorted(list(each) for each in causes if each[0] != "<nil>"),
        } | ({"continue": "TOKEN"} if status.get("metadata", {}).get("continue") else {})

    def _row(self, row: Json) -> Json:
        cells = [
            "AGE" if isinstance(cell, str) and _AGE.fullmatch(cell) else self._plain(cell) for cell in row["cells"]
        ]
        return {"cells": cells, "object": self._plain(row.get("object"))}
