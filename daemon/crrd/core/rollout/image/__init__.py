"""Runs that give a container another image: one kind of run beside the plain restart. See `core.rollout.kind`."""
