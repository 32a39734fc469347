"""Whether the user, or a ServiceAccount, has a right, as the API server decides it."""

import asyncio
from collections.abc import Iterable

from crrd.kube.client import KubeClient
from crrd.kube.resources import Resource
from crrd.lib.jsonfields import value_at

_GROUP = "authorization.k8s.io"
_MY_REVIEWS, _REVIEWS = (Resource(plural, _GROUP) for plural in ("selfsubjectaccessreviews", "subjectaccessreviews"))


async def missing_rights(
    client: KubeClient, wanted: Iterable[str], namespace: str, account: str = ""
) -> tuple[str, ...]:
    """Return which of the rights (verbs and a resource: `list,watch pods`) the ServiceAccount, or the user, lacks."""
    asked = [(verb, resource) for verbs, resource in map(str.split, wanted) for verb in verbs.split(",")]
    allowed = await asyncio.gather(*(_may(client, verb, kind, namespace, account) for verb, kind in asked))
    return tuple(" ".join(right) for right, may in zip(asked, allowed, strict=True) if not may)


async def _may(client: KubeClient, verb: str, kind: str, namespace: str, account: str) -> bool:
    name, _, subresource = kind.partition("/")
    plural, _, group = name.partition(".")
    attributes = {"verb": verb, "group": group, "resource": plural, "namespace": namespace}
    spec = {"resourceAttributes": {**attributes, "subresource": subresource}}
    user = {"user": f"system:serviceaccount:{account}"} if account else {}
    resource, whose = (_REVIEWS, "Subject") if account else (_MY_REVIEWS, "SelfSubject")
    body = {"apiVersion": f"{_GROUP}/v1", "kind": f"{whose}AccessReview", "spec": {**spec, **user}}
    return value_at(await client.create(resource, "", body), "status.allowed") is True
