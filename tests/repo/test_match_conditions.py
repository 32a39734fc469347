"""About which changes of a request the webhook is asked: about all that it would mend or a rule refuses, no others."""

import copy
from typing import Any

import pytest

from crrd.core.admission.update import put_back
from crrd.core.api import types as model
from tests.support.manifests import needs_kubectl, one, rendered
from tests.support.policies import Change, Rules, Who, Write, annotated, evaluate, no_finalizer, without

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
NAMED = copy.deepcopy(ADMITTED)
NAMED["metadata"]["labels"][model.LABEL_POD_NAME] = "web"
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
    "pod name": (NAMED, without("labels", model.LABEL_POD_NAME)),
    "another pod name": (NAMED, lambda found: found["metadata"]["labels"].update({model.LABEL_POD_NAME: "db"})),
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


def asked(operation: str, old: Json | None, new: Json) -> bool:
    """Whether the webhook is."""
    webhook, _ = one(rendered("manager"), "MutatingWebhookConfiguration", "crrd")["webhooks"]
    data = {"request": {"operation": operation}, "object": new, "oldObject": old}
    return all(evaluate(condition["expression"], data) for condition in webhook["matchConditions"])


def refused(old: Json, new: Json) -> bool:
    """Whether the CRD or the policy refuses it, whoever writes it."""
    root = Who("root", ("system:masters",))
    return old["spec"] != new["spec"] or bool(Rules(rendered("default")).refused(root, Write(old, new)))


@pytest.mark.parametrize("name", UNASKED)
def test_what_the_daemons_write_needs_no_webhook(name: str) -> None:
    old, change = UNASKED[name]
    new = changed(old, change)
    assert not asked("UPDATE", old, new)
    assert put_back(old, new) == new  # the webhook would have changed nothing
    assert not refused(old, new)


@pytest.mark.parametrize("name", ASKED)
def test_what_is_guarded_is_asked_about(name: str) -> None:
    old, change = ASKED[name]
    new = changed(old, change)
    assert asked("UPDATE", old, new)
    assert put_back(old, new) != new or refused(old, new)


def test_every_new_request_is_asked_about() -> None:
    assert asked("CREATE", None, ADMITTED)
