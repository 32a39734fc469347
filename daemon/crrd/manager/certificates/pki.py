"""The webhook's own CA and serving certificate: creates them, writes them as the data of a Secret, and reads them.

All keys are EC P-256. What cannot be parsed counts as absent. `rotation` decides when to renew.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from crrd.manager.certificates.rotation import Inventory, Lifetimes, Renewal, Validity

CA_CERTIFICATES, CA_KEY, CERTIFICATE, KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"
"""Keys of the Secret's data. `ca.crt` is the whole bundle, and `ca.key` is the key of its newest certificate."""
_EXTENSION_ERRORS = (x509.DuplicateExtension, x509.ExtensionNotFound, x509.UnsupportedGeneralNameType)
_PARSE_ERRORS = (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion, *_EXTENSION_ERRORS)
"""Errors of other libraries when they parse a certificate or a key (TypeError: an encrypted key)."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Certificates:
    """The content of the Secret."""

    authority: Pair | None = None
    older: tuple[x509.Certificate, ...] = ()
    serving: Pair | None = None

    @property
    def trusted(self) -> tuple[x509.Certificate, ...]:
        """All CA certificates, the newest first."""
        return (*((self.authority.certificate,) if self.authority else ()), *self.older)

    @property
    def bundle(self) -> bytes:
        """The CA bundle that API servers are to trust, PEM."""
        return b"".join(map(_pem, self.trusted))

    @property
    def inventory(self) -> Inventory:
        """The validity of each certificate."""
        return Inventory(
            authority=_validity(self.authority.certificate) if self.authority else None,
            older=tuple(map(_validity, self.older)),
            serving=_usable(self.serving.certificate, self.trusted) if self.serving else None,
        )


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """Return the DNS names of a Service. API servers use `<service>.<namespace>.svc`."""
    short = f"{service}.{namespace}"
    return (f"{short}.svc", service, short, f"{short}.svc.cluster.local")


def renew(found: Certificates, due: Renewal, names: Sequence[str], now: datetime, lifetimes: Lifetimes) -> Certificates:
    """Renew what is due. `names` are the DNS names and IP addresses of the serving certificate."""
    authority, older, serving, begins = found.authority, found.older, found.serving, now - lifetimes.backdate
    if due.new_authority:
        older = found.trusted
        # With a unique name, clients do not check its signatures with the key of another authority.
        name = f"crrd webhook authority {x509.random_serial_number() % 2**32:08x}"
        authority = _issue(name, Validity(begins, now + lifetimes.authority))
    if due.new_serving and authority is not None:
        ends = min(now + lifetimes.serving, authority.certificate.not_valid_after_utc)
        serving = _issue(names[0][:64], Validity(begins, ends), authority, names)
    return Certificates(authority, tuple(each for each in older if each.not_valid_after_utc > now), serving)


def to_data(certificates: Certificates) -> dict[str, bytes]:
    """Return the data of the Secret."""
    data = {CA_CERTIFICATES: certificates.bundle}
    if certificates.authority:
        data[CA_KEY] = key_pem(certificates.authority)
    if certificates.serving:
        data |= {CERTIFICATE: _pem(certificates.serving.certificate), KEY: key_pem(certificates.serving)}
    return data


def from_data(data: Mapping[str, bytes], names: Sequence[str]) -> Certificates:
    """Return what can be used of the Secret's data, for a server with these names."""
    trusted = tuple(filter(_readable, certificates_in(data.get(CA_CERTIFICATES, b""))))
    authority = _pair(trusted[0], data.get(CA_KEY, b"")) if trusted else None
    served = certificates_in(data.get(CERTIFICATE, b""))
    serving = _pair(served[0], data.get(KEY, b"")) if served else None
    if serving and not (_covers(serving.certificate, names) and _signed_by_one_of(serving.certificate, trusted)):
        serving = None
    return Certificates(authority, trusted[1:] if authority else trusted, serving)


def merge_remembered(found: Certificates, known: Certificates) -> Certificates:
    """If the authority in the Secret was lost, add the certificates that this replica remembers.

    Other replicas still serve with certificates of the lost authority. So it stays trusted, and the serving certificate
    stays in use until it is due. Its key does not sign again, because the Secret may have been deleted to revoke it.
    """
    if found.authority is not None:
        return found
    kept = tuple(each for each in known.trusted if each not in found.trusted)
    return Certificates(None, (*found.trusted, *kept), found.serving or known.serving)


def certificates_in(pem: bytes) -> list[x509.Certificate]:
    """Return the certificates in a PEM file, or none if one of them cannot be parsed."""
    with suppress(*_PARSE_ERRORS):
        return x509.load_pem_x509_certificates(pem)
    return []


def issued_by_one_of(certificate: bytes, authorities: bytes) -> bool:
    """Whether one of these authorities signed the certificate (with its chain). All are PEM."""
    known = certificates_in(authorities)
    return any(_signed_by_one_of(leaf, known) for leaf in certificates_in(certificate)[:1])


def usable(certificate: bytes, authorities: bytes) -> Validity:
    """Return the period in which clients that trust these authorities accept a certificate with its chain (all PEM).

    Raises ValueError or x509.InvalidVersion if it is not a certificate.
    """
    leaf, *known = x509.load_pem_x509_certificates(certificate + b"\n" + authorities)
    return _usable(leaf, known)


def _usable(certificate: x509.Certificate, known: Sequence[x509.Certificate]) -> Validity:
    """Return its validity, limited by that of its issuers. Of several authorities with one key, the longest counts."""
    found, seen = _validity(certificate), {certificate}
    while signers := [each for each in known if each not in seen and _signed_by_one_of(certificate, [each])]:
        certificate = max(signers, key=lambda each: each.not_valid_after_utc)
        found = Validity(found.begins, min(found.ends, certificate.not_valid_after_utc))
        seen |= {*signers}
    return found


def key_pem(pair: Pair) -> bytes:
    """Return the key as PEM (PKCS 8, not encrypted)."""
    return pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _validity(certificate: x509.Certificate) -> Validity:
    return Validity(certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def _pair(certificate: x509.Certificate, key: bytes) -> Pair | None:
    with suppress(*_PARSE_ERRORS):
        loaded = load_pem_private_key(key, password=None)
        if isinstance(loaded, EllipticCurvePrivateKey) and loaded.public_key() == certificate.public_key():
            return Pair(certificate, loaded)
    return None


def _readable(certificate: x509.Certificate) -> bool:
    with suppress(*_PARSE_ERRORS):
        return certificate.public_key() is not None and certificate.extensions is not None
    return False


def _covers(certificate: x509.Certificate, names: Sequence[str]) -> bool:
    with suppress(*_PARSE_ERRORS):
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return all(name in found for name in map(_general_name, names))
    return False


def _signed_by_one_of(certificate: x509.Certificate, authorities: Sequence[x509.Certificate]) -> bool:
    for authority in authorities:
        with suppress(*_PARSE_ERRORS):
            certificate.verify_directly_issued_by(authority)
            return True
    return False


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _issue(name: str, valid: Validity, authority: Pair | None = None, names: Sequence[str] = ()) -> Pair:
    """Create a key and its certificate: for a server with these names, or self-signed if there is no authority."""
    key, is_authority = generate_private_key(SECP256R1()), authority is None
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        **dict.fromkeys((*unused, "encipher_only", "decipher_only"), False),
    )
    builder = (
        x509.CertificateBuilder(authority.certificate.subject if authority else subject, subject, key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid.begins)
        .not_valid_after(valid.ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
        .add_extension(usage, critical=True)
    )
    if authority is None:
        return Pair(builder.sign(key, SHA256()), key)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        builder.add_extension(x509.SubjectAlternativeName([*map(_general_name, names)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(signer, critical=False)
    )
    return Pair(builder.sign(authority.key, SHA256()), key)
