"""Who reaches the webhook's port without being the API server, and what that is worth to them: nothing."""

import base64
import json

import pytest

from tests.support.admission import USER, JsonObject, new_pod, new_request, new_review
from tests.support.webhook import Pods, webhook

SECRET = "hunter2"
HTTP_HOOK = {"httpGet": {"path": "/bye", "port": "web", "httpHeaders": [{"name": "Authorization", "value": SECRET}]}}
EXEC_HOOK = {"exec": {"command": ["sh", "-c", f"curl -u {SECRET}"]}}


def guarded_pod(hook: JsonObject) -> JsonObject:
    """A pod that has something to hide in every place that a container has."""
    container = {
        "name": "app",
        "command": [SECRET],
        "env": [{"name": "TOKEN", "value": SECRET}],
        "lifecycle": {"preStop": hook},
        "ports": [{"name": SECRET, "containerPort": 8080}],
    }
    return new_pod(lambda pod: pod["spec"].update(containers=[container]))


def made_up(operation: str = "CREATE") -> JsonObject:
    """A review that no API server has sent, for a user whom nobody knows."""
    request = new_request(containers=[{"name": "app"}])
    old = new_request(containers=[{"name": "app"}]) if operation == "UPDATE" else None
    return new_review(request, operation, old=old, userInfo={"username": "mallory"})


@pytest.mark.parametrize("hook", [HTTP_HOOK, EXEC_HOOK])
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
async def test_an_answer_holds_nothing_that_the_request_need_not_carry(hook: JsonObject, operation: str) -> None:
    async with webhook(Pods({("shop", "web-0"): guarded_pod(hook)})) as served:
        for path in ("/mutate-crr", "/validate-crr"):
            _, raw = await served.post(path, made_up(operation))
            response = json.loads(raw)["response"]
            told = raw.decode() + base64.b64decode(response.get("patch", "")).decode()
            for word in (SECRET, "preStop", "httpGet", "Authorization", "ports", "env", "8080"):
                assert word not in told


async def test_an_invented_user_is_not_counted_before_a_request_passes() -> None:
    admitted: list[str] = []
    async with webhook(Pods({("shop", "web-0"): new_pod()}), on_admitted=admitted.append) as served:
        for path in ("/mutate-crr", "/validate-crr"):
            await served.ask(path, made_up())
            await served.ask(path, made_up("UPDATE"))
    assert USER != "mallory"
    assert not admitted
