"""`crrd forecast`: what a kubelet upgrade will do to the containers of this node, or of all nodes. Only reads.

`crrd` finds this module through the entry point `forecast` in the group `crrd.commands`.
"""

import argparse
import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from crrd.cli.connection import add_connection_flags, overrides_of
from crrd.cli.options import add_cri_flag, add_flag, add_switch, cri_endpoints, from_flags
from crrd.core.api.types import NODE_DAEMONS
from crrd.cri.runtime import connect
from crrd.kube.access.config import find_access
from crrd.kube.access.kubeconfig import NO_OVERRIDES, Overrides
from crrd.kube.client import Deadlines, KubeClient
from crrd.kube.lanes import PLACES
from crrd.kube.resources import NODES, PODS
from crrd.kubelet.version import reported_version
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, CrrdError, GoneError
from crrd.lib.jsonfields import items, mapping, name_of, text, value_at
from crrd.lib.log import configure as configure_log
from crrd_forecast.hash.version import NEWEST_MINOR, OLDEST_MINOR, parse_minor
from crrd_forecast.node import kubelet_version, node_report, pods_of_node
from crrd_forecast.render import FORMATS, draw, report_from, to_text
from crrd_forecast.report import Outcome, Report
from crrd_forecast.spec_store import SpecStore

EXIT_UNKNOWN = 4  # No container would be restarted, but some could not be checked, or the version is unknown
EXIT_RESTART = 3  # At least one container would be restarted
RUNTIME_SECONDS = 15.0  # How long to wait for a runtime that is down
# Types of unquoted words in kubectl's YAML, besides strings. `=`, `<<` and dates are strings there.
_YAML_WORDS = ("null", "bool", "int", "float")


@dataclass(frozen=True, slots=True)
class ForecastConfig:
    """The configuration of `crrd forecast`."""

    to_version: str
    from_version: str  # "" for the running kubelet's, which the Node reports
    output: str
    cri_endpoints: tuple[str, ...]
    kubeconfig: str
    node_name: str
    pods_file: str  # Output of kubectl. "" to read from the API server, "-" for standard input
    all_nodes: bool
    daemon_port: int
    plot_file: str
    spec_dir: str  # The folder in which a node daemon stores specs, or ""
    overrides: Overrides = NO_OVERRIDES
    request_timeout: int | None = None


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags and arguments."""
    parser.description = (
        "Compares the hash that kubelet left on each running container with the one that another version\n"
        "of kubelet computes from the pod's spec. Reads the container runtime and the API server; changes nothing."
    )
    parser.epilog = (
        "examples:\n"
        "  crrd forecast --to 1.31 --node-name worker-1\n"
        "  crrd forecast --to 1.31 --from v1.30.2 --pods pods.json     (kubectl get pods -A -o json > pods.json)\n"
        "  crrd forecast --to 1.31 --all-nodes --plot upgrade.png\n\n"
        "exit codes: 0 kubelet keeps all containers, 2 bad input, 3 kubelet restarts at least one container,\n"
        "4 unknown for some containers, or crrd does not know the version"
    )
    flag = partial(add_flag, parser)
    add = parser.add_argument
    add("--to", dest="to_version", metavar="VERSION", required=True, help="kubelet version to upgrade to, e.g. 1.31")
    running = "version of the running kubelet (default: %(default)s, read from the Node; required with --pods)"
    add("--from", dest="from_version", metavar="VERSION", default="auto", help=running)
    add("-o", "--output", choices=FORMATS, default="table", help="format (default: %(default)s)")
    flag("--node-name", "name of this node in the cluster", env="NODE_NAME", shown="the host's name", metavar="NAME")
    pods = "read the pods from a file (kubectl get pods -A -o json or yaml; - for standard input), not from the API"
    add("--pods", dest="pods_file", metavar="FILE", default="", help=pods)
    add_switch(parser, "--all-nodes", text="ask the node daemon of every node, through the API server")
    port = "port of the node daemons, for --all-nodes (default: %(default)s)"
    add("--daemon-port", metavar="PORT", type=int, default=9420, help=port)
    specs = "directory with the specs that the node daemon keeps; also shows what changed since each container started"
    flag("--spec-dir", specs, env="CRRD_SPEC_DIR", metavar="DIR")
    picture = "also draw one bar per node to a .png, .svg or .pdf file"
    add("--plot", dest="plot_file", metavar="FILE", default="", help=picture)
    add_connection_flags(parser)
    add_cri_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Print the forecast. Return the exit code. Raises ConfigurationError."""
    return run_forecast(forecast_config(args))


def forecast_config(args: argparse.Namespace) -> ForecastConfig:
    """Return the configuration of `crrd forecast`. Raises ConfigurationError for a missing or invalid value."""
    # Also accept the output of `kubelet --version`
    to_version, from_version = (
        each.strip().removeprefix("Kubernetes ") for each in (args.to_version, args.from_version)
    )
    from_version = "" if from_version == "auto" else from_version
    for flag, version in (("--to", to_version), ("--from", from_version)):
        try:
            minor = parse_minor(version) if version or flag == "--to" else OLDEST_MINOR
        except ValueError as error:
            raise ConfigurationError(f"{flag}: {error}") from error
        if minor < OLDEST_MINOR:
            raise ConfigurationError(f"{flag}: {version} is too old: the oldest supported version is 1.{OLDEST_MINOR}")
    for flag, given in (("--pods", args.pods_file), ("--spec-dir", args.spec_dir)):
        if given and args.all_nodes:
            raise ConfigurationError(f"{flag} and --all-nodes cannot be used together")
    if args.pods_file and not from_version:
        raise ConfigurationError("--pods does not read the API server, so it needs --from (see kubelet --version)")
    if args.plot_file and not args.plot_file.lower().endswith((".png", ".svg", ".pdf")):
        raise ConfigurationError(f"--plot {args.plot_file}: the file name must end with .png, .svg or .pdf")
    try:
        if args.spec_dir:
            list(Path(args.spec_dir).iterdir())
    except OSError as error:
        raise ConfigurationError(f"--spec-dir {args.spec_dir}: {error.strerror or error}") from error
    return from_flags(
        ForecastConfig,
        args,
        to_version=to_version,
        from_version=from_version,
        cri_endpoints=cri_endpoints(args.cri_endpoint),
        overrides=overrides_of(args),
        node_name=args.node_name or socket.gethostname().lower(),
    )


def run_forecast(config: ForecastConfig) -> int:
    """Print the forecast. Return the exit code. Raises ConfigurationError with the reason in one line."""
    configure_log("console", "error")
    # before the event loop starts, which would ignore Ctrl-C until all of standard input is read
    pods = read_pods(config.pods_file) if config.pods_file else None
    try:
        reports = asyncio.run(_reports(config, pods))
    except CrrdError as error:
        raise ConfigurationError(str(error)) from error
    print(to_text(reports, config.output, several=config.all_nodes))
    if config.plot_file:
        _plot(reports, config.plot_file)
    if any(report.totals[Outcome.RESTART] for report in reports):
        return EXIT_RESTART
    known = all(not report.totals[Outcome.UNKNOWN] and not report.failed for report in reports)
    return 0 if reports and known and parse_minor(config.to_version) <= NEWEST_MINOR else EXIT_UNKNOWN


def _plot(reports: Sequence[Report], path: str) -> None:
    try:
        draw(reports, path)
    except ImportError as error:
        raise ConfigurationError("--plot needs matplotlib: pip install 'crrd-forecast[plot]'") from error
    except OSError as error:
        raise ConfigurationError(f"--plot {path}: {error.strerror or error}") from error
    print(f"drew {path}", file=sys.stderr)


async def _reports(config: ForecastConfig, pods: Sequence[Mapping[str, Any]] | None) -> list[Report]:
    if pods is not None:
        return [await _of_this_node(config, _each(pods), config.from_version, node="")]
    access = find_access(config.kubeconfig, os.environ, config.overrides)
    async with KubeClient(access, deadlines=Deadlines().limited(config.request_timeout)) as client:
        if config.all_nodes:
            return await _of_all_nodes(config, client)
        try:
            running = config.from_version or await kubelet_version(client, config.node_name)
        except GoneError as error:
            raise ConfigurationError(f"node {config.node_name!r} not found: set --node-name") from error
        pods_here = pods_of_node(client, config.node_name)
        return [await _of_this_node(config, pods_here, running, node=config.node_name)]


async def _each(pods: Sequence[Mapping[str, Any]]) -> AsyncIterator[Mapping[str, Any]]:
    for pod in pods:
        yield pod


async def _of_this_node(
    config: ForecastConfig, pods: AsyncIterator[Mapping[str, Any]], running: str, *, node: str
) -> Report:
    try:
        parse_minor(running)
    except ValueError as error:
        raise ConfigurationError(f"cannot read the node's kubelet version: {error}; set --from") from error
    try:
        async with asyncio.timeout(RUNTIME_SECONDS):
            runtime = await connect(config.cri_endpoints)
    except TimeoutError as error:
        where = ", ".join(config.cri_endpoints) or "the well-known sockets"
        raise ConfigurationError(f"cannot reach the container runtime ({where}): check --cri-endpoint") from error
    try:
        store = SpecStore(Path(config.spec_dir)) if config.spec_dir else None
        versions = {"from_version": running, "to_version": config.to_version}
        return await node_report(runtime, pods, **versions, node=node, store=store)
    finally:
        await runtime.close()


async def _of_all_nodes(config: ForecastConfig, client: KubeClient) -> list[Report]:
    """Return the report of each node, as its daemon returns it. If it returns none, the report has the reason."""
    nodes = await client.list_all(NODES, lambda node: node)
    versions = {name_of(node): reported_version(node) for node in nodes.items}
    daemons = {}
    for pod in (await client.list_all(PODS, lambda pod: pod, label_selector=NODE_DAEMONS)).items:
        if value_at(pod, "status.phase") == "Running":
            name = (text(value_at(pod, "metadata.namespace")), name_of(pod))
            daemons[text(value_at(pod, "spec.nodeName"))] = name
    gate = asyncio.Semaphore(PLACES)  # more would only wait for the client, while their deadline runs

    async def ask(node: str) -> Report:
        running = config.from_version or versions[node]
        failed = Report(running, config.to_version, (), node)
        if node not in daemons:
            return failed.failing("no node daemon of crrd runs on this node")
        params = {"to": config.to_version, "from": running}
        try:
            async with gate:
                answer = await client.through_pod(*daemons[node], config.daemon_port, "forecast", params)
        except (ApiUnavailableError, ApiRefusedError) as error:
            if isinstance(error, ApiRefusedError) and error.status == 404:
                return failed.failing("the node daemon does not serve forecasts: start it with --serve-forecast")
            return failed.failing(f"cannot get the forecast from the node daemon: {error}")
        report = report_from(answer)
        reason = report.notes[-1] if report.notes else "the node daemon could not make a forecast, and gave no reason"
        return failed.failing(reason) if report.failed else report

    return list(await asyncio.gather(*map(ask, sorted(versions))))


def read_pods(path: str) -> list[Mapping[str, Any]]:
    """Read the output of `kubectl get pods -o json` or yaml; "-" is standard input. Raises ConfigurationError."""
    name = "standard input" if path == "-" else path
    if path == "-" and sys.stdin is None:
        raise ConfigurationError(f"--pods {name}: file not found")
    try:
        content = (sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()).decode()
    except OSError as error:
        raise ConfigurationError(f"--pods {name}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"--pods {name}: the file is not UTF-8 text") from error
    try:
        shape = _parse(content)
    except (ValueError, RecursionError) as error:
        line = str(error).splitlines()[0] if str(error) else "nested too deeply"
        raise ConfigurationError(f"--pods {name}: the file is not JSON or YAML: {line}") from error
    kind = mapping(shape).get("kind")
    if kind == "Pod":
        return [mapping(shape)]
    found = [mapping(each) for each in items(mapping(shape).get("items")) if mapping(each).get("kind", "Pod") == "Pod"]
    if kind not in ("List", "PodList") or not found:
        advice = "use the output of kubectl get pods -A -o json"
        raise ConfigurationError(f"--pods {name}: the file contains no pods: {advice}")
    return found


def _parse(content: str) -> Any:
    if content.lstrip().startswith("{"):
        return json.loads(content)
    import yaml  # noqa: PLC0415 - the input is usually JSON

    # the C loader, if available, is ten times as fast
    safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    resolvers = {
        letter: [(tag, pattern) for tag, pattern in each if tag.rpartition(":")[2] in _YAML_WORDS]
        for letter, each in safe.yaml_implicit_resolvers.items()
    }
    loader: Any = type("Loader", (safe,), {"yaml_implicit_resolvers": resolvers})
    loader.add_constructor("tag:yaml.org,2002:int", _yaml_integer)
    try:
        return yaml.load(content, Loader=loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _yaml_integer(loader: Any, node: Any) -> int | str:
    """Return an integer. kubectl writes and reads integers that do not fit into 64 bits as strings."""
    try:
        value: int = loader.construct_yaml_int(node)
    except ValueError:
        return str(node.value)
    return value if -(2**63) <= value < 2**64 else str(node.value)
