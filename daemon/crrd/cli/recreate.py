"""`crrd recreate` and `kubectl recreate`: the flags and the parsed command. `crrd.rollout` carries it out."""

import argparse
import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from crrd.cli.explain import explained, render
from crrd.cli.options import Convert, add_flag, add_kubeconfig_flag, count, duration, from_flags
from crrd.core.api.schema import LONGEST, LONGEST_UNREADY
from crrd.core.api.time import parse_time
from crrd.core.rollout.run import RUN_NAME, Options, read_amount
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.discovery import KNOWN
from crrd.kube.errors import ResourceMissingError
from crrd.kube.reflector import APPLY
from crrd.kube.resources import BUDGETS, CONFIG_MAPS, DISCOVERY, EVENTS, NODES, PODS, REQUESTS, SECRETS, Resource
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, GoneError
from crrd.lib.log import configure as configure_log
from crrd.lib.output import complain
from crrd.lib.plain import plain
from crrd.rollout.runs import EXIT_FAILED, EXIT_INTERRUPTED, Command
from crrd.rollout.session import execute
from crrd.rollout.target import split_targets

VERBS = ("status", "resume", "abort")
_CHANGEABLE = (
    *("max_unavailable", "max_per_node", "max_per_zone", "min_ready", "ordered", "unready_grace", "pod_timeout"),
    *("max_failures", "force", "allow_pod_restart", "preflight", "reason"),
)
"""Fields of Options that can be changed when a run is resumed."""
_FIXED = ("since", "partition", "stale", "run")  # Flags that cannot be changed after a run has started
_PROCESS_FLAGS = ("timeout", "yes", "retry_failed")  # Flags of the process that carries out a run
_TIMES = ("min_ready", "unready_grace", "pod_timeout", "timeout")  # In seconds
_KRUISE = tuple(Resource(each, REQUESTS.group) for each in ("clonesets", "statefulsets", "daemonsets"))
IN_ROLE = {
    each.full_name for each in (REQUESTS, PODS, BUDGETS, NODES, EVENTS, *(known.resource for known in KNOWN), *_KRUISE)
}
"""Resources in the ClusterRole crrd-recreate, with kubectl's names."""
_READERS = {CONFIG_MAPS.full_name: "crrd-read-config", SECRETS.full_name: "crrd-read-secrets"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags and arguments."""
    parser.set_defaults(called=(called := parser.prog))
    parser.usage = (
        f"{called} TYPE/NAME [TYPE/NAME ...] -c CONTAINER[,CONTAINER] [flags]\n"
        f"       {called} -l SELECTOR -c CONTAINER[,CONTAINER] [flags]\n"
        f"       {called} [TYPE/NAME | -l SELECTOR] --stale [flags]\n"
        f"       {called} status [RUN] [-w] | resume RUN | abort RUN"
    )
    parser.description = (
        "Recreates containers of all pods of a workload in place, a few pods at a time, and waits for each to be\n"
        "ready again. It writes only ContainerRecreateRequests, which hold all state of the run, and events.\n\n"
        "status [RUN] shows runs. resume RUN continues a run that was interrupted, is paused or has failed. abort RUN\n"
        "deletes its pending requests; requests in progress finish."
    )
    parser.epilog = (
        "examples:\n"
        f"  {called} deployment/web -c app\n"
        f"  {called} statefulset/db -c proxy --max-unavailable 20% --min-ready 30s\n"
        f'  {called} -l app=web -c app,sidecar --ordered --unready-grace 5s --reason "log level"\n'
        f"  {called} pod/web-7d4b9c -c app --dry-run\n"
        f"  {called} deployment/web deployment/api -c app --dry-run=server\n"
        f"  {called} --stale --dry-run                    list containers with outdated configuration\n"
        f"  {called} deployment/web --stale --max-unavailable 10%\n\n"
        "exit codes: 0 done, 1 failed, 2 bad input, 3 timed out, 130 interrupted"
    )
    add = parser.add_argument
    switch = partial(add, action="store_true")
    targets = "workload with a spec.selector, or a pod; several run one after the other"
    add("arguments", nargs="*", metavar="TYPE/NAME", help=targets)
    add("-l", "--selector", metavar="SELECTOR", default="", help="label selector of the pods, instead of a workload")
    add("-c", "--container", metavar="NAMES", action="append", default=[], help="containers to restart, in this order")
    _add_options(parser)
    dry = partial(add, dest="dry_run", action="store_const", default="")
    dry("--dry-run", "--dry-run=client", const="client", help="print the batches and change nothing")
    dry("--dry-run=server", const="server", help="also send the requests to the API server as a dry run")
    switch("-w", "--watch", help="with status RUN: show the progress of the run until it ends")
    add("-o", "--output", choices=("text", "json"), default="text", help="format (default: %(default)s)")
    namespace = "namespace of the run (default: that of the kubeconfig's context)"
    add("-n", "--namespace", metavar="NAME", default="", help=namespace)
    switch("-A", "--all-namespaces", help="not supported: a run covers one namespace")
    add("--context", metavar="NAME", default="", help="context of the kubeconfig")
    add_kubeconfig_flag(parser)


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a run's options."""
    add = parser.add_argument
    switch = partial(add, action="store_true")
    flag = partial(add_flag, parser)
    pods = partial(flag, convert=_optional(read_amount), metavar="N|N%")
    pods("--max-unavailable", "maximum unready pods, a number or a percentage", shown="1")
    number = partial(flag, convert=_optional(count(0)), metavar="N")
    number("--max-per-node", "maximum unready pods per node (0 = no limit)", shown="0")
    number("--max-per-zone", "maximum unready pods per zone (0 = no limit)", shown="0")
    time = partial(flag, convert=_optional(duration()), metavar="TIME")
    time("--min-ready", "time that a restarted pod must be ready before the run continues", shown="0")
    pods("--partition", "restart this many pods first, then ask whether to continue")
    switch("-y", "--yes", help="continue after --partition without asking")
    switch("--ordered", help="restart a container only after the one before it is ready again")
    grace = "time to keep the pod unready before the restart; needs the readiness gate KruisePodReady"
    time("--unready-grace", grace, convert=_optional(duration(most=LONGEST_UNREADY)))
    flag("--since", "skip containers restarted after this time: an age such as 2h, or an RFC 3339 time", metavar="TIME")
    limit = "time limit of the run; 0 waits without any limit"
    time("--timeout", limit, shown="the run ends after 1h without progress")
    bounded = _optional(duration(3, LONGEST))
    time("--pod-timeout", "time limit of a pod, then it counts as failed", shown="10m", convert=bounded)
    number("--max-failures", "stop after this many failed pods", shown="1", convert=_optional(count(1)))
    switch("--retry-failed", help="with resume: restart pods again whose requests have failed")
    switch("--force", help="do not wait for a rollout of the workload to finish")
    rules = "restart a container even if its restartPolicyRules may restart all containers of the pod"
    switch("--allow-pod-restart", help=rules)
    stale = "restart only containers that use a ConfigMap or Secret whose data has changed since they started"
    switch("--stale", help=stale)
    preflight = "restart no container while a ConfigMap, Secret or key that it needs is missing (--stale includes it)"
    switch("--preflight", help=preflight)
    add("--reason", metavar="WORDS", default="", help="reason for the restart, shown in events and status")
    add("--run", metavar="NAME", default="", help="name of the run; resumes the run of this name if it exists")


def _optional(convert: Convert) -> Convert:
    return lambda given: convert(given) if given else None


def run(args: argparse.Namespace) -> int:
    """Carry out the command. Return the exit code. Raises ConfigurationError if it cannot be done."""
    command = requested(args)
    configure_log("console", "error")
    try:
        return asyncio.run(execute(command, _explanation))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return EXIT_INTERRUPTED
    except ConfigurationError as error:
        cause = error.__cause__
        if isinstance(cause, ApiRefusedError) and not isinstance(cause, GoneError):
            raise ConfigurationError(plain(_describe(cause))) from error
        raise ConfigurationError(plain(str(error))) from error
    except ApiRefusedError as error:
        raise ConfigurationError(plain(_describe(error))) from error
    except ApiUnavailableError as error:
        complain(f"{args.called}: cannot reach the API server: {plain(str(error))}")
        return EXIT_FAILED


def _describe(error: ApiRefusedError) -> str:
    """Return the message of a refusal in one line, with what to do about it."""
    message = " ".join(str(error).split())
    if isinstance(error, ResourceMissingError) and error.resource == REQUESTS.full_name:
        return f"the CRD ContainerRecreateRequest is not installed: install crrd with `{APPLY}`"
    if error.status == 403:
        return f"forbidden: {message}{_where_granted(error.resource)}"
    return f"the API server does not accept your credentials: {message}" if error.status == 401 else message


def _where_granted(resource: str) -> str:
    """Return the ClusterRole with the right that a refused call needs, or "" if it is not about a resource."""
    if resource in ("", DISCOVERY.full_name):
        return ""
    if role := "crrd-recreate" if resource in IN_ROLE else _READERS.get(resource):
        return f"; bind the ClusterRole {role}, which grants this"
    return f"; grant get, list and watch on {resource}, which the ClusterRole crrd-recreate does not include"


async def _explanation(client: KubeClient, clock: ServerClock, request: Mapping[str, Any]) -> str:
    return render(await explained(client, clock, request))


def _check(args: argparse.Namespace, verb: str) -> None:
    """Raise ConfigurationError for contradictory or unsupported arguments."""
    arguments = args.arguments
    if args.all_namespaces:
        raise ConfigurationError("--all-namespaces is not supported: a run covers one namespace (use -n NAMESPACE)")
    if args.watch and (verb != "status" or len(arguments) < 2):
        raise ConfigurationError("--watch needs status and the name of one run")
    if verb and (len(arguments) > 2 or (verb != "status" and len(arguments) < 2)):
        raise ConfigurationError(f"{verb} needs the name of one run; to list runs: {args.called} status")
    if verb == "abort" and args.dry_run:
        raise ConfigurationError("--dry-run is not supported with abort; status RUN shows pods that are still waiting")
    lists_stale = args.stale and args.dry_run and not arguments and not args.selector
    if verb or lists_stale:
        return
    if bool(arguments) == bool(args.selector):
        raise ConfigurationError("use either TYPE/NAME (for example deployment/web) or -l SELECTOR")
    if args.run and len(split_targets(tuple(arguments))) > 1:
        raise ConfigurationError("--run can be used with only one TYPE/NAME, because each TYPE/NAME gets its own run")
    if args.run and not RUN_NAME.fullmatch(args.run):
        raise ConfigurationError(f"--run {args.run!r} must be at most 40 characters of a-z, 0-9 and '-'")


def _check_flags(args: argparse.Namespace, verb: str) -> None:
    """Raise ConfigurationError for a flag that the verb does not support, instead of ignoring it."""
    names: tuple[str, ...] = ("selector", "container", *_FIXED, *_CHANGEABLE, *_PROCESS_FLAGS)
    why = f"is not supported with {verb}"
    if verb == "resume":
        names, why = _FIXED, "cannot be changed on resume: start a new run"
    elif not verb:
        names, why = ("retry_failed",) if not args.run else (), "needs resume RUN or --run NAME"
    for name in _given(args, names):
        raise ConfigurationError(f"{_flag(name)} {why}")


def _given(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Return the flags that are on the command line, with their values."""
    values = {name: getattr(args, name) for name in names}
    return {name: value for name, value in values.items() if value not in (None, "", []) and value is not False}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _as_flags(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield flags as they are typed."""
    for name, value in given.items():
        yield _flag(name)
        if value is not True:
            yield f"{value}s" if name in _TIMES else str(value)


def requested(args: argparse.Namespace) -> Command:
    """Return the parsed command line. Raises ConfigurationError for invalid arguments."""
    verb = args.arguments[0] if args.arguments and args.arguments[0] in VERBS else ""
    _check(args, verb)
    _check_flags(args, verb)
    containers = [name for given in args.container for name in given.split(",") if name]
    changed = _given(args, _CHANGEABLE)
    options = Options(containers=tuple(dict.fromkeys(containers)), stale=args.stale, **changed)
    kubeconfig = "" if args.kubeconfig == os.environ.get("KUBECONFIG") else args.kubeconfig
    output = ("-o", "json") if args.output == "json" else ()
    access_flags = (("--context", args.context), ("--kubeconfig", kubeconfig))
    return from_flags(
        Command,
        args,
        verb=verb,
        arguments=() if verb else tuple(args.arguments),
        run_name=args.run if not verb else next(iter(args.arguments[1:]), ""),
        options=options,
        changed_options=changed,
        since=_since(args.since) if not verb else None,
        access_flags=tuple(word for flag, value in access_flags if value for word in (flag, value)),
        resume_flags=(*_as_flags(_given(args, (*_CHANGEABLE, *_PROCESS_FLAGS))), *output),
    )


def _since(given: str) -> datetime | timedelta | None:
    """Parse `--since`. A duration is subtracted later, from the API server's time."""
    if not given:
        return None
    moment = parse_time(given)
    try:
        return timedelta(seconds=duration(1)(given)) if moment is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        message = f"--since {given!r} must be an age like 2h, or a time like 2026-01-31T12:00:00Z"
        raise ConfigurationError(message) from None
