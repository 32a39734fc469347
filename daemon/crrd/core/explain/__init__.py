"""The state of a request, as far as the API shows it."""
