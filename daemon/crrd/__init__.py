"""crrd: restarts single containers of running Kubernetes pods in place, on request."""

__version__ = "0.1.0"
