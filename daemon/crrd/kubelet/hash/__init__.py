"""The hash that kubelet keeps of a container, in each of its eras."""
