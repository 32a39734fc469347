"""The CAs of client certificates that the webhook accepts, from a file that changes. They identify API servers.

Renewing an authority needs no restart, as long as the file holds the old and the new one for a while.
"""

from pathlib import Path
from typing import NoReturn

import structlog

from crrd.lib.heartbeat import Heartbeat
from crrd.manager.certificates.keeper import FILES_SECONDS, content, repeat
from crrd.manager.certificates.tls import ServingTls

log = structlog.get_logger(__name__)


class CallerAuthorities:
    """Has the webhook ask its callers for certificates, from the moment on at which this is made.

    Args:
        tls: what the webhook serves with.
        file: PEM, one authority or more.

    Raises:
        ConfigurationError: the file cannot be read or used.
    """

    def __init__(self, tls: ServingTls, file: Path) -> None:
        self._tls = tls
        self._file = file
        self._known: bytes | None = None
        self.heartbeat = Heartbeat()
        self._sync()

    async def run(self) -> NoReturn:
        """Follow the file for ever."""
        await repeat(self.sync, FILES_SECONDS, self.heartbeat)

    async def sync(self) -> None:
        """One round. ConfigurationError: the file cannot be read or used; what was trusted before still is."""
        self._sync()

    def _sync(self) -> None:
        authorities = content(self._file)
        if authorities != self._known:
            self._tls.trust_callers(authorities)
            self._known = authorities
            log.info("client certificates required", authorities=str(self._file))
