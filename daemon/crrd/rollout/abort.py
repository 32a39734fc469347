"""`abort`: ends a run, so that no process begins more pods of it, and no controller stays held for it."""

import asyncio
from collections.abc import Collection
from contextlib import suppress

from crrd.core.api.time import rfc3339
from crrd.core.api.types import ANNOTATION_ABORTED
from crrd.core.rollout.adoption import is_held
from crrd.core.rollout.image_report import image_report
from crrd.core.rollout.plan import End, make_plan
from crrd.core.rollout.requests import RunRequest, creator_of, newest_run
from crrd.core.rollout.run import Run
from crrd.kube.resources import REQUESTS
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, GoneError
from crrd.rollout.clean_up import CleanUp, unknown_holder
from crrd.rollout.cluster import Cluster
from crrd.rollout.creator import line_about
from crrd.rollout.image_writer import ImageWriter, delete_pull_pods
from crrd.rollout.session import EXIT_FAILED, Session
from crrd.rollout.status import status_of

_ADOPTION_SECONDS = 60.0  # Time limit for finishing an adoption, which usually takes two seconds
_WAIT_SECONDS = 1.0


async def abort(session: Session) -> int:
    """Abort a run: begin no more pods of it. Return the exit code.

    One request must be kept, because its annotation records the abort. Without it, a process that has not read it
    would start the run again. If no request has started, the oldest is kept, and it may still be served. Requests for
    another image are all kept, and the manager ends those whose pods do not have it.
    """
    name = session.command.run_name
    try:
        requests = sorted(await session.requests_of(name), key=lambda each: each.age)
    except ConfigurationError:
        if not await delete_pull_pods(session.client, session.namespace, name):
            raise
        session.display.print_line(f"run {name} has started no pod, so only its pull pods were deleted")
        return 0
    run = newest_run(requests)
    with suppress(ApiUnavailableError):  # then it is not known whose run it is
        if line := await line_about(session.client, creator_of(requests), name, run):
            session.display.print_line(line)
    of_image = run.options.image is not None
    open_requests = [each for each in requests if not (each.request.completed or each.request.stopped)]
    if (end := await _end_of(session, run, open_requests)) is not None:
        if not of_image or not await delete_pull_pods(session.client, session.namespace, name):
            raise ConfigurationError(f"run {name} has already ended ({end}), so there is nothing to abort")
        session.display.print_line(f"run {name} has already ended ({end}), so only its pull pods were deleted")
        return 0
    deletable = [] if of_image else [each.request for each in open_requests if not each.started]
    # The process of the run must see the abort before requests end. The newest request lives longest.
    kept = next((each.request for each in reversed(requests) if each.request not in deletable), requests[0].request)
    if not kept.aborted:
        patch = {"metadata": {"annotations": {ANNOTATION_ABORTED: rfc3339(session.clock.now())}}}
        await session.client.merge_patch(REQUESTS, session.namespace, kept.name, patch)
    if of_image:
        return await _abort_image(session, run)
    ended = 0
    for request in deletable:
        if request.name != kept.name:
            with suppress(GoneError):
                await session.client.delete(REQUESTS, session.namespace, request.name, uid=request.uid)
                ended += 1
    rest = _in_progress(len(open_requests) - len(deletable))
    if kept in deletable:
        rest = f"; request {kept.name} is kept to record the abort, and may still restart pod {kept.pod_name}"
    session.display.print_line(f"run {name} aborted, pending requests deleted: {ended}{rest}")
    return 0


async def _abort_image(session: Session, run: Run) -> int:
    """Clean up after a run with an image that is aborted. Whatever fails, the rest needs other rights."""
    clean_up = CleanUp(session.client, run, session.display)
    left = await clean_up.finish()
    released, adopted = await _end_adoption(session, run)
    again = f"; give the command again, because {left}" if left else ""
    rest = _in_progress(len(clean_up.open - clean_up.ended))
    ended = f"pending requests ended: {len(clean_up.ended)}"
    session.display.print_line(f"run {run.name} aborted, {ended}{rest}{adopted}{again}")
    return 0 if released and not left else EXIT_FAILED


def _in_progress(count: int) -> str:
    return f"; {count} in progress will finish" if count else ""


async def _end_adoption(session: Session, run: Run) -> tuple[bool, str]:
    """Finish the adoption if the run holds the controller of its workload, because this replaces no pod.

    Return whether the controller is not held any more, and the rest of a sentence about it. A process of the run does
    the same.
    """
    if run.options.image is None or not run.options.image.adopt:
        return True, ""
    try:
        async with await session.cluster_of(run) as cluster:
            if not is_held(cluster.world(), run):
                return True, ""
            problem = ""
            try:
                async with asyncio.timeout(_ADOPTION_SECONDS):
                    problem = await _adopt(session, run, cluster)
            except (ConfigurationError, ApiRefusedError, ApiUnavailableError, TimeoutError) as error:
                problem = str(error) or f"the adoption has not ended within {_ADOPTION_SECONDS:.0f}s"
            world = cluster.world()
            sentences = filter(None, (problem, image_report(world, run)))
            return not is_held(world, run), "".join(f"; {each}" for each in sentences)
    except (ConfigurationError, ApiRefusedError, ApiUnavailableError) as error:  # e.g. the target was deleted
        return False, f"; {unknown_holder(run, error)}"


async def _adopt(session: Session, run: Run, cluster: Cluster) -> str:
    """Carry out the steps of the adoption. Return why it cannot go on, "" if it is over."""
    writer = ImageWriter(session.client, cluster, cluster.images) if cluster.images is not None else None
    while writer is not None:
        cluster.changed.clear()
        await cluster.refresh()
        plan = make_plan(cluster.world(), run, session.clock.now())
        if plan.end is not None:
            return plan.message if is_held(cluster.world(), run) else ""
        await writer.carry_out(run, plan)
        await cluster.wait(_WAIT_SECONDS)
    return ""


async def _end_of(session: Session, run: Run, open_requests: Collection[RunRequest]) -> End | None:
    """Return how a run has ended, None if there is something to abort: it goes on, or holds a controller.

    An abort that was killed may have left requests for another image.
    """
    with suppress(ConfigurationError, ApiRefusedError):  # the target was deleted, or a right is missing
        async with await session.cluster_of(run) as cluster:
            end = (await status_of(session, run, cluster))[1].end
            left = end is End.ABORTED and open_requests and run.options.image is not None
            if end in (End.DONE, End.ABORTED) and not left and not is_held(cluster.world(), run):
                return end
    return None
