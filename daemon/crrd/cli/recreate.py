"""`crrd recreate`, `kubectl recreate`: flags and words, and what is said in the end; the work is `crrd.rollout`'s."""

import argparse
import asyncio
import os
import re
import signal
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from crrd.cli.explain import explained, render
from crrd.cli.options import add_flag, add_kubeconfig_flag, count, duration
from crrd.core.api.schema import LONGEST, LONGEST_UNREADY
from crrd.core.api.time import parse_time
from crrd.core.rollout.plan import End, Plan
from crrd.core.rollout.preview import Preview
from crrd.core.rollout.run import RUN_NAME, Options, read_amount
from crrd.core.rollout.standing import Stage, tally
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.config import find_access
from crrd.kube.discovery import KNOWN
from crrd.kube.errors import ResourceMissingError
from crrd.kube.reflector import APPLY
from crrd.kube.resources import BUDGETS, EVENTS, NODES, PODS, REQUESTS, Resource
from crrd.lib.errors import (
    ApiRefusedError,
    ApiUnavailableError,
    ConfigurationError,
    CrrdError,
    GoneError,
    OutputError,
)
from crrd.lib.log import configure as configure_log
from crrd.lib.output import complain
from crrd.lib.plain import plain
from crrd.rollout import verbs
from crrd.rollout.lines import JsonLines, Lines, View, summary
from crrd.rollout.pages import preview_page, runs_page, status_page
from crrd.rollout.runner import Outcome
from crrd.rollout.verbs import Session, Wanted

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_TIMED_OUT = 3
EXIT_INTERRUPTED = 130
VERBS = ("status", "resume", "abort")
_KRUISE = tuple(Resource(each, REQUESTS.group) for each in ("clonesets", "statefulsets", "daemonsets"))
IN_ROLE = {
    ".".join(filter(None, (each.plural, each.group)))
    for each in (REQUESTS, PODS, BUDGETS, NODES, EVENTS, *(known.resource for known in KNOWN), *_KRUISE)
}
"""Resources that the ClusterRole crrd-recreate has rights on, as kubectl names them."""
_CALL = re.compile(r"\w+ /api(?:s/(?P<group>[^/]+))?/[^/]+(?:/namespaces/[^/]+)?/(?P<plural>[^/:]+)")
"""What an error of the API begins with: verb and path."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags and words."""
    called = parser.prog
    parser.set_defaults(called=called)
    parser.usage = (
        f"{called} TYPE/NAME -c CONTAINER[,CONTAINER] [flags]\n"
        f"       {called} -l SELECTOR -c CONTAINER[,CONTAINER] [flags]\n"
        f"       {called} status [RUN] | resume RUN | abort RUN"
    )
    parser.description = (
        "Recreates containers of all pods of a workload in place, a few pods at a time, and waits for each to be\n"
        "ready again. It writes ContainerRecreateRequests and nothing else; they are all that it remembers."
    )
    parser.epilog = (
        "examples:\n"
        f"  {called} deployment/web -c app\n"
        f"  {called} statefulset/db -c proxy --max-unavailable 20% --min-ready 30s\n"
        f'  {called} -l app=web -c app,sidecar --ordered --unready-grace 5s --reason "log level"\n'
        f"  {called} pod/web-7d4b9c -c app --dry-run\n\n"
        "exit codes: 0 done, 1 failed, 2 bad input, 3 timed out, 130 interrupted"
    )
    add = parser.add_argument
    add("words", nargs="*", metavar="TYPE/NAME", help="a workload of any kind with spec.selector, or a pod")
    add("-l", "--selector", metavar="SELECTOR", default="", help="the pods with these labels, in place of a workload")
    add("-c", "--container", metavar="NAMES", action="append", default=[], help="what to recreate, in this order")
    add_flag(
        parser,
        "--max-unavailable",
        "pods that may be unready at once, for whatever reason: a number, or a share of them",
        default="1",
        convert=read_amount,
        metavar="N|N%",
    )
    add_flag(parser, "--max-per-node", "of these on one node; 0 for any", default="0", convert=count(0), metavar="N")
    add_flag(parser, "--max-per-zone", "of these in one zone; 0 for any", default="0", convert=count(0), metavar="N")
    add_flag(
        parser,
        "--min-ready",
        "for how long a pod has to be ready to count as back",
        default="0",
        convert=duration(),
        metavar="TIME",
    )
    add_flag(
        parser,
        "--partition",
        "do so many pods first, then ask whether to go on",
        convert=lambda found: read_amount(found) if found else None,
        metavar="N|N%",
    )
    add("-y", "--yes", action="store_true", help="do not ask after the first part")
    add("--ordered", action="store_true", help="the next container only when the one before is ready again")
    add_flag(
        parser,
        "--unready-grace",
        "make the pod unready so long before; for pods with the readiness gate KruisePodReady",
        convert=_optional(duration(most=LONGEST_UNREADY)),
        metavar="TIME",
    )
    add_flag(
        parser, "--since", "leave alone what was restarted after that: 2h ago, or an RFC 3339 time", metavar="TIME"
    )
    add_flag(parser, "--timeout", "for the whole run; 0 for none", default="0", convert=duration(), metavar="TIME")
    add_flag(parser, "--pod-timeout", "for each pod", default="10m", convert=duration(3, LONGEST), metavar="TIME")
    add_flag(
        parser, "--max-failures", "stop once so many pods failed", convert=_optional(count(1)), shown="1", metavar="N"
    )
    add("--force", action="store_true", help="go on while the workload is being rolled out")
    add("--reason", metavar="WORDS", default="", help="is shown wherever the run is")
    add("--run", metavar="NAME", default="", help="name of the run; one that there is already is resumed: for Jobs")
    add("--dry-run", action="store_true", help="print the batches, change nothing")
    add("-o", "--output", choices=("text", "json"), default="text", help="(default: %(default)s)")
    add("-n", "--namespace", metavar="NAME", default="", help="(default: the kubeconfig's)")
    add("-A", "--all-namespaces", action="store_true", help="refused: a run is of one namespace")
    add("--context", metavar="NAME", default="", help="the kubeconfig's context")
    add_kubeconfig_flag(parser)


def _optional(convert: Any) -> Any:
    return lambda found: convert(found) if found else None


def run(args: argparse.Namespace) -> int:
    """Do what is asked; returns the exit code.

    Raises:
        ConfigurationError: it cannot be meant, or not be done.
    """
    verb = args.words[0] if args.words and args.words[0] in VERBS else ""
    _check(args, verb)
    configure_log("console", "error")
    try:
        return asyncio.run(_with_client(args, verb))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return EXIT_INTERRUPTED
    except ConfigurationError as error:
        cause = error.__cause__
        refused = isinstance(cause, ApiRefusedError) and not isinstance(cause, GoneError)
        raise ConfigurationError(plain(_told(cause) if refused else str(error))) from error
    except ApiRefusedError as error:
        raise ConfigurationError(plain(_told(error))) from error
    except ApiUnavailableError as error:
        complain(f"{args.called}: the API server does not answer: {plain(str(error))}")
        return EXIT_FAILED


def _told(error: BaseException | None) -> str:
    """What the API server's refusal comes to, in one line."""
    said = " ".join(str(error).split())
    if isinstance(error, ResourceMissingError) and REQUESTS.plural in said:
        return f"this cluster has no ContainerRecreateRequests: install crrd, `{APPLY}`"
    status = error.status if isinstance(error, ApiRefusedError) else 0
    if status == 403:
        return f"you may not do that: {said}{_right(said)}"
    return f"the API server does not accept your credentials: {said}" if status == 401 else said


def _right(said: str) -> str:
    """Where the right is to be had that a refused call takes; "" for what is no resource (discovery)."""
    found = _CALL.match(said)
    if found is None:
        return ""
    name = ".".join(filter(None, (found["plural"], found["group"])))
    if name in IN_ROLE:
        return "; the ClusterRole crrd-recreate has what is needed"
    return f"; the ClusterRole crrd-recreate has no rights on {name}: it takes get, list and watch"


def _check(args: argparse.Namespace, verb: str) -> None:
    """Refuse what cannot be meant. Raises ConfigurationError."""
    words = args.words
    if args.all_namespaces:
        raise ConfigurationError("-A is refused: a run is of one namespace, -n NAME")
    if verb:
        if len(words) > 2 or (verb != "status" and len(words) < 2):
            raise ConfigurationError(f"{verb} takes the name of one run; {args.called} status shows which there are")
        if verb == "abort" and args.dry_run:
            raise ConfigurationError("--dry-run shows batches, and abort has none: status RUN tells what has not begun")
        return
    if bool(words) == bool(args.selector):
        raise ConfigurationError("give either TYPE/NAME (deployment/web) or -l SELECTOR")
    if args.run and not RUN_NAME.fullmatch(args.run):
        raise ConfigurationError(f"--run {args.run!r} has to be made of a-z, 0-9 and '-', at most 40 characters")


def _since(given: str) -> datetime | timedelta | None:
    """`--since` as it is given: what it comes to is counted by the API server's clock. Raises ConfigurationError."""
    if not given:
        return None
    moment = parse_time(given)
    try:
        return timedelta(seconds=duration(1)(given)) if moment is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigurationError(f"--since {given!r} has to be a time like 2h, or 2026-01-31T12:00:00Z") from None


async def _with_client(args: argparse.Namespace, verb: str) -> int:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if task is not None and signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            loop.add_signal_handler(number, task.cancel)
    clock = ServerClock()
    access = find_access(args.kubeconfig, os.environ, args.context)
    async with KubeClient(access, on_date=clock.observe) as client:
        namespace = args.namespace or (await access.current()).namespace or "default"
        view = _view(args, clock)
        asked = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty() and args.output == "text"
        confirm = _asker(view) if asked else None
        session = Session(client, clock, namespace, view, args.called, _access(args), confirm)
        match verb:
            case "status":
                return await _status(session, args)
            case "abort":
                return await _abort(session, args)
            case _:
                return await _drive(session, args, verb)


def _access(args: argparse.Namespace) -> tuple[str, ...]:
    """The flags that say which cluster, without a kubeconfig that is the environment's."""
    kubeconfig = "" if args.kubeconfig == os.environ.get("KUBECONFIG") else args.kubeconfig
    given = (("--context", args.context), ("--kubeconfig", kubeconfig))
    return tuple(word for flag, value in given if value for word in (flag, value))


def _view(args: argparse.Namespace, clock: ServerClock) -> View:
    if args.output == "json":
        return JsonLines(clock.now)
    if sys.stdout.isatty():
        try:
            from crrd.rollout.table import Terminal  # noqa: PLC0415 - rich is not everywhere: lines do as well
        except ImportError:
            return Lines()
        return Terminal()
    return Lines()


def _asker(view: View) -> Any:
    async def ask(told: str) -> bool:
        view.say(f"{told}: go on? [y/N]")
        loop = asyncio.get_running_loop()
        line: asyncio.Future[str] = loop.create_future()

        def typed() -> None:
            if not line.done():
                line.set_result(sys.stdin.readline())

        loop.add_reader(sys.stdin.fileno(), typed)
        try:
            return (await line).strip().lower() in ("y", "yes")
        finally:
            loop.remove_reader(sys.stdin.fileno())

    return ask


async def _drive(session: Session, args: argparse.Namespace, verb: str) -> int:
    """Start a run or go on with it, and say how it ended."""
    wanted = _wanted(args, verb)
    name = wanted.name
    known = bool(verb) or bool(name and any(run.name == name for run, _ in await verbs.runs(session)))
    outcome: Outcome | Preview | None
    if known:
        changes = {"force": True} if args.force else {}
        changes |= {} if args.max_failures is None else {"max_failures": args.max_failures}
        outcome = await verbs.resume(session, wanted, changes)
    else:
        outcome = await verbs.start(session, wanted)
    if isinstance(outcome, Preview):
        print(preview_page(outcome, as_json=args.output == "json"))
        return 0
    return 0 if outcome is None else await _ended(session, args, outcome)


def _wanted(args: argparse.Namespace, verb: str) -> Wanted:
    names = [name for given in args.container for name in given.split(",") if name]
    options = Options(
        containers=tuple(dict.fromkeys(names)),
        max_unavailable=args.max_unavailable,
        max_per_node=args.max_per_node,
        max_per_zone=args.max_per_zone,
        min_ready=args.min_ready,
        ordered=args.ordered,
        unready_grace=args.unready_grace,
        pod_timeout=args.pod_timeout,
        max_failures=args.max_failures or 1,
        force=args.force,
        reason=args.reason,
    )
    return Wanted(
        words=() if verb else tuple(args.words),
        selector=args.selector,
        options=options,
        partition=args.partition,
        name=args.words[1] if verb else args.run,
        since=_since(args.since),
        dry_run=args.dry_run,
        seconds=args.timeout,
        yes=args.yes,
    )


async def _ended(session: Session, args: argparse.Namespace, outcome: Outcome) -> int:
    """Say how a run has ended; returns the exit code."""
    found = outcome.plan
    told = summary(found.rows)
    name = next((row.request.mark.run.name for row in found.rows if row.request is not None), "")
    again = f"go on with: {session.line('resume', name)}" if name else "nothing was begun"
    if outcome.timed_out:
        session.end("timed out", f"{told}; it waited for: {_waited_for(found)}; {again}")
        return EXIT_TIMED_OUT
    match found.end:
        case End.ASK:
            session.end("asks", f"{told}; {found.told}; {again}{' --yes' * bool(name)}")
            return 0
        case End.RIVAL:
            session.end("stopped", f"{told}; {found.told}")
            return EXIT_BAD_INPUT
        case End.ABORTED:
            session.end("aborted", f"{told}; {found.told}")
            return EXIT_FAILED
    failed = tally(found.rows)[Stage.FAILED]
    if not failed:
        session.end("done", told)
        return 0
    with suppress(OutputError):  # the end is told all the same
        await _explain(session, args, found)
    if found.end is End.FAILED:
        told += f"; once that is mended, {again} --max-failures {failed + 1}" if name else f"; {again}"
    session.end("failed", told)
    return EXIT_TIMED_OUT if found.timed_out else EXIT_FAILED


def _waited_for(found: Plan) -> str:
    """What a run waited for last."""
    pods = [f"{row.pod}: {row.stage}{f', {row.why}' if row.why else ''}" for row in found.rows if row.stage.under_way]
    return found.waiting or "; ".join(pods) or "nothing"


async def _explain(session: Session, args: argparse.Namespace, found: Plan) -> None:
    """Why pods failed, in the words of `crrd explain`."""
    for row in found.rows:
        if row.stage is not Stage.FAILED:
            continue
        session.view.say(f"{row.pod} failed: {row.why}")
        if row.request is None or args.output == "json":
            continue
        try:
            obj = await session.client.get(REQUESTS, session.namespace, row.request.request.name)
            explanation = await explained(session.client, session.clock, obj)
        except CrrdError:
            continue  # gone, or not to be read: its own words stand above
        print("\n".join(f"  {line}" for line in render(explanation).splitlines()))


async def _abort(session: Session, args: argparse.Namespace) -> int:
    found = await verbs.abort(session, args.words[1])
    rest = f"; {found.going} had begun and end by themselves" if found.going else ""
    if found.kept:
        rest = f"; {found.kept} is left to say so, since none had begun, and may still be served"
    session.view.say(f"run {args.words[1]} is aborted: {found.gone} requests taken back{rest}")
    return 0


async def _status(session: Session, args: argparse.Namespace) -> int:
    as_json = args.output == "json"
    if len(args.words) > 1:
        print(status_page(*await verbs.status(session, args.words[1]), as_json=as_json))
    else:
        print(runs_page(await verbs.runs(session), as_json=as_json))
    return 0
