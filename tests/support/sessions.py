"""`crrd recreate` inside of the test's own process, on a cluster that is played."""

import argparse

from crrd.cli import recreate
from crrd.cli.recreate import requested
from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.rollout.display import Display
from crrd.rollout.runs import Command
from crrd.rollout.session import Session
from tests.support.played_cluster import NAMESPACE, PlayedCluster


def command(*words: str) -> Command:
    """What a command line asks for."""
    parser = argparse.ArgumentParser("crrd recreate")
    recreate.configure(parser)
    return requested(parser.parse_args([*words]))


async def recreated(cluster: PlayedCluster, *words: str, display: Display | None = None) -> int:
    """The exit code of a command line."""
    asked = command(*words)
    return await Session(cluster.client, ServerClock(), NAMESPACE, display or Display(), asked, _unexplained).run()


async def _unexplained(client: KubeClient, clock: ServerClock, request: object) -> str:
    return "explained"
