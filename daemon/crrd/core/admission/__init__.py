"""Which objects admission accepts, and which fields it sets."""
