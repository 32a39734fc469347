"""Which policy takes the place of Reloader's annotations: each annotation, and what has no counterpart."""

from typing import Any

import pytest

from crrd.core.config.references import Kind
from crrd.core.policy.reloader import Advice, Marks, convert, read_marks
from crrd.core.policy.v1alpha1 import read_policy

Json = dict[str, Any]
HOST = "reloader.stakater.com"
AUTO, SEARCH = f"{HOST}/auto", f"{HOST}/search"
PAUSE, STRATEGY = f"deployment.{HOST}/pause-period", f"{HOST}/rollout-strategy"
CM, SECRET = Kind.CONFIG_MAP, Kind.SECRET
BY_DRIVER = "Let the CSI driver sync it to a Secret that a container uses, or add schedule or maxAge to the policy"
PAUSED = (
    "Reloader has paused its rollout, and the policy waits for that. Before you remove the annotations, wait until "
    f"deployment.{HOST}/paused-at has gone, or run kubectl rollout resume"
)
NOTHING_COUNTS = "its containers use no ConfigMap or Secret whose changes would reload it"


def uses(*names: str) -> list[Json]:
    """`cm-...` are ConfigMaps, all others are Secrets."""
    return [{("configMapRef" if each.startswith("cm-") else "secretRef"): {"name": each}} for each in names]


def workload(
    annotations: Json | None = None,
    *names: str,
    kind: str = "Deployment",
    template: Json | None = None,
    init: tuple[str, ...] = (),
    name: str = "web",
    **spec: Any,
) -> Json:
    containers = [{"name": "app", "envFrom": uses(*names)}, {"name": "log"}]
    pod = {"containers": containers, "initContainers": [{"name": "setup", "envFrom": uses(*init)}]}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "shop", "annotations": annotations or {}},
        "spec": {"template": {"metadata": {"annotations": template or {}}, "spec": pod}, **spec},
    }


def advised(*workloads: Json, marks: Marks | None = None, auto_all: bool = False) -> Advice:
    (found,) = convert(workloads, marks or Marks(), auto_all=auto_all)
    return found


def change_of(advice: Advice) -> Json:
    assert advice.policy is not None
    assert read_policy(advice.policy).error == ""
    change: Json = advice.policy["spec"]["triggers"]["configChange"]
    return change


def test_the_policy_names_the_workload_and_keeps_its_limit() -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}}
    found = advised(workload({AUTO: "true"}, "cm-web", strategy=strategy))
    assert (found.policy, found.notes) == (
        {
            "apiVersion": "crrd.dev/v1alpha1",
            "kind": "ContainerRecreatePolicy",
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "triggers": {"configChange": {}},
                "budget": {"maxUnavailable": "25%"},
            },
        },
        (),
    )
    assert found.workload == "Deployment web in namespace shop"
    assert not found.secrets


@pytest.mark.parametrize(
    ("kind", "field", "most", "kept"),
    [
        ("Deployment", "strategy", 2, True),
        ("Deployment", "strategy", 0, False),
        ("Deployment", "strategy", "0%", False),
        ("Deployment", "strategy", None, False),
        ("DaemonSet", "updateStrategy", "10%", True),
        ("DaemonSet", "strategy", "10%", False),
        ("StatefulSet", "updateStrategy", 3, True),
    ],
)
def test_limits(kind: str, field: str, most: object, kept: bool) -> None:
    rolling: Json = {field: {"rollingUpdate": {"maxUnavailable": most}}}
    found = advised(workload({AUTO: "true"}, "cm-web", kind=kind, **rolling))
    assert found.policy is not None
    assert found.policy["spec"].get("budget") == ({"maxUnavailable": most} if kept else None)
    assert read_policy(found.policy).error == ""


@pytest.mark.parametrize(
    ("annotations", "change"),
    [
        ({AUTO: "true"}, {"secrets": True}),
        ({AUTO: "T"}, {"secrets": True}),
        ({f"configmap.{HOST}/auto": "true"}, {}),
        ({f"secret.{HOST}/auto": "true"}, {"secrets": True, "ignore": ["cm-a", "cm-b"]}),
        ({f"secret.{HOST}/auto": "true", f"configmap.{HOST}/auto": "1"}, {"secrets": True}),
        ({AUTO: "false", f"configmap.{HOST}/auto": "true"}, {}),
        ({f"configmap.{HOST}/reload": "cm-b"}, {"ignore": ["cm-a"]}),
        ({f"configmap.{HOST}/reload": " cm-a , cm-b "}, {}),
        ({f"configmap.{HOST}/reload": "cm-.*"}, {}),
        ({f"configmap.{HOST}/reload": "cm-b", AUTO: "false"}, {"ignore": ["cm-a"]}),
        ({f"secret.{HOST}/reload": "s-a"}, {"secrets": True, "ignore": ["cm-a", "cm-b", "s-b"]}),
        (
            {AUTO: "true", f"configmaps.exclude.{HOST}/reload": "cm-a,cm-later"},
            {"secrets": True, "ignore": ["cm-a", "cm-later"]},
        ),
        ({AUTO: "true", f"secrets.exclude.{HOST}/reload": "s-a,s-b"}, {}),
        ({AUTO: "true", f"secrets.exclude.{HOST}/reload": "s-b"}, {"secrets": True, "ignore": ["s-b"]}),
        ({SEARCH: "true"}, {"ignore": ["cm-a"]}),
        ({SEARCH: "true", f"secret.{HOST}/auto": "true"}, {"secrets": True, "ignore": ["cm-a"]}),
        ({SEARCH: "true", AUTO: "true"}, {"secrets": True}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("on_template", [False, True])
def test_each_annotation(annotations: Json, change: Json, on_template: bool) -> None:
    """The pod template counts where the workload has no annotation, but not for names to exclude."""
    marks = read_marks(
        [(CM, {"metadata": {"namespace": "shop", "name": "cm-b", "annotations": {f"{HOST}/match": "true"}}})]
    )
    excluded = {key: value for key, value in annotations.items() if "exclude" in key}
    rest = annotations if not on_template else excluded
    template = {key: value for key, value in annotations.items() if key not in excluded} if on_template else {}
    found = advised(workload(rest, "cm-a", "cm-b", "s-a", "s-b", template=template), marks=marks)
    assert change_of(found) == change
    assert found.secrets is bool(change.get("secrets"))


@pytest.mark.parametrize(
    ("annotations", "template"),
    [
        ({}, {}),
        ({AUTO: "false"}, {}),
        ({AUTO: "yes"}, {}),
        ({SEARCH: "1"}, {}),
        ({AUTO: "false"}, {AUTO: "true"}),
        ({f"configmap.{HOST}/reload": " , "}, {}),
        ({"example.com/auto": "true"}, {}),
        ({PAUSE: "5m"}, {}),
        ({f"configmaps.exclude.{HOST}/reload": "cm-a"}, {}),
        ({f"secretproviderclass.{HOST}/auto": "false"}, {}),
        ({f"secretproviderclass.{HOST}/reload": " "}, {}),
    ],
)
def test_reloader_does_nothing_for_these(annotations: Json, template: Json) -> None:
    assert convert([workload(annotations, "cm-a", template=template)], Marks()) == ()


def test_without_annotations_if_reloader_reloads_all() -> None:
    plain, other, out = workload({}, "cm-a"), workload({}, name="none"), workload({AUTO: "false"}, "cm-a", name="out")
    jobs = workload({}, "cm-a", kind="Job", name="job")
    found = advised(plain, other, out, jobs, auto_all=True)
    assert (found.name, change_of(found)) == ("web", {})


def test_what_is_marked_to_be_ignored() -> None:
    ignored = {"metadata": {"namespace": "shop", "name": "cm-a", "annotations": {f"{HOST}/ignore": "true"}}}
    elsewhere = {"metadata": {"namespace": "other", "name": "cm-b", "annotations": {f"{HOST}/ignore": "true"}}}
    marks = read_marks([(CM, ignored), (CM, elsewhere), (SECRET, {"metadata": {"namespace": "shop", "name": "cm-b"}})])
    assert marks == Marks(frozenset(), frozenset({("shop", CM, "cm-a"), ("other", CM, "cm-b")}))
    named = workload({AUTO: "true", f"configmap.{HOST}/reload": "cm-a"}, "cm-a", "cm-b")
    assert change_of(advised(named, marks=marks)) == {"ignore": ["cm-a"]}
    assert advised(workload({AUTO: "true"}, "cm-a"), marks=marks).notes == (NOTHING_COUNTS,)


@pytest.mark.parametrize(
    ("given", "settle"),
    [
        ("5m", "5m"),
        ("1h30m", "1h30m"),
        ("90s", "90s"),
        ("+1m", "60s"),
        ("1.5h", "5400s"),
        ("1500ms", "2s"),
        ("2m500us", "121s"),
        ("", None),
        ("0s", None),
        ("-5m", None),
        ("5", None),
        ("soon", None),
        ("2562048h", None),  # Go counts nanoseconds in 64 bits
        (f"{'9' * 400}s", None),
    ],
)
def test_pause_period(given: str, settle: str | None) -> None:
    found = advised(workload({AUTO: "true", PAUSE: given}, "cm-a"))
    assert change_of(found) == ({} if settle is None else {"settle": settle})
    note = "settle counts from the last change, and pause-period counts from the first one"
    if given in ("0s", "-5m"):
        note = f"{PAUSE} is {given!r}, which is not positive, so it has no effect"
    elif settle is None:
        note = f"{PAUSE} is {given!r}, which is no duration, so Reloader reloads nothing. The policy does"
    assert found.notes == (note,)


def test_pause_period_is_for_deployments() -> None:
    found = advised(workload({AUTO: "true", PAUSE: "5m"}, "cm-a", kind="StatefulSet"))
    assert (change_of(found), found.notes) == ({}, (f"{PAUSE} is only for Deployments, so Reloader ignores it",))


@pytest.mark.parametrize(
    ("annotations", "note"),
    [
        ({STRATEGY: "restart"}, f"{STRATEGY} is not needed, because a policy does not change the template"),
        (
            {f"configmap.{HOST}/reload": "cm-a, cm-lost"},
            "no container uses ConfigMap cm-lost, so a policy does not see its changes",
        ),
        (
            {f"secret.{HOST}/reload": "s-.*"},
            "the expression 's-.*' is applied to the Secrets that the containers use now",
        ),
        ({f"secret.{HOST}/reload": "("}, "only Go can read the expression '(', so all Secrets count. Check ignore"),
        (
            {f"secret.{HOST}/reload": "openshift-service-ca.crt"},
            "no container uses Secret openshift-service-ca.crt, so a policy does not see its changes",
        ),
        (
            {f"deployment.{HOST}/paused-at": "2026-11-30T03:00:00Z"},
            PAUSED,
        ),
        (
            {f"secretproviderclass.{HOST}/auto": "true"},
            f"no policy sees changes of the SecretProviderClasses that secretproviderclass.{HOST} names. {BY_DRIVER}",
        ),
    ],
)
def test_what_differs_is_noted(annotations: Json, note: str) -> None:
    found = advised(workload({f"configmap.{HOST}/auto": "true", **annotations}, "cm-a", "s-a"))
    assert found.policy is not None
    assert found.notes == (note,)


def test_a_class_of_the_csi_driver_is_noted_once() -> None:
    csi = {"driver": "secrets-store.csi.k8s.io", "volumeAttributes": {"secretProviderClass": "vault"}}
    both = workload({AUTO: "true"}, "cm-a")
    pod = both["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "v", "csi": csi}]
    for each in pod["containers"]:
        each["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]
    (note,) = advised(both).notes
    assert note.startswith("no policy sees changes of SecretProviderClass vault. Let the CSI driver sync")
    named = {**both, "metadata": {**both["metadata"], "annotations": {f"configmap.{HOST}/reload": "cm-a"}}}
    assert advised(named).notes == ()


@pytest.mark.parametrize(
    ("pattern", "ignored"),
    [
        ("cm-app, *-config", []),
        ("*", []),
        ("?web-config", ["cm-app"]),
        ("cm-(?:app|web-config)", []),
        ("cm-app|none", ["cm-web-config"]),
        (r"cm-\w+", ["cm-web-config"]),
        ("cm-[[:lower:]]+", None),
        ("(?i)CM-APP", None),
        (r"\Qcm-app\E", None),
        ("cm-++app", None),
        ("(?!cm-app).*", None),
        ("**", None),
    ],
)
def test_expressions_are_those_of_go(pattern: str, ignored: list[str] | None) -> None:
    """Reloader reads them with the package regexp of Go. If only Go can read one, all ConfigMaps count, with a note."""
    found = advised(workload({f"configmap.{HOST}/reload": pattern}, "cm-app", "cm-web-config"))
    assert change_of(found) == ({"ignore": ignored} if ignored else {})
    unsure = f"only Go can read the expression {pattern!r}, so all ConfigMaps count. Check ignore"
    assert (unsure in found.notes) is (ignored is None)


@pytest.mark.parametrize(
    ("kind", "strategy", "note"),
    [
        (
            "StatefulSet",
            {"type": "OnDelete"},
            "its updateStrategy is OnDelete: Reloader restarts nothing until you delete pods, and the policy does",
        ),
        (
            "StatefulSet",
            {"rollingUpdate": {"partition": 2}},
            "its updateStrategy has partition 2: Reloader spares the pods below, and the policy does not",
        ),
        ("StatefulSet", {"rollingUpdate": {"partition": 0}}, None),
        ("DaemonSet", {"type": "RollingUpdate"}, None),
    ],
)
def test_pods_that_reloader_would_not_replace(kind: str, strategy: Json, note: str | None) -> None:
    found = advised(workload({AUTO: "true"}, "cm-a", kind=kind, updateStrategy=strategy))
    assert found.policy is not None
    assert found.notes == (() if note is None else (note,))


def test_a_rollout_that_has_its_template_in_a_deployment() -> None:
    """Its pods are no pods of the Deployment, which Reloader patches."""
    deployment = workload({AUTO: "true"}, "cm-a", replicas=0)
    rollout = {
        **workload({}, kind="Rollout", name="shop"),
        "apiVersion": "argoproj.io/v1alpha1",
        "spec": {"workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
    }
    found = advised(deployment, rollout)
    assert found.policy is not None
    target = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "shop"}
    assert found.policy["spec"]["targetRef"] == target
    assert found.notes == ("its pods are those of Rollout shop, so the policy names that one",)


def test_objects_of_the_platform() -> None:
    why = "the platform puts it into every namespace, so its changes do not count for a policy"
    note = f"ConfigMap openshift-service-ca.crt: {why}"
    for annotations in ({AUTO: "true"}, {f"configmap.{HOST}/reload": "openshift-service-ca.crt,cm-a"}):
        found = workload(annotations, "cm-a")
        ca = {"configMapRef": {"name": "openshift-service-ca.crt"}}
        found["spec"]["template"]["spec"]["containers"][0]["envFrom"].append(ca)
        assert (change_of(advised(found)), advised(found).notes) == ({}, (note,))


def test_a_policy_takes_so_many_names_to_ignore() -> None:
    excluded = ",".join(f"cm-later-{number:03}" for number in range(70))
    some = advised(workload({AUTO: "true", f"configmaps.exclude.{HOST}/reload": excluded + ",cm-b"}, "cm-a", "cm-b"))
    assert change_of(some)["ignore"] == ["cm-b", *(f"cm-later-{number:03}" for number in range(63))]
    used = [f"cm-{number}" for number in range(65)]
    many = advised(workload({f"configmap.{HOST}/reload": "cm-a"}, "cm-a", *used))
    assert many.policy is None
    by_hand = "Write a policy by hand for the containers that share few"
    assert many.notes == (f"it would ignore 65 objects, and a policy takes 64 names. {by_hand}",)


def test_an_excluded_name_that_only_another_kind_has() -> None:
    found = advised(workload({AUTO: "true", f"secrets.exclude.{HOST}/reload": "cm-a"}, "cm-a", "s-a"))
    assert (change_of(found), found.notes) == ({"secrets": True}, ())


def test_pause_period_counts_on_the_workload_alone() -> None:
    found = advised(workload({}, "cm-a", template={AUTO: "true", PAUSE: "5m"}))
    assert (change_of(found), found.notes) == ({}, ())


def test_only_classes_are_asked_for() -> None:
    found = advised(workload({f"secretproviderclass.{HOST}/reload": "vault"}, "cm-a"))
    assert found.policy is None
    assert not found.secrets
    assert found.notes[0] == NOTHING_COUNTS


def test_init_containers_run_again() -> None:
    found = advised(workload({AUTO: "true"}, "cm-a", init=("cm-a", "cm-b", "s-b")))
    assert change_of(found) == {"secrets": True, "allowPodRestart": True}
    used = "only init containers use ConfigMap cm-b, Secret s-b"
    assert found.notes == (f"{used}. Changes restart whole pods in place, which needs node daemons",)
    ignored = advised(workload({f"configmap.{HOST}/reload": "cm-a"}, "cm-a", init=("cm-b",)))
    assert (change_of(ignored), ignored.notes) == ({"ignore": ["cm-b"]}, ())


def test_one_name_of_two_kinds() -> None:
    found = workload({f"configmap.{HOST}/auto": "true", f"secret.{HOST}/reload": "s-b"}, "cm-a", "s-a", "s-b")
    found["spec"]["template"]["spec"]["containers"][1]["envFrom"] = [{"configMapRef": {"name": "s-a"}}]
    advice = advised(found)
    assert change_of(advice) == {"secrets": True}
    assert advice.notes == ("a ConfigMap and a Secret are called s-a. For a policy, both count or none",)


@pytest.mark.parametrize("kind", ["CronJob", "Job", "DeploymentConfig"])
def test_kinds_without_a_counterpart(kind: str) -> None:
    job = workload({AUTO: "true"}, "cm-a", kind=kind)
    if kind == "CronJob":
        job["spec"] = {"jobTemplate": {"spec": job["spec"]}}
    found = advised(job)
    assert found.policy is None
    assert len(found.notes) == 1


def test_a_template_in_another_object() -> None:
    rollout = {
        **workload({AUTO: "true"}, kind="Rollout"),
        "spec": {"workloadRef": {"kind": "Deployment", "name": "web"}},
    }
    found = advised(rollout)
    assert (found.policy, found.notes) == (
        None,
        ("its pod template is in another object. Write a policy for it by hand",),
    )


def test_names_of_policies_and_their_order() -> None:
    mine = {AUTO: "true"}
    found = convert(
        [
            workload(mine, "cm-a", kind="StatefulSet"),
            workload(mine, "cm-a"),
            workload(mine, "cm-a", name="api"),
            workload(mine, kind="CronJob"),
        ],
        Marks(),
    )
    assert [each.policy and each.policy["metadata"]["name"] for each in found] == [
        None,
        "api",
        "web-deployment",
        "web-statefulset",
    ]


def test_names_of_policies_are_told_apart() -> None:
    mine, long = {AUTO: "true"}, "w" * 248
    found = convert(
        [
            workload(mine, "cm-a", kind=kind, name=name)
            for kind, name in [
                ("Deployment", "web"),
                ("StatefulSet", "web"),
                ("Deployment", "web-deployment"),
                ("Deployment", long),
                ("DaemonSet", long),
            ]
        ],
        Marks(),
    )
    names = [each.policy["metadata"]["name"] for each in found if each.policy is not None]
    assert names == [
        f"{long[:243]}-daemonset", "web-deployment-2", "web-deployment", f"{long[:242]}-deployment", "web-statefulset",
    ]  # fmt: skip


@pytest.mark.parametrize("wrong", [{}, {"metadata": None, "spec": []}, {"metadata": {"annotations": {AUTO: 1}}}])
def test_anything_else_does_nothing(wrong: Json) -> None:
    assert convert([wrong], Marks(), auto_all=False) == ()
