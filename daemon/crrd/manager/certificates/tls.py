"""The TLS context that the webhook serves with, whose certificate changes while connections go on."""

import asyncio
import os
import ssl
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from io import FileIO

from cryptography import x509

from crrd.lib.errors import ConfigurationError
from crrd.manager.certificates.pki import usable
from crrd.manager.certificates.rotation import Validity

_LOCAL_TIME = partial(datetime.now, UTC)


class ServingTls:
    """One context for the life of the process: handshakes after `load` get another certificate.

    `now` is the time of those who will look at the certificate.
    """

    def __init__(self, now: Callable[[], datetime] = _LOCAL_TIME) -> None:
        self._now = now
        self.context = _context()
        self.loaded = asyncio.Event()  # Set once there is a certificate to serve with
        self._pair: tuple[bytes, bytes] | None = None
        self._valid: Validity | None = None

    @property
    def not_after(self) -> datetime | None:
        """When the certificate expires; None before the first `load`."""
        return self._valid.ends if self._valid else None

    def load(self, certificate: bytes, key: bytes, authorities: bytes = b"") -> bool:
        """Serve with this certificate (PEM, with its chain) and key from now on; False where that is so already.

        It counts as expired when the one of `authorities` (PEM) that signed it has, because callers then refuse it.
        Raises ConfigurationError: they cannot be used; what was loaded before stays.
        """
        try:
            valid = usable(certificate, authorities)
            if self._pair == (certificate, key):
                self._valid = valid
                return False
            # A pair that does not match would leave the context with neither: it is tried on another one first.
            for context in (_context(), self.context):
                _load_chain(context, certificate, key)
        except (ValueError, x509.InvalidVersion, OSError) as error:  # OSError: no file descriptor is left, too
            raise ConfigurationError(f"the serving certificate cannot be used: {error}") from error
        self._pair, self._valid = (certificate, key), valid
        self.loaded.set()
        return True

    def trust_callers(self, authorities: bytes) -> None:
        """From the next handshake on, answer only callers with a certificate of these authorities (PEM).

        Authorities are only added: one that was given before counts until the process ends.
        Raises ConfigurationError: that is no certificate; nothing has changed.
        """
        try:
            self.context.load_verify_locations(cadata=authorities.decode("ascii"))
        except (ValueError, ssl.SSLError) as error:
            raise ConfigurationError(f"the client CA certificates cannot be used: {error}") from error
        self.context.verify_mode = ssl.CERT_REQUIRED

    def lasts(self, margin: timedelta) -> bool:
        """Whether handshakes can succeed now, and for so much longer."""
        return self._valid is not None and not self.check() and self._now() < self._valid.ends - margin

    def check(self) -> str:
        """For readiness: "" where handshakes can succeed, else why not."""
        valid, now = self._valid, self._now()
        if valid is None:
            return "the serving certificate does not exist yet"
        if not valid.has_started(now):
            return f"the serving certificate is not valid before {valid.begins:%Y-%m-%dT%H:%M:%SZ}"
        return f"the serving certificate expired at {valid.ends:%Y-%m-%dT%H:%M:%SZ}" if now >= valid.ends else ""


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load_chain(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """`ssl` reads only files: one in memory keeps the key off the disk, and needs no folder to write to."""
    with closing(FileIO(os.memfd_create("tls"), "w")) as file:
        file.write(certificate + b"\n" + key)
        # Without a password, which str() makes empty, OpenSSL would ask a terminal for that of an encrypted key.
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=str)
