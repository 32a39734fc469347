"""Runs `crrd recreate` in the test's own process, on a simulated cluster."""

import argparse

from crrd.cli import recreate
from crrd.cli.recreate import requested
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.rollout.display import Display
from crrd.rollout.runs import Command
from crrd.rollout.session import Session
from crrd.rollout.text import TextLines
from tests.support.played_cluster import NAMESPACE, PlayedCluster


def command(*words: str) -> Command:
    """Parse a command line."""
    parser = argparse.ArgumentParser("crrd recreate")
    recreate.configure(parser)
    return requested(parser.parse_args([*words]))


async def recreated(cluster: PlayedCluster, *words: str, display: Display | None = None) -> int:
    """Run a command line, and return its exit code."""
    asked = command(*words)
    return await Session(cluster.client, ServerClock(), NAMESPACE, display or TextLines(), asked, _unexplained).run()


async def _unexplained(client: KubeClient, clock: ServerClock, request: object) -> str:
    return "explained"
