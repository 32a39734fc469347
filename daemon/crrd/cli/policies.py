"""`crrd policies`: prints ContainerRecreatePolicies that do what another tool does now. Only reads from the API server.

`core.policy.reloader` decides what is printed.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterable, Iterator

from crrd.cli.connection import access_flags, add_connection_flags, connect
from crrd.cli.options import add_switch
from crrd.core.config.references import Kind
from crrd.core.policy.reloader import Advice, Json, convert, read_marks
from crrd.core.policy.triggers import READ_ROLE, SECRETS_ROLE, grant
from crrd.kube.best_effort import BestEffortReader
from crrd.kube.errors import ResourceMissingError
from crrd.kube.resources import CONFIGURATION, Resource, Where, metadata_of
from crrd.lib.errors import ApiUnavailableError, ConfigurationError
from crrd.lib.formats import Format
from crrd.lib.jsonfields import value_at
from crrd.lib.log import configure as configure_log
from crrd.lib.output import complain
from crrd.lib.plain import plain, with_flags

EXIT_INCOMPLETE = 1  # Something could not be read
_NOT_LOGGED_IN = 401
_ACCOUNT = "crrd-system:crrd-manager"  # As manifests/manager has it
_ROLLOUTS_ROLE = "crrd-read-rollouts"
_WORKLOADS = {
    "Deployment": Resource("deployments", "apps"),
    "StatefulSet": Resource("statefulsets", "apps"),
    "DaemonSet": Resource("daemonsets", "apps"),
    "CronJob": Resource("cronjobs", "batch"),
    "Job": Resource("jobs", "batch"),
    "Rollout": Resource("rollouts", "argoproj.io", "v1alpha1"),
    "DeploymentConfig": Resource("deploymentconfigs", "apps.openshift.io"),
}
"""The kinds that Reloader reloads."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb, with its flags."""
    parser.description = "Prints ContainerRecreatePolicies that do what another tool does now."
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="TOOL")
    verb = verbs.add_parser(
        "from-reloader",
        help="policies for the workloads that have annotations of Stakater Reloader",
        formatter_class=parser.formatter_class,
    )
    verb.description = (
        "Prints a ContainerRecreatePolicy for each workload that has annotations of Stakater Reloader. A comment\n"
        "before a policy says where it differs from Reloader. On stderr is what no policy does, and the commands that\n"
        "let the manager read configuration. Changes nothing in the cluster. See docs/from-reloader.md.\n\n"
        "For the annotations reloader.stakater.com/match and reloader.stakater.com/ignore, it lists the metadata of\n"
        "ConfigMaps and Secrets. It knows annotations only by the names that Reloader gives them by default."
    )
    verb.epilog = (
        "examples:\n"
        "  %(prog)s -n shop > policies.yaml       read the comments, then: kubectl apply -f policies.yaml\n"
        "  %(prog)s -n shop | kubectl diff -f -\n"
        "  %(prog)s -A --auto-reload-all\n\n"
        "exit codes: 0 printed, 1 something could not be read, or the API server cannot be reached, 2 bad input"
    )
    where = verb.add_mutually_exclusive_group()
    where.add_argument("-n", "--namespace", metavar="NAME", default="", help="the namespace (default: the context's)")
    add_switch(where, "-A", "--all-namespaces", text="the workloads of all namespaces")
    everything = "also workloads without annotations, as Reloader does with its flag of this name"
    add_switch(verb, "--auto-reload-all", text=everything)
    add_connection_flags(verb)


def run(args: argparse.Namespace) -> int:
    """Print the policies. Return the exit code. Raises ConfigurationError for bad input."""
    configure_log("console", "error")
    flags = access_flags(args)
    try:
        advice, unread = asyncio.run(_read(args))
    except ApiUnavailableError as error:
        complain(f"crrd policies: cannot reach the API server: {plain(str(error))}")
        return EXIT_INCOMPLETE
    print("".join(map(_document, advice)), end="")
    sys.stdout.flush()
    for line in (*_without_policy(advice), *unread, *next_steps(advice)):
        complain(plain(with_flags(line, flags)))
    return EXIT_INCOMPLETE if unread else 0


async def _read(args: argparse.Namespace) -> tuple[tuple[Advice, ...], list[str]]:
    """Return the advice for all workloads, and what could not be read, as sentences."""
    async with connect(args) as client:
        reader = BestEffortReader(client)
        namespace = args.namespace or await client.default_namespace()
        where: Where = {"namespace": "" if args.all_namespaces else namespace}
        workloads = [each for kind in _WORKLOADS for each in await _workloads(reader, kind, where)]
        objects = [each for kind in CONFIGURATION for each in await _configuration(reader, kind, where)]
    refused = []
    for what, error in reader.unread.items():
        if isinstance(error, ApiUnavailableError):
            raise error
        if error.status == _NOT_LOGGED_IN:
            raise ConfigurationError(f"the API server does not accept {client.description}: {error}")
        if not isinstance(error, ResourceMissingError):  # Clusters without Argo Rollouts or OpenShift
            refused.append((what, error))
    names = ", ".join(what for what, _ in refused)
    unread = [f"cannot list {names}, so their annotations do not count here: {refused[0][1]}"] if refused else []
    return convert(workloads, read_marks(objects), auto_all=args.auto_reload_all), unread


async def _workloads(reader: BestEffortReader, kind: str, where: Where) -> Iterable[Json]:
    """Return the workloads of a kind, with the kind and apiVersion that lists leave out."""
    resource = _WORKLOADS[kind]
    named = {"kind": kind, "apiVersion": f"{resource.group}/{resource.version}"}
    found = reader.list(resource, lambda obj: {**obj, **named}, **where)
    return await reader.attempt(resource.full_name, found) or ()


async def _configuration(reader: BestEffortReader, kind: Kind, where: Where) -> Iterable[tuple[Kind, Json]]:
    """Return the ConfigMaps or Secrets that have annotations, without their data."""
    resource = metadata_of(CONFIGURATION[kind])
    found = reader.list(resource, lambda obj: (kind, obj), **where)
    return await reader.attempt(resource.full_name, found) or ()


def _document(advice: Advice) -> str:
    """Return the policy as a YAML document with its comments, "" if there is none."""
    if advice.policy is None:
        return ""
    comments = (f"# {plain(line)}\n" for line in (advice.workload, *(f"- {note}" for note in advice.notes)))
    return f"---\n{''.join(comments)}{Format('yaml').render(advice.policy, '')}"


def _without_policy(advice: Iterable[Advice]) -> Iterator[str]:
    for each in advice:
        if each.policy is None:
            yield f"no policy for {each.workload}:"
            yield from (f"  - {note}" for note in each.notes)


def next_steps(advice: Iterable[Advice]) -> Iterator[str]:
    """Yield how many policies there are, and the commands that let the manager read the configuration for them."""
    policies = [each for each in advice if each.policy is not None]
    if not policies:
        yield "no workload has annotations of Reloader that a policy can replace"
        return
    count = f"{len(policies)} {'policy' if len(policies) == 1 else 'policies'}"
    yield f"{count}. These commands let the manager read the configuration:"
    for namespace in dict.fromkeys(each.namespace for each in policies):
        own = [each for each in policies if each.namespace == namespace]
        secrets = any(each.secrets for each in own)
        for role in (READ_ROLE, *([SECRETS_ROLE] if secrets else [])):
            yield f"  {grant(namespace, role, _ACCOUNT)}"
        if any(value_at(each.policy, "spec.targetRef.kind") == "Rollout" for each in own):
            role, rollouts = _ROLLOUTS_ROLE, _WORKLOADS["Rollout"].full_name
            yield f"  kubectl create role {role} -n {namespace} --verb=get,list,watch --resource={rollouts}"
            yield f"  kubectl create rolebinding {role} -n {namespace} --role={role} --serviceaccount={_ACCOUNT}"
