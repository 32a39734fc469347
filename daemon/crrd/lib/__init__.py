"""What every part may use and what knows nothing of crrd's own subject: errors, loops, logs, metrics, JSON."""
