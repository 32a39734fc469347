"""The parts of the local API server; `daemon.localnode.apiserver` is its front."""
