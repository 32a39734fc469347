"""What must hold for every write of an adoption: no controller replaces a pod because of it.

This looks at a write with code of its own, as the API server's objects would be after it. It is asked before each
write, so a mistake in the steps leaves the run where it is, and the pods in place.
"""

from dataclasses import replace

from crrd.core.rollout.image.controllers import PAUSED, ROLLING, SPEC, STRATEGY, Write, label_path
from crrd.core.rollout.image.facts import ImageRun
from crrd.core.rollout.image.template import LABEL_REVISION, ON_DELETE, Content, Template

_REMOVED = object()


def replaces_pods(facts: ImageRun, write: Write) -> str:
    """Return why a controller may replace pods after this write, "" if none does."""
    changes = {each["path"]: each.get("value", _REMOVED) for each in write.operations if each["op"] != "test"}
    if write.plural == "pods":
        return _by_label(facts, write, str(changes.get(label_path(LABEL_REVISION), "")))
    if write.plural == "replicasets":
        return _by_replica_set(facts, write, changes)
    if not any(path.startswith("/spec/") for path in changes):
        return ""  # it takes only labels from the workload
    content = facts.template.content
    image = str(changes.get(f"{SPEC}{content.path}/image", content.image))
    if facts.template.kind == "Deployment":
        paused = changes.get(PAUSED, facts.template.paused) is True
        return "" if paused else _unlike(facts, image)
    partition = changes.get(f"{ROLLING}/partition", facts.template.partition)
    rolling = changes.get(ROLLING)
    partition = rolling.get("partition") if isinstance(rolling, dict) else partition
    strategy = str(changes.get(STRATEGY, facts.template.strategy))
    known = partition if isinstance(partition, int) else 0
    return _of_set(facts, image, replace(facts.template, strategy=strategy, partition=known))


def _unlike(facts: ImageRun, image: str) -> str:
    """Return why a released Deployment would make another ReplicaSet, "" if one of its own is like its template."""
    wanted = facts.template.content.rest, image
    odd = next((each for each in facts.state.active if (each.content.rest, each.content.image) != wanted), None)
    return f"ReplicaSet {odd.name} has another template" if odd is not None else ""


def _by_replica_set(facts: ImageRun, write: Write, changes: dict[str, object]) -> str:
    found = next((each for each in facts.state.own_revisions if each.uid == write.uid), None)
    if found is None:
        return f"ReplicaSet {write.name} is not known"
    if not write.operations:
        return f"ReplicaSet {write.name} has pods" if found.replicas else ""
    if facts.template.paused:
        return ""
    image = str(changes.get(f"{SPEC}{found.content.path}/image", found.content.image))
    same = (found.content.rest, image) == (facts.template.content.rest, facts.template.content.image)
    return "" if same else f"ReplicaSet {write.name} differs from its Deployment, which is not paused"


def _is_newest(template: Template, content: Content, image: str) -> bool:
    """Whether a revision is that of the template, from which an older controller may leave fields out."""
    return content.image == image and (template.observed or content.rest == template.content.rest)


def _of_set(facts: ImageRun, image: str, after: Template) -> str:
    """Return why the controller of a set replaces a pod: it is not of the newest revision; "" if it replaces none."""
    newest = next(iter(facts.state.own_revisions), None)
    label = newest.label if newest is not None and _is_newest(facts.template, newest.content, image) else None
    odd = (each for each in facts.members if each.labels.get(LABEL_REVISION) != label)
    found = next((each.pod.name for each in odd if after.rolls_out(each.ordinal)), "")
    return f"pod {found} does not have the newest revision" if found else ""


def _by_label(facts: ImageRun, write: Write, label: str) -> str:
    """Return why the controller replaces a pod because of its new label, "" if it does not."""
    newest, template = next(iter(facts.state.own_revisions), None), facts.template
    if template.strategy == ON_DELETE or (newest is not None and label == newest.label):
        return ""
    pod = next((each for each in facts.members if each.pod.uid == write.uid), None)
    if pod is not None and newest is not None and pod.labels.get(LABEL_REVISION) != newest.label:
        return ""  # its controller does not take it for a pod of the newest revision now
    if pod is not None and not template.rolls_out(pod.ordinal):
        return ""
    return f"pod {write.name} would not have the newest revision"
