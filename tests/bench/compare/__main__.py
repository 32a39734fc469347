"""`make compare`: the ways to restart a container of a running pod, side by side on a real cluster."""

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crrd.kube.resources import NODES
from crrd.lib.errors import ConfigurationError
from tests.bench.compare import kruise, page
from tests.bench.compare.measure import deployed, keeps, machine, measured, singles
from tests.bench.compare.ways import WAYS, Way
from tests.support.cluster import VARIABLES, Cluster, Json, on_foreign_cluster
from tests.support.real_nodes import installed
from tests.tools.cluster.cluster import RealCluster as Machines

ROOT = Path(__file__).parents[3]
_DESCRIPTION = """\
Restarts containers in each way: deleted pods, a rollout, kill in the container, StopContainer by hand, OpenKruise, crrd
by its node daemon and by patches. One pod after the other, 30 and 90 at once on one node, and 300 pods on all nodes of
which at most 10 % are unready. Prints tables, and writes compare.json and compare.svg."""
_EPILOG = """\
It needs kubectl, and a cluster of `python -m tests.tools.cluster --nodes 3` without crrd, which it installs and
removes. --kruise names a folder with OpenKruise's static binaries (kruise-daemon, kruise-manager) and the folder config
of its sources. Leave the machine alone meanwhile: with all ways, it takes more than an hour.

examples:
  make compare CLUSTER=~/cluster KRUISE=~/kruise-1.6.2 KRUISE_VERSION=1.6.2
  python -m tests.bench.compare ~/cluster --ways crrd "stopped by hand" --bursts 30 --rounds 1 --singles 0 --run 0
  python -m tests.bench.compare --page docs/compare.json     # the tables and the picture once more

exit codes: 0 when all is measured, 2 if something is missing or cannot be installed"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.compare",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("cluster", type=Path, nargs="?", metavar="FOLDER", help="folder of the cluster")
    add("--kruise", type=Path, metavar="FOLDER", help="OpenKruise (default: it is left out)")
    add("--kruise-version", default="", metavar="VERSION", help="its version, for the page")
    names = ", ".join(each.name for each in WAYS)
    add("--ways", nargs="+", metavar="WAY", default=[each.name for each in WAYS], help=f"only these of: {names}")
    add(
        "--singles", type=int, default=40, metavar="N", help="pods that are restarted one by one (default: %(default)s)"
    )
    add("--bursts", type=int, nargs="*", default=[30, 90], metavar="N", help="pods at once (default: 30 90)")
    add("--rounds", type=int, default=3, metavar="N", help="rounds of each burst (default: %(default)s)")
    add("--run", type=int, default=300, metavar="N", help="pods of a run, 0 for none (default: %(default)s)")
    add("--out", type=Path, default=Path(), metavar="FOLDER", help="where to write (default: the present folder)")
    add("--page", type=Path, metavar="FILE", help="measure nothing: print the tables of this compare.json, and draw it")
    return parser


def _tell(line: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {line}", file=sys.stderr, flush=True)


@contextlib.asynccontextmanager
async def _connected(nodes: Machines) -> AsyncIterator[Cluster]:
    """Connect to the first node, with a namespace of its own."""
    lines = (nodes.plan.folder / "env").read_text(encoding="utf-8").splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    variables = {name: found[name].strip("'\"") for name in VARIABLES}
    with tempfile.TemporaryDirectory() as folder:
        (shared := Path(folder)).chmod(0o777)
        async with on_foreign_cluster(variables, shared) as cluster:
            yield cluster


async def _phase(nodes: Machines, ways: Sequence[Way], args: argparse.Namespace, save: Callable[[Json], None]) -> None:
    """Measure some ways in turn. Everything that they need is installed."""
    async with _connected(nodes) as cluster:
        for way in ways:
            _tell(f"{way.name}: what a pod keeps")
            save({"row": "keeps", **await keeps(cluster, way)})
        for way in ways if args.singles else ():
            _tell(f"{way.name}: {args.singles} pods, one after the other")
            save({"row": "one", **await singles(cluster, way, args.singles)})
        for number in range(args.rounds):
            for count in args.bursts:
                for way in ways:
                    async with deployed(cluster, f"web-{count}", count) as scene:
                        found = await measured(scene, way, nodes)
                    _tell(f"round {number + 1}, {way.name}, {count} at once: all ready after {found['seconds'][-1]} s")
                    save({"row": "at once", **found})
        for way in (each for each in ways if args.run and each.run is not None):
            async with deployed(cluster, "run", args.run, most="10%", one_node=False) as scene:
                found = await measured(scene, way, nodes, run=True)
            _tell(f"{way.name}, a run over {args.run}: {found['seconds'][-1]} s")
            save({"row": "run", **found})


async def _versions(nodes: Machines) -> dict[str, str]:
    async with _connected(nodes) as cluster:
        info = (await cluster.client.get(NODES, "", cluster.node_name))["status"]["nodeInfo"]
    return {
        "kubelet": info["kubeletVersion"],
        "runtime": info["containerRuntimeVersion"],
        "kernel": info["kernelVersion"],
    }


def _measure(args: argparse.Namespace) -> None:
    """Measure all ways, those that need nothing installed beside crrd, and write what was found after each step."""
    if args.cluster is None:
        raise ConfigurationError("name the folder of a cluster; see --help")
    nodes = Machines.find(args.cluster)
    ways = [each for each in WAYS if each.name in args.ways]
    if unknown := {*args.ways} - {each.name for each in ways}:
        raise ConfigurationError(f"unknown ways: {', '.join(sorted(unknown))}; see --help")
    if args.kruise:
        kruise.check(args.kruise)
    words = ("git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD")
    commit = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    versions = asyncio.run(_versions(nodes)) | ({"OpenKruise": args.kruise_version} if args.kruise else {})
    rows: list[Json] = []
    result: dict[str, Any] = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "commit": commit, "nodes": len(nodes.nodes)}
    result |= {"machine": dict(machine()), "versions": versions, "rows": rows}
    file = args.out / "compare.json"

    def save(row: Json) -> None:
        rows.append(row)
        file.write_text(json.dumps(result, indent=1), encoding="utf-8")

    others = [each for each in ways if each.of == "OpenKruise"]
    with installed(nodes):
        asyncio.run(_phase(nodes, [each for each in ways if each not in others], args, save))
    if args.kruise and others:
        with kruise.installed(nodes, args.kruise):
            asyncio.run(_phase(nodes, others, args, save))
    _show(file, args.out)


def _show(file: Path, out: Path) -> None:
    found = json.loads(file.read_text(encoding="utf-8"))
    order = [each.name for each in WAYS]
    found["rows"].sort(key=lambda row: order.index(row["way"]))
    print(page.page(found))
    if bursts := [each for each in found["rows"] if each["row"] == "at once"]:
        page.draw(bursts, out / "compare.svg")


def main(arguments: Sequence[str]) -> int:
    """Measure, or show what was measured. Return the exit code."""
    args = _parser().parse_args(arguments)
    try:
        if args.page:
            _show(args.page, args.out)
        else:
            _measure(args)
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(error.cmd)} has failed", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
