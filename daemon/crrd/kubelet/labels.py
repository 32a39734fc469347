"""What kubelet leaves on pods and containers: the keys of labels and annotations.

Source: Kubernetes' pkg/kubelet/types (labels.go, pod_update.go) and pkg/kubelet/kuberuntime/labels.go.
"""

ANNOTATION_MIRROR = "kubernetes.io/config.mirror"  # On the mirror that kubelet makes of a static pod in the API
ANNOTATION_CONFIG_HASH = "kubernetes.io/config.hash"  # On both of them: the UID that the pod has on its node
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
