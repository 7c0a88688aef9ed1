"""Models: one file an architecture, checkpoint reading, and the registry that loads them."""
