"""The decisions of `crrd recreate`, without I/O: which pods of a workload are next, and why the others wait."""
