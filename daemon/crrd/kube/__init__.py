"""Access to the Kubernetes API server: its address and credentials, calls and watches, status writes and events."""
