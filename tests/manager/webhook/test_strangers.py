"""Who reaches the webhook's port without being the API server, and what that is worth to them: nothing."""

import base64
import json
import ssl
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from crrd.lib.errors import ConfigurationError
from crrd.manager.certificates.keeper import CallerAuthorities
from crrd.manager.certificates.pki import Pair, key_pem
from crrd.manager.certificates.rotation import Renewal
from crrd.manager.certificates.tls import ServingTls
from tests.support.admission import JsonObject, new_pod, new_request, new_review
from tests.support.webhook import Pods, Served, load, new_certificates, webhook

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
        _, raw = await served.post("/mutate-crr", made_up(operation))
        response = json.loads(raw)["response"]
        received = raw.decode() + base64.b64decode(response.get("patch", "")).decode()
        for word in (SECRET, "preStop", "httpGet", "Authorization", "ports", "env", "8080"):
            assert word not in received


def issued(authority: Pair, folder: Path) -> ssl.SSLContext:
    """A client's context, with a certificate of this authority."""
    key = generate_private_key(SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(authority.certificate.not_valid_before_utc)
        .not_valid_after(authority.certificate.not_valid_after_utc)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    file = folder / f"{certificate.serial_number}.pem"
    file.write_bytes(certificate.public_bytes(Encoding.PEM) + key_pem(Pair(certificate, key)))
    context = ssl.create_default_context()
    context.load_cert_chain(file)
    return context


async def answered(served: Served, context: ssl.SSLContext) -> bool:
    """Whether a caller with this context gets an answer, on a connection of its own."""
    context.load_verify_locations(cadata=served.certificates.bundle.decode())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        try:
            async with session.post(f"https://{served.address}/mutate-crr", json=made_up()) as response:
                return response.status == 200
        except (aiohttp.ClientError, ConnectionError):
            return False


def authority() -> Pair:
    found = new_certificates().authority
    assert found is not None
    return found


def pem(*authorities: Pair) -> bytes:
    return b"".join(each.certificate.public_bytes(Encoding.PEM) for each in authorities)


async def test_with_an_authority_for_callers_only_they_are_answered(tmp_path: Path) -> None:
    of_apiservers, of_others = authority(), authority()
    file = tmp_path / "client-ca.crt"
    file.write_bytes(pem(of_apiservers))
    async with webhook(Pods({("shop", "web-0"): new_pod()})) as served:
        assert await answered(served, ssl.create_default_context()), "nobody was asked for a certificate yet"
        callers = CallerAuthorities(served.tls, file)
        assert await answered(served, issued(of_apiservers, tmp_path))
        for stranger in (ssl.create_default_context(), issued(of_others, tmp_path)):
            assert not await answered(served, stranger)
        file.write_bytes("# Zürich\n".encode() + pem(of_apiservers, of_others))
        await callers.sync()
        for known in (of_apiservers, of_others):
            assert await answered(served, issued(known, tmp_path))
        file.write_bytes(b"no certificate")
        with pytest.raises(ConfigurationError, match="the client CA certificates cannot be used"):
            await callers.sync()
        assert await answered(served, issued(of_apiservers, tmp_path))
        assert not await answered(served, ssl.create_default_context())
        load(served.tls, new_certificates(served.certificates, Renewal(new_serving=True)))
        for known in (of_apiservers, of_others):
            assert await answered(served, issued(known, tmp_path)), "with a renewed certificate"
        assert not await answered(served, ssl.create_default_context())


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"-----BEGIN CERTIFICATE-----"])
def test_an_authority_that_cannot_be_used_is_no_leave_for_anybody(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "client-ca.crt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError):
        CallerAuthorities(ServingTls(), file)
