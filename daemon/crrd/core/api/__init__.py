"""The objects of the Kubernetes API that crrd works with, as values: requests, pods, reasons, times."""
