"""Containers as plain local processes: what `daemon.localnode.runtime` is made of."""
