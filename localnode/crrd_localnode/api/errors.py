"""Error responses of the API server: `ApiError` with Kubernetes' `Status` object.

The messages follow k8s.io/apimachinery's `api/errors`, because clients and people search for these texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from crrd_localnode.api.objects import Object

REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed",
    406: "NotAcceptable", 409: "Conflict", 410: "Expired", 413: "RequestEntityTooLarge", 415: "UnsupportedMediaType",
    422: "Invalid", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip
_FIELD_REASONS = {
    "Duplicate value": "Duplicate", "Forbidden": "Forbidden", "Required value": "Required", "Too long": "TooLong",
    "Too many": "TooMany", "Unsupported value": "NotSupported",
}  # fmt: skip
NO_SUCH_PATH = "404 page not found"
MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


@dataclass(frozen=True, slots=True)
class Cause:
    """An entry of a Status' `details.causes`: a field and its fault."""

    field: str
    message: str
    special: str = ""  # Overrides the reason that belongs to the message

    @property
    def reason(self) -> str:
        """The reason for the message's first words, as in k8s.io/apimachinery's `field.Error`."""
        return self.special or f"FieldValue{_FIELD_REASONS.get(self.message.partition(':')[0], 'Invalid')}"


class ApiError(Exception):
    """An error response. `status` is the body, a Kubernetes `Status`."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str = "",
        details: Object | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after
        details = {**(details or {}), **({} if retry_after is None else {"retryAfterSeconds": retry_after})}
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


def details(group: str, plural: str, name: str) -> Object:
    """Return the `details` of a Status."""
    return {**({"name": name} if name else {}), **({"group": group} if group else {}), "kind": plural}


def _qualified(group: str, plural: str, name: str) -> str:
    return (f"{plural}.{group}" if group else plural) + (f' "{name}"' if name else "")


def not_found(group: str, plural: str, name: str) -> ApiError:
    """404: the object does not exist."""
    return ApiError(404, f"{_qualified(group, plural, name)} not found", details=details(group, plural, name))


def no_such_path() -> ApiError:
    """404: the path does not exist. The body is plain text and not a Status."""
    return ApiError(404, NO_SUCH_PATH)


def already_exists(group: str, plural: str, name: str, *, going: bool) -> ApiError:
    """409 AlreadyExists: the object exists. `going` means that it is being deleted."""
    message = f"{'object is being deleted: ' if going else ''}{_qualified(group, plural, name)} already exists"
    return ApiError(409, message, reason="AlreadyExists", details=details(group, plural, name))


def conflict(group: str, plural: str, name: str, why: str = MODIFIED) -> ApiError:
    """409 Conflict: the object has changed since the client read it."""
    message = f"Operation cannot be fulfilled on {_qualified(group, plural, name)}: {why}"
    return ApiError(409, message, details=details(group, plural, name))


def forbidden(group: str, plural: str, name: str, why: str, *causes: Cause) -> ApiError:
    """403: the user is known, but the request is not allowed."""
    about = {**details(group, plural, name), **({"causes": _listed(causes)} if causes else {})}
    return ApiError(403, f"{_qualified(group, plural, name)} is forbidden: {why}", details=about)


def _listed(causes: Sequence[Cause]) -> list[Object]:
    return [{"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in causes]


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """422: the object is invalid. The message joins the causes."""
    texts = [f"{cause.field}: {cause.message}" for cause in causes]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    message = f'{_qualified(group, kind, "")} "{name}" is invalid: {text}'
    return ApiError(422, message, details={**details(group, kind, name), "causes": _listed(causes)})


def invalid_options(causes: Sequence[Cause]) -> ApiError:
    """422: the parameters of a list or watch contradict each other."""
    return invalid("meta.k8s.io", "ListOptions", "", causes)


def bad_request(why: str) -> ApiError:
    """400: the request is malformed."""
    return ApiError(400, why)


def unsupported_media_type(given: str, supported: Sequence[str]) -> ApiError:
    """415: the format of the body is not supported."""
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(supported)}"
    return ApiError(415, message + (f"; this one was {given}" if given else ""))


def expired(asked: int, oldest: int) -> ApiError:
    """410: the history does not reach back to the start of the watch."""
    return ApiError(410, f"too old resource version: {asked} ({oldest})")


def expired_continue(token: str) -> ApiError:
    """410: the list's original state is not available any more. `token` continues with the current state."""
    message = (
        "The provided continue parameter is too old to display a consistent list result. You can start a new list "
        "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
        "results."
    )
    error = ApiError(410, message)
    error.status["metadata"] = {"continue": token}
    return error


def too_large_resource_version(asked: int, current: int) -> ApiError:
    """504: a list "not older than" a resourceVersion that this server has not reached yet."""
    message = f"Too large resource version: {asked}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return ApiError(504, message, details={"causes": [cause]}, retry_after=1)
