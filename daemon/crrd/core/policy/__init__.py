"""ContainerRecreatePolicy: when to recreate containers automatically."""
