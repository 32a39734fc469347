"""What `status` shows of runs, and which runs `abort` takes."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import pytest

from crrd.core.api.time import rfc3339
from crrd.core.rollout.phases import End, RunPhase
from crrd.core.rollout.plan import Plan
from crrd.core.rollout.progress import Progress
from crrd.kube.resources import REQUESTS
from crrd.lib.errors import ConfigurationError
from crrd.rollout.jsonlines import JsonLines
from crrd.rollout.status import is_gone
from crrd.rollout.text import TextLines
from crrd_localnode.workload import RESOURCES
from tests.support.played_cluster import NAMESPACE, PlayedCluster
from tests.support.played_images import Images
from tests.support.sessions import recreated

Output = pytest.CaptureFixture[str]
DEPLOYMENTS = RESOURCES["Deployment"]
RESUME = "to continue: crrd recreate resume nightly -n default"


@asynccontextmanager
async def begun(cluster: PlayedCluster, *words: str) -> AsyncIterator["asyncio.Task[int]"]:
    """A run of two pods whose first one is stopped and not ready; it is interrupted at the end."""
    cluster.goes_on.clear()
    run = asyncio.create_task(recreated(cluster, "deployment/web", "-c", "app", "--run", "nightly", *words))
    async with asyncio.timeout(10):
        while not cluster.stops:
            await asyncio.sleep(0.01)
    try:
        yield run
    finally:
        run.cancel()
        with suppress(asyncio.CancelledError):
            await run


async def write(
    cluster: PlayedCluster, by: str, seconds: float = 0, end: End | None = None, waits: str = "web-0"
) -> None:
    """Another process has written its progress so long ago."""
    (request,) = await cluster.requests()
    at = rfc3339(cluster.api.now() - timedelta(seconds=seconds))
    found = Progress(at, by, RunPhase.RESTARTING, 0, 2, waits, end=end)
    body = {"metadata": {"annotations": found.annotation()}}
    await cluster.client.merge_patch(REQUESTS, NAMESPACE, request["metadata"]["name"], body)


async def shown(cluster: PlayedCluster, output: Output, *words: str) -> list[str]:
    """The lines that `status` prints."""
    output.readouterr()
    assert await recreated(cluster, "status", *words) == 0
    return output.readouterr().out.splitlines()


async def test_a_run_that_goes_on_here_or_elsewhere_or_not_at_all(cluster: PlayedCluster, capsys: Output) -> None:
    first, second = await cluster.workload("Deployment", "web", 2, "app")
    async with begun(cluster):
        lines = await shown(cluster, capsys, "nightly")
        assert lines[1].startswith("running here (Restarting): 0 of 2 pods recreated, 1 in progress; last activity ")
        assert lines[2] == f"waits for: {first} recreating"
        assert [line.split()[0] for line in lines[4:]] == [first, second]
        assert "1 pod is unready, the limit is 1" in lines[5]
        await write(cluster, "nightly-x7k2b/1")
        lines = await shown(cluster, capsys, "nightly")
        assert lines[1].startswith("running elsewhere (nightly-x7k2b) (Restarting): 0 of 2 ")
        head, row = await shown(cluster, capsys)
        assert head.split("   ")[0] == "RUN"
        assert "running elsewhere (nightly-x7k2b)   Restarting   0/2" in row
        assert row.endswith("web-0")
    for by, seconds in (("nightly-x7k2b/1", 61), (f"{socket.gethostname()}/{2**22 + 1}", 0)):
        await write(cluster, by, seconds)
        lines = await shown(cluster, capsys, "nightly")
        assert (lines[1].startswith("stopped (Restarting): 0 of 2 pods recreated"), lines[2]) == (True, RESUME)
        assert "stopped   Restarting   0/2" in (await shown(cluster, capsys))[1]


async def test_one_that_is_interrupted_says_so_at_once(cluster: PlayedCluster, capsys: Output) -> None:
    await cluster.workload("Deployment", "web", 2, "app")
    async with begun(cluster):
        pass
    assert (await shown(cluster, capsys, "nightly"))[1].startswith("interrupted (Restarting): ")
    cluster.goes_on.set()
    assert await recreated(cluster, "resume", "nightly") == 0
    capsys.readouterr()
    assert await recreated(cluster, "status", display=JsonLines(cluster.api.now)) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["run"], found["state"], found["phase"]) == ("nightly", "done", "Over")
    assert (found["done"], found["waitsFor"]) == (2, "")
    assert (found["succeeded"], found["requests"], found["total"]) == (2, 2, 2), "numbers are numbers"
    with pytest.raises(
        ConfigurationError, match=r"run nightly has already ended \(done\), so there is nothing to abort"
    ):
        await recreated(cluster, "abort", "nightly")


async def test_one_that_has_timed_out_says_so(cluster: PlayedCluster, capsys: Output) -> None:
    await cluster.workload("Deployment", "web", 2, "app")
    async with begun(cluster, "--timeout", "1s") as run:
        assert await run == 3
    lines = await shown(cluster, capsys, "nightly")
    assert (lines[1].startswith("timed out (Restarting): 0 of 2 pods"), lines[2]) == (True, RESUME)


async def test_one_that_asks_or_has_failed_says_how_to_go_on(cluster: PlayedCluster, capsys: Output) -> None:
    pods = await cluster.workload("Deployment", "web", 2, "app")
    await recreated(cluster, "deployment/web", "-c", "app", "--run", "nightly", "--partition", "1")
    lines = await shown(cluster, capsys, "nightly")
    assert (lines[1].startswith("paused (Paused): 1 of 2 pods recreated"), lines[2]) == (True, f"{RESUME} --yes")
    assert "paused   Paused   1/2" in (await shown(cluster, capsys))[1]
    cluster.fails[pods[1]] = ("StillRuns", "it still runs")
    assert await recreated(cluster, "resume", "nightly", "--yes") == 1
    lines = await shown(cluster, capsys, "nightly")
    assert (lines[1].startswith("failed (Over): 1 of 2 pods"), lines[2]) == (True, f"{RESUME} --retry-failed")
    assert await recreated(cluster, "abort", "nightly") == 0, "it could have been resumed"
    assert (await shown(cluster, capsys, "nightly"))[1].startswith("aborted (Over): ")
    with pytest.raises(ConfigurationError, match=r"run nightly has already ended \(aborted\)"):
        await recreated(cluster, "abort", "nightly")


class Asks(TextLines):
    """A terminal whose user thinks for a while, and then says yes."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answered = asyncio.Event(), asyncio.Event()

    async def ask(self, question: str) -> bool:
        self.asked.set()
        await self.answered.wait()
        return True


async def test_one_that_asks_at_a_terminal_is_paused_for_others(cluster: PlayedCluster, capsys: Output) -> None:
    await cluster.workload("Deployment", "web", 2, "app")
    display, words = Asks(), ("deployment/web", "-c", "app", "--run", "nightly", "--partition", "1")
    async with asyncio.timeout(20):
        running = asyncio.create_task(recreated(cluster, *words, display=display))
        await display.asked.wait()
        lines = await shown(cluster, capsys, "nightly")
        assert (lines[1].startswith("paused (Paused): 1 of 2 pods recreated"), lines[2]) == (True, f"{RESUME} --yes")
        display.answered.set()
        assert await running == 0
    assert (await shown(cluster, capsys, "nightly"))[1].startswith("done (Over): 2 of 2 pods recreated")


async def test_a_run_of_a_policy_waits_between_two_turns(cluster: PlayedCluster, capsys: Output) -> None:
    """After an hour, nobody will give it another one."""
    await cluster.workload("Deployment", "web", 2, "app")
    async with begun(cluster):
        pass
    await write(cluster, "manager-x7k2b/1", 3500, End.YIELDED, "its next turn")
    first, waits, *more = (await shown(cluster, capsys, "nightly"))[1:]
    assert first.startswith("waiting (Restarting): 0 of 2 pods recreated")
    assert (waits, RESUME in more) == ("waits for: its next turn", False)
    watching = asyncio.create_task(recreated(cluster, "status", "nightly", "-w"))
    await asyncio.sleep(0.5)
    assert not watching.done(), "it follows the run into the next turn"
    await write(cluster, "manager-x7k2b/1", 3700, End.YIELDED, "its next turn")
    assert await watching == 1
    lines = await shown(cluster, capsys, "nightly")
    assert (lines[1].split()[0], lines[2:4]) == ("stopped", ["waits for: its next turn", RESUME])


async def test_whoever_watches_sees_it_to_its_end(cluster: PlayedCluster, capsys: Output) -> None:
    _, second = await cluster.workload("Deployment", "web", 2, "app")
    async with begun(cluster) as run:
        watching = asyncio.create_task(recreated(cluster, "status", "nightly", "-w"))
        await asyncio.sleep(0.1)
        capsys.readouterr()
        cluster.goes_on.set()
        assert (await run, await watching) == (0, 0)
    out = capsys.readouterr().out
    assert out.count(f"{second}  node-a  recreating") == 2, "the run shows it, and so does its watcher"
    assert out.count("done: 2 of 2 pods recreated (after ") == 2


async def test_whoever_watches_one_that_stops_is_told_how_to_go_on(cluster: PlayedCluster, capsys: Output) -> None:
    await cluster.workload("Deployment", "web", 2, "app")
    async with begun(cluster):
        watching = asyncio.create_task(recreated(cluster, "status", "nightly", "--watch"))
        await asyncio.sleep(0.1)
    assert await watching == 1
    assert f"interrupted: 0 of 2 pods recreated, 1 in progress; {RESUME} (after " in capsys.readouterr().out


class Waits(TextLines):
    """Records what each shown plan waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.whys: list[str] = []

    def show(self, plan: Plan) -> None:
        self.whys.append(plan.wait.why)
        super().show(plan)


async def test_whoever_watches_without_a_connection_follows_on(
    cluster: PlayedCluster, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of the run gets old while the API server is away, but the run goes on."""
    await cluster.workload("Deployment", "web", 2, "app")
    display = Waits()
    async with begun(cluster) as run, asyncio.timeout(30):
        watching = asyncio.create_task(recreated(cluster, "status", "nightly", "-w", display=display))
        while not display.whys:
            await asyncio.sleep(0.01)
        cluster.api.fail_next(10**6, status=503)
        cluster.api.drop_connections()
        while not display.whys[-1] and not watching.done():
            await asyncio.sleep(0.01)
        with monkeypatch.context() as patch:
            patch.setattr("crrd.core.rollout.progress.LIVE_SECONDS", 0.0)  # what was written last is too old now
            shown = len(display.whys)
            while len(display.whys) < shown + 3 and not watching.done():
                await asyncio.sleep(0.01)
        assert not watching.done()
        cluster.api.clear_faults()
        cluster.goes_on.set()
        assert (await run, await watching) == (0, 0)
    assert "  waiting: watch " in capsys.readouterr().out


async def test_a_run_that_was_undone_is_shown_as_it_was(cluster: PlayedCluster, images: Images, capsys: Output) -> None:
    await cluster.workload("Deployment", "web", 2, "app")
    words = "deployment/web", "-c", "app", "--image", "i:2", "--template", "keep", "--min-ready", "0"
    assert await recreated(cluster, *words, "--run", "nightly", "--partition", "1") == 0
    assert await recreated(cluster, "undo", "nightly") == 0
    listed = await shown(cluster, capsys)
    back = next(line.split()[0] for line in listed[1:] if not line.startswith("nightly"))
    (line,) = (line for line in listed if line.startswith("nightly"))
    assert f"   aborted, undone by run {back}   Over    1/2   " in line
    _, state, *more = await shown(cluster, capsys, "nightly")
    assert state.startswith(f"aborted, undone by run {back} (Over): 1 of 2 pods recreated; last ")
    assert [each.split()[-1] for each in more[-2:]] == ["done", "waiting"]
    assert not [each for each in more if each.startswith("to continue")]
    assert await recreated(cluster, "status", "nightly", "-w") == End.ABORTED.exit_code
    assert f"aborted: 1 of 2 pods recreated; undone by run {back} (after" in capsys.readouterr().out
    assert await recreated(cluster, "status", "nightly", display=JsonLines(cluster.api.now)) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["undoneBy"]) == ("aborted", back)
    with pytest.raises(ConfigurationError, match=f"run nightly was undone by run {back}: start a new one"):
        await recreated(cluster, "resume", "nightly")


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_run_whose_target_is_gone_is_shown_with_its_recorded_end(
    cluster: PlayedCluster, capsys: Output, replaced: bool
) -> None:
    (first,) = await cluster.workload("Deployment", "web", 1, "app")
    async with begun(cluster):
        was = await cluster.client.get(DEPLOYMENTS, NAMESPACE, "web")
        await cluster.client.delete(DEPLOYMENTS, NAMESPACE, "web")
        if replaced:  # the name is that of another one by now
            await cluster.client.create(DEPLOYMENTS, NAMESPACE, {"metadata": {"name": "web"}, "spec": was["spec"]})
        watching = asyncio.create_task(recreated(cluster, "status", "nightly", "--watch"))
        _, state, waits, *rows = await shown(cluster, capsys, "nightly")
        assert state.startswith("running here (Restarting): 0 of 1 pods recreated, 1 in progress; last activity ")
        assert waits == "waits for: nothing, because deployment.apps/web was deleted"
        assert rows[1].split() == [first, "node-a", "recreating"]
        assert not watching.done()
    assert await watching == 1
    assert "interrupted: 0 of 1 pods recreated, 1 in progress; deployment.apps/web was del" in capsys.readouterr().out
    _, state, *_, last = await shown(cluster, capsys, "nightly")
    assert state.startswith("interrupted (Restarting): 0 of 1 pods recreated, 1 in progress; last activity ")
    assert last.endswith("recreating"), "no command to continue it"


async def test_a_run_that_was_done_waits_for_nothing_though_its_target_is_gone(
    cluster: PlayedCluster, capsys: Output
) -> None:
    await cluster.workload("Deployment", "web", 1, "app")
    assert await recreated(cluster, "deployment/web", "-c", "app", "--run", "nightly") == 0
    await cluster.client.delete(DEPLOYMENTS, NAMESPACE, "web")
    _, state, *more = await shown(cluster, capsys, "nightly")
    assert state.startswith("done (Over): 1 of 1 pods recreated; last activity ")
    assert not [each for each in more if each.startswith("waits for")]


async def test_a_run_whose_target_is_gone_can_be_aborted(cluster: PlayedCluster, capsys: Output) -> None:
    await cluster.workload("Deployment", "web", 2, "app")
    async with begun(cluster):
        pass
    await cluster.client.delete(DEPLOYMENTS, NAMESPACE, "web")
    assert await recreated(cluster, "abort", "nightly") == 0
    assert "run nightly aborted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("by", "gone"),
    [
        pytest.param(f"{socket.gethostname()}/{os.getpid()}", False, id="this-process"),
        (f"{socket.gethostname()}/{2**22 + 1}", True),
        (f"{socket.gethostname()}/{2**80}", False),
        (f"{socket.gethostname()}/1", False),
        *((f"{socket.gethostname()}/{odd}", False) for odd in ("x", "²", "9" * 5000, "-1")),
        ("elsewhere/4194305", False),
        ("", False),
    ],
)
def test_a_process_of_this_host_is_known_to_be_gone(by: str, gone: bool) -> None:
    assert is_gone(by) is gone
