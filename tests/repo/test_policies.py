"""Who may write what: the policies' and the CRD's rules on the rendered objects, as a table of (who, what, allowed)."""

import copy
from typing import Any

import pytest

from crrd.core.api import types as model
from crrd.core.rollout.run import ANNOTATION_RUN, LABEL_RUN
from crrd.core.rollout.run_limits import ANNOTATION_LIMITS
from tests.support.manifests import needs_kubectl, one, rendered
from tests.support.policies import (
    Change,
    Rules,
    Who,
    Write,
    annotated,
    no_finalizer,
    transition_refused,
    without,
)

pytestmark = needs_kubectl
Json = dict[str, Any]

USER, ROOT = Who("jane"), Who("root", ("system:masters",))
PATCHER = Who("pat", bound=("crrd-recreate-image",))  # May patch pods
ROBOT = Who.service_account("kube-system", "ttl-after-finished-controller")  # The garbage collector may patch all
KRUISE = Who.service_account("kruise-system", "kruise-manager")
WORLDS = {
    "default": ("default", ""),
    "node elsewhere": ("node", "elsewhere"),
    "manager elsewhere": ("manager", "there"),
    "beside": ("overlays/beside-openkruise", ""),
    "beside elsewhere": ("overlays/beside-openkruise", "elsewhere"),
}
"""Name -> a folder, and the namespace that an overlay gives it."""


def objects_of(world: str) -> list[Json]:
    """A part that is rendered elsewhere comes with the other parts as they are."""
    folder, namespace = WORLDS[world]
    objects = rendered(folder, namespace)
    if world == "node elsewhere":
        objects = objects + rendered("manager") + rendered("requests")
    if world == "manager elsewhere":
        objects = objects + rendered("node") + rendered("requests")
    return list(objects)


def rules_of(world: str) -> Rules:
    return Rules([*objects_of(world), *rendered("base")])


def node(world: str, name: str = "worker-1") -> Who:
    return Who.service_account(
        "elsewhere" if "elsewhere" in world and "manager" not in world else "crrd-node", "crrd-node", name
    )


def manager(world: str) -> Who:
    if "beside" in world:
        return KRUISE
    return Who.service_account("there" if world == "manager elsewhere" else "crrd-system", "crrd-manager")


LABELS = {
    model.LABEL_POD_NAME: "web",
    model.LABEL_POD_UID: "u1",
    model.LABEL_NODE_NAME: "worker-1",
    model.LABEL_ACTIVE: "true",
}


def request() -> Json:
    return {
        "apiVersion": model.API_VERSION,
        "kind": model.KIND,
        "metadata": {
            "name": "one",
            "namespace": "shop",
            "labels": dict(LABELS),
            "annotations": {model.ANNOTATION_REQUESTED_BY: "jane"},
            "finalizers": [model.FINALIZER],
        },
        "spec": {
            "podName": "web",
            "containers": [{"name": "app", "statusContext": {"containerID": "containerd://a1", "restartCount": 0}}],
        },
        "status": {"phase": "Recreating"},
    }


def changed(change: Change) -> Json:
    found = request()
    change(found)
    return found


def updated(change: Change, subresource: str = "", old: Json | None = None) -> Write:
    old = request() if old is None else old
    new = copy.deepcopy(old)
    change(new)
    return Write(old, new, subresource)


def completed(found: Json) -> None:
    found["status"] = {"phase": "Completed"}


def labelled(found: Json) -> None:
    found["metadata"]["labels"]["team"] = "blue"


def with_label(key: str, value: str) -> Change:
    return lambda found: found["metadata"]["labels"].update({key: value})


def without_context(found: Json) -> None:
    del found["spec"]["containers"][0]["statusContext"]


def with_image(active: str) -> Change:
    def change(found: Json) -> None:
        found["spec"]["containers"][0]["image"] = "app:2"
        found["metadata"]["labels"][model.LABEL_ACTIVE] = active

    return change


def never_ran(found: Json) -> None:
    without_context(found)
    by_patcher(with_image("image"))(found)


def other_spec(found: Json) -> None:
    found["spec"]["podName"] = "db"


def created(change: Change) -> Write:
    new = request()
    change(new)
    return Write(None, new)


def by_patcher(change: Change) -> Change:
    def both(found: Json) -> None:
        change(found)
        annotated(BY, PATCHER.name)(found)

    return both


PINNED, MARK, BY = model.ANNOTATION_PINNED, model.ANNOTATION_UNREADY_ACQUIRED, model.ANNOTATION_REQUESTED_BY
FOR_IMAGE = changed(with_image("image"))
WRITES: dict[str, tuple[Write, str]] = {
    "status": (updated(completed, "status"), "node manager root"),
    "pin": (updated(annotated(PINNED)), "node root"),
    "pin taken off": (updated(without("annotations", PINNED), old=changed(annotated(PINNED))), "node root"),
    "mark": (updated(annotated(MARK)), "manager root"),
    "mark moved": (updated(annotated(MARK, "later"), old=changed(annotated(MARK))), "manager root"),
    "mark taken off": (updated(without("annotations", MARK), old=changed(annotated(MARK))), "manager root"),
    "other pod": (updated(with_label(model.LABEL_POD_UID, "u2")), "manager user robot root"),
    "other pod name": (updated(with_label(model.LABEL_POD_NAME, "db")), "manager user robot root"),
    "other node": (updated(with_label(model.LABEL_NODE_NAME, "worker-9")), "manager user robot root"),
    "node taken off": (updated(without("labels", model.LABEL_NODE_NAME)), "manager user robot root"),
    "other name": (updated(annotated(BY, "joe")), "manager root"),
    "name taken off": (updated(without("annotations", BY)), "manager root"),
    "active taken off": (updated(without("labels", model.LABEL_ACTIVE)), "manager root"),
    "active set again": (
        updated(with_label(model.LABEL_ACTIVE, "true"), old=changed(without("labels", model.LABEL_ACTIVE))),
        "manager root",
    ),
    "active changed for older daemons": (
        updated(with_label(model.LABEL_ACTIVE, "true"), old=changed(with_image("image"))),
        "manager root",
    ),
    "finalizer taken off": (updated(no_finalizer), "manager user robot root"),
    "own label": (updated(labelled), "manager user robot root"),
    "own annotation": (updated(annotated("team")), "manager user robot root"),
    "other spec": (updated(other_spec), "manager user robot root"),  # the CRD's own rule and admission refuse it
    "nothing": (updated(lambda _: None), "node manager user robot root"),
    "create": (created(lambda _: None), "manager user root"),  # says that jane asked for it
    "create without a name": (created(without("annotations", BY)), "manager user robot root"),
    "create with a pin": (created(annotated(PINNED)), "root"),
    "create with a mark": (created(annotated(MARK)), "manager root"),
    "create in another's name": (created(annotated(BY, "joe")), "manager root"),
    "create without a pod": (created(without("labels", model.LABEL_POD_UID)), "manager user root"),
    "create without a node": (created(without("labels", model.LABEL_NODE_NAME)), "manager user root"),
    "create inactive": (created(with_label(model.LABEL_ACTIVE, "false")), "manager user root"),
    "run": (updated(annotated(ANNOTATION_RUN)), "manager user robot root"),
    "run of an image": (updated(annotated(ANNOTATION_RUN), old=FOR_IMAGE), "manager user robot root"),
    "image of another run": (updated(with_label(LABEL_RUN, "b"), old=FOR_IMAGE), "manager user robot root"),
    "limits": (updated(annotated(ANNOTATION_LIMITS)), "manager user robot root"),
    "limits of an image": (updated(annotated(ANNOTATION_LIMITS), old=FOR_IMAGE), "manager user robot root"),
    "own annotation of an image": (updated(annotated("team"), old=FOR_IMAGE), "manager user robot root"),
    "create with an image": (created(with_image("image")), "manager user root"),
    "create with an image, by who may patch pods": (created(by_patcher(with_image("image"))), "manager patcher root"),
    "create with an image, for older daemons": (created(with_image("true")), "manager user root"),
    "create without a context": (created(without_context), "manager user root"),
    "create with an image, for a container that never ran": (created(never_ran), "manager patcher root"),
}
"""What is written -> who may of those with the plain right to update requests, beside OpenKruise's admission."""
BY_OURS = {
    "other name": "",
    "name taken off": "",
    "mark moved": "",
    "mark taken off": "",
    "other pod": "",
    "other pod name": "",
    "other node": "",
    "node taken off": "",
    "active set again": "",
    "active changed for older daemons": "",
    "create": "user",
    "run": "",
    "run of an image": "",
    "image of another run": "",
    "limits of an image": "patcher root",
    "create with an image": "",
    "create with an image, by who may patch pods": "patcher",
    "create with an image, for older daemons": "",
    "create without a name": "",
    "create with a pin": "",
    "create with a mark": "",
    "create in another's name": "",
    "create without a pod": "",
    "create without a node": "",
    "create inactive": "",
    "create without a context": "",
    "create with an image, for a container that never ran": "patcher",
}
"""Who may where admission is crrd's own, as far as that is another answer."""


def allowed(world: str, what: str) -> set[str]:
    """Whoever takes the daemon's name in a namespace of their own may what any other robot may."""
    names = WRITES[what][1] if "beside" in world else BY_OURS.get(what, WRITES[what][1])
    return set(names.split()) | ({"another namespace's", "patcher"} if "robot" in names else set())


def everybody(world: str) -> dict[str, Who]:
    """The users that write, by the names that the tables use. Their plain rights on requests are the same."""
    return {
        "node": node(world),
        "other node": node(world, "worker-2"),
        "unbound node": node(world, ""),
        "manager": manager(world),
        "user": USER,
        "patcher": PATCHER,
        "robot": ROBOT,
        "root": ROOT,
        "another namespace's": Who.service_account("shop", "crrd-node", "worker-1"),
    }


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("what", WRITES)
def test_who_may_write_what_of_a_request(world: str, what: str) -> None:
    rules = rules_of(world)
    may = {name for name, who in everybody(world).items() if not rules.refused(who, WRITES[what][0])}
    assert may == allowed(world, what)


@pytest.mark.parametrize("what", WRITES)
def test_without_node_daemons_their_account_is_as_any_other(what: str) -> None:
    rules, nodes = Rules(rendered("overlays/lean")), {"node", "other node", "unbound node"}
    may = {name for name, who in everybody("default").items() if not rules.refused(who, WRITES[what][0])}
    assert may - nodes == allowed("default", what) - nodes
    assert may & nodes == (nodes if "robot" in may else set())


@pytest.mark.parametrize("world", WORLDS)
def test_a_node_daemon_keeps_to_its_own_requests(world: str) -> None:
    rules = rules_of(world)
    write = updated(completed, "status")
    assert rules.refused(node(world), write) == ""
    assert rules.refused(node(world, "worker-2"), write) == "the node daemon may only update requests of its own node"
    assert rules.refused(node(world, ""), write).startswith("the token of the node daemon names no node;")
    for change in (labelled, no_finalizer, annotated("team"), other_spec):
        assert rules.refused(node(world), updated(change)).startswith("the node daemon may not change") or (
            "no annotation but" in rules.refused(node(world), updated(change))
        )


def test_a_role_in_one_namespace_makes_nobody_a_daemon() -> None:
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    role: Json = {"kind": "Role", "metadata": {"name": "all", "namespace": "shop"}, "rules": [everything]}
    binding: Json = {
        "kind": "RoleBinding",
        "metadata": {"name": "all", "namespace": "shop"},
        "roleRef": {"kind": "Role", "name": "all"},
        "subjects": [{"kind": "User", "name": "jane"}],
    }
    rules = Rules([*rendered("default"), role, binding])
    assert rules.refused(USER, updated(completed, "status"))
    for each in (role, binding):
        each["kind"] = f"Cluster{each['kind']}"
        each["metadata"].pop("namespace")
    binding["roleRef"]["kind"] = "ClusterRole"
    assert not rules.refused(USER, updated(completed, "status"))
    assert not rules.refused(USER, updated(annotated(PINNED)))


def ended(phase: str, *states: str, **fields: Any) -> Json:
    """A request of which `states` are (name, phase) as text."""
    found = [dict(zip(("name", "phase"), state.split(), strict=False)) for state in states]
    return {**request(), "status": {"phase": phase, "containerRecreateStates": found, **fields}}


AT = "2026-01-01T00:00:00Z"
MOVES: dict[str, tuple[Json, Json, str]] = {
    "begins": (request(), ended("Recreating", "app Recreating"), ""),
    "ends": (ended("Recreating", "app Recreating"), ended("Completed", "app Succeeded", completionTime=AT), ""),
    "fails one": (ended("Recreating", "app Pending"), ended("Recreating", "app Failed"), ""),
    "more states": (ended("Recreating", "a Failed"), ended("Recreating", "a Failed", "b Pending"), ""),
    "other order": (ended("Recreating", "a Failed", "b Pending"), ended("Recreating", "b Pending", "a Failed"), ""),
    "message": (ended("Completed"), ended("Completed", message="late"), ""),
    "time comes late": (ended("Completed"), ended("Completed", completionTime=AT), ""),
    "open state goes": (ended("Recreating", "app Pending"), ended("Recreating"), ""),
    "reopened": (ended("Completed"), ended("Recreating"), "the phase cannot be changed after Completed"),
    "phase taken off": (ended("Completed"), {**request(), "status": {}}, "the phase cannot be changed after Completed"),
    "status taken off": (
        ended("Completed"),
        {**request(), "status": None},
        "the phase cannot be changed after Completed",
    ),
    "time moved": (
        ended("Completed", completionTime=AT),
        ended("Completed", completionTime="2027-01-01T00:00:00Z"),
        "completionTime cannot be changed after completion",
    ),
    "time taken off": (
        ended("Completed", completionTime=AT),
        ended("Completed"),
        "completionTime cannot be changed after completion",
    ),
    "state reopened": (
        ended("Recreating", "a Pending", "app Succeeded"),
        ended("Recreating", "a Pending", "app Recreating"),
        "the phase of a container cannot be changed after Succeeded or Failed",
    ),
    "state changed": (
        ended("Recreating", "app Failed"),
        ended("Recreating", "app Succeeded"),
        "the phase of a container cannot be changed after Succeeded or Failed",
    ),
    "state without its phase": (
        ended("Recreating", "app Failed"),
        ended("Recreating", "app"),
        "the phase of a container cannot be changed after Succeeded or Failed",
    ),
    "state taken off": (
        ended("Recreating", "app Failed"),
        ended("Recreating", "other Failed"),
        "the phase of a container cannot be changed after Succeeded or Failed",
    ),
    "all states taken off": (
        ended("Recreating", "app Failed"),
        {**request(), "status": {"phase": "Recreating"}},
        "the phase of a container cannot be changed after Succeeded or Failed",
    ),
}


def schemas() -> list[Json]:
    crd = one(rendered("default"), "CustomResourceDefinition", f"{model.PLURAL}.{model.GROUP}")
    return [version["schema"]["openAPIV3Schema"] for version in crd["spec"]["versions"]]


@pytest.mark.parametrize("move", MOVES)
def test_what_has_ended_stays_ended(move: str) -> None:
    old, new, message = MOVES[move]
    new = {key: value for key, value in new.items() if value is not None}
    for schema in schemas():
        assert transition_refused(schema, old, new) == message


def test_the_rules_stay_within_what_kubernetes_lets_them_cost() -> None:
    # kube-apiserver estimates 10 million units at most for one rule. The dearest compares each state with each other
    # one: two fields selected and compared each time, well below 50 units as long as names and phases are short.
    for schema in schemas():
        states = schema["properties"]["status"]["properties"]["containerRecreateStates"]
        fields = states["items"]["properties"]
        assert fields["name"]["maxLength"] + fields["phase"]["maxLength"] <= 100
        assert states["maxItems"] ** 2 * 50 <= 10_000_000
        assert states["maxItems"] >= schema["properties"]["spec"]["properties"]["containers"]["maxItems"]
