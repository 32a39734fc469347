"""What `crrd doctor` makes of a cluster: objects of the API in, findings out."""
