"""`crrd doctor`: whether an installation works. Reads what `core.doctor` needs from the API server, and prints.

It creates nothing: its one request is a dry run. What may not be read makes a check "not checked".
"""

import argparse
import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any, TypeVar

from crrd.cli.doctor_sentences import advice, sentence
from crrd.cli.options import add_kubeconfig_flag
from crrd.core.api.types import API_VERSION, GROUP, KIND, LABEL_ACTIVE, PLURAL
from crrd.core.doctor import facts as read
from crrd.core.doctor.checks import examine
from crrd.core.doctor.facts import Facts, Hook, Json, LeaseSeen, PodSeen, Right, Trial, Unread
from crrd.core.doctor.findings import Finding, State
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.config import find_access
from crrd.kube.discovery import LEAST, server_version
from crrd.kube.leader import LEASE_NAME
from crrd.kube.resources import LEASES, MANAGERS, NODE_DAEMONS, NODES, PODS, REQUESTS, WEBHOOKS, Resource
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, GoneError
from crrd.lib.jsonfields import text, value_at
from crrd.lib.log import configure as configure_log

T = TypeVar("T")
EXIT_PROBLEMS = 1
_ADMISSION, _AUTHORIZATION = "admissionregistration.k8s.io", "authorization.k8s.io"
_POLICIES = Resource("validatingadmissionpolicies", _ADMISSION)
_BINDINGS = Resource("validatingadmissionpolicybindings", _ADMISSION)
_CRDS = Resource("customresourcedefinitions", "apiextensions.k8s.io")
_DAEMON_SETS = Resource("daemonsets", "apps")
_MY_REVIEWS = Resource("selfsubjectaccessreviews", _AUTHORIZATION)
_REVIEWS = Resource("subjectaccessreviews", _AUTHORIZATION)
OF_USER = (f"get,list,watch,create,patch,delete {PLURAL}.{GROUP}", "get,list,watch pods")
OF_NODE = (
    f"list,watch,patch,serve {PLURAL}.{GROUP}",
    f"patch {PLURAL}.{GROUP}/status",
    "list,watch pods",
    "get nodes",
    "create events",
)
OF_MANAGER = (
    f"get,list,watch,patch,delete,manage {PLURAL}.{GROUP}",
    f"patch {PLURAL}.{GROUP}/status",
    "get,list,watch pods",
    "get nodes",
    "patch pods/status",
    "list,watch namespaces",
    "create events",
)
"""As manifests/node/rbac.yaml and manifests/manager/rbac.yaml grant it, in the cluster."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags and arguments."""
    parser.description = (
        "Checks an installation of crrd: CRD, admission, policies, manager, node daemons, clocks and rights.\n"
        "Prints a line per check: ok, warning, problem or not checked, and what to do. Changes nothing, because the\n"
        "only request that it creates is a dry run. It skips checks that your rights do not allow."
    )
    parser.epilog = (
        "examples:\n"
        "  crrd doctor\n"
        "  crrd doctor -n shop -o json\n\n"
        "exit codes: 0 no problem (there may be warnings and skipped checks), 1 problems,\n"
        "2 bad input, or the API server cannot be reached"
    )
    parser.add_argument(
        "-n",
        "--namespace",
        metavar="NAME",
        default="default",
        help="namespace for the dry-run request, and for the check of your rights (default: %(default)s)",
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="output format (default: %(default)s)"
    )
    add_kubeconfig_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Print the findings; returns the exit code. Raises ConfigurationError where the API server cannot be asked."""
    configure_log("console", "error")
    findings = examine(asyncio.run(_read(args.kubeconfig, args.namespace)))
    print(json.dumps(render_json(findings), indent=2) if args.output == "json" else render(findings))
    return EXIT_PROBLEMS if any(each.state is State.PROBLEM for each in findings) else 0


def render(findings: Iterable[Finding]) -> str:
    """The findings as text."""
    lines = []
    for each in findings:
        lines.append(f"{each.state:<11}  {each.check:<16}  {sentence(each)}")
        if step := advice(each):
            lines.append(f"{'':<31}> {step}")
    return "\n".join(lines)


def render_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings as JSON; `state` of the whole is the worst that was found, what was not checked aside."""
    states = {each.state for each in findings}
    checks = [
        {
            "check": each.check.name.title(),
            "state": each.state.value,
            "reason": each.topic.name.title().replace("_", ""),
            "message": sentence(each),
            "advice": advice(each),
        }
        for each in findings
    ]
    worst = next((each for each in (State.PROBLEM, State.WARNING) if each in states), State.OK)
    return {"state": worst.value, "checks": checks}


async def _read(kubeconfig: str, namespace: str) -> Facts:
    clock = ServerClock()
    async with KubeClient(find_access(kubeconfig, os.environ), on_date=clock.observe) as client:
        try:
            version = await client.document("/version")
        except (ApiUnavailableError, ApiRefusedError) as error:
            raise ConfigurationError(f"cannot reach the API server with {client.description}: {error}") from error
        return await Reader(client).facts(version, namespace, clock)


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads an installation, as far as it may be read."""

    client: KubeClient

    async def facts(self, version: Json, namespace: str, clock: ServerClock) -> Facts:
        """All of it."""
        managers, daemons = await asyncio.gather(self._pods(MANAGERS), self._pods(NODE_DAEMONS))
        reads: dict[str, Awaitable[Any]] = {
            "crd": self._try(self._crd()),
            "hooks": self._hooks(),
            "trial": self._trial(namespace),
            "policies": self._list(_POLICIES, read.read_name),
            "bound": self._list(_BINDINGS, read.read_bound),
            "leader": self._try(self._leader(managers)),
            "nodes": self._list(NODES, read.read_node),
            "node_leases": self._list(LEASES, read.read_lease, namespace="kube-node-lease"),
            "waiting": self._list(REQUESTS, read.read_waiting, label_selector=f"{LABEL_ACTIVE}=true"),
            "rights": self._try(self._rights(OF_USER, namespace)),
            "account_rights": self._try(self._account_rights(daemons, managers)),
            "kruise_daemons": self._list(_DAEMON_SETS, read.read_desired, field_selector="metadata.name=kruise-daemon"),
        }
        found = dict(zip(reads, await asyncio.gather(*reads.values()), strict=True))
        number = server_version(version)
        return Facts(
            version=text(version.get("gitVersion")) or "version unknown",
            too_old=number is not None and number < LEAST,
            now=clock.now(),
            here=datetime.now(UTC),
            managers=managers,
            daemons=daemons,
            **found,
        )

    async def _try(self, work: Awaitable[T]) -> T | Unread:
        try:
            return await work
        except (ApiUnavailableError, ApiRefusedError) as error:
            return Unread(str(error))

    async def _list(self, resource: Resource, parse: Callable[[Json], T], **where: str) -> tuple[T, ...] | Unread:
        found = await self._try(self.client.list_all(resource, parse, **where))
        return found if isinstance(found, Unread) else found.items

    async def _pods(self, selector: str) -> tuple[PodSeen, ...] | Unread:
        found = await self._list(PODS, read.read_pod, label_selector=selector)
        return found if isinstance(found, Unread) else tuple(each for each in found if not each.ended)

    async def _hooks(self) -> tuple[Hook, ...] | Unread:
        found = await self._list(WEBHOOKS, read.read_hooks)
        return found if isinstance(found, Unread) else tuple(chain.from_iterable(found))

    async def _crd(self) -> Json | None:
        with suppress(GoneError):
            return await self.client.get(_CRDS, "", f"{PLURAL}.{GROUP}")
        return None

    async def _trial(self, namespace: str) -> Trial:
        """Create a request as a dry run. Its pod does not exist, so admission denies it where it works."""
        spec = {"podName": "crrd-doctor-no-such-pod", "containers": [{"name": "app"}]}
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "crrd-doctor"}, "spec": spec}
        try:
            await self.client.create(REQUESTS, namespace, body, dry_run=True)
        except ApiUnavailableError as error:
            return Trial(0, str(error))
        except ApiRefusedError as error:
            return Trial(error.status, str(error))
        return Trial(201)

    async def _leader(self, managers: tuple[PodSeen, ...] | Unread) -> LeaseSeen | None:
        if not isinstance(managers, Unread) and managers:
            with suppress(GoneError):
                return read.read_lease(await self.client.get(LEASES, managers[0].namespace, LEASE_NAME))
        return None

    async def _account_rights(self, *pods: tuple[PodSeen, ...] | Unread) -> tuple[Right, ...] | Unread:
        """Those of the ServiceAccounts of node daemons and managers."""
        found: list[Right] = []
        for each, wanted in zip(pods, (OF_NODE, OF_MANAGER), strict=True):
            if isinstance(each, Unread):
                return each
            for account in sorted({pod.account for pod in each}):
                found += await self._rights(wanted, "", account)
        return tuple(found) if found else Unread("crrd has no pods")

    async def _rights(self, wanted: Iterable[str], namespace: str, account: str = "") -> tuple[Right, ...]:
        """Who may do what: each of the wanted rights is verbs and a resource."""
        asked = [(verb, resource) for verbs, resource in map(str.split, wanted) for verb in verbs.split(",")]
        return tuple(await asyncio.gather(*(self._right(verb, kind, namespace, account) for verb, kind in asked)))

    async def _right(self, verb: str, kind: str, namespace: str, account: str) -> Right:
        name, _, subresource = kind.partition("/")
        plural, _, group = name.partition(".")
        attributes = {"verb": verb, "group": group, "resource": plural, "namespace": namespace}
        spec = {"resourceAttributes": {**attributes, "subresource": subresource}}
        user = {"user": f"system:serviceaccount:{account}"} if account else {}
        resource, whose = (_REVIEWS, "Subject") if account else (_MY_REVIEWS, "SelfSubject")
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": f"{whose}AccessReview", "spec": {**spec, **user}}
        answer = await self.client.create(resource, "", body)
        return Right(f"{verb} {kind}", value_at(answer, "status.allowed") is True, account)
