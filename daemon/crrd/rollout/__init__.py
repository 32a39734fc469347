"""Carries out `crrd recreate`: reads what `core.rollout` decides on, and acts only through the API server."""
