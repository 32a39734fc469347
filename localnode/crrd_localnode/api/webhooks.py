"""Calls admission webhooks: those of the MutatingWebhookConfigurations in the store.

It uses `clientConfig.url` (there is no Service network) over TLS with the configuration's caBundle. Rules match by
group, version, resource, operation and scope. matchPolicy, namespaceSelector, objectSelector, failurePolicy and
sideEffects (of a dry run) are respected.
matchConditions (CEL) are ignored: a webhook with conditions is always called.
"""

import base64
import binascii
import json
import ssl
import uuid
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import aiohttp
import jsonpatch

from crrd_localnode.api.admission import AdmissionRequest
from crrd_localnode.api.errors import ApiError, bad_request
from crrd_localnode.api.objects import Object, dig, metadata
from crrd_localnode.api.store import Store

MUTATING = "admissionregistration.k8s.io/mutatingwebhookconfigurations"
NAMESPACES = "/namespaces"  # Both are keys in the store
DEFAULT_SECONDS = 10
_KEEP_ALIVE_SECONDS = 90.0  # For an unused connection, as in kube-apiserver's client
Json = Mapping[str, Any]


class Webhooks:
    """The admission plugin of one API server, which uses the configurations and namespaces in its store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def mutate(self, request: AdmissionRequest) -> Object | None:
        """Call the webhooks for a write."""
        new = request.new
        for webhook in self._asked(request):
            answer = await self._call(webhook, request, new)
            if answer:
                request.warnings.extend(answer.get("warnings") or ())
            if answer and answer.get("patch"):
                new = jsonpatch.apply_patch(new, json.loads(base64.b64decode(answer["patch"])))
        return new

    def _asked(self, request: AdmissionRequest) -> Iterator[Json]:
        """Yield the webhooks for this write, in the order of their configurations' names."""
        namespace = self._store.get(NAMESPACES, ("", request.namespace))
        labels = metadata(namespace.obj if namespace else {}).get("labels") or {}
        own = metadata(request.new or request.old or {}).get("labels") or {}
        for _, stored in sorted(self._store.objects(MUTATING).items()):
            for webhook in stored.obj.get("webhooks") or ():
                selectors = ((webhook.get("namespaceSelector"), labels), (webhook.get("objectSelector"), own))
                if _version(webhook, request) is not None and all(_selects(*each) for each in selectors):
                    yield webhook

    async def _call(self, webhook: Json, request: AdmissionRequest, new: Object | None) -> Json | None:
        """Return a webhook's response, or None if it cannot be reached (Ignore). ApiError: denied, or not reached."""
        name = webhook.get("name", "")
        if request.dry_run and webhook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            raise bad_request(f"admission webhook {name} does not support dry run")
        try:
            answer = await self._ask(webhook, request, new)
        except (aiohttp.ClientError, OSError, ValueError, binascii.Error) as error:
            if webhook.get("failurePolicy", "Fail") == "Ignore":
                return None
            raise ApiError(500, f'failed calling webhook "{name}": {error or type(error).__name__}') from error
        if not answer.get("allowed"):
            raise _denial(name, answer.get("status") or {})
        return answer

    async def _ask(self, webhook: Json, request: AdmissionRequest, new: Object | None) -> Json:
        """Make one call and return the response. Raises ValueError if it is invalid, and aiohttp's errors."""
        uid = str(uuid.uuid4())
        seconds = webhook.get("timeoutSeconds") or DEFAULT_SECONDS
        url, bundle = (str(dig(webhook, "clientConfig", key) or "") for key in ("url", "caBundle"))
        tls = _tls(bundle)
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(keepalive_timeout=_KEEP_ALIVE_SECONDS))
        review = _review(uid, request, new, _version(webhook, request) or request.kind.version)
        options: dict[str, Any] = {"ssl": tls, "timeout": aiohttp.ClientTimeout(total=seconds)}
        async with self._session.post(url, params={"timeout": f"{seconds}s"}, json=review, **options) as response:
            if response.status != 200:
                raise ValueError(f"HTTP {response.status}: {(await response.text())[:500]}")
            answer = (await response.json()).get("response") or {}
        if answer.get("uid") != uid:
            raise ValueError("the answer is to another question")
        return dict(answer)


def _denial(name: str, status: Json) -> ApiError:
    """Return a webhook's denial with its Status, as k8s.io/apiserver's `ToStatusErr` does."""
    why = status.get("message") or status.get("reason")
    message = f'admission webhook "{name}" denied the request' + (f": {why}" if why else " without explanation")
    code = max(400, int(status.get("code") or 0))
    return ApiError(code, message, reason=status.get("reason") or "", details=status.get("details"))


def _version(webhook: Json, request: AdmissionRequest) -> str | None:
    """Return the version of the kind to send to a webhook, or None if no rule matches.

    If the rules name another version than the write's, the object is converted, unless matchPolicy is Exact.
    """
    others = () if webhook.get("matchPolicy") == "Exact" else request.kind.others
    for version in (request.kind.version, *others):
        if any(_covers(rule, request, version) for rule in webhook.get("rules") or ()):
            return version
    return None


def _covers(rule: Json, request: AdmissionRequest, version: str) -> bool:
    """Whether a rule matches the operation, and the resource in this version."""
    resource = f"{request.kind.plural}/{request.subresource}" if request.subresource else request.kind.plural
    wanted = {"operations": request.operation, "apiGroups": request.kind.group, "apiVersions": version}
    wanted["resources"] = resource
    if rule.get("scope", "*") not in ("*", "Namespaced" if request.kind.namespaced else "Cluster"):
        return False
    return all(value in (named := rule.get(key) or ()) or "*" in named for key, value in wanted.items())


def _selects(selector: Json | None, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector (matchLabels, matchExpressions) matches these labels."""
    if not selector:
        return True
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for expression in selector.get("matchExpressions") or ():
        value, values = labels.get(expression["key"]), expression.get("values") or ()
        among, present = value in values, value is not None
        holds = {"In": among, "NotIn": not among, "Exists": present, "DoesNotExist": not present}
        if not holds[expression["operator"]]:
            return False
    return True


@lru_cache(maxsize=8)
def _tls(bundle: str) -> ssl.SSLContext:
    """Return a context that trusts only the caBundle (ValueError if empty). Connections are kept with the context."""
    if not bundle:
        raise ValueError("the webhook's caBundle is empty")
    return ssl.create_default_context(cadata=base64.b64decode(bundle).decode())


def _review(uid: str, request: AdmissionRequest, new: Object | None, version: str) -> Json:
    """Return the AdmissionReview, with the object in this version."""
    kind = request.kind
    names, own = ({"group": kind.group, "version": each} for each in (version, kind.version))
    renamed = {"apiVersion": f"{kind.group}/{version}"} if version != kind.version else {}
    asked: dict[str, Any] = {
        "uid": uid, "operation": request.operation.value, "dryRun": request.dry_run,
        "kind": {**names, "kind": kind.kind}, "resource": {**names, "resource": kind.plural},
        "requestKind": {**own, "kind": kind.kind}, "requestResource": {**own, "resource": kind.plural},
        "namespace": request.namespace, "name": request.name, "subResource": request.subresource,
        "userInfo": {"username": request.user.name, "groups": list(request.user.groups)},
        "object": None if new is None else {**new, **renamed},
        "oldObject": None if request.old is None else {**request.old, **renamed},
    }  # fmt: skip
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
