"""Restores fields that admission had set, if an update of a ContainerRecreateRequest leaves them out.

A tool that applies the same file again (`kubectl apply`, GitOps tools) leaves out the fields that admission has set.
The webhook restores them, so that nothing changes. Other differences are intended, and the CRD and the policies decide
whether they are allowed. Invalid input never raises an exception here.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from crrd.core.admission.rules import ANNOTATIONS_OF_DAEMONS, LABELS_OF_POD_AND_NODE, SET_BY_ADMISSION
from crrd.core.api.schema import FIELDS
from crrd.core.api.types import ANNOTATION_REQUESTED_BY, LABEL_ACTIVE, LABEL_POD_NAME, Action
from crrd.lib.jsonfields import items, mapping, mapping_at, value_at, with_values


def put_back(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the new object, with the fields that admission had set in the old one and that the new one leaves out.

    An object with neither the label of the pod's UID nor that of its node comes from a file, and gets the label active
    back, too. An object without the annotation of the requesting user also gets back the annotations that manager and
    node write. An update that removes only that label, or one of these annotations, is intended, and is not undone.

    A missing grace period is always restored, because the old one may be the user's or the pod's.
    """
    from_file = all(mapping_at(new, "metadata.labels").get(key) is None for key in LABELS_OF_POD_AND_NODE)
    whole = mapping_at(new, "metadata.annotations").get(ANNOTATION_REQUESTED_BY) is None
    ours = {
        "metadata.labels": (*LABELS_OF_POD_AND_NODE, LABEL_POD_NAME, *([LABEL_ACTIVE] if from_file else [])),
        "metadata.annotations": (ANNOTATION_REQUESTED_BY, *(ANNOTATIONS_OF_DAEMONS if whole else ())),
    }
    values = _containers(old, new)
    for kind, keys in ours.items():
        given = mapping_at(new, kind)
        if kept := _kept(mapping_at(old, kind), given, keys):
            values[kind] = {**given, **kept}
    for field in FIELDS.values():
        value = value_at(old, field.path)
        filled_in = field.filled_in and value is not None and (field.of_pod or value == field.default)
        if filled_in and field.absent(value_at(new, field.path)):
            values[field.path] = value
    return with_values(new, values)


def _kept(old: Mapping[str, Any], new: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Return the old values of those keys that the new object leaves out."""
    return {key: old[key] for key in keys if old.get(key) is not None and new.get(key) is None}


def _containers(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, object]:
    """Return the completed `spec.containers` by its path; empty if the new object's entries are complete."""
    before, after = (items(value_at(obj, "spec.containers")) for obj in (old, new))
    given, known = ([(each.get("name"), each.get("image")) for each in map(mapping, some)] for some in (after, before))
    named_later = value_at(new, "spec.wholePod") is True or value_at(new, "spec.strategy.action") == Action.RELOAD
    if named_later and all(image and (name, image) in known for name, image in given):
        return {"spec.containers": list(before)}
    if len(after) > len(before):  # a spec is immutable, so this update is rejected anyway
        return {}
    filled = list(after)
    for index, (ours, theirs) in enumerate(zip(before, after, strict=False)):
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping) and ours.get("name") == theirs.get("name"):
            filled[index] = {**theirs, **_kept(ours, theirs, SET_BY_ADMISSION)}
    return {} if filled == list(after) else {"spec.containers": filled}
