"""Step 14: a request for another image is a witness. It stops nothing, whatever the pod, the runtime and kubelet do."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crrd.core.api.pod import Pod, PodContainer
from crrd.core.api.reasons import Reason
from crrd.core.api.types import (
    RecreateState,
    Request,
    RequestedContainer,
    RequestPhase,
    StatePhase,
    Status,
    Strategy,
)
from crrd.core.recreate.actions import Decision, EmitEvent, PinContainers, RunHook, StopContainer, WriteStatus
from crrd.core.recreate.image import SHOWN_SECONDS
from crrd.core.recreate.invariants import Rule, check
from crrd.core.recreate.observation import Hook, HookKind, Instance, Observation
from crrd.kubelet.image_hash import hash_of_name_and_image
from crrd.kubelet.restart_rules import RestartPolicy
from crrd.kubelet.runtime_status import ContainerState
from tests.support.worlds import decided, exited, instance, observed, pin, pod, request

NOW = 100.0
OLD, NEW, OTHER = "app:1", "app:2", "app:3"


def asked(status: Status | None = None, **strategy: Any) -> Request:
    wanted = RequestedContainer("app", pin("old"), NEW)
    return request(containers=(wanted,), status=status or Status(), strategy=Strategy(**strategy))


def shown(image: str, container_id: str = "old", *, grace_seconds: int | None = None, **changes: Any) -> Pod:
    """The pod in the API: the image of its spec, and the instance in its status."""
    plain = PodContainer("app", image=image, container_id=f"containerd://{container_id}", running=True, ready=True)
    return replace(pod(replace(plain, **changes)), grace_seconds=grace_seconds)


def one(req: Request, view: Pod, *instances: Instance, now: float = NOW, **changes: Any) -> Decision:
    return decided([req], observed(*instances, pod=view, **changes), now)


def state(decision: Decision) -> RecreateState:
    (write,) = [each for each in decision.actions if isinstance(each, WriteStatus)]
    return write.status.states[0]


def test_the_node_says_that_it_has_the_image_and_waits_for_the_pod() -> None:
    decision = one(asked(), shown(OLD), instance("old"), images={NEW: True})
    assert state(decision) == RecreateState(
        "app", StatePhase.PENDING, "the image app:2 is on the node; waiting until the pod has it"
    )
    assert state(decision).reason is Reason.IMAGE_PRESENT
    present = Status(RequestPhase.RECREATING, (state(decision),))
    again = one(asked(present), shown(OLD), instance("old"))
    assert (again.actions, again.poll_runtime) == ((), False), "the runtime is not asked again"


def test_without_the_image_nothing_is_to_come() -> None:
    decision = one(asked(), shown(OLD), instance("old"), images={NEW: False})
    assert (state(decision).phase, state(decision).reason) == (StatePhase.FAILED, Reason.IMAGE_MISSING)
    assert state(decision).message == "the image app:2 is not on node node-a, and the container was not stopped"


def test_a_pod_that_came_after_the_runtime_was_asked_is_looked_at_again() -> None:
    assert one(asked(), shown(OLD), instance("old")).wake_at == NOW


def test_the_unready_grace_period_comes_first() -> None:
    view = replace(shown(OLD), readiness_gate=True)
    closed = one(asked(unready_grace_seconds=5), view, instance("old"), images={NEW: True})
    assert state(closed) == RecreateState("app")
    req = replace(asked(unready_grace_seconds=5), unready_acquired=True)
    opened = one(req, view, instance("old"), images={NEW: True}, unready_seen={"r1": NOW - 5})
    assert state(opened).reason is Reason.IMAGE_PRESENT


def test_kubelet_gets_its_time() -> None:
    present = RecreateState("app", message="the image is here", reason=Reason.IMAGE_PRESENT)
    req = asked(Status(RequestPhase.RECREATING, (present,)))
    early = one(req, shown(NEW), instance("old", image=OLD), pod_at=NOW)
    assert state(early) == RecreateState("app", StatePhase.RECREATING)
    assert (early.wake_at, early.poll_runtime) == (NOW + SHOWN_SECONDS, True)
    late = one(req, shown(NEW), instance("old", image=OLD), pod_at=NOW - SHOWN_SECONDS)
    assert state(late).message == "the pod has the image app:2; kubelet has not replaced the container yet"
    assert late.poll_runtime


def test_kubelets_words_are_passed_on() -> None:
    waiting = shown(NEW, running=False, ready=False, waiting_reason="ErrImagePull", waiting_message="no such tag")
    decision = one(asked(), waiting, exited("old", image=OLD))
    assert state(decision).message == "ErrImagePull: no such tag"


def test_it_is_done_when_the_next_instance_has_the_image_and_is_ready() -> None:
    view = shown(NEW, "new")
    decision = one(asked(), view, exited("old", image=OLD), instance("new", image=NEW, created_at=2))
    assert state(decision).phase is StatePhase.SUCCEEDED
    unready = one(asked(), shown(NEW, "new", ready=False), instance("new", image=NEW, created_at=2))
    assert state(unready).phase is StatePhase.RECREATING


SPELLED = f"docker.io/library/{NEW}@sha256:{'0123456789abcdef' * 4}"


def respelled(container_id: str, **changes: Any) -> Pod:
    """A pod that had the image, and which a restart by a patch gives another name of it."""
    known = {"image_id": SPELLED.replace(":2@", "@"), "image_names": (NEW, SPELLED)}
    return shown(SPELLED, container_id, **{**known, **changes})


def test_another_name_of_the_image_is_that_image() -> None:
    new = instance("new", image=SPELLED, created_at=2)
    assert state(one(asked(), respelled("new"), exited("old", image=OLD), new)).phase is StatePhase.SUCCEEDED
    hashed = replace(new, image="", hash=hash_of_name_and_image("app", SPELLED))
    decision = one(asked(), respelled("new"), exited("old", hash="1"), hashed, kubelet_minor=36)
    assert state(decision).phase is StatePhase.SUCCEEDED
    before = instance("before", image=NEW, created_at=2)
    assert state(one(asked(), respelled("before"), before)).phase is StatePhase.RECREATING, "kubelet replaces it"


def test_a_digest_that_a_run_has_given_is_not_the_tag_that_the_next_one_gives() -> None:
    """The tag was moved, and an undo gives it back. The pod does not have it before its patch."""
    pinned = instance("old", image=SPELLED)
    decision = one(asked(), respelled("old", image_names=()), pinned, images={NEW: True})
    assert state(decision).reason is Reason.IMAGE_PRESENT


def test_an_instance_of_the_old_image_is_not_the_one() -> None:
    """The old instance has crashed after the patch, and kubelet had the old spec still when it started the next one."""
    decision = one(asked(), shown(NEW, "new"), instance("new", image=OLD, created_at=2))
    assert state(decision).phase is StatePhase.RECREATING


@pytest.mark.parametrize(
    ("minor", "found", "before", "phase"),
    [
        (36, hash_of_name_and_image("app", NEW), "1", StatePhase.SUCCEEDED),
        (None, hash_of_name_and_image("app", NEW), "1", StatePhase.SUCCEEDED),
        (36, hash_of_name_and_image("app", OLD), "1", StatePhase.RECREATING),
        (31, hash_of_name_and_image("app", OLD), "1", StatePhase.RECREATING),
        (30, "2", "1", StatePhase.SUCCEEDED),
        (30, "1", "1", StatePhase.RECREATING),
        (30, "2", None, StatePhase.RECREATING),
    ],
)
def test_where_the_runtime_has_no_name_kubelets_hash_tells(
    minor: int | None, found: str, before: str | None, phase: StatePhase
) -> None:
    """CRI-O and containerd 1.x. Before 1.31 the hash is of the whole container, and only compared with the last one."""
    earlier = [] if before is None else [exited("old", hash=before)]
    new = instance("new", hash=found, created_at=2)
    scene: dict[str, Any] = {
        "kubelet_minor": minor,
        "pod_at": NOW,
        "hashes": {"old": before} if before is not None else {},
    }
    assert state(one(asked(), shown(NEW, "new"), *earlier, new, **scene)).phase is phase


@pytest.mark.parametrize(
    ("number", "found", "phase"),
    [(1, "1", StatePhase.SUCCEEDED), (1, "2", StatePhase.RECREATING), (0, "1", StatePhase.RECREATING)],
)
def test_an_old_kubelet_whose_container_has_crashed_before_it_got_the_image(
    number: int, found: str, phase: StatePhase
) -> None:
    """Kubelet keeps one dead container, so the one of the request is gone. An even older one tells nothing."""
    crashed, new = (
        exited("crashed", hash=found, restart_count=number),
        instance("new", hash="2", restart_count=2, created_at=2),
    )
    scene: dict[str, Any] = {"kubelet_minor": 30, "pod_at": NOW}
    assert state(one(asked(), shown(NEW, "new"), crashed, new, **scene)).phase is phase


AGAIN = instance("new", hash="2", restart_count=2, created_at=2)


@pytest.mark.parametrize(("before", "phase"), [("1", StatePhase.SUCCEEDED), ("2", StatePhase.RECREATING)])
@pytest.mark.parametrize("left", [(), (exited("first", hash="2", restart_count=1),)], ids=["alone", "beside another"])
def test_an_old_kubelet_whose_container_has_ended_once_with_the_image(
    before: str, phase: StatePhase, left: tuple[Instance, ...]
) -> None:
    """Nothing of the instances before is left in the runtime, but this process has seen the one of the request."""
    known: dict[str, Any] = {"kubelet_minor": 30, "pod_at": NOW, "hashes": {"old": before}}
    assert state(one(asked(), shown(NEW, "new"), *left, AGAIN, **known)).phase is phase


@pytest.mark.parametrize(
    ("seconds", "changes", "phase"),
    [
        (30 + 10, {}, StatePhase.SUCCEEDED),
        (29 + 10, {}, StatePhase.RECREATING),
        (30 + 10, {"kubelet_silent_since": 90.0}, StatePhase.RECREATING),
    ],
)
def test_nor_has_this_process_seen_it(seconds: float, changes: dict[str, Any], phase: StatePhase) -> None:
    """It was started after that. Kubelet has had the time to replace a container of the earlier spec."""
    known: dict[str, Any] = {"kubelet_minor": 30, "pod_at": NOW - seconds, **changes}
    assert state(one(asked(), shown(NEW, "new"), AGAIN, **known)).phase is phase


def test_the_hash_is_kubelets() -> None:
    """As kubelet 1.36.2 wrote it on a container (`crictl inspect`, annotation io.kubernetes.container.hash)."""
    assert hash_of_name_and_image("mesh", "localhost/busybox:2") == "265c6fab"


@pytest.mark.parametrize("image", [OLD, OTHER])
def test_a_pod_whose_image_was_put_back_waits_again(image: str) -> None:
    req = asked(Status(RequestPhase.RECREATING, (RecreateState("app", StatePhase.RECREATING),)))
    decision = one(req, shown(image, "new"), instance("new", image=image, created_at=2), images={NEW: True})
    assert (state(decision).phase, state(decision).reason) == (StatePhase.RECREATING, Reason.IMAGE_PRESENT)


def test_a_container_that_may_stay_down_fails_before_it_gets_the_image() -> None:
    decision = one(asked(), shown(OLD, restart_policy=RestartPolicy.NEVER), instance("old"), images={NEW: True})
    assert state(decision).reason is Reason.NOT_RESTARTABLE


def test_the_safety_check_withholds_every_stop_for_such_a_request() -> None:
    scene = observed(instance("old"), pod=shown(OLD))
    observation = Observation(scene.pod, (scene.known(asked(), NOW),), scene.node, NOW)
    stop = StopContainer(asked(), instance("old"), 30.0, 0.0)
    assert {each.rule for each in check(Decision((stop,)), observation)} == {Rule.TARGET}


IMAGES = st.sampled_from((OLD, NEW, OTHER, ""))
STATES = st.sampled_from(
    (
        Status(),
        Status(RequestPhase.PENDING),
        Status(RequestPhase.RECREATING, (RecreateState("app", reason=Reason.IMAGE_PRESENT, message="x"),)),
        Status(RequestPhase.RECREATING, (RecreateState("app", StatePhase.RECREATING),)),
        Status(RequestPhase.RECREATING, (RecreateState("app", StatePhase.RECREATING, is_killed=True),)),
    )
)


@st.composite
def sights(draw: st.DrawFn) -> tuple[Request, Pod, list[Instance], dict[str, Any]]:
    """Any request, pod, instances of its container, and what else is known of the node."""
    old, new, grace = draw(st.sampled_from((None, "running", "exited"))), draw(st.none() | IMAGES), draw(st.booleans())
    hook = Hook(HookKind.EXEC, command=("true",))
    found = [instance("old", image=OLD, hook=hook)] if old == "running" else []
    found += [exited("old", image=OLD, hook=hook)] if old == "exited" else []
    found += [instance("new", image=new, hook=hook, created_at=2)] if new is not None else []
    ready, container_id = draw(st.booleans()), draw(st.sampled_from(("old", "new")))
    view = replace(shown(draw(IMAGES), container_id, ready=ready, running=ready), readiness_gate=grace)
    req = asked(draw(STATES), unready_grace_seconds=5 if grace else None)
    if draw(st.booleans()):
        req = replace(req, containers=(RequestedContainer("app", None, NEW),))  # It had never run
    images = draw(st.dictionaries(st.just(NEW), st.booleans()))
    return req, view, found, {"images": images, "kubelet_minor": draw(st.sampled_from((None, 30, 36)))}


@given(sights())
def test_nothing_is_ever_stopped_and_done_means_the_image(
    sight: tuple[Request, Pod, list[Instance], dict[str, Any]],
) -> None:
    req, view, found, known = sight
    decision = one(req, view, *found, **known)
    assert not [each for each in decision.actions if isinstance(each, RunHook | StopContainer | PinContainers)]
    for write in (each for each in decision.actions if isinstance(each, WriteStatus)):
        if write.status.states[0].phase is StatePhase.SUCCEEDED:
            app = view.containers["app"]
            newest = max(found, key=lambda each: each.created_at)
            assert (app.image, newest.image or NEW, app.ready) == (NEW, NEW, True), "some runtimes do not tell"
            assert app.container_id == newest.pin.container_id


def first(status: Status | None = None) -> Request:
    """Return the request for a container that has never run."""
    return request(containers=(RequestedContainer("app", None, NEW),), status=status or Status())


def test_a_container_that_has_never_run_gets_its_image() -> None:
    """For example because its image cannot be pulled. Kubelet starts the first instance with the next one."""
    refused = shown(OLD, running=False, ready=False, waiting_reason="ImagePullBackOff", waiting_message="no such tag")
    bare = replace(refused, containers={"app": replace(refused.containers["app"], container_id="")})
    present = one(first(), bare, images={NEW: True})
    assert state(present).reason is Reason.IMAGE_PRESENT
    given = first(Status(RequestPhase.RECREATING, (state(present),)))
    held_back = replace(bare, containers={"app": replace(bare.containers["app"], image=NEW)})
    waiting = one(given, held_back)
    assert (state(waiting).phase, state(waiting).message) == (StatePhase.RECREATING, "ImagePullBackOff: no such tag")
    done = one(given, shown(NEW, "new"), instance("new", image=NEW))
    assert state(done).phase is StatePhase.SUCCEEDED
    of_the_old_one = one(given, shown(NEW, "other"), instance("other", image=OLD))
    assert state(of_the_old_one).phase is StatePhase.RECREATING, "it could be pulled meanwhile"


@pytest.mark.parametrize(
    ("minor", "found", "pod_at", "phase"),
    [
        (36, hash_of_name_and_image("app", NEW), NOW, StatePhase.SUCCEEDED),
        (36, hash_of_name_and_image("app", OLD), 0.0, StatePhase.RECREATING),
        (30, "2", NOW - 20, StatePhase.RECREATING),
        (30, "2", NOW - 20 - 10, StatePhase.SUCCEEDED),
    ],
)
def test_the_first_instance_where_the_runtime_has_no_name(
    minor: int, found: str, pod_at: float, phase: StatePhase
) -> None:
    """An older kubelet's hash can be compared with none. It replaces an instance of another image, so it gets time."""
    view = shown(NEW, "new", grace_seconds=20)
    decision = one(first(), view, instance("new", hash=found), kubelet_minor=minor, pod_at=pod_at)
    assert state(decision).phase is phase


def test_a_container_that_kubelet_may_be_stopping_is_not_done_because_it_has_the_image_again() -> None:
    """An undo has set the image back while its old instance was stopped for the other image. It is ready until then."""
    view = shown(NEW, grace_seconds=20)
    kept = instance("old", image=NEW)
    early = one(asked(), view, kept, pod_at=NOW)
    assert (state(early).phase, early.wake_at) == (StatePhase.RECREATING, NOW + 20 + 10)
    assert early.poll_runtime
    for decision in (
        one(asked(), view, kept, pod_at=NOW - 20 - 10),
        one(asked(), replace(view, spec_observed=True), kept, pod_at=NOW),
    ):
        assert (state(decision).phase, state(decision).reason) == (StatePhase.SUCCEEDED, Reason.IMAGE_KEPT)
        assert not any(isinstance(each, EmitEvent) and "was recreated" in each.message for each in decision.actions)
    ended = one(asked(), view, replace(kept, state=ContainerState.EXITED), pod_at=NOW)
    assert ended.wake_at != NOW + 20 + 10, "kubelet starts the next one, as after each stop"
    unready = replace(shown(NEW, ready=False), spec_observed=True)
    assert state(one(asked(), unready, kept, pod_at=NOW)) == RecreateState("app", StatePhase.RECREATING)
