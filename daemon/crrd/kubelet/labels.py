"""The keys of labels and annotations that kubelet writes on pods and containers.

Source: Kubernetes' pkg/kubelet/types (labels.go, pod_update.go) and pkg/kubelet/kuberuntime/labels.go.
"""

ANNOTATION_MIRROR = "kubernetes.io/config.mirror"  # On the mirror pod that kubelet creates in the API for a static pod
ANNOTATION_CONFIG_HASH = "kubernetes.io/config.hash"  # On both pods: the UID of the static pod on its node
ANNOTATION_CONFIG_SOURCE = "kubernetes.io/config.source"  # Added by kubelet to each pod, and so on its sandboxes
LABEL_POD_NAME = "io.kubernetes.pod.name"
LABEL_POD_NAMESPACE = "io.kubernetes.pod.namespace"
LABEL_POD_UID = "io.kubernetes.pod.uid"
LABEL_CONTAINER_NAME = "io.kubernetes.container.name"
ANNOTATION_HASH = "io.kubernetes.container.hash"
ANNOTATION_RESTART_COUNT = "io.kubernetes.container.restartCount"
ANNOTATION_GRACE = "io.kubernetes.pod.terminationGracePeriod"
ANNOTATION_PRE_STOP = "io.kubernetes.container.preStopHandler"
ANNOTATION_MESSAGE_PATH = "io.kubernetes.container.terminationMessagePath"
ANNOTATION_MESSAGE_POLICY = "io.kubernetes.container.terminationMessagePolicy"
ANNOTATION_PORTS = "io.kubernetes.container.ports"
