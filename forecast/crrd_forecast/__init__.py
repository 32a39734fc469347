"""Which containers a kubelet of another version would restart, and why."""
