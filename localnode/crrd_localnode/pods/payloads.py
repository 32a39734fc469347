"""The files of configMap, secret, downwardAPI and projected volumes, from objects in the API and the pod's fields.

Source: pkg/volume/configmap, secret, downwardapi and projected in Kubernetes.
"""

from base64 import b64decode
from collections.abc import Callable, Iterator

from crrd.core.config.references import Kind, ObjectName
from crrd_localnode.pods import spec as podspec
from crrd_localnode.pods.atomic_writer import File, VolumeError
from crrd_localnode.pods.spec import Json

DEFAULT_MODE = 0o644
PRIVATE_MODE = 0o600  # Of a token, if only the pod's group may read it
_OBJECTS = {"configMap": Kind.CONFIG_MAP, "secret": Kind.SECRET}
_MISSING = {
    Kind.CONFIG_MAP: "configmap references non-existent config key", Kind.SECRET: "references non-existent secret key"
}  # fmt: skip

Objects = Callable[[Kind, str], Json | None]  # Returns an object of the pod's namespace, or None if it does not exist


def used_objects(volume: Json) -> Iterator[ObjectName]:
    """Yield the kind and name of each ConfigMap and Secret of a volume."""
    for field, source in _sources(volume):
        if field in _OBJECTS:
            yield _OBJECTS[field], _name(source)


def _sources(volume: Json) -> Iterator[tuple[str, Json]]:
    bodies = volume["projected"].get("sources") or [] if "projected" in volume else [volume]
    for body in bodies:
        yield from ((field, source) for field, source in body.items() if isinstance(source, dict))


def _name(source: Json) -> str:
    return str(source.get("secretName") or source.get("name") or "")


def files_of(pod: Json, volume: Json, objects: Objects) -> dict[str, File]:
    """Return the files by path. Of two sources with one path, the last counts. VolumeError names all faults."""
    body: Json = next((body for body in volume.values() if isinstance(body, dict)), {})
    files: dict[str, File] = {}
    faults = []
    for field, source in _sources(volume):
        try:
            files |= _files(pod, field, source, objects, int(body.get("defaultMode", DEFAULT_MODE)))
        except VolumeError as error:
            faults.append(str(error))
    if faults:
        raise VolumeError(faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]")
    return files


def _files(pod: Json, field: str, source: Json, objects: Objects, mode: int) -> dict[str, File]:
    """Return the files of one source."""
    if field in _OBJECTS:
        return _object_files(_OBJECTS[field], source, objects, mode)
    if field == "downwardAPI":
        return {item["path"]: File(_field(pod, item), item.get("mode", mode)) for item in source.get("items") or []}
    if field == "emptyDir":
        return {}
    if field == "serviceAccountToken":
        account = pod["spec"].get("serviceAccountName") or "default"
        token = f"local-node:{pod['metadata']['namespace']}:{account}:{source.get('audience', '')}"
        grouped = (pod["spec"].get("securityContext") or {}).get("fsGroup") is not None
        return {source["path"]: File(token.encode(), PRIVATE_MODE if grouped else mode)}
    raise VolumeError(f"a local node has no volume source of kind {field}")


def _object_files(kind: Kind, source: Json, objects: Objects, mode: int) -> dict[str, File]:
    found, optional = objects(kind, _name(source)), bool(source.get("optional"))
    if found is None and not optional:
        raise VolumeError(f'{kind.lower()} "{_name(source)}" not found')
    data = contents(kind, found or {})
    if not source.get("items"):
        return {key: File(content, mode) for key, content in data.items()}
    missing = [item["key"] for item in source["items"] if item["key"] not in data]
    if missing and not optional:
        raise VolumeError(f"{_MISSING[kind]}: {missing[0]}")
    present = (item for item in source["items"] if item["key"] in data)
    return {item["path"]: File(data[item["key"]], item.get("mode", mode)) for item in present}


def contents(kind: Kind, found: Json) -> dict[str, bytes]:
    """Return the contents of a ConfigMap or Secret by key."""
    encoded = found.get("data") or {} if kind is Kind.SECRET else found.get("binaryData") or {}
    plain = found.get("data") or {} if kind is Kind.CONFIG_MAP else {}
    return {key: b64decode(text) for key, text in encoded.items()} | {key: text.encode() for key, text in plain.items()}


def _field(pod: Json, item: Json) -> bytes:
    if "fieldRef" not in item:
        raise VolumeError("a local node has no values from resourceFieldRef")
    try:
        return podspec.field(pod, item["fieldRef"]["fieldPath"]).encode()
    except LookupError as error:
        raise VolumeError(str(error.args[0])) from error
