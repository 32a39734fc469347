"""The API server's address and crrd's credentials, from a kubeconfig or from the pod's service account.

Both give an `Access`, which is renewed when it expires or the server refuses it.
"""

import asyncio
import os
import re
import ssl
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from multidict import CIMultiDict

from crrd.kube.access.files import is_file
from crrd.kube.access.kubeconfig import (
    NO_OVERRIDES,
    EntryChangedError,
    Login,
    Overrides,
    read_kubeconfig,
    renew_credentials,
)
from crrd.kube.access.proxy import proxy_for
from crrd.lib.errors import ApiUnavailableError, ConfigurationError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # Where kubelet mounts a pod's service account
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[ -~\s]+?-----END CERTIFICATE-----", re.ASCII)
_EXPIRY_MARGIN_SECONDS = 60.0
_RENEWAL_SECONDS = 10.0
"""Least time between two renewals from a kubeconfig, so that a failing exec plugin does not run for every call."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a call needs to reach the API server."""

    server: str  # Base URL without a trailing slash
    authorization: str = field(default="", repr=False)  # The value of the HTTP header, "" for none
    tls: ssl.SSLContext | None = None  # None for plain HTTP
    server_hostname: str | None = None  # The name in the server's certificate, if it is not the URL's host
    proxy: str | None = None
    namespace: str = ""  # The default namespace: of the kubeconfig's context, or the pod's own; "" for neither
    impersonation: tuple[tuple[str, str], ...] = ()  # Impersonation headers; a name may occur more than once
    context: str = ""  # The name of the kubeconfig's context, "" for none
    is_only_context: bool = False  # Whether the kubeconfig has no other context

    @property
    def headers(self) -> CIMultiDict[str]:
        """The HTTP headers for authentication and impersonation."""
        headers = [("Authorization", self.authorization)] if self.authorization else []
        return CIMultiDict([*headers, *self.impersonation])


class AccessSource(Protocol):
    """Provides the current access.

    Both methods raise ConfigurationError if there is no access and waiting does not help, and ApiUnavailableError if
    there is none at the moment.
    """

    @property
    def description(self) -> str:
        """The source of the credentials, for messages."""
        ...

    async def current(self) -> Access:
        """Return the access for the next call. This is cheap unless something has changed or expired."""
        ...

    async def renew(self, refused: Access) -> Access:
        """Return a new access after the server refused this one (401); the same one if there is no other."""
        ...


def find_access(kubeconfig: str, environ: Mapping[str, str], overrides: Overrides = NO_OVERRIDES) -> AccessSource:
    """Choose as kubectl does: the given kubeconfig, else the user's own, else the pod's service account.

    Raises ConfigurationError if there is none, or if `overrides` name entries of a kubeconfig and there is none.
    """
    own = Path(environ.get("HOME", "/nonexistent")) / ".kube" / "config"
    if kubeconfig or is_file(own):
        return KubeconfigAccess(kubeconfig or str(own), overrides)
    remedy = f"set --kubeconfig, or put the kubeconfig at {own}"
    for flag in ("context", "cluster", "user"):
        if name := getattr(overrides, flag):
            raise ConfigurationError(f"--{flag} {name} needs a kubeconfig: {remedy}")
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if host and port:
        server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        if overrides == NO_OVERRIDES:
            return ServiceAccountAccess(server, SERVICE_ACCOUNT)
        return KubeconfigAccess("", _of_service_account(server, SERVICE_ACCOUNT, overrides))
    if "server" in overrides.cluster_fields:
        return KubeconfigAccess("", overrides)
    raise ConfigurationError(f"not in a cluster (KUBERNETES_SERVICE_HOST is not set) and no --kubeconfig: {remedy}")


def _of_service_account(server: str, folder: Path, overrides: Overrides) -> Overrides:
    """Return the service account as fields of a kubeconfig, as far as the overrides have no other."""
    namespace = folder / "namespace"
    has_trust = overrides.cluster_fields.keys() & {"certificate-authority", "insecure-skip-tls-verify"}
    own = {} if "token" in overrides.user_fields else {"tokenFile": str(folder / "token")}
    ca = {} if has_trust else {"certificate-authority": str(folder / "ca.crt")}
    return replace(
        overrides,
        namespace=namespace.read_text(encoding="utf-8").strip() if is_file(namespace) else "",
        cluster_fields={"server": server, **ca, **overrides.cluster_fields},
        user_fields={**own, **overrides.user_fields},
    )


class ServiceAccountAccess:
    """The token and the CA that kubelet keeps in a folder of the pod. Both are read again after a change."""

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
            token, ca = token_file.read_text(encoding="utf-8").strip(), ca_file.read_bytes().decode(errors="replace")
            namespace = own.read_text(encoding="utf-8").strip() if own.is_file() else ""
        except (OSError, UnicodeDecodeError) as error:
            if self._access is not None:
                return self._access  # kubelet is replacing the folder's content right now
            raise ConfigurationError(f"the service account of this pod cannot be read: {error}") from error
        if self._access is not None and ca == self._ca:
            tls = self._access.tls  # a new context would need new connections
        else:
            try:
                if not ca.strip():  # do not trust the system's CAs with the token instead
                    raise ConfigurationError(f"{ca_file}: the file contains no certificate")  # noqa: TRY301
                tls = tls_context(ca, where=str(ca_file))
            except ConfigurationError:
                if self._access is None:
                    raise
                tls = self._access.tls  # ca.crt is half written or broken: keep the last good one until it changes
        self._stamp, self._ca = stamp, ca
        self._access = Access(self._server, f"Bearer {token}", tls, namespace=namespace)
        return self._access

    async def renew(self, refused: Access) -> Access:
        """See AccessSource."""
        self._stamp = ()
        return await self.current()


class KubeconfigAccess:
    """Access from a kubeconfig, to the cluster that it names at first, whatever happens to the kubeconfig later.

    The credentials are read again if they expire or are refused (exec plugins issue new ones).
    """

    def __init__(self, path: str, overrides: Overrides = NO_OVERRIDES) -> None:
        self.description = f"the kubeconfig {path}" if path else "the given flags"
        self._path = path
        self._overrides = overrides
        self._lock = asyncio.Lock()  # Held during a renewal. All calls wait for it, because none can succeed before
        self._login: Login | None = None
        self._access: Access | None = None
        self._renewed = float("-inf")
        self._problem = ""  # Why the last renewal has failed

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
            if access is not refused and not self._expired():
                return access
            if now - self._renewed < _RENEWAL_SECONDS:
                if access is refused and self._problem:
                    raise ApiUnavailableError(self._problem)
                return access
            self._renewed, before, self._problem = now, self._problem, ""
            try:
                return await self._read()
            except (ConfigurationError, ApiUnavailableError) as error:
                self._problem = str(error)
                if isinstance(error, EntryChangedError) and self._problem == before:
                    raise
                raise ApiUnavailableError(self._problem) from error  # it was valid before, so it may be mid-edit: retry

    def _expired(self) -> bool:
        """Whether the credentials have expired or are about to. Their expiry is a wall-clock time."""
        expiry = self._login.expiry if self._login is not None else 0.0
        return bool(expiry) and time.time() > expiry - _EXPIRY_MARGIN_SECONDS

    async def _read(self) -> Access:
        where, tls, source = self.description, None, (self._path, self._overrides)
        try:
            first = self._login
            login = await read_kubeconfig(*source) if first is None else await renew_credentials(first, *source)
            proxy = login.proxy or proxy_for(login.server, os.environ)
        except (ConfigurationError, ApiUnavailableError) as error:
            raise type(error)(f"{where}: {error}") from error
        if login.server.startswith("https://"):
            tls = tls_context(login.ca, login.certificate, login.key, insecure=login.insecure, where=where)
        elif proxy.startswith("https://"):
            tls = tls_context("", where=where)  # aiohttp's own context trusts nobody (`lib.imports`)
        self._login = login
        self._access = Access(
            login.server,
            login.authorization,
            tls,
            login.tls_server_name or None,
            proxy or None,
            login.namespace,
            login.impersonation,
            login.context,
            login.is_only_context,
        )
        return self._access


def tls_context(ca: str, certificate: str = "", key: str = "", *, insecure: bool = False, where: str) -> ssl.SSLContext:
    """Make a client's TLS context from PEM texts; without a CA it trusts the system's. `where`: the source, for errors.

    Raises ConfigurationError if the texts cannot be used, and ApiUnavailableError if the temporary file for the
    certificate cannot be written (disk full, no file descriptor).
    """
    authorities = "\n".join(_CERTIFICATE.findall(ca))  # `ssl` accepts no comments that are not ASCII
    if ca and not authorities:
        raise ConfigurationError(f"{where}: the TLS certificates cannot be used: the CA contains no PEM certificate")
    try:
        context = ssl.create_default_context(cadata=authorities or None)
        # Python 3.13 turns VERIFY_X509_STRICT on, but the CAs of many clusters do not comply with it.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate:  # `ssl` reads a key only from a file: use a private one, and delete it right after
            with tempfile.TemporaryDirectory(prefix="crrd-") as folder:
                pem = Path(folder) / "client.pem"
                pem.touch(mode=0o600)
                pem.write_text(f"{certificate}\n{key}\n", encoding="utf-8", errors="surrogateescape")
                context.load_cert_chain(pem)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(f"{where}: the TLS certificates cannot be used: {error}") from error
    except OSError as error:
        raise ApiUnavailableError(f"{where}: the TLS certificates temporarily cannot be read: {error}") from error
    return context
