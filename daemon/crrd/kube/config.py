"""Where the API server is and who we are: a kubeconfig, or the pod's service account.

Both give an `Access`, renewed when it grows old or is refused.
"""

import asyncio
import ssl
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from multidict import CIMultiDict

from crrd.kube.kubeconfig import read_kubeconfig
from crrd.lib.errors import ApiUnavailableError, ConfigurationError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # Where kubelet mounts a pod's service account
_EXPIRY_MARGIN_SECONDS = 60.0
_RENEWAL_SECONDS = 10.0
"""A kubeconfig is not read again sooner than this after a renewal: a plugin that fails is not run for every call."""


@dataclass(frozen=True, slots=True)
class Access:
    """All that a call needs to reach the API server."""

    server: str  # Base URL without a slash at its end
    authorization: str = field(default="", repr=False)  # The header of that name, "" for none
    tls: ssl.SSLContext | None = None  # None for plain HTTP
    server_hostname: str | None = None  # The name to expect in the server's certificate, where it is not the URL's
    proxy: str | None = None
    namespace: str = ""
    """The one that is meant where none is named: the kubeconfig's context's, or the pod's own; "" for neither."""
    impersonation: tuple[tuple[str, str], ...] = ()
    """Headers that say as whom we act, where that is somebody else; a name may come more than once."""

    @property
    def headers(self) -> CIMultiDict[str]:
        """The HTTP headers that say who we are."""
        headers = [("Authorization", self.authorization)] if self.authorization else []
        return CIMultiDict([*headers, *self.impersonation])


class AccessSource(Protocol):
    """Gives the access of now.

    Both calls raise ConfigurationError where there is none, and waiting will not bring it, and ApiUnavailableError
    where there is none now.
    """

    @property
    def description(self) -> str:
        """Whose credentials these are, for messages."""
        ...

    async def current(self) -> Access:
        """The access to use for the next call; cheap unless something has changed or expired."""
        ...

    async def renew(self, refused: Access) -> Access:
        """The access after the server refused this one (401); the same one where there is no other."""
        ...


def find_access(kubeconfig: str, environ: Mapping[str, str], context: str = "") -> AccessSource:
    """The kubeconfig that is named, else the user's own, else the pod's service account: kubectl's order.

    ConfigurationError for none. A context means a kubeconfig: the service account may be another cluster's.
    """
    own = Path(environ.get("HOME", "/nonexistent")) / ".kube" / "config"
    if kubeconfig or own.is_file():
        return KubeconfigAccess(kubeconfig or str(own), context)
    remedy = f"set --kubeconfig, or put the kubeconfig at {own}"
    if context:
        raise ConfigurationError(f"--context {context} needs a kubeconfig: {remedy}")
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if host and port:
        return ServiceAccountAccess(f"https://{f'[{host}]' if ':' in host else host}:{port}", SERVICE_ACCOUNT)
    raise ConfigurationError(f"not in a cluster (KUBERNETES_SERVICE_HOST is not set) and no --kubeconfig: {remedy}")


class ServiceAccountAccess:
    """The token and the CA that kubelet keeps in a folder of the pod; both are read again when they change."""

    def __init__(self, server: str, folder: Path) -> None:
        self.description = f"the service account's token in {folder / 'token'}"
        self._server = server
        self._folder = folder
        self._stamp: tuple[object, ...] = ()
        self._ca = ""
        self._access: Access | None = None

    async def current(self) -> Access:
        """See AccessSource."""
        token_file, ca_file, own = (self._folder / name for name in ("token", "ca.crt", "namespace"))
        try:
            stats = (token_file.stat(), ca_file.stat())
            stamp = tuple((found.st_ino, found.st_mtime_ns, found.st_size) for found in stats)
            if self._access is not None and stamp == self._stamp:
                return self._access
            token, ca = token_file.read_text(encoding="utf-8").strip(), ca_file.read_text(encoding="utf-8")
            namespace = own.read_text(encoding="utf-8").strip() if own.is_file() else ""
        except (OSError, UnicodeDecodeError) as error:
            if self._access is not None:
                return self._access  # kubelet is just swapping the folder
            raise ConfigurationError(f"the service account of this pod cannot be read: {error}") from error
        if self._access is not None and ca == self._ca:
            tls = self._access.tls  # another context would open new connections for nothing
        else:
            try:
                if not ca.strip():  # the system's authorities are not to be trusted with the token
                    raise ConfigurationError(f"{ca_file}: the file contains no certificate")  # noqa: TRY301
                tls = tls_context(ca, where=str(ca_file))
            except ConfigurationError:
                if self._access is None:
                    raise
                tls = self._access.tls  # half written, or spoilt: it was good once, and is read again when it changes
        self._stamp, self._ca = stamp, ca
        self._access = Access(self._server, f"Bearer {token}", tls, namespace=namespace)
        return self._access

    async def renew(self, refused: Access) -> Access:
        """See AccessSource."""
        self._stamp = ()
        return await self.current()


class KubeconfigAccess:
    """What a kubeconfig says; read again when its token has expired or was refused, as exec plugins give new ones."""

    def __init__(self, path: str, context: str = "") -> None:
        self.description = f"the kubeconfig {path}"
        self._path = path
        self._context = context
        self._lock = asyncio.Lock()
        self._access: Access | None = None
        self._expiry = 0.0
        self._renewed = float("-inf")

    async def current(self) -> Access:
        """See AccessSource."""
        if self._access is not None and not self._expired():
            return self._access
        return await self.renew(None)

    async def renew(self, refused: Access | None) -> Access:
        """See AccessSource; None for one that has expired."""
        async with self._lock:
            access, now = self._access, time.monotonic()
            if access is None:
                return await self._read()
            is_good = access is not refused and not self._expired()
            if is_good or now - self._renewed < _RENEWAL_SECONDS:
                return access
            self._renewed = now
            try:
                return await self._read()
            except ConfigurationError as error:
                raise ApiUnavailableError(str(error)) from error  # it was good once: somebody is changing it

    def _expired(self) -> bool:
        """Whether the credentials' own expiry, a time of the wall clock, is near or past."""
        return bool(self._expiry) and time.time() > self._expiry - _EXPIRY_MARGIN_SECONDS

    async def _read(self) -> Access:
        where, tls = self.description, None
        try:
            login = await read_kubeconfig(self._path, self._context)
        except (ConfigurationError, ApiUnavailableError) as error:
            raise type(error)(f"{where}: {error}") from error
        if login.server.startswith("https://"):
            tls = tls_context(login.ca, login.certificate, login.key, insecure=login.insecure, where=where)
        name, proxy = login.tls_server_name or None, login.proxy or None
        self._expiry = login.expiry
        self._access = Access(login.server, login.authorization, tls, name, proxy, login.namespace, login.impersonation)
        return self._access


def tls_context(ca: str, certificate: str = "", key: str = "", *, insecure: bool = False, where: str) -> ssl.SSLContext:
    """A client's TLS context from PEM texts; without a CA the system's are trusted. `where`: whose texts, for errors.

    Raises ApiUnavailableError where there is no room for the file that a certificate needs, or no file descriptor.
    """
    try:
        context = ssl.create_default_context(cadata=ca or None)
        # Python 3.13 turns this on; many clusters' own CAs do not meet it and are no less trusted for that.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate:  # `ssl` reads a key only from a file: one that nobody else can read, gone right after
            with tempfile.TemporaryDirectory(prefix="crrd-") as folder:
                pem = Path(folder) / "client.pem"
                pem.touch(mode=0o600)
                pem.write_text(f"{certificate}\n{key}\n", encoding="utf-8")
                context.load_cert_chain(pem)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(f"{where}: the TLS certificates cannot be used: {error}") from error
    except OSError as error:
        raise ApiUnavailableError(f"{where}: the TLS certificates temporarily cannot be read: {error}") from error
    return context
