"""What the manager does about requests and the readiness of their pods."""
