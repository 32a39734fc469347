"""Fixtures that several folders of the suite share."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest
import structlog
from coverage import Coverage
from hypothesis import HealthCheck, settings

from tests.support.cluster import VARIABLES, Cluster, local_cluster
from tests.support.containerd import Containerd, missing
from tests.support.daemons import NodeDaemon
from tests.support.virtual_time import VirtualLoop


def _leave_daemons_unmeasured() -> None:
    """Measure coverage in the suite's own processes and in those of `tests.support.warm` alone.

    Measuring the daemons that they start takes a third as long as the daemons' own work, and says nothing new. Each
    start of coverage sets the variable again, and processes of `tests.support.warm` would be measured twice.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ.pop("COVERAGE_PROCESS_CONFIG", None)


_leave_daemons_unmeasured()

# CI takes the same examples each time, so that a find by chance does not turn a change red that has not caused it.
settings.register_profile("busy", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.register_profile("ci", settings.get_profile("busy"), derandomize=True, database=None)
settings.load_profile("ci" if "CI" in os.environ else "busy")


@pytest.fixture(scope="session", autouse=True)
def _loop_of_sync_tests() -> Iterator[None]:
    """The plugin looptime asks for an event loop around sync tests too: give it one that is closed in the end."""
    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        yield
        asyncio.set_event_loop(None)


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Take back what a command in this process has set for the log: later tests read their own lines."""
    before = structlog.get_config()
    yield
    if structlog.get_config() != before:
        structlog.configure(**before)
        for name, module in sys.modules.items():
            for log in (vars(module).get(each) for each in ("log", "_log") if name.startswith("crrd")):
                getattr(log, "__dict__", {}).pop("bind", None)  # it keeps the configuration of its first use


@pytest.fixture(scope="module")
def unmeasured() -> Iterator[None]:
    """Switch coverage off for a file: measuring takes as long as its tests, and others cover the same lines."""
    coverage = Coverage.current()
    if coverage:
        coverage.stop()
    yield
    if coverage:
        coverage.start()
        _leave_daemons_unmeasured()


def pytest_xdist_auto_num_workers() -> int:
    """Four more than processors, because tests also wait. One on a foreign cluster, which they would share."""
    return 1 if os.environ.get(VARIABLES[0]) else len(os.sched_getaffinity(0)) + 4


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests with the mark `virtual_time` run in a loop whose clock jumps."""
    virtual = item.get_closest_marker("virtual_time")
    return {"virtual": VirtualLoop} if virtual else {"real": asyncio.new_event_loop}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """The local node with its runtime of plain processes, in its own process."""
    async with local_cluster(tmp_path, runtime_process=True) as found:
        yield found


@pytest.fixture(scope="session")
def containerd() -> Iterator[Containerd]:
    """A private containerd with the tests' images, one for each worker; tests keep to pods of their own."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    runtime = Containerd()
    try:
        runtime.prepare()
        yield runtime
    finally:
        runtime.destroy()


@pytest.fixture
async def node_daemon(cluster: Cluster, tmp_path: Path) -> AsyncIterator[NodeDaemon]:
    """`crrd node` as a process on the cluster of the test's folder, running and ready; ended with the test."""
    async with NodeDaemon(cluster, tmp_path / "node.log") as daemon:
        yield daemon
        await daemon.kill()
