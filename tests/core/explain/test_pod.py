"""What holds for a pod after restarts by patches, from its JSON to the sentences."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crrd.cli.explain_pod import render_pod, render_pod_json
from crrd.core.api.v1alpha1 import parse_request
from crrd.core.explain.pod import PodExplanation, PodTopic, explain_pod
from crrd.core.rollout.patched import PatchedContainer
from tests.core.rollout.test_patched import ASKED, STARTED, pod, record

AT = datetime(2026, 1, 1, 12, 0, 10, tzinfo=UTC)  # CREATED
NEXT: dict[str, Any] = {"containerID": "containerd://two", "restartCount": 4, "state": STARTED}
NAMED = f"its image is named {ASKED.given} in place of app:1"
NOTHING = "no container has another name of its image than its template because of a restart by a patch"


def explained(whole: dict[str, Any], *requests: Any, seconds: float = 300, unread: str = "") -> PodExplanation:
    return explain_pod(whole, map(parse_request, requests), AT + timedelta(seconds=seconds), unread)


def topics(found: PodExplanation) -> dict[str, PodTopic]:
    return {each.container: each.topic for each in found.findings}


def test_a_pod_that_a_run_has_restarted() -> None:
    found = explained(pod(**NEXT))
    assert render_pod(found, "--context prod").splitlines() == [
        "pod default/web-0: Running, on node node-a",
        "",
        f"container app: run run restarted it by a patch 5m ago; since then {NAMED}, which is the same image",
        *(f"  > {step}" for step in PodTopic.OTHER_NAME.remedy),
    ]
    shape = render_pod_json(found)
    (app,) = shape["containers"]
    assert (shape["pod"], app["name"], app["reason"], app["run"]) == ("default/web-0", "app", "OtherName", "run")
    assert (app["image"], app["imageBefore"], app["sinceSeconds"]) == (ASKED.given, "app:1", 300.0)


def test_a_pod_that_kubelet_has_yet_to_restart() -> None:
    found = explained(pod(), seconds=3)
    assert topics(found) == {"app": PodTopic.RESTARTING}
    why = f"run run restarts it by a patch; for 3s, {NAMED}, and kubelet has not started it yet"
    assert found.findings[0].message == why
    assert found.findings[0].advice == ("to see the run: kubectl recreate status run -n default",)
    late = explained(pod(), seconds=100_000)
    assert topics(late) == {"app": PodTopic.FAILED}, "its time limit has passed"


def test_a_restart_that_a_clock_ahead_has_dated_is_new() -> None:
    (app,) = explained(pod(), seconds=-5).findings
    assert (app.since, app.message.partition(",")[0]) == (0.0, "run run restarts it by a patch; for 0s")


def test_a_pod_that_kubelet_could_not_restart() -> None:
    back = replace(ASKED, failure="kubelet cannot start it")
    found = explained(pod(record(back), image=ASKED.before, containerID="containerd://two"))
    assert topics(found) == {"app": PodTopic.FAILED}
    assert found.findings[0].message.endswith("could not restart it by a patch 5m ago: kubelet cannot start it")


def two(kept: Any) -> dict[str, Any]:
    """A pod with another container, whose image has the name that an earlier run gave it."""
    whole = pod(kept, **NEXT)
    whole["spec"]["containers"].append({"name": "side", "image": "side@sha256:1"})
    whole["status"]["containerStatuses"].append({"name": "side", "imageID": "side@sha256:1"})
    return whole


def test_names_of_an_earlier_run() -> None:
    kept = record(used={"side": ("side:1", "side@sha256:1")})
    assert topics(explained(two(kept))) == {"app": PodTopic.OTHER_NAME, "side": PodTopic.OTHER_NAME_BEFORE}
    copied = two(kept)
    copied["metadata"]["uid"] = "another"
    found = explained(copied)
    assert topics(found) == {"app": PodTopic.OTHER_NAME_BEFORE, "side": PodTopic.OTHER_NAME_BEFORE}, "of which run?"
    assert (found.findings[0].run, found.findings[0].since) == ("", None)
    assert render_pod_json(found)["containers"][0]["sinceSeconds"] is None
    waits = PatchedContainer("side", "containerd://side", 0, "", "side@sha256:1")
    later = two(record(ASKED, waits, used={"side": ("side:1", "side@sha256:1")}))
    later["status"]["containerStatuses"][1]["containerID"] = "containerd://side"
    assert topics(explained(later))["side"] is PodTopic.OTHER_NAME_BEFORE, "its turn comes"


@pytest.mark.parametrize("image", ["app:2", "app:1"])
def test_a_pod_whose_image_somebody_else_has_changed(image: str) -> None:
    found = explained(pod(image=image, **NEXT))
    assert (found.findings, render_pod(found).splitlines()[-1]) == ((), NOTHING)


def test_a_pod_that_no_run_has_restarted() -> None:
    whole = pod(**NEXT)
    del whole["metadata"]["annotations"], whole["spec"]["nodeName"]
    assert render_pod(explained(whole)).splitlines() == ["pod default/web-0: Running", "", NOTHING]


def test_its_requests_and_what_could_not_be_read() -> None:
    def request(name: str, uid: str, active: str = "true") -> dict[str, Any]:
        labels = {"crr.apps.kruise.io/pod-uid": uid, "crr.apps.kruise.io/active": active}
        meta = {"namespace": "default", "name": name, "uid": name, "labels": labels}
        return {"metadata": meta, "spec": {"podName": "web-0", "containers": [{"name": "app"}]}}

    mine = request("one", "uid-web-0"), request("over", "uid-web-0", "false"), request("other", "uid-web-1")
    assert render_pod(explained(pod(**NEXT), *mine)).splitlines()[-2:] == [
        "",
        "  - request default/one of this pod is not completed: crrd explain default/one",
    ]
    assert explained(pod(), unread="forbidden").notes == ("cannot read the requests of this pod: forbidden",)
