"""Reads a kubeconfig as kubectl does: merges several files, and takes a context's cluster and user.

PyYAML is imported only here and only when a file is read, so a daemon in a cluster never loads it.
"""

import base64
import errno
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from crrd.kube.execplugin import run_plugin
from crrd.lib.errors import ApiUnavailableError, ConfigurationError
from crrd.lib.jsonfields import Reader, items, mapping, text, value_at

_LISTED = {"clusters": "cluster", "contexts": "context", "users": "user"}
"""The lists of a kubeconfig, and the key of an entry's content."""
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
"""Fields whose paths are relative to their file, as is a plugin's command (client-go's tools/clientcmd/loader.go)."""
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # Temporary errors of opening a file


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
    chosen, cluster, user = _selected(_merged(paths), overrides)
    reader = Reader()
    server = reader.text(cluster.get("server"), "the cluster's server").rstrip("/")
    proxy = reader.text(cluster.get("proxy-url"), "the cluster's proxy-url")
    insecure = reader.flag(cluster.get("insecure-skip-tls-verify"), "the cluster's insecure-skip-tls-verify")
    tls_server_name = reader.text(cluster.get("tls-server-name"), "the cluster's tls-server-name")
    _require(not reader.error, reader.error)
    _check_url("server", server)
    if proxy:
        _check_url("proxy-url", proxy)
    ca = certificate = key = ""
    if server.startswith("https://"):
        ca = _pem(cluster, "certificate-authority")
        certificate, key = _pem(user, "client-certificate"), _pem(user, "client-key")
    impersonation, authorization, expiry = _impersonation(user), _authorization(user), 0.0
    if not authorization and "exec" in user:
        issued = await run_plugin(user["exec"], {**cluster, "certificate-authority-data": _base64(ca)})
        authorization = f"Bearer {issued.token}" if issued.token else ""
        certificate, key, expiry = issued.certificate or certificate, issued.key or key, issued.expiry
    _require(authorization.isprintable(), "the user's token has a character that cannot be sent")
    namespace = text(chosen.get("namespace")) or overrides.namespace
    return Login(
        server, authorization, ca, certificate, key, insecure, tls_server_name, proxy, namespace, impersonation, expiry
    )


def is_file(path: str | Path) -> bool:
    """Whether the file exists and can be found. Unlike Path.is_file, this never raises OSError."""
    return os.path.isfile(path)  # noqa: PTH113 - see above


def _is_missing(path: str) -> bool:
    """Whether there is no such file. A pipe is a file, and one that cannot be opened fails when it is read."""
    try:
        Path(path).stat()
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
    return False


def _merged(paths: str) -> dict[str, Any]:
    """Merge the files as kubectl does: the first file that defines a name or a current context wins."""
    files = [Path(path) for path in paths.split(":") if path and not _is_missing(path)]
    _require(bool(files) or not paths, "file not found: check --kubeconfig")
    merged: dict[str, Any] = {"current-context": "", **{listed: {} for listed in _LISTED}}
    for file in files:
        content = _parsed(file)
        merged["current-context"] = merged["current-context"] or content.get("current-context")
        for listed, key in _LISTED.items():
            own: dict[str, Any] = {}
            for entry in items(content.get(listed)):
                name = mapping(entry).get("name") or ""
                _require(isinstance(name, str), f"{file}: each name in {listed} must be a string")
                _require(name not in own, f"{file} names {name!r} twice in its {listed}")
                own[name] = _with_absolute_paths(_given(mapping(entry).get(key)), file.absolute().parent)
            merged[listed] = own | merged[listed]
    return merged


def _parsed(file: Path) -> Mapping[str, Any]:
    yaml: Any = importlib.import_module("yaml")
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers.items()
    plain = {first: [each for each in some if "timestamp" not in each[0]] for first, some in resolvers}
    loader: Any = type("Loader", (yaml.SafeLoader,), {"yaml_implicit_resolvers": plain})  # a date is text to kubectl
    try:
        content = next(yaml.load_all(_read(file), loader), None)  # kubectl ignores further documents, too
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an invalid number
        raise ConfigurationError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from error
    _require(content is None or isinstance(content, dict), f"{file} is not a kubeconfig")
    return mapping(content)


def _given(value: Any) -> dict[str, Any]:
    """Return a section without null and empty values, which kubectl treats as missing."""
    kept = {key: given for key, given in mapping(value).items() if given not in (None, "")}
    return {key: _given(given) if isinstance(given, dict) else given for key, given in kept.items()}


def _with_absolute_paths(section: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a section with absolute paths. A plugin's command without a slash stays, to be looked up in PATH."""
    located: dict[str, Any] = {key: str(folder / section[key]) for key in _PATHS if text(section.get(key))}
    plugin = mapping(section.get("exec"))
    if "/" in text(plugin.get("command")):
        located["exec"] = {**plugin, "command": str(folder / plugin["command"])}
    return {**section, **located}


def _selected(
    merged: Mapping[str, Any], overrides: Overrides
) -> tuple[Mapping[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the sections of the context, its cluster and its user. A user without a section has no credentials."""
    name = overrides.context or text(merged["current-context"])
    knows_server = bool(overrides.cluster or overrides.cluster_fields.get("server"))
    _require(bool(name) or knows_server, "it has no current-context: set one with kubectl config use-context")
    _require(not name or name in merged["contexts"], f"it has no context named {name!r}")
    context: Mapping[str, Any] = merged["contexts"].get(name, {})
    cluster = overrides.cluster or text(context.get("cluster"))
    cause = "--cluster needs" if overrides.cluster else f"the context {name!r} needs"
    known = cluster in merged["clusters"] or (knows_server and not overrides.cluster)
    _require(known, f"it has no cluster named {cluster!r}, which {cause}")
    user = overrides.user or text(context.get("user"))
    _require(user in merged["users"] or not overrides.user, f"it has no user named {user!r}, which --user needs")
    return (
        context,
        _with_cluster_fields(merged["clusters"].get(cluster, {}), overrides.cluster_fields),
        _with_user_fields(merged["users"].get(user, {}), overrides.user_fields),
    )


def _with_cluster_fields(cluster: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cluster's section with other fields, as client-go's clientcmd/client_config.go merges them.

    What is given about trust replaces all that the cluster has about it, and another server has another name.
    """
    trust = {"certificate-authority", "certificate-authority-data", "insecure-skip-tls-verify"}
    _require(len(trust & given.keys()) < 2, "--certificate-authority and --insecure-skip-tls-verify exclude each other")
    dropped = trust if trust & given.keys() else set()
    dropped |= {"tls-server-name"} if "server" in given else set()
    return {key: value for key, value in cluster.items() if key not in dropped} | dict(given)


def _with_user_fields(user: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    dropped = {f"{key}-data" for key in given}
    return {key: value for key, value in user.items() if key not in dropped} | dict(given)


def _authorization(user: Mapping[str, Any]) -> str:
    """Return the Authorization header for a user's section without a plugin, "" for none.

    Of the auth-providers, kubectl still supports only oidc. crrd uses the token that kubectl last refreshed.
    """
    reader = Reader()
    token, file, username, password = (
        reader.text(user.get(key), f"the user's {key}") for key in ("token", "tokenFile", "username", "password")
    )
    _require(not reader.error, reader.error)
    if not token and file:
        token = _read(Path(file))
    if not token and "auth-provider" in user:
        token = text(value_at(user, "auth-provider.config.id-token"))
        _require(bool(token), "the user's auth-provider has no id-token: use an exec plugin instead")
    if token:
        return f"Bearer {token.strip()}"
    return f"Basic {_base64(f'{username}:{password}')}" if username and password and "exec" not in user else ""


def _impersonation(user: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the impersonation headers, one for each value, as client-go's transport/round_trippers.go sends them.

    The keys of extras are sent in lower case, because API servers convert them to lower case anyway.
    """
    given = {name: user[name] for name in ("as", "as-uid", "as-groups", "as-user-extra") if user.get(name)}
    missing_as = "the user has as-uid, as-groups or as-user-extra, but as is missing"
    _require(not given or "as" in given, missing_as)  # client-go's validateAuthInfo
    groups, extra = given.get("as-groups", []), given.get("as-user-extra", {})
    extra_is_valid = isinstance(extra, dict) and all(isinstance(key, str) and _are_texts(extra[key]) for key in extra)
    _require(extra_is_valid, "the user's as-user-extra must hold lists of strings")
    _require(_are_texts(groups), "the user's as-groups must be a list of strings")
    headers = []
    for name, header in (("as", "Impersonate-User"), ("as-uid", "Impersonate-Uid")):
        if name in given:
            _require(isinstance(given[name], str), f"the user's {name} must be a string")
            headers.append((name, header, given[name]))
    headers += [("as-groups", "Impersonate-Group", group) for group in groups]
    for key, values in extra.items():
        headers += [("as-user-extra", f"Impersonate-Extra-{_escaped(key)}", value) for value in values]
    for name, _, value in headers:
        _require(value.isprintable(), f"the user's {name} has a character that cannot be sent")
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
    _require(is_http, f"the cluster's {field_name} must be a URL that begins with https:// or http://")
    wrong = ""
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0:
            wrong = "it has no host and port"
    except ValueError as error:
        wrong = str(error)
    if not (url.isascii() and url.isprintable() and " " not in url):
        wrong = "it has a character that is not allowed in a URL"
    _require(not wrong, f"the cluster's {field_name} cannot be used: {wrong}")


def _pem(section: Mapping[str, Any], name: str) -> str:
    """Return the PEM text from a section's base64 data, or from the file that it names; "" for neither."""
    data = section.get(f"{name}-data")
    if not data:
        return _read(Path(section[name]), errors="surrogateescape") if text(section.get(name)) else ""
    try:
        return base64.b64decode(data).decode(errors="surrogateescape")
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{name}-data cannot be read: {error}") from error


@cache
def _read_pipe(file: Path) -> str:
    """Return what a pipe gives. It gives that once, but a kubeconfig is read again when its credentials expire."""
    return file.read_text(encoding="utf-8")


def _base64(value: str) -> str:
    return base64.b64encode(value.encode("utf-8", "surrogateescape")).decode()


def _read(file: Path, errors: str = "strict") -> str:
    try:
        return _read_pipe(file) if file.is_fifo() else file.read_text(encoding="utf-8", errors=errors)
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            raise ApiUnavailableError(f"{file} temporarily cannot be read: {error}") from error
        raise ConfigurationError(f"{file} cannot be read: {error}") from error


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ConfigurationError(sentence)
