"""`crrd explain`: where a request stands. Reads what `core.explain` needs from the API server, and prints.

Only the request itself has to be readable. Whatever else may not be read is left out, and the answer says so.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from crrd.cli.explain_text import render, render_json
from crrd.cli.options import add_kubeconfig_flag
from crrd.core.api.pod import Pod, parse_pod
from crrd.core.api.types import KIND, LABEL_ACTIVE
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.explain.facts import (
    DaemonFacts,
    Facts,
    is_admitted,
    others_of,
    read_daemon,
    read_event,
    read_node,
    read_ready_since,
    read_times,
)
from crrd.core.explain.findings import Explanation, Finding, Topic
from crrd.core.explain.request import explain_request
from crrd.core.rollout.state import ProbeFailure
from crrd.core.rollout.waits import read_probe_failure
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.config import find_access
from crrd.kube.errors import ResourceMissingError
from crrd.kube.reflector import APPLY
from crrd.kube.resources import EVENTS, NODE_DAEMONS, NODES, PODS, REQUESTS, Resource
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, CrrdError, GoneError
from crrd.lib.log import configure as configure_log
from crrd.lib.plain import plain

T = TypeVar("T")
Json = Mapping[str, Any]

EXIT_NOT_EXPLAINED = 1  # There is no such request, or the API server does not say


class NotExplainedError(CrrdError):
    """The request cannot be had: one line that says why and what to do."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags and arguments."""
    parser.description = (
        "Shows the state of a ContainerRecreateRequest: what it waits for and since when, the result of each\n"
        "container, and what to do next. Only reads from the API server."
    )
    parser.epilog = (
        "examples:\n"
        "  crrd explain shop/restart-app\n"
        "  crrd explain restart-app -n shop -o json\n\n"
        "exit codes: 0 explained, 1 request not found or API server not reachable, 2 bad input"
    )
    parser.add_argument("request", metavar="NAMESPACE/NAME", help="the request (with -n only its name)")
    parser.add_argument("-n", "--namespace", metavar="NAME", default="", help="the request's namespace")
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="output format (default: %(default)s)"
    )
    add_kubeconfig_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Print where the request stands; returns the exit code. Raises ConfigurationError for a bad name or kubeconfig."""
    namespace, slash, name = args.request.rpartition("/")
    if slash and args.namespace not in ("", namespace):
        raise ConfigurationError(f"{args.request} and --namespace {args.namespace} are different namespaces: use one")
    namespace = namespace or args.namespace
    if not namespace or not name or "/" in namespace:
        raise ConfigurationError(
            f"{args.request!r} is not the name of a request: use NAMESPACE/NAME, or NAME -n NAMESPACE "
            "(kubectl get crr -A)"
        )
    configure_log("console", "error")
    try:
        explanation = asyncio.run(_explain(args.kubeconfig, namespace, name))
    except NotExplainedError as error:
        print(f"crrd explain: {plain(str(error))}", file=sys.stderr)
        return EXIT_NOT_EXPLAINED
    print(json.dumps(render_json(explanation), indent=2) if args.output == "json" else render(explanation))
    return 0


async def _explain(kubeconfig: str, namespace: str, name: str) -> Explanation:
    clock = ServerClock()
    async with KubeClient(find_access(kubeconfig, os.environ), on_date=clock.observe) as client:
        return await explained(client, clock, await _request(client, namespace, name))


async def explained(client: KubeClient, clock: ServerClock, obj: Json) -> Explanation:
    """Where a request stands, by what else can be read."""
    return explain_request(await _Reader(client).facts(obj, clock))


async def _request(client: KubeClient, namespace: str, name: str) -> Json:
    """The request. Raises NotExplainedError, and ConfigurationError for what is wrong with the way to the server."""
    where = f"namespace {namespace!r}"
    try:
        obj = await client.get(REQUESTS, namespace, name)
    except ResourceMissingError as error:
        raise NotExplainedError(
            f"the CRD ContainerRecreateRequest is not installed: install crrd with `{APPLY}`"
        ) from error
    except GoneError as error:
        raise NotExplainedError(
            f"request {name!r} not found in {where}; to list requests: kubectl get crr -A"
        ) from error
    except ApiRefusedError as error:
        who = client.description
        if error.status == 403:
            raise NotExplainedError(f"not allowed to read requests in {where}, using {who}: {error}") from error
        if error.status == 401:
            raise NotExplainedError(f"the API server does not accept {who}: {error}") from error
        raise NotExplainedError(str(error)) from error
    except ApiUnavailableError as error:
        raise NotExplainedError(f"cannot reach the API server: {error}") from error
    request = parse_request(obj)
    if obj.get("kind") != KIND or not request.uid or (request.namespace, request.name) != (namespace, name):
        raise NotExplainedError(f"unexpected response from the API server: it is not a {KIND} named {name!r}")
    return obj


@dataclass(slots=True)
class _Reader:
    """Reads what a request depends on, as far as it may be read."""

    client: KubeClient
    unread: list[Finding] = field(default_factory=list)

    async def facts(self, obj: Json, clock: ServerClock) -> Facts:
        """All of it."""
        request = parse_request(obj)
        namespace = request.namespace
        pod_read, pod = await self._try("the pod", self._get(PODS, namespace, request.pod_name))
        pod_facts = None if pod is None else parse_pod(pod)
        node_name = request.node_name or (pod_facts.node_name if pod_facts else "")
        active, own = f"{LABEL_ACTIVE}=true", f"involvedObject.uid={request.uid}"
        (_, others), (node_read, node), (_, daemons), (_, events), (_, probes) = await asyncio.gather(
            self._try("other requests", self._list(REQUESTS, parse_request, namespace, label_selector=active)),
            self._try("the node", self._get(NODES, "", node_name)),
            self._try("the node daemon's pod", self._daemons(node_name)),
            self._try("events", self._list(EVENTS, read_event, namespace, field_selector=own)),
            self._try("the pod's events", self._probes(pod_facts)),
        )
        return Facts(
            request=request,
            now=clock.now(),
            pod=pod_facts,
            pod_read=pod_read,
            ready_since=read_ready_since(pod or {}),
            others=others_of(request, others or ()),
            node=read_node(node_name, node) if node_read and node_name else None,
            daemons=daemons,
            events=events or (),
            probes=probes or (),
            times=read_times(obj),
            admitted=is_admitted(obj),
            unread=tuple(self.unread),
        )

    async def _try(self, what: str, read: Awaitable[T]) -> tuple[bool, T | None]:
        """Whether it could be read, and what it is."""
        try:
            return True, await read
        except ApiRefusedError as error:
            reason = "forbidden" if error.status == 403 else str(error)
        except ApiUnavailableError as error:
            reason = str(error)
        self.unread.append(Finding(Topic.UNREAD, {"object": what, "error": reason}))
        return False, None

    async def _get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """One object, None where there is none."""
        with suppress(GoneError):
            return await self.client.get(resource, namespace, name) if name else None
        return None

    async def _list(
        self, resource: Resource, parse: Callable[[Json], T], namespace: str = "", **selectors: str
    ) -> tuple[T, ...]:
        return (await self.client.list_all(resource, parse, namespace=namespace, **selectors)).items

    async def _probes(self, pod: Pod | None) -> tuple[tuple[tuple[str, str], ProbeFailure] | None, ...]:
        """What probes of the pod said, if one of its containers waits for one."""
        if pod is None or all(each.ready or not each.running for each in pod.containers.values()):
            return ()
        selector = f"involvedObject.uid={pod.uid},reason=Unhealthy"
        return await self._list(EVENTS, read_probe_failure, pod.namespace, field_selector=selector)

    async def _daemons(self, node: str) -> tuple[DaemonFacts, ...] | None:
        """The daemon's pods on a node; None where there is none on any: it runs by hand, or with other labels."""
        if not node:
            return None
        selectors = {"label_selector": NODE_DAEMONS, "field_selector": f"spec.nodeName={node}"}
        if there := await self._list(PODS, read_daemon, **selectors):
            return there
        async for page in self.client.list_pages(PODS, label_selector=NODE_DAEMONS, limit=1):
            if any(True for _ in page.items):
                return ()
        return None
