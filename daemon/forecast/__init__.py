"""What kubelet will do with the containers of a node. The parts in here are pure: standard library only, no I/O."""
