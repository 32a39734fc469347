"""What is put back into a ContainerRecreateRequest that somebody changes.

Who applies the same file again (`kubectl apply`, GitOps tools) leaves out what admission had filled in: the webhook
puts that back, so that nothing has changed. What is then still different is somebody's wish; the CRD and the policies
say whether it is allowed. Pure, as `rules` is, and nothing here raises for what somebody else wrote.
"""

from collections.abc import Mapping
from typing import Any

from crrd.core.admission.rules import (
    NAMING_LABELS,
    SET_BY_ADMISSION,
    WHILE_SERVED,
    of_meta,
)
from crrd.core.api.schema import FIELDS
from crrd.core.api.types import ANNOTATION_REQUESTED_BY, LABEL_ACTIVE
from crrd.lib.jsonfields import items, mapping, value_at, with_values


def put_back(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The request as somebody wants it now, with what admission had filled in and they do not mention.

    A whole object that mentions neither the pod's UID nor its node comes from a file: it gets the label active back as
    well. One without the user who asked has lost the annotations of those who serve it, and gets them back. Who takes
    one of these away by itself means it.

    Nobody knows whether a grace period in the old object was the user's or the pod's: one that is left out stays.
    """
    meta = mapping(new.get("metadata"))
    labels, annotations = mapping(meta.get("labels")), mapping(meta.get("annotations"))
    from_file = all(labels.get(key) is None for key in NAMING_LABELS)
    whole = annotations.get(ANNOTATION_REQUESTED_BY) is None
    kept = {
        "labels": _kept(of_meta(old, "labels"), labels, *NAMING_LABELS, *([LABEL_ACTIVE] if from_file else [])),
        "annotations": _kept(
            of_meta(old, "annotations"), annotations, ANNOTATION_REQUESTED_BY, *(WHILE_SERVED if whole else ())
        ),
    }
    values = {f"metadata.{field}": {**mapping(meta.get(field)), **found} for field, found in kept.items() if found}
    return with_values(new, {**values, **_defaults(old, new), **_containers(old, new)})


def _kept(old: Mapping[str, Any], new: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """What of these the new one does not mention, as the old one has it."""
    return {key: old[key] for key in keys if old.get(key) is not None and new.get(key) is None}


def _defaults(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, object]:
    """What admission has filled in, as far as anybody can tell, and the new object leaves out: by path."""
    kept: dict[str, object] = {}
    for field in FIELDS.values():
        value = value_at(old, field.path)
        ours = field.filled_in and value is not None and (field.of_pod or value == field.default)
        if ours and field.absent(value_at(new, field.path)):
            kept[field.path] = value
    return kept


def _containers(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, object]:
    """The containers with what admission set in them, by their path; none where they have it all."""
    before, after = (items(value_at(obj, "spec.containers")) for obj in (old, new))
    if len(after) > len(before):  # a spec cannot be changed: what is refused anyhow need not be walked
        return {}
    filled = [
        {**entry, **_kept(before[index], entry, *SET_BY_ADMISSION)}
        if index < len(before) and _same_name(before[index], entry)
        else entry
        for index, entry in enumerate(after)
    ]
    return {} if filled == list(after) else {"spec.containers": filled}


def _same_name(old: object, new: object) -> bool:
    return isinstance(old, Mapping) and isinstance(new, Mapping) and old.get("name") == new.get("name")
