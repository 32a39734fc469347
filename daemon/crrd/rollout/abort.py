"""`abort`: ends a run, so that no process begins more pods of it."""

from contextlib import suppress

from crrd.core.api.time import rfc3339
from crrd.core.api.types import StatePhase
from crrd.core.rollout.plan import End
from crrd.core.rollout.requests import RunRequest, newest_run
from crrd.core.rollout.run import ANNOTATION_ABORTED, Run
from crrd.kube.resources import REQUESTS
from crrd.lib.errors import ApiRefusedError, ConfigurationError, GoneError
from crrd.rollout.image_writer import delete_pull_pods
from crrd.rollout.session import Session
from crrd.rollout.status import status_of


async def abort(session: Session) -> int:
    """Abort a run: begin no more pods of it. Return the exit code.

    One request must be kept, because its annotation records the abort. Without it, a process that has not read it
    would start the run again. If no request has started, the oldest is kept, and it may still be served.
    """
    name = session.command.run_name
    requests = sorted(await session.requests_of(name), key=lambda each: each.age)
    await _check_not_over(session, newest_run(requests))
    open_requests = [each.request for each in requests if not each.request.completed]
    waiting = [each.request for each in requests if not each.request.completed and not _has_begun(each)]
    under_way = len(open_requests) - len(waiting)
    # The process of the run must see the abort before requests are deleted. The newest request lives longest.
    kept = next((each.request for each in reversed(requests) if each.request not in waiting), requests[0].request)
    patch = {"metadata": {"annotations": {ANNOTATION_ABORTED: rfc3339(session.clock.now())}}}
    await session.client.merge_patch(REQUESTS, session.namespace, kept.name, patch)
    if newest_run(requests).options.image is not None:
        await delete_pull_pods(session.client, session.namespace, name)
    deleted = 0
    for request in waiting:
        if request.name != kept.name:
            with suppress(GoneError):
                await session.client.delete(REQUESTS, session.namespace, request.name, uid=request.uid)
                deleted += 1
    rest = f"; {under_way} in progress will finish" if under_way else ""
    if kept in waiting:
        still = "keeps" if kept.for_image else "may still restart"
        until = " unready until its deadline at the latest" if kept.for_image else ""
        rest = f"; request {kept.name} is kept to record the abort, and {still} pod {kept.pod_name}{until}"
    session.display.print_line(f"run {name} aborted, pending requests deleted: {deleted}{rest}")
    return 0


def _has_begun(asked: RunRequest) -> bool:
    """Whether the request's pod is restarted anyway: its container is being stopped, or the pod has the image."""
    if not asked.request.for_image:
        return asked.started
    return any(state.phase is StatePhase.RECREATING for state in asked.request.status.states)


async def _check_not_over(session: Session, run: Run) -> None:
    """Raise ConfigurationError if a run is done or aborted."""
    end = None
    with suppress(ConfigurationError, ApiRefusedError):  # the target was deleted, or a right is missing
        async with await session.cluster_of(run) as cluster:
            end = (await status_of(session, run, cluster))[1].end
    if end in (End.DONE, End.ABORTED):
        raise ConfigurationError(f"run {run.name} has already ended ({end}), so there is nothing to abort")
