"""The behaviour of kubelet, as pure functions: which containers it starts, keeps and restarts, and their hashes."""
