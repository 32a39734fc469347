"""What the API server answers when it refuses: `ApiError`, which carries Kubernetes' `Status` object.

The wording follows k8s.io/apimachinery's `api/errors`, since clients and people search for those words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from crrd_localnode.api.objects import Object

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
NO_SUCH_PATH = "404 page not found"
MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of a Status' `details.causes`: which field, and what is wrong with it."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


class ApiError(Exception):
    """An answer other than success; `status` is the body, a Kubernetes `Status`."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str | None = None,
        details: Object | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after
        details = dict(details or {})
        if retry_after is not None:
            details["retryAfterSeconds"] = retry_after
        self.status: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason or REASONS.get(code, "Unknown"),
            **({"details": details} if details else {}),
            "code": code,
        }


def _details(group: str, plural: str, name: str) -> Object:
    return {**({"name": name} if name else {}), **({"group": group} if group else {}), "kind": plural}


def _qualified(group: str, plural: str) -> str:
    return f"{plural}.{group}" if group else plural


def not_found(group: str, plural: str, name: str) -> ApiError:
    """404: there is no object of that name."""
    return ApiError(404, f'{_qualified(group, plural)} "{name}" not found', details=_details(group, plural, name))


def no_such_path() -> ApiError:
    """404: the server has no such path at all; said in plain text, with no Status."""
    return ApiError(404, NO_SUCH_PATH)


def already_exists(group: str, plural: str, name: str, *, going: bool) -> ApiError:
    """409 AlreadyExists: an object of that name exists, maybe one that is being deleted (`going`)."""
    message = f'{_qualified(group, plural)} "{name}" already exists'
    message = f"object is being deleted: {message}" if going else message
    return ApiError(409, message, reason="AlreadyExists", details=_details(group, plural, name))


def conflict(group: str, plural: str, name: str, why: str = MODIFIED) -> ApiError:
    """409 Conflict: what the write was based on is no longer so."""
    message = f'Operation cannot be fulfilled on {_qualified(group, plural)} "{name}": {why}'
    return ApiError(409, message, details=_details(group, plural, name))


def forbidden(group: str, plural: str, name: str, why: str) -> ApiError:
    """403: known who asks, and that is not allowed."""
    subject = f'{_qualified(group, plural)} "{name}"' if name else _qualified(group, plural)
    return ApiError(403, f"{subject} is forbidden: {why}", details=_details(group, plural, name))


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """422: the object breaks the rules of its kind; the message joins what the causes say."""
    texts = [f"{cause.field}: {cause.message}" for cause in causes]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = _details(group, kind, name)
    details["causes"] = [{"reason": c.reason, "message": c.message, "field": c.field} for c in causes]
    return ApiError(422, f'{_qualified(group, kind)} "{name}" is invalid: {text}', details=details)


def bad_request(why: str) -> ApiError:
    """400: the request itself makes no sense."""
    return ApiError(400, why)


def unsupported_media_type(given: str, supported: Sequence[str]) -> ApiError:
    """415: the body is in a format that is not taken here."""
    accepted = ", ".join(supported)
    return ApiError(415, f"the body of the request was in an unknown format - accepted media types include: {accepted}"
                    + (f"; this one was {given}" if given else ""))  # fmt: skip


def expired(asked: int, oldest: int) -> ApiError:
    """410: the history that a watch would have to start from is gone."""
    return ApiError(410, f"too old resource version: {asked} ({oldest})")


def expired_list() -> ApiError:
    """410: a list of exactly this resourceVersion cannot be had any more."""
    return ApiError(410, "The resourceVersion for the provided list is too old.")


def expired_continue(token: str) -> ApiError:
    """410: the state that a list was begun with is gone; `token` goes on with that of now."""
    error = ApiError(
        410,
        "The provided continue parameter is too old to display a consistent list result. You can start a new list "
        "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
        "results.",
    )
    error.status["metadata"] = {"continue": token}
    return error


def too_large_resource_version(asked: int, current: int) -> ApiError:
    """504: a list "not older than" a resourceVersion that this server has not reached."""
    message = f"Too large resource version: {asked}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return ApiError(504, message, details={"causes": [cause]}, retry_after=1)
