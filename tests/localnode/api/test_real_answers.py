"""The local API server answers as a real one: conversations, and what a kube-apiserver said in them.

The file beside was written by `python -m tests.tools.record_answers` from a kube-apiserver 1.36, and with
CRRD_TEST_KUBECONFIG the one that it names is held against it too. It needs the CRD there, and no admission of crrd.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from crrd.kube.access.config import Access, find_access
from tests.support.conversations import CONVERSATIONS, answers
from tests.support.faulty_api import FaultyApiServer

RECORD = Path(__file__).parent / "data" / "kube-apiserver-1.36.json"
KUBECONFIG = os.environ.get("CRRD_TEST_KUBECONFIG", "")


def written_down(name: str) -> Any:
    return json.loads(RECORD.read_text(encoding="utf-8"))[name]


def differences(said: list[Any], expected: list[Any]) -> list[tuple[Any, Any]]:
    pairs = zip(said, expected, strict=True)
    return [(one, other) for one, other in pairs if one != other]


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_the_local_server_answers_as_a_real_one(name: str) -> None:
    async with FaultyApiServer() as server:
        assert differences(await answers(Access(server.url, ""), name), written_down(name)) == []


@pytest.mark.cluster
@pytest.mark.skipif(not KUBECONFIG, reason="CRRD_TEST_KUBECONFIG names no cluster: what one said is written down")
@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_a_real_server_answers_so(name: str) -> None:
    access = await find_access(KUBECONFIG, os.environ).current()
    assert differences(await answers(access, name), written_down(name)) == []
