"""What an adoption, or a run from a template, waits for, and why it cannot continue."""

from crrd.core.api.reason_table import ReasonTable

_NOT_ADOPTED = "the template of {target} was not changed, because"
_IN_MORE = "differs from the new one in more than the image; {release}"
_REPLACED = "so its controller replaces them later: use --image-from-template"
_RELEASE_IT = "release it, to roll it out with new pods"


class AdoptionWait(ReasonTable):
    """What it waits for."""

    WORKLOAD = "Workload", "waiting for {target}"
    REVISIONS = "Revisions", "reading the revisions of {target}"
    REVISION_OF_POD = "RevisionOfPod", "reading the revision of pod {pod}"
    RELEASE_SEEN = "ReleaseSeen", "waiting until the controller has seen the release of {target}"
    TEMPLATE_SEEN = "TemplateSeen", "waiting until the controller has seen the new template of {target}"
    REPLICA_SET = "ReplicaSet", "waiting for the ReplicaSet of {target}"
    REPLICA_SET_SEEN = (
        "ReplicaSetSeen",
        "waiting until the controller of {target} has seen the new template of its ReplicaSet",
    )
    REVISION_MADE = (
        "RevisionMade",
        "waiting until the controller of {target} has made a revision of the new template",
    )
    LABELS_SEEN = "LabelsSeen", "waiting until the controller of {target} has seen the labels of its pods"
    FIRST_POD = "FirstPod", "waiting for a pod of {target}"
    STARTING = "Starting", "waiting until container {container} of pod {pod} has started"
    UNREADY = "Unready", "container {container} of pod {pod} has {image}, but is not ready"
    NOT_OBSERVED = "NotObserved", "the controller of {target} has not observed the last change of its template"
    NO_REVISION = "NoRevision", "the controller of {target} has not made a revision of its template"
    REVISION_UNKNOWN = "RevisionUnknown", "the revision of pod {pod} is not known"


class AdoptionProblem(ReasonTable):
    """Why it cannot continue, and what to do."""

    SET_BACK = "SetBack", "the image of {target} was set back to {found} meanwhile"
    TEMPLATE_CHANGED = "TemplateChanged", "the template of {target} was changed meanwhile{held}"
    IMAGE_SET = "ImageSet", "the image of {target} was set to {found} meanwhile{held}"
    RELEASED = (
        "Released",
        "{target} was released meanwhile, so its controller rolls out the template with new pods",
    )
    OTHER_IMAGE = "OtherImage", "the template of {target} has {found}, not {wanted}; {release}"
    HELD_BY_USER = (
        "HeldByUser",
        f"{{target}} is held, and not all of its pods have its revision, {_REPLACED}",
    )
    NEVER_RAN = (
        "NeverRan",
        "no pod of {target} has run {image}, so its template was not changed: without pods, change the template itself",
    )
    ODD_WHILE_HELD = "OddPodWhileHeld", "{odd}, and its controller is held; {release}"
    ODD_WHILE_FOLLOWING = "OddPodWhileFollowing", "{target} does not follow its template yet, because {odd}"
    ODD_POD = "OddPod", f"{_NOT_ADOPTED} {{odd}}"
    MIXED_REVISIONS = "MixedRevisions", "pods {pods} have revisions that differ in more than the image"
    NOT_ADOPTED = "NotAdopted", f"{_NOT_ADOPTED} {{why}}"
    PAUSED = "Paused", "{target} is paused: resume it first, and wait for its rollout"
    OTHER_REPLICA_SET = (
        "OtherReplicaSet",
        "the template of ReplicaSet {name} differs from that of {target} in more than the image; {release}",
    )
    OTHER_SHAPE = "OtherShape", "ReplicaSet {name} differs from {target} in more than images"
    SEVERAL = "Several", "the rollout of {target} is not finished: it has {count} active ReplicaSets"
    OTHER_REVISION = "OtherRevision", f"the revision of pod {{pod}} {_IN_MORE}"
    REVISION_GONE = "RevisionGone", "no revision of {target} has {wanted} any more: set the image in its template"
    WRONG_KIND = "WrongKind", "only the pods of a {kinds} can follow its template"
    NOT_HELD = (
        "NotHeld",
        "{target} is not held, so its controller rolls out a changed template with new pods: {how}",
    )
    BEYOND_PARTITION = (
        "BeyondPartition",
        "{target} is held only below its partition, so its controller replaces pod {pod}: {how}",
    )
    IN_MORE_THAN_IMAGES = (
        "InMoreThanImages",
        f"the template of {{target}} differs in more than images from {{name}}, which its pods have: {_RELEASE_IT}",
    )
