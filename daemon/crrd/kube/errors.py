"""Turns error responses of the API server into crrd's errors, with the server's own message in them.

Controllers handle the errors of `lib.errors`. Those defined here are special cases of those, mostly for `kube`.
"""

import json
from collections.abc import Mapping
from typing import Any

from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConflictError, ExpiredError, GoneError
from crrd.lib.jsonfields import items, mapping, text

_SENTENCE = 500  # Most characters of a server's message in an error


class MalformedAnswerError(ApiUnavailableError):
    """The response does not come from an API server (but from a proxy), or the stream was cut in the middle."""


class ResourceMissingError(ApiRefusedError):
    """The API server does not serve this kind of object (404): its CRD is not installed."""


class NamespaceEndingError(ApiRefusedError):
    """Nothing can be created in the namespace, because it is being deleted (403)."""


class FutureVersionError(ApiUnavailableError):
    """The server has not reached the requested resourceVersion yet (504): it lags, or etcd was restored."""


def decode(raw: bytes, what: str) -> Mapping[str, Any]:
    """Parse a response as one JSON object. MalformedAnswerError if it is something else."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise MalformedAnswerError(f"{what}: the response is not JSON ({len(raw)} bytes)") from error
    if not isinstance(value, dict):
        raise MalformedAnswerError(f"{what}: the response is not a JSON object")
    return value


def from_answer(status: int, body: bytes, retry_after: str, what: str) -> ApiRefusedError | ApiUnavailableError:
    """Return the error for an HTTP response that is not a success.

    `retry_after` is the header. Only its form in seconds is parsed, because API servers use no other.
    """
    try:
        shape = mapping(json.loads(body))
    except (ValueError, RecursionError):
        shape = {"message": body.decode("utf-8", "replace").strip()}
    seconds = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None
    return from_status(shape, what, status=status, retry_after=seconds)


def from_status(
    shape: Mapping[str, Any], what: str, *, status: int = 0, retry_after: float | None = None
) -> ApiRefusedError | ApiUnavailableError:
    """Return the error for a `Status` object, which is either a response's body or an event of a watch."""
    code = shape.get("code")
    if not status:
        status = code if isinstance(code, int) else 410 if shape.get("reason") in ("Expired", "Gone") else 500
    details = mapping(shape.get("details"))
    seconds = details.get("retryAfterSeconds")
    if retry_after is None and isinstance(seconds, int):
        retry_after = min(seconds, ApiUnavailableError.LONGEST_PATIENCE_SECONDS)  # it may be too large for a float
    sentence = f"{what}: {text(shape.get('message'))[:_SENTENCE] or 'no reason given'} ({status})"
    causes = [mapping(cause).get("reason") for cause in items(details.get("causes"))]
    if status == 504 and "ResourceVersionTooLarge" in causes:
        return FutureVersionError(sentence, retry_after=retry_after)
    if status == 429 or status >= 500:
        return ApiUnavailableError(sentence, retry_after=retry_after)
    if status == 404 and not details.get("name"):
        return ResourceMissingError(sentence, status=status)
    if status == 403 and "NamespaceTerminating" in causes:
        return NamespaceEndingError(sentence, status=status)
    refusals = {404: GoneError, 409: ConflictError, 410: ExpiredError}
    return refusals.get(status, ApiRefusedError)(sentence, status=status)
