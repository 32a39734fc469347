"""The webhook's serving certificate: made or mounted, renewed, trusted."""
