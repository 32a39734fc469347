"""ContainerRecreatePolicies at work: on the manager that leads."""
