"""The reasons of a policy's conditions: what each means for the condition Ready, its sentence, and what to do."""

from crrd.core.api.reason_table import ReasonTable


class PolicyReason(ReasonTable):
    """A row has a name, the status of the condition Ready with it (None: Ready never has it), sentence and remedy."""

    ready: bool | None

    def __init__(self, name: str, ready: bool | None, sentence: str = "", *remedy: str) -> None:
        super().__init__(name, sentence, *remedy)
        self.ready = ready

    def message(self, **values: object) -> str:
        """Return the sentence, and what to do."""
        return ": ".join([self.say(**values), *self.advise(**values)])

    # fmt: off
    # What stops a policy
    INVALID = "InvalidSpec", False, "{what}"
    SUSPENDED = "Suspended", False, "{what}"
    TARGET = "TargetNotFound", False, "{what}"
    UNREADABLE = "ConfigNotReadable", False, "{what}"
    UNPATCHABLE = "PodsNotPatchable", False, "{what}"
    DROPPED = ("StatusFieldsDropped", False,
        "no run starts, because the API server drops fields of the status that the CRD of policies lacks: {fields}",
        "install crrd again, the way you installed it (helm upgrade, or kubectl apply)")
    MISSING = "ConfigMissing", False, "{what}; not restarting containers, because they could not start again"
    FAILED = "RunFailed", False, "run {run} failed: {message}; no run starts until {until}"
    RESTORING = ("Restoring", False, "{run} failed; writing the last good data of {objects} back{more}")
    BAD_REVISION = ("BadRevision", False,
        "{objects} has the data with which {run} failed, so no container is restarted",
        "write other data; to give it to the pods in spite of that, set spec.onFailure to Halt")
    LOOK_FAILING = ("LookFailing", False,
        "the manager cannot look at the policy's objects, and starts nothing: {error}",
        "the manager's log has all errors; it tries again until it can")
    # What a policy does or waits for
    RUNNING = "Running", True, "run {run}: {progress}"
    BLOCKED = "RunBlocked", False, "run {run}: {progress}; no progress for {time}"
    WINDOW = "WaitingForWindow", True, "the window opens at {time}"
    INTERVAL = "WaitingForMinInterval", True, "the next run may start at {time}"
    AFTER = "WaitingForPolicy", True, "waiting for {what}"
    SETTLING = "Settling", True, "{objects} changed; waiting until {time} for more changes"
    UNSETTLED = ("NeverSettles", False,
        "{objects} has changed again and again since {since}, and each time before settle was over",
        "add what changes all the time to spec.triggers.configChange.ignore, or set settle to a shorter time")
    RETRY = "WaitingForRetry", True, "run {run}: {message}. Trying again at {time}, because {left}"
    CONTROLLER = "WaitingForController", True, "{what}"
    IDLE = "Idle", True, "no container has to be restarted{more}"
    # What has no effect. Ready has it only if the policy can do nothing at all, or leaves containers with old data.
    NODES = "WaitingForNodes", False, "not restarted yet: {pods}", "a run restarts them when their nodes are back"
    IMMUTABLE = ("ImmutableReplaced", False,
        ("{objects} is immutable and was replaced under its name; kubelet on {nodes} may keep the old data while any "
        "pod there uses it, and gives it to new pods, too"),
        ("use another name for new data, or let no pod on these nodes use the object for a moment, for example by "
        "scaling to 0 and back"))
    CIRCLE = ("AfterCircle", False,
        "these policies wait for each other (spec.after), so no run for a change of configuration starts: {circle}",
        "remove one of them from spec.after")
    NO_POLICY = ("PolicyNotFound", None, "spec.after names {names}, and the namespace has no such policy",
        "use names of policies of this namespace")
    NO_RESTORE = ("NothingToRestore", None, "spec.onFailure is Restore, and the policy has no trigger configChange",
        "add the trigger, or remove spec.onFailure")
    NO_UNDO = ("NothingToUndo", None, "spec.onFailure is Undo, and the policy has no trigger templateImage",
        "add the trigger, or remove spec.onFailure")
    NO_PODS = "NoPods", None, "no pod matches spec.selector", "check its labels, if there should be pods now"
    NOT_OWNED = ("PodsNotOwned", False,
        "{target} owns no pods; {count} pods match its selector, but other workloads own them",
        "name the workload that owns the pods in spec.targetRef, or use spec.selector")
    CONTAINER = ("ContainerNotFound", False, "no pod has a container {names} that can be restarted in place",
        "use names in spec.containers that the pods have: {there}")
    SECRETS = ("SecretsNotCounted", False, "the containers use only Secrets ({names}), and these do not count",
        "set spec.triggers.configChange.secrets to true")
    NO_CONFIG = ("NoConfiguration", False,
        "the containers use no ConfigMap or Secret{others} in env, envFrom or a volume",
        "remove the trigger configChange, or check spec.containers and the target")
    UNREACHED = "ConfigOutOfReach", False, "{what}"
    NO_RELOAD = ("NothingReloads", None,
        "spec.triggers.configChange.action is ReloadOrRestart, but changes restart all containers: {why}",
        "declare in the pod template how containers reload their files (docs/recreate.md), or remove the field")
    TEMPLATE = "TemplateNotFollowed", False, "{what}"
    BARRED = ("NotRestartable", False, "{what} ({pods}), so changes do not reach it",
        "replace these pods, or name only other containers in spec.containers")
    AGE = ("MaxAgeTooShort", False, "maxAge is {age}, but pods need {needed} to become ready after a start{least}",
        "set maxAge to a longer time")
    # Of other conditions
    HALTED = "JudgementNo", None, "run {run}: {message}"
    PASSED = "JudgementYes", None, "no judgement of the last run was no"
    READABLE = "ConfigReadable", None, "the configuration can be read"
    OLD_FILES = "PodPatchRefused", None, "{what}"
    RESTORABLE = "LastGoodDataKept", None, "the last good data of all ConfigMaps is kept"
    NOT_RESTORABLE = "NotRestorable", None, "{what}"
    EFFECTIVE = "Effective", None, "each part of the policy can have an effect"
    # fmt: on
