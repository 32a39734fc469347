"""Certificates that the manager issues and mounted ones: when they are renewed, and that no client is cut off."""

import asyncio
import base64
import errno
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from crrd.kube.client import KubeClient
from crrd.kube.clock import ServerClock
from crrd.kube.resources import SECRETS, WEBHOOKS, Resource
from crrd.lib.errors import ApiRefusedError, ApiUnavailableError, ConfigurationError, ConflictError
from crrd.manager.certificates import keeper as certs
from crrd.manager.certificates.keeper import (
    CaBundlePublisher,
    MountedCertificates,
    SecretCertificates,
)
from crrd.manager.certificates.pki import (
    CA_CERTIFICATES,
    CA_KEY,
    CERTIFICATE,
    KEY,
    Certificates,
    from_data,
    key_pem,
    renew,
    service_names,
    to_data,
)
from crrd.manager.certificates.rotation import Inventory, Lifetimes, Renewal, Validity, find_due
from crrd.manager.certificates.tls import ServingTls
from tests.support.faulty_api import Call, FaultyApiServer
from tests.support.scripted_api import FixedAccess

LIFETIMES = Lifetimes(
    authority=timedelta(days=30), serving=timedelta(days=9), settle=timedelta(hours=1), backdate=timedelta(0)
)
NOW = datetime.now(UTC).replace(microsecond=0)
NAMES = service_names("crrd-manager", "crrd-system")
HOST = NAMES[0]
FIRST = Renewal(new_authority=True, new_serving=True)


def days(begins: float, ends: float) -> Validity:
    return Validity(NOW + timedelta(days=begins), NOW + timedelta(days=ends))


SETTLED, FRESH = days(-1, 29), days(-0.01, 29.99)
GOOD, DUE, LAST = days(-1, 8), days(-6, 3), days(-8.99, 0.01)
OLD, GONE = days(-25, 5), days(-31, -1)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        pytest.param(Inventory(), FIRST, id="nothing"),
        pytest.param(Inventory(SETTLED, (), GOOD), Renewal(), id="all well"),
        pytest.param(Inventory(SETTLED, (OLD,), GOOD), Renewal(), id="all well with an older authority"),
        pytest.param(Inventory(SETTLED), Renewal(new_serving=True), id="no serving certificate"),
        pytest.param(Inventory(SETTLED, (), DUE), Renewal(new_serving=True), id="serving certificate due"),
        pytest.param(Inventory(FRESH, (), DUE), Renewal(new_serving=True), id="the only authority need not settle"),
        pytest.param(Inventory(FRESH, (OLD,), DUE), Renewal(), id="a new authority settles before it signs"),
        pytest.param(Inventory(FRESH, (OLD,), LAST), Renewal(new_serving=True), id="unless there is no time left"),
        pytest.param(Inventory(FRESH, (OLD,)), Renewal(new_serving=True), id="or nothing to serve with"),
        pytest.param(Inventory(days(-20, 10), (), GOOD), Renewal(new_authority=True), id="authority due"),
        pytest.param(
            Inventory(days(-20, 10), (), DUE), Renewal(new_authority=True), id="both due: the authority first"
        ),
        pytest.param(Inventory(GONE, (), days(-9, 0)), FIRST, id="all expired"),
        pytest.param(Inventory(None, (OLD,), GOOD), Renewal(new_authority=True), id="the authority's key is lost"),
        pytest.param(Inventory(SETTLED, (GONE,), GOOD), Renewal(drop_expired=True), id="an older authority expired"),
        pytest.param(Inventory(days(1, 31), (), days(1, 10)), FIRST, id="made by a clock that was ahead"),
        pytest.param(
            Inventory(SETTLED, (), days(1, 10)), Renewal(new_serving=True), id="the serving certificate alone"
        ),
        pytest.param(Inventory(days(1, 31), (OLD,), GOOD), Renewal(new_authority=True), id="the authority alone"),
    ],
)
def test_what_is_due(found: Inventory, wanted: Renewal) -> None:
    assert find_due(found, NOW, LIFETIMES) == wanted
    assert wanted.nothing is (wanted == Renewal())


def test_a_clock_that_is_behind_changes_nothing() -> None:
    lifetimes = Lifetimes()
    made = renew(Certificates(), FIRST, NAMES, NOW, lifetimes)
    behind = NOW - lifetimes.backdate
    assert find_due(made.inventory, behind, lifetimes).nothing
    assert not find_due(made.inventory, behind - timedelta(seconds=1), lifetimes).nothing, "clients would not accept it"


def test_many_renewals_without_a_gap() -> None:
    """Hour by hour: clients with a bundle of an hour ago trust the served certificate, and it has not expired."""
    kept, bundles, served = Certificates(), [], set()
    lifetimes = replace(LIFETIMES, authority=timedelta(days=10), serving=timedelta(days=3))
    for hour in range(24 * 40):
        now = NOW + timedelta(hours=hour)
        due = find_due(kept.inventory, now, lifetimes)
        if not due.nothing:
            kept = renew(kept, due, NAMES, now, lifetimes)
        bundles.append(kept.trusted)
        assert kept.serving is not None
        assert kept.authority is not None
        served.add(kept.serving.certificate.serial_number)
        read_by_now = bundles[max(0, hour - 1)]
        signer = [one for one in read_by_now if one.subject == kept.serving.certificate.issuer]
        assert len(signer) == 1, "served with a certificate that is not trusted everywhere yet"
        assert now < kept.serving.certificate.not_valid_after_utc <= signer[0].not_valid_after_utc
        assert kept.serving.certificate.not_valid_after_utc - now >= lifetimes.serving / 3 - timedelta(hours=2)
        assert 1 <= len(kept.trusted) <= 2
        assert all(one.not_valid_after_utc > now for one in kept.trusted)
    assert len(served) > 15
    assert len({one.serial_number for bundle in bundles for one in bundle}) > 4


def new(found: Certificates | None = None, what: Renewal = FIRST) -> Certificates:
    return renew(found or Certificates(), what, NAMES, NOW, LIFETIMES)


def test_data_of_a_secret_there_and_back() -> None:
    made = new(new(), Renewal(new_authority=True))
    found = from_data(to_data(made), NAMES)
    assert found.trusted == made.trusted
    assert len(found.older) == 1
    assert to_data(found) == to_data(made)
    assert to_data(Certificates()) == {CA_CERTIFICATES: b""}


def rsa_key() -> bytes:
    return rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def encrypted(data: Mapping[str, bytes]) -> bytes:
    return serialization.load_pem_private_key(data[KEY], None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )


P256, UNKNOWN_CURVE = b"\x2a\x86\x48\xce\x3d\x03\x01\x07", b"\x2a\x86\x48\xce\x3d\x03\x01\x02"
KEY_IDENTIFIER, ALTERNATIVE_NAME = b"\x06\x03\x55\x1d\x0e", b"\x06\x03\x55\x1d\x11"
VERSION_3, VERSION_8 = b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07"
DNS_NAME, X400_ADDRESS = b"\x82%c" % len(HOST), b"\xa3%c" % len(HOST)


def spoilt(pem: bytes, old: bytes, new: bytes) -> bytes:
    """A PEM text with other bytes in what it encodes."""
    first, *lines, last = pem.splitlines()
    raw = base64.b64decode(b"".join(lines))
    assert raw.count(old) == 1
    return b"\n".join((first, base64.b64encode(raw.replace(old, new)), last))


def test_damaged_data_is_as_if_it_were_absent() -> None:
    sound, other = to_data(new()), to_data(new())

    def found(**changes: bytes) -> tuple[bool, int, bool]:
        names = {"ca": CA_CERTIFICATES, "ca_key": CA_KEY, "cert": CERTIFICATE, "key": KEY}
        data = sound | {names[name]: value for name, value in changes.items()}
        read = from_data(data, NAMES)
        return read.authority is not None, len(read.trusted), read.serving is not None

    assert found() == (True, 1, True)
    assert found(ca=b"odd") == (False, 0, False)
    assert found(ca_key=b"odd") == (False, 1, True)
    assert found(ca_key=other[CA_KEY]) == (False, 1, True)
    assert found(ca_key=rsa_key()) == (False, 1, True)
    assert found(cert=b"odd") == (True, 1, False)
    assert found(key=b"odd") == (True, 1, False)
    assert found(key=other[KEY]) == (True, 1, False)
    assert found(key=encrypted(sound)) == (True, 1, False)
    assert found(ca=spoilt(sound[CA_CERTIFICATES], P256, UNKNOWN_CURVE)) == (False, 0, False)
    assert found(ca_key=spoilt(sound[CA_KEY], P256, UNKNOWN_CURVE)) == (False, 1, True)
    assert found(key=spoilt(sound[KEY], P256, UNKNOWN_CURVE)) == (True, 1, False)
    for old, odd in ((P256, UNKNOWN_CURVE), (VERSION_3, VERSION_8), (DNS_NAME, X400_ADDRESS)):
        assert found(cert=spoilt(sound[CERTIFICATE], old, odd)) == (True, 1, False)
    assert found(cert=spoilt(sound[CERTIFICATE], KEY_IDENTIFIER, ALTERNATIVE_NAME)) == (True, 1, False), "two of a kind"
    assert found(cert=other[CERTIFICATE], key=other[KEY]) == (True, 1, False), "signed by somebody else"
    assert found(cert=sound[CA_CERTIFICATES], key=sound[CA_KEY]) == (True, 1, False), "no server's certificate"
    assert from_data({}, NAMES) == Certificates()
    assert from_data(sound, [*NAMES, "127.0.0.1"]).serving is None, "for fewer names than are needed"


def test_names_of_a_service() -> None:
    assert HOST == "crrd-manager.crrd-system.svc"
    made = new().serving
    assert made is not None
    found = made.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert tuple(found.get_values_for_type(x509.DNSName)) == NAMES


def handshake(tls: ServingTls, bundle: bytes, host: str = HOST) -> int:
    """A TLS handshake in memory, verified as a strict client does; returns the certificate's serial number."""
    trusting = ssl.create_default_context(cadata=bundle.decode())
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server, server_hostname=host)
    server = tls.context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    raw = client.getpeercert(binary_form=True)
    assert raw is not None
    return x509.load_der_x509_certificate(raw).serial_number


def test_a_certificate_with_another_type_of_key_replaces_the_one_before() -> None:
    """As from an issuer that changes from ECDSA to RSA."""
    tls, first, key = ServingTls(), new(), rsa.generate_private_key(65537, 2048)
    assert first.authority is not None
    tls.load(to_data(first)[CERTIFICATE], to_data(first)[KEY])
    identifier = x509.SubjectKeyIdentifier.from_public_key(first.authority.key.public_key())
    second = (
        x509.CertificateBuilder(first.authority.certificate.subject, x509.Name([]), key.public_key(), serial_number=7)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=9))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(first.authority.key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    key_text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    assert tls.load(second.public_bytes(pem), key_text)
    assert handshake(tls, first.bundle) == 7


@pytest.fixture
async def api() -> AsyncIterator[FaultyApiServer]:
    async with FaultyApiServer(log=calls.append) as server:
        calls.clear()
        yield server


calls: list[Call] = []


@pytest.fixture
async def client(api: FaultyApiServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(FixedAccess(api.url)) as made:
        yield made


def webhook_of(name: str) -> dict[str, Any]:
    return {
        "name": f"{name}.crr.apps.kruise.io",
        "clientConfig": {"service": {"name": "crrd-manager", "namespace": "crrd-system", "path": f"/{name}"}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }


CONFIGURATIONS = {"crrd": ("mutate-crr", "mutate-pod"), "crrd-two": ("mutate-other",)}
"""The webhooks of each configuration, by its name."""


async def install(client: KubeClient) -> None:
    for name, webhooks in CONFIGURATIONS.items():
        body = {"metadata": {"name": name}, "webhooks": [webhook_of(each) for each in webhooks]}
        await client.create(WEBHOOKS, "", body)


async def bundles(client: KubeClient) -> list[bytes]:
    """The caBundle of each installed webhook."""
    found = []
    for name in CONFIGURATIONS:
        for webhook in (await client.get(WEBHOOKS, "", name))["webhooks"]:
            found.append(base64.b64decode(webhook["clientConfig"]["caBundle"]))
            rest = {key: value for key, value in webhook["clientConfig"].items() if key != "caBundle"}
            assert webhook | {"clientConfig": rest} == webhook_of(rest["service"]["path"].strip("/"))
    return found


class Replica:
    """One manager's certificates."""

    def __init__(self, client: KubeClient) -> None:
        self._now = NOW
        self.tls = ServingTls(lambda: self._now)
        self.keeper = SecretCertificates(
            client,
            self.tls,
            CaBundlePublisher(client, [*CONFIGURATIONS]),
            namespace="default",
            secret="crrd-webhook",
            names=NAMES,
            now=lambda: self._now,
            lifetimes=LIFETIMES,
        )

    async def sync(self, now: datetime) -> None:
        self._now = now
        await self.keeper.sync()


async def secret_of(client: KubeClient) -> Mapping[str, Any]:
    return await client.get(SECRETS, "default", "crrd-webhook")


async def held(client: KubeClient) -> Certificates:
    data = (await secret_of(client))["data"]
    return from_data({key: base64.b64decode(value) for key, value in data.items()}, NAMES)


def serial(certificates: Certificates) -> int:
    assert certificates.serving is not None
    return certificates.serving.certificate.serial_number


async def test_a_first_start_and_a_second_one(client: KubeClient) -> None:
    await install(client)
    first, second = Replica(client), Replica(client)
    await first.sync(NOW)
    made = await held(client)
    assert await bundles(client) == [made.bundle] * 3
    assert handshake(first.tls, made.bundle) == serial(made)
    assert (await secret_of(client))["type"] == "Opaque"

    calls.clear()
    await second.sync(NOW)
    await first.sync(NOW)
    assert {call.verb for call in calls} == {"get"}, "nothing is due, and nothing is written"
    assert handshake(second.tls, made.bundle) == serial(made)


async def test_replicas_that_start_together_agree(client: KubeClient) -> None:
    await install(client)
    replicas = [Replica(client) for _ in range(4)]
    await asyncio.gather(*(replica.sync(NOW) for replica in replicas))
    made = await held(client)
    assert await bundles(client) == [made.bundle] * 3
    assert {handshake(replica.tls, made.bundle) for replica in replicas} == {serial(made)}


async def test_a_secret_that_an_install_left_empty(client: KubeClient) -> None:
    await install(client)
    await client.create(SECRETS, "default", {"metadata": {"name": "crrd-webhook", "labels": {"kept": "yes"}}})
    await asyncio.gather(*(Replica(client).sync(NOW) for _ in range(2)))
    assert (await secret_of(client))["metadata"]["labels"] == {"kept": "yes"}
    assert await bundles(client) == [(await held(client)).bundle] * 3


async def test_damage_is_repaired(client: KubeClient) -> None:
    await install(client)
    replica = Replica(client)
    await replica.sync(NOW)
    await client.merge_patch(SECRETS, "default", "crrd-webhook", {"data": {"tls.key": "b2Rk", "odd": "="}})
    await client.merge_patch(WEBHOOKS, "", "crrd-two", {"webhooks": [webhook_of("mutate-other")]})
    await replica.sync(NOW)
    repaired = await held(client)
    assert await bundles(client) == [repaired.bundle] * 3
    assert handshake(replica.tls, repaired.bundle) == serial(repaired)


@pytest.mark.parametrize("emptied", [False, True])
async def test_a_lost_secret_leaves_no_replica_untrusted(client: KubeClient, *, emptied: bool) -> None:
    """Whoever comes first makes a new authority; the others have not heard of it yet, and serve as before."""
    await install(client)
    first, second, late = Replica(client), Replica(client), Replica(client)
    for replica in (first, second):
        await replica.sync(NOW)
    before = await held(client)
    if emptied:
        await client.merge_patch(SECRETS, "default", "crrd-webhook", {"data": None})
    else:
        await client.delete(SECRETS, "default", "crrd-webhook")
    for hour, replica in enumerate((first, late, second, first)):
        await replica.sync(NOW + timedelta(minutes=hour))
        after = await held(client)
        assert after.authority is not None
        assert after.authority.certificate not in before.trusted
        for known in {before.bundle, *await bundles(client)}:
            assert {handshake(each.tls, known) for each in (first, second)} == {serial(before)}
    assert handshake(late.tls, before.bundle) == serial(before)
    much_later = NOW + timedelta(days=7)
    for replica in (first, second):
        await replica.sync(much_later)
    renewed = await held(client)
    assert serial(renewed) != serial(before)
    assert renewed.serving is not None
    assert renewed.authority is not None
    assert renewed.serving.certificate.issuer == renewed.authority.certificate.subject


async def test_certificates_of_a_clock_that_was_ahead_are_made_anew(client: KubeClient) -> None:
    await install(client)
    first, second = Replica(client), Replica(client)
    await first.sync(NOW + timedelta(days=5))
    early = await held(client)
    assert first.tls.check() == ""
    for replica in (second, first):
        await replica.sync(NOW)
        assert replica.tls.check() == ""
    made = await held(client)
    assert made.authority is not None
    assert made.authority.certificate not in early.trusted
    assert await bundles(client) == [made.bundle] * 3
    assert {handshake(replica.tls, made.bundle) for replica in (first, second)} == {serial(made)}


async def test_the_time_is_the_api_servers() -> None:
    """The manager's own clock is more than a year ahead of it, and nothing was asked before."""
    clock, behind = ServerClock(), timedelta(days=400)
    server = FaultyApiServer(clock=lambda: datetime.now(UTC) - behind, log=calls.append)
    async with server, KubeClient(FixedAccess(server.url)) as users:
        await install(users)
        async with KubeClient(FixedAccess(server.url), on_date=clock.observe) as client:
            tls, trust = ServingTls(clock.now), CaBundlePublisher(client, [*CONFIGURATIONS])
            keeper = SecretCertificates(client, tls, trust, "default", "crrd-webhook", NAMES, clock.now)
            await keeper.sync()
            assert tls.not_after is not None
            assert timedelta(days=89) < tls.not_after - server.now() <= timedelta(days=90)
            assert tls.check() == ""
            calls.clear()
            await keeper.sync()
            assert {call.verb for call in calls} == {"get"}


async def test_two_months_of_two_replicas_without_a_gap(client: KubeClient) -> None:
    """Every handshake with either replica succeeds for an API server that knows the bundle of any recent round."""
    await install(client)
    replicas, known, serials = [Replica(client), Replica(client)], [], set()
    for round_ in range(130):
        now = NOW + timedelta(hours=12 * round_)
        for replica in replicas:
            await replica.sync(now)
            known.append((await bundles(client))[0])
            made = await held(client)
            served = made.serving
            assert served is not None
            serials.add(served.certificate.serial_number)
            assert served.certificate.issuer in [one.subject for one in made.trusted]
            assert served.certificate.not_valid_after_utc > now + timedelta(days=2)
            if round_:  # what an API server knew a round ago is enough
                before = x509.load_pem_x509_certificates(known[-3])
                assert served.certificate.issuer in [one.subject for one in before]
    assert len(serials) >= 4
    assert len(set(known)) >= 5, "the authority was not renewed, or the old one not dropped"


async def test_a_certificate_is_not_served_before_it_is_trusted(api: FaultyApiServer, client: KubeClient) -> None:
    await install(client)
    replica = Replica(client)
    await replica.sync(NOW)
    before = await held(client)
    data = {key: base64.b64encode(value).decode() for key, value in to_data(new(before)).items()}
    await client.merge_patch(SECRETS, "default", "crrd-webhook", {"data": data})
    api.fail_next(1, 500, match=lambda call: call.verb == "patch" and call.name == "crrd-two")
    with pytest.raises(ApiUnavailableError):
        await replica.sync(NOW)
    assert handshake(replica.tls, before.bundle) == serial(before)
    await replica.sync(NOW)
    renewed = await held(client)
    assert handshake(replica.tls, renewed.bundle) == serial(renewed) != serial(before)


@pytest.mark.parametrize("anew", [False, True])
async def test_while_nothing_can_be_published_what_is_trusted_is_renewed(
    api: FaultyApiServer, client: KubeClient, *, anew: bool
) -> None:
    """A manager that has started anew does not know what is trusted: it renews what is about to end."""
    await install(client)
    replica = Replica(client)
    await replica.sync(NOW)
    before = await held(client)
    api.fail_next(1000, 403, match=lambda call: call.resource.endswith("webhookconfigurations"))
    if anew:
        replica = Replica(client)
    for day, renewed in ((5.0, False), (7.0, not anew), (8.99, not anew), (8.999, True)):
        with pytest.raises(ApiRefusedError):
            await replica.sync(NOW + timedelta(days=day))
        wanted = (await held(client) if renewed else before).serving
        assert wanted is not None
        assert replica.tls.not_after == wanted.certificate.not_valid_after_utc
        assert replica.tls.check() == ""


async def test_a_good_certificate_is_served_though_the_secret_cannot_be_written(
    api: FaultyApiServer, client: KubeClient
) -> None:
    """A renewal fails, for example because the Secret is immutable: the old certificate is served meanwhile."""
    await install(client)
    await Replica(client).sync(NOW)
    before = await held(client)
    api.fail_next(1000, 422, match=lambda call: (call.verb, call.resource) == ("patch", "secrets"))
    anew = Replica(client)
    with pytest.raises(ApiRefusedError):
        await anew.sync(NOW + timedelta(days=7))
    assert anew.tls.loaded.is_set()
    assert anew.tls.check() == ""
    assert handshake(anew.tls, before.bundle) == serial(before)
    late = Replica(client)
    with pytest.raises(ApiRefusedError):
        await late.sync(NOW + timedelta(days=60))
    assert not late.tls.loaded.is_set(), "it has expired"


@pytest.mark.parametrize("served", [False, True])
async def test_a_certificate_ends_with_its_authority(tmp_path: Path, client: KubeClient, *, served: bool) -> None:
    """A foreign authority that has expired, known by its file or served in the chain: callers refuse the certificate,
    though that lasts longer."""
    await install(client)
    now = NOW
    tls = ServingTls(lambda: now)
    long = Lifetimes(authority=timedelta(days=400), serving=timedelta(days=300))
    made = renew(Certificates(), FIRST, NAMES, NOW, long)
    write(tmp_path, made)
    assert made.authority is not None
    ends = NOW + timedelta(days=10)
    authority = (
        x509.CertificateBuilder()
        .subject_name(made.authority.certificate.subject)
        .issuer_name(made.authority.certificate.issuer)
        .public_key(made.authority.key.public_key())
        .serial_number(7)
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(made.authority.key, hashes.SHA256())
    )
    with (tmp_path / ("tls.crt" if served else "ca.crt")).open("ab" if served else "wb") as file:
        file.write(authority.public_bytes(serialization.Encoding.PEM))
    trust, file_of_authority = CaBundlePublisher(client, [*CONFIGURATIONS]), None if served else tmp_path / "ca.crt"
    keeper = MountedCertificates(
        tls, tmp_path / "tls.crt", tmp_path / "tls.key", ca_file=file_of_authority, trust=trust
    )
    await keeper.sync()
    assert (tls.not_after, tls.check()) == (ends, "")
    now = ends
    assert tls.check() == f"the serving certificate expired at {ends:%Y-%m-%dT%H:%M:%SZ}"


async def test_something_is_served_from_the_start(api: FaultyApiServer, client: KubeClient) -> None:
    """Without the right to write the configurations: somebody else may have done it."""
    replica = Replica(client)
    api.fail_next(1, 403, match=lambda call: call.resource == "mutatingwebhookconfigurations")
    with pytest.raises(ApiRefusedError):
        await replica.sync(NOW)
    made = await held(client)
    assert handshake(replica.tls, made.bundle) == serial(made)
    await replica.sync(NOW)  # no such configurations: nothing to write


async def test_an_endless_quarrel_is_given_up(api: FaultyApiServer, client: KubeClient) -> None:
    await install(client)
    api.fail_next(5, 409, match=lambda call: call.verb == "create")
    with pytest.raises(ConflictError):
        await Replica(client).sync(NOW)
    await Replica(client).sync(NOW)


async def test_run_tries_again(api: FaultyApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certs, "retry_delay", lambda *_: 0.01)
    monkeypatch.setattr(certs, "SYNC_SECONDS", 0.01)
    await install(client)
    replica = Replica(client)
    api.fail_next(2, 503)
    running = asyncio.create_task(replica.keeper.run())
    async with asyncio.timeout(10):
        await replica.tls.loaded.wait()
        first = (await secret_of(client))["metadata"]["uid"]
        await client.delete(SECRETS, "default", "crrd-webhook")
        while True:  # until it is made anew
            found = await client.list_all(Resource("secrets"), lambda one: one["metadata"]["uid"], namespace="default")
            if found.items and found.items[0] != first:
                break
    running.cancel()
    await asyncio.wait([running])


def write(folder: Path, certificates: Certificates) -> None:
    assert certificates.serving is not None
    (folder / "tls.crt").write_bytes(to_data(certificates)[CERTIFICATE])
    (folder / "tls.key").write_bytes(key_pem(certificates.serving))
    (folder / "ca.crt").write_bytes(certificates.bundle)


async def test_mounted_files_are_followed(tmp_path: Path, client: KubeClient) -> None:
    tls = ServingTls()
    keeper = MountedCertificates(tls, tmp_path / "tls.crt", tmp_path / "tls.key")
    with pytest.raises(ConfigurationError, match=r"the file .*tls\.crt cannot be read: No such file or directory"):
        await keeper.sync()
    first, second = new(), new()
    write(tmp_path, first)
    await keeper.sync()
    assert handshake(tls, first.bundle) == serial(first)
    (tmp_path / "tls.crt").write_bytes(spoilt(to_data(first)[CERTIFICATE], VERSION_3, VERSION_8))
    with pytest.raises(ConfigurationError, match="cannot be used"):
        await keeper.sync()
    (tmp_path / "tls.crt").write_bytes(to_data(second)[CERTIFICATE])
    with pytest.raises(ConfigurationError, match="cannot be used"):
        await keeper.sync()  # caught between two writes
    assert handshake(tls, first.bundle) == serial(first)
    write(tmp_path, second)
    await keeper.sync()
    assert handshake(tls, second.bundle) == serial(second)
    assert not calls, "without a CA file, the API server is somebody else's business"
    assert client.description


async def test_without_a_file_descriptor_the_certificate_in_force_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    tls, first, second = ServingTls(), new(), new()
    keeper = MountedCertificates(tls, tmp_path / "tls.crt", tmp_path / "tls.key")
    write(tmp_path, first)
    await keeper.sync()
    write(tmp_path, second)
    with monkeypatch.context() as patched:
        patched.setattr("os.memfd_create", no_more)
        with pytest.raises(ConfigurationError, match=r"the serving certificate cannot be used: .*Too many open files"):
            await keeper.sync()
    assert handshake(tls, first.bundle) == serial(first)
    await keeper.sync()
    assert handshake(tls, second.bundle) == serial(second)


async def test_a_mounted_authority_is_published(tmp_path: Path, client: KubeClient) -> None:
    await install(client)
    tls, first = ServingTls(), new()
    write(tmp_path, first)
    trust = CaBundlePublisher(client, [*CONFIGURATIONS])
    keeper = MountedCertificates(
        tls, tmp_path / "tls.crt", tmp_path / "tls.key", ca_file=tmp_path / "ca.crt", trust=trust
    )
    await keeper.sync()
    assert await bundles(client) == [first.bundle] * 3
    calls.clear()
    await keeper.sync()
    assert not calls, "nothing has changed, and a look was taken just now"
    second = new(first, FIRST)
    write(tmp_path, second)
    await keeper.sync()
    assert await bundles(client) == [second.bundle] * 3
    assert handshake(tls, second.bundle) == serial(second)


@pytest.mark.parametrize("held", [b"", b"no certificate\n"])
async def test_a_file_without_an_authority_is_not_published(tmp_path: Path, client: KubeClient, held: bytes) -> None:
    """For example a file that is being written: the API server could no longer call the webhook."""
    await install(client)
    tls, first = ServingTls(), new()
    write(tmp_path, first)
    trust = CaBundlePublisher(client, [*CONFIGURATIONS])
    keeper = MountedCertificates(tls, tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "ca.crt", trust)
    await keeper.sync()
    (tmp_path / "ca.crt").write_bytes(held)
    with pytest.raises(ConfigurationError, match=r"the file .*ca\.crt contains no certificate"):
        await keeper.sync()
    assert await bundles(client) == [first.bundle] * 3
    assert handshake(tls, first.bundle) == serial(first)
    anew = ServingTls()
    keeper = MountedCertificates(anew, tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "ca.crt", trust)
    with pytest.raises(ConfigurationError, match="contains no certificate"):
        await keeper.sync()
    assert handshake(anew, first.bundle) == serial(first), "the webhook is still trusted"


async def test_a_configuration_that_cannot_be_written_does_not_hold_up_the_other(
    api: FaultyApiServer, client: KubeClient
) -> None:
    await install(client)
    api.fail_next(1000, 403, match=lambda call: (call.verb, call.name) == ("patch", "crrd"))
    bundle = new().bundle
    with pytest.raises(ApiRefusedError):
        await CaBundlePublisher(client, [*CONFIGURATIONS]).publish(bundle)
    (webhook,) = (await client.get(WEBHOOKS, "", "crrd-two"))["webhooks"]
    assert base64.b64decode(webhook["clientConfig"].get("caBundle", "")) == bundle


async def test_mounted_files_that_come_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certs, "retry_delay", lambda *_: 0.01)
    tls = ServingTls()
    running = asyncio.create_task(MountedCertificates(tls, tmp_path / "tls.crt", tmp_path / "tls.key").run())
    await asyncio.sleep(0)
    write(tmp_path, new())
    async with asyncio.timeout(10):
        await tls.loaded.wait()
    running.cancel()
    await asyncio.wait([running])
