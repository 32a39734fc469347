"""Object metadata: fields that the server sets, fields that users may change, and their validation.

The rules are those of k8s.io/apiserver's `registry/rest` (BeforeCreate, BeforeUpdate) and of apimachinery's
`ValidateObjectMeta`.
"""

import re
import secrets
import uuid
from typing import Any

from crrd_localnode.api.errors import Cause, bad_request
from crrd_localnode.api.kinds import Kind
from crrd_localnode.api.objects import Object, metadata, with_metadata
from crrd_localnode.api.selectors import QUALIFIED_NAME, label_error

_SUFFIX_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH = 5
_ANNOTATIONS_LIMIT = 256 * 1024
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_SYSTEM_FIELDS = (
    "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation", "managedFields",
    "name", "namespace", "resourceVersion", "selfLink", "uid",
)  # fmt: skip
"""Set only by the server. Values in a write are ignored."""
METADATA_FIELDS = frozenset({*_SYSTEM_FIELDS, "annotations", "finalizers", "generateName", "labels", "ownerReferences"})


def check_shape(kind: Kind, obj: Any, namespace: str) -> Object:
    """Return the object with its kind and namespace set. ApiError 400 if the given ones are different."""
    if not isinstance(obj, dict):
        raise bad_request(f"the body of the request is not a {kind.kind}")
    given = (obj.get("apiVersion") or kind.api_version, obj.get("kind") or kind.kind)
    if given != (kind.api_version, kind.kind):
        wanted = f"{kind.kind} in {kind.api_version}, not {given[1]} in {given[0]}"
        raise bad_request(f"the object provided is unrecognized (must be of type {wanted})")
    meta = obj.get("metadata") or {}
    if not isinstance(meta, dict):
        raise bad_request("metadata is not an object")
    for field in ("labels", "annotations"):
        values = meta.get(field)
        if values is not None and not (isinstance(values, dict) and all(isinstance(v, str) for v in values.values())):
            raise bad_request(f"json: cannot unmarshal metadata.{field}: the values must be strings")
    if kind.namespaced and meta.get("namespace") not in (None, "", namespace):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    rest = {name: value for name, value in obj.items() if name not in ("kind", "apiVersion", "metadata")}
    meta = {name: value for name, value in meta.items() if value is not None}
    if kind.namespaced:
        meta["namespace"] = namespace
    else:
        meta.pop("namespace", None)
    return {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta, **rest}


def new_metadata(kind: Kind, obj: Object, now: str) -> Object:
    """Return the metadata of a new object: with a generated name if requested, a UID and a timestamp."""
    given = metadata(obj)
    name = given.get("name") or ""
    if not name and given.get("generateName"):
        suffix = "".join(secrets.choice(_SUFFIX_CHARACTERS) for _ in range(_SUFFIX_LENGTH))
        name = f"{given['generateName'][: 63 - _SUFFIX_LENGTH]}{suffix}"
    place = {"namespace": given["namespace"]} if kind.namespaced else {}
    generation = {"generation": 1} if kind.generation else {}
    own = {"uid": str(uuid.uuid4()), "creationTimestamp": now, **generation}
    return {"name": name, **_free_part(given), **place, **own}


def updated_metadata(given: Object, old: Object) -> Object:
    """Return the metadata after a write: the old one's system fields, and the given one's other fields."""
    kept = {field: value for field, value in old.items() if field in _SYSTEM_FIELDS}
    return {**kept, **_free_part(given)}


def _free_part(given: Object) -> Object:
    """Return the fields that users may set. Empty maps and lists are dropped, as in Kubernetes' encoding."""
    return {field: value for field, value in given.items() if field not in _SYSTEM_FIELDS and value not in ({}, [])}


def with_managed_fields(obj: Object, now: str, old: Object | None = None) -> Object:
    """Return a ConfigMap or Secret with managedFields: one writer for all fields. Removing keys keeps the last time."""
    keys = [{name: one.get(name) or {} for name in ("data", "binaryData") if name in one} for one in (obj, old or {})]
    has, had = ({(name, *each) for name in one for each in one[name].items()} for one in keys)
    time = old["metadata"]["managedFields"][0]["time"] if old is not None and has < had else now
    owned: Object = {f"f:{name}": {".": {}, **{f"f:{key}": {} for key in keys[0][name]}} for name in keys[0]}
    entry = {
        "manager": "crrd-localnode", "operation": "Update", "apiVersion": obj["apiVersion"], "time": time,
        "fieldsType": "FieldsV1", "fieldsV1": owned,
    }  # fmt: skip
    return with_metadata(obj, managedFields=[entry])


def name_causes(kind: Kind, name: str) -> list[Cause]:
    """Return the faults of a name."""
    if not name:
        return [Cause("metadata.name", "Required value: name or generateName is required")]
    if kind.path_names:
        good = name not in (".", "..") and "/" not in name and "%" not in name
        return [] if good else [Cause("metadata.name", f'Invalid value: "{name}": may not be a path segment')]
    if len(name) <= 253 and _SUBDOMAIN.fullmatch(name):
        return []
    text = (
        f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric '
        "characters, '-' or '.', and must start and end with an alphanumeric character"
    )
    return [Cause("metadata.name", text)]


def metadata_causes(meta: Object, old: Object | None) -> list[Cause]:
    """Return the faults of labels, annotations and finalizers. Unchanged ones are not checked again."""
    before = old or {}
    causes: list[Cause] = []
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    if labels != before.get("labels"):
        found = (label_error(key, value) for key, value in labels.items())
        causes += [Cause("metadata.labels", problem) for problem in found if problem]
    if annotations != before.get("annotations"):
        found = (label_error(key.lower()) for key in annotations)
        causes += [Cause("metadata.annotations", problem) for problem in found if problem]
        if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > _ANNOTATIONS_LIMIT:
            text = f"Too long: may not be more than {_ANNOTATIONS_LIMIT} bytes"
            causes.append(Cause("metadata.annotations", text))
    return causes + _finalizer_causes(meta, before)


def _finalizer_causes(meta: Object, before: Object) -> list[Cause]:
    had = before.get("finalizers") or []
    fresh = [finalizer for finalizer in meta.get("finalizers") or [] if finalizer not in had]
    causes = [
        Cause("metadata.finalizers", f'Invalid value: "{finalizer}": name is not qualified')
        for finalizer in fresh
        if not isinstance(finalizer, str) or QUALIFIED_NAME.fullmatch(finalizer) is None
    ]
    if fresh and before.get("deletionTimestamp"):
        shown = ", ".join(f'"{finalizer}"' for finalizer in fresh)
        why = f"no new finalizers can be added if the object is being deleted, found new finalizers [{shown}]"
        causes.append(Cause("metadata.finalizers", f"Forbidden: {why}"))
    return causes
