"""The reasons of waiting containers, as kubelet writes them in a pod's status."""

ORDINARY = frozenset({"", "ContainerCreating", "PodInitializing"})  # At every start
IMAGE_REFUSED = frozenset({"InvalidImageName", "ErrImageNeverPull"})  # Kubelet does not try again
IMAGE_NOT_PULLED = IMAGE_REFUSED | {"ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable"}
"""The image could not be pulled (pkg/kubelet/images/types.go)."""
NOT_CREATED = frozenset(
    f"{step}Error"
    for step in ("CreateContainerConfig", "CreateContainer", "RunContainer", "PreCreateHook", "PreStartHook")
)
"""The image was pulled, and the container could not be started (pkg/kubelet/kuberuntime/kuberuntime_container.go)."""
