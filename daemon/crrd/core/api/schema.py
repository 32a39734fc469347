"""The schema of a ContainerRecreateRequest: one table of its fields.

The table drives the reader (`v1alpha1`, by way of `Section`) and admission: what it fills in, what an update may leave
out, the longest durations. Tests hold the bounds and descriptions in manifests/base/crd.yaml against it, and the tables
in docs/contract.md are written from it: `python -m tests.tools.schema_tables`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from crrd.core.api.types import FailurePolicy, RequestPhase, StatePhase
from crrd.lib.jsonfields import INT32_MAX, INT64_MAX, Choice, Reader


class Type(StrEnum):
    """The JSON types of fields, with their names in docs/contract.md."""

    OBJECT = "object"
    LIST = "list"
    STRING = "string"
    TIME = "RFC 3339 time"
    BOOLEAN = "bool"
    INT32 = "int32"
    INT64 = "int64"


class SetBy(StrEnum):
    """The writers of fields."""

    USER = "user"  # Admission sets the default if it is absent
    ADMISSION = "admission"
    OPENKRUISE = "OpenKruise's admission"
    STATUS = "node and manager"
    OTHERS = "other managers"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the request."""

    type: Type
    path: str  # From the root of the object; `[]` means the entries of a list
    description: str
    set_by: SetBy = SetBy.USER
    required: bool = False
    low: int = 0  # Least number, characters of a string, or entries of a list
    high: int | None = None  # Most characters or entries; numbers are limited by their type
    default: StrEnum | bool | int | None = None
    """What the reader takes for an absent field. A member of an enumeration: the field is one of its members."""
    of_pod: bool = False  # Whether admission takes the default from the pod's terminationGracePeriodSeconds
    longest: tuple[int, str] | None = None
    """The most seconds that admission lets in, also in words. Requests that no admission saw are served with more."""

    @property
    def parent(self) -> str:
        """The path of the object or list that has the field."""
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The field's name in its object."""
        return self.path.rpartition(".")[2].removesuffix("[]")

    @property
    def filled_in(self) -> bool:
        """Whether admission writes the default into a new request. None, false and 0 are not written."""
        return self.set_by is SetBy.USER and (self.of_pod or bool(self.default))

    def absent(self, value: object) -> bool:
        """Whether a value stands for the default."""
        return value is None or (value == "" and isinstance(self.default, StrEnum))


LONGEST = (7 * 86_400, "7 days")
LONGEST_UNREADY = (86_400, "a day")
_object, _list, _string, _boolean, _int32, _int64 = (
    partial(Field, type_) for type_ in (Type.OBJECT, Type.LIST, Type.STRING, Type.BOOLEAN, Type.INT32, Type.INT64)
)
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
        "Name of a container of the pod, or of a native sidecar (an init container whose restartPolicy is Always).",
        required=True,
        low=1,
        high=63,
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
    _int32(f"{_CONTEXT}.restartCount", "Restart count of the container at admission.", SetBy.ADMISSION, required=True),
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
    _object("spec.strategy", "How the containers are recreated."),
    _string(
        "spec.strategy.failurePolicy",
        "What to do after a container has failed. Fail (the default) ends the request. Ignore continues with the next "
        "container.",
        default=FailurePolicy.FAIL,
    ),
    _boolean(
        "spec.strategy.orderedRecreate",
        "Wait until a container has been recreated before stopping the next one. By default crrd waits only until it "
        "has stopped.",
        default=False,
    ),
    _boolean(
        "spec.strategy.forceRecreate",
        "Stop the running container once, even if it has restarted since admission.",
        default=False,
    ),
    _boolean(
        "spec.strategy.allowPodRestart",
        "Recreate a container even if its restartPolicyRules may make kubelet restart all containers of the pod. By "
        "default such a container fails.",
        default=False,
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
        "Seconds that the new container must run before it counts as recreated. The default is 0.",
        default=0,
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
FIELDS: dict[str, Field] = {field.path: field for field in _TABLE}


class Section:
    """One object of a request, the fields of which are read as the table has them; `reader` keeps what is wrong.

    Args:
        path: of the object in the table.
        shown: what messages call it; its path if nothing is given.
    """

    def __init__(self, reader: Reader, value: object, path: str, shown: str = "") -> None:
        self._reader, self._path, self._shown = reader, path, shown or path
        self.raw: Mapping[str, Any] = reader.mapping(value, self._shown)

    def where(self, key: str) -> str:
        """Return the name of a field for messages."""
        return f"{self._shown}.{key}"

    def text(self, key: str) -> str:
        """Return a string field."""
        return self._reader.text(self.raw.get(key), self.where(key), required=self._field(key).required)

    def flag(self, key: str) -> bool:
        """Return a boolean field."""
        value = self.raw.get(key)
        return self._reader.flag(self._field(key).default if value is None else value, self.where(key))

    def integer(self, key: str) -> int | None:
        """Return an integer field, or None if it is absent and has no default."""
        field = self._field(key)
        most = INT32_MAX if field.type is Type.INT32 else INT64_MAX
        found = self._reader.integer(self.raw.get(key), self.where(key), low=field.low, high=most)
        return found if found is not None or field.default is None else int(field.default)

    def choice(self, key: str, kind: type[Choice]) -> Choice:
        """Return a member of the enumeration that the field's default belongs to."""
        return self._reader.choice(self.raw.get(key), self.where(key), kind(str(self._field(key).default)))

    def section(self, key: str) -> "Section":
        """Return the object in a field."""
        return Section(self._reader, self.raw.get(key), self._field(key).path, self.where(key))

    def sections(self, key: str) -> list["Section"]:
        """Return the objects in a list."""
        entries = enumerate(self._reader.items(self.raw.get(key), self.where(key)))
        return [Section(self._reader, raw, f"{self._path}.{key}[]", f"{self.where(key)}[{at}]") for at, raw in entries]

    def _field(self, key: str) -> Field:
        return FIELDS[f"{self._path}.{key}"]
