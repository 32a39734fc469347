"""What may be changed in a ContainerRecreateRequest that exists, and what is put back into it.

Who applies the same file again (`kubectl apply`, GitOps tools) leaves out what admission had filled in: the mutating
webhook puts that back, so that nothing has changed. What is then still different is somebody's wish, and the validating
webhook refuses it. Pure, as `rules` is, and nothing here raises for what somebody else wrote.
"""

from collections.abc import Mapping
from typing import Any

from crrd.core.admission.rules import (
    GRACE,
    NAMING_LABELS,
    SET_BY_ADMISSION,
    WHILE_SERVED,
    Admitted,
    DenialReason,
    Denied,
    of_meta,
)
from crrd.core.api.types import ANNOTATION_REQUESTED_BY, ANNOTATION_UNREADY_ACQUIRED, LABEL_ACTIVE, FailurePolicy
from crrd.lib.jsonfields import items, mapping, shown

_FAIL = ("failurePolicy", FailurePolicy.FAIL.value)
_EMPTY = ("failurePolicy", "")
"""In a new request it is filled in as an absent one is."""


def put_back(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The request as somebody wants it now, with what admission had filled in and they do not mention.

    A whole object that mentions neither the pod's UID nor its node comes from a file: it gets the label active back as
    well. One without the user who asked has lost the annotations of those who serve it, and gets them back. Who takes
    one of these away by itself means it.

    Nobody knows whether a grace period in the old object was the user's or the pod's: one that is left out stays.
    """
    meta, spec = mapping(new.get("metadata")), mapping(new.get("spec"))
    labels, annotations = mapping(meta.get("labels")), mapping(meta.get("annotations"))
    from_file = all(labels.get(key) is None for key in NAMING_LABELS)
    whole = annotations.get(ANNOTATION_REQUESTED_BY) is None
    kept = {
        "labels": _kept(of_meta(old, "labels"), labels, *NAMING_LABELS, *([LABEL_ACTIVE] if from_file else [])),
        "annotations": _kept(
            of_meta(old, "annotations"), annotations, ANNOTATION_REQUESTED_BY, *(WHILE_SERVED if whole else ())
        ),
    }
    result = dict(new)
    if any(kept.values()):
        filled = {field: {**mapping(meta.get(field)), **found} for field, found in kept.items() if found}
        result["metadata"] = {**meta, **filled}
    changed = _spec(mapping(old.get("spec")), spec)
    if changed:
        result["spec"] = {**spec, **changed}
    return result


def review_update(old: Mapping[str, Any], new: Mapping[str, Any]) -> Admitted | Denied:
    """Check a change: the spec, the labels that name pod and node, and who asked for it stay what they were.

    The mark unready-acquired stays once it is set, since the grace period runs from it. All else is free: status,
    finalizers, the active label, other labels and annotations.
    """
    before, after = mapping(mapping(old).get("spec")), mapping(mapping(new).get("spec"))
    for key in (*before, *after):
        if before.get(key) != after.get(key):
            sentence = f"spec.{key} must stay as it was created: create another request instead"
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


def _spec(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the spec in which something is put back, whole."""
    changed: dict[str, Any] = {}
    strategy, wanted = mapping(old.get("strategy")), mapping(new.get("strategy"))
    defaults = {key: found for key, found in strategy.items() if (key, found) == _FAIL or key == GRACE}
    mentioned = {key: found for key, found in wanted.items() if (key, found) != _EMPTY}
    if kept := _kept(defaults, mentioned, *defaults):
        changed["strategy"] = {**wanted, **kept}
    before = items(old.get("containers"))
    after = [
        {**entry, **_kept(before[index], entry, *SET_BY_ADMISSION)}
        if index < len(before) and _same_name(before[index], entry)
        else entry
        for index, entry in enumerate(items(new.get("containers")))
    ]
    if after != list(items(new.get("containers"))):
        changed["containers"] = after
    return changed


def _same_name(old: object, new: object) -> bool:
    return isinstance(old, Mapping) and isinstance(new, Mapping) and old.get("name") == new.get("name")
