"""`python -m crrd.kube.kubeconfig PATH [--context NAME]`: prints what a kubeconfig comes to, as JSON.

Runs as a process of its own for `config`, so that the `kubernetes` package, which knows every way to be logged in, is
in nobody's memory afterwards. Exit codes: 2 for what cannot heal, 3 for credentials that could not be had now; one line
says why instead. On stderr is what an exec plugin says there, as it comes.
"""

import argparse
import importlib
import io
import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlsplit

_LISTED = {"clusters": "cluster", "contexts": "context", "users": "user"}
"""What a kubeconfig lists, and the key of one."""
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
"""What is relative to the file that says it, besides a plugin's command (client-go's tools/clientcmd/loader.go)."""
_NO_INPUT = "its interactiveMode is Always, but crrd hands no input to plugins: log in before, say with kubectl"


class KubeconfigError(Exception):
    """The kubeconfig cannot be used; waiting does not help."""


class CredentialsError(Exception):
    """The plugin that gives the credentials failed; it may do better later."""


class _LastError(logging.Handler):
    """Keeps the last error that was logged: so the package reports a failed plugin."""

    def __init__(self) -> None:
        super().__init__(level=logging.ERROR)
        self.message = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line of it."""
        self.message = " ".join(record.getMessage().split())


class _Plugin(subprocess.Popen[str]):
    """An exec plugin as the package runs it; what it says on stderr is said on ours at once: it may ask for a login."""

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:  # noqa: A002
        """What it wrote on stdout and on stderr, once it has closed both."""
        if self.stdout is None or self.stderr is None:
            return super().communicate(input, timeout)
        said: list[bytes] = []
        with self.stdout, self.stderr:
            listener = threading.Thread(target=_pass_on, args=(self.stderr.fileno(), said))
            listener.start()
            out = self.stdout.read()
            listener.join()
        return out, b"".join(said).decode("utf-8", "replace")


def _pass_on(descriptor: int, said: list[bytes]) -> None:
    while chunk := os.read(descriptor, 65536):
        said.append(chunk)
        sys.stderr.buffer.write(chunk)
        sys.stderr.buffer.flush()


def resolve(path: str, context: str | None) -> dict[str, Any]:
    """What the kubeconfig comes to.

    Raises:
        KubeconfigError, CredentialsError: see there.
    """
    if not any(Path(part).is_file() for part in path.split(":")):
        raise KubeconfigError("there is no such file: check --kubeconfig")
    # Here, so that a missing file need not wait for half a second of imports; the package is mostly untyped.
    client: Any = importlib.import_module("kubernetes.client")
    kube_config: Any = importlib.import_module("kubernetes.config.kube_config")
    # The package would keep what a plugin says to itself until it ends.
    provider: Any = importlib.import_module("kubernetes.config.exec_provider")
    provider.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": _Plugin})
    last = _LastError()
    logging.getLogger().addHandler(last)
    try:
        loader = kube_config.KubeConfigLoader(_merged(path), active_context=context)
        found = client.Configuration()
        found.host = ""
        loader.load_and_set(found)
    except Exception as error:  # whatever a broken file makes the package stumble over
        raise KubeconfigError(f"it cannot be used: {' '.join(str(error).split())}") from error
    finally:
        logging.getLogger().removeHandler(last)
    # "Bearer ..." or "Basic ..."; a token from a file may end in a line end
    authorization = (getattr(loader, "token", None) or "").strip()
    if "exec" in _user(loader) and not authorization and not found.cert_file:
        why = last.message or "its exec plugin gave no credentials"
        if _user(loader)["exec"].get("interactiveMode") == "Always":
            why += f" ({_NO_INPUT})"
        raise CredentialsError(why)
    if not authorization.isprintable():
        raise KubeconfigError("the user's token has a character that cannot be sent")
    impersonation = _impersonation(_user(loader))
    proxy = getattr(loader, "proxy", None) or ""  # not the environment's, which the package mixes in
    _check("server", str(found.host))
    if proxy:
        _check("proxy-url", str(proxy))
    expiry = getattr(loader, "expiry", None)
    return {
        "server": found.host.rstrip("/"),
        "authorization": authorization,
        "ca": _read(found.ssl_ca_cert),
        "certificate": _read(found.cert_file),
        "key": _read(found.key_file),
        "insecure": not found.verify_ssl,
        "tls_server_name": found.tls_server_name or "",
        "proxy": proxy,
        "expiry": expiry.timestamp() if expiry else 0.0,
        "namespace": _namespace(loader),
        "impersonation": impersonation,
    }


def _merged(paths: str) -> dict[str, Any]:
    """Several files as one, as kubectl merges them: the first that gives a name, or a current context, counts.

    Not by the package: it takes the last file's current context, and refuses a file that is empty.

    Raises:
        KubeconfigError: a file holds something else, or a name twice.
    """
    yaml: Any = importlib.import_module("yaml")  # slow, too
    current = ""
    found: dict[str, dict[str, Any]] = {listed: {} for listed in _LISTED}
    for path in filter(None, paths.split(":")):
        try:
            content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        if content is None:
            continue
        if not isinstance(content, dict):
            raise KubeconfigError(f"{path} holds no kubeconfig")
        current = current or content.get("current-context") or ""
        for listed, field in _LISTED.items():
            own: dict[str, Any] = {}
            for entry in content.get(listed) or []:
                name = entry.get("name") or ""
                if name in own:
                    raise KubeconfigError(f"{path} names {name} twice in its {listed}")
                own[name] = {"name": name, field: _located(_said(entry.get(field)), Path(path).absolute().parent)}
            found[listed] = own | found[listed]
    return {"current-context": current or None, **{listed: [*named.values()] for listed, named in found.items()}}


def _said(value: Any) -> dict[str, Any]:
    """A section without what is null or empty: for kubectl that is the same as not there, for the package it is not."""
    kept = {key: given for key, given in (value or {}).items() if given not in (None, "")}
    return {key: _said(given) if isinstance(given, dict) else given for key, given in kept.items()}


def _located(value: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A cluster's or a user's section with paths of its own; a command without a slash is looked for in PATH."""
    located: dict[str, Any] = {key: str(folder / value[key]) for key in _PATHS if value.get(key)}
    run = value.get("exec")
    if isinstance(run, dict) and "/" in str(run.get("command")):
        located["exec"] = {**run, "command": str(folder / run["command"])}
    return {**value, **located}


def _impersonation(user: dict[str, Any]) -> list[tuple[str, str]]:
    """The headers that make us act as somebody else, one for each value, as client-go sends them.

    (Its transport/round_trippers.go. API servers read an extra's key in lower case, so it may be sent so.)

    Raises:
        KubeconfigError: something is no text, or cannot be sent, or nobody is named.
    """
    given = {name: user[name] for name in ("as", "as-uid", "as-groups", "as-user-extra") if user.get(name)}
    if given and "as" not in given:  # client-go's validateAuthInfo
        raise KubeconfigError("the user has as-uid, as-groups or as-user-extra, but no as: nobody is impersonated")
    extra = given.get("as-user-extra", {})
    if not isinstance(extra, dict) or not all(isinstance(key, str) and _texts(extra[key]) for key in extra):
        raise KubeconfigError("the user's as-user-extra must hold lists of texts")
    if not _texts(given.get("as-groups", [])):
        raise KubeconfigError("the user's as-groups must be a list of texts")
    headers = []
    for name, header in (("as", "Impersonate-User"), ("as-uid", "Impersonate-Uid")):
        if name in given:
            if not isinstance(given[name], str):
                raise KubeconfigError(f"the user's {name} must be a text")
            headers.append((name, header, given[name]))
    headers += [("as-groups", "Impersonate-Group", group) for group in given.get("as-groups", [])]
    for key, values in extra.items():
        headers += [("as-user-extra", f"Impersonate-Extra-{_escaped(key)}", value) for value in values]
    for name, _, value in headers:
        if not value.isprintable():
            raise KubeconfigError(f"the user's {name} has a character that cannot be sent")
    return [(header, value) for _, header, value in headers]


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _escaped(key: str) -> str:
    """An extra's key as a header's name can hold it: what may not be in one, and %, as client-go's headerKeyEscape."""
    try:
        return quote(key, safe="!#$&'*+^`|").lower()
    except UnicodeEncodeError as error:
        raise KubeconfigError("the user's as-user-extra has a character that cannot be sent") from error


def _check(field: str, url: str) -> None:
    """Refuse a URL that no client could call. Raises KubeconfigError, without the URL: it may hold a password."""
    if not url.startswith(("http://", "https://")):
        raise KubeconfigError(f"the cluster's {field} must be a URL that begins with https:// or http://")
    wrong = "" if url.isascii() and url.isprintable() and " " not in url else "it has a character that no URL may have"
    try:
        parts = urlsplit(url)
        wrong = wrong or ("" if parts.hostname and parts.port != 0 else "it names no host and port")
    except ValueError as error:
        wrong = wrong or str(error)
    if wrong:
        raise KubeconfigError(f"the cluster's {field} cannot be used: {wrong}")


def _namespace(loader: Any) -> str:
    """The namespace of the context; "" where it names none."""
    context = getattr(loader, "current_context", None) or {}
    named = context.get("context", {}).get("namespace") if isinstance(context, dict) else None
    return named if isinstance(named, str) else ""


def _user(loader: Any) -> dict[str, Any]:
    """The user's section of the kubeconfig; the package keeps it to itself."""
    value = getattr(getattr(loader, "_user", None), "value", None)
    return value if isinstance(value, dict) else {}


def _read(path: str | None) -> str:
    """The PEM text in a file, "" for no file.

    Raises:
        KubeconfigError: it cannot be read.
    """
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KubeconfigError(f"{path} cannot be read: {error}") from error


def main() -> int:
    """Print the JSON, or why not."""
    parser = argparse.ArgumentParser(prog="python -m crrd.kube.kubeconfig", description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--context")
    arguments = parser.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr's are: a file's names may be any
    try:
        json.dump(resolve(arguments.path, arguments.context), sys.stdout)
    except KubeconfigError as error:
        print(error)
        return 2
    except CredentialsError as error:
        print(error)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
