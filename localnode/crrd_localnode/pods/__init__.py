"""The kubelet's work on pods, one concern per module; `crrd_localnode.kubelet` puts them together."""
