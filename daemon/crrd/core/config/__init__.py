"""What containers use of ConfigMaps and Secrets, and whether it has changed since they started."""
