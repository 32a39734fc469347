"""`python -m tests.soak_cluster --hours 2`: load and faults on a real cluster, judged by what crrd promises."""

import argparse
import asyncio
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError
from tests.soak_cluster.processes import found_in, found_in_cluster
from tests.soak_cluster.record import Kind, Part
from tests.soak_cluster.soak import Soak
from tests.support.cluster import foreign, on_foreign_cluster
from tests.support.recreates import has_manager

_DESCRIPTION = """\
Runs crrd from this clone on a real cluster: random requests, runs of `kubectl recreate`, edits for a policy, and
faults. In each round there are some minutes of load and faults, and then a quiet time in which everything must
recover. Then the record of the round is judged by what crrd promises."""
_EPILOG = """\
The cluster is named as for tests/e2e: CRRD_TEST_KUBECONFIG, CRRD_TEST_CRI_ENDPOINT, CRRD_TEST_NODE, CRRD_TEST_IMAGE,
and for runs with --image CRRD_TEST_IMAGE_2. Run it on that node, as root, and on a cluster that is for tests only and
has no crrd yet. With a cluster of tests.tools.cluster, or with --processes, the soak also kills its parts.

examples:
  set -a; . FOLDER/env; set +a; FOLDER/node1/enter .venv/bin/python -m tests.soak_cluster --hours 2
  python -m tests.soak_cluster --hours 2 --processes FOLDER --audit-log FOLDER/audit.log

exit codes: 0 nothing is broken, 1 a promise is broken, 2 it cannot run"""
FAULTS = {"kill": Kind.KILL, "stop": Kind.FREEZE, "logs": Kind.LOGS, "clock": Kind.CLOCK}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak_cluster",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--hours", type=float, required=True, help="time of all rounds; the last one is finished")
    add("--minutes", type=float, default=8.0, help="time of load and faults in a round (default: %(default)g)")
    add("--seed", type=int, default=None, help="repeats a plan (default: a new one, which is printed)")
    add("--faults", default=",".join(FAULTS), help=f"which, or none (default: {','.join(FAULTS)})")
    folder = "folder with the PID files of etcd, kube-apiserver, kubelet, containerd or crio; can be repeated"
    add("--processes", type=Path, action="append", default=[], metavar="FOLDER", help=folder)
    add("--audit-log", type=Path, metavar="FILE", help="the API server's audit log, to check that the record is whole")
    add("--keep", type=Path, metavar="FOLDER", help="keep logs there (default: a temporary folder)")
    return parser


def _kinds(words: str) -> set[Kind]:
    try:
        return set() if words == "none" else {FAULTS[word] for word in words.split(",")}
    except KeyError as error:
        raise ConfigurationError(f"--faults {words}: must be none, or some of {', '.join(FAULTS)}") from error


async def run(args: argparse.Namespace) -> int:
    """Run the soak until its time is over, or until SIGINT or SIGTERM. Return the exit code."""
    try:
        variables = foreign()
    except pytest.UsageError as error:
        raise ConfigurationError(str(error)) from error
    if variables is None:
        raise ConfigurationError("no cluster: set CRRD_TEST_KUBECONFIG and the other variables of --help")
    kinds, processes, audit_log = _kinds(args.faults), found_in(args.processes), args.audit_log
    if made := os.environ.get("CRRD_TEST_CLUSTER"):
        processes |= await asyncio.to_thread(found_in_cluster, Path(made), variables["CRRD_TEST_NODE"])
        audit_log = audit_log or Path(made, "control", "audit.log")
    folder = args.keep or Path(tempfile.mkdtemp(prefix="crrd-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    seed = secrets.randbelow(10**6) if args.seed is None else args.seed
    async with on_foreign_cluster(variables, folder) as cluster:
        if await has_manager(cluster):
            raise ConfigurationError("crrd is installed on this cluster: uninstall it, or use another one")
        soak = Soak(cluster, folder, processes, audit_log, _tell)
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        _tell(
            f"seed {seed}; logs in {folder}; faults can hit: {', '.join(sorted({*processes, Part.NODE, Part.MANAGER}))}"
        )
        await soak.run(seed, args.hours * 3600, args.minutes * 60, kinds, stop)
    for text in soak.tally.broken.values():
        print(f"\nbroken: {text}")
    print(f"\nseed {seed}, gaps in watches: {soak.gaps}")
    print(*soak.lines(), sep="\n")
    return 1 if soak.tally.broken else 0


def _tell(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """See the module's docstring."""
    try:
        return asyncio.run(run(_parser().parse_args(arguments)))
    except (ConfigurationError, ApiUnavailableError, ApiRefusedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
