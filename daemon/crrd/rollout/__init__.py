"""`crrd recreate` at work: gets hold of what `core.rollout` decides on, and carries it out through the API alone."""
