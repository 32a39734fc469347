"""`crrd node`: watches the requests of one node, and carries out the decisions of `core.recreate`."""
