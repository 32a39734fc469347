"""A node and an API server on one machine, without a cluster, for the demo, the tests and the benches."""
