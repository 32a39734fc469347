"""`crrd doctor`: checks an installation. Reads what `core.doctor` needs from the API server, and prints the findings.

It creates nothing, because its create calls are dry runs. If a right is missing, the check is "not checked".
"""

import argparse
import asyncio
import textwrap
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from crrd.cli.connection import access_flags, add_connection_flags, connect
from crrd.cli.options import add_output
from crrd.core.api.types import ACTIVE_REQUESTS, KIND, MANAGERS, NODE_DAEMONS
from crrd.core.doctor import facts as read
from crrd.core.doctor.checks import CREATE, examine
from crrd.core.doctor.facts import Facts, Json, LeaseSeen, PodSeen, Trial, Webhook
from crrd.core.doctor.findings import Check, Finding, State
from crrd.core.rollout.run import LABEL_RUN
from crrd.kube.best_effort import BestEffortReader
from crrd.kube.clock import ServerClock
from crrd.kube.discovery import LEAST, server_version
from crrd.kube.leader import LEASE_NAME
from crrd.kube.resources import LEASES, NODES, PODS, POLICIES, REQUESTS, WEBHOOKS, Resource
from crrd.kube.rights import missing_rights
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError
from crrd.lib.jsonfields import name_of, text
from crrd.lib.log import configure as configure_log
from crrd.lib.plain import with_flags

EXIT_PROBLEMS = 1
_ADMISSION = "admissionregistration.k8s.io"
_POLICIES = Resource("validatingadmissionpolicies", _ADMISSION)
_BINDINGS = Resource("validatingadmissionpolicybindings", _ADMISSION)
_CRDS = Resource("customresourcedefinitions", "apiextensions.k8s.io")
_DAEMON_SETS = Resource("daemonsets", "apps")
_REQUESTS = REQUESTS.full_name
_NOT_SERVED = 404
_TRIED = 3  # How many pods a valid request is tried with, at most
_OF_BOTH = (f"patch {_REQUESTS}/status", "get nodes", "create events")
OF_USER = (f"get,list,watch,create,patch,delete {_REQUESTS}", "get,list,watch pods")
OF_PATCHES = ("get,list,watch,patch pods",)  # For `kubectl recreate` without requests
OF_NODE = (f"list,watch,patch,serve {_REQUESTS}", "list,watch pods", *_OF_BOTH)
OF_MANAGER = (
    *(f"get,list,watch,patch,delete,manage {_REQUESTS}", "get,list,watch pods", "patch pods/status"),
    *("list,watch namespaces", *_OF_BOTH),
)
"""The rights that manifests/node/rbac.yaml and manifests/manager/rbac.yaml grant in the cluster."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags and arguments."""
    parser.description = textwrap.fill(
        f"Checks an installation of crrd: {', '.join(Check)}. Prints a line per check: ok, warning, problem or not "
        "checked, and what to do. Changes nothing, because the requests that it creates are dry runs. It skips checks "
        "that your rights do not allow.",
        width=108,
    )
    parser.epilog = (
        "examples:\n"
        "  crrd doctor\n"
        "  crrd doctor -n shop -o json\n\n"
        "exit codes: 0 no problem (there may be warnings and skipped checks), 1 problems,\n"
        "2 bad input, or the API server cannot be reached"
    )
    where = "namespace for the dry-run requests, and for the check of your rights (default: that of the context)"
    parser.add_argument("-n", "--namespace", metavar="NAME", default="", help=where)
    add_output(parser, names=False)
    add_connection_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Print the findings. Return the exit code. Raises ConfigurationError if the API server cannot be reached."""
    configure_log("console", "error")
    findings, flags = examine(asyncio.run(_read(args))), access_flags(args)
    text = f"{with_flags(render(findings), flags)}\n"
    print(text if args.output.is_text else args.output.render(render_json(findings), flags), end="")
    return EXIT_PROBLEMS if any(each.state is State.PROBLEM for each in findings) else 0


def render(findings: Iterable[Finding]) -> str:
    """Return the findings as text."""
    lines, states, checks = [], max(map(len, State)), max(map(len, Check))
    for each in findings:
        lines.append(f"{each.state:<{states}}  {each.check:<{checks}}  {each.message}")
        if each.advice:
            lines.append(f"{'':<{states + checks + 4}}> {each.advice}")
    return "\n".join(lines)


def render_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return the findings as JSON. The overall `state` is the worst one found, without those not checked."""
    checks = [
        {
            "check": each.check.name.title(),
            "state": each.state.value,
            "reason": each.topic.value,
            "message": each.message,
            "advice": each.advice,
        }
        for each in findings
    ]
    found = {each["state"] for each in checks}
    return {"state": next((state for state in ("problem", "warning") if state in found), "ok"), "checks": checks}


async def _read(args: argparse.Namespace) -> Facts:
    clock = ServerClock()
    async with connect(args, clock) as client:
        try:
            version = await client.document("/version")
        except (ApiUnavailableError, ApiRefusedError) as error:
            raise ConfigurationError(f"cannot reach the API server with {client.description}: {error}") from error
        return await Reader(client).facts(version, args.namespace or await client.default_namespace(), clock)


@dataclass(frozen=True, slots=True)
class Reader(BestEffortReader):
    """Reads an installation, as far as the user's rights allow."""

    found: dict[str, Any] = field(default_factory=dict)  # Facts by name

    async def facts(self, version: Json, namespace: str, clock: ServerClock) -> Facts:
        """Read all facts."""
        await self._gather(managers=self._pods(MANAGERS), daemons=self._pods(NODE_DAEMONS))
        await self._gather(
            crd=self.get(_CRDS, "", _REQUESTS),
            policy_crd=self.get(_CRDS, "", POLICIES.full_name),
            hooks=self._hooks(),
            trial=self._trial(namespace),
            valid_trial=self._valid_trial(namespace),
            by_version=self._by_version(namespace),
            policies=self.list(_POLICIES, name_of),
            bound=self.list(_BINDINGS, read.read_bound),
            leader=self._leader(),
            nodes=self.list(NODES, read.read_node),
            node_leases=self.list(LEASES, read.read_lease, namespace="kube-node-lease"),
            waiting=self.list(REQUESTS, read.read_waiting, label_selector=ACTIVE_REQUESTS),
            other_names=self.list(PODS, read.read_other_name, label_selector=LABEL_RUN),
            missing_rights=self._missing(OF_USER, namespace),
            missing_for_patches=self._missing(OF_PATCHES, namespace),
            accounts=self._accounts(),
            kruise_daemons=self.list(_DAEMON_SETS, read.read_desired, field_selector="metadata.name=kruise-daemon"),
        )
        unread = {name: str(error) for name, error in self.unread.items()}
        if not self.found.get("accounts", True):
            unread["accounts"] = unread.get("managers") or unread.get("daemons") or "crrd has no pods"
        number = server_version(version)
        return Facts(
            version=text(version.get("gitVersion")) or "version unknown",
            too_old=number is not None and number < LEAST,
            now=clock.now(),
            here=datetime.now(UTC),
            unread=unread,
            **self.found,
        )

    async def _gather(self, **reads: Awaitable[Any]) -> None:
        results = await asyncio.gather(*(self.attempt(name, work) for name, work in reads.items()))
        pairs = zip(reads, results, strict=True)
        self.found.update({name: result for name, result in pairs if name not in self.unread})

    async def _pods(self, selector: str) -> tuple[PodSeen, ...]:
        found = await self.list(PODS, read.read_pod, label_selector=selector)
        return tuple(each for each in found if not each.ended)

    async def _hooks(self) -> tuple[Webhook, ...]:
        return tuple(chain.from_iterable(await self.list(WEBHOOKS, read.read_hooks)))

    async def _by_version(self, namespace: str) -> dict[str, tuple[Trial, Trial | None]]:
        """Try each further version that is served. The rules of a webhook may not have it."""
        found = {}
        for version in REQUESTS.others:
            resource = replace(REQUESTS, version=version, others=())
            trial = await self._trial(namespace, resource)
            if trial.status != _NOT_SERVED:
                found[version] = trial, await self._valid_trial(namespace, resource)
        return found

    async def _trial(
        self,
        namespace: str,
        resource: Resource = REQUESTS,
        pod: str = "crrd-doctor-no-such-pod",
        container: str = "app",
    ) -> Trial:
        """Create a request as a dry run."""
        spec = {"podName": pod, "containers": [{"name": container}]}
        api_version = f"{resource.group}/{resource.version}"
        body = {"apiVersion": api_version, "kind": KIND, "metadata": {"name": "crrd-doctor"}, "spec": spec}
        key = f"{namespace}/{pod}"
        try:
            made = await self.client.create(resource, namespace, body, dry_run=True)
        except ApiUnavailableError as error:
            return Trial(0, str(error), key)
        except ApiRefusedError as error:
            return Trial(error.status, str(error), key)
        return Trial(201, "", key, read.is_complete(made))

    async def _valid_trial(self, namespace: str, resource: Resource = REQUESTS) -> Trial | None:
        """Try a pod that can be recreated, of the namespace, or else of crrd itself. None if there is none."""
        own = (pod.namespace for name in ("daemons", "managers") for pod in self.found.get(name, ()))
        trial = None
        for place in dict.fromkeys((namespace, *own)):
            targets = [each for each in await self.list(PODS, read.read_target, namespace=place) if each is not None]
            if targets and not await self.attempt(f"rights in {place}", self._missing((CREATE,), place)):
                for pod, container in targets[:_TRIED]:  # a pod may be deleted meanwhile
                    trial = await self._trial(place, resource, pod, container)
                    if trial.admitted:
                        return trial
                return trial
        return None

    async def _leader(self) -> LeaseSeen | None:
        managers = self.found.get("managers")
        found = await self.get(LEASES, managers[0].namespace, LEASE_NAME) if managers else None
        return None if found is None else read.read_lease(found)

    async def _accounts(self) -> dict[str, tuple[str, ...]]:
        """Return the rights that the ServiceAccounts of node daemons and managers lack."""
        missing: dict[str, tuple[str, ...]] = {}
        for pods, wanted in (("daemons", OF_NODE), ("managers", OF_MANAGER)):
            for account in sorted({pod.account for pod in self.found.get(pods, ())}):
                missing[account] = missing.get(account, ()) + await self._missing(wanted, "", account)
        return missing

    async def _missing(self, wanted: Iterable[str], namespace: str, account: str = "") -> tuple[str, ...]:
        """Return which of the rights the ServiceAccount, or else the user, lacks."""
        return await missing_rights(self.client, wanted, namespace, account)
