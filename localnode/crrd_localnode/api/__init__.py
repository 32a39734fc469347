"""The parts of the local API server, which is `crrd_localnode.apiserver`."""
