"""Which containers a kubelet of another version would rebuild, and why."""
