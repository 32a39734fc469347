"""Resolves a container's environment variables like kubelet: from values, fields, ConfigMaps and Secrets.

Source: `makeEnvironmentVariables` in pkg/kubelet/kubelet_pods.go in Kubernetes.
"""

from base64 import b64decode
from collections.abc import Iterator, Mapping

from crrd.core.config.references import Kind, ObjectName
from crrd_localnode.pods import spec as podspec
from crrd_localnode.pods.objects import ConfigObjects, NotSyncedError
from crrd_localnode.pods.spec import Json

ConfigData = Mapping[ObjectName, Mapping[str, str] | None]
"""Data of ConfigMaps and Secrets by kind and name. None if the object does not exist."""
_IN_ENV = {"configMapKeyRef": Kind.CONFIG_MAP, "secretKeyRef": Kind.SECRET}
_IN_ENV_FROM = {"configMapRef": Kind.CONFIG_MAP, "secretRef": Kind.SECRET}


class ConfigError(Exception):
    """The container's spec cannot be converted to a config. The message is that of CreateContainerConfigError."""


async def read_config(objects: ConfigObjects, namespace: str, spec: Json) -> ConfigData:
    """Return the ConfigMaps and Secrets that a container's variables come from. Raises ConfigError."""
    used = set(env_objects(spec))
    try:
        await objects.wait((kind, namespace, name) for kind, name in used)
    except NotSyncedError as error:
        raise ConfigError(str(error)) from error
    config: dict[ObjectName, Mapping[str, str] | None] = {}
    for kind, name in used:
        found = objects.get(kind, namespace, name)
        data = config[kind, name] = None if found is None else found.get("data") or {}
        if data and kind is Kind.SECRET:
            config[kind, name] = {key: b64decode(text).decode(errors="surrogateescape") for key, text in data.items()}
    return config


def env_objects(spec: Json) -> Iterator[ObjectName]:
    """Yield the kind and name of each ConfigMap and Secret of a container's variables."""
    for entry in spec.get("envFrom") or []:
        yield from ((kind, entry[field].get("name", "")) for field, kind in _IN_ENV_FROM.items() if field in entry)
    for entry in spec.get("env") or []:
        source = entry.get("valueFrom") or {}
        yield from ((kind, source[field].get("name", "")) for field, kind in _IN_ENV.items() if field in source)


def environment(pod: Json, spec: Json, config: ConfigData) -> dict[str, str]:
    """Return the container's variables: those of `envFrom`, then `env` in order. ConfigError if a source is missing."""
    variables: dict[str, str] = {}
    for entry in spec.get("envFrom") or []:
        for field, kind in _IN_ENV_FROM.items():
            data = _data(config, kind, entry[field]) if field in entry else None
            variables |= {f"{entry.get('prefix') or ''}{key}": value for key, value in (data or {}).items()}
    for entry in spec.get("env") or []:
        source = entry.get("valueFrom")
        if not source:
            variables[entry["name"]] = podspec.expand(entry.get("value") or "", variables)
        elif "fieldRef" in source:
            try:
                variables[entry["name"]] = podspec.field(pod, source["fieldRef"]["fieldPath"])
            except LookupError as error:
                raise ConfigError(str(error.args[0])) from error
        elif (value := _value(pod, entry["name"], source, config)) is not None:
            variables[entry["name"]] = value
    return variables


def _value(pod: Json, name: str, source: Json, config: ConfigData) -> str | None:
    """Return the value of a key, or None if it is missing and optional."""
    for field, kind in _IN_ENV.items():
        if (reference := source.get(field)) is not None:
            data = _data(config, kind, reference)
            if data is not None and reference["key"] in data:
                return data[reference["key"]]
            if reference.get("optional"):
                return None
            where = f"{pod['metadata']['namespace']}/{reference['name']}"
            raise ConfigError(f"couldn't find key {reference['key']} in {kind} {where}")
    if any((reference or {}).get("optional") for reference in source.values()):
        return None
    raise ConfigError(f"env {name}: a local node has no values from {', '.join(source)}")


def _data(config: ConfigData, kind: Kind, reference: Json) -> Mapping[str, str] | None:
    """Return an object's data, or None if it does not exist and is optional."""
    data = config.get((kind, reference["name"]))
    if data is None and not reference.get("optional"):
        raise ConfigError(f'{kind.lower()} "{reference["name"]}" not found')
    return data
