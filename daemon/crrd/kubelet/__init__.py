"""What kubelet does, as pure functions: which containers it starts, keeps, rebuilds, and how it hashes them."""
