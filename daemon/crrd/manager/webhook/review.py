"""Reads an AdmissionReview v1 and encodes the response. Contains no HTTP and no decisions.

Source of the format: Kubernetes' `admission.k8s.io/v1`. Fields that a webhook does not need are not read.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from crrd.core.admission.rules import Allowed, Denied
from crrd.lib.errors import CrrdError
from crrd.lib.jsonfields import Reader, mapping, shown

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
CREATE, UPDATE, DELETE, CONNECT = "CREATE", "UPDATE", "DELETE", "CONNECT"
MOST_VALUES = 100_000
"""Limit for JSON values in a body, because to parse and walk more blocks the event loop for longer than 0.2 s.

An object with the largest annotations (256 KiB), before and after an update, has about half as many.
"""
_NAMESPACE = re.compile(r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?")
_REASONS = {422: "Invalid", 500: "InternalError", 503: "ServiceUnavailable"}


class BadReviewError(CrrdError):
    """The body cannot be answered. The message is one sentence, for HTTP 400."""


@dataclass(frozen=True, slots=True)
class Review:
    """One review: may this user write this object?"""

    uid: str
    operation: str
    subresource: str
    namespace: str
    user: str
    dry_run: bool  # Whether nothing will be stored, whatever the response
    object: Mapping[str, Any]  # Empty on DELETE and CONNECT
    old: Mapping[str, Any]  # Empty except on UPDATE and DELETE
    size: int  # Bytes of the body


def read_review(raw: bytes | bytearray, wanted_kinds: Sequence[str]) -> Review:
    """Parse the body of a webhook call about one of these kinds (`group/version Kind`, or `v1 Kind` without a group).

    Raises BadReviewError if it is not JSON, not a complete AdmissionReview v1, or about another kind.
    """
    whole = _load(raw)
    reader = Reader()
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if whole.get(key) != wanted:
            reader.reject(key, f"must be {wanted}, not {shown(whole.get(key))}")
    request = reader.mapping(whole.get("request"), "request")
    kind = reader.mapping(request.get("kind"), "request.kind")
    group = reader.text(kind.get("group"), "request.kind.group")
    version, name = (reader.text(kind.get(key), f"request.kind.{key}", required=True) for key in ("version", "kind"))
    found_kind = " ".join(filter(None, ("/".join(filter(None, (group, version))), name)))
    if found_kind not in wanted_kinds:
        reader.reject("request.kind", f"must be {' or '.join(wanted_kinds)}, not {shown(found_kind)}")
    operation = reader.text(request.get("operation"), "request.operation")
    if operation not in (CREATE, UPDATE, DELETE, CONNECT):
        reader.reject("request.operation", f"must be CREATE, UPDATE, DELETE or CONNECT, not {shown(operation)}")
    namespace = reader.text(request.get("namespace"), "request.namespace")
    if not _NAMESPACE.fullmatch(namespace):
        reader.reject("request.namespace", f"must be a namespace's name, not {shown(namespace)}")
    user = reader.mapping(request.get("userInfo"), "request.userInfo")
    review = Review(
        uid=reader.text(request.get("uid"), "request.uid", required=True),
        operation=operation,
        subresource=reader.text(request.get("subResource"), "request.subResource"),
        namespace=namespace,
        user=reader.text(user.get("username"), "request.userInfo.username"),
        dry_run=reader.flag(request.get("dryRun"), "request.dryRun"),
        object=reader.mapping(request.get("object"), "request.object"),
        old=reader.mapping(request.get("oldObject"), "request.oldObject"),
        size=len(raw),
    )
    if operation in (CREATE, UPDATE) and not review.object:
        reader.reject("request.object", "must be the object that is to be written")
    if operation == UPDATE and not review.old:
        reader.reject("request.oldObject", "must be the object before the update")
    if reader.error:
        raise BadReviewError(reader.error)
    return review


def encode(uid: str, outcome: Allowed | Denied) -> bytes:
    """Encode the response to a review: allowed, with a patch and warnings if there are any, or denied.

    Raises ValueError if a number in the patch is not allowed in JSON.
    """
    response: dict[str, Any] = {"uid": uid, "allowed": not isinstance(outcome, Denied)}
    if isinstance(outcome, Denied):  # the user reads the message after 'admission webhook "..." denied the request: '
        code, status = outcome.code, {"status": "Failure", "message": outcome.message}
        details = {} if outcome.retry_after is None else {"details": {"retryAfterSeconds": outcome.retry_after}}
        response["status"] = {**status, "reason": _REASONS[code], "code": code, **details}
    else:
        if outcome.patch:
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(_dump(outcome.patch)).decode()}
        if outcome.warnings:
            response["warnings"] = list(outcome.warnings)
    return _dump({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def _load(raw: bytes | bytearray) -> Mapping[str, Any]:
    if sum(raw.count(sign) for sign in (b",", b"[", b"{")) > MOST_VALUES:  # an upper bound: strings contain them too
        raise BadReviewError(f"the body must not contain more than {MOST_VALUES} values")
    try:
        whole = json.loads(raw, parse_constant=_no_constant)
    except RecursionError as error:
        raise BadReviewError("the body is nested too deeply") from error
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, numbers with thousands of digits
        raise BadReviewError("the body must be JSON") from error
    if not isinstance(whole, dict):
        raise BadReviewError("the body must be a JSON object")
    return mapping(whole)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _dump(value: object) -> bytes:
    """Encode as ASCII JSON, so that text with lone surrogates is accepted."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
