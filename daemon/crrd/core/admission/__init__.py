"""What is let into the cluster, and what admission fills in."""
