"""`abort`: ends a run, so that no process begins more pods of it."""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from crrd.core.rollout.limits import Times
from crrd.core.rollout.overview import run_status
from crrd.core.rollout.phases import End
from crrd.core.rollout.requests import RunRequest, creator_of, longest_lived, newest_run
from crrd.core.rollout.run import Run
from crrd.kube.resources import REQUESTS
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, GoneError
from crrd.rollout.creator import line_about
from crrd.rollout.image.abort import Parts, abort_image, abort_pulls
from crrd.rollout.kinds import cluster_of, make_writer
from crrd.rollout.remedies import FLAGS
from crrd.rollout.runner import CLEAN_UP_SECONDS, Runner
from crrd.rollout.session import Session
from crrd.rollout.status import is_gone


async def abort(session: Session) -> int:
    """Abort a run: begin no more pods of it. Return the exit code.

    One request must be kept, because its annotation records the abort. Without it, a process that has not read it
    would start the run again. If no request has started, the oldest is kept, and it may still be served.
    """
    name = session.command.run_name
    try:
        requests = sorted(await session.requests_of(name), key=lambda each: each.age)
    except ConfigurationError:
        if not await abort_pulls(session, "has no request", "; a process that still carries it out creates them again"):
            raise
        return 0
    run, open_requests = newest_run(requests), [each for each in requests if each.is_open]
    with suppress(ApiUnavailableError):  # then it is not known whose run it is
        if line := await line_about(session.client, creator_of(requests), name, run):
            session.display.print_line(line)
    end = run_status(run, requests, session.clock.now(), is_gone).end
    ended = end if end in (End.DONE, End.ABORTED) and not open_requests else None
    if run.options.patch and end is End.ABORTED:
        ended = None  # kubelet may have found only since then that it cannot start a container
    if run.options.image is not None:
        cluster, writer = partial(cluster_of, session, run), partial(make_writer, session.client, clock=session.clock)
        return await abort_image(session, run, requests, ended, Parts(cluster, writer))
    if ended is not None:
        raise ConfigurationError(f"run {name} has already ended ({ended.word}), so there is nothing to abort")
    deletable = [each.request for each in open_requests if not each.started]
    # The process of the run must see the abort before requests end. One request is kept.
    kept_one = longest_lived([each for each in requests if each.request not in deletable] or requests[:1])
    kept = kept_one.request
    if not kept.aborted and not kept_one.on_pod:
        await session.record_abort(kept_one)
    await _record_on_pods(session, requests)
    deleted = 0
    for request in deletable:
        if request.name != kept.name:
            with suppress(GoneError):
                await session.client.delete(REQUESTS, session.namespace, request.name, uid=request.uid)
                deleted += 1
    left = len(open_requests) - len(deletable)
    rest = f"; {left} in progress will finish" if left else ""
    if kept in deletable:
        rest = f"; request {kept.name} is kept to record the abort, and may still restart pod {kept.pod_name}"
    session.display.print_line(f"run {name} aborted, pending requests deleted: {deleted}{rest}")
    if not run.options.patch or not (problem := await _finish(session, run)):
        return 0
    session.display.print_line(f"the pods in progress could not be watched: {problem}")
    return End.FAILED.exit_code


async def _record_on_pods(session: Session, requests: Iterable[RunRequest]) -> None:
    """Record the abort on all pods of a run by patches. One may be deleted, and what is recorded on it with it."""
    for each in requests:
        if each.on_pod and not each.request.aborted:
            with suppress(GoneError):
                await session.record_abort(each)


async def _finish(session: Session, run: Run) -> str:
    """Wait until kubelet has restarted what the run has patched, or give it its image back. Return the problem, or "".

    A process of the run does the same, but there may be none.
    """
    try:
        async with await cluster_of(session, run) as cluster:
            writer = make_writer(session.client, cluster, run, session.display, session.clock)
            parts = session.client, cluster, session.clock, session.display, writer
            runner = Runner(*parts, times=Times(), remedies=FLAGS)
            return await runner.finish(run, await runner.run(run), CLEAN_UP_SECONDS)
    except (ConfigurationError, ApiRefusedError, ApiUnavailableError) as error:  # for example, its target was deleted
        return str(error)
