"""Which ConfigMaps and Secrets containers use, and whether these have changed since the containers started."""
