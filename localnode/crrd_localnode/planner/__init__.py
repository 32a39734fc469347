"""Kubelet's next actions on a pod, like its computePodActions, as pure functions."""
