"""The Go structs behind a container's JSON, as data: which fields, of which type, since which Kubernetes version.

Source: k8s.io/api/core/v1, types.go, of the versions named. The order of the rows is the order of the struct, which
both kubelet's dump (up to 1.15) and Go's JSON (from 1.16) follow.
"""

from dataclasses import dataclass

Version = tuple[int, int]
OLDEST: Version = (1, 7)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct."""

    go: str
    """Its name in Go."""
    json: str
    """Its name in JSON; "" for an embedded struct, whose fields stand in the outer object."""
    type: str
    """Go's type: `string`, `bool`, `int32`, `v1.Name`, each perhaps with `*` or `[]` in front."""
    since: Version = OLDEST
    required: bool = False
    """Without omitempty: in the JSON even when it is zero."""


def _f(go: str, type_: str, since: Version = OLDEST, *, json: str | None = None, required: bool = False) -> Field:
    return Field(go, go[0].lower() + go[1:] if json is None else json, type_, since, required)


_KEY_SELECTOR = (
    _f("LocalObjectReference", "v1.LocalObjectReference", json=""),
    _f("Key", "string", required=True),
    _f("Optional", "*bool"),
)
_ENV_SOURCE = (_f("LocalObjectReference", "v1.LocalObjectReference", json=""), _f("Optional", "*bool"))

STRUCTS: dict[str, tuple[Field, ...]] = {
    "v1.Container": (
        _f("Name", "string", required=True),
        _f("Image", "string"),
        _f("Command", "[]string"),
        _f("Args", "[]string"),
        _f("WorkingDir", "string"),
        _f("Ports", "[]v1.ContainerPort"),
        _f("EnvFrom", "[]v1.EnvFromSource"),
        _f("Env", "[]v1.EnvVar"),
        _f("Resources", "v1.ResourceRequirements"),
        _f("ResizePolicy", "[]v1.ContainerResizePolicy", (1, 27)),
        _f("RestartPolicy", "*v1.ContainerRestartPolicy", (1, 28)),
        _f("VolumeMounts", "[]v1.VolumeMount"),
        _f("VolumeDevices", "[]v1.VolumeDevice", (1, 9)),
        _f("LivenessProbe", "*v1.Probe"),
        _f("ReadinessProbe", "*v1.Probe"),
        _f("StartupProbe", "*v1.Probe", (1, 16)),
        _f("Lifecycle", "*v1.Lifecycle"),
        _f("TerminationMessagePath", "string"),
        _f("TerminationMessagePolicy", "v1.TerminationMessagePolicy"),
        _f("ImagePullPolicy", "v1.PullPolicy"),
        _f("SecurityContext", "*v1.SecurityContext"),
        _f("Stdin", "bool"),
        _f("StdinOnce", "bool"),
        _f("TTY", "bool", json="tty"),
    ),
    "v1.ContainerPort": (
        _f("Name", "string"),
        _f("HostPort", "int32"),
        _f("ContainerPort", "int32", required=True),
        _f("Protocol", "v1.Protocol"),
        _f("HostIP", "string"),
    ),
    "v1.EnvFromSource": (
        _f("Prefix", "string"),
        _f("ConfigMapRef", "*v1.ConfigMapEnvSource"),
        _f("SecretRef", "*v1.SecretEnvSource"),
    ),
    "v1.ConfigMapEnvSource": _ENV_SOURCE,
    "v1.SecretEnvSource": _ENV_SOURCE,
    "v1.LocalObjectReference": (_f("Name", "string"),),
    "v1.EnvVar": (
        _f("Name", "string", required=True),
        _f("Value", "string"),
        _f("ValueFrom", "*v1.EnvVarSource"),
    ),
    "v1.EnvVarSource": (
        _f("FieldRef", "*v1.ObjectFieldSelector"),
        _f("ResourceFieldRef", "*v1.ResourceFieldSelector"),
        _f("ConfigMapKeyRef", "*v1.ConfigMapKeySelector"),
        _f("SecretKeyRef", "*v1.SecretKeySelector"),
    ),
    "v1.ObjectFieldSelector": (_f("APIVersion", "string", json="apiVersion"), _f("FieldPath", "string", required=True)),
    "v1.ResourceFieldSelector": (
        _f("ContainerName", "string"),
        _f("Resource", "string", required=True),
        _f("Divisor", "resource.Quantity"),
    ),
    "v1.ConfigMapKeySelector": _KEY_SELECTOR,
    "v1.SecretKeySelector": _KEY_SELECTOR,
    "v1.ResourceRequirements": (
        _f("Limits", "v1.ResourceList"),
        _f("Requests", "v1.ResourceList"),
        _f("Claims", "[]v1.ResourceClaim", (1, 26)),
    ),
    "v1.ResourceClaim": (_f("Name", "string", required=True),),
    "v1.ContainerResizePolicy": (
        _f("ResourceName", "v1.ResourceName", required=True),
        _f("RestartPolicy", "v1.ResourceResizeRestartPolicy", required=True),
    ),
    "v1.VolumeMount": (
        _f("Name", "string", required=True),
        _f("ReadOnly", "bool"),
        _f("RecursiveReadOnly", "*v1.RecursiveReadOnlyMode", (1, 30)),
        _f("MountPath", "string", required=True),
        _f("SubPath", "string"),
        _f("MountPropagation", "*v1.MountPropagationMode", (1, 8)),
        _f("SubPathExpr", "string", (1, 14)),
    ),
    "v1.VolumeDevice": (_f("Name", "string", required=True), _f("DevicePath", "string", required=True)),
    "v1.Probe": (
        _f("Handler", "v1.Handler", json=""),
        _f("InitialDelaySeconds", "int32"),
        _f("TimeoutSeconds", "int32"),
        _f("PeriodSeconds", "int32"),
        _f("SuccessThreshold", "int32"),
        _f("FailureThreshold", "int32"),
        _f("TerminationGracePeriodSeconds", "*int64", (1, 21)),
    ),
    "v1.Handler": (
        _f("Exec", "*v1.ExecAction"),
        _f("HTTPGet", "*v1.HTTPGetAction", json="httpGet"),
        _f("TCPSocket", "*v1.TCPSocketAction", json="tcpSocket"),
        # One struct up to 1.22, two from 1.23: a probe's has gRPC, a lifecycle's sleep. No valid object has the other.
        _f("GRPC", "*v1.GRPCAction", (1, 23), json="grpc"),
        _f("Sleep", "*v1.SleepAction", (1, 29)),
    ),
    "v1.ExecAction": (_f("Command", "[]string"),),
    "v1.HTTPGetAction": (
        _f("Path", "string"),
        _f("Port", "intstr.IntOrString", required=True),
        _f("Host", "string"),
        _f("Scheme", "v1.URIScheme"),
        _f("HTTPHeaders", "[]v1.HTTPHeader", json="httpHeaders"),
    ),
    "v1.HTTPHeader": (_f("Name", "string", required=True), _f("Value", "string", required=True)),
    "v1.TCPSocketAction": (_f("Port", "intstr.IntOrString", required=True), _f("Host", "string")),
    "v1.GRPCAction": (_f("Port", "int32", required=True), _f("Service", "*string", required=True)),
    "v1.SleepAction": (_f("Seconds", "int64", required=True),),
    "v1.Lifecycle": (_f("PostStart", "*v1.Handler"), _f("PreStop", "*v1.Handler")),
    "v1.SecurityContext": (
        _f("Capabilities", "*v1.Capabilities"),
        _f("Privileged", "*bool"),
        _f("SELinuxOptions", "*v1.SELinuxOptions", json="seLinuxOptions"),
        _f("WindowsOptions", "*v1.WindowsSecurityContextOptions", (1, 15)),
        _f("RunAsUser", "*int64"),
        _f("RunAsGroup", "*int64", (1, 10)),
        _f("RunAsNonRoot", "*bool"),
        _f("ReadOnlyRootFilesystem", "*bool"),
        _f("AllowPrivilegeEscalation", "*bool", (1, 8)),
        _f("ProcMount", "*v1.ProcMountType", (1, 12)),
        _f("SeccompProfile", "*v1.SeccompProfile", (1, 19)),
        _f("AppArmorProfile", "*v1.AppArmorProfile", (1, 30)),
    ),
    "v1.Capabilities": (_f("Add", "[]v1.Capability"), _f("Drop", "[]v1.Capability")),
    "v1.SELinuxOptions": (_f("User", "string"), _f("Role", "string"), _f("Type", "string"), _f("Level", "string")),
    "v1.WindowsSecurityContextOptions": (
        _f("GMSACredentialSpecName", "*string", json="gmsaCredentialSpecName"),
        _f("GMSACredentialSpec", "*string", json="gmsaCredentialSpec"),
        _f("RunAsUserName", "*string", (1, 16)),
        _f("HostProcess", "*bool", (1, 22)),
    ),
    "v1.SeccompProfile": (_f("Type", "v1.SeccompProfileType", required=True), _f("LocalhostProfile", "*string")),
    "v1.AppArmorProfile": (_f("Type", "v1.AppArmorProfileType", required=True), _f("LocalhostProfile", "*string")),
}


def fields(struct: str, version: Version) -> tuple[Field, ...]:
    """The fields that a struct has in a version."""
    return tuple(field for field in STRUCTS[struct] if field.since <= version)
