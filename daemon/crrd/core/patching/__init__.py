"""What the manager does for requests whose pods have no node daemon: it restarts containers by patches of the pods."""
