"""The Go structs of a container in Kubernetes 1.7 to 1.30: their fields in order, and the first version of each.

Source: all releases of k8s.io/api, core/v1 (1.7: client-go's pkg/api/v1). Kubelets of these versions hashed every
field, so a new or moved field changed the hash of every container. From 1.31 on, kubelet hashes only name and image.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Any

INT_BITS = {"int32": 32, "int64": 64}

# One line per field: Go's name, Go's type, the name in JSON ("?": empty values are omitted; "<": an embedded struct,
# whose fields take its place), and the first minor version with the field.
_TABLE = """
Container
  Name string name
  Image string image?
  Command []string command?
  Args []string args?
  WorkingDir string workingDir?
  Ports []ContainerPort ports?
  EnvFrom []EnvFromSource envFrom?
  Env []EnvVar env?
  Resources ResourceRequirements resources?
  ResizePolicy []ContainerResizePolicy resizePolicy? 27
  RestartPolicy *ContainerRestartPolicy restartPolicy? 28
  VolumeMounts []VolumeMount volumeMounts?
  VolumeDevices []VolumeDevice volumeDevices? 9
  LivenessProbe *Probe livenessProbe?
  ReadinessProbe *Probe readinessProbe?
  StartupProbe *Probe startupProbe? 16
  Lifecycle *Lifecycle lifecycle?
  TerminationMessagePath string terminationMessagePath?
  TerminationMessagePolicy TerminationMessagePolicy terminationMessagePolicy?
  ImagePullPolicy PullPolicy imagePullPolicy?
  SecurityContext *SecurityContext securityContext?
  Stdin bool stdin?
  StdinOnce bool stdinOnce?
  TTY bool tty?
ContainerPort
  Name string name?
  HostPort int32 hostPort?
  ContainerPort int32 containerPort
  Protocol Protocol protocol?
  HostIP string hostIP?
EnvFromSource
  Prefix string prefix?
  ConfigMapRef *ConfigMapEnvSource configMapRef?
  SecretRef *SecretEnvSource secretRef?
ConfigMapEnvSource
  LocalObjectReference LocalObjectReference <
  Optional *bool optional?
SecretEnvSource
  LocalObjectReference LocalObjectReference <
  Optional *bool optional?
LocalObjectReference
  Name string name?
EnvVar
  Name string name
  Value string value?
  ValueFrom *EnvVarSource valueFrom?
EnvVarSource
  FieldRef *ObjectFieldSelector fieldRef?
  ResourceFieldRef *ResourceFieldSelector resourceFieldRef?
  ConfigMapKeyRef *ConfigMapKeySelector configMapKeyRef?
  SecretKeyRef *SecretKeySelector secretKeyRef?
ObjectFieldSelector
  APIVersion string apiVersion?
  FieldPath string fieldPath
ResourceFieldSelector
  ContainerName string containerName?
  Resource string resource
  Divisor resource.Quantity divisor?
ConfigMapKeySelector
  LocalObjectReference LocalObjectReference <
  Key string key
  Optional *bool optional?
SecretKeySelector
  LocalObjectReference LocalObjectReference <
  Key string key
  Optional *bool optional?
ResourceRequirements
  Limits ResourceList limits?
  Requests ResourceList requests?
  Claims []ResourceClaim claims? 26
ResourceClaim
  Name string name
ContainerResizePolicy
  ResourceName ResourceName resourceName
  RestartPolicy ResourceResizeRestartPolicy restartPolicy
VolumeMount
  Name string name
  ReadOnly bool readOnly?
  RecursiveReadOnly *RecursiveReadOnlyMode recursiveReadOnly? 30
  MountPath string mountPath
  SubPath string subPath?
  MountPropagation *MountPropagationMode mountPropagation? 8
  SubPathExpr string subPathExpr? 14
VolumeDevice
  Name string name
  DevicePath string devicePath
Probe
  Handler Handler <
  InitialDelaySeconds int32 initialDelaySeconds?
  TimeoutSeconds int32 timeoutSeconds?
  PeriodSeconds int32 periodSeconds?
  SuccessThreshold int32 successThreshold?
  FailureThreshold int32 failureThreshold?
  TerminationGracePeriodSeconds *int64 terminationGracePeriodSeconds? 21
Handler
  Exec *ExecAction exec?
  HTTPGet *HTTPGetAction httpGet?
  TCPSocket *TCPSocketAction tcpSocket?
  GRPC *GRPCAction grpc? 23
LifecycleHandler
  Exec *ExecAction exec?
  HTTPGet *HTTPGetAction httpGet?
  TCPSocket *TCPSocketAction tcpSocket?
  Sleep *SleepAction sleep? 29
Lifecycle
  PostStart *LifecycleHandler postStart?
  PreStop *LifecycleHandler preStop?
ExecAction
  Command []string command?
HTTPGetAction
  Path string path?
  Port intstr.IntOrString port
  Host string host?
  Scheme URIScheme scheme?
  HTTPHeaders []HTTPHeader httpHeaders?
HTTPHeader
  Name string name
  Value string value
TCPSocketAction
  Port intstr.IntOrString port
  Host string host?
GRPCAction
  Port int32 port
  Service *string service
SleepAction
  Seconds int64 seconds
SecurityContext
  Capabilities *Capabilities capabilities?
  Privileged *bool privileged?
  SELinuxOptions *SELinuxOptions seLinuxOptions?
  WindowsOptions *WindowsSecurityContextOptions windowsOptions? 15
  RunAsUser *int64 runAsUser?
  RunAsGroup *int64 runAsGroup? 10
  RunAsNonRoot *bool runAsNonRoot?
  ReadOnlyRootFilesystem *bool readOnlyRootFilesystem?
  AllowPrivilegeEscalation *bool allowPrivilegeEscalation? 8
  ProcMount *ProcMountType procMount? 12
  SeccompProfile *SeccompProfile seccompProfile? 19
  AppArmorProfile *AppArmorProfile appArmorProfile? 30
Capabilities
  Add []Capability add?
  Drop []Capability drop?
SELinuxOptions
  User string user?
  Role string role?
  Type string type?
  Level string level?
WindowsSecurityContextOptions
  GMSACredentialSpecName *string gmsaCredentialSpecName?
  GMSACredentialSpec *string gmsaCredentialSpec?
  RunAsUserName *string runAsUserName? 16
  HostProcess *bool hostProcess? 22
SeccompProfile
  Type SeccompProfileType type
  LocalhostProfile *string localhostProfile?
AppArmorProfile
  Type AppArmorProfileType type
  LocalhostProfile *string localhostProfile?
"""

# Names of structs up to 1.15, the last version that hashed the names of types
_GO_NAMES = {"LifecycleHandler": "Handler"}


class InexpressibleError(ValueError):
    """The container does not fit the structs of a version. The message names the field."""


class Kind(Enum):
    """How a value is stored and written."""

    STRING = auto()
    BOOL = auto()
    INT = auto()
    QUANTITY = auto()
    QUANTITIES = auto()
    INT_OR_STRING = auto()
    STRUCT = auto()


_KINDS = {"bool": Kind.BOOL, "int32": Kind.INT, "int64": Kind.INT, "intstr.IntOrString": Kind.INT_OR_STRING}
_KINDS |= {"resource.Quantity": Kind.QUANTITY, "ResourceList": Kind.QUANTITIES}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct."""

    name: str  # The name in Go
    key: str  # The name in JSON; "" for an embedded struct, whose fields take its place
    kind: Kind
    type: str  # The type's name in the table, without `*` and `[]`
    go_type: str  # The whole type as Go prints it, with its package
    pointer: bool
    many: bool
    omit_empty: bool
    since: int  # The first minor version with the field


def _field(line: str, structs: frozenset[str]) -> Field:
    name, go_type, key, since = (*line.split(), "0")[:4]
    base = go_type.lstrip("*[]")
    prefix = go_type.removesuffix(base)
    kind = _KINDS.get(base, Kind.STRUCT if base in structs else Kind.STRING)
    printed = base if base in ("string", "bool", "int32", "int64") or "." in base else f"v1.{_GO_NAMES.get(base, base)}"
    return Field(
        name=name,
        key=key.strip("?<"),
        kind=kind,
        type=base,
        go_type=prefix + printed,
        pointer=prefix == "*",
        many=prefix == "[]",
        omit_empty=key.endswith("?"),
        since=int(since),
    )


def _read() -> dict[str, tuple[Field, ...]]:
    blocks = [block.splitlines() for block in re.split(r"\n(?=\S)", _TABLE.strip())]
    structs = frozenset(block[0] for block in blocks)
    return {block[0]: tuple(_field(line, structs) for line in block[1:]) for block in blocks}


_STRUCTS = _read()


@cache
def fields(struct: str, minor: int) -> tuple[Field, ...]:
    """Return the fields of a struct in 1.`minor`, in order."""
    return tuple(field for field in _STRUCTS[struct] if field.since <= minor)


@cache
def flat_fields(struct: str, minor: int) -> tuple[Field, ...]:
    """Return the fields of a struct in 1.`minor`, with embedded structs replaced by their fields, as in JSON."""
    found: list[Field] = []
    for field in fields(struct, minor):
        found += [field] if field.key else flat_fields(field.type, minor)
    return tuple(found)


@cache
def keys(struct: str, minor: int) -> frozenset[str]:
    """Return the JSON keys of a struct."""
    return frozenset(field.key for field in flat_fields(struct, minor))


def require_known(value: Any, struct: str, minor: int, path: str) -> Mapping[str, Any]:
    """Return the value if it is an object that fits the struct of 1.`minor`, else raise InexpressibleError."""
    if not isinstance(value, Mapping):
        raise InexpressibleError(f"{path} is no object")
    if not value.keys() <= keys(struct, minor):
        for key, content in value.items():
            if key not in keys(struct, minor) and content is not None:
                raise InexpressibleError(f"{path}.{key} is not known to kubelet 1.{minor}")
    return value


def added_fields(older: int, newer: int) -> tuple[str, ...]:
    """Return the Go names of fields that were added after 1.`older`, up to 1.`newer`."""
    found = (field for struct in _STRUCTS.values() for field in struct if older < field.since <= newer)
    return tuple(dict.fromkeys(field.name for field in found))
