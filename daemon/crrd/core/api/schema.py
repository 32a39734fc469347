"""The schema of a ContainerRecreateRequest: the table of its fields (`fields`).

In addition to the reader (`v1alpha1`), it drives admission: what it fills in, what an update may leave out, the longest
durations. `manifests/base/generate.py` writes the CRD and the tables in docs/contract.md from it.
"""

from functools import partial

from crrd.core.api.fields import Field, SetBy, Type
from crrd.core.api.types import Action, RequestPhase, StatePhase, Strategy

LONGEST = (7 * 86_400, "7 days")
LONGEST_UNREADY = (86_400, "a day")
_object, _list, _string, _boolean, _int32, _int64, _strings = (
    partial(Field, type_)
    for type_ in (Type.OBJECT, Type.LIST, Type.STRING, Type.BOOLEAN, Type.INT32, Type.INT64, Type.STRINGS)
)
_PLAIN = Strategy()  # Its defaults are those of the fields
_ENTRY, _CONTEXT = "spec.containers[]", "spec.containers[].statusContext"
_STATE = "status.containerRecreateStates[]"
_TABLE = (
    _object("spec", "Containers to recreate, and how. Cannot be changed after creation.", required=True),
    _string("spec.podName", "Name of the pod, in the namespace of the request.", required=True, low=1, high=253),
    _list(
        _ENTRY,
        "The containers to recreate, in the order in which they are stopped. Each name may appear once.",
        required=True,
        low=1,
        high=256,
    ),
    _string(
        f"{_ENTRY}.name",
        "Name of a container of the pod, or of a native sidecar (an init container whose restartPolicy is Always). "
        "With an image and wholePod, also of another init container.",
        required=True,
        low=1,
        high=63,
    ),
    _string(
        f"{_ENTRY}.image",
        "Image of the next instance. crrd does not stop the container, but waits until the pod has this image and "
        "kubelet has replaced the container. Only in a request with one container, or with wholePod for an init "
        "container, which runs with this image when the pod restarts.",
        high=1024,
    ),
    _object(
        _CONTEXT,
        "Container instance to stop, recorded by admission. Users do not set it. If a newer instance is running, crrd "
        "does not stop it.",
        SetBy.ADMISSION,
    ),
    _string(
        f"{_CONTEXT}.containerID",
        "ID of the instance with the runtime's name as prefix, for example containerd://5f0e.",
        SetBy.ADMISSION,
        required=True,
        high=1024,
    ),
    _int32(
        f"{_CONTEXT}.restartCount",
        "Restart count of the container at admission.",
        SetBy.ADMISSION,
        required=True,
        default=0,
    ),
    _object(
        f"{_ENTRY}.preStop",
        "Copy of the container's preStop hook, written by OpenKruise's admission. For information only, because crrd "
        "runs the hook that kubelet recorded on the container.",
        SetBy.OPENKRUISE,
    ),
    _list(
        f"{_ENTRY}.ports[]",
        "Copy of the container's ports, written by OpenKruise's admission. For information only.",
        SetBy.OPENKRUISE,
        high=1024,
    ),
    _boolean(
        "spec.wholePod",
        "Restart the whole pod in place: kubelet stops all containers, and starts again with the first init container. "
        "The pod gets a new sandbox, so its IP may change. Admission names the containers, and users leave them out, "
        "except for an init container that gets another image.",
        default=False,
    ),
    _object("spec.strategy", "How the containers are recreated."),
    _string(
        "spec.strategy.action",
        "What is done to the containers. Restart is the default. With Reload, no container is stopped: each runs what "
        "its pod declares in the annotation reload.crrd.dev/CONTAINER, once kubelet has refreshed its files. Admission "
        "names the containers then, and users leave them out.",
        default=Action.UNSET,
    ),
    _strings(
        "spec.strategy.reloadContainers",
        "Only with action Reload: names of the containers, in the order in which they reload. By default, all "
        "containers of the pod that declare a reload.",
        high=256,
        high_each=63,
    ),
    _string(
        "spec.strategy.failurePolicy",
        "What to do after a container has failed. Fail (the default) ends the request. Ignore continues with the next "
        "container.",
        default=_PLAIN.failure_policy,
    ),
    _boolean(
        "spec.strategy.orderedRecreate",
        "Wait until a container has been recreated before stopping the next one. By default crrd waits only until it "
        "has stopped.",
        default=_PLAIN.ordered,
    ),
    _boolean(
        "spec.strategy.forceRecreate",
        "Stop the running container once, even if it has restarted since admission.",
        default=_PLAIN.force,
    ),
    _boolean(
        "spec.strategy.allowPodRestart",
        "Recreate a container even if its restartPolicyRules may make kubelet restart all containers of the pod, or "
        "its LeaderWorkerSet may replace all pods of the group. By default such a container is not stopped.",
        default=_PLAIN.allow_pod_restart,
    ),
    _int64(
        "spec.strategy.terminationGracePeriodSeconds",
        "Grace period for stopping a container, in seconds, including its preStop hook. The default is the pod's "
        "terminationGracePeriodSeconds.",
        of_pod=True,
        longest=LONGEST,
    ),
    _int64(
        "spec.strategy.unreadyGracePeriodSeconds",
        "Seconds to wait after the pod was made unready and before the first stop, so that traffic moves to other "
        "pods. Only for pods with the readiness gate KruisePodReady.",
        longest=LONGEST_UNREADY,
    ),
    _int32(
        "spec.strategy.minStartedSeconds",
        "Seconds that the new container must run before it counts as recreated.",
        default=_PLAIN.min_started_seconds,
        longest=LONGEST,
    ),
    _int64(
        "spec.activeDeadlineSeconds",
        "Deadline of the request, in seconds after its creation. Containers that are not recreated by then fail. The "
        "default is the sum of its grace periods and minStartedSeconds, plus one hour.",
        low=3,
        longest=LONGEST,
    ),
    _int32(
        "spec.ttlSecondsAfterFinished",
        "Seconds after completion until the request is deleted. By default the request is kept.",
        longest=LONGEST,
    ),
    _object("status", "Progress of the request. Written by the node daemon and the manager.", SetBy.STATUS),
    _string(
        "status.phase",
        "Pending, Recreating or Completed. Completed means that the request has ended. Only containers in the phase "
        "Succeeded were recreated.",
        SetBy.STATUS,
        high=32,
        default=RequestPhase.EMPTY,
    ),
    Field(Type.TIME, "status.completionTime", "When the request was completed, in UTC.", SetBy.STATUS),
    _string("status.message", "What the request waits for, or how it ended.", SetBy.STATUS),
    _string("status.reason", "Machine-readable reason for the message.", SetBy.STATUS),
    _list(_STATE, "Progress of each container.", SetBy.STATUS, high=256),
    _string(f"{_STATE}.name", "Name of the container.", SetBy.STATUS, required=True, high=63),
    _string(
        f"{_STATE}.phase",
        "Pending, Recreating, Succeeded or Failed.",
        SetBy.STATUS,
        high=32,
        default=StatePhase.PENDING,
    ),
    _string(f"{_STATE}.message", "What the container waits for, or why it failed.", SetBy.STATUS),
    _boolean(f"{_STATE}.isKilled", "Whether this request's stop has been sent to the runtime.", SetBy.STATUS),
    _string(f"{_STATE}.reason", "Machine-readable reason for the message.", SetBy.STATUS),
    _list(
        "status.conditions[]", "Conditions set by other managers of this API. crrd does not change them.", SetBy.OTHERS
    ),
)
FIELDS = {field.path: field for field in _TABLE}
