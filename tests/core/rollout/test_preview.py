"""A dry run's batches."""

from dataclasses import replace

from crrd.core.api.pod import ContainerKind
from crrd.core.api.reasons import Reason
from crrd.core.api.time import rfc3339
from crrd.core.recreate.hazards import Hazard
from crrd.core.rollout.change import ImageChange
from crrd.core.rollout.phases import End, RunPhase
from crrd.core.rollout.preview import make_preview
from crrd.core.rollout.progress import Progress
from crrd.core.rollout.run import Amount, Target
from crrd.core.rollout.state import World
from crrd.core.rollout.waits import Skip
from tests.support.rollouts import (
    AFTER,
    NOW,
    START,
    asked,
    budget,
    container,
    failed,
    member,
    members,
    recreated,
    run,
    stages,
    succeeded,
    workload,
)


def names(world: World, **options: object) -> list[list[str]]:
    return [[row.pod for row in batch] for batch in make_preview(world, run(**options), NOW).batches]  # type: ignore[arg-type]


def test_batch_by_batch() -> None:
    assert names(World(members(3))) == [["web-0"], ["web-1"], ["web-2"]]
    assert names(World(members(3)), max_unavailable=Amount(2)) == [["web-0", "web-1"], ["web-2"]]
    ordered = World(members(3), workload=workload(3, in_order=True))
    assert names(ordered) == [["web-2"], ["web-1"], ["web-0"]]
    assert names(World(members(4), budgets=(budget(2),)), max_unavailable=Amount(4)) == [
        ["web-0", "web-1"],
        ["web-2", "web-3"],
    ]


def test_a_pause_between_steps_takes_no_time_and_what_a_user_allows_is_asked() -> None:
    """The first step is over. A run that has only paused goes on by itself."""
    first, *others = members(3)
    for pause, parts in ((60, ()), (None, (0,))):
        of = run(steps=(1,), step_pause=pause)
        found = make_preview(World((recreated(first), *others), (succeeded(of, first),)), of, NOW)
        assert [[row.pod for row in batch] for batch in found.batches] == [["web-1"], ["web-2"]]
        assert (found.parts, found.pause) == (parts, pause)


def test_a_pause_takes_no_time_although_the_run_begins_at_this_moment() -> None:
    of = run(steps=(1,), step_pause=60)
    found = make_preview(World(members(3)), of, START)
    assert [[row.pod for row in batch] for batch in found.batches] == [["web-0"], ["web-1"], ["web-2"]]


def test_a_user_is_asked_after_each_step() -> None:
    found = make_preview(World(members(4)), run(steps=(1, 2), step_pause=None), NOW)
    assert ([len(batch) for batch in found.batches], found.parts) == ([1, 1, 1, 1], (1, 2))
    by_themselves = (*map(recreated, members(2)), *members(4)[2:])
    found = make_preview(World(by_themselves), run(steps=(1, 2), step_pause=None), NOW)
    assert ([len(batch) for batch in found.batches], found.parts) == ([1, 1], (0, 0)), "also if they are over already"


def test_a_run_that_was_halted_has_no_batches_unless_its_user_overrules_that() -> None:
    first, *others = members(3)
    of = run(steps=(1,), step_pause=0, judge=60)
    no = Progress(rfc3339(NOW), "host/1", RunPhase.OVER, 1, 3, "web-0 has become unready again", end=End.HALTED)
    world = World((recreated(first), *others), (replace(succeeded(of, first), progress=no),))
    found = make_preview(world, of, NOW)
    assert (found.batches, found.later, found.judge) == ((), (), 0)
    assert found.stopped.why == "the judgement of step 1 of 2 is no: web-0 has become unready again; 2 left"
    found = make_preview(world, of, NOW, overrules=True)
    assert [[row.pod for row in batch] for batch in found.batches] == [["web-1"], ["web-2"]]
    assert (found.stopped.why, found.judge) == ("", 60)


def test_pods_that_a_kubelet_may_leave_down() -> None:
    proxy = container("proxy", kind=ContainerKind.SIDECAR, startup_probe=True)
    pods = (
        member("web-0", container(), proxy),
        member("web-1", container(), proxy, node="node-b"),
        member("web-2", container(), replace(proxy, startup_probe=False)),
        member("web-3", container(), container("side"), proxy),
        member("web-4", container(running=False), proxy),
    )
    world = World(pods, kubelets={"node-a": "v1.35.3", "node-b": "v1.35.4"})
    warning = Hazard.MAY_STAY_DOWN.say(kubelet="v1.35.3")
    assert make_preview(world, run(), NOW).warnings == {warning: ("web-0",)}
    both = make_preview(world, run("app", "side"), NOW).warnings
    assert both == {warning: ("web-0", "web-3")}, "another regular container that runs on prevents it"
    assert make_preview(world, run("proxy"), NOW).warnings == {}


def test_containers_that_a_kubelet_may_kill_while_they_start() -> None:
    probed = container(startup_probe=True, liveness_probe=True)
    pods = (
        member("web-0", probed, container("side")),
        member("web-1", replace(probed, liveness_probe=False)),
        member("web-2", replace(probed, startup_probe=False)),
        member("web-3", probed, node="node-b"),
    )
    world = World(pods, kubelets={"node-a": "v1.36.2", "node-b": "v1.34.9"})
    warning = Hazard.EARLY_LIVENESS.say(kubelet="v1.36.2", container="app")
    assert make_preview(world, run(), NOW).warnings == {warning: ("web-0",)}
    assert make_preview(world, run("side"), NOW).warnings == {}, "a container that is not restarted"


def test_pods_whose_image_is_pulled_again() -> None:
    pods = (
        member("web-0", container(pulls_image=True), container("side", pulls_image=True)),
        member("web-1", container(), container("side", pulls_image=True)),
        member("web-2", container(pulls_image=True, running=False)),
    )
    warning = Hazard.PULLS_IMAGE.say(container="app")
    assert make_preview(World(pods), run(), NOW).warnings == {warning: ("web-0",)}, (
        "the image of web-1 and web-2 is not pulled, because their container app is not restarted"
    )
    side = Hazard.PULLS_IMAGE.say(container="side")
    both = make_preview(World(pods), run("app", "side"), NOW).warnings
    assert both == {warning: ("web-0",), side: ("web-0", "web-1")}


def test_a_group_that_is_replaced_if_that_is_allowed() -> None:
    (one,) = members(1)
    grouped = replace(one, pod=replace(one.pod, group="LeaderWorkerSet"))
    for of in (run(), run(image=ImageChange("app:2", pulls=False))):
        shown = make_preview(World((grouped,)), of, NOW)
        assert (shown.batches, [row.skip for row in shown.plan.rows]) == ((), [Skip.RESTARTS_GROUP])
        allowed = replace(of, options=replace(of.options, allow_pod_restart=True))
        warning = Hazard.REPLACES_GROUP.say(container="app", owner="LeaderWorkerSet")
        assert make_preview(World((grouped,)), allowed, NOW).warnings == {warning: ("web-0",)}


def test_what_is_unready_is_ready_once_it_is_recreated() -> None:
    one, two = members(2)
    assert names(World((replace(one, ready=False), two))) == [["web-0"], ["web-1"]]


def test_what_is_ready_for_long_is_not_waited_for_here() -> None:
    assert names(World(members(2)), min_ready=3600) == [["web-0"], ["web-1"]]
    fresh = tuple(replace(each, ready_since=NOW) for each in members(2))
    assert names(World(fresh), min_ready=3600) == [["web-0"], ["web-1"]]


def test_what_is_unready_and_in_no_batch_stays_so() -> None:
    one, two = members(2)
    lost = replace(member("lost", container(running=False)), ready=False)
    found = make_preview(World((replace(one, ready=False), two, lost)), run(), NOW)
    assert [[row.pod for row in batch] for batch in found.batches] == [["web-0"]]
    assert found.stopped.why == "1 pod is unready, the limit is 1: lost"


def test_it_says_where_it_would_stop() -> None:
    world = World(members(2), budgets=(budget(0),))
    found = make_preview(world, run(), NOW)
    assert (found.batches, found.stopped.why) == ((), "PodDisruptionBudget guard allows no disruption now")
    assert found.stopped.command == "kubectl describe pdb guard -n default"
    assert [[row.pod for row in batch] for batch in found.later] == [["web-0"], ["web-1"]]
    assert make_preview(replace(world, aborted=frozenset({"run"})), run(), NOW).stopped.why == "the run was aborted"


def test_a_blocked_run_shows_the_batches_that_follow() -> None:
    one, two, three = members(3)
    lost = replace(member("lost", container(running=False)), ready=False)
    other = asked(run(name="other", started=AFTER, target=Target("pod/web-2")), three)
    for world in (
        World((one, two, lost)),
        World((one, two), workload=workload(3, rolling="1 of 3 pods are updated")),
        World((one, two), (other,), budgets=(budget(0),), workload=workload(2)),
    ):
        found = make_preview(world, run(), NOW)
        assert (found.batches, bool(found.stopped.why)) == ((), True)
        assert [[row.pod for row in batch] for batch in found.later] == [["web-0"], ["web-1"]]
    ordered = World((one, two, lost), workload=workload(3, in_order=True))
    assert [[row.pod for row in batch] for batch in make_preview(ordered, run(), NOW).later] == [["web-1"], ["web-0"]]
    of = run(max_unavailable=Amount(2))
    begun = World((recreated(one), two, three), (succeeded(of, one),), budgets=(budget(0),))
    assert [[row.pod for row in batch] for batch in make_preview(begun, of, NOW).later] == [["web-1", "web-2"]]


def test_what_follows_the_end_of_a_run_is_not_shown() -> None:
    one, two = members(2)
    rival, of = run(name="rival"), run(started=AFTER)
    found = make_preview(World((one, two), (asked(rival, one),)), of, NOW)
    assert (found.batches, found.later) == ((), ())
    assert found.stopped.why == "run rival on deployment.apps/web started first: wait for it, or abort it"


def test_it_says_after_which_batch_somebody_is_asked() -> None:
    found = make_preview(World(members(4)), run(first=2), NOW)
    assert (len(found.batches), found.parts, found.stopped.why) == (4, (2,), "")
    assert make_preview(World(members(4)), run(), NOW).parts == ()


def test_it_says_after_which_batches_a_step_is_over() -> None:
    assert make_preview(World(members(4)), run(steps=(1, 2), step_pause=0), NOW).parts == (1, 2)


def test_the_rest_of_one_that_has_begun() -> None:
    one, two, three, four = members(4)
    of = run()
    world = World((recreated(one), replace(two, ready=False), three, four), (succeeded(of, one), asked(of, two)))
    assert names(world) == [["web-2"], ["web-3"]], "what is under way ends first"
    assert names(world, max_unavailable=Amount(2)) == [["web-2"], ["web-3"]], "beside what is under way, then after it"
    found = make_preview(replace(world, members=world.members[:2]), of, NOW)
    assert (found.batches, found.stopped.why) == ((), "")
    other = asked(run(name="other", started=AFTER, target=Target("pod/web-2")), three)
    found = make_preview(World((three,), (other,)), of, NOW)
    assert (found.batches, found.stopped.why) == ((), "another request for this pod is in progress")


def test_a_container_that_was_removed_since_its_request_is_not_said_to_be_stale() -> None:
    of, pod = run(stale=True), member("web-0", container("side"))
    world = World((pod,), (failed(of, pod, Reason.DEADLINE),), down=frozenset({"node-a"}))
    found = make_preview(world, of, NOW)
    assert (stages(found.plan), found.stale) == ({"web-0": "put off"}, ())


def test_what_is_left_out_is_in_no_batch() -> None:
    world = World((*members(1), member("other", container("side"))))
    found = make_preview(world, run(), NOW)
    assert len(found.batches) == 1
    assert [row.wait.why for row in found.plan.rows if row.skip] == ["container app not found in the pod"]
