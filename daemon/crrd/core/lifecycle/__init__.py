"""The manager's decisions about requests and about the readiness of their pods."""
