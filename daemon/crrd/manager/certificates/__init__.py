"""The webhook's serving certificate: creating or loading it, renewing it, and publishing its CA."""
