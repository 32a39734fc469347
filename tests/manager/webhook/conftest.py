"""A webhook that runs, with one pod to look into."""

from collections.abc import AsyncIterator

import pytest

from tests.support.admission import new_pod
from tests.support.webhook import Pods, Served, webhook


@pytest.fixture
def pods() -> Pods:
    return Pods({("shop", "web-0"): new_pod()})


@pytest.fixture
async def served(pods: Pods) -> AsyncIterator[Served]:
    async with webhook(pods) as running:
        yield running
