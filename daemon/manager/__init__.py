"""The cluster side: admission, the lifecycle of requests, the readiness of pods, and who of several managers leads."""
