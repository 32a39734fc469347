"""Reads the kinds that a CustomResourceDefinition defines, and finds the project's own CRDs."""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from crrd.lib.jsonpath import find_all, parse_path
from crrd_localnode.api.errors import Cause
from crrd_localnode.api.kinds import Column, Kind
from crrd_localnode.api.objects import Object, dig, metadata
from crrd_localnode.api.printers import AGE, UNKNOWN, age_since
from crrd_localnode.api.schema import Schema

REQUESTS, POLICIES = "crd.yaml", "policies-crd.yaml"


def crd_path(name: str = REQUESTS) -> Path:
    """Return the file of a CRD of the project: in this package (installed wheel), or else in the manifests."""
    package = Path(__file__).resolve().parents[1]
    installed = package / name
    return installed if installed.exists() else package.parents[1] / "manifests" / "base" / name


def load_crd(name: str = REQUESTS) -> Object:
    """Load a CRD of the project. The caller may change what it gets."""
    crd: Object = json.loads(_as_json(name))
    return crd


@cache
def _as_json(name: str) -> str:
    """Return a CRD as JSON: reading YAML takes longer than all else that a server does to start."""
    return json.dumps(yaml.safe_load(crd_path(name).read_text(encoding="utf-8")))


def crd_rules(crd: Object, _old: Object | None = None) -> list[Cause]:
    """Return the faults of a CRD: missing fields without which it cannot be served."""
    spec = crd.get("spec") or {}
    causes = [
        Cause(f"spec.{path}", "Required value")
        for path in ("group", "scope", "versions", "names.kind", "names.plural")
        if not dig(spec, *path.split("."))
    ]
    expected = f"{dig(spec, 'names', 'plural')}.{spec.get('group')}"
    if not causes and metadata(crd).get("name") != expected:
        text = f'Invalid value: "{metadata(crd).get("name")}": must be spec.names.plural+"."+spec.group'
        causes.append(Cause("metadata.name", text))
    versions = spec.get("versions") or []
    if not causes and sum(bool(version.get("storage")) for version in versions) != 1:
        causes.append(Cause("spec.versions", "Invalid value: must have exactly one version marked as storage version"))
    for at, version in enumerate(versions):
        if not isinstance(dig(version, "schema", "openAPIV3Schema"), dict):
            path = f"spec.versions[{at}].schema.openAPIV3Schema"
            causes.append(Cause(path, "Required value: schemas are required"))
        for number, column in enumerate(version.get("additionalPrinterColumns") or []):
            try:
                parse_path(column["jsonPath"])
            except ValueError as error:
                path = f"spec.versions[{at}].additionalPrinterColumns[{number}].jsonPath"
                causes.append(Cause(path, f'Invalid value: "{column["jsonPath"]}": {error}'))
    return causes


def established(crd: Object) -> Object:
    """Return the CRD with the status that the API server's controllers write when it is served."""
    names = {"listKind": f"{crd['spec']['names']['kind']}List", **crd["spec"]["names"]}
    names.setdefault("singular", names["kind"].lower())
    now = metadata(crd).get("creationTimestamp")
    reasons = (
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    )
    conditions = [
        {"lastTransitionTime": now, "type": kind, "status": "True", "reason": reason, "message": message}
        for kind, reason, message in reasons
    ]
    stored = [version["name"] for version in crd["spec"]["versions"] if version.get("storage")]
    return {**crd, "status": {"conditions": conditions, "acceptedNames": names, "storedVersions": stored}}


def kinds_of(crd: Object) -> tuple[Kind, ...]:
    """Return a kind for each version that the CRD serves."""
    spec = crd["spec"]
    names = spec["names"]
    (storage,) = (version["name"] for version in spec["versions"] if version.get("storage"))
    return tuple(
        Kind(
            group=spec["group"],
            version=version["name"],
            kind=names["kind"],
            plural=names["plural"],
            singular=names.get("singular", ""),
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            namespaced=spec["scope"] == "Namespaced",
            custom=True,
            storage="" if version["name"] == storage else storage,
            others=tuple(other["name"] for other in spec["versions"] if other.get("served") and other is not version),
            status=dig(version, "subresources", "status") is not None,
            generation=True,
            unconditional_update=False,
            columns=tuple(_column(column) for column in version.get("additionalPrinterColumns") or ()) or (AGE,),
            fields={
                field["jsonPath"].removeprefix("."): field_path(field["jsonPath"])
                for field in version.get("selectableFields") or ()
            },
            schema=Schema(version["schema"]["openAPIV3Schema"]),
        )
        for version in spec["versions"]
        if version.get("served")
    )


def field_path(path: str) -> tuple[str, ...]:
    """Return the field names of a path of a selectable field, which consists of names, with escaped dots."""
    return tuple(name.replace("\\.", ".") for name in re.split(r"(?<!\\)\.", path.removeprefix(".")))


def _column(column: Mapping[str, Any]) -> Column:
    path, kind = parse_path(column["jsonPath"]), column.get("type", "string")

    def value(obj: Object, now: datetime) -> Any:
        try:
            found = find_all(path, obj)
        except LookupError:
            return None
        return _cell(kind, found[0], now) if found else None  # only the first result counts

    about = column.get("description") or f"Custom resource definition column (in JSONPath format): {column['jsonPath']}"
    return Column(column["name"], value, kind, column.get("format", ""), column.get("priority", 0), about)


def _cell(kind: str, value: Any, now: datetime) -> Any:
    """Return a value as a column of this type shows it, None if it is of another type: `cellForJSONValue`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "string":
        if isinstance(value, dict | list):
            return json.dumps(value, separators=(",", ":"), sort_keys=True)
        return value if isinstance(value, str) else "<no value>" if value is None else json.dumps(value)
    if kind == "date" and isinstance(value, str):
        age = age_since(value, now)
        return "<invalid>" if age == UNKNOWN else age
    if kind == "integer" and number:
        return int(value)
    return value if (kind == "number" and number) or (kind == "boolean" and isinstance(value, bool)) else None
