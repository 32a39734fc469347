"""Containers as plain local processes: what `crrd_localnode.runtime` is made of."""
