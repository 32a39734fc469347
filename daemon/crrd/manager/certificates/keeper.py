"""Keeps the webhook's certificate in force, from a Secret of our own or from mounted files, and callers' authorities.

Every replica does the same: read the Secret, do what `rotation` says is due, write it back only if nobody else did
meanwhile, see to it that the webhook configurations trust it, and only then serve with it.
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
from crrd.lib.backoff import Backoff
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, ConflictError, GoneError
from crrd.lib.heartbeat import LATE_SECONDS, Heartbeat
from crrd.lib.jsonfields import items, mapping, text
from crrd.manager.certificates import pki
from crrd.manager.certificates.rotation import Lifetimes, find_due
from crrd.manager.certificates.tls import ServingTls

log = structlog.get_logger(__name__)
T = TypeVar("T")

SYNC_SECONDS = 60.0  # Between two looks at the Secret and at the webhook configurations
FILES_SECONDS = 10.0  # Between two looks at mounted files
_RETRIES = Backoff(initial=1, factor=2, maximum=30, jitter=0.2)
_SYNC_SECONDS_AT_MOST = 300.0  # The longest that one round takes: every call has its deadline
_LAST = timedelta(seconds=2 * _SYNC_SECONDS_AT_MOST)
"""Before the end of the certificate in force, from when on another is better, trusted or not."""
_CONFLICTS = 5  # Conflicts in a row after which a write is left to the next round


class CaBundlePublisher:
    """The mutating webhook configurations whose caBundle is ours to write; `on_write` is called for each write."""

    def __init__(self, api: KubeClient, names: Sequence[str], on_write: Callable[[], None] = lambda: None) -> None:
        self._api, self._on_write = api, on_write
        self.lost = asyncio.Event()  # Set by whoever sees that the bundle has to be published again
        self.names = tuple(names)
        self._published = b""
        self._wanted = ""  # What is published, or about to be; as it stands in a configuration
        self._wrong: set[str] = set()  # Names of configurations

    def trusted(self, certificate: bytes) -> bool:
        """Whether the bundle that was published last trusts this certificate, PEM."""
        return pki.issued_by_one_of(certificate, self._published)

    @property
    def wrong(self) -> int:
        """The number of configurations that had another caBundle than the wanted one when they were last seen."""
        return len(self._wrong)

    def stands_in(self, name: str, configuration: Mapping[str, Any]) -> bool:
        """Whether all webhooks of a configuration trust the bundle; true while there is none. `wrong` follows."""
        webhooks = [mapping(webhook) for webhook in items(configuration.get("webhooks"))]
        stands = not self._wanted or all(_trusting(webhook, self._wanted) == webhook for webhook in webhooks)
        (self._wrong.discard if stands else self._wrong.add)(name)
        return stands

    async def publish(self, bundle: bytes) -> None:
        """Make every webhook of the configurations trust exactly this bundle; one that is not there is left out.

        Raises ApiUnavailableError, ApiRefusedError: a configuration was not written; the others were, where possible.
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
        if not self.stands_in(name, found):
            trusting = [_trusting(mapping(webhook), self._wanted) for webhook in items(found.get("webhooks"))]
            body = {"metadata": _version(found), "webhooks": trusting}
            self.stands_in(name, await self._api.merge_patch(WEBHOOKS, "", name, body))
            log.info("caBundle written", name=name)
            self._on_write()


@dataclass(slots=True)
class SecretCertificates:
    """Certificates of our own, in one Secret that all replicas share."""

    api: KubeClient
    tls: ServingTls  # Gets the serving certificate
    trust: CaBundlePublisher  # Gets the authorities
    namespace: str
    secret: str  # The Secret's name; it is created where it is missing
    names: Sequence[str]  # DNS names and IP addresses of the server, see `pki.service_names`
    now: Callable[[], datetime]
    """The API server's time: it is what looks at the certificates. It is right once the Secret was read."""
    lifetimes: Lifetimes = field(default_factory=Lifetimes)
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    _known: pki.Certificates = field(default_factory=pki.Certificates)  # What was agreed on last
    _read: pki.Certificates = field(default_factory=pki.Certificates)
    """What the Secret held in this round, before what was due was done; empty where it could not be read."""

    async def run(self) -> NoReturn:
        """Keep the certificate in force for ever; what fails is tried again."""
        await _repeat(self.sync, SYNC_SECONDS, self.heartbeat, self.trust.lost)

    async def sync(self) -> None:
        """One round; where ApiUnavailableError or ApiRefusedError is raised, what was loaded stays in force."""
        self._read = pki.Certificates()
        try:
            self._known = await _unless_conflict(self._agreed)
        except (ApiUnavailableError, ApiRefusedError):
            # Not written: it may be immutable, or a right is missing. What it holds may serve for weeks.
            serving, now = self._read.inventory.serving, self.now()
            if serving is not None and serving.has_started(now) and now < serving.ends:
                await self._serve(self._read)
            raise
        await self._serve(self._known)

    async def _serve(self, certificates: pki.Certificates) -> None:
        data = pki.to_data(certificates)
        await _put_in_force(self.tls, data[pki.CERTIFICATE], data[pki.KEY], self.trust, certificates.bundle)

    async def _agreed(self) -> pki.Certificates:
        """What the Secret holds, after what is due was done. ConflictError where another replica was faster."""
        try:
            secret = await self.api.get(SECRETS, self.namespace, self.secret)
        except GoneError:
            secret = None
        read = pki.from_data(_decoded(mapping((secret or {}).get("data"))), self.names)
        self._read = found = pki.or_remembered(read, self._known)
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
    """A certificate that somebody else makes (cert-manager, for example), in files that change."""

    tls: ServingTls  # Gets the certificate
    cert_file: Path  # PEM, the serving certificate and what stands between it and the authority
    key_file: Path
    ca_file: Path | None = None
    """PEM, what the webhook configurations are to trust; None where somebody else writes their caBundle."""
    trust: CaBundlePublisher | None = None  # Gets what `ca_file` holds
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    _known: tuple[bytes, ...] = ()
    _published: float = float("-inf")

    async def run(self) -> NoReturn:
        """Keep the certificate in force for ever; what fails is tried again."""
        await _repeat(self.sync, FILES_SECONDS, self.heartbeat, self.trust.lost if self.trust is not None else None)

    async def sync(self) -> None:
        """One round: what the files hold now is published and loaded.

        Raises ConfigurationError: they cannot be read or used; what was published and loaded stays in force.
        """
        certificate, key = _content(self.cert_file), _content(self.key_file)
        if self.ca_file is None or self.trust is None:
            _load(self.tls, certificate, key)
            return
        authority = _content(self.ca_file)
        if not pki.certificates_in(authority):
            if not self.tls.lasts(_LAST):  # better than nothing: others may have published the authority
                _load(self.tls, certificate, key)
            raise ConfigurationError(f"the file {self.ca_file} contains no certificate")
        now = asyncio.get_running_loop().time()
        due = self.trust.lost.is_set() or now - self._published >= SYNC_SECONDS
        if due or self._known != (certificate, key, authority):
            await _put_in_force(self.tls, certificate, key, self.trust, authority)
            self._known, self._published = (certificate, key, authority), now


@dataclass(slots=True)
class CallerAuthorities:
    """The CAs of client certificates that the webhook accepts, from a file that changes. They identify API servers.

    The webhook asks its callers for certificates from the moment on at which this is made. Renewing an authority needs
    no restart, as long as the file holds the old and the new one for a while.

    Raises ConfigurationError: the file cannot be read or used.
    """

    tls: ServingTls
    file: Path  # PEM, one authority or more
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    _known: bytes | None = None

    def __post_init__(self) -> None:
        self._follow()

    async def run(self) -> NoReturn:
        """Follow the file for ever."""
        await _repeat(self.sync, FILES_SECONDS, self.heartbeat)

    async def sync(self) -> None:
        """One round. ConfigurationError: the file cannot be read or used; what was trusted before still is."""
        self._follow()

    def _follow(self) -> None:
        authorities = _content(self.file)
        if authorities != self._known:
            self.tls.trust_callers(authorities)
            self._known = authorities
            log.info("client certificates required", authorities=str(self.file))


async def _put_in_force(
    tls: ServingTls, certificate: bytes, key: bytes, trust: CaBundlePublisher, bundle: bytes
) -> None:
    """Have the certificate trusted, then serve with it. Raises what either raises."""
    try:
        await trust.publish(bundle)
    except (ApiUnavailableError, ApiRefusedError):
        if trust.trusted(certificate) or not tls.lasts(_LAST):  # better than nothing: others may have published it
            _load(tls, certificate, key, bundle)
        raise
    _load(tls, certificate, key, bundle)


def _load(tls: ServingTls, certificate: bytes, key: bytes, bundle: bytes = b"") -> None:
    if tls.load(certificate, key, bundle):
        log.info("serving certificate loaded", expires=f"{tls.not_after:%Y-%m-%dT%H:%M:%SZ}")


async def _repeat(
    sync: Callable[[], Awaitable[None]], seconds: float, heartbeat: Heartbeat, wanted: asyncio.Event | None = None
) -> NoReturn:
    """Do this every so many seconds for ever, or when it is `wanted`, which a `sync` that succeeds clears.

    What fails is logged, and tried again sooner.
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
            pause = min(seconds, _RETRIES.delay(failures))
            log.warning("certificate renewal failed", error=str(error), retry_seconds=round(pause, 1))
        heartbeat.within(pause + LATE_SECONDS, "waiting to check the certificate again")
        early = asyncio.Event() if wanted is None or failures else wanted
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await early.wait()


async def _unless_conflict(attempt: Callable[[], Awaitable[T]]) -> T:
    """Try again, from reading on, when somebody else wrote in between."""
    for _ in range(_CONFLICTS - 1):
        with suppress(ConflictError):
            return await attempt()
    return await attempt()


def _trusting(webhook: Mapping[str, Any], bundle: str) -> dict[str, Any]:
    return {**webhook, "clientConfig": {**mapping(webhook.get("clientConfig")), "caBundle": bundle}}


def _version(obj: Mapping[str, Any]) -> dict[str, str]:
    """What binds a patch to the version that was read."""
    return {"resourceVersion": text(mapping(obj.get("metadata")).get("resourceVersion"))}


def _decoded(data: Mapping[str, Any]) -> dict[str, bytes]:
    """The data of a Secret; what is not base64 is left out."""
    found = {}
    for key, value in data.items():
        with suppress(ValueError):
            found[key] = base64.b64decode(text(value), validate=True)
    return found


def _content(file: Path) -> bytes:
    """What a file holds. ConfigurationError: it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"the file {file} cannot be read: {error.strerror}") from error
