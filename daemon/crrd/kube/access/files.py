"""Reads the files of a kubeconfig, and merges them as kubectl does.

PyYAML is imported only here and only when a file is read, so a daemon in a cluster never loads it.
"""

import errno
import importlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from crrd.lib.errors import ApiUnavailableError, ConfigurationError
from crrd.lib.jsonfields import items, mapping, text

_LISTED = {"clusters": "cluster", "contexts": "context", "users": "user"}
"""The lists of a kubeconfig, and the key of an entry's content."""
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
"""Fields whose paths are relative to their file, as is a plugin's command (client-go's tools/clientcmd/loader.go)."""
_TABS = re.compile(r"[ \t]*\t[ \t]*(?=#|$)", re.MULTILINE)
"""Before a comment, and at the end of a line: Go's YAML takes them as white space, as PyYAML does not."""
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # Temporary errors of opening a file


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


def merged_files(paths: str) -> dict[str, Any]:
    """Merge the files as kubectl does: the first file that defines a name or a current context wins."""
    files = [Path(path) for path in paths.split(":") if path and not _is_missing(path)]
    require(bool(files) or not paths, "file not found: check --kubeconfig")
    merged: dict[str, Any] = {"current-context": "", **{listed: {} for listed in _LISTED}}
    for file in files:
        content = _parsed(file)
        merged["current-context"] = merged["current-context"] or content.get("current-context")
        for listed, key in _LISTED.items():
            own: dict[str, Any] = {}
            for entry in items(content.get(listed)):
                name = mapping(entry).get("name") or ""
                require(isinstance(name, str), f"{file}: each name in {listed} must be a string")
                require(name not in own, f"{file} names {name!r} twice in its {listed}")
                own[name] = _with_absolute_paths(_given(mapping(entry).get(key)), file.absolute().parent)
            merged[listed] = own | merged[listed]
    return merged


def _parsed(file: Path) -> Mapping[str, Any]:
    yaml: Any = importlib.import_module("yaml")
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers.items()
    plain = {first: [each for each in some if "timestamp" not in each[0]] for first, some in resolvers}
    loader: Any = type("Loader", (yaml.SafeLoader,), {"yaml_implicit_resolvers": plain})  # a date is text to kubectl
    written = read_text(file)
    if written.lstrip("\ufeff").lstrip()[:1] == "{":  # JSON may be indented with tabs
        with suppress(ValueError):
            return mapping(json.loads(written.lstrip("\ufeff")))
    try:
        content = _first_document(yaml, written, loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an invalid number
        raise ConfigurationError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from error
    require(content is None or isinstance(content, dict), f"{file} is not a kubeconfig")
    return mapping(content)


def _first_document(yaml: Any, written: str, loader: Any) -> Any:
    """Return the first document, as kubectl ignores further ones. Tabs are replaced only where PyYAML refuses them."""
    try:
        return next(yaml.load_all(written, loader), None)
    except yaml.YAMLError:
        return next(yaml.load_all(_TABS.sub(" ", written), loader), None)


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


@cache
def _read_pipe(file: Path) -> str:
    """Return what a pipe gives. It gives that once, but a kubeconfig is read again when its credentials expire."""
    return file.read_text(encoding="utf-8")


def read_text(file: Path, errors: str = "strict") -> str:
    """Return the content of a file. Raises ConfigurationError, or ApiUnavailableError if it may be readable later."""
    try:
        return _read_pipe(file) if file.is_fifo() else file.read_text(encoding="utf-8", errors=errors)
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            raise ApiUnavailableError(f"{file} temporarily cannot be read: {error}") from error
        raise ConfigurationError(f"{file} cannot be read: {error}") from error


def require(condition: bool, sentence: str) -> None:
    """Raise ConfigurationError unless the condition holds."""
    if not condition:
        raise ConfigurationError(sentence)
