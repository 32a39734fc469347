"""The flags of `crrd recreate`, by verb, with their help."""

import argparse
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import yaml

from crrd.cli.connection import add_connection_flags
from crrd.cli.options import add_flag, add_output, add_switch, count, duration, run_name, with_value
from crrd.core.api.schema import LONGEST, LONGEST_UNREADY
from crrd.core.api.time import format_duration, parse_time
from crrd.core.judge.metrics import Metric, read_metrics
from crrd.core.rollout.image.resources import PULL_RESOURCES, read_resources
from crrd.core.rollout.limits import PATIENCE_SECONDS
from crrd.core.rollout.parts import read_steps
from crrd.core.rollout.phases import End
from crrd.core.rollout.run import Options, read_amount
from crrd.lib.plain import one_line
from crrd.rollout.session import Via

_ENDS = tuple(end for end in End if end is not End.YIELDED)  # A command has no turns
_OF_RUN = tuple((end.exit_code, end.word) for end in _ENDS)


def _exit_codes(*ends: tuple[int, str]) -> str:
    """Return the exit codes of a verb, for its help. `ends` are codes and what they mean."""
    meanings: dict[int, list[str]] = {}
    for code, meaning in (*ends, (1, "cannot reach the API server"), (2, "bad input")):
        meanings.setdefault(code, []).append(meaning)
    lines = (f"  {code:<3}  {', '.join(dict.fromkeys(some))}" for code, some in sorted(meanings.items()))
    return "\n".join(["exit codes:", *lines])


def _add_start(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "%(prog)s TYPE/NAME [TYPE/NAME ...] -c CONTAINER[,CONTAINER] [flags]\n"
        "       %(prog)s -l SELECTOR -c CONTAINER[,CONTAINER] [flags]\n"
        "       %(prog)s [TYPE/NAME | -l SELECTOR] --stale [flags]\n"
        "       %(prog)s TYPE/NAME --whole-pod [flags]\n"
        "       %(prog)s TYPE/NAME --reload [-c CONTAINER[,CONTAINER]] [flags]\n"
        "       %(prog)s TYPE/NAME -c CONTAINER --image IMAGE [--template adopt|keep] [flags]\n"
        "       %(prog)s TYPE/NAME [-c CONTAINER] --image-from-template [flags]\n"
        "       %(prog)s status [RUN] [-w] | resume RUN | undo RUN | abort RUN"
    )
    parser.description = (
        "Recreates containers of all pods of a workload in place, a few pods at a time, and waits for each to be\n"
        "ready again. It writes only ContainerRecreateRequests, which hold all state of the run, and events; with\n"
        "--image also pods and the workload (docs/image.md). On a cluster without crrd, it restarts containers by\n"
        "patches of their pods, which hold the state of the run (docs/lean.md).\n\n"
        "status [RUN] shows runs. resume RUN continues a run that was interrupted, is paused or has failed. abort RUN\n"
        "deletes its pending requests; requests in progress finish. undo RUN gives back the image from before a run\n"
        "with --image. Each has its own --help."
    )
    parser.epilog = (
        "examples:\n"
        "  %(prog)s deployment/web -c app\n"
        "  %(prog)s statefulset/db -c proxy --max-unavailable 20%% --min-ready 30s\n"
        "  %(prog)s deployment/web -c app --steps 1,10%% --judge 2m     a bad restart costs one pod\n"
        "  %(prog)s deployment/web --whole-pod                init containers run again, and the pods stay\n"
        "  %(prog)s deployment/web --reload                   containers read their new files, and do not restart\n"
        "  %(prog)s deployment/web -c proxy --image proxy:1.2 --template adopt\n"
        "  %(prog)s deployment/web --whole-pod -c render --image render:1.2 --template adopt    for an init container\n"
        "  %(prog)s deployment/web --image-from-template      the template of a paused Deployment has it already\n"
        '  %(prog)s -l app=web -c app,sidecar --ordered --unready-grace 5s --reason "log level"\n'
        "  %(prog)s pod/web-7d4b9c -c app --dry-run\n"
        "  %(prog)s deployment/web deployment/api -c app --dry-run=server\n"
        "  %(prog)s --stale --dry-run                    list containers with outdated configuration\n"
        "  %(prog)s deployment/web --stale --max-unavailable 10%%\n\n"
        f"{_exit_codes(*_OF_RUN)}"
    )
    add, flag = parser.add_argument, partial(add_flag, parser, default=argparse.SUPPRESS)
    targets = "workload with a spec.selector, or a pod; several run one after the other"
    add("targets", nargs="*", metavar="TYPE/NAME", help=targets)
    add("-l", "--selector", metavar="SELECTOR", default="", help="label selector of the pods, instead of a workload")
    names = partial(add, metavar="NAMES", action="extend", type=lambda given: given.split(","), default=[])
    names("-c", "--container", help="containers to restart, in this order")
    first = "restart this many pods first, then ask whether to continue"
    flag("--partition", first, convert=read_amount, metavar="N|N%")
    steps = "restart the pods in steps, each as long as the pods of the steps before are done, for example 1,10%%,50%%"
    flag("--steps", steps, convert=read_steps, metavar="N|N%,...", dest="parts")
    pause = "with --steps: time between two steps, or wait for resume --yes"
    flag("--step-pause", pause, shown="none", convert=_pause, metavar="TIME|wait")
    number = partial(flag, convert=count(0), metavar="N")
    judge = (
        "after each step, and at the end, watch its pods for this time: each must stay ready, without another restart"
    )
    flag("--judge", judge, shown="no judgement", convert=duration(1, LONGEST), metavar="TIME")
    shown = Options(())
    number("--max-restarts", "with --judge: allowed further restarts of a pod", shown=str(shown.max_restarts))
    failures = "with --judge: how many times in a row metrics may be unknown"
    number("--failure-limit", failures, shown=str(shown.failure_limit))
    _add_metrics(parser)
    image = "give the container this image, in the same pods; nothing is stopped before the image is on the node"
    flag("--image", image, convert=str, metavar="IMAGE", dest="image_name")
    adopt = "with --image: whether the workload's template gets the image in the end, or stays as it is"
    add("--template", choices=("adopt", "keep"), default="", help=adopt)
    follow = "give the pods of a workload that is paused, or has OnDelete or a partition, the image of its template"
    add_switch(parser, "--image-from-template", dest="follows_template", text=follow)
    pull = "with --image: who pulls it. never: it must be on the nodes already (default: %(default)s)"
    add("--pull", choices=("kubelet", "never"), default="kubelet", help=pull)
    mutable = "with --image: accept an image without a tag, or with the tag latest"
    add_switch(parser, "--allow-mutable-tag", text=mutable)
    via = (
        "auto: by requests for node daemons, or else by patches of the pods, which need nothing installed"
        " (default: %(default)s)"
    )
    add("--via", choices=tuple(Via), type=Via, default=Via.AUTO, help=via)
    whole = (
        "restart whole pods in place, with their init containers; their IPs may change (docs/recreate.md). "
        "With --image, -c names the init container that gets it"
    )
    add_switch(parser, "--whole-pod", text=whole)
    reload = "have containers reload their files as their pods declare it, and restart nothing (docs/recreate.md)"
    add_switch(parser, "--reload", text=reload)
    stale = "restart only containers that use a ConfigMap or Secret whose data has changed since they started"
    add_switch(parser, "--stale", text=stale)
    since = "skip containers restarted after this time: an age such as 2h, or an RFC 3339 time"
    flag("--since", since, convert=_since, metavar="TIME")
    name = "name of the run; resumes the run of this name if it exists"
    flag("--run", name, convert=run_name, metavar="NAME", dest="run_name")
    _add_limits(parser)


def _add_status(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [RUN] [-w] [flags]"
    parser.description = (
        "Shows all runs of a namespace, or one run with its pods: its state and progress, what it waits for, and\n"
        "the command that continues it."
    )
    parser.epilog = "with -w, " + _exit_codes(*((end.watch_code, end.word) for end in _ENDS), (130, "Ctrl-C"))
    _add_run(parser, "one run; without it, all runs")
    add_switch(parser, "-w", "--watch", text="show the progress of the run until it ends")


def _add_resume(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s RUN [flags]"
    parser.description = (
        "Continues a run that was interrupted, is paused (--partition, --steps) or has failed, from any machine. No\n"
        "pod is restarted twice. Given limits replace those of the run, also where another process carries it out.\n"
        "Target, containers, --whole-pod, --reload, --partition, --steps, --judge, --since and --stale cannot be\n"
        "changed: start a new run. A run that asks metrics needs its --metrics FILE again: addresses are not stored.\n"
        "The defaults below are those of a new run."
    )
    parser.epilog = (
        "examples:\n"
        "  %(prog)s web-5f52h --yes               after --partition: the rest of the pods\n"
        "  %(prog)s web-5f52h --yes               after a step: the next one, without a pause, or in spite of a no\n"
        "  %(prog)s web-5f52h --retry-failed      restart failed pods again, after fixing the cause\n"
        "  %(prog)s web-5f52h --max-failures 2    leave one failed pod, and continue with the others\n\n"
        f"{_exit_codes(*_OF_RUN)}"
    )
    _add_run(parser, "name of the run")
    _add_metrics(parser)
    _add_limits(parser)


def _add_undo(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s RUN [flags]"
    parser.description = (
        "Starts a run that gives the pods of a run with --image the image back that they had before, within the same\n"
        "limits. If the workload's template got the image, it gets the old one back, too."
    )
    parser.epilog = _exit_codes(*_OF_RUN)
    _add_run(parser, "name of the run to undo")
    _add_limits(parser)


def _add_abort(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s RUN [flags]"
    parser.description = (
        "Ends a run for good: deletes its pending requests, and no process starts more pods of it. Requests in\n"
        "progress finish."
    )
    parser.epilog = _exit_codes((0, "aborted"), (1, "something is left"), (2, "nothing to abort"))
    _add_run(parser, "name of the run")


def _add_metrics(parser: argparse.ArgumentParser) -> None:
    """Add the flags about a judgement that belong to the process, and not to the run."""
    flag = partial(add_flag, parser, default=argparse.SUPPRESS)
    metrics = "with --judge: queries of Prometheus that must hold, a YAML list (docs/recreate.md)"
    flag("--metrics", metrics, convert=_metrics, metavar="FILE")
    undo = "with --image: if the judgement is no, give the pods the image back that they had before"
    add_switch(parser, "--undo-on-failure", text=undo, default=argparse.SUPPRESS)


class MetricsFile(NamedTuple):
    """The value of `--metrics`."""

    path: str
    metrics: tuple[Metric, ...]


def _metrics(given: str) -> MetricsFile:
    """Read `--metrics`."""
    try:
        found = read_metrics(yaml.safe_load(Path(given).read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"a readable YAML file ({one_line(str(error))})") from None
    except ValueError as error:
        raise ValueError(f"a YAML list of metrics ({error})") from None
    if not found:
        raise ValueError("a YAML list of at least one metric")
    return MetricsFile(given, found)


def _add_run(parser: argparse.ArgumentParser, words: str) -> None:
    parser.add_argument("run_name", nargs="?", default="", metavar="RUN", help=words)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the flags that a run starts with, and that `resume` can change. Only given ones are in the namespace.

    A flag of Options has the name of its field.
    """
    unset, by_default = argparse.SUPPRESS, Options(())
    switch = partial(add_switch, parser, default=unset)
    flag = partial(add_flag, parser, default=unset)
    most = "maximum unready pods, a number or a percentage"
    flag("--max-unavailable", most, shown=str(by_default.max_unavailable), convert=read_amount, metavar="N|N%")
    number = partial(flag, convert=count(0), metavar="N")
    number("--max-per-node", "maximum unready pods per node (0 = no limit)", shown=str(by_default.max_per_node))
    number("--max-per-zone", "maximum unready pods per zone (0 = no limit)", shown=str(by_default.max_per_zone))
    time = partial(flag, convert=duration(), metavar="TIME")
    least = "time that a restarted pod must be ready before the run continues"
    time("--min-ready", least, shown="the workload's minReadySeconds; with --image 10s if there is no readiness probe")
    switch("--ordered", text="restart a container only after the one before it is ready again")
    grace = "time to keep the pod unready before the restart; needs the readiness gate KruisePodReady"
    time("--unready-grace", grace, convert=duration(most=LONGEST_UNREADY))
    of_a_pod, shown = "time limit of a pod, then it counts as failed", format_duration(by_default.pod_timeout)
    time("--pod-timeout", of_a_pod, shown=shown, convert=duration(3, LONGEST))
    number("--max-failures", "stop after this many failed pods", shown=str(by_default.max_failures), convert=count(1))
    switch("--force", text="do not wait for a rollout of the workload to finish")
    rules = "restart a container even if its restartPolicyRules may restart all containers of the pod"
    switch("--allow-pod-restart", text=rules)
    preflight = "restart no container while a ConfigMap, Secret or key that it needs is missing (--stale includes it)"
    switch("--preflight", text=preflight)
    pulls = "with --image: what the pods that pull it request, and may use: cpu, memory, ephemeral-storage"
    flag("--pull-resources", pulls, shown=PULL_RESOURCES, convert=read_resources, metavar="NAME=QUANTITY,...")
    flag("--reason", "reason for the restart, shown in events and status", metavar="WORDS")
    limit = "time limit of the run; 0 waits without any limit"
    time("--timeout", limit, shown=f"the run ends after {format_duration(PATIENCE_SECONDS)} without progress")
    yes = "continue without asking: after the first part (--partition), after a step (--steps), a run of another user"
    switch("-y", "--yes", text=yes)
    switch("--retry-failed", text="restart pods again whose requests have failed; needs a run that exists")
    dry = partial(parser.add_argument, dest="dry_run", action="store_const", default="")
    dry("--dry-run", "--dry-run=client", const="client", help="print the batches and change nothing")
    dry("--dry-run=server", const="server", help="also send the requests to the API server as a dry run")
    dry("--dry-run=none", *with_value(["--dry-run"], "false"), const="", help=argparse.SUPPRESS)
    dry(*with_value(["--dry-run"], "true"), const="client", help=argparse.SUPPRESS)


def _pause(given: str) -> int | None:
    """Parse `--step-pause`: seconds, or None to wait for a user."""
    try:
        return None if given == "wait" else duration(0, LONGEST)(given)
    except ValueError as error:
        raise ValueError(f"wait, or {error}") from None


def _since(given: str) -> datetime | timedelta:
    """Parse `--since`. A duration is subtracted later, from the API server's time."""
    moment = parse_time(given)
    try:
        return timedelta(seconds=duration(1)(given)) if moment is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("an age like 2h, or a time like 2026-01-31T12:00:00Z") from None


_OF_VERB = {"": _add_start, "status": _add_status, "resume": _add_resume, "undo": _add_undo, "abort": _add_abort}


def add_flags(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the flags and arguments of a verb, then the flags of all verbs."""
    _OF_VERB[verb](parser)
    add = parser.add_argument
    add_output(parser)
    namespace = "namespace of the run (default: that of the kubeconfig's context)"
    add("-n", "--namespace", metavar="NAME", default="", help=namespace)
    add_switch(parser, "-A", "--all-namespaces", text="not supported: a run covers one namespace")
    add_connection_flags(parser)
