"""The guard of the caBundle on the local API server: what another client takes away is put back."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from crrd.kube.client import KubeClient
from crrd.kube.resources import WEBHOOKS
from crrd.lib.health import Health
from crrd.lib.supervise import Loop, supervise
from crrd.manager.certificates import guard as guards
from crrd.manager.certificates import keeper as keepers
from crrd.manager.certificates.guard import CaBundleGuard
from crrd.manager.certificates.keeper import CaBundlePublisher, SecretCertificates
from crrd.manager.certificates.tls import ServingTls
from tests.support.faulty_api import FaultyApiServer
from tests.support.local_api import LocalAccess


class Kept:
    """A manager's certificates with the guard, on an API server."""

    def __init__(self, api: FaultyApiServer, client: KubeClient) -> None:
        self.api = api
        self.client = client
        self.writes = 0
        self.trust = CaBundlePublisher(client, ["crrd"], self._wrote)
        tls = ServingTls()
        self.keeper = SecretCertificates(
            client, tls, self.trust, "default", "crrd-webhook", ("localhost",), lambda: datetime.now(UTC)
        )
        self.guard = CaBundleGuard(client, self.trust)

    def _wrote(self) -> None:
        self.writes += 1

    async def bundles(self) -> list[str]:
        found = await self.client.get(WEBHOOKS, "", "crrd")
        return [webhook["clientConfig"].get("caBundle", "") for webhook in found["webhooks"]]

    async def until_wrong(self, count: int) -> None:
        async with asyncio.timeout(20):
            while self.trust.wrong != count:
                await asyncio.sleep(0.01)

    async def take_away(self) -> None:
        """As the manifest that is applied again."""
        found = await self.client.get(WEBHOOKS, "", "crrd")
        bare = [{**each, "clientConfig": {"url": each["clientConfig"]["url"]}} for each in found["webhooks"]]
        await self.client.merge_patch(WEBHOOKS, "", "crrd", {"webhooks": bare})

    async def until(self, holds: Callable[[list[str]], bool]) -> list[str]:
        async with asyncio.timeout(20):
            while not holds(bundles := await self.bundles()):
                await asyncio.sleep(0.01)
        return bundles


def webhook(name: str) -> dict[str, object]:
    return {
        "name": f"{name}.crrd.test",
        "clientConfig": {"url": "https://localhost:1/"},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }


@asynccontextmanager
async def running() -> AsyncIterator[Kept]:
    async with FaultyApiServer() as api, KubeClient(LocalAccess(api.url)) as client:
        await client.create(WEBHOOKS, "", {"metadata": {"name": "crrd"}, "webhooks": [webhook("one")]})
        kept = Kept(api, client)
        loops = [Loop("certificates", kept.keeper.run, ()), *kept.guard.loops]
        async with supervise(loops, Health()):
            await kept.until(all)
            yield kept


async def test_a_bundle_that_is_taken_away_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "REPAIRS", replace(guards.REPAIRS, initial=0.01))
    async with running() as kept:
        before = await kept.bundles()
        assert kept.writes == 1
        with capture_logs() as logs:
            await kept.take_away()
            await kept.until(lambda _: kept.writes == 2)
        assert await kept.bundles() == before
        assert base64.b64decode(before[0]).startswith(b"-----BEGIN CERTIFICATE-----")
        assert [each["log_level"] for each in logs if each["event"] == "caBundle changed"] == ["warning"]


async def test_two_writers_do_not_go_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each further change waits longer, until there was none for a while."""

    asked: list[int] = []

    class Recorded:
        def delay(self, changes: int) -> float:
            asked.append(changes)
            return 0.01

    monkeypatch.setattr(guards, "REPAIRS", Recorded())
    async with running() as kept:
        asked.clear()
        for _ in range(3):
            before = kept.writes
            await kept.take_away()
            await kept.until(lambda bundles, before=before: all(bundles) and kept.writes > before)  # type: ignore[misc]
        assert asked == [1, 2, 3]
        monkeypatch.setattr(guards, "QUIET_SECONDS", 0.0)
        await kept.take_away()
        await kept.until(lambda _: kept.writes == 5)
        assert asked == [1, 2, 3, 1]


async def test_its_own_writes_are_no_change() -> None:
    async with running() as kept:
        with capture_logs() as logs:
            await kept.trust.publish(b"another")
            await kept.take_away()  # seen after the writes before it
            await kept.until(lambda _: kept.writes > 2)
        assert [each["event"] for each in logs].count("caBundle changed") == 1


async def test_a_bundle_that_cannot_be_put_back_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written, so only this count shows that the API server cannot call the webhook."""
    monkeypatch.setattr(guards, "REPAIRS", replace(guards.REPAIRS, initial=0.01))
    monkeypatch.setattr(keepers, "retry_delay", lambda *_: 0.01)
    async with running() as kept:
        assert kept.trust.wrong == 0
        first = iter([False])
        kept.api.fail_next(1000, 403, match=lambda call: call.verb == "patch" and next(first, True))
        await kept.take_away()
        await kept.until_wrong(1)
        kept.api.clear_faults()
        await kept.until_wrong(0)
        assert all(await kept.bundles())
        await kept.client.delete(WEBHOOKS, "", "crrd")
        await kept.trust.publish(b"another")
        assert kept.trust.wrong == 0, "there is nothing to be wrong"
