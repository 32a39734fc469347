"""The kubelet's work on pods, one concern per module; `daemon.localnode.kubelet` puts them together."""
