"""`kubectl recreate --steps --judge` as a process: a bad restart costs the pods of one step."""

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from crrd.core.api.time import rfc3339
from crrd.core.rollout.progress import ANNOTATION_PROGRESS
from crrd_localnode.api.admission import AdmissionRequest
from tests.support.played_cluster import PlayedCluster, played
from tests.support.played_images import Images, image_of
from tests.support.scripted_api import Reply, reply, scripted_api
from tests.support.sessions import recreated

OF_WEB = ("deployment/web", "-c", "app", "--run", "run")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[PlayedCluster]:
    async with played(tmp_path) as found:
        yield found


def value(number: str) -> Reply:
    return reply({"status": "success", "data": {"resultType": "scalar", "result": [1, number]}})


async def test_each_step_is_judged_before_the_next_one(cluster: PlayedCluster) -> None:
    pods = await cluster.workload("Deployment", "web", 3)
    ended = await cluster.recreate(*OF_WEB, "--steps", "1", "--judge", "1s", "--max-unavailable", "3")
    assert ended.code == 0, ended
    assert [pod for pod, _ in cluster.stops] == pods
    assert "in steps 1" in ended.out
    assert "the pods of step 1 of 2 are judged until" in ended.out
    assert "the pods of step 2 of 2 are judged until" in ended.out
    status = await cluster.recreate("status", "run")
    assert "step 2 of 2 (--steps 1)" in status.out


async def test_a_pod_that_crashes_in_the_judgement_is_the_only_one(cluster: PlayedCluster) -> None:
    first, *_ = await cluster.workload("Deployment", "web", 3)
    running = asyncio.create_task(cluster.recreate(*OF_WEB, "--steps", "1", "--judge", "60s"))
    await cluster.stopped(1)
    await cluster.crash(first)
    ended = await running
    assert ended.code == 1
    assert f"the judgement of step 1 of 2 is no: {first} has restarted once more; 2 left" in ended.out
    assert "to continue in spite of it: " in ended.out
    assert cluster.stops == [(first, "app")]
    repeated = await cluster.recreate(*OF_WEB, "--steps", "1", "--judge", "60s", "--yes")
    assert (repeated.code, cluster.stops) == (1, [(first, "app")]), "as a Job does it"
    again = await cluster.recreate("resume", "run")
    assert (again.code, cluster.stops) == (1, [(first, "app")]), "a no stays no"
    assert f"{first} has restarted once more" in again.out
    shown = await cluster.recreate("resume", "run", "--dry-run")
    assert f"then waits: the judgement of step 1 of 2 is no: {first} has restarted once more" in shown.out
    assert "batch" not in shown.out
    assert "batch 2" in (await cluster.recreate("resume", "run", "--dry-run", "--yes")).out
    status = await cluster.recreate("status", "run")
    assert "halted" in status.out
    assert f"why: {first} has restarted once more" in status.out
    (continued,) = [line for line in status.out.splitlines() if line.startswith("to continue: ")]
    assert " --yes" in continued
    (request,) = await cluster.requests()
    while rfc3339(cluster.api.now()) == request["metadata"]["creationTimestamp"]:
        await asyncio.sleep(0.05)  # requests that are created in one second have no order
    overruled = asyncio.create_task(cluster.recreate("resume", "run", "--yes", "--timeout", "3s"))
    await cluster.stopped(2)
    assert (await overruled).code == 3, "the last step is judged for longer than this"


async def test_an_interrupted_resume_leaves_a_no_as_it_is(cluster: PlayedCluster) -> None:
    first, *_ = await cluster.workload("Deployment", "web", 2)
    running = asyncio.create_task(cluster.recreate(*OF_WEB, "--steps", "1", "--judge", "5s"))
    while not any('"phase":"Judging"' in text for text in await progress(cluster)):
        await asyncio.sleep(0.02)
    await cluster.set_ready(first, ready=False)
    assert f"the judgement of step 1 of 2 is no: {first} has become unready again; 1 left" in (await running).out
    await cluster.set_ready(first, ready=True)
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def hold(asked: AdmissionRequest) -> None:
        if asked.kind.plural == "events":
            began.set()
            await goes_on.wait()

    cluster.api.admission.validating.append(hold)
    interrupted = asyncio.create_task(recreated(cluster, "resume", "run"))
    await began.wait()
    interrupted.cancel()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await interrupted
    assert "halted" in (await cluster.recreate("status", "run")).out
    await asyncio.sleep(5)  # by the pods alone, the judgement would be yes now
    again = await cluster.recreate("resume", "run")
    assert (again.code, cluster.stops) == (1, [(first, "app")])
    assert f"{first} has become unready again" in again.out


async def progress(cluster: PlayedCluster) -> list[str]:
    """Return the progress that is recorded on the requests."""
    return [each["metadata"]["annotations"].get(ANNOTATION_PROGRESS, "") for each in await cluster.requests()]


async def test_a_metric_halts_the_run_with_its_numbers(cluster: PlayedCluster, tmp_path: Path) -> None:
    first, *_ = await cluster.workload("Deployment", "web", 2)
    async with scripted_api() as prometheus:
        prometheus.then(value("0.9"))
        metric = {"address": prometheus.url, "query": 'errors{pod=~"{{pods}}"}', "max": 0.5}
        file = tmp_path / "metrics.yaml"
        file.write_text(yaml.safe_dump([{"prometheus": metric}]))
        words = "--steps", "1", "--judge", "60s", "--metrics", str(file)
        ended = await cluster.recreate(*OF_WEB, *words)
        assert ended.code == 1
        assert "the judgement of step 1 of 2 is no: " in ended.out
        assert "0.9 is above 0.5" in ended.out
        assert cluster.stops == [(first, "app")]
        assert first in prometheus.bodies[0].decode()
        other = tmp_path / "other.yaml"
        other.write_text(yaml.safe_dump([{"prometheus": {**metric, "max": 2}}]))
        for given, error in ((), "give its --metrics FILE again"), (("--metrics", str(other)), "with other metrics"):
            refused = await cluster.recreate("resume", "run", "--yes", *given)
            assert refused.code == 2
            assert error in refused.err
        assert len(prometheus.bodies) == 1


async def test_the_command_that_is_printed_asks_the_same_metrics_and_undoes_the_run(
    cluster: PlayedCluster, images: Images, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests do not store whom a run asks. The run back asks no metrics."""
    await cluster.workload("Deployment", "web", 2)
    async with scripted_api() as prometheus:
        file = tmp_path / "all metrics.yaml"
        metric = {"address": prometheus.url, "query": 'errors{pod=~"{{pods}}"}', "max": 0.5}
        file.write_text(yaml.safe_dump([{"prometheus": metric}]))
        of_image = "--image", "i:2", "--template", "keep", "--min-ready", "0", "--steps", "1", "--judge", "60s"
        flags = "--metrics", str(file), "--undo-on-failure"
        prometheus.then(value("0.1"))
        running = asyncio.create_task(recreated(cluster, *OF_WEB, *of_image, *flags))
        while not prometheus.bodies:
            await asyncio.sleep(0.02)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        printed = capsys.readouterr().out.splitlines()[-1].rpartition("to continue: ")[2].partition(";")[0]
        assert printed == f"crrd recreate {shlex.join(['resume', 'run', '-n', 'default', *flags])}"
        assert await recreated(cluster, "status", "run") == 0
        assert "to continue: crrd recreate resume run -n default --metrics FILE\n" in capsys.readouterr().out
        prometheus.then(value("0.9"))
        assert await recreated(cluster, *shlex.split(printed)[2:]) == 1
        assert f"resume run -n default {shlex.join(flags)} --yes" in capsys.readouterr().out
        assert {image_of(each) for each in await cluster.pods()} == {"i:1"}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--steps", "2,1"), "numbers or percentages of pods that increase"),
        (("--step-pause", "10s"), "--step-pause needs --steps"),
        (("--max-restarts", "1"), "--max-restarts needs --judge TIME"),
        (("--judge", "0s"), "--judge"),
        (("--judge", "1m", "--undo-on-failure"), "--undo-on-failure needs --image: a restart cannot be undone"),
        (("--steps", "1", "--partition", "1"), "--steps cannot be used with --partition"),
        (("--steps", "1", "--step-pause", "wait", "--yes"), "after a step, use resume RUN --yes"),
        (("--judge", "1m", "--metrics", "missing.yaml"), "a readable YAML file"),
        (("--judge", "1m", "--metrics", "bad.yaml"), "a YAML list of metrics"),
        (("--judge", "1m", "--metrics", "empty.yaml"), "a YAML list of at least one metric"),
    ],
)
async def test_what_does_not_fit_is_refused(
    cluster: PlayedCluster, tmp_path: Path, words: tuple[str, ...], error: str
) -> None:
    (tmp_path / "bad.yaml").write_text("- prometheus: {query: up}\n")
    (tmp_path / "empty.yaml").write_text("[]\n")
    words = tuple(str(tmp_path / each) if each.endswith(".yaml") else each for each in words)
    ended = await cluster.recreate(*OF_WEB, *words)
    assert (ended.code, cluster.stops) == (2, [])
    assert error in ended.err


async def test_a_user_allows_each_step(cluster: PlayedCluster) -> None:
    pods = await cluster.workload("Deployment", "web", 3)
    steps = "--steps", "1,2", "--step-pause", "wait"
    ended = await cluster.recreate(*OF_WEB, *steps)
    assert ended.code == 0
    assert "step 1 of 3 is done, 2 left" in ended.out
    assert len(cluster.stops) == 1
    await cluster.recreate("resume", "run", "--yes")
    assert len(cluster.stops) == 2
    ended = await cluster.recreate("resume", "run", "--yes")
    assert [pod for pod, _ in cluster.stops] == pods
    assert ended.code == 0
    different = await cluster.recreate(*OF_WEB, "--steps", "1,3", "--step-pause", "wait")
    assert different.code == 2
    assert "was started with --steps 1,2, but this command has --steps 1,3" in different.err


async def test_a_dry_run_shows_the_steps(cluster: PlayedCluster) -> None:
    await cluster.workload("Deployment", "web", 3)
    ended = await cluster.recreate(*OF_WEB[:3], "--steps", "1", "--judge", "1m", "--step-pause", "5m", "--dry-run")
    assert ended.code == 0
    lines = ended.out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("batch 1"))
    assert lines[at + 1] == "then judges these pods for 1m, and pauses for 5m"
    assert not any("judges" in line for line in lines[:at])
