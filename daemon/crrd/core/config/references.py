"""Which ConfigMaps and Secrets each container of a pod uses: env, envFrom, volumes and projected volumes.

imagePullSecrets do not count, because their changes do not reach a container. Invalid input raises no exception.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from crrd.core.api.pod import pod_containers
from crrd.lib.jsonfields import items, mapping, text, value_at


class Kind(StrEnum):
    """The kinds of objects that hold configuration."""

    CONFIG_MAP = "ConfigMap"
    SECRET = "Secret"  # noqa: S105 - a kind of object


class Use(StrEnum):
    """How a container uses an object."""

    ENV = "env"
    ENV_FROM = "envFrom"
    VOLUME = "volume"  # Projected volumes included
    SUB_PATH = "subPath"  # kubelet never updates such a file in a running container

    @property
    def mounted(self) -> bool:
        """Whether the container mounts the object as a volume, or as a part of one."""
        return self in (Use.VOLUME, Use.SUB_PATH)


@dataclass(frozen=True, slots=True)
class Reference:
    """One use of one object."""

    kind: Kind
    name: str
    use: Use
    keys: frozenset[str] | None = None  # The keys that are used, None for all
    required: frozenset[str] = frozenset()  # Keys without which kubelet does not start the container
    optional: bool = False  # Whether kubelet starts the container without the object

    @property
    def object(self) -> tuple[Kind, str]:
        """The object's kind and name."""
        return self.kind, self.name

    def __str__(self) -> str:
        """For messages: `ConfigMap web-cfg (env)`."""
        return f"{self.kind} {self.name} ({self.use})"


def references(pod: Mapping[str, Any]) -> dict[str, tuple[Reference, ...]]:
    """Return what each container that can be recreated uses, by name, from the JSON of a pod or a pod template."""
    spec = mapping(pod.get("spec"))
    volumes = {text(each.get("name")): tuple(_of_volume(each)) for each in map(mapping, items(spec.get("volumes")))}
    return {
        name: tuple(dict.fromkeys([*_of_env(entry), *_of_mounts(entry, volumes)]))
        for name, entry, kind in pod_containers(spec)
        if kind.recreatable
    }


def _of_env(container: Mapping[str, Any]) -> Iterator[Reference]:
    for variable in items(container.get("env")):
        for kind, field in ((Kind.CONFIG_MAP, "configMapKeyRef"), (Kind.SECRET, "secretKeyRef")):
            ref = mapping(value_at(variable, f"valueFrom.{field}"))
            name, key, optional = text(ref.get("name")), text(ref.get("key")), ref.get("optional") is True
            if name and key:
                keys = frozenset({key})
                yield Reference(kind, name, Use.ENV, keys, frozenset() if optional else keys, optional)
    for source in items(container.get("envFrom")):
        for kind, field in ((Kind.CONFIG_MAP, "configMapRef"), (Kind.SECRET, "secretRef")):
            ref = mapping(value_at(source, field))
            if name := text(ref.get("name")):
                yield Reference(kind, name, Use.ENV_FROM, optional=ref.get("optional") is True)


@dataclass(frozen=True, slots=True)
class _Part:
    """The files of one source in a volume."""

    reference: Reference
    paths: Mapping[str, str]  # Path in the volume -> key, if the source lists its keys; else each key is its own path


def _of_volume(volume: Mapping[str, Any]) -> Iterator[_Part]:
    projected = map(mapping, items(value_at(volume, "projected.sources")))
    sources = [(volume, Kind.CONFIG_MAP, "configMap", "name"), (volume, Kind.SECRET, "secret", "secretName")]
    for source in projected:
        sources += [(source, Kind.CONFIG_MAP, "configMap", "name"), (source, Kind.SECRET, "secret", "name")]
    for source, kind, field, name_field in sources:
        body = mapping(source.get(field))
        name = text(body.get(name_field))
        if not name:
            continue
        listed = map(mapping, items(body.get("items")))
        paths = {text(each.get("path")): key for each in listed if (key := text(each.get("key")))}
        keys, optional = frozenset(paths.values()) or None, body.get("optional") is True
        required = frozenset() if optional or keys is None else keys
        yield _Part(Reference(kind, name, Use.VOLUME, keys, required, optional), paths)


def _of_mounts(container: Mapping[str, Any], volumes: Mapping[str, tuple[_Part, ...]]) -> Iterator[Reference]:
    for mount in map(mapping, items(container.get("volumeMounts"))):
        path = text(mount.get("subPath")).strip("/")
        by_expression = bool(text(mount.get("subPathExpr")))
        for part in volumes.get(text(mount.get("name")), ()):
            if path or by_expression:
                yield from _below(part, path)
            else:
                yield part.reference


def _below(part: _Part, path: str) -> Iterator[Reference]:
    """Yield what a mount of one path of a volume uses. An unknown path ("", an expression) may use all keys."""
    whole = part.reference
    keys = whole.keys
    if path and part.paths:
        keys = frozenset(key for at, key in part.paths.items() if at == path or at.startswith(f"{path}/"))
    elif path:
        keys = frozenset({path})
    if keys or keys is None:
        yield Reference(whole.kind, whole.name, Use.SUB_PATH, keys, whole.required, whole.optional)
