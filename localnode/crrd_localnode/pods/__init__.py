"""The kubelet's work on pods, with one module per concern. `crrd_localnode.kubelet` uses them."""
