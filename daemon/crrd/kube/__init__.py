"""All that speaks to the Kubernetes API server: where it is, calls and watches, requests, pods, status and events."""
