"""Notices within seconds that another client has changed the caBundle of the webhook configurations.

Without the caBundle the API server cannot call the webhook: requests are rejected, or the pods' webhook is skipped.
Applying the manifests again, or a GitOps tool, may remove it. If that happens repeatedly, the guard waits longer each
time, so that two writers do not load the API server.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

import structlog

from crrd.kube.client import KubeClient
from crrd.kube.reflector import Handler, Reflector, Selection
from crrd.kube.resources import WEBHOOKS
from crrd.lib.backoff import Backoff
from crrd.lib.heartbeat import LATE_SECONDS, Heartbeat
from crrd.lib.jsonfields import items, mapping, text, value_at
from crrd.lib.looptime import loop_time
from crrd.lib.supervise import Loop
from crrd.manager.certificates.keeper import CaBundlePublisher

REPAIRS = Backoff(initial=0.5, factor=2, maximum=60, jitter=0.2)
QUIET_SECONDS = 300.0  # After this time without a change by others, the next one is repaired at once again

_OURS = "crrd"  # The managers' name in managedFields: the User-Agent up to its version

log = structlog.get_logger(__name__)
Json = Mapping[str, Any]


class CaBundleGuard:
    """Watches the webhook configurations of `trust`, and sets `trust.lost`. The constructor starts nothing."""

    def __init__(self, api: KubeClient, trust: CaBundlePublisher) -> None:
        self._trust = trust
        self._changed = asyncio.Event()
        heartbeat = Heartbeat()
        watches = {f"ca-bundle-{name}": self._reflector(api, name) for name in trust.names}
        self.loops = [
            # Without `ready`: a replica that may not watch still serves admission.
            *(Loop(name, watch.run, (watch.heartbeat,)) for name, watch in watches.items()),
            Loop("ca-bundle", partial(self._ask_for_repairs, heartbeat), (heartbeat,)),
        ]

    def _reflector(self, api: KubeClient, name: str) -> Reflector[Json]:
        def changed(obj: Json) -> None:
            if self._trust.check_bundle(name, obj) or self._changed.is_set():
                return
            self._changed.set()
            client = _last_writer(obj)
            renewed = client == _OURS and not _is_missing(obj)  # by another replica
            report = log.info if renewed else log.warning
            report("caBundle changed", name=name, last_client=client)

        def listed(found: tuple[Json, ...], _: str) -> None:
            for obj in found:
                changed(obj)

        selection: Selection[Json] = Selection(WEBHOOKS, lambda obj: obj, field_selector=f"metadata.name={name}")
        return Reflector(api, selection, Handler(listed, changed, lambda _: None), strict=False)

    async def _ask_for_repairs(self, heartbeat: Heartbeat) -> NoReturn:
        changes, last = 0, float("-inf")
        while True:
            heartbeat.until(self._changed, "waiting for a change of a caBundle")
            await self._changed.wait()
            changes = changes + 1 if loop_time() - last < QUIET_SECONDS else 1
            delay = REPAIRS.delay(changes)
            heartbeat.within(delay + LATE_SECONDS, "waiting before it asks for a repair")
            await asyncio.sleep(delay)
            self._changed.clear()
            last = loop_time()
            self._trust.lost.set()


def _last_writer(obj: Json) -> str:
    """Return the field manager of the newest entry of managedFields, or "". Removing a field leaves no entry."""
    entries = map(mapping, items(value_at(obj, "metadata.managedFields")))
    return text(max(entries, key=lambda each: text(each.get("time")), default={}).get("manager"))


def _is_missing(obj: Json) -> bool:
    """Whether a webhook has no caBundle at all."""
    return any(not value_at(each, "clientConfig.caBundle") for each in items(obj.get("webhooks")))
