"""Between the pure core and the edges: what is known, whose turn it is, and carrying decisions out."""
