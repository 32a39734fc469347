"""The TLS context of the webhook. Its certificate can change while connections are open."""

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
    """The context for new connections. Each `load` makes a new one.

    A context keeps one certificate for each type of key, so it would still serve an old one after a change of the type.

    `now` returns the time of the clients that verify the certificate.
    """

    def __init__(self, now: Callable[[], datetime] = _LOCAL_TIME) -> None:
        self._now = now
        self._callers = b""  # The CAs of client certificates (PEM); empty if none is required
        self.context = self._new_context()
        self.loaded = asyncio.Event()  # Set once there is a certificate
        self._pair: tuple[bytes, bytes] | None = None
        self._valid: Validity | None = None

    @property
    def not_after(self) -> datetime | None:
        """When the certificate expires; None before the first `load`."""
        return self._valid.ends if self._valid else None

    def load(self, certificate: bytes, key: bytes, authorities: bytes = b"") -> bool:
        """Serve with this certificate (PEM, with its chain) and key from now on. Return False if it is already in use.

        It counts as expired when the certificate of `authorities` (PEM) that signed it expires, because callers then
        refuse it. Raises ConfigurationError if they cannot be used; the certificate loaded before stays in use.
        """
        try:
            valid = usable(certificate, authorities)
            if self._pair == (certificate, key):
                self._valid = valid
                return False
            context = self._new_context()
            _load_chain(context, certificate, key)
        except (ValueError, x509.InvalidVersion, OSError) as error:  # OSError: also if no file descriptor is left
            raise ConfigurationError(f"the serving certificate cannot be used: {error}") from error
        self.context, self._pair, self._valid = context, (certificate, key), valid
        self.loaded.set()
        return True

    def trust_callers(self, authorities: bytes) -> None:
        """From the next handshake on, accept only callers with a certificate of these authorities (PEM).

        Authorities are only added: earlier ones stay trusted until the process ends.
        Raises ConfigurationError if they are not certificates; nothing changes then.
        """
        try:
            self.context.load_verify_locations(cadata=authorities.decode("ascii", "ignore"))
        except (ValueError, ssl.SSLError) as error:
            raise ConfigurationError(f"the client CA certificates cannot be used: {error}") from error
        self.context.verify_mode = ssl.CERT_REQUIRED
        self._callers += authorities + b"\n"

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        if self._callers:
            context.load_verify_locations(cadata=self._callers.decode("ascii", "ignore"))
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def lasts(self, margin: timedelta) -> bool:
        """Whether handshakes can succeed now, and for at least `margin` from now."""
        return self._valid is not None and not self.check() and self._now() < self._valid.ends - margin

    def check(self) -> str:
        """For readiness: return "" if handshakes can succeed, else the reason."""
        valid, now = self._valid, self._now()
        if valid is None:
            return "the serving certificate does not exist yet"
        if not valid.has_started(now):
            return f"the serving certificate is not valid before {valid.begins:%Y-%m-%dT%H:%M:%SZ}"
        return f"the serving certificate expired at {valid.ends:%Y-%m-%dT%H:%M:%SZ}" if now >= valid.ends else ""


def _load_chain(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load the pair. `ssl` reads only files, and one in memory keeps the key off the disk and needs no folder."""
    with closing(FileIO(os.memfd_create("tls"), "w")) as file:
        file.write(certificate + b"\n" + key)
        # Without a password OpenSSL would ask a terminal for the one of an encrypted key. str() returns "".
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=str)
