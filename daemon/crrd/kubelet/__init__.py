"""What kubelet does, as pure functions: which containers it starts, keeps, restarts, and how it hashes them."""
