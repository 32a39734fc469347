"""Which pods of a workload are recreated next, and why the others wait: `crrd recreate` without its I/O."""
