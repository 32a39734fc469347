"""The parts of the local API server; `crrd_localnode.apiserver` is its front."""
