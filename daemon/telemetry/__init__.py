"""What crrd tells about itself: logs, health, metrics."""
