"""The steps of a run with an image: pull, request, patch of the pod; then what kubelet does, and its outcome.

Each step can be recognized from the cluster's objects alone, so a run that was killed after any write continues:

| step | written by | done if |
|---|---|---|
| pull | the run: a pull pod for each node (`pull`) | its container is past the pull |
| request | the run, within all budgets | it exists |
| unready grace | the manager | the node reports ImagePresent |
| patch | the run: the pod's image | the pod has the image |
| restart | kubelet | the node completes the request: the newest instance has the image, and is ready |
| adoption | the run, once (`adoption`) | the workload's template has the image, and its rollout is complete |

The invariant, checked by the property tests: no pod gets the image before the node has it.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from crrd.core.api.reasons import Reason
from crrd.core.rollout.image.controllers import Adoption
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.names import image_operations
from crrd.core.rollout.image.pull import PullPod, PullState
from crrd.core.rollout.kind import Actions, Choice, Prepared
from crrd.core.rollout.phases import RunPhase, Stage
from crrd.core.rollout.rows import Row
from crrd.core.rollout.state import Member
from crrd.core.rollout.waits import Skip, Wait, WaitReason
from crrd.lib import jsonpatch
from crrd.lib.jsonpatch import Operation

BUDGETS_VALID = timedelta(seconds=30)
"""How old a request may be when its pod gets the image, without another look at the budgets."""
_AHEAD = 2
"""How many batches of pods the pulls are ahead of those that have started. A batch are the pods that are under way or
chosen."""


@dataclass(frozen=True, slots=True)
class ImageActions(Actions):
    """What to do now for a run with an image, besides new requests."""

    pull: tuple[str, ...] = ()  # Nodes that get a pull pod
    patch: tuple[Row, ...] = ()  # Pods that get the image
    stop: tuple[Row, ...] = ()  # Pods whose open request ends, because they must not get the image
    drop: tuple[PullPod, ...] = ()  # Pull pods that are not needed any more
    adoption: Adoption | None = None


def prepare_pods(facts: ImageRun, rows: tuple[Row, ...], choice: Choice) -> Prepared:
    """Return what is next for the pods of a run with an image. The parameters are those of `Kind.prepare`."""
    ready, waits, first, workload = list[Row](), dict[str, Wait](), None, facts.world.workload
    for row in choice.chosen:
        if not _is_pulled(facts, row):
            waits[row.uid] = _wait_for_pull(facts, row)
            first = first or row
        elif first is not None and workload is not None and workload.in_order:
            waits[row.uid] = Wait.of(WaitReason.IN_ORDER, pod=first.pod, why=waits[first.uid].why)
        else:
            ready.append(row)
    by_uid, batch = {row.uid: row for row in rows}, len(choice.chosen) + sum(row.stage.under_way for row in rows)
    ahead = [*choice.chosen, *(by_uid[uid] for uid in choice.later)][: _AHEAD * max(1, batch)]
    actions = _actions(facts, rows, ahead, choice.over_budget)
    if not waits or ready or any(row.stage.under_way for row in rows):
        return Prepared(tuple(ready), waits, actions)
    return Prepared((), waits, actions, next(iter(waits.values())), RunPhase.PULLING)


def _actions(facts: ImageRun, rows: tuple[Row, ...], ahead: list[Row], over_budget: Collection[str]) -> ImageActions:
    begun = [row for row in rows if row.stage.under_way and is_present(facts, row) and facts.lacks_image(row)]
    patch = [row for row in begun if _is_pulled(facts, row)]
    starts = {row.node for row in rows if may_start(row) and facts.is_left(row)}
    needed = starts | {row.node for row in rows if row.stage.under_way}  # preStop runs before the image is used
    off = {row.node for row in rows if row.stage is Stage.PUT_OFF}  # A pull there is late because the node is down
    nodes = dict.fromkeys(row.node for row in (*begun, *ahead) if row.node) if facts.change.pulls else {}
    return ImageActions(
        pull=tuple(node for node in nodes if node not in facts.pulls),
        patch=tuple(row for row in patch if row.uid not in over_budget),
        stop=(*failed_and_open(rows), *(row for row in patch if row.uid in over_budget)),
        drop=(
            *facts.stray_pulls,
            *(
                each
                for each in facts.pulls.values()
                if (is_over(each) and each.node not in needed)
                or (each.state is not PullState.PULLED and each.node in off)
            ),
        ),
    )


def patch_of(facts: ImageRun, row: Row) -> tuple[Operation, ...]:
    """Return the JSON patch that gives a pod the image, if it still has the image that was decided on."""
    if row.member is None:
        return ()
    pod = row.member.pod
    before = pod.containers[facts.container].image
    image = image_operations(pod.path_of(facts.container), facts.container, before, facts.image)
    return jsonpatch.test("/metadata/uid", row.uid), *image


def failed_and_open(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return the failed pods with an open request. It keeps the pod unready, and nothing would end it soon."""
    return tuple(row for row in rows if row.stage is Stage.FAILED and row.has_open_request)


def pods_over_budget(
    rows: Iterable[Row], now: datetime, exceeds: Callable[[Member], bool], *, held: bool
) -> Collection[str]:
    """Return the pods (UID) that serve, and for which the budgets are used up by now: see `Kind.over_budget`.

    Those whose request is old, and those that became ready since: at their start they used no budget.
    """
    over_budget = set()
    for row in rows:
        member, created = row.member, row.request.created_at if row.request is not None else None
        if member is None or created is None or not (row.stage.under_way and member.ready):
            continue
        since = member.ready_since
        is_old, became_ready = created <= now - BUDGETS_VALID, since is not None and since >= created  # whole seconds
        if (is_old and (held or exceeds(member))) or (not is_old and became_ready and exceeds(member)):
            over_budget.add(row.uid)
    return over_budget


def is_over(pull: PullPod) -> bool:
    """Whether a pull pod has done its work. One that has failed is kept, because it says why."""
    return pull.state is PullState.PULLED and not pull.deleting


def _is_pulled(facts: ImageRun, row: Row) -> bool:
    """Whether a pull pod holds the image on the pod's node. Without it, kubelet may have removed the image again."""
    return not facts.change.pulls or (row.node in facts.pulls and is_over(facts.pulls[row.node]))


def _wait_for_pull(facts: ImageRun, row: Row) -> Wait:
    pull = facts.pulls.get(row.node)
    message = f": {pull.message}" if pull is not None and pull.message else ""
    command = f"kubectl describe pod {pull.name} -n {facts.run.namespace}" if pull is not None else ""
    return Wait.of(WaitReason.PULLING, command, image=facts.image, node=row.node, message=message)


def is_present(facts: ImageRun, row: Row) -> bool:
    """Whether the node says that it has the image, and that the unready grace period is over."""
    if row.request is None or row.request.request.stopped:  # the manager is about to end it
        return False
    return row.request.request.status.state(facts.container).reason is Reason.IMAGE_PRESENT


def never_adopted(facts: ImageRun, rows: Iterable[Row]) -> str:
    """Return why the workload can never adopt its pods, because one of them cannot get the image; "" if all can.

    A pod whose container has not started yet gets it later.
    """
    found = next((row for row in rows if row.is_odd and row.skip is not Skip.NOT_RUNNING), None)
    why = f"{facts.target} cannot adopt its pods, because pod"
    return f"{why} {found.pod} cannot get the image ({found.wait.why})" if found is not None else ""


def may_start(row: Row) -> bool:
    """Whether a pod has not started."""
    return row.stage in (Stage.WAITING, Stage.PUT_OFF)
