"""ContainerRecreatePolicy: when containers are to be recreated without anybody asking for it."""
