"""Runs with an image that other users have started, on the API server that CRRD_TEST_KUBECONFIG names.

Whoever continues one is asked first. Users are impersonated. See test_policies_on_cluster, which also says for which
clusters this is.
"""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from crrd.core.api import types as model
from crrd.core.rollout.change import ImageChange, TemplateMode
from crrd.core.rollout.run import ANNOTATION_RUN, LABEL_RUN, Options, Run, Target
from crrd.core.rollout.run_limits import ANNOTATION_LIMITS
from tests.repo import test_policies_on_cluster as tables
from tests.support.command import Ended, crrd
from tests.support.policies import Who

pytestmark = [*tables.pytestmark, pytest.mark.parametrize("server", tables.WITH_MANAGER[:1], indirect=True)]
Json = dict[str, Any]
server = tables.server
ANN, MALLORY, REA = Who("ann"), Who("mallory"), Who("rea")
ROLES = {
    ANN: ("crrd-recreate", "crrd-recreate-image"),
    MALLORY: ("crrd-recreate", "crrd-recreate-from-template"),  # May not write workloads
    REA: ("crrd-recreate", "crrd-read-config"),  # May not write images
}
GIVES = "run one was started by mallory: gives container app of deployment.apps/web the image none.invalid/app:"


@pytest.fixture
def shop(server: tables.Server) -> Iterator[tables.Server]:
    """A namespace with a Deployment, in which the users have their roles."""
    where, names, ends = ("-n", server.namespace), [], time.monotonic() + tables.PATIENCE
    server.done("create", "deployment", "web", *where, "--image=none.invalid/app:1", "--replicas=0")
    try:
        for who, roles in ROLES.items():
            for role in roles:
                names.append(f"{who.name}-{role}")
                server.done("create", "rolebinding", names[-1], *where, f"--clusterrole={role}", f"--user={who.name}")
        for who in ROLES:
            while server.kubectl("auth", "can-i", "patch", "pods", *where, who=who)[0]:
                assert time.monotonic() < ends, f"{who.name} does not get a role"
                time.sleep(0.5)
        yield server
    finally:
        server.kubectl("delete", f"{model.PLURAL}.{model.GROUP}", "-l", LABEL_RUN, *where)
        server.kubectl("delete", "rolebinding", *where, *names)
        server.kubectl("delete", "deployment", "web", *where)


def workload(shop: tables.Server) -> Json:
    return dict(json.loads(shop.done("get", "deployment", "web", "-n", shop.namespace, "-o", "json")))


def create(shop: tables.Server, who: Who) -> tuple[int, str]:
    """Create a request of the run `one`, with another image also for the template, completed as admission does it."""
    change = ImageChange("none.invalid/app:2", ("none.invalid/app:0",), mode=TemplateMode.ADOPT)
    target = Target("deployment.apps/web", "apps/v1", "Deployment", "web", workload(shop)["metadata"]["uid"])
    made = Run(shop.namespace, "one", target, Options(("app",), image=change), "2026-01-01T00:00:00Z")
    body = made.request("web", "u1", ("app",))
    meta, context = body["metadata"], {"containerID": "containerd://a1", "restartCount": 0}
    meta["labels"] |= {model.LABEL_POD_UID: "u1", model.LABEL_NODE_NAME: "worker-1", model.LABEL_ACTIVE: "image"}
    meta["annotations"] |= {model.ANNOTATION_REQUESTED_BY: who.name}
    body["spec"]["containers"][0] |= {"statusContext": context}
    words = ("create", "--raw", shop.path(model.PLURAL), "-f", "-")
    return shop.kubectl(*words, given=json.dumps(body), who=who)


def requests(shop: tables.Server) -> list[Json]:
    return list(json.loads(shop.done("get", "--raw", f"{shop.path(model.PLURAL)}?labelSelector={LABEL_RUN}"))["items"])


def patch(shop: tables.Server, who: Who, meta: Mapping[str, Any]) -> tuple[int, str]:
    (request,) = requests(shop)
    words = ("patch", f"{model.PLURAL}.{model.GROUP}", request["metadata"]["name"], "-n", shop.namespace)
    return shop.kubectl(*words, "--type=merge", "-p", json.dumps({"metadata": meta}), who=who)


async def recreate(shop: tables.Server, who: Who, *words: str) -> Ended:
    return await crrd("recreate", *words, "-n", shop.namespace, KUBECONFIG=shop._kubeconfig(who))


@pytest.mark.parametrize(("verb", "image"), [("resume", 2), ("undo", 0)])
async def test_what_another_user_has_written_is_not_done_without_a_yes(
    shop: tables.Server, verb: str, image: int
) -> None:
    code, output = create(shop, MALLORY)
    assert code == 0, output
    before = workload(shop), requests(shop)
    ended = await recreate(shop, ANN, verb, "one")
    line = f"{GIVES}{image}, and its template, too"
    assert (ended.code, line in ended.err, "to do this with your rights, add --yes" in ended.err) == (2, True, True)
    assert (workload(shop), requests(shop)) == before
    assert "was started by" not in str(await recreate(shop, MALLORY, verb, "one", "--dry-run"))


async def test_an_abort_says_whose_run_it_was_and_writes_no_template(shop: tables.Server) -> None:
    code, output = create(shop, MALLORY)
    assert code == 0, output
    before = workload(shop)["spec"]
    ended = await recreate(shop, ANN, "abort", "one")
    assert f"{GIVES}2, and its template, too" in ended.out, ended
    assert workload(shop)["spec"] == before


@pytest.mark.parametrize("who", ROLES, ids=lambda who: str(who.name))
def test_nobody_changes_what_a_run_does(shop: tables.Server, who: Who) -> None:
    code, output = create(shop, ANN)
    assert code == 0, output
    (request,) = requests(shop)
    options = request["metadata"]["annotations"][ANNOTATION_RUN].replace("app:2", "evil:2")
    for meta in ({"annotations": {ANNOTATION_RUN: options}}, {"labels": {LABEL_RUN: "other"}}):
        code, output = patch(shop, who, meta)
        assert (code, "cannot be changed after creation" in output) == (1, True), output
    code, output = patch(shop, who, {"annotations": {ANNOTATION_LIMITS: "x"}})
    assert (code == 0) is (who is not REA), output
    assert code == 0 or "only users who may update pods" in output


async def test_who_writes_a_run_anew_is_shown_as_its_creator(shop: tables.Server) -> None:
    code, output = create(shop, ANN)
    assert code == 0, output
    assert "was started by" not in str(await recreate(shop, ANN, "undo", "one", "--dry-run"))
    (request,) = requests(shop)
    words = ("delete", f"{model.PLURAL}.{model.GROUP}", request["metadata"]["name"], "-n", shop.namespace)
    code, output = shop.kubectl(*words, who=REA)
    assert code == 0, output
    code, output = create(shop, REA)
    assert (code, "only users who may update pods" in output) == (1, True), output
    code, output = create(shop, MALLORY)
    assert code == 0, output
    ended = await recreate(shop, ANN, "undo", "one")
    assert (ended.code, f"{GIVES}0, and its template, too" in ended.err) == (2, True), ended
