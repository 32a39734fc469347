"""The ControllerRevisions that keep data of ConfigMaps for policies, and the patch that writes kept data back.

A ControllerRevision, because the API server lets nobody change its data. The policy owns it as its controller, so that
it is deleted with the policy, and that no controller of a workload adopts it.
"""

from collections.abc import Mapping
from typing import Any

from crrd.core.config.objects import WHOLE
from crrd.core.policy.observed import Stored
from crrd.core.policy.revisions import Keep
from crrd.core.policy.types import API_VERSION, KIND, Policy
from crrd.lib.jsonfields import mapping, name_of, text

LABEL_KEPT = "crr.apps.kruise.io/kept-for-policy"
"""On a ControllerRevision: the UID of the policy whose data it keeps."""
ANNOTATION_OBJECT, ANNOTATION_HASH = "crr.apps.kruise.io/kept-config-map", "crr.apps.kruise.io/kept-hash"
"""Of which ConfigMap it has data, and the hash of that (`whole_hash`)."""
Data = Mapping[str, Mapping[str, str]]


def revision_body(policy: Policy, keep: Keep, data: Data) -> dict[str, Any]:
    """Return the ControllerRevision that keeps this data (`whole_data`)."""
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": policy.name, "uid": policy.uid, "controller": True}
    meta = {
        "name": keep.revision,
        "labels": {LABEL_KEPT: policy.uid},
        "annotations": {ANNOTATION_OBJECT: keep.object, ANNOTATION_HASH: keep.hash},
        "ownerReferences": [owner],
    }
    return {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": meta, "data": data, "revision": 1}


def read_stored(obj: Mapping[str, Any]) -> Stored:
    """Parse the metadata of a ControllerRevision."""
    notes = mapping(mapping(obj.get("metadata")).get("annotations"))
    return Stored(name_of(obj), text(notes.get(ANNOTATION_OBJECT)), text(notes.get(ANNOTATION_HASH)))


def restore_body(now: Data, kept: Data, version: str) -> dict[str, Any]:
    """Return the merge patch that gives a ConfigMap of this version the kept data instead of its present data."""
    body: dict[str, Any] = {"metadata": {"resourceVersion": version}}
    for name in WHOLE:
        values = {**dict.fromkeys(now.get(name, {})), **kept.get(name, {})}
        if values:
            body[name] = values
    return body
