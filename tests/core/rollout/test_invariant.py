"""No write of an adoption lets a controller replace pods. The steps are in test_image and test_following."""

from dataclasses import replace
from typing import Any

import pytest

from crrd.core.rollout.change import ImageChange, TemplateMode
from crrd.core.rollout.image import kind as image_kind
from crrd.core.rollout.image.controllers import PAUSED, ROLLING, SPEC, STRATEGY, Adoption, Write
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.invariant import replaces_pods
from crrd.core.rollout.image.state import ImageState
from crrd.core.rollout.image.template import HOLDING_PARTITION, LABEL_REVISION, ON_DELETE, Content, Revision, Template
from crrd.core.rollout.phases import End
from crrd.core.rollout.state import World
from crrd.lib import jsonpatch
from tests.support.rollouts import container, member, planned, run, workload

OLD, NEW = "app:1", "app:2"
IMAGE, LABEL = f"{SPEC}/containers/0/image", f"/metadata/labels/{LABEL_REVISION}"
OF = run(image=ImageChange(NEW, (OLD,), mode=TemplateMode.ADOPT, pulls=False, template="rest"))


def facts(kind: str, *records: Revision, image: str = OLD, labels: str = "old", **changes: Any) -> ImageRun:
    pods = tuple(
        member(f"web-{n}", container(image=NEW), labels={"app": "web", LABEL_REVISION: labels}) for n in range(2)
    )
    found = replace(Template(kind, "web", "uid-of-web", Content(image, "/containers/0", "rest")), **changes)
    return ImageRun.of(World(pods, extra=ImageState((), found, records, "app")), OF)


def record(name: str, image: str = OLD, number: int = 1, rest: str = "rest", **changes: Any) -> Revision:
    content = Content(image, "/containers/0", rest)
    return replace(Revision(name, f"uid-{name}", "1", "uid-of-web", content, number, label=name), **changes)


def patch(plural: str, uid: str, *operations: Any) -> Write:
    return Write(plural, uid.removeprefix("uid-"), uid, (jsonpatch.test("/metadata/uid", uid), *operations))


def of_web(plural: str, *operations: Any) -> Write:
    return patch(plural, "uid-of-web", *operations)


SET_IMAGE = jsonpatch.replace(IMAGE, NEW)
PAUSE, RESUME = jsonpatch.add(PAUSED, value=True), jsonpatch.remove(PAUSED)
UNLABEL = jsonpatch.remove("/metadata/labels/crr.apps.kruise.io~1adopting-run")


@pytest.mark.parametrize(
    ("there", "write", "why"),
    [
        (facts("Deployment", record("old", replicas=2)), of_web("deployments", SET_IMAGE, PAUSE), ""),
        (facts("Deployment", record("old", replicas=2)), of_web("deployments", SET_IMAGE), "has another template"),
        (
            facts("Deployment", record("old", replicas=2), image=NEW, paused=True),
            of_web("deployments", RESUME),
            "ReplicaSet old has another template",
        ),
        (
            facts("Deployment", record("old", NEW, replicas=2), image=NEW, paused=True),
            of_web("deployments", RESUME),
            "",
        ),
        (
            facts("Deployment", record("old", NEW, replicas=2, rest="other"), image=NEW, paused=True),
            of_web("deployments", RESUME),
            "has another template",
        ),
        (
            facts("Deployment", record("old", replicas=2), image=NEW, paused=True),
            patch("replicasets", "uid-old", SET_IMAGE),
            "",
        ),
        (facts("Deployment", record("old", replicas=2)), patch("replicasets", "uid-old", SET_IMAGE), "is not paused"),
        (facts("Deployment", record("old", replicas=2), image=NEW), patch("replicasets", "uid-old", SET_IMAGE), ""),
        (
            facts("Deployment", record("old", replicas=2), image=NEW, paused=True),
            of_web("deployments", RESUME, UNLABEL),
            "ReplicaSet old has another template",
        ),
        (facts("Deployment"), patch("replicasets", "uid-old", SET_IMAGE), "ReplicaSet old is not known"),
        (facts("Deployment", record("old", replicas=2)), Write("replicasets", "old", "uid-old"), "has pods"),
        (facts("Deployment", record("old")), Write("replicasets", "old", "uid-old"), ""),
    ],
)
def test_a_deployment(there: ImageRun, write: Write, why: str) -> None:
    found = replaces_pods(there, write)
    assert (why in found, bool(found)) == (True, bool(why)), found


HELD = jsonpatch.add(f"{ROLLING}/partition", HOLDING_PARTITION)
FREE = jsonpatch.add(f"{ROLLING}/partition", 0)
FIRST, SECOND = record("old"), record("new", NEW, 2)


@pytest.mark.parametrize(
    ("there", "write", "why"),
    [
        (facts("StatefulSet", FIRST, partition=0), of_web("statefulsets", SET_IMAGE, HELD), ""),
        (
            facts("StatefulSet", FIRST),
            of_web("statefulsets", SET_IMAGE, jsonpatch.add(ROLLING, {"partition": HOLDING_PARTITION})),
            "",
        ),
        (facts("StatefulSet", FIRST, partition=0), of_web("statefulsets", SET_IMAGE), "pod web-0 does not have"),
        (facts("StatefulSet", FIRST, partition=1), of_web("statefulsets", SET_IMAGE), "pod web-1 does not have"),
        (facts("StatefulSet", FIRST), of_web("statefulsets", SET_IMAGE), "pod web-0 does not have"),
        (
            facts("StatefulSet", SECOND, FIRST, image=NEW, partition=HOLDING_PARTITION),
            of_web("statefulsets", FREE),
            "pod web-0 does not have the newest revision",
        ),
        (
            facts("StatefulSet", SECOND, FIRST, image=NEW, labels="new", partition=HOLDING_PARTITION),
            of_web("statefulsets", FREE),
            "",
        ),
        (
            facts("StatefulSet", FIRST, image=NEW, partition=HOLDING_PARTITION),
            of_web("statefulsets", FREE),
            "pod web-0 does not have the newest revision",
        ),
        (facts("DaemonSet", FIRST, strategy="RollingUpdate"), of_web("daemonsets", SET_IMAGE), "pod web-0"),
        (
            facts("DaemonSet", FIRST, strategy="RollingUpdate"),
            of_web("daemonsets", SET_IMAGE, jsonpatch.add(STRATEGY, ON_DELETE)),
            "",
        ),
        (facts("DaemonSet", FIRST, strategy=ON_DELETE), of_web("daemonsets", SET_IMAGE), ""),
        *(
            (
                facts("StatefulSet", SECOND, FIRST, image=NEW, labels=labels, partition=partition),
                patch("pods", f"uid-web-{pod}", jsonpatch.replace(LABEL, label)),
                why,
            )
            for partition, pod, labels, label, why in (
                (0, 1, "old", "new", ""),
                (0, 1, "new", "old", "pod web-1 would not have the newest revision"),
                (0, 0, "new", "old", "pod web-0 would not have the newest revision"),
                (0, 1, "oldest", "old", ""),  # the controller replaces it anyway, if it replaces any
                (1, 0, "new", "old", ""),
                (1, 1, "new", "old", "pod web-1 would not have the newest revision"),
            )
        ),
        *(  # an older controller has left a field of the template out of its revision
            (
                facts(
                    "StatefulSet",
                    record("new", NEW, 2, rest="less"),
                    image=NEW,
                    labels="new",
                    partition=HOLDING_PARTITION,
                    observed=observed,
                ),
                of_web("statefulsets", FREE),
                "" if observed else "pod web-0 does not have the newest revision",
            )
            for observed in (True, False)
        ),
        *(
            (
                facts("StatefulSet", SECOND, FIRST, image=NEW, first_ordinal=first),
                of_web("statefulsets", jsonpatch.add(f"{ROLLING}/partition", 1)),
                why,
            )
            for first, why in ((0, "pod web-1 does not have the newest revision"), (1, ""))
        ),
        *(
            (
                facts("DaemonSet", SECOND, FIRST, labels="new", strategy=strategy),
                patch("pods", "uid-web-0", jsonpatch.replace(LABEL, "old")),
                why,
            )
            for strategy, why in ((ON_DELETE, ""), ("RollingUpdate", "pod web-0 would not have the newest revision"))
        ),
        (
            facts("DaemonSet", strategy="RollingUpdate"),
            patch("pods", "uid-web-0", jsonpatch.replace(LABEL, "old")),
            "pod web-0 would not have the newest revision",
        ),
    ],
)
def test_a_set(there: ImageRun, write: Write, why: str) -> None:
    found = replaces_pods(there, write)
    assert (why in found, bool(found)) == (True, bool(why)), found


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])
def test_a_write_that_takes_only_labels_away_is_allowed(kind: str) -> None:
    """The user has released the workload, and its rollout may be in progress, or its revisions are not read."""
    labels = of_web(f"{kind.lower()}s", UNLABEL)
    for there in (facts(kind, record("old", replicas=2), image=NEW), facts(kind, image=NEW)):
        assert replaces_pods(there, labels) == ""


def test_a_write_that_would_replace_pods_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run says so, and how to finish by hand."""
    there = facts("Deployment", record("old", replicas=2), image=NEW, paused=True, holder="run")
    monkeypatch.setattr(image_kind, "next_adoption", lambda _: Adoption((of_web("deployments", RESUME),)))
    found = planned(replace(there.world, workload=workload(2)), OF)
    assert found.end is End.FAILED
    assert "a controller would replace pods after it: ReplicaSet old has another template; report" in found.message
    assert found.message.endswith("kubectl rollout resume deployment.apps/web -n default")
    free = facts("Deployment", record("old", replicas=2))
    monkeypatch.setattr(image_kind, "next_adoption", lambda _: Adoption((of_web("deployments", SET_IMAGE),)))
    assert planned(replace(free.world, workload=workload(2)), OF).message.endswith("; report this"), "it is not held"
