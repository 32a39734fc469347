"""Keeps the webhook's certificate (from crrd's own Secret or from mounted files) and its client CAs up to date.

Every replica reads the Secret, renews what `rotation` says is due, and writes the Secret unless another replica did so
meanwhile. It publishes the CA in the webhook configurations, and only then serves with the certificate.
"""

import asyncio
import base64
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import structlog

from crrd.kube.client import KubeClient
from crrd.kube.resources import SECRETS, WEBHOOKS
from crrd.lib.backoff import retry_delay
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, ConflictError, GoneError
from crrd.lib.heartbeat import LATE_SECONDS, Heartbeat
from crrd.lib.jsonfields import items, mapping, text
from crrd.lib.looptime import loop_time
from crrd.manager.certificates import pki
from crrd.manager.certificates.rotation import Lifetimes, find_due
from crrd.manager.certificates.tls import ServingTls

log = structlog.get_logger(__name__)
T = TypeVar("T")

SYNC_SECONDS = 60.0  # Interval of checking the Secret and the webhook configurations
FILES_SECONDS = 10.0  # Interval of checking mounted files
_SYNC_SECONDS_AT_MOST = 300.0  # Limit for one round; every call has a deadline
_EXPIRY_MARGIN = timedelta(seconds=2 * _SYNC_SECONDS_AT_MOST)
"""If the certificate in use ends within this time, another one is better, even if no CA of it is published."""
_CONFLICTS = 5  # Conflicts in a row after which a write is left to the next round


class CaBundlePublisher:
    """Writes the caBundle of the mutating webhook configurations. `on_write` is called for each write."""

    def __init__(self, api: KubeClient, names: Sequence[str], on_write: Callable[[], None] = lambda: None) -> None:
        self._api, self._on_write = api, on_write
        self.lost = asyncio.Event()  # Set to have the bundle published again
        self.names = tuple(names)
        self._published = b""
        self._wanted = ""  # The caBundle that is or will be published, as a configuration contains it
        self._wrong: set[str] = set()  # Names of configurations that had another caBundle when they were last seen

    def trusted(self, certificate: bytes) -> bool:
        """Whether the last published bundle trusts this certificate (PEM)."""
        return pki.issued_by_one_of(certificate, self._published)

    @property
    def wrong(self) -> int:
        """The number of configurations that had another caBundle than the wanted one when they were last seen."""
        return len(self._wrong)

    def check_bundle(self, name: str, configuration: Mapping[str, Any]) -> bool:
        """Whether all webhooks of a configuration trust the bundle, or there is none yet. Updates `wrong`."""
        webhooks = [mapping(webhook) for webhook in items(configuration.get("webhooks"))]
        stands = not self._wanted or all(_with_ca_bundle(webhook, self._wanted) == webhook for webhook in webhooks)
        (self._wrong.discard if stands else self._wrong.add)(name)
        return stands

    async def publish(self, bundle: bytes) -> None:
        """Make every webhook of the configurations trust exactly this bundle. Missing configurations are skipped.

        Raises ApiUnavailableError or ApiRefusedError if a configuration was not written. The others are, if possible.
        """
        self._wanted = base64.b64encode(bundle).decode()
        self.lost.clear()
        failure: ApiUnavailableError | ApiRefusedError | None = None
        for name in self.names:
            try:
                await _unless_conflict(partial(self._publish, name))
            except GoneError:
                self._wrong.discard(name)
                log.warning("webhook configuration not found", name=name)
            except (ApiUnavailableError, ApiRefusedError) as error:
                failure = failure or error
        if failure is not None:
            raise failure
        self._published = bundle

    async def _publish(self, name: str) -> None:
        found = await self._api.get(WEBHOOKS, "", name)
        if not self.check_bundle(name, found):
            trusting = [_with_ca_bundle(mapping(webhook), self._wanted) for webhook in items(found.get("webhooks"))]
            body = {"metadata": _version(found), "webhooks": trusting}
            self.check_bundle(name, await self._api.merge_patch(WEBHOOKS, "", name, body))
            log.info("caBundle written", name=name)
            self._on_write()


@dataclass(slots=True)
class SecretCertificates:
    """Certificates that crrd issues, in one Secret that all replicas share."""

    api: KubeClient
    tls: ServingTls  # Serves with the certificate
    trust: CaBundlePublisher  # Publishes the authorities
    namespace: str
    secret: str  # Name of the Secret, which is created if it is missing
    names: Sequence[str]  # DNS names and IP addresses of the server, see `pki.service_names`
    now: Callable[[], datetime]
    """Returns the API server's time, because the API server verifies the certificates. Correct after a Secret read."""
    lifetimes: Lifetimes = field(default_factory=Lifetimes)
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    _known: pki.Certificates = field(default_factory=pki.Certificates)  # Certificates of the last successful round
    _read: pki.Certificates = field(default_factory=pki.Certificates)
    """Content of the Secret in this round, before renewal. Empty if it could not be read."""

    async def run(self) -> NoReturn:
        """Keep the certificate valid until cancelled. Failures are retried."""
        await _repeat(self.sync, SYNC_SECONDS, self.heartbeat, self.trust.lost)

    async def sync(self) -> None:
        """Do one round. After ApiUnavailableError or ApiRefusedError, the loaded certificate stays in use."""
        self._read = pki.Certificates()
        try:
            self._known = await _unless_conflict(self._sync_secret)
        except (ApiUnavailableError, ApiRefusedError):
            # The write failed: the Secret may be immutable, or a right is missing. Its certificate may serve for weeks.
            serving, now = self._read.inventory.serving, self.now()
            if serving is not None and serving.has_started(now) and now < serving.ends:
                await self._serve(self._read)
            raise
        await self._serve(self._known)

    async def _serve(self, certificates: pki.Certificates) -> None:
        data = pki.to_data(certificates)
        await _publish_and_load(self.tls, data[pki.CERTIFICATE], data[pki.KEY], self.trust, certificates.bundle)

    async def _sync_secret(self) -> pki.Certificates:
        """Return the content of the Secret, after renewing what is due. ConflictError if another replica was faster."""
        try:
            secret = await self.api.get(SECRETS, self.namespace, self.secret)
        except GoneError:
            secret = None
        read = pki.from_data(_decoded(mapping((secret or {}).get("data"))), self.names)
        self._read = found = pki.merge_remembered(read, self._known)
        now = self.now()
        due = find_due(found.inventory, now, self.lifetimes)
        if due.nothing:
            return found
        renewed = pki.renew(found, due, self.names, now, self.lifetimes)
        data = {key: base64.b64encode(value).decode() for key, value in pki.to_data(renewed).items()}
        if secret is None:
            shape = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": {"name": self.secret}}
            await self.api.create(SECRETS, self.namespace, {**shape, "data": data})
        else:
            body = {"metadata": _version(secret), "data": data}
            await self.api.merge_patch(SECRETS, self.namespace, self.secret, body)
        log.info("certificates renewed", authority=due.new_authority, serving=due.new_serving)
        return renewed


@dataclass(slots=True)
class MountedCertificates:
    """A certificate that another program issues (for example cert-manager), in files that change."""

    tls: ServingTls  # Serves with the certificate
    cert_file: Path  # PEM, the serving certificate and the intermediate certificates
    key_file: Path
    ca_file: Path | None = None
    """PEM, the CAs that the webhook configurations are to trust. None if another program writes their caBundle."""
    trust: CaBundlePublisher | None = None  # Publishes the content of `ca_file`
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    _known: tuple[bytes, ...] = ()
    _published: float = float("-inf")

    async def run(self) -> NoReturn:
        """Keep the certificate valid until cancelled. Failures are retried."""
        await _repeat(self.sync, FILES_SECONDS, self.heartbeat, self.trust.lost if self.trust is not None else None)

    async def sync(self) -> None:
        """Do one round: publish and load the current content of the files.

        Raises ConfigurationError if they cannot be read or used. What was published and loaded before stays in use.
        """
        certificate, key = _content(self.cert_file), _content(self.key_file)
        if self.ca_file is None or self.trust is None:
            _load(self.tls, certificate, key)
            return
        authority = _content(self.ca_file)
        if not pki.certificates_in(authority):
            if not self.tls.lasts(_EXPIRY_MARGIN):  # better than nothing: others may have published the CA
                _load(self.tls, certificate, key)
            raise ConfigurationError(f"the file {self.ca_file} contains no certificate")
        now = loop_time()
        due = self.trust.lost.is_set() or now - self._published >= SYNC_SECONDS
        if due or self._known != (certificate, key, authority):
            await _publish_and_load(self.tls, certificate, key, self.trust, authority)
            self._known, self._published = (certificate, key, authority), now


@dataclass(slots=True)
class CallerAuthorities:
    """The CAs of client certificates that the webhook accepts, from a file that changes. They identify API servers.

    Once this object exists, the webhook requires client certificates. A CA can be renewed without a restart, if the
    file contains the old and the new one for a while.

    Raises ConfigurationError if the file cannot be read or used.
    """

    tls: ServingTls
    file: Path  # PEM, one or more CAs
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    _known: bytes | None = None

    def __post_init__(self) -> None:
        self._follow()

    async def run(self) -> NoReturn:
        """Follow the file until cancelled."""
        await _repeat(self.sync, FILES_SECONDS, self.heartbeat)

    async def sync(self) -> None:
        """Do one round. ConfigurationError if the file cannot be read or used; the former CAs stay trusted."""
        self._follow()

    def _follow(self) -> None:
        authorities = _content(self.file)
        if authorities != self._known:
            self.tls.trust_callers(authorities)
            self._known = authorities
            log.info("client certificates required", authorities=str(self.file))


async def _publish_and_load(
    tls: ServingTls, certificate: bytes, key: bytes, trust: CaBundlePublisher, bundle: bytes
) -> None:
    """Publish the CA bundle, then serve with the certificate. Raises the errors of both."""
    try:
        await trust.publish(bundle)
    except (ApiUnavailableError, ApiRefusedError):
        # If not trusted, it is better than nothing: others may have published the CA.
        if trust.trusted(certificate) or not tls.lasts(_EXPIRY_MARGIN):
            _load(tls, certificate, key, bundle)
        raise
    _load(tls, certificate, key, bundle)


def _load(tls: ServingTls, certificate: bytes, key: bytes, bundle: bytes = b"") -> None:
    if tls.load(certificate, key, bundle):
        log.info("serving certificate loaded", expires=f"{tls.not_after:%Y-%m-%dT%H:%M:%SZ}")


async def _repeat(
    sync: Callable[[], Awaitable[None]], seconds: float, heartbeat: Heartbeat, wanted: asyncio.Event | None = None
) -> NoReturn:
    """Call `sync` every `seconds` until cancelled, and when `wanted` is set, which a successful `sync` clears.

    Failures are logged, and retried sooner.
    """
    failures = 0
    while True:
        heartbeat.within(_SYNC_SECONDS_AT_MOST, "checking the certificate")
        try:
            await sync()
            failures = 0
            pause = seconds * random.uniform(0.9, 1.1)  # noqa: S311 - spreads load, guards nothing
        except (ApiUnavailableError, ApiRefusedError, ConfigurationError) as error:
            failures += 1
            pause = min(seconds, retry_delay(error, failures))
            log.warning("certificate renewal failed", error=str(error), retry_in=round(pause, 1))
        heartbeat.within(pause + LATE_SECONDS, "waiting to check the certificate again")
        early = asyncio.Event() if wanted is None or failures else wanted
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await early.wait()


async def _unless_conflict(attempt: Callable[[], Awaitable[T]]) -> T:
    """Retry the whole attempt, including its read, after each conflict."""
    for _ in range(_CONFLICTS - 1):
        with suppress(ConflictError):
            return await attempt()
    return await attempt()


def _with_ca_bundle(webhook: Mapping[str, Any], bundle: str) -> dict[str, Any]:
    return {**webhook, "clientConfig": {**mapping(webhook.get("clientConfig")), "caBundle": bundle}}


def _version(obj: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata that binds a patch to the version that was read."""
    return {"resourceVersion": text(mapping(obj.get("metadata")).get("resourceVersion"))}


def _decoded(data: Mapping[str, Any]) -> dict[str, bytes]:
    """Decode the data of a Secret. Values that are not base64 are left out."""
    found = {}
    for key, value in data.items():
        with suppress(ValueError):
            found[key] = base64.b64decode(text(value), validate=True)
    return found


def _content(file: Path) -> bytes:
    """Return the content of a file. ConfigurationError if it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"the file {file} cannot be read: {error.strerror}") from error
