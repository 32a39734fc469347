"""`crrd node`: watches the requests of one node, and carries out what `core.recreate` decides."""
