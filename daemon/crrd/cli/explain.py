"""`crrd explain`: shows the state of a request, or of a pod. Reads what `core.explain` needs from the API server.

Only the request or pod itself must be readable. All else is optional, and the output lists what could not be read.
"""

import argparse
import asyncio
import sys
from typing import Any

from crrd.cli.connection import access_flags, add_connection_flags, connect
from crrd.cli.explain_pod import explained_pod, render_pod, render_pod_json, shortly
from crrd.cli.options import add_output
from crrd.core.api.pod import Pod, parse_pod
from crrd.core.api.time import format_duration
from crrd.core.api.types import ACTIVE_REQUESTS, GROUP, KIND, MANAGERS, NODE_DAEMONS, PLURAL, RequestPhase
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.doctor.facts import read_pod
from crrd.core.explain import facts as read
from crrd.core.explain.facts import DaemonFacts, Facts, Json
from crrd.core.explain.findings import Explanation, Finding, Topic, Verdict
from crrd.core.explain.pod import PodExplanation
from crrd.core.explain.request import explain_request
from crrd.core.rollout.requests import read_run_request
from crrd.core.rollout.state import ProbeFailure
from crrd.core.rollout.waits import read_probe_failure
from crrd.kube.best_effort import BestEffortReader
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.errors import ResourceMissingError
from crrd.kube.reflector import APPLY
from crrd.kube.resources import EVENTS, NODES, PODS, REQUESTS
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, CrrdError, GoneError
from crrd.lib.log import configure as configure_log
from crrd.lib.plain import plain, with_flags, wrapped

EXIT_NOT_EXPLAINED = 1  # The request or pod does not exist, or the API server did not return it
_PODS = ("pod", "pods", "po")  # As kubectl writes the kind
_REQUESTS = ("crr", *(f"{each}{group}" for each in (KIND.lower(), PLURAL) for group in ("", f".{GROUP}")))
_COLORS = {Verdict.SUCCEEDED: "32", Verdict.FAILED: "31", Verdict.MOVING: "36", Verdict.STUCK: "33"}


class NotExplainedError(CrrdError):
    """The request or pod cannot be read. The message is one line with the reason and what to do."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags and arguments."""
    parser.description = (
        "Shows the state of a ContainerRecreateRequest: what it waits for and since when, the result of each\n"
        "container, and what to do next. For a pod, shows which of its images have another name than in its\n"
        "template, because a restart by a patch gave it to them. Only reads from the API server."
    )
    parser.epilog = (
        "examples:\n"
        "  crrd explain shop/restart-app\n"
        "  crrd explain restart-app -n shop -o json\n"
        "  crrd explain pod/web-0 -n shop\n\n"
        "exit codes: 0 explained, 1 not found or API server not reachable, 2 bad input"
    )
    parser.add_argument("request", metavar="[NAMESPACE/]NAME", help="the request, or pod/NAME for a pod")
    text = "the namespace (default: that of the kubeconfig's context)"
    parser.add_argument("-n", "--namespace", metavar="NAME", default="", help=text)
    add_output(parser)
    add_connection_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Print the state of the request or pod. Return the exit code. Raises ConfigurationError for bad input."""
    kind, slash, name = args.request.partition("/")
    if slash and kind in _PODS:
        return _run_pod(args, name)
    named = name if slash and kind.lower() in _REQUESTS else args.request
    namespace, slash, name = named.rpartition("/")
    if slash and args.namespace not in ("", namespace):
        raise ConfigurationError(f"{args.request} and --namespace {args.namespace} are different namespaces: use one")
    flags = access_flags(args)
    if not name or "/" in namespace or (slash and not namespace):
        raise ConfigurationError(
            f"{args.request!r} is not the name of a request: use NAMESPACE/NAME, or NAME -n NAMESPACE "
            f"({with_flags('kubectl get crr -A', flags)})"
        )
    configure_log("console", "error")
    try:
        explanation = asyncio.run(_explain(args, namespace or args.namespace, name))
    except NotExplainedError as error:
        print(f"crrd explain: {plain(with_flags(str(error), flags))}", file=sys.stderr)
        return EXIT_NOT_EXPLAINED
    text, names = f"{render(explanation, flags)}\n", [f"{REQUESTS.full_name}/{name}"]
    print(text if args.output.is_text else args.output.render(render_json(explanation), flags, names), end="")
    return 0


def _run_pod(args: argparse.Namespace, name: str) -> int:
    """Print what is known of a pod. Return the exit code."""
    flags = access_flags(args)
    if not name or "/" in name:
        kind, _, _ = args.request.partition("/")
        why = f"{args.request!r} is not the name of a pod: use pod/NAME, with -n NAMESPACE if it is in another one"
        raise ConfigurationError(f"{why} (for a request in a namespace {kind!r}, use NAME -n {kind})")
    configure_log("console", "error")
    try:
        found = asyncio.run(_explain_pod(args, name))
    except NotExplainedError as error:
        print(f"crrd explain: {plain(with_flags(str(error), flags))}", file=sys.stderr)
        return EXIT_NOT_EXPLAINED
    text = f"{render_pod(found, flags)}\n"
    print(text if args.output.is_text else args.output.render(render_pod_json(found), flags, [f"pod/{name}"]), end="")
    return 0


async def _explain_pod(args: argparse.Namespace, name: str) -> PodExplanation:
    clock = ServerClock()
    async with connect(args, clock) as client:
        namespace = args.namespace or await client.default_namespace()
        try:
            return await explained_pod(client, clock, namespace, name)
        except GoneError as error:
            raise NotExplainedError(f"pod {name!r} not found in namespace {namespace!r}") from error
        except (ApiRefusedError, ApiUnavailableError) as error:
            raise NotExplainedError(f"cannot read pod {name!r} in namespace {namespace!r}: {error}") from error


async def _explain(args: argparse.Namespace, namespace: str, name: str) -> Explanation:
    clock = ServerClock()
    async with connect(args, clock) as client:
        namespace = namespace or await client.default_namespace()
        return await explained(client, clock, await _request(client, namespace, name))


async def explained(client: KubeClient, clock: ServerClock, obj: Json) -> Explanation:
    """Read what the request depends on, as far as possible, and explain the request."""
    return explain_request(await _Reader(client).facts(obj, clock))


def render_json(found: Explanation) -> dict[str, Any]:
    """Return an explanation as JSON. Times are in seconds, or null if unknown."""
    return {
        "request": found.request.key,
        "phase": found.request.status.phase.value,
        "ageSeconds": round(found.age, 1),
        "pod": found.request.pod_key,
        "node": found.node,
        "verdict": found.verdict.value,
        **_finding(found.cause, cause_message(found)),
        "containers": [
            {
                "name": each.container,
                "phase": each.phase,
                **_finding(each, each.message),
                "stuck": each.stuck,
            }
            for each in found.containers
        ],
        "notes": [note_message(note) for note in found.notes],
    }


def _finding(finding: Finding, message: str) -> dict[str, Any]:
    return {
        "reason": finding.topic.value,
        "what": message,
        "sinceSeconds": None if finding.since is None else round(finding.since, 1),
        "advice": [*finding.advice],
    }


def cause_message(found: Explanation) -> str:
    """Return the message about the request's state, with the name of the container that it is about."""
    container = f"container {found.cause.container}: " if found.cause.container else ""
    return container + found.cause.message


def note_message(note: Finding) -> str:
    """Return the message of a note, and what to do about it."""
    return "; ".join([note.message, *note.advice])


def render(found: Explanation, flags: str = "") -> str:
    """Return an explanation as text: what the request waits for, what to do, then the rest.

    `flags` are those that select the cluster: every command has them.
    """
    cause, request, phase = found.cause, found.request, found.request.status.phase
    whole = "whole " if request.whole_pod else ""
    where = f"{whole}pod {request.pod_key}" + (f" on node {found.node}" if found.node else "")
    created = f"created {format_duration(found.age)} ago"
    lines = [plain(f"{request.key}: {phase or 'no phase yet'}, {created}, {where}"), ""]
    since = ""
    if cause.since is not None and not cause.topic.says_since:
        since = f" ({format_duration(cause.since)} {'ago' if phase is RequestPhase.COMPLETED else 'so far'})"
    lines += wrapped(with_flags(cause_message(found), flags) + since, color=_COLORS[found.verdict])
    for step in cause.advice:
        lines += wrapped(with_flags(step, flags), first="  > ", others="    ")
    if any(each.container != cause.container and each.topic is not Topic.TURN_AWAITED for each in found.containers):
        widths = [max(len(plain(getattr(each, part))) for each in found.containers) for part in ("container", "phase")]
        lines.append("")
        for each in found.containers:
            head = f"  {plain(each.container):{widths[0]}}  {each.phase:{widths[1]}}  "
            lines += wrapped(with_flags(each.message, flags), first=head, others=" " * len(head))
    if found.notes:
        lines.append("")
        for note in found.notes:
            lines += wrapped(with_flags(note_message(note), flags), first="  - ", others="    ")
    return "\n".join(lines)


async def _request(client: KubeClient, namespace: str, name: str) -> Json:
    """Return the request. Raises NotExplainedError, and ConfigurationError if the connection is configured wrongly."""
    try:
        obj = await client.get(REQUESTS, namespace, name)
    except (ApiRefusedError, ApiUnavailableError) as error:
        raise NotExplainedError(_why_not(error, client, namespace, name)) from error
    request = parse_request(obj)
    if obj.get("kind") != KIND or not request.uid or (request.namespace, request.name) != (namespace, name):
        raise NotExplainedError(f"unexpected response from the API server: it is not a {KIND} named {name!r}")
    return obj


def _why_not(error: ApiRefusedError | ApiUnavailableError, client: KubeClient, namespace: str, name: str) -> str:
    match error:
        case ResourceMissingError():
            return f"the CRD ContainerRecreateRequest is not installed: install crrd with `{APPLY}`"
        case GoneError():
            return f"request {name!r} not found in namespace {namespace!r}; to list requests: kubectl get crr -A"
        case ApiRefusedError(status=403):
            return f"not allowed to read requests in namespace {namespace!r}, using {client.description}: {error}"
        case ApiRefusedError(status=401):
            return f"the API server does not accept {client.description}: {error}"
        case ApiUnavailableError():
            return f"cannot reach the API server: {error}"
    return str(error)


class _Reader(BestEffortReader):
    """Reads the objects that a request depends on."""

    async def facts(self, obj: Json, clock: ServerClock) -> Facts:
        """Read all facts."""
        request = parse_request(obj)
        namespace = request.namespace
        found = await self.attempt("the pod", self.get(PODS, namespace, request.pod_name))
        pod = None if found is None else parse_pod(found)
        node_name = request.node_name or (pod.node_name if pod else "")
        active, own = ACTIVE_REQUESTS, f"involvedObject.uid={request.uid}"
        others, node, servers, events, probes = await asyncio.gather(
            self.attempt(
                "other requests", self.list(REQUESTS, parse_request, namespace=namespace, label_selector=active)
            ),
            self.attempt("the node", self.get(NODES, "", node_name)),
            self.attempt(read.DAEMON_PODS, self._servers(node_name)),
            self.attempt("events", self.list(EVENTS, read.read_event, namespace=namespace, field_selector=own)),
            self.attempt("the pod's events", self._probes(pod)),
        )
        daemons, manager = servers or (None, "")
        return Facts(
            request=request,
            now=clock.now(),
            pod=pod,
            pod_read="the pod" not in self.unread,
            ready_since=read.read_ready_since(found or {}),
            ends=read.read_ends(found or {}),
            others=read.others_of(request, others or ()),
            node=read.read_node(node) if node_name and "the node" not in self.unread else None,
            daemons=daemons,
            manager=manager,
            events=events or (),
            probes=probes or (),
            times=read.read_times(obj),
            run=asked.run if (asked := read_run_request(obj)) is not None else None,
            admitted=read.is_admitted(obj),
            unread={what: shortly(error) for what, error in self.unread.items()},
        )

    async def _probes(self, pod: Pod | None) -> tuple[tuple[tuple[str, str], ProbeFailure] | None, ...]:
        """Return the failed probes of the pod, if one of its containers waits for a probe."""
        if pod is None or all(each.ready or not each.running for each in pod.containers.values()):
            return ()
        selector = f"involvedObject.uid={pod.uid},reason=Unhealthy"
        return await self.list(EVENTS, read_probe_failure, namespace=pod.namespace, field_selector=selector)

    async def _servers(self, node: str) -> tuple[tuple[DaemonFacts, ...] | None, str]:
        """Return the daemon's pods on a node, or else the namespace of a manager that patches pods instead.

        None if no node has a daemon, and no manager patches pods: it runs by hand, or with other labels.
        """
        if not node:
            return None, ""
        selectors = {"label_selector": NODE_DAEMONS, "field_selector": f"spec.nodeName={node}"}
        if there := await self.list(PODS, read.read_daemon, **selectors):
            return there, ""
        managers = await self.list(PODS, read_pod, label_selector=MANAGERS)
        if manager := next((each.namespace for each in managers if each.patches and not each.ended), ""):
            return None, manager
        return (None if await self.client.first(PODS, label_selector=NODE_DAEMONS) is None else ()), ""
