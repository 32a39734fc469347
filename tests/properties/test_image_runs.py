"""Runs with an image while everything happens in between: no container is stopped whose image is not on its node.

The run may be killed after any write, because each plan is made from what the watches show, which may be old. What is
checked is the model's own record: what kubelet had to stop, and how many containers were away at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta

from hypothesis import example, given, settings
from hypothesis import strategies as st

from crrd.core.api.pod import ContainerKind
from crrd.core.api.reasons import Reason
from crrd.core.api.types import Pin, RecreateState, RequestedContainer, RequestPhase, StatePhase, Status
from crrd.core.rollout.change import ImageChange
from crrd.core.rollout.image.pull import PullMemory, PullPod, PullState
from crrd.core.rollout.image.state import ImageState
from crrd.core.rollout.phases import End
from crrd.core.rollout.plan import Plan, make_plan
from crrd.core.rollout.requests import RunRequest
from crrd.core.rollout.run import Amount, Run
from crrd.core.rollout.state import Member, World
from tests.support.rollouts import (
    START,
    Phases,
    again,
    asked,
    container,
    failed,
    image_actions,
    member,
    run,
    succeeded,
    workload,
)

OLD, NEW, OTHER, BAD = "app:1", "app:2", "app:3", "app:none"
LIMIT, PODS, NODES = 2, 5, ("node-a", "node-b")
RUN = run(image=ImageChange(NEW, (OLD, BAD)), max_unavailable=Amount(LIMIT), max_failures=9)


@dataclass
class Model:
    """The truth, and what the run knows of it."""

    now: int = 1
    made: int = 0
    pods: dict[str, Member] = field(default_factory=dict)  # By UID
    running: dict[str, str] = field(default_factory=dict)  # By UID: the image of the instance that runs
    on_node: set[tuple[str, str]] = field(default_factory=lambda: {(node, OLD) for node in NODES})
    pulls: dict[str, PullPod] = field(default_factory=dict)  # By node
    memory: PullMemory = field(default_factory=PullMemory)
    requests: dict[str, RunRequest] = field(default_factory=dict)
    known: World | None = None
    phases: Phases = field(default_factory=Phases)
    outages: list[str] = field(default_factory=list)  # Pods whose container was stopped without an image on the node
    registry: bool = True  # Whether it has the image
    edited: set[str] = field(default_factory=set)  # Pods to which somebody else has given an image
    of: Run = RUN
    kind: ContainerKind = ContainerKind.REGULAR  # Of the container that gets the image

    def __post_init__(self) -> None:
        for _ in range(PODS):
            self.add()
        never = max(self.pods)
        self.running[never] = ""  # its image cannot be pulled
        self.change(never, image=BAD, container_id="", running=False, ready=False, waiting_reason="ImagePullBackOff")

    def add(self) -> None:
        self.made += 1
        app = container(image=OLD, container_id=f"containerd://{self.made}-1", kind=self.kind)
        pod = member(f"web-{self.made}", app, node=NODES[self.made % 2])
        pod = replace(pod, pod=replace(pod.pod, uid=f"uid-{self.made}"))
        self.pods[pod.pod.uid], self.running[pod.pod.uid] = pod, OLD

    def change(self, uid: str, **changes: object) -> None:
        pod = self.pods[uid]
        app = replace(pod.pod.containers["app"], **changes)  # type: ignore[arg-type]
        ready = app.ready
        self.pods[uid] = replace(pod, ready=ready, pod=replace(pod.pod, containers={"app": app}))

    def image(self, uid: str) -> str:
        return self.pods[uid].pod.containers["app"].image

    # What happens

    def look(self) -> None:
        state = ImageState(tuple(self.memory.seen(each, self.now) for each in self.pulls.values()))
        members, requests = tuple(self.pods.values()), tuple(self.requests.values())
        self.known = World(members, requests, workload(PODS), extra=state)

    def step(self) -> Plan:
        if self.known is None:
            self.look()
        assert self.known is not None
        self.now += 1
        plan = make_plan(self.known, self.of, START + timedelta(seconds=self.now))
        self.phases.saw(plan)
        for row in image_actions(plan).stop:
            if row.request is not None and row.uid in self.pods and self.image(row.uid) != NEW:
                found = self.requests[row.request.request.name]
                self.requests[found.request.name] = replace(found, request=replace(found.request, stopped=True))
        for node in image_actions(plan).pull:
            made = PullPod(f"pull-{node}", f"{node}-{self.now}", "run", node, PullState.PULLING)
            self.pulls.setdefault(node, made)
        for pull in image_actions(plan).drop:
            if self.pulls.get(pull.node, pull).uid == pull.uid:
                self.pulls.pop(pull.node, None)
        for row in image_actions(plan).patch:
            seen = row.member.pod.containers["app"].image if row.member is not None else ""
            if row.uid in self.pods and self.image(row.uid) == seen:
                self.change(row.uid, image=NEW)
        for row in plan.create:
            if row.uid in self.pods and self.of.request_name(row.uid, row.failed) not in self.requests:
                found = asked(self.of, self.pods[row.uid])
                found = again(found, row.request) if row.request is not None else found
                target = self.pods[row.uid].pod.containers["app"].container_id
                wanted = RequestedContainer("app", Pin(target) if target else None, NEW)
                self.requests[found.request.name] = replace(found, request=replace(found.request, containers=(wanted,)))
        return plan

    def kubelet(self) -> None:
        """It stops a container as soon as it sees another image, and starts the next one if the node has the image."""
        for uid, pod in self.pods.items():
            image = self.image(uid)
            if self.running[uid] == image:
                continue
            if (pod.pod.node_name, image) not in self.on_node:
                if uid not in self.edited and self.running[uid]:
                    self.outages.append(pod.pod.name)
                continue
            self.running[uid] = image
            self.change(uid, container_id=f"containerd://{uid}-{self.now}", running=True, ready=True)

    def pull(self) -> None:
        for node, pod in tuple(self.pulls.items()):
            if self.registry:
                self.on_node.add((node, NEW))
                self.pulls[node] = replace(pod, state=PullState.PULLED)
            else:
                self.pulls[node] = replace(pod, state=PullState.RETRYING, message="ErrImagePull")

    def node_daemon(self) -> None:
        for name, found in tuple(self.requests.items()):
            uid = found.request.pod_uid
            pod = self.pods.get(uid)
            if found.request.completed:
                continue
            if pod is None:
                absent = failed(self.of, member("gone"), Reason.POD_GONE)
                status = absent.request.status
            elif found.request.stopped:  # the manager ends it
                status = failed(self.of, pod, Reason.RUN_STOPPED).request.status
            elif self.image(uid) == NEW:
                done = self.running[uid] == NEW and pod.ready
                status = succeeded(self.of, pod).request.status if done else found.request.status
            elif (pod.pod.node_name, NEW) in self.on_node:
                state = RecreateState("app", message="present", reason=Reason.IMAGE_PRESENT)
                status = Status(RequestPhase.RECREATING, (state,))
            else:
                state = RecreateState("app", StatePhase.FAILED, "missing", reason=Reason.IMAGE_MISSING)
                status = Status(RequestPhase.COMPLETED, (state,))
            self.requests[name] = replace(found, request=replace(found.request, status=status))

    def collect(self) -> None:
        """Kubelet removes images that no container uses: one that waits for its pod, if its pull pod is gone."""
        used = {(pod.pod.node_name, self.running[uid]) for uid, pod in self.pods.items()}
        used |= {(node, NEW) for node in self.pulls}
        wanted = {(pod.pod.node_name, self.image(uid)) for uid, pod in self.pods.items()}
        self.on_node &= used | wanted | {(node, OLD) for node in NODES}

    def lose(self) -> None:
        uid = min(self.pods)
        del self.pods[uid], self.running[uid]
        self.add()

    def edit(self) -> None:
        uid = max(self.pods)
        self.edited.add(uid)
        self.on_node.add((self.pods[uid].pod.node_name, OTHER))
        self.change(uid, image=OTHER)

    def registry_fails(self) -> None:
        self.registry = False

    def late(self) -> None:
        self.now += 30


HAPPENINGS: dict[str, Callable[[Model], object]] = {
    "step": Model.step,
    "look": Model.look,
    "kubelet": Model.kubelet,
    "pull": Model.pull,
    "node": Model.node_daemon,
    "collect": Model.collect,
    "lose": Model.lose,
    "edit": Model.edit,
    "registry fails": Model.registry_fails,
    "late": Model.late,
}
OFTEN = ("step", "look", "kubelet", "pull", "node") * 3


@settings(max_examples=200)
def end_of(model: Model) -> End | None:
    """Let everything go well from now on. Return how the run has ended; no container was stopped without its image."""
    end = None
    for _ in range(60):
        model.look()
        end = model.step().end
        if end is not None:
            break
        model.pull()
        model.node_daemon()
        model.kubelet()
        model.late()
    assert model.outages == []
    return end


@given(st.lists(st.sampled_from((*OFTEN, *HAPPENINGS)), max_size=60))
def test_no_container_is_stopped_without_its_image(moves: list[str]) -> None:
    model = Model()
    for move in moves:
        HAPPENINGS[move](model)
        model.kubelet()
        assert model.outages == []
        away = [
            uid
            for uid, running in model.running.items()
            if running not in ("", model.image(uid)) and uid not in model.edited
        ]
        assert len(away) <= LIMIT
    end = end_of(model)
    images = {model.image(uid) for uid in model.pods}
    assert (end is End.DONE and images == {NEW}) or end in (End.DONE, End.FAILED), "or it is reported"


INIT_RUN = run(image=ImageChange(NEW, (OLD, BAD)), whole_pod=True, max_unavailable=Amount(LIMIT), max_failures=9)


@dataclass
class InitModel(Model):
    """The same for an init container, which runs only when its pod starts: the node restarts the pod."""

    of: Run = INIT_RUN
    kind: ContainerKind = ContainerKind.INIT

    def start(self, uid: str) -> None:
        """The pod starts anew."""
        self.running[uid] = self.image(uid)
        at = (START + timedelta(seconds=self.now)).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.change(uid, container_id=f"containerd://{uid}-{self.now}", started_at=at, ready=True, waiting_reason="")

    def change(self, uid: str, **changes: object) -> None:
        """See Model. The API server says when the image was changed."""
        super().change(uid, **changes)
        if "image" in changes:
            at = {"app": START + timedelta(seconds=self.now)}
            self.pods[uid] = replace(self.pods[uid], image_changes=at)

    def kubelet(self) -> None:
        """It tries an init container again that could not run. It does nothing for one that has run."""
        for uid, pod in self.pods.items():
            if not self.running[uid] and (pod.pod.node_name, self.image(uid)) in self.on_node:
                self.start(uid)

    def node_daemon(self) -> None:
        """See Model. A pod that has the image restarts, unless it has done so since its request was created."""
        for found in self.requests.values():
            uid, (wanted,) = found.request.pod_uid, found.request.containers
            if uid not in self.pods or not found.is_open or self.image(uid) != NEW:
                continue
            pod = self.pods[uid].pod
            if wanted.context is not None and wanted.context.container_id == pod.containers["app"].container_id:
                if (pod.node_name, NEW) not in self.on_node:
                    self.outages.append(uid)
                self.now += 1
                self.start(uid)
        super().node_daemon()

    def restart(self) -> None:
        """A pod restarts by itself, for example because its sandbox has died."""
        self.now += 1
        self.start(min(self.pods))

    def node_dies(self) -> None:
        """All open requests end, because their node is down for too long."""
        for name, found in tuple(self.requests.items()):
            if not found.request.completed:
                lost = failed(self.of, self.pods.get(found.request.pod_uid, member("gone")), Reason.NO_ANSWER)
                self.requests[name] = replace(found, request=replace(found.request, status=lost.request.status))

    def expire(self) -> None:
        """All requests that have ended are deleted."""
        self.requests = {name: each for name, each in self.requests.items() if not each.request.completed}


SEEN: dict[str, Callable[[InitModel], object]] = {
    **HAPPENINGS,
    "restart": InitModel.restart,
    "node dies": InitModel.node_dies,
    "expire": InitModel.expire,
}


GIVEN = ["step", "pull", "look", "step", "node", "look", "step"]
"""After these, the first pods have the image, and their requests are open."""


@settings(max_examples=200)
@example([*GIVEN, "node dies", "expire"])
@example([*GIVEN, "node dies", "expire", "restart"])
@given(st.lists(st.sampled_from((*OFTEN, *SEEN, "node dies", "expire", "expire")), max_size=60))
def test_no_pod_keeps_an_image_that_its_init_container_has_not_run(moves: list[str]) -> None:
    """Whatever ends between the change of a pod and its restart, the run is not done before the pod was restarted."""
    model = InitModel()
    for move in moves:
        SEEN[move](model)
        model.kubelet()
        assert model.outages == []
    end = end_of(model)
    assert end in (End.DONE, End.FAILED)
    if end is End.DONE:
        assert set(model.running.values()) == {NEW}
