"""Aborts runs with an image: no controller stays held, and nothing is left behind.

Their requests are kept, so that the run can be undone. The manager ends those whose pods do not have the image.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.kinds import kind_of
from crrd.core.rollout.phases import End
from crrd.core.rollout.plan import make_plan
from crrd.core.rollout.requests import RunRequest, longest_lived
from crrd.core.rollout.run import Run
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError
from crrd.rollout.cluster import Cluster
from crrd.rollout.display import RunDisplay
from crrd.rollout.image.clean_up import CleanUp, unknown_holder
from crrd.rollout.image.leftovers import delete_pull_pods
from crrd.rollout.kind import KindWriter
from crrd.rollout.runner import CLEAN_UP_SECONDS
from crrd.rollout.session import Session
from crrd.rollout.target import TargetGoneError

_ADOPTION_SECONDS = 60.0  # Time limit for finishing an adoption, which usually takes two seconds
_WAIT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Parts:
    """Makes what carries out the run."""

    cluster: Callable[[], Awaitable[Cluster]]
    writer: Callable[[Cluster, Run, RunDisplay], KindWriter]


async def abort_pulls(session: Session, why: str, more: str = "") -> bool:
    """Delete the pull pods of a run that has nothing else to abort, and say so. Return whether there are any."""
    name = session.command.run_name
    if not await delete_pull_pods(session.client, session.namespace, name):
        return False
    session.display.print_line(f"run {name} {why}, so only its pull pods were deleted{more}")
    return True


async def abort_image(
    session: Session, run: Run, requests: Sequence[RunRequest], ended: End | None, parts: Parts
) -> int:
    """Abort a run with these requests. Return the exit code. Whatever fails, the rest is tried.

    `ended` is its end if it is over. It may still hold a controller.
    """
    name = run.name
    if ended is not None and not await _holds(run, parts):
        if await abort_pulls(session, f"has already ended ({ended.word})"):
            return 0
        raise ConfigurationError(f"run {name} has already ended ({ended.word}), so there is nothing to abort")
    kept = longest_lived(requests)
    if not kept.request.aborted:
        await session.record_abort(kept)
    clean_up = CleanUp(session.client, run, session.display)
    left = await clean_up.finish(CLEAN_UP_SECONDS)
    released, adopted = await _end_adoption(session, run, parts)
    again = f"; give the command again, because {left}" if left else ""
    count = len(clean_up.open - clean_up.ended)
    rest = f"; {count} in progress will finish" if count else ""
    session.display.print_line(
        f"run {name} aborted, pending requests ended: {len(clean_up.ended)}{rest}{adopted}{again}"
    )
    return 0 if released and not left else End.FAILED.exit_code


async def _holds(run: Run, parts: Parts) -> bool:
    """Whether the run holds the controller of its workload. If this cannot be read, it may."""
    if run.options.image is None or not run.options.image.adopt:
        return False
    try:
        async with await parts.cluster() as cluster:
            return _is_marked(cluster, run)
    except TargetGoneError:
        return False
    except (ConfigurationError, ApiRefusedError):  # e.g. a right is missing
        return True


def _is_marked(cluster: Cluster, run: Run) -> bool:
    return ImageRun.of(cluster.world(), run).is_marked


async def _end_adoption(session: Session, run: Run, parts: Parts) -> tuple[bool, str]:
    """Finish the adoption if the run holds the controller of its workload, because this replaces no pod.

    Return whether the controller is not held any more, and the rest of a sentence about it. A process of the run does
    the same.
    """
    if run.options.image is None or not run.options.image.adopt:
        return True, ""
    try:
        async with await parts.cluster() as cluster:
            if not _is_marked(cluster, run):
                return True, ""
            problem = ""
            try:
                async with asyncio.timeout(_ADOPTION_SECONDS):
                    problem = await _adopt(session, run, cluster, parts.writer(cluster, run, session.display))
            except (ConfigurationError, ApiRefusedError, ApiUnavailableError, TimeoutError) as error:
                problem = str(error) or f"the adoption has not ended within {_ADOPTION_SECONDS:.0f}s"
            world = cluster.world()
            sentences = filter(None, (problem, kind_of(world, run).report()))
            return not _is_marked(cluster, run), "".join(f"; {each}" for each in sentences)
    except TargetGoneError:
        return True, ""
    except (ConfigurationError, ApiRefusedError, ApiUnavailableError) as error:  # e.g. a right is missing
        return False, f"; {unknown_holder(run, error)}"


async def _adopt(session: Session, run: Run, cluster: Cluster, writer: KindWriter) -> str:
    """Carry out the steps of the adoption. Return why it cannot go on, "" if it is over."""
    while True:
        cluster.changed.clear()
        await cluster.refresh()
        plan = make_plan(cluster.world(), run, session.clock.now())
        if plan.end is not None:
            return plan.message if _is_marked(cluster, run) else ""
        await writer.carry_out(run, plan)
        await cluster.wait(_WAIT_SECONDS)
