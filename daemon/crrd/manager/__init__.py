"""`crrd manager`: admission, the lifecycle of requests, the readiness of pods."""
