"""The hash that kubelet stores for a container. Its algorithm has changed with the versions of kubelet."""
