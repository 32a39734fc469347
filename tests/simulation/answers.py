"""The API server's responses: objects, Status objects, and responses of other programs, such as proxies."""

import json
from pathlib import Path
from typing import Any

import yaml

from crrd.core.api.types import VERSION
from tests.simulation.network import Response
from tests.simulation.store import Object

_CRD = Path(__file__).parents[2] / "manifests" / "base" / "crd.yaml"
_HTML = b"<html><head><title>Sign in</title></head><body>Sign in to continue</body></html>"
FOREIGN = {
    "html": _HTML,
    "status": b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}',
    "list": b"[]",
    "empty": b"{}",
    "null": b"null",
}


def _known_fields() -> tuple[frozenset[str], frozenset[str]]:
    versions = yaml.safe_load(_CRD.read_text(encoding="utf-8"))["spec"]["versions"]
    schema = next(version for version in versions if version["name"] == VERSION)["schema"]["openAPIV3Schema"]
    status = schema["properties"]["status"]["properties"]
    return frozenset(status), frozenset(status["containerRecreateStates"]["items"]["properties"])


STATUS_FIELDS, STATE_FIELDS = _known_fields()
OLD_STATUS_FIELDS = frozenset({"phase", "completionTime", "message", "containerRecreateStates"})
OLD_STATE_FIELDS = frozenset({"name", "phase", "message"})  # The fields in a CRD older than isKilled


def as_json(status: int, answer: Object) -> Response:
    headers = {"Content-Type": "application/json"}
    if seconds := answer.get("details", {}).get("retryAfterSeconds"):
        headers["Retry-After"] = str(seconds)
    return Response(status, json.dumps(answer).encode(), headers)


def status(code: int, reason: str, message: str, name: str = "", retry_after: int | None = None) -> dict[str, Any]:
    details: dict[str, Any] = {"name": name} if name else {}
    if retry_after is not None:
        details["retryAfterSeconds"] = retry_after
    shape = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return {**shape, "message": message, "reason": reason, "details": details, "code": code}


_REASONS = {401: "Unauthorized", 403: "Forbidden", 429: "TooManyRequests", 504: "Timeout"}


def refusal(code: int, retry_after: int | None) -> Response:
    """Return an error response to a call that was not carried out."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    if code in (502, 503):
        return Response(code, _HTML, headers)
    reason = _REASONS.get(code, "InternalError")
    return Response(code, json.dumps(status(code, reason, f"{reason}: so it is")).encode(), headers)


def shown(obj: Object) -> str:
    return f"{obj['metadata']['name']}({obj['metadata']['uid']}) v{obj['metadata']['resourceVersion']}"
