"""What a container's mounts use, by the rules of kubelet's `makeMounts`, its volume plugins and `AtomicWriter`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from posixpath import normpath
from typing import Any

from crrd.core.config.environment import expand
from crrd.core.config.references import Kind, Reference, Use
from crrd.lib.jsonfields import items, mapping, text, value_at

_ACCOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where admission mounts the ServiceAccount's token: a projected volume, in old clusters a Secret."""
_DATA_DIRECTORY = "..data"
"""The link in a volume to the directory with its present files. A `subPath` may lead through it."""

_OWN_PATHS = (
    *("serviceAccountToken.path", "clusterTrustBundle.path", "podCertificate.credentialBundlePath"),
    *("podCertificate.keyPath", "podCertificate.certificateChainPath"),
)
"""Fields of the sources of a projected volume that name a file."""


@dataclass(frozen=True, slots=True)
class Source:
    """The files of one source in a volume."""

    reference: Reference
    files: Mapping[str, str] | None  # Path in the volume -> key; None if each key is its own path


def read_volume(volume: Mapping[str, Any]) -> Iterator[Source]:
    """Yield the ConfigMaps and Secrets in a volume."""
    yield from _read_source(volume, "secretName", frozenset())
    sources = [*map(mapping, items(value_at(volume, "projected.sources")))]
    for index, source in enumerate(sources):
        yield from _read_source(source, "name", frozenset().union(*map(_certain_paths, sources[index + 1 :])))


def _read_source(source: Mapping[str, Any], secret_name: str, hidden: frozenset[str]) -> Iterator[Source]:
    """Yield what a source has. Later sources of the volume have other files at the `hidden` paths."""
    for kind, field, name_field in ((Kind.CONFIG_MAP, "configMap", "name"), (Kind.SECRET, "secret", secret_name)):
        body = mapping(source.get(field))
        if name := text(body.get(name_field)):
            listed, optional = _listed(body), body.get("optional") is True
            required = frozenset[str]() if optional else frozenset(key for _, key in listed)
            if not listed:
                yield Source(Reference(kind, name, Use.VOLUME, None, required, optional, hidden), None)
                continue
            files = {path: key for path, key in listed if path not in hidden}
            yield Source(Reference(kind, name, Use.VOLUME, frozenset(files.values()), required, optional), files)


def _listed(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the paths of a source's items, each with its key."""
    pairs = ((text(each.get("path")), text(each.get("key"))) for each in map(mapping, items(body.get("items"))))
    return [(path, key) for path, key in pairs if key]


def _certain_paths(source: Mapping[str, Any]) -> frozenset[str]:
    """Return the paths where a source of a projected volume has a file. An optional object may be missing."""
    bodies = [mapping(source.get(field)) for field in ("configMap", "secret")]
    found = {path for body in bodies if body.get("optional") is not True for path, _ in _listed(body)}
    found |= {text(mapping(each).get("path")) for each in items(value_at(source, "downwardAPI.items"))}
    found |= {text(value_at(source, path)) for path in _OWN_PATHS}
    return frozenset(filter(None, found))


def of_mounts(
    container: Mapping[str, Any], volumes: Mapping[str, tuple[Source, ...]], values: Mapping[str, str]
) -> Iterator[Reference]:
    """Yield what `volumeMounts` use. `values` are the known values of variables, for `subPathExpr`."""
    for mount in map(mapping, items(container.get("volumeMounts"))):
        if normpath(text(mount.get("mountPath"))) == _ACCOUNT_PATH:
            continue
        path: str | None = text(mount.get("subPath"))
        if expression := text(mount.get("subPathExpr")):
            path = expand(expression, values)
        for source in volumes.get(text(mount.get("name")), ()):
            if path is None:  # it may be any file
                yield replace(source.reference, use=Use.SUB_PATH)
            elif path:
                yield from _below(source, path)
            else:
                yield source.reference


def _below(source: Source, path: str) -> Iterator[Reference]:
    """Yield what a mount of one path of a volume uses. kubelet rejects absolute paths, and paths with `..`."""
    names = tuple(name for name in path.split("/") if name not in ("", "."))
    if path.startswith("/") or ".." in names:
        return
    inner = names[1:] if names[:1] == (_DATA_DIRECTORY,) else names
    keys = source.reference.keys
    if inner and source.files is not None:
        files = source.files.items()
        keys = frozenset(key for at, key in files if tuple(normpath(at).split("/"))[: len(inner)] == inner)
    elif inner:
        # No key has a slash, as kubelet makes an empty directory there.
        keys = frozenset({"/".join(inner)}) - source.reference.without
    if keys or keys is None:
        without = source.reference.without if keys is None else frozenset[str]()
        yield replace(source.reference, use=Use.SUB_PATH, keys=keys, without=without)
