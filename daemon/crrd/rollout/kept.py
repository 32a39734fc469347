"""The requests of runs wherever they are kept: as objects of their own, or on their pods (`core.rollout.patched`)."""

from collections.abc import Mapping
from typing import Any

from crrd.core.rollout.patched import read_patched
from crrd.core.rollout.requests import RunRequest, read_run_request
from crrd.core.rollout.run import LABEL_RUN
from crrd.kube.client import KubeClient
from crrd.kube.discovery import serves
from crrd.kube.errors import ResourceMissingError
from crrd.kube.resources import PODS, REQUESTS, Resource, Where
from crrd.lib import jsonpatch
from crrd.lib.errors import ApiRefusedError, GoneError
from crrd.rollout.refusals import INVALID, lacks_right


async def annotate(client: KubeClient, asked: RunRequest, annotations: Mapping[str, str]) -> Mapping[str, Any]:
    """Write annotations on a request. Return the object on which they are.

    Raises GoneError if it is not there any more, also if the record of another run has replaced it on its pod.
    """
    request = asked.request
    if not asked.on_pod:
        body = {"metadata": {"annotations": dict(annotations)}}
        return await client.merge_patch(REQUESTS, request.namespace, request.name, body)
    operations = [
        jsonpatch.test("/metadata/uid", request.pod_uid),  # else another pod has its name
        jsonpatch.test(jsonpatch.pointer("metadata", "labels", LABEL_RUN), asked.run.name),  # else the next run has it
        *(jsonpatch.add(jsonpatch.pointer("metadata", "annotations", key), text) for key, text in annotations.items()),
    ]
    try:
        return await client.json_patch(PODS, request.namespace, request.pod_name, operations)
    except ApiRefusedError as error:
        if error.status == INVALID:
            raise GoneError(str(error)) from error
        raise


async def may_list_requests(client: KubeClient, namespace: str) -> bool:
    """Return whether the API server has ContainerRecreateRequests, and this process may list them."""
    try:
        await client.first(REQUESTS, namespace=namespace)
    except ResourceMissingError:
        return False
    except ApiRefusedError as error:
        if not lacks_right(error):
            raise
        return False
    return True


async def list_requests(
    client: KubeClient, namespace: str, selector: str = LABEL_RUN, *, strict: bool = True
) -> list[RunRequest]:
    """Return the requests of runs that match a label selector, wherever they are kept.

    Without the CRD, or without a right to its objects, there are those on pods. If there are none either, and the API
    server has the CRD, the refusal is raised if this is `strict`. Without a right to pods, there are those of the CRD.
    """
    where = Where(namespace=namespace, label_selector=selector)
    found, refused, served = list[RunRequest | None](), dict[Resource, ApiRefusedError](), True
    for resource, read in (REQUESTS, read_run_request), (PODS, read_patched):
        try:
            found += (await client.list_all(resource, read, **where)).items
        except ResourceMissingError:
            served = False
        except ApiRefusedError as error:
            if not lacks_right(error):
                raise
            refused[resource] = error
    known = [each for each in found if each is not None]
    if not known and REQUESTS in refused and strict and await serves(client, REQUESTS):
        raise refused[REQUESTS]
    if not known and PODS in refused and (not served or REQUESTS in refused):
        raise refused[PODS]
    return known
