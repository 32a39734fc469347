"""`make compare`: the ways to restart a container of a running pod, side by side on a real cluster."""

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crrd.kube.resources import NODES
from crrd.lib.errors import ConfigurationError
from tests.bench.compare import kruise, page
from tests.bench.compare.measure import deployed, keeps, machine, measured, singles
from tests.bench.compare.ways import BY_HAND, WAYS, Way
from tests.support.cluster import VARIABLES, Cluster, Json, on_foreign_cluster
from tests.support.real_nodes import installed
from tests.tools.cluster.cluster import RealCluster as Machines

ROOT = Path(__file__).parents[3]
_DESCRIPTION = """\
Restarts containers in each way: deleted pods, a rollout, kill in the container, StopContainer by hand, OpenKruise, crrd
by its node daemon and by patches. One pod after the other, 30 and 90 at once on one node, and 300 pods on all nodes of
which at most 10 % are unready. Prints tables, and writes compare.json and compare.svg."""
_EPILOG = """\
It needs kubectl, and a cluster of `python -m tests.tools.cluster --nodes 3` without crrd. It installs and removes crrd
and OpenKruise for their own ways. --kruise names a folder with OpenKruise's static binaries (kruise-daemon,
kruise-manager) and the folder config of its sources. Leave the machine alone meanwhile: with all ways, it takes more
than an hour.

examples:
  make compare CLUSTER=~/cluster KRUISE=~/kruise-1.6.2 KRUISE_VERSION=1.6.2
  python -m tests.bench.compare ~/cluster --ways crrd "stopped by hand" --bursts 30 --rounds 1 --singles 0 --run 0
  python -m tests.bench.compare --page docs/compare.json     # the tables and the picture once more

exit codes: 0 when all is measured, 1 if a measurement has failed (the others are there), 2 if something is missing or
cannot be installed"""


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
    names = "; ".join(each.name for each in WAYS).replace("%", "%%")
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
    """Measure some ways in turn. Everything that they need is installed, and nothing else.

    In each phase, 30 and 90 are stopped by hand, too: the same row shows what the time of day does. A measurement that
    fails is a row, too, and the next one follows.
    """
    one_by_one = [each for each in ways if not each.only_run]

    async def save_or_say(row: str, way: Way, step: Awaitable[Json]) -> None:
        try:
            found = {"row": row, **await step}
        except Exception as error:  # noqa: BLE001 - an hour of measurements must not be lost for one of them
            found = {"row": "failed", "of": row, "way": way.name, "error": repr(error)}
        slowest = f"the slowest after {found['seconds'][-1]} s" if "seconds" in found else ""
        _tell(f"{way.name}, {row}: {found.get('error') or slowest or 'seen'}")
        save(found)

    async with _connected(nodes) as cluster:

        async def burst(way: Way, count: int) -> Json:
            async with deployed(cluster, f"web-{count}", count) as scene:
                return await measured(scene, way, nodes)

        async def run(way: Way) -> Json:
            async with deployed(cluster, "run", args.run, most=way.most, surge=way.surge, one_node=False) as scene:
                return await measured(scene, way, nodes, run=True)

        for way in one_by_one:
            await save_or_say("keeps", way, keeps(cluster, way))
        for way in one_by_one if args.singles else ():
            await save_or_say("one", way, singles(cluster, way, args.singles))
        for number in range(args.rounds):
            for count in args.bursts:
                every = [*one_by_one, *(() if BY_HAND in one_by_one else (BY_HAND,))]
                for way in (*every[number % len(every) :], *every[: number % len(every)]):
                    await save_or_say("at once", way, burst(way, count))
        for way in (each for each in ways if args.run and each.run is not None):
            await save_or_say("run", way, run(way))


async def _versions(nodes: Machines) -> dict[str, str]:
    async with _connected(nodes) as cluster:
        info = (await cluster.client.get(NODES, "", cluster.node_name))["status"]["nodeInfo"]
    return {
        "kubelet": info["kubeletVersion"],
        "runtime": info["containerRuntimeVersion"],
        "kernel": info["kernelVersion"],
    }


def _measure(args: argparse.Namespace) -> bool:
    """Measure all ways, and write what was found after each step. Return whether something has failed."""
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

    installs: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "": contextlib.nullcontext,
        "crrd": lambda: installed(nodes),
        "OpenKruise": lambda: kruise.installed(nodes, args.kruise),
    }
    for what, install in installs.items():
        if (some := [each for each in ways if each.of == what]) and (what != "OpenKruise" or args.kruise):
            with install():
                asyncio.run(_phase(nodes, some, args, save))
    return _show(file, args.out)


def _show(file: Path, out: Path) -> bool:
    """Print the tables and draw the picture. Return whether a measurement has failed."""
    found = page.read(file)
    print(page.page(found))
    if bursts := [each for each in found["rows"] if each["row"] == "at once"]:
        page.draw(bursts, out / "compare.svg")
    failed = [each for each in found["rows"] if each["row"] == "failed"]
    for each in failed:
        print(f"error: {each['way']}, {each['of']}: {each['error']}", file=sys.stderr)
    return bool(failed)


def main(arguments: Sequence[str]) -> int:
    """Measure, or show what was measured. Return the exit code."""
    args = _parser().parse_args(arguments)
    try:
        failed = _show(args.page, args.out) if args.page else _measure(args)
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(error.cmd)} has failed", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
