"""Containers as plain local processes, the parts of `crrd_localnode.runtime`."""
