"""General helpers for all packages, without knowledge of requests or pods: errors, loops, logs, metrics, JSON."""
