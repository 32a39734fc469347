"""What the node does about the requests of one pod: observation in, actions out."""
