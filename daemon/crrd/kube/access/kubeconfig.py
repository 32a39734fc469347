"""Reads a kubeconfig as kubectl does: merges several files, and takes a context's cluster and user.

The first read decides about cluster, namespace and user for good. Only the user's credentials are read again.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from crrd.kube.access.execplugin import run_plugin
from crrd.kube.access.files import merged_files, read_text, require
from crrd.lib.errors import ConfigurationError
from crrd.lib.jsonfields import Reader, mapping, text, value_at


class EntryChangedError(ConfigurationError):
    """The kubeconfig no longer has an entry that a login was read from, or has another server there."""


@dataclass(frozen=True, slots=True)
class Login:
    """The server and the credentials of a kubeconfig's context. Texts that the kubeconfig does not set are ""."""

    server: str  # Base URL without a trailing slash
    authorization: str = field(default="", repr=False)  # The value of the HTTP header
    ca: str = ""  # PEM, as are the certificate and the key
    certificate: str = ""
    key: str = field(default="", repr=False)
    insecure: bool = False
    tls_server_name: str = ""
    proxy: str = ""
    namespace: str = ""
    impersonation: tuple[tuple[str, str], ...] = ()  # Header names and values
    expiry: float = 0.0  # When the credentials expire, in seconds since the epoch; 0 for never
    context: str = ""  # Its name; with `cluster` and `user` the entries that were read
    cluster: str = ""
    user: str = ""
    cluster_info: Mapping[str, Any] = field(default_factory=dict, repr=False)  # The cluster's section, for plugins
    is_only_context: bool = False  # Whether the kubeconfig has no other context


@dataclass(frozen=True, slots=True)
class Overrides:
    """What replaces parts of a kubeconfig, as kubectl's flags for the connection do. A text that is not given is ""."""

    context: str = ""  # The names of its entries
    cluster: str = ""
    user: str = ""
    namespace: str = ""
    cluster_fields: Mapping[str, Any] = field(default_factory=dict)  # With a kubeconfig's keys; only those given
    user_fields: Mapping[str, Any] = field(default_factory=dict, repr=False)


NO_OVERRIDES = Overrides()


async def read_kubeconfig(paths: str, overrides: Overrides = NO_OVERRIDES) -> Login:
    """Read the files (separated by colons, "" for none) and run the user's exec plugin, if the user has no token.

    Raises:
        ConfigurationError: the files cannot be used, and waiting does not help.
        ApiUnavailableError: the plugin failed, or the system has no free file descriptor or memory; retry later.
    """
    merged = merged_files(paths)
    (context, cluster_name, user_name), cluster, user = _selected(merged, overrides)
    reader = Reader()
    server = reader.text(cluster.get("server"), "the cluster's server").rstrip("/")
    proxy = reader.text(cluster.get("proxy-url"), "the cluster's proxy-url")
    insecure = reader.flag(cluster.get("insecure-skip-tls-verify"), "the cluster's insecure-skip-tls-verify")
    tls_server_name = reader.text(cluster.get("tls-server-name"), "the cluster's tls-server-name")
    require(not reader.error, reader.error)
    _check_url("server", server)
    if proxy:
        _check_url("proxy-url", proxy)
    ca = _pem(cluster, "certificate-authority") if server.startswith("https://") else ""
    login = Login(
        server,
        ca=ca,
        insecure=insecure,
        tls_server_name=tls_server_name,
        proxy=proxy,
        namespace=text(mapping(merged["contexts"].get(context)).get("namespace")) or overrides.namespace,
        impersonation=_impersonation(user),
        context=context,
        cluster=cluster_name,
        user=user_name,
        cluster_info={**cluster, "certificate-authority-data": _base64(ca)},
        is_only_context=len(merged["contexts"]) < 2,
    )
    return await _with_credentials(login, user)


async def renew_credentials(login: Login, paths: str, overrides: Overrides = NO_OVERRIDES) -> Login:
    """Return the login with the credentials that its user's entry gives now. All else stays as it was.

    Raises EntryChangedError if that entry is gone, or its cluster has another server, and the errors of
    `read_kubeconfig`.
    """
    merged = merged_files(paths)
    if "server" not in overrides.cluster_fields:
        renamed = {} if overrides.cluster else mapping(merged["contexts"].get(login.context))
        for name in filter(None, dict.fromkeys([login.cluster, text(renamed.get("cluster"))])):
            server = text(mapping(merged["clusters"].get(name)).get("server")).rstrip("/")
            _require_same(name in merged["clusters"], login, f"it no longer has the cluster {name!r}")
            why = f"its cluster {name!r} now has the server {_shown(server)}"
            _require_same(server == login.server, login, why)
    _require_same(not login.user or login.user in merged["users"], login, f"it no longer has the user {login.user!r}")
    return await _with_credentials(login, _with_user_fields(merged["users"].get(login.user, {}), overrides.user_fields))


def _require_same(condition: bool, login: Login, change: str) -> None:
    if not condition:
        began = f"this command began with the server {_shown(login.server)}, and works with no other"
        raise EntryChangedError(f"{change}, but {began}: put the entry back, or start the command again")


def _shown(server: str) -> str:
    """Return a server's address for messages, without a password."""
    parts = urlsplit(server)
    return parts.netloc.rpartition("@")[2] + parts.path or "none"


async def _with_credentials(login: Login, user: Mapping[str, Any]) -> Login:
    """Return the login with the credentials of a user's section."""
    certificate = key = ""
    if login.server.startswith("https://"):
        certificate, key = _pem(user, "client-certificate"), _pem(user, "client-key")
    authorization, expiry = _authorization(user), 0.0
    if not authorization and "exec" in user:
        issued = await run_plugin(user["exec"], login.cluster_info)
        authorization = f"Bearer {issued.token}" if issued.token else ""
        certificate, key, expiry = issued.certificate or certificate, issued.key or key, issued.expiry
    require(authorization.isprintable(), "the user's token has a character that cannot be sent")
    return replace(login, authorization=authorization, certificate=certificate, key=key, expiry=expiry)


def _selected(merged: Mapping[str, Any], overrides: Overrides) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    """Return the names of context, cluster and user, "" for one without an entry, and the sections of the last two.

    A user without a section has no credentials.
    """
    name = overrides.context or text(merged["current-context"])
    knows_server = bool(overrides.cluster or overrides.cluster_fields.get("server"))
    require(bool(name) or knows_server, "it has no current-context: set one with kubectl config use-context")
    require(not name or name in merged["contexts"], f"it has no context named {name!r}")
    context: Mapping[str, Any] = merged["contexts"].get(name, {})
    cluster = overrides.cluster or text(context.get("cluster"))
    cause = "--cluster needs" if overrides.cluster else f"the context {name!r} needs"
    known = cluster in merged["clusters"] or (knows_server and not overrides.cluster)
    require(known, f"it has no cluster named {cluster!r}, which {cause}")
    user = overrides.user or text(context.get("user"))
    require(user in merged["users"] or not overrides.user, f"it has no user named {user!r}, which --user needs")
    names = {"contexts": name, "clusters": cluster, "users": user}
    return (
        [each if each in merged[listed] else "" for listed, each in names.items()],
        _with_cluster_fields(merged["clusters"].get(cluster, {}), overrides.cluster_fields),
        _with_user_fields(merged["users"].get(user, {}), overrides.user_fields),
    )


def _with_cluster_fields(cluster: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cluster's section with other fields, as client-go's clientcmd/client_config.go merges them.

    What is given about trust replaces all that the cluster has about it, and another server has another name.
    """
    trust = {"certificate-authority", "certificate-authority-data", "insecure-skip-tls-verify"}
    require(len(trust & given.keys()) < 2, "--certificate-authority and --insecure-skip-tls-verify exclude each other")
    dropped = trust if trust & given.keys() else set()
    dropped |= {"tls-server-name"} if "server" in given else set()
    return {key: value for key, value in cluster.items() if key not in dropped} | dict(given)


def _with_user_fields(user: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    dropped = {f"{key}-data" for key in given} | ({"tokenFile"} if "token" in given else set())
    return {key: value for key, value in user.items() if key not in dropped} | dict(given)


def _authorization(user: Mapping[str, Any]) -> str:
    """Return the Authorization header for a user's section without a plugin, "" for none.

    Of the auth-providers, kubectl still supports only oidc. crrd uses the token that kubectl last refreshed.
    """
    reader = Reader()
    token, file, username, password = (
        reader.text(user.get(key), f"the user's {key}") for key in ("token", "tokenFile", "username", "password")
    )
    require(not reader.error, reader.error)
    if file and (read := _of_file(Path(file), token)):  # kubectl prefers the file, whose token is renewed
        token = read
    if not token and "auth-provider" in user:
        token = text(value_at(user, "auth-provider.config.id-token"))
        require(bool(token), "the user's auth-provider has no id-token: use an exec plugin instead")
    if token:
        return f"Bearer {token.strip()}"
    return f"Basic {_base64(f'{username}:{password}')}" if username and password and "exec" not in user else ""


def _of_file(file: Path, token: str) -> str:
    """Return the token in a file. "" if there is none, also if it cannot be read and there is another token."""
    try:
        return read_text(file).strip()
    except ConfigurationError:
        if token:
            return ""
        raise


def _impersonation(user: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the impersonation headers, one for each value, as client-go's transport/round_trippers.go sends them.

    The keys of extras are sent in lower case, because API servers convert them to lower case anyway.
    """
    given = {name: user[name] for name in ("as", "as-uid", "as-groups", "as-user-extra") if user.get(name)}
    missing_as = "the user has as-uid, as-groups or as-user-extra, but as is missing"
    require(not given or "as" in given, missing_as)  # client-go's validateAuthInfo
    groups, extra = given.get("as-groups", []), given.get("as-user-extra", {})
    extra_is_valid = isinstance(extra, dict) and all(isinstance(key, str) and _are_texts(extra[key]) for key in extra)
    require(extra_is_valid, "the user's as-user-extra must hold lists of strings")
    require(_are_texts(groups), "the user's as-groups must be a list of strings")
    headers = []
    for name, header in (("as", "Impersonate-User"), ("as-uid", "Impersonate-Uid")):
        if name in given:
            require(isinstance(given[name], str), f"the user's {name} must be a string")
            headers.append((name, header, given[name]))
    headers += [("as-groups", "Impersonate-Group", group) for group in groups]
    for key, values in extra.items():
        headers += [("as-user-extra", f"Impersonate-Extra-{_escaped(key)}", value) for value in values]
    for name, _, value in headers:
        require(value.isprintable(), f"the user's {name} has a character that cannot be sent")
    return tuple((header, value) for _, header, value in headers)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _escaped(key: str) -> str:
    """Escape an extra's key for a header name, as client-go's headerKeyEscape does."""
    try:
        return quote(key, safe="!#$&'*+^`|").lower()
    except UnicodeEncodeError as error:
        raise ConfigurationError("the user's as-user-extra has a character that cannot be sent") from error


def _check_url(field_name: str, url: str) -> None:
    """Reject a URL that no client could call. The error does not repeat it, because it may hold a password."""
    is_http = url.startswith(("http://", "https://"))
    require(is_http, f"the cluster's {field_name} must be a URL that begins with https:// or http://")
    wrong = ""
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0:
            wrong = "it has no host and port"
    except ValueError as error:
        wrong = str(error)
    if not (url.isascii() and url.isprintable() and " " not in url):
        wrong = "it has a character that is not allowed in a URL"
    require(not wrong, f"the cluster's {field_name} cannot be used: {wrong}")


def _pem(section: Mapping[str, Any], name: str) -> str:
    """Return the PEM text from a section's base64 data, or from the file that it names; "" for neither."""
    data = section.get(f"{name}-data")
    if not data:
        return read_text(Path(section[name]), errors="surrogateescape") if text(section.get(name)) else ""
    try:
        return base64.b64decode(data).decode(errors="surrogateescape")
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{name}-data cannot be read: {error}") from error


def _base64(value: str) -> str:
    return base64.b64encode(value.encode("utf-8", "surrogateescape")).decode()
