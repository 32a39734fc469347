"""Restarts by a patch of the pod, where no node daemon is installed: kubelet restarts what is spelled anew."""
