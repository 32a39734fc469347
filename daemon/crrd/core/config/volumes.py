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


@dataclass(frozen=True, slots=True)
class Part:
    """The files of one source in a volume."""

    reference: Reference
    files: Mapping[str, str]  # Path in the volume -> key, if the source lists its keys; else each key is its own path


def read_volume(volume: Mapping[str, Any]) -> Iterator[Part]:
    """Yield the ConfigMaps and Secrets in a volume."""
    sources = [(volume, Kind.CONFIG_MAP, "configMap", "name"), (volume, Kind.SECRET, "secret", "secretName")]
    for source in map(mapping, items(value_at(volume, "projected.sources"))):
        sources += [(source, Kind.CONFIG_MAP, "configMap", "name"), (source, Kind.SECRET, "secret", "name")]
    for source, kind, field, name_field in sources:
        body = mapping(source.get(field))
        name = text(body.get(name_field))
        if not name:
            continue
        pairs = ((text(each.get("path")), text(each.get("key"))) for each in map(mapping, items(body.get("items"))))
        listed = [(path, key) for path, key in pairs if key]
        files, optional = dict(listed), body.get("optional") is True
        required = frozenset[str]() if optional else frozenset(key for _, key in listed)
        keys = frozenset(files.values()) or None
        yield Part(Reference(kind, name, Use.VOLUME, keys, required, optional), files)


def of_mounts(
    container: Mapping[str, Any], volumes: Mapping[str, tuple[Part, ...]], values: Mapping[str, str]
) -> Iterator[Reference]:
    """Yield what `volumeMounts` use. `values` are the known values of variables, for `subPathExpr`."""
    for mount in map(mapping, items(container.get("volumeMounts"))):
        if normpath(text(mount.get("mountPath"))) == _ACCOUNT_PATH:
            continue
        path: str | None = text(mount.get("subPath"))
        if expression := text(mount.get("subPathExpr")):
            path = expand(expression, values)
        for part in volumes.get(text(mount.get("name")), ()):
            if path is None:  # it may be any file
                yield replace(part.reference, use=Use.SUB_PATH)
            elif path:
                yield from _below(part, path)
            else:
                yield part.reference


def _below(part: Part, path: str) -> Iterator[Reference]:
    """Yield what a mount of one path of a volume uses. kubelet rejects absolute paths, and paths with `..`."""
    names = tuple(name for name in path.split("/") if name not in ("", "."))
    if path.startswith("/") or ".." in names:
        return
    inner = names[1:] if names[:1] == (_DATA_DIRECTORY,) else names
    keys = part.reference.keys
    if inner and part.files:
        files = part.files.items()
        keys = frozenset(key for at, key in files if tuple(normpath(at).split("/"))[: len(inner)] == inner)
    elif inner:
        keys = frozenset({"/".join(inner)})  # no key has a slash, as kubelet makes an empty directory there
    if keys or keys is None:
        yield replace(part.reference, use=Use.SUB_PATH, keys=keys)
