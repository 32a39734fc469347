"""Runs `crrd recreate` in the test's own process, on a simulated cluster."""

import argparse

from crrd.cli import recreate
from crrd.cli.recreate import arranged, requested
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.rollout.display import Display
from crrd.rollout.session import Command, Session
from crrd.rollout.text import TextLines
from tests.support.played_cluster import NAMESPACE, PlayedCluster


def parsed(*words: str) -> argparse.Namespace:
    """Parse a command line."""
    parser = argparse.ArgumentParser("crrd recreate")
    recreate.configure(parser)
    return parser.parse_args(arranged(words))


def command(*words: str) -> Command:
    """Parse a command line, and check it."""
    return requested(parsed(*words))


async def recreated(cluster: PlayedCluster, *words: str, display: Display | None = None) -> int:
    """Run a command line, and return its exit code."""
    args = parsed(*words)
    parts = ServerClock(), NAMESPACE, display or TextLines(), requested(args), _unexplained
    session = Session(cluster.client, *parts)
    code: int = await args.work(session)
    session.display.close()
    return code


async def _unexplained(client: KubeClient, clock: ServerClock, request: object, flags: str) -> str:
    return "explained"
