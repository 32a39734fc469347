"""What may be changed in a ContainerRecreateRequest that exists, and what is put back into it.

Who applies the same file again (`kubectl apply`, GitOps tools) leaves out what admission had filled in: the mutating
webhook puts that back, so that nothing has changed. What is then still different is somebody's wish, and the validating
webhook refuses it. Pure, as `rules` is, and nothing here raises for what somebody else wrote.
"""

from collections.abc import Mapping
from typing import Any

from crrd.core.admission.rules import (
    NAMING_LABELS,
    SET_BY_ADMISSION,
    WHILE_SERVED,
    Admitted,
    DenialReason,
    Denied,
    of_meta,
)
from crrd.core.api.schema import FIELDS
from crrd.core.api.types import ANNOTATION_REQUESTED_BY, ANNOTATION_UNREADY_ACQUIRED, LABEL_ACTIVE
from crrd.lib.jsonfields import items, mapping, shown, value_at, with_values


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


def review_update(old: Mapping[str, Any], new: Mapping[str, Any]) -> Admitted | Denied:
    """Check a change: the spec, the labels that name pod and node, and who asked for it stay what they were.

    The mark unready-acquired stays once it is set, since the grace period runs from it. All else is free: status,
    finalizers, the active label, other labels and annotations.
    """
    before, after = mapping(mapping(old).get("spec")), mapping(mapping(new).get("spec"))
    for key in (*before, *after):
        if before.get(key) != after.get(key):
            sentence = f"spec.{key} is immutable: create a new request instead"
            return Denied(sentence, DenialReason.IMMUTABLE)
    checked = [("labels", key) for key in NAMING_LABELS] + [("annotations", ANNOTATION_REQUESTED_BY)]
    if of_meta(old, "annotations").get(ANNOTATION_UNREADY_ACQUIRED):
        checked.append(("annotations", ANNOTATION_UNREADY_ACQUIRED))
    for field, key in checked:
        was, is_now = of_meta(old, field).get(key), of_meta(new, field).get(key)
        if was != is_now:
            rule = "must not be added to a request that exists" if was is None else f"must stay {shown(was)}"
            return Denied(f"metadata.{field}[{key}] {rule}", DenialReason.IMMUTABLE)
    return Admitted(new)


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
