"""How a pod declares that a container reloads its files, and what is recorded of it."""

from dataclasses import replace

import pytest

from crrd.core.recreate.declared import DEFAULT_SECONDS, Reload, read_reload, recorded_for
from crrd.core.recreate.observation import Hook, HookKind, Sandbox
from tests.support.worlds import POD_UID, RUNTIME, instance


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ('{"exec": ["nginx", "-s", "reload"]}', "exec", Reload(Hook(HookKind.EXEC, ("nginx", "-s", "reload")))),
        (
            '{"signal": "USR1", "timeoutSeconds": 5}',
            "signal",
            Reload(Hook(HookKind.EXEC, ("kill", "-USR1", "1")), 5, signal="USR1"),
        ),
        ('{"exec": ["a"], "timeoutSeconds": 1}', "exec", Reload(Hook(HookKind.EXEC, ("a",)), 1)),
        (
            '{"httpPost": {"path": "/-/reload", "port": "web"}}',
            "httpPost",
            Reload(Hook(HookKind.HTTP_GET, port="web", path="/-/reload"), post=True),
        ),
        (
            '{"httpGet": {"port": 8443, "scheme": "HTTPS", "httpHeaders": [{"name": "A", "value": "b"}]}}',
            "httpGet",
            Reload(Hook(HookKind.HTTP_GET, port=8443, scheme="https", headers=(("A", "b"),))),
        ),
    ],
)
def test_what_a_pod_can_declare(text: str, kind: str, expected: Reload) -> None:
    found = read_reload(text)
    assert (found, found.kind, found.hook.error) == (expected, kind, "")
    assert DEFAULT_SECONDS == 30


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nginx -s reload", "it must be a JSON object"),
        ("[" * 100_000, "it must be a JSON object"),
        ("[]", "it must be a JSON object"),
        ("{}", "it must have one of exec, httpGet, httpPost, signal, not nothing"),
        ('{"exec": ["a"], "signal": "HUP"}', "it must have one of exec, httpGet, httpPost, signal, not exec, signal"),
        ('{"sleep": {"seconds": 1}}', "it must have one of exec, httpGet, httpPost, signal, not sleep"),
        ('{"exec": "nginx -s reload"}', "its exec is not a list of strings"),
        ('{"exec": []}', "its exec is not a list of strings"),
        ('{"exec": ["a", 1]}', "its exec is not a list of strings"),
        ('{"signal": "KILL"}', "its signal must be one of HUP, USR1, USR2"),
        ('{"signal": "SIGHUP"}', "its signal must be one of HUP, USR1, USR2"),
        ('{"signal": ["HUP"]}', "its signal must be one of HUP, USR1, USR2"),
        ('{"httpGet": "/reload"}', "its httpGet must be an object"),
        ('{"httpPost": {}}', "its httpPost.port is neither a port number nor a name"),
        ('{"httpPost": {"port": ""}}', "its httpPost.port is neither a port number nor a name"),
        ('{"httpPost": {"port": 65536}}', "its httpPost.port is neither a port number nor a name"),
        ('{"httpGet": {"port": 80, "path": 1}}', "its httpGet.path, host or scheme is not a string"),
        ('{"httpGet": {"port": 80, "scheme": "ftp"}}', "its httpGet.scheme is neither HTTP nor HTTPS"),
        (
            '{"httpGet": {"port": 80, "httpHeaders": ["a"]}}',
            "its httpGet.httpHeaders are not a list of names and values",
        ),
        (
            '{"httpGet": {"port": 80, "httpHeaders": [{"name": "", "value": "b"}]}}',
            "its httpGet.httpHeaders are not a list of names and values",
        ),
        (
            '{"httpGet": {"port": 80, "httpHeaders": [{"name": 1, "value": "b"}]}}',
            "its httpGet.httpHeaders are not a list of names and values",
        ),
        (
            '{"httpGet": {"port": 80, "httpHeaders": [{"name": "a", "value": 1}]}}',
            "its httpGet.httpHeaders are not a list of names and values",
        ),
        ('{"exec": ["a"], "timeoutSeconds": 0}', "its timeoutSeconds must be a whole number from 1 to 600"),
        ('{"exec": ["a"], "timeoutSeconds": 601}', "its timeoutSeconds must be a whole number from 1 to 600"),
        ('{"exec": ["a"], "timeoutSeconds": true}', "its timeoutSeconds must be a whole number from 1 to 600"),
        ('{"exec": ["a"], "timeoutSeconds": "5"}', "its timeoutSeconds must be a whole number from 1 to 600"),
    ],
)
def test_what_is_wrong_is_said(text: str, error: str) -> None:
    assert read_reload(text).hook == Hook(HookKind.INVALID, error=error)


def test_the_record_is_that_of_the_instances_own_sandbox() -> None:
    first = Sandbox("first", RUNTIME, "default", "web", POD_UID, ready=False, created_at=1, reloads={"app": "1"})
    second = replace(first, id="second", attempt=1, reloads={"app": "2"})
    assert recorded_for(instance("a", sandbox="second"), (first, second)) == {"app": "2"}
    assert recorded_for(instance("a", sandbox="third"), (first, second)) is None
