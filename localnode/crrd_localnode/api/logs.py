"""`pods/NAME/log`: asked of the kubelet of the pod's node, and handed on as it comes."""

import aiohttp
from aiohttp import web

from crrd_localnode.api.errors import ApiError, bad_request, not_found
from crrd_localnode.api.objects import dig
from crrd_localnode.api.routing import Route
from crrd_localnode.api.store import Store

_PASSED_ON = ("follow", "previous", "tailLines", "timestamps")
_LISTS = ("containers", "initContainers", "ephemeralContainers")


async def pod_log(store: Store, route: Route, request: web.BaseRequest) -> web.StreamResponse:
    """The answer. Raises ApiError, in the words of the real server."""
    pod = store.get("/pods", (route.namespace, route.name))
    if pod is None:
        raise not_found("", "pods", route.name)
    query = request.rel_url.query
    names = [str(each["name"]) for key in _LISTS for each in dig(pod.obj, "spec", key) or []]
    container = query.get("container") or (names[0] if len(names) == 1 else "")
    if not container:
        raise bad_request(
            f"a container name must be specified for pod {route.name}, choose one of: [{' '.join(names)}]"
        )
    if container not in names:
        raise bad_request(f"container {container} is not valid for pod {route.name}")
    node = store.get("/nodes", ("", str(dig(pod.obj, "spec", "nodeName") or "")))
    port = dig(node.obj, "status", "daemonEndpoints", "kubeletEndpoint", "Port") if node is not None else None
    if not port:
        raise ApiError(500, f"no kubelet is known for pod {route.name}")
    url = f"http://127.0.0.1:{port}/containerLogs/{route.namespace}/{route.name}/{container}"
    wanted = {key: query[key] for key in _PASSED_ON if key in query}
    try:
        async with aiohttp.ClientSession() as session, session.get(url, params=wanted) as answer:
            if answer.status != 200:
                raise bad_request(await answer.text())
            response = web.StreamResponse(headers={"Content-Type": "text/plain"})
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            return response
    except (aiohttp.ClientError, OSError) as error:
        raise ApiError(500, f"the kubelet of pod {route.name} does not answer: {error}") from error
