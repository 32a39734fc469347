"""Where a request stands, in words, from what the API says."""
