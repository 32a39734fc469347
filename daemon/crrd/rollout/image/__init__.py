"""Carries out runs that give a container another image. See `core.rollout.image`."""
