"""About which changes of a request the webhooks are asked: about all that admission would refuse or mend, no others."""

import copy
from typing import Any

import pytest

from crrd.core.admission.rules import Denied
from crrd.core.admission.update import put_back, review_update
from crrd.core.api import types as model
from tests.support.manifests import needs_kubectl, one, rendered
from tests.support.policies import Change, annotated, evaluate, no_finalizer, without

pytestmark = needs_kubectl
Json = dict[str, Any]

MARK, BY, PINNED = model.ANNOTATION_UNREADY_ACQUIRED, model.ANNOTATION_REQUESTED_BY, model.ANNOTATION_PINNED
SOME_TIME, OTHER_TIME = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"


def request(**annotations: str) -> Json:
    labels = {model.LABEL_NODE_NAME: "worker-1", model.LABEL_POD_UID: "u1", model.LABEL_ACTIVE: "true"}
    meta = {"name": "one", "labels": labels, "annotations": annotations, "finalizers": [model.FINALIZER]}
    return {"metadata": meta, "spec": {"podName": "web", "containers": [{"name": "app"}]}}


def bare() -> Json:
    """What is there without admission."""
    return {"metadata": {"name": "one"}, "spec": {"podName": "web"}}


ADMITTED = request(**{BY: "jane"})
MARKED = request(**{BY: "jane", MARK: SOME_TIME})


def plain(found: Json) -> None:
    """Left as a file has it that is applied again."""
    found["metadata"] = {"name": "one"}


def other_pod(found: Json) -> None:
    found["spec"]["podName"] = "db"


UNASKED: dict[str, tuple[Json, Change]] = {
    "nothing": (MARKED, lambda _: None),
    "the manager's mark": (ADMITTED, annotated(MARK, SOME_TIME)),
    "its first annotation": (bare(), annotated(MARK, SOME_TIME)),
    "a pin": (ADMITTED, annotated(PINNED, "[]")),
    "finalizer": (MARKED, no_finalizer),
    "active": (MARKED, without("labels", model.LABEL_ACTIVE)),
}
ASKED: dict[str, tuple[Json, Change]] = {
    "spec": (ADMITTED, other_pod),
    "pod UID": (ADMITTED, without("labels", model.LABEL_POD_UID)),
    "node": (bare(), lambda found: found["metadata"].update(labels={model.LABEL_NODE_NAME: "worker-2"})),
    "who asked": (ADMITTED, annotated(BY, "joe")),
    "who asked, and a mark": (request(), lambda found: found["metadata"].update(annotations={BY: "j", MARK: "t"})),
    "another mark": (MARKED, annotated(MARK, OTHER_TIME)),
    "mark taken off": (MARKED, without("annotations", MARK)),
    "all taken off": (MARKED, plain),
}


def changed(old: Json, change: Change) -> Json:
    new = copy.deepcopy(old)
    change(new)
    return new


def asked(operation: str, old: Json | None, new: Json) -> list[bool]:
    """Whether the webhooks are: that which mutates, that which validates."""
    webhooks = (one(rendered("manager"), f"{kind}WebhookConfiguration", "crrd") for kind in ("Mutating", "Validating"))
    data = {"request": {"operation": operation}, "object": new, "oldObject": old}
    return [
        all(evaluate(condition["expression"], data) for condition in webhook["webhooks"][0]["matchConditions"])
        for webhook in webhooks
    ]


@pytest.mark.parametrize("name", UNASKED)
def test_what_the_daemons_write_needs_no_webhook(name: str) -> None:
    old, change = UNASKED[name]
    new = changed(old, change)
    assert asked("UPDATE", old, new) == [False, False]
    assert put_back(old, new) == new  # a webhook would have changed nothing
    assert not isinstance(review_update(old, new), Denied)


@pytest.mark.parametrize("name", ASKED)
def test_what_is_guarded_is_asked_about(name: str) -> None:
    old, change = ASKED[name]
    new = changed(old, change)
    assert asked("UPDATE", old, new) == [True, True]
    assert put_back(old, new) != new or isinstance(review_update(old, new), Denied)


def test_every_new_request_is_asked_about() -> None:
    assert asked("CREATE", None, ADMITTED) == [True, True]
