"""What is put back into a ContainerRecreateRequest that somebody changes.

Who applies the same file again (`kubectl apply`, GitOps tools) leaves out what admission had filled in: the webhook
puts that back, so that nothing has changed. What is then still different is somebody's wish; the CRD and the policies
say whether it is allowed. Nothing here raises for what somebody else wrote.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from crrd.core.admission.rules import NAMING_LABELS, SET_BY_ADMISSION, WHILE_SERVED, of_meta
from crrd.core.api.schema import FIELDS
from crrd.core.api.types import ANNOTATION_REQUESTED_BY, LABEL_ACTIVE
from crrd.lib.jsonfields import items, value_at, with_values


def put_back(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The request as somebody wants it now, with what admission had filled in and they do not mention.

    A whole object that mentions neither the pod's UID nor its node comes from a file: it gets the label active back as
    well. One without the user who asked has lost the annotations of those who serve it, and gets them back. Who takes
    one of these away by itself means it.

    Nobody knows whether a grace period in the old object was the user's or the pod's: one that is left out stays.
    """
    from_file = all(of_meta(new, "labels").get(key) is None for key in NAMING_LABELS)
    whole = of_meta(new, "annotations").get(ANNOTATION_REQUESTED_BY) is None
    ours = {
        "labels": (*NAMING_LABELS, *([LABEL_ACTIVE] if from_file else [])),
        "annotations": (ANNOTATION_REQUESTED_BY, *(WHILE_SERVED if whole else ())),
    }
    values = _containers(old, new)
    for kind, keys in ours.items():
        given = of_meta(new, kind)
        if kept := _kept(of_meta(old, kind), given, keys):
            values[f"metadata.{kind}"] = {**given, **kept}
    for field in FIELDS.values():
        value = value_at(old, field.path)
        filled_in = field.filled_in and value is not None and (field.of_pod or value == field.default)
        if filled_in and field.absent(value_at(new, field.path)):
            values[field.path] = value
    return with_values(new, values)


def _kept(old: Mapping[str, Any], new: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """What of these the new one does not mention, as the old one has it."""
    return {key: old[key] for key in keys if old.get(key) is not None and new.get(key) is None}


def _containers(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, object]:
    """The containers with what admission set in them, by their path; none where they have it all."""
    before, after = (items(value_at(obj, "spec.containers")) for obj in (old, new))
    if len(after) > len(before):  # a spec cannot be changed: what is refused anyhow need not be walked
        return {}
    filled = list(after)
    for index, (ours, theirs) in enumerate(zip(before, after, strict=False)):
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping) and ours.get("name") == theirs.get("name"):
            filled[index] = {**theirs, **_kept(ours, theirs, SET_BY_ADMISSION)}
    return {} if filled == list(after) else {"spec.containers": filled}
